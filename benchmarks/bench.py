"""``dovetail bench``: a paper's table, cell by cell, beside the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    name: Annotated[
        str | None, typer.Argument(help="A table, such as chfl-table2. [none: list them]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Run these cells only: 'mnist-2-1-*'; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="So many seeds of each cell. [as the run file says]")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe of the run files, for example cpu.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every run file."),
    ] = None,
    budget_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Run what fits in so long; stop, keeping it, at the end."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time. [1, or with --ray the cluster's cores]"),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of each run. [OMP_NUM_THREADS, or cores / jobs]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Runs and tables, kept.")] = Path("out/bench"),
    runs: Annotated[
        Path | None, typer.Option(help="The run files. [./runs, or those Dovetail brings]")
    ] = None,
    show: Annotated[
        bool, typer.Option("--status", help="Say what is done of a table, or of all; run nothing.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Also put the table into this page, between <!-- bench TABLE --> marks, and its "
            "picture into images/ beside it."
        ),
    ] = None,
    ray: str | None = None,
    quiet: bool = False,
    as_json: bool = False,
    device: str | None = None,
) -> None:
    """Make a paper's table, beside the paper's figures (in Dovetail's repository only).

    Without a name: the tables there are, and what is done of each.

    Every cell is a run file and every run a run folder below --out. What is done there is not run
    again, what was stopped goes on from its checkpoint, and a run that fails is told while the
    others go on: repeat the command until nothing is left. Tables that share a cell share its runs.

    A first look at one setting, in ten minutes:

    dovetail bench apfed-table2 --recipe cpu --only 'mnist-2-1-*' --seeds 1 --budget-minutes 10

    A GPU takes several runs at once:

    dovetail bench apfed-table2 --device cuda --jobs 4

    So does a Ray cluster, whose machines each read data sets from a DOVETAIL_DATA of their own; a
    run that is stopped there begins again:

    dovetail bench chfl-table2 --ray auto

    Writes TABLE.md (paper, here, spread, difference: ▲ at or above the paper's figure, ▼ below),
    TABLE.jsonl (a line per run as it ends) and, of figures, TABLE.svg. Exit code 1: a run failed.
    """
    from benchmarks.tables.folders import Options
    from benchmarks.tables.printing import run_bench

    run_bench(
        name,
        Options(
            out=out,
            runs=runs,
            recipe=recipe,
            overrides=tuple(overrides or ()),
            num_seeds=seeds,
            device=device,
            jobs=jobs,
            threads=threads,
            budget_minutes=budget_minutes,
            ray=ray,
        ),
        only=tuple(only or ()),
        show=show,
        into=into,
        quiet=quiet,
        as_json=as_json,
    )
