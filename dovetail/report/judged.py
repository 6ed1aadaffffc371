"""Judgement of a run's model on test rows: intervals, classes, probabilities, columns relied on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.models.metrics import SCORES
from dovetail.models.metrics import TITLES as NAMES
from dovetail.report.chart import Chart, Dots, Spread, dots, square
from dovetail.report.folder import Judged, Relied, Run, Seed
from dovetail.report.views import TableView


def relied(run: Run) -> list[Dots]:
    """A plot for each model of the first seed that has its columns on record."""
    return [plot for who, each in _models(run) if (plot := _plot(who, each)) is not None]


def _models(run: Run) -> Iterator[tuple[str, Relied]]:
    """Results of the run's own method at each party, then the model with its partners."""
    seed = run.seeds[0]
    done = seed.done.get(run.method)
    details = {} if done is None else done.details
    of_seed = f", seed {seed.seed}" if len(run.seeds) > 1 else ""
    for name, called in ((run.method, "solo model" if "joint" in details else "model"), *_JOINT):
        for party, judged in details.get(name, {}).items():
            if judged.relied is not None:
                yield f"{party}, {called}{of_seed}", judged.relied


_JOINT = (("joint", "joint model"),)


def _plot(who: str, each: Relied) -> Dots | None:
    """The columns, the most important first."""
    word = "falls" if SCORES.get(each.score, True) else "rises"
    most = f"; the {len(each.columns)} of {each.of} columns that matter most"
    return dots(
        f"{who}: how much its {NAMES.get(each.score, each.score)} {word} if a column is permuted "
        f"among {each.rows:,} test rows; a bar is the middle 95 % over draws"
        + (most if each.of > len(each.columns) else ""),
        [
            Spread(name, f"{mean:z.4f}", mean, 0.0, interval=(low, high))
            for name, mean, low, high in each.columns
        ],
        zero=True,
    )


#: Parties whose model is shown; the others are in ``result.json``.
_MOST_PARTIES = 4

#: Rows of a bin from which its share is drawn; of fewer it stands in the table alone.
_DRAWN_FROM = 5

#: Classes of a matrix that is drawn; of more, only what is confused most often is told.
_MOST_CLASSES = 12
_MOST_CONFUSED = 10

#: Variants beside a model of several labels -> what they are called.
_COMPARED = {"best-alone": "best local", "joint": "joint", "tvfl": "joint"}


def judged(run: Run) -> list[dict[str, Any]]:
    """Views of the first seed's models, as far as the run has their details."""
    seed = run.seeds[0]
    done = seed.done.get(run.method)
    if done is None:
        return []
    each = done.details.get(run.method, {})
    return [
        _view(run, seed, party, judged_here)
        for party, judged_here in list(each.items())[:_MOST_PARTIES]
        if judged_here.rows > 0
    ]


def _view(run: Run, seed: Seed, party: str, judged_rows: Judged) -> dict[str, Any]:
    """View of one model: its scores, what it confuses, and how well its probabilities fit."""
    scores = seed.done[run.method].scores.get(run.method, {}).get(party, {})
    of_seed = f", seed {seed.seed}" if len(run.seeds) > 1 else ""
    text = f"{judged_rows.rows:,} test rows."
    names = [str(name) for name in judged_rows.classes]
    if judged_rows.threshold is not None and len(names) == 2:
        text += f" {names[1]!r} is predicted from a probability of {judged_rows.threshold:.3g} on."
    body = []
    for name in SCORES:
        if name in scores:
            low, high = judged_rows.intervals.get(name, (None, None))
            interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
            of = f" of {names[1]!r}" if name == "average_precision" and len(names) == 2 else ""
            body.append((NAMES[name] + of, f"{scores[name]:.3f}", interval))
    counts = judged_rows.confusion if len(judged_rows.confusion) == len(names) else []
    few = len(names) <= _MOST_CLASSES
    return {
        "title": f"{party}{of_seed}",
        "summary": text,
        "scores": TableView(
            "95 % intervals: bootstrap resamples of the test rows",
            ("score", "", "95 % interval"),
            body,
            numbers=(1, 2),
        ),
        "matrix": {"classes": names, "counts": counts} if counts and few else None,
        "confused": _confused(names, counts) if counts and not few else None,
        "charts": list(_charts(judged_rows, names)),
        "bins": _bins(judged_rows),
        "labels": _labels(run, seed, party, judged_rows),
    }


def _labels(run: Run, seed: Seed, party: str, judged_rows: Judged) -> TableView | None:
    """Each label's first score, of the model and of what it is compared with."""
    if not judged_rows.labels:
        return None
    score = "auc" if any("positive" in each for each in judged_rows.labels.values()) else "r2"
    of_variants = {
        name: parties[party].labels
        for done in seed.done.values()
        for name, parties in done.details.items()
        if party in parties and parties[party].labels and name in (run.method, *_COMPARED)
    }
    order = [*(each for each in _COMPARED if each in of_variants), run.method]
    names = [name for name in dict.fromkeys(order) if name in of_variants]

    def shown(name: str, label: str) -> str:
        value = of_variants[name].get(label, {}).get(score)
        return "" if value is None else f"{value:.3f}"

    body = [
        (label, f"{each.get('rows', 0):,.0f}", *(shown(name, label) for name in names))
        for label, each in judged_rows.labels.items()
    ]
    heads = [_COMPARED.get(name, "solo") for name in names]
    return TableView(
        f"{NAMES[score]} of each label, on the test rows that have it",
        ("label", "rows", *heads),
        body,
        numbers=tuple(range(1, 2 + len(names))),
    )


def _confused(names: Sequence[str], counts: Sequence[Sequence[int]]) -> TableView:
    pairs = sorted(
        (
            (count, names[is_], names[predicted])
            for is_, row in enumerate(counts)
            for predicted, count in enumerate(row)
            if is_ != predicted and count
        ),
        key=lambda pair: -pair[0],
    )
    return TableView(
        f"what is confused most often, of {len(names)} classes",
        ("is", "is predicted to be", "rows"),
        [(is_, predicted, f"{count:,}") for count, is_, predicted in pairs[:_MOST_CONFUSED]],
        numbers=(2,),
    )


def _charts(judged_rows: Judged, names: Sequence[str]) -> Iterator[Chart]:
    second = names[1] if len(names) == 2 else ""
    points = [(each.said, each.was) for each in judged_rows.reliability if each.rows >= _DRAWN_FROM]
    if points:
        what = f"the probability of {second!r}" if second else "the said class's probability"
        is_so = f"that are {second!r}" if second else "in which it is right"
        yield square(
            f"share of rows {is_so}",
            f"what the model predicted: {what}",
            [("the model", points), ("as it should be", [(0.0, 0.0), (1.0, 1.0)])],
        )
    if judged_rows.roc:
        yield square(
            f"share of the rows of {second!r} that are found (ROC)",
            "share of the others that are taken for them",
            [("the model", judged_rows.roc), ("a coin", [(0.0, 0.0), (1.0, 1.0)])],
        )
    if judged_rows.curves is not None:
        curves = judged_rows.curves
        last = max(curves.times) or 1.0
        places = [time / last for time in curves.times]
        yield square(
            "share without event",
            f"time, as a share of {last:g}",
            [
                ("the model, mean of the rows", list(zip(places, curves.said, strict=True))),
                ("Kaplan and Meier", list(zip(places, curves.was, strict=True))),
            ],
        )
    if judged_rows.calibration:
        yield square(
            "how many have no event by then",
            "what is predicted: the share without event, in fifths of the rows",
            [
                *(
                    (f"by {each.time:g}", [(group.said, group.was) for group in each.groups])
                    for each in judged_rows.calibration
                ),
                ("as it should be", [(0.0, 0.0), (1.0, 1.0)]),
            ],
        )
    if judged_rows.precision_recall:
        yield square(
            f"precision: share of what is predicted to be {second!r} that is",
            "recall: share of them that is found",
            [("the model", judged_rows.precision_recall)],
        )


def _bins(judged_rows: Judged) -> TableView | None:
    if not judged_rows.reliability:
        return None
    return TableView(
        "reliability: rows by what the model says its probability is",
        ("said, mean", "was so", "rows"),
        [
            (f"{each.said:.3f}", f"{each.was:.3f}", f"{each.rows:,}")
            for each in judged_rows.reliability
        ],
        numbers=(0, 1, 2),
    )
