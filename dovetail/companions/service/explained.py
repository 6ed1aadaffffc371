"""An explanation as a page: the same dots as a run's report."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from dovetail.models.explaining import Explanation
from dovetail.report.chart import DASHES, HEIGHT_REM, Dots, Spread, dots
from dovetail.report.views import COLOURS, TableView, render

#: Columns that are drawn; tables have all.
_MOST_DRAWN = 20


def page(
    title: str, explanation: Explanation, *, row: int | None = None, on: str = "on these rows"
) -> str:
    """Self-contained page; ``on`` says whose rows they are."""
    plots: list[Dots | None] = []
    if explanation.importance:
        plots.append(
            dots(
                f"how much the {explanation.score} loses if a column is permuted; a bar is "
                "the middle 95 % over draws",
                [
                    Spread(
                        each.column,
                        f"{each.mean:.4f}",
                        each.mean,
                        0.0,
                        interval=(each.low, each.high),
                    )
                    for each in explanation.importance[:_MOST_DRAWN]
                ],
                zero=True,
            )
        )
    shares = explanation.mean_shares()
    adds = "mean size of what a column adds to the prediction of a row"
    plots.append(dots(adds, _spreads(shares.items(), ".4f"), zero=True))
    if row is not None:
        title_of_row = (
            f"what each column adds in row {row}: from {explanation.start[row]:.4f} to "
            f"{explanation.outputs[row]:.4f}"
        )
        of_row = _spreads(explanation.of_row(row).items(), "+.4f")
        plots.append(dots(title_of_row, of_row, zero=True))
    plots += [
        dots(
            f"mean {explanation.along} if {column} has this value in every row",
            _spreads(along, ".4f"),
        )
        for column, along in explanation.dependence.items()
    ]
    importance = {each.column: each for each in explanation.importance}
    rows = []
    for name, size in shares.items():
        known = importance.get(name)
        told = ["", ""]
        if known is not None:
            told = [f"{known.mean:.4f}", f"{known.low:.4f} to {known.high:.4f}"]
        rows.append([name, *told, f"{size:.4f}"])
    head = ["column", "importance", "95 %", "adds, mean size"]
    base = ""
    if explanation.base is not None:
        base = f"The {explanation.score} is {explanation.base:.4f} {on}. "
    return render(
        "explain.html",
        title=title,
        summary=f"{base}What columns add was found by {HOW[explanation.how]}.",
        plots=[each for each in plots if each is not None],
        tables=[("All columns", TableView("", head, rows, numbers={1, 2, 3}))],
        dashes=DASHES,
        colours=len(COLOURS),
        height=HEIGHT_REM,
    )


def _spreads(values: Iterable[tuple[str, float]], form: str) -> list[Spread]:
    """A dot for each of the first values."""
    first = islice(values, _MOST_DRAWN)
    return [Spread(name, format(value, form), value, 0.0) for name, value in first]


#: How shares are found, in words.
HOW = {
    "trees": "TreeSHAP",
    "gradients": "integrated gradients from the mean row",
    "orders": "drawn orders of the columns",
}
