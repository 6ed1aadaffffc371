"""``dovetail inspect``: who holds what, which methods fit and why, and what to run next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli import early
from dovetail.cli.options import AsJson, Quiet, RunKeys
from dovetail.errors import ConfigError

if TYPE_CHECKING:
    from dovetail.experiment.coverage import Overlaps
    from dovetail.experiment.expecting import Expected


def inspect(
    run: Annotated[list[Path], typer.Argument(help="A run file, or party files (TOML).")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with the picture.")] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Compare ids blinded, and count only."),
    ] = False,
    hide_below: Annotated[
        int, typer.Option(min=0, help="Hide numbers of shared samples below this, for handing on.")
    ] = 0,
    overrides: RunKeys = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show who has what, and which of the methods fit and why.

    A picture of parties and blocks against samples, overlaps, where labels are, and for each
    method whether it applies, with the command to run next and the sizes of messages to come.
    Reads every party's table; with --private, ids are compared only blinded and only counts shown.

    Where one party has labels, a linear model of its own columns says by cross-validation how its
    score grows with labels: helpers pay where it still rises and many shared rows have none.

    A party that shares nothing reads "none", one whose policy does not agree to be counted
    "refused", one whose table lacks a column that its file names "column missing"; with
    --hide-below 10, less than that "fewer than 10 (hidden)".
    """
    early.check_files(run, overrides)
    from dovetail.cli.inspected import show
    from dovetail.experiment.coverage import from_partition
    from dovetail.experiment.inspecting import (
        expected_of_part,
        expected_of_site,
        message_sizes,
        part_of,
    )
    from dovetail.experiment.runfile import load_run
    from dovetail.experiment.setup import load_data
    from dovetail.experiment.situations import centre
    from dovetail.face.talk import talk_of
    from dovetail.files import read_run
    from dovetail.methods.aligning import count_sites
    from dovetail.methods.apfed.sections import ApfedSection, PassiveFields
    from dovetail.methods.apfed.wiring import passives
    from dovetail.site.home import warnings_of
    from dovetail.site.partyfile import open_sites

    paths = tuple(run)
    run_file = None
    if len(paths) == 1 and "party" not in read_run(paths[0]):
        run_file = load_run(paths[0], overrides=tuple(overrides or ()))
    elif overrides:
        raise ConfigError("--set changes a run file's keys; party files were named")
    counts = sizes = None
    withheld: dict[str, str] = {}
    expecting: Callable[[Overlaps], Expected | None]
    if run_file is not None and run_file.data is not None:
        if private:
            raise ConfigError(
                "--private is for party files; this run file deals out one pooled data set"
            )
        loaded = load_data(run_file)
        parts = from_partition(loaded.data)
        sizes = message_sizes(
            run_file.settings("apfed", ApfedSection), parts, passives(run_file, loaded)
        )
        by_name = {part.name: part.data for part in parts}
        task = loaded.data.task

        def expecting(overlaps: Overlaps) -> Expected | None:
            return expected_of_part(
                by_name[overlaps.centre], task, unlabelled=overlaps.unlabelled()
            )

    else:
        files = (
            paths
            if run_file is None or run_file.parties is None
            else tuple(map(Path, run_file.parties))
        )
        lacking: dict[str, str] = {}
        sites = open_sites(files, lacking=lacking)
        withheld |= dict.fromkeys(lacking, "column missing")
        for sentence in lacking.values():
            talk_of(shown=not (quiet or as_json)).warn(f"dovetail: {sentence}")
        for site in sites.values():
            for warning in warnings_of(site):
                talk_of(shown=not (quiet or as_json)).warn(f"dovetail: {warning}")
        parts = [part_of(site) for site in sites.values()]
        if run_file is not None:
            sizes = message_sizes(
                run_file.settings("apfed", ApfedSection),
                parts,
                {name: site.settings("apfed", PassiveFields) for name, site in sites.items()},
            )
        if private:
            middle = centre(parts)
            for name, site in sites.items():
                if name != middle:
                    try:
                        site.check_policy("align", middle)
                    except ConfigError:
                        withheld[name] = "refused"
                        if {*sites} - {*withheld} == {middle}:  # there is nothing to be counted
                            raise
            agreeing = {name: site for name, site in sites.items() if name not in withheld}
            counted = count_sites(agreeing, middle, talk=talk_of(shown=not (quiet or as_json)))
            counts = {name: overlap.num_shared for name, overlap in counted.items()}

        def expecting(overlaps: Overlaps) -> Expected | None:
            return expected_of_site(sites[overlaps.centre], unlabelled=overlaps.unlabelled())

    show(
        parts,
        title=", ".join(str(path) for path in paths),
        html_path=html,
        as_json=as_json,
        quiet=quiet,
        run_path=str(paths[0]) if run_file is not None else "RUN",
        overlaps_by_cardinality=counts,
        withheld=withheld,
        least=hide_below,
        sizes=sizes,
        expecting=expecting,
        stage=None if run_file is None else run_file.method,
    )
