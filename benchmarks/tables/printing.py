"""What ``dovetail bench`` runs and prints."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from benchmarks import tables as bench
from benchmarks.tables.bars import BenchProgress
from benchmarks.tables.folders import (
    CellFolder,
    Options,
    cell_folders_of,
    chosen_cells,
    locked,
    refuse_other_settings,
    runs_folder,
    table_of,
    times_of,
)
from benchmarks.tables.lacking import check_data
from benchmarks.tables.session import Session
from benchmarks.tables.text import time_text
from dovetail.cli.output import console, print_line
from dovetail.cluster import tasks_at
from dovetail.errors import ConfigError

_RESULTS = Path(__file__).parent.parent / "results" / "bench"


def run_bench(
    name: str | None,
    options: Options,
    *,
    only: Sequence[str],
    show: bool,
    into: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run what is missing and fits, write the table; or list tables, or a table's cells."""
    if name is None:
        _overview(options, as_json=as_json)
        return
    table = table_of(name)
    chosen = chosen_cells(table, only)
    runs = runs_folder(options.runs, [cell for cell in chosen if cell.run])
    if show:
        _list(table, cell_folders_of(table, chosen, runs, options), chosen, as_json=as_json)
        return
    with locked(options.out):
        cell_folders = cell_folders_of(table, chosen, runs, options)
        refuse_other_settings(cell_folders)
        check_data(table.name, cell_folders.values())
        session = Session(
            table,
            chosen,
            cell_folders,
            options,
            command=shlex.join(["dovetail", *sys.argv[1:]]),
            watch=lambda total: BenchProgress(total, shown=not (quiet or as_json)),
        )
        stopped = False
        try:
            with tasks_at(options.ray) as tasks:
                session.work(tasks)
        except KeyboardInterrupt:
            stopped = True
        session.write()
        if into is not None:
            session.put_into(into)
    if as_json:
        print(json.dumps(session.report(), indent=2, ensure_ascii=False))
    elif not quiet:
        _show(session, options)
    if stopped:
        raise KeyboardInterrupt
    if session.failed:
        sys.exit(1)


def _show(session: Session, options: Options) -> None:
    """The table on standard output, and what is not in it."""
    screen, lines = console(), [line for line in session.lines() if line.values]
    if lines:
        names, rows = bench.grid(session.table, lines)
        before: list[str] = []
        many = len(lines[0].labels)
        for row in rows:  # a group's labels once
            labels = row[:many]
            row[:many] = [""] * many if labels == before else labels
            before = labels
        names, rows = _fitting(names, rows, session.table, screen.width)
        screen.print(_grid(session.table.title, names, rows))
    for reason, cells in session.left_out().items():
        print_line(f"Not here: {_some(cells)}: {reason}")
    if session.left:
        print_line(
            f"Left: {len(session.left)} runs, {session.left_text()}; the same command goes on."
        )
    names = [f"{session.stem}.md", f"{session.stem}.jsonl", session.picture]
    print_line(f"In {options.out}: {', '.join(name for name in names if name)}")


#: What a column of a number takes with its borders, and of words.
_NUMBER, _WORDS = 8, 20


def _fitting(
    names: list[str], rows: list[list[str]], table: bench.Table, width: int
) -> tuple[list[str], list[list[str]]]:
    """A wide table's columns that have room: what it is about, what is compared, the gains."""
    if not table.wide or len(names) * _NUMBER + _WORDS <= width:
        return names, rows
    titles = {score: title for cell in table.cells for score, title in cell.scores.items()}
    labels = {name for cell in table.cells for name in cell.labels}
    compared = [titles[score] for score in (table.against, *table.wide)]
    kept = {*labels, *compared, *(name for name in names if " less " in name), names[-1]}
    kept_columns = [column for column, name in enumerate(names) if name in kept]
    return [names[column] for column in kept_columns], [
        [row[column] for column in kept_columns] for row in rows
    ]


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _grid(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for name in names:
        number = name.startswith(("here", "paper", "less"))
        # A cell's name is copied into --only, in one piece.
        grid.add_column(
            name, justify="right" if number else "left", overflow="fold", no_wrap=name == "cell"
        )
    for row in rows:
        grid.add_row(*row)
    return grid


def _list(
    table: bench.Table,
    cell_folders: Mapping[str, CellFolder],
    chosen: Sequence[bench.Cell],
    *,
    as_json: bool,
) -> None:
    """The cells of a table, and what there is of each."""
    times = times_of(cell_folders)
    rows = []
    for cell in chosen:
        cell_folder = cell_folders.get(cell.name)
        if cell_folder is None:
            rows.append(
                [cell.name, cell.run, "", cell.unavailable or "its run file is not there", ""]
            )
            continue
        done = len([seed for seed in cell_folder.wanted if seed in cell_folder.done])
        part = f", {len(cell_folder.part)} begun" if cell_folder.part else ""
        estimate = times.estimate(cell)
        rows.append(
            [
                cell.name,
                " ".join([cell.run, *cell.overrides]),
                str(len(cell_folder.wanted)),
                f"{done} done{part}",
                "" if estimate is None else time_text(estimate),
            ]
        )
    names = ["cell", "run file", "seeds", "state", "a seed takes"]
    if as_json:
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        console().print(_grid(f"{table.name}: {table.title}", names, rows))


def _recorded(table: str) -> int:
    """Runs of a table, of any recipe, whose lines are in the repository."""
    lines = [
        json.loads(line)
        for file in _RESULTS.glob(f"{table}*.jsonl")
        for line in file.read_text("utf-8").splitlines()
    ]
    return sum(line["bench"] == table for line in lines)


def _overview(options: Options, *, as_json: bool) -> None:
    """The tables there are, and what is done of each."""
    rows: list[dict[str, Any]] = []
    for table in bench.TABLES.values():
        cells = [cell for cell in table.cells if not cell.unavailable]
        try:
            runs = runs_folder(options.runs, cells)
            cell_folders = cell_folders_of(table, cells, runs, options)
        except ConfigError as error:
            rows.append(
                {
                    "table": table.name,
                    "title": table.title,
                    "cells": len(table.cells),
                    "left": str(error),
                }
            )
            continue
        total = sum(len(cell_folder.wanted) for cell_folder in cell_folders.values())
        left = [
            cell_folder.cell
            for cell_folder in cell_folders.values()
            for seed in cell_folder.wanted
            if seed not in cell_folder.done
        ]
        seconds, unknown = times_of(cell_folders).total(left)
        known = time_text(seconds) if len(left) > unknown else ""
        guess = f"{unknown} runs of unknown length" if unknown else ""
        takes = ", ".join(part for part in (known, guess) if part) or "nothing"
        rows.append(
            {
                "table": table.name,
                "title": table.title,
                "cells": len(table.cells),
                "runs": total,
                "done": total - len(left),
                "left": takes,
                "recorded": _recorded(table.name),
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    print_line(f"Tables, and what is done of them in {options.out} (dovetail bench TABLE):")
    for row in rows:
        print_line(f"\n{row['table']}: {row['title']}")
        print_line(
            f"    {row['cells']} cells, {row['runs']} runs, {row['done']} done, "
            f"{row['recorded']} on record in benchmarks/results; left: {row['left']}"
            if "runs" in row
            else f"    {row['cells']} cells; {row['left']}"
        )
