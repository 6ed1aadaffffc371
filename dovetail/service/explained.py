"""An explanation as a page: the same dots as a run's report."""

from __future__ import annotations

from dovetail.models.explaining import Explanation
from dovetail.report.chart import DASHES, HEIGHT_REM, Dots, Spread, dots
from dovetail.report.views import COLOURS, TableView, render

#: Columns that are drawn; tables have all.
_MOST_DRAWN = 20


def page(title: str, explanation: Explanation, *, row: int | None = None) -> str:
    """One self-contained page."""
    plots: list[Dots | None] = []
    if explanation.importance:
        plots.append(
            dots(
                f"how much the {explanation.score} loses where a column's values are split anew; a "
                "bar is the middle 95 % over draws",
                [
                    Spread(each.column, f"{each.mean:.4f}", each.mean, (each.high - each.low) / 2)
                    for each in explanation.importance[:_MOST_DRAWN]
                ],
                zero=True,
            )
        )
    sizes = list(explanation.mean_shares().items())[:_MOST_DRAWN]
    plots.append(
        dots(
            "mean size of what a column adds to what is said of a row",
            [Spread(name, f"{size:.4f}", size, 0.0) for name, size in sizes],
            zero=True,
        )
    )
    if row is not None:
        adds = list(explanation.of_row(row).items())[:_MOST_DRAWN]
        plots.append(
            dots(
                f"what each column adds in row {row}: from {explanation.start[row]:.4f} to "
                f"{explanation.outputs[row]:.4f}",
                [Spread(name, f"{value:+.4f}", value, 0.0) for name, value in adds],
                zero=True,
            )
        )
    for column, along in explanation.dependence.items():
        plots.append(
            dots(
                f"mean {explanation.along} where {column} is so in every row",
                [Spread(value, f"{mean:.4f}", mean, 0.0) for value, mean in along],
            )
        )
    shares = explanation.mean_shares()
    importance = {each.column: each for each in explanation.importance}
    rows = [
        [
            name,
            f"{importance[name].mean:.4f}" if name in importance else "",
            f"{importance[name].low:.4f} to {importance[name].high:.4f}"
            if name in importance
            else "",
            f"{size:.4f}",
        ]
        for name, size in shares.items()
    ]
    head = ["column", "importance", "95 %", "adds, mean size"]
    base = (
        ""
        if explanation.base is None
        else f"The {explanation.score} is {explanation.base:.4f} on these rows. "
    )
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


#: How shares are found, in words.
HOW = {
    "trees": "TreeSHAP",
    "gradients": "integrated gradients from the mean row",
    "orders": "drawn orders of the columns",
}
