"""What a run's model gets right and wrong on the test rows: intervals, classes, probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.models.metrics import SCORES
from dovetail.models.metrics import TITLES as NAMES
from dovetail.report.chart import Chart, square
from dovetail.report.folder import Judged, Run, Seed
from dovetail.report.views import TableView

#: Parties whose model is shown; the others are in ``result.json``.
_MOST_PARTIES = 4

#: Rows of a bin from which its share is drawn; of fewer it stands in the table alone.
_DRAWN_FROM = 5

#: Classes of a matrix that is drawn; of more, only what is confused most often is told.
_MOST_CLASSES = 12
_MOST_CONFUSED = 10


@dataclass(frozen=True)
class Square:
    """A cell of a confusion matrix; its shade is the share of its row, in per cent."""

    text: str
    shade: str
    right: bool


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix: a row a class as it is, a column a class as it is said."""

    said: str
    classes: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Square]]]


@dataclass(frozen=True)
class JudgedView:
    """One model.

    Attributes:
        title: whose.
        said: on how many rows, and from which probability on a class is said.
        scores: with their intervals.
        matrix: of few classes.
        confused: of many.
        charts: reliability, ROC, precision and recall.
        bins: the rows of each bin of the reliability diagram.
    """

    title: str
    said: str
    scores: TableView
    matrix: Matrix | None
    confused: TableView | None
    charts: Sequence[Chart]
    bins: TableView | None


def judged(run: Run) -> list[JudgedView]:
    """Views of the first seed's models, as far as the run has their details."""
    seed = run.seeds[0]
    done = seed.done.get(run.method)
    if done is None:
        return []
    each = done.details.get(run.method, {})
    return [
        _view(run, seed, party, own)
        for party, own in list(each.items())[:_MOST_PARTIES]
        if own.rows > 0
    ]


def _view(run: Run, seed: Seed, party: str, own: Judged) -> JudgedView:
    scores = seed.done[run.method].scores.get(run.method, {}).get(party, {})
    of_seed = f", seed {seed.seed}" if len(run.seeds) > 1 else ""
    said = f"{own.rows:,} test rows."
    names = [str(name) for name in own.classes]
    if own.threshold is not None and len(names) == 2:
        said += f" {names[1]!r} is said from a probability of {own.threshold:.3g} on."
    body = []
    for name in SCORES:
        if name in scores:
            low, high = own.intervals.get(name, (None, None))
            interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
            body.append((NAMES[name], f"{scores[name]:.3f}", interval))
    matrix = None
    confused = None
    if own.confusion and len(own.confusion) == len(names):
        if len(names) <= _MOST_CLASSES:
            matrix = _matrix(names, own.confusion)
        else:
            confused = _confused(names, own.confusion)
    return JudgedView(
        f"{party}{of_seed}",
        said,
        TableView(
            "95 % intervals are over draws of the test rows with replacement",
            ("score", "", "95 % interval"),
            body,
            numbers=(1, 2),
        ),
        matrix,
        confused,
        list(_charts(own, names)),
        _bins(own),
    )


def _matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Matrix:
    rows = []
    for index, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = max(1, sum(row))
        cells = [
            Square(f"{count:,}", f"{100 * count / total:.0f}", column == index)
            for column, count in enumerate(row)
        ]
        rows.append((name, cells))
    said = "; ".join(
        f"of {sum(row):,} rows of class {name}, {row[index]:,} are right"
        for index, (name, row) in enumerate(zip(names, counts, strict=True))
    )
    return Matrix(f"Confusion matrix: {said}.", names, rows)


def _confused(names: Sequence[str], counts: Sequence[Sequence[int]]) -> TableView:
    pairs = sorted(
        (
            (count, names[is_], names[said])
            for is_, row in enumerate(counts)
            for said, count in enumerate(row)
            if is_ != said and count
        ),
        key=lambda pair: -pair[0],
    )
    return TableView(
        f"what is confused most often, of {len(names)} classes",
        ("is", "is said to be", "rows"),
        [(is_, said, f"{count:,}") for count, is_, said in pairs[:_MOST_CONFUSED]],
        numbers=(2,),
    )


def _charts(own: Judged, names: Sequence[str]) -> Iterator[Chart]:
    second = names[1] if len(names) == 2 else ""
    points = [(each.said, each.was) for each in own.reliability if each.rows >= _DRAWN_FROM]
    if points:
        what = f"the probability of {second!r}" if second else "the said class's probability"
        yield square(
            "how often it is so",
            f"what is said: {what}",
            [("the model", points), ("always true", [(0.0, 0.0), (1.0, 1.0)])],
        )
    if own.roc:
        yield square(
            f"share of the rows of {second!r} that are found (ROC)",
            "share of the others that are taken for them",
            [("the model", own.roc), ("a coin", [(0.0, 0.0), (1.0, 1.0)])],
        )
    if own.precision_recall:
        yield square(
            f"precision: share of what is said to be {second!r} that is",
            "recall: share of them that is found",
            [("the model", own.precision_recall)],
        )


def _bins(own: Judged) -> TableView | None:
    if not own.reliability:
        return None
    return TableView(
        "reliability: rows by what the model says its probability is",
        ("said, mean", "was so", "rows"),
        [(f"{each.said:.3f}", f"{each.was:.3f}", f"{each.rows:,}") for each in own.reliability],
        numbers=(0, 1, 2),
    )
