"""A table as curves; needs matplotlib."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.bench.cells import Line, Run, Table, mean_and_spread
from dovetail.methods.outcome import number

MARKS = "o^sdvxP*"

#: Panels beside each other.
PER_ROW = 3


def draw(table: Table, lines: Sequence[Line], runs: Sequence[Run], path: Path) -> bool:
    """Write the table's picture, an SVG; False where it has none, or there is no matplotlib."""
    told = [line for line in lines if (line.gains if table.gains else line.values)]
    if not told or not (table.x or table.rounds):
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    with matplotlib.rc_context({"svg.hashsalt": "dovetail"}):
        if table.rounds:
            _panels(_rounds(runs), path, "round", "on the test rows, %")
        else:
            y = f"less {table.against}, points" if table.gains else "on the test rows, %"
            _panels(_against(table, told), path, table.x, y)
    return True


#: Panel -> curve -> place -> mean and spread. Places are numbers or names.
Panels = dict[str, dict[str, dict[Any, tuple[float, float | None]]]]


def _against(table: Table, lines: Sequence[Line]) -> Panels:
    """Scores against a label; a panel for each value of the other labels."""
    panels: Panels = {}
    for line in lines:
        panel = ", ".join(text for name, text in line.labels.items() if name != table.x)
        values = line.gains if table.gains else line.values
        if values:
            curve = panels.setdefault(panel, {}).setdefault(line.method, {})
            curve[line.labels[table.x]] = mean_and_spread(values)
    return panels


def _rounds(runs: Sequence[Run]) -> Panels:
    """Scores over rounds, as ``metrics.jsonl`` has them; a panel for each cell."""
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    for run in runs:
        panel = values.setdefault(", ".join(run.cell.labels.values()), {})
        for text in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            for name, title in run.cell.scores.items():
                scores = line if line["stage"] == name else line.get(name)
                if isinstance(scores, dict) and run.cell.score in scores:
                    curve = panel.setdefault(title, {})
                    curve.setdefault(number(line), []).append(100 * scores[run.cell.score])
    return {
        panel: {
            title: {at: mean_and_spread(each) for at, each in sorted(curve.items())}
            for title, curve in curves.items()
        }
        for panel, curves in values.items()
    }


def _panels(panels: Panels, path: Path, x: str, y: str) -> None:
    from matplotlib import pyplot

    columns = min(len(panels), PER_ROW)
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(4.2 * columns, 3.6 * rows + 0.4),
        layout="constrained",
        squeeze=False,
    )
    for empty in axes.flat[len(panels) :]:
        empty.set_axis_off()
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    shown = {}
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        places = list(dict.fromkeys(at for curve in curves.values() for at in curve))
        named = any(isinstance(at, str) for at in places)
        for name, curve in curves.items():
            at = names.index(name)  # one look in all panels
            shown[name] = axis.errorbar(
                [places.index(place) if named else place for place in curve],
                [mean for mean, _ in curve.values()],
                [spread or 0.0 for _, spread in curve.values()],
                color=f"C{at}",
                marker=MARKS[at % len(MARKS)],
                capsize=3,
            )
        if named:
            axis.set_xticks(range(len(places)), places)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x)
    for first in axes[:, 0]:
        first.set_ylabel(y)
    beside = min(len(names), 2 * columns)
    figure.legend(
        shown.values(), shown, loc="outside lower center", ncols=beside, frameon=False, fontsize=8
    )
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
