"""``dovetail invite``: a new party's part of a finished run's model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from dovetail.errors import ConfigError


def invite(
    run: Path,
    party: str,
    block: list[str] | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Cut a new party's part out of a finished HyFEM model; it predicts alone, untrained.

    The part has the extractors of the party's blocks and a classifier over their features, as the
    server would predict from these blocks. No party is asked and nothing is trained. The party
    needs no label. Its blocks and columns must be those of the run.

    Args:
        run: a finished run of HyFEM, or its models/server.
        party: the new party's file, or its name with --block.
        block: a block that it has, where its file is not here; repeat for each.
        out: the model's folder; None: out/PARTY.
        overwrite: replace the model in this folder.
    """
    from dovetail.api.inviting import invite as cut

    model = cut(run, party, blocks=tuple(block or ()))
    folder = out or Path("out") / model.party
    if folder.exists() and not overwrite:
        raise ConfigError(f"{folder} is there already; name another with --out, or --overwrite")
    model.save(folder)
    if as_json:
        print(
            json.dumps({"party": model.party, "blocks": list(model.shapes), "model": str(folder)})
        )
    elif not quiet:
        print(f"{model.party} predicts from {', '.join(model.shapes)}: {folder}")
        print(f"  dovetail predict {shlex.quote(str(folder))} NEW-ROWS.csv")
