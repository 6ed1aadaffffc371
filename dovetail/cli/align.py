"""``dovetail align``: which rows are the same sample, found privately, kept at each home."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli import early
from dovetail.cli.options import AsJson, Certificates, Listen, Quiet
from dovetail.cli.output import console, say
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
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Rate one party's match keys at home; send nothing."),
    ] = False,
    proposal: Annotated[
        Path | None,
        typer.Option(help="The proposal that all parties signed, of the run file that is named."),
    ] = None,
    hide_below: Annotated[
        int, typer.Option(min=0, help="Hide numbers of shared rows below this, for handing on.")
    ] = 0,
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

    Without an id in common, list match keys in every party file, such as
    match = [["surname", "given", "birth_date"], ["sounds(surname)", "birth_date", "postcode"]]:
    they are tried in order, each on the rows that none before has matched. To see beforehand what
    they are worth: dovetail align shop.toml --dry-run (docs/alignment.md).
    """
    early.check_files(parties)
    from dovetail.cli.elsewhere import Elsewhere
    from dovetail.experiment.runfile import load_run
    from dovetail.face.talk import talk_of
    from dovetail.files import read_run
    from dovetail.site.driver import stream_driver
    from dovetail.site.overlaps import aligned_here, counted_here, rated, starter_of, with_driver
    from dovetail.site.partyfile import open_site, open_sites

    paths = tuple(parties)
    show = not (quiet or as_json)
    run = load_run(paths[0]) if len(paths) == 1 and "party" not in read_run(paths[0]) else None
    if run is not None:
        if run.parties is None:
            raise ConfigError(f"{paths[0]} has no party files to align; it deals out one data set")
        paths = tuple(map(Path, run.parties))
    if dry_run:
        if len(paths) != 1 or run is not None:
            raise ConfigError("--dry-run rates the match keys of one party; name its file alone")
        _show_rated(rated(open_site(paths[0])), quiet=quiet, as_json=as_json)
        return
    agreed = None
    if proposal is not None:
        from dovetail.experiment.proposing import read_agreed

        if run is None:
            raise ConfigError(
                "--proposal goes with the run file that was proposed: dovetail align run.toml "
                f"--proposal {proposal}"
            )
        agreed = read_agreed(run, run.all_seeds(), proposal, where=str(parties[0]))
    section = Elsewhere(partners, listen, certificates, wait).section(run, paths, initiator)
    if section is not None:
        with stream_driver(open_site(paths[0]), section, talk=talk_of(shown=show)) as driver:
            if agreed is not None:
                driver.agreed(*agreed)
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
        print(json.dumps(_hidden(result, hide_below), indent=2))
    elif not quiet:
        console().print(_table(result, hide_below))
        for table in _key_tables(_hidden(result, hide_below)):
            console().print(table)
        say(_learned(result))


def _hidden(result: dict[str, Any], least: int) -> dict[str, Any]:
    """The result without numbers that are too small to be shown; they are named instead."""
    from dovetail.experiment.coverage import hides, shown

    small = {name: count for name, count in result["shared"].items() if hides(count, least)}
    if not small:
        return result
    kept = {name: count for name, count in result["shared"].items() if name not in small}
    told = {name: shown(count, least=least) for name, count in small.items()}
    rest = {name: value for name, value in result.items() if name not in ("keys", "truth")}
    return {**rest, "shared": kept, "shared_by_all": None, "not_shown": told}


def _table(result: dict[str, Any], least: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    from dovetail.experiment.coverage import hides, shown

    starter = result["initiator"]
    table = Table(title=Text(f"Shared with {starter!r}"), title_justify="left")
    for name, justify in (("party", "left"), ("rows", "right"), ("shared", "right"), ("", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    own = result["rows"][starter]
    table.add_row(Text(starter), f"{own:,}", "", "")
    for name, shared in result["shared"].items():
        share = "" if hides(shared, least) else f"{shared / own:.1%}"
        rows = f"{result['rows'][name]:,}"
        table.add_row(Text(name), rows, shown(shared, least=least), share)
    if "shared_by_all" in result:
        shared = result["shared_by_all"]
        share = "" if hides(shared, least) else f"{shared / own:.1%}"
        table.add_row("all of them", "", shown(shared, least=least), share)
    return table


def _key_tables(result: dict[str, Any]) -> list[Table]:
    """What each match key has found, of each partner; with truth, how much of it is right."""
    from rich.table import Table
    from rich.text import Text

    tables = []
    for party, passes in result.get("keys", {}).items():
        truth = result.get("truth", {}).get(party)
        right = truth["right_by_key"] if truth else [None] * len(passes)
        caption = None
        if truth and truth["precision"] is not None and truth["recall"] is not None:
            caption = (
                f"{truth['in_both']:,} people are at both: recall {truth['recall']:.3f}, precision "
                f"{truth['precision']:.4f}"
            )
        table = Table(
            title=Text(f"Found by key, with {party!r}"),
            title_justify="left",
            caption=caption,
            caption_justify="left",
        )
        table.add_column("key")
        shown = {"entered": "entered", "ambiguous": "shared key", "missing": "no key"}
        if result["mode"] == "intersection":  # a count does not tell how many have a key there
            shown["entered_there"] = "there"
        shown["matched"] = "matched"
        for name in (*shown.values(), *["wrong"] * bool(truth)):
            table.add_column(name, justify="right")
        for each, num_right in zip(passes, right, strict=True):
            counts = [each[name] for name in shown]
            wrong = [] if num_right is None else [each["matched"] - num_right]
            table.add_row(Text(each["key"]), *(f"{count:,}" for count in (*counts, *wrong)))
        tables.append(table)
    return tables


def _show_rated(keys: list[dict[str, Any]], *, quiet: bool, as_json: bool) -> None:
    """What each key is worth at home, and how few guesses would try all of it."""
    from rich.table import Table
    from rich.text import Text

    if as_json:
        print(json.dumps(keys, indent=2))
        return
    if quiet:
        return
    table = Table(title="Each key by itself; nothing has been sent", title_justify="left")
    table.add_column("key")
    for name in ("own alone", "shared key", "no key", "guesses"):
        table.add_column(name, justify="right")
    for each in keys:
        rows = each["rows"]
        shares = (f"{each[name] / rows:.1%}" for name in ("unique", "ambiguous", "missing"))
        table.add_row(Text(each["key"]), *shares, f"{each['guesses']:.1e}")
    console().print(table)
    console().print(
        "own alone: rows that this key can match. shared key: several rows have the same, so that "
        "none of them can be.\nguesses: how many keys try every combination of values such as "
        "your rows have. A driver may try policy.max_ids of them a day: where that is not far "
        "fewer, it can find out who is in your table (docs/alignment.md).",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


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
