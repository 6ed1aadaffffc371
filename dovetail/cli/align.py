"""``dovetail align``: which rows are the same sample, found privately, kept at each home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import early
from dovetail.cli.options import AsJson, Certificates, Listen, Quiet
from dovetail.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table


def align(
    parties: Annotated[
        list[Path], typer.Argument(help="Two party files (TOML) or more; or a run file.")
    ],
    partners: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Parties on other machines; then name your file only."),
    ] = None,
    listen: Listen = None,
    certificates: Certificates = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for partners elsewhere. [until they come]"),
    ] = None,
    initiator: Annotated[
        str | None, typer.Option(help="The party that starts. [the one with labels, or the first]")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count what is shared; nobody learns which.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes for the arithmetic.")] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find which rows are the same sample, by private set intersection.

    No party sees another's ids: they are compared multiplied by both parties' secrets. Each
    party's part of the result is kept beside its party file, where `dovetail train` finds it.

    With partners on other machines, who run `dovetail join`:

    dovetail align bank.toml --partners shop,lab --listen 0.0.0.0:7443

    Or name the run file that says so.
    """
    early.check_files(parties)
    from dovetail.cli.elsewhere import Elsewhere
    from dovetail.cli.output import console
    from dovetail.experiment.runfile import load_run
    from dovetail.face.talk import talk_of
    from dovetail.files import read_run
    from dovetail.site.driver import stream_driver
    from dovetail.site.overlaps import aligned_here, counted_here, starter_of, with_driver
    from dovetail.site.partyfile import open_site, open_sites

    paths = tuple(parties)
    show = not (quiet or as_json)
    run = load_run(paths[0]) if len(paths) == 1 and "party" not in read_run(paths[0]) else None
    if run is not None:
        if run.parties is None:
            raise ConfigError(f"{paths[0]} has no party files to align; it deals out one data set")
        paths = tuple(map(Path, run.parties))
    section = Elsewhere(partners, listen, certificates, wait).section(run, paths, initiator)
    if section is not None:
        with stream_driver(open_site(paths[0]), section, talk=talk_of(shown=show)) as driver:
            result = with_driver(driver, count=count, workers=workers)
    else:
        sites = open_sites(paths)
        if len(sites) < 2:
            raise ConfigError(
                "name two party files or more: dovetail align bank.toml shop.toml; or where the "
                "others are elsewhere: dovetail align bank.toml --partners shop --listen HOST:PORT"
            )
        starter = initiator or starter_of(sites)
        if starter not in sites:
            raise ConfigError(f"--initiator is {starter!r}; parties are {sorted(sites)}")
        act = counted_here if count else aligned_here
        result = act(sites, starter, workers=workers, talk=talk_of(shown=show))
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        console().print(_table(result))
        console().print(_learned(result), highlight=False, markup=False, soft_wrap=True)


def _table(result: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    starter = result["initiator"]
    table = Table(title=Text(f"Shared with {starter!r}"), title_justify="left")
    for name, justify in (("party", "left"), ("rows", "right"), ("shared", "right"), ("", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    own = result["rows"][starter]
    table.add_row(Text(starter), f"{own:,}", "", "")
    for name, shared in result["shared"].items():
        table.add_row(Text(name), f"{result['rows'][name]:,}", f"{shared:,}", f"{shared / own:.1%}")
    if "shared_by_all" in result:
        shared = result["shared_by_all"]
        table.add_row("all of them", "", f"{shared:,}", f"{shared / own:.1%}")
    return table


def _learned(result: dict[str, Any]) -> str:
    """What each side knows now that it did not know before."""
    starter = result["initiator"]
    if result["mode"] == "cardinality":
        return (
            f"{starter!r} has learned how many rows each partner has and shares; each partner how "
            f"many rows {starter!r} has. Nobody has learned which."
        )
    files = ", ".join(result["files"].values())
    if len(result["files"]) == 1:
        kept = f"Each party keeps its own part at home; {starter!r}: {files}"
    else:
        kept = f"Each party's part is beside its party file: {files}"
    return (
        f"{starter!r} has learned which of its rows each partner has; each partner which of its "
        f"rows {starter!r} has. Nothing else (docs/alignment.md).\n{kept}\n"
        "Next: dovetail train RUN"
    )
