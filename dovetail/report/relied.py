"""Which columns a run's models rely on, as it was found on its test rows."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.models.metrics import SCORES
from dovetail.models.metrics import TITLES as NAMES
from dovetail.report.chart import Dots, Spread, dots
from dovetail.report.folder import Relied, Run


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
