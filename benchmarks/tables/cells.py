"""What a table of a paper is made of: cells, which are run files, and the paper's figures.

Scores are fractions in ``Run`` and in JSON lines, per cent in ``Figure``, ``Line`` and tables.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

#: What a run's scores do not depend on: how often it is scored and saved, and where it is made.
_IDLE = {"evaluate_every", "checkpoint_every", "min_participation", "device"}

#: Sections of a run file that every method reads.
_SHARED = {"data", "passive", "engine"}


@dataclass(frozen=True)
class Figure:
    """What a paper prints, in per cent."""

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        return numbers_text(self.mean, self.spread)


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """A run file with some keys changed; a run for each seed.

    Attributes:
        name: of its folder, unique among the cells of its method.
        run: the run file, below the folder of run files; "" where there is none.
        labels: column of the table -> what it says of this cell. Cells of the same labels are one
            group: their runs are pooled.
        scores: name in ``result.json`` (the run's method, or a baseline) -> its name in the table;
            "local@north" is one party's, others are the mean over parties.
        overrides: as of ``--set``.
        paper: table and row of the figures to compare with; None: the paper prints none.
        checkpoint_every: rounds from one checkpoint to the next where the run file saves none, so
            that a run that is stopped can go on; None: as the run file says.
        kind: cells of one kind take about as long.
        score: which score counts.
        unavailable: why it cannot be run; "" where it can.
    """

    name: str
    run: str
    labels: Mapping[str, str]
    scores: Mapping[str, str]
    overrides: tuple[str, ...] = ()
    paper: tuple[str, str] | None = None
    checkpoint_every: int | None = None
    kind: str = ""
    score: str = "accuracy"
    unavailable: str = ""

    def folder(self, out: Path, recipe: str | None) -> Path:
        """Where its seeds are; tables that have the same cell share it."""
        return out / Path(self.run).parent / (self.name + (f"-{recipe}" if recipe else ""))

    def figure(self, score: str) -> Figure | None:
        """What the paper prints for one of its scores."""
        return None if self.paper is None else paper_figure(*self.paper, score)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A paper's table or figure as a grid of cells.

    Attributes:
        name: what ``dovetail bench`` calls it.
        title: one line: paper, table, what is compared.
        cells: in the table's order.
        against: the score (its name in ``result.json``) whose difference to each other one is told,
            run by run; "": none.
        note: what is not as in the paper, or what the paper says without a number.
        x: the label to draw scores against; "": no picture.
        gains: draw the difference to ``against``, not the scores.
        over: "round" or "epoch": draw scores over these instead, from ``metrics.jsonl``.
        losses: with ``over``, draw the log loss beside the score.
        more: other score (or "megabytes", what all parties sent) -> the column it has, as it is.
        wide: the scores whose gains over ``against`` are the point: scores stand side by side, one
            line a group, and the gains with their 95 % intervals; none: one line a score.
        singles: of a ``wide`` one, the scores of which ``against`` is to be as good as the best.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    against: str = ""
    note: str = ""
    x: str = ""
    gains: bool = False
    over: str = ""
    losses: bool = False
    more: Mapping[str, str] = field(default_factory=dict)
    wide: tuple[str, ...] = ()
    singles: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where the figures are from."""
        names = dict.fromkeys(cell.paper[0] for cell in self.cells if cell.paper is not None)
        return "; ".join(_papers()[name]["source"] for name in names)


@dataclass(frozen=True)
class Run:
    """One seed of a cell that finished.

    Attributes:
        scores: of all that was trained, as fractions.
        seconds: wall time of training, of all variants.
        result: the whole of ``result.json``.
    """

    cell: Cell
    seed: int
    scores: Mapping[str, float]
    seconds: float
    folder: Path
    result: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def more(self, other: str) -> dict[str, float]:
        """Method and baselines -> another score; the method -> megabytes that all sent."""
        if other != "megabytes":
            return scores_of(self.result, other)
        sent = self.result.get("bytes")
        if not sent:
            return {}
        return {self.result["method"]: sum(party["sent"] for party in sent.values()) / 1e6}


@dataclass(frozen=True)
class Line:
    """A line of a table, in per cent.

    Attributes:
        labels: column -> what stands there.
        method: what was trained.
        values: of each run.
        gains: of each run that has both: this less what the table compares against.
        planned: how many runs there are to be.
        more: column -> what the paper prints there, and the value of each run.
    """

    labels: Mapping[str, str]
    method: str
    paper: Figure | None
    values: Sequence[float]
    gains: Sequence[float] = field(default=())
    planned: int = 0
    more: Mapping[str, tuple[float | None, Sequence[float]]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return mean_and_spread(self.values)[0]

    @property
    def spread(self) -> float | None:
        """Standard deviation over the runs."""
        return mean_and_spread(self.values)[1]

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, as both are printed."""
        if self.paper is None or not self.values:
            return None
        return round(round(self.mean, 2) - round(self.paper.mean, 2), 2)


def half_interval(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of the mean by Student's t; None for a single value."""
    from scipy import stats

    if len(values) < 2:
        return None
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and standard deviation where there are two or more."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def numbers_text(mean: float, spread: float | None) -> str:
    """Mean and spread.

    >>> told_numbers(95.238, 0.119)
    '95.24 ± 0.12'
    """
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


@cache
def _papers() -> dict[str, Any]:
    text = files(__package__).joinpath("papers.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def paper_figure(table: str, row: str, score: str) -> Figure | None:
    """What a paper prints there; None where it prints nothing.

    Raises:
        KeyError: no such table or row.
    """
    printed = _papers()[table]
    numbers = printed["rows"][row].get(score)
    if numbers is None:
        return None
    unit = {"percent": 1, "fraction": 100}[printed["printed"]]
    return Figure(*(round(unit * number, 4) for number in numbers))


def paper_other(table: str, row: str, score: str, other: str) -> float | None:
    """Another score that a paper prints there, as it is; None where it prints none."""
    number = _papers()[table]["rows"][row].get(other, {}).get(score)
    return None if number is None else float(number)


def scores_of(result: Mapping[str, Any], score: str) -> dict[str, float]:
    """Method and baselines -> the score, of the result of one seed; the mean over parties."""
    scores = result.get("mean")
    if scores is None:
        scores = next(iter(result["parties"].values()), {})
    every = {result["method"]: scores, **result["baselines"]}
    return {name: scores[score] for name, scores in every.items() if score in scores}


def read_run(cell: Cell, seed: int, folder: Path, result: Mapping[str, Any]) -> Run:
    """A finished run of a cell, from its ``result.json``."""
    runs_done = result.get("variants", {"": result})
    seconds = sum(variant["seconds"] for variant in runs_done.values())
    scores = scores_of(result, cell.score)
    for name in cell.scores:
        variant, at, party = name.partition("@")
        if at:
            of_party = runs_done.get(variant, {}).get("scores", {}).get(variant, {}).get(party, {})
            if cell.score in of_party:
                scores[name] = of_party[cell.score]
    return Run(cell, seed, scores, seconds, folder, result)


def differing(kept: Mapping[str, Any], wanted: Mapping[str, Any], section: str) -> list[str]:
    """Keys in which a kept run's settings are not the wanted ones, of those its scores depend on.

    Args:
        kept, wanted: two runs as resolved.
        section: the method's own section.
    """
    return sorted(_unlike("", local_settings(kept, section), local_settings(wanted, section)))


def local_settings(run: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What a run's scores depend on; sections of other methods are not part of it."""

    def counts(name: str, value: Any) -> bool:
        if isinstance(value, Mapping):
            return name == section or name in _SHARED
        return name not in _IDLE

    return {name: value for name, value in run.items() if counts(name, value)}


def _unlike(path: str, kept: Any, wanted: Any) -> Iterable[str]:
    if isinstance(kept, Mapping) and isinstance(wanted, Mapping):
        for name in kept.keys() | wanted.keys():
            yield from _unlike(f"{path}.{name}".lstrip("."), kept.get(name), wanted.get(name))
    elif kept != wanted:
        yield path


def lines(table: Table, runs: Iterable[Run], planned: Mapping[str, int]) -> list[Line]:
    """The table's lines: of each group of cells, and in it of each score.

    Args:
        table: the grid.
        runs: those that finished.
        planned: cell -> how many runs there are to be; cells that are not in it have no line.
    """
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in table.cells:
        if cell.name in planned:
            groups.setdefault(tuple(cell.labels.values()), []).append(cell)
    by_cell: dict[str, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell.name, []).append(run)
    lines = []
    for cells in groups.values():
        base = {
            (run.cell.overrides, run.seed): run.scores[table.against]
            for cell in cells
            for run in by_cell.get(cell.name, ())
            if table.against in run.scores
        }
        titles = {(score, title): None for cell in cells for score, title in cell.scores.items()}
        for score, title in titles:
            reference = [cell for cell in cells if cell.scores.get(score) == title]
            done = [
                run
                for cell in reference
                for run in by_cell.get(cell.name, ())
                if score in run.scores
            ]
            pairs = [(run.scores[score], base.get((run.cell.overrides, run.seed))) for run in done]
            lines.append(
                Line(
                    labels=reference[0].labels,
                    method=title,
                    paper=reference[0].figure(score),
                    values=[100 * value for value, _ in pairs],
                    gains=[100 * (value - other) for value, other in pairs if other is not None]
                    if score != table.against
                    else (),
                    planned=sum(planned[cell.name] for cell in reference),
                    more={
                        column: (
                            paper_other(*reference[0].paper, score, other)
                            if reference[0].paper
                            else None,
                            [
                                value
                                for run in done
                                if (value := run.more(other).get(score)) is not None
                            ],
                        )
                        for other, column in table.more.items()
                    },
                )
            )
    return lines
