"""``dovetail align``: which rows are the same sample, found privately, kept at each site."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.errors import ConfigError


def align(
    parties: list[Path],
    partners: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    listen: str | None = None,
    certificates: Path | None = None,
    wait: Annotated[float | None, typer.Option(min=0)] = None,
    initiator: str | None = None,
    count: bool = False,
    dry_run: bool = False,
    proposal: Path | None = None,
    hide_below: Annotated[int, typer.Option(min=0)] = 0,
    workers: Annotated[int, typer.Option(min=1)] = 1,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Find which rows are the same sample, by private set intersection.

    No party sees another's ids: they are compared multiplied by both parties' secrets. Each
    party's part of the result is kept beside its party file, where `dovetail train` finds it.

    With partners on other machines, who run `dovetail join`:

    dovetail align bank.toml --partners shop,lab --listen 0.0.0.0:7443

    Or name the run file with these settings.

    Without an id in common, list match keys in every party file, such as match = [["surname",
    "given", "birth_date"], ["sounds(surname)", "birth_date", "postcode"]]: they are tried in order,
    each on the rows that no earlier key has matched. To rate them beforehand: dovetail align
    shop.toml --dry-run (docs/alignment.md).

    Args:
        parties: two party files (TOML) or more; or a run file.
        partners: parties on other machines; then name your file only.
        wait: seconds to wait for partners elsewhere; None: until they come.
        initiator: the party that starts; None: the one with labels, or the first.
        count: count what is shared; nobody learns which.
        dry_run: rate one party's match keys at its site; send nothing.
        proposal: the proposal that all parties signed, of the run file that is named.
        hide_below: hide numbers of shared rows below this, for handing on.
        workers: processes for the arithmetic.
    """
    precheck.check_files(parties)
    from dovetail.api import aligning
    from dovetail.api.lines import Partners
    from dovetail.cli.output import show
    from dovetail.cli.remote import Elsewhere
    from dovetail.files import read_run
    from dovetail.node.partyfile import open_site
    from dovetail.runs.proposing import read_agreed
    from dovetail.runs.runfile import load_run

    paths = tuple(parties)
    run = load_run(paths[0]) if len(paths) == 1 and "party" not in read_run(paths[0]) else None
    if run is not None:
        if run.parties is None:
            raise ConfigError(f"{paths[0]} has no party files to align; it splits one data set")
        paths = tuple(map(Path, run.parties))
    if dry_run and (len(paths) != 1 or run is not None):
        raise ConfigError("--dry-run rates the match keys of one party; name its file alone")
    if proposal is not None and run is None:
        raise ConfigError(
            "--proposal goes with the run file that was proposed: dovetail align run.toml "
            f"--proposal {proposal}"
        )
    agreed = None
    if run is not None:
        agreed = read_agreed(run, run.all_seeds(), proposal, where=str(parties[0]))
    section = Elsewhere(partners, listen, certificates, wait).aligning(run, paths, initiator)
    matched: aligning.Matched | aligning.RatedKeys
    silent = quiet or as_json
    if dry_run:
        matched = aligning.rate_keys(paths[0])
    elif section is not None:
        with Partners(section) as elsewhere:
            site = open_site(paths[0])
            matched = aligning.align_with(
                site,
                elsewhere,
                count=count,
                agreed=agreed,
                hide_below=hide_below,
                workers=workers,
                quiet=silent,
            )
    else:
        matched = aligning.align(
            paths,
            count=count,
            initiator=initiator,
            hide_below=hide_below,
            workers=workers,
            quiet=silent,
        )
    if as_json:
        print(json.dumps(matched.to_json(), indent=2))
    elif not quiet:
        show(matched)
        if isinstance(matched, aligning.Matched) and not any(matched.shared.values()):
            print("No row is shared: check the id columns of both (docs/alignment.md).")
        elif not (dry_run or count):
            print(f"Next: dovetail train {parties[0] if run is not None else _run_of(paths)}")


def _run_of(paths: Sequence[Path]) -> str:
    """The run file beside these party files that names them; RUN where there is none."""
    wanted = {path.resolve() for path in paths}
    for file in sorted(paths[0].parent.glob("*.toml")):
        try:
            named = tomllib.loads(file.read_text(encoding="utf-8")).get("parties", ())
        except (OSError, ValueError):
            continue
        if (
            isinstance(named, list)
            and {(file.parent / str(each)).resolve() for each in named} & wanted
        ):
            return str(file)
    return "RUN"
