"""A new party takes its part of a finished run's model of all blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.models import Model, load
from dovetail.node.partyfile import open_site

#: Whose model it is that a run keeps of all blocks.
SERVER = "server"


def invite(
    run: str | Path,
    party: str | Path,
    *,
    blocks: Sequence[str] = (),
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Model:
    """The part of a run's server model that a new party predicts alone with; nobody is asked.

    Args:
        run: the folder of a finished run of HyFEM, or its ``models/server``.
        party: the party's file, whose blocks and columns are compared with the model's; or its
            name, with ``blocks``.
        blocks: names of the party's blocks, where it has no file here.
        columns: block -> columns of the party, to be compared; None: they are not known.

    Raises:
        ConfigError: a run without such a model, or blocks or columns that the model does not have.
        ModelError: a model that cannot be read.
    """
    folder = Path(run)
    for model_folder in (folder, folder / "models" / SERVER):
        if (model_folder / "model.json").is_file():
            break
    else:
        seeds = sorted(each.name for each in folder.glob("seed-*"))
        hint = f"; it has several seeds, name one: {folder / seeds[0]}" if seeds else ""
        raise ConfigError(
            f"{folder} has no models/{SERVER}, which HyFEM's coordinator keeps of all blocks{hint}"
        )
    if blocks:
        name, held = str(party), {block: tuple((columns or {}).get(block, ())) for block in blocks}
    else:
        if not Path(party).is_file():
            raise ConfigError(
                f"there is no party file {party}; name the party's blocks with --block if it has "
                "no file here"
            )
        site = open_site(Path(party))
        name, held = site.name, dict(site.table.blocks)
    model = load(model_folder)
    method = model.about.get("method")
    known = methods.METHODS
    if method not in known:
        raise ConfigError(f"{model_folder} is of {method!r}, which trains no model of all blocks")
    if (folder / "models" / name).exists():
        raise ConfigError(
            f"party {name!r} took part in this run: its model is {folder / 'models' / name}"
        )
    invited = methods.method_of(str(method)).invited
    if invited is None:
        raise ConfigError(f"{method!r} trains no model of which a new party could take a part")
    return invited(model, name, held)
