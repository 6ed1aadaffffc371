"""A table as curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables.cells import Line, Run, Table, mean_and_spread
from benchmarks.tables.panels import panels_svg
from dovetail.files import read_toml
from dovetail.methods.outcome import number
from dovetail.runs import write_text


def draw(table: Table, lines: Sequence[Line], runs: Sequence[Run], path: Path) -> bool:
    """Write the table's picture, an SVG; False where it has none."""
    filled = [line for line in lines if (line.gains if table.gains else line.values)]
    if not filled or not (table.x or table.over):
        return False
    if table.over and table.losses:
        panels, x, y = _with_losses(runs, table.over), table.over, "on the test rows"
    elif table.over:
        panels, x, y = _course(runs, table.over), table.over, "on the test rows, %"
    else:
        y = f"less {table.against}, points" if table.gains else "on the test rows, %"
        panels, x = _against(table, filled), table.x
    write_text(path, panels_svg(panels, title=table.title, x=x, y=y))
    return True


#: As ``panels_svg`` takes them, while they are made.
_Panels = dict[str, dict[str, dict[int | float | str, tuple[float, float | None]]]]


def _against(table: Table, lines: Sequence[Line]) -> _Panels:
    """Scores against a label; a panel for each value of the other labels."""
    panels: _Panels = {}
    for line in lines:
        panel = ", ".join(text for name, text in line.labels.items() if name != table.x)
        values = line.gains if table.gains else line.values
        if values:
            curve = panels.setdefault(panel, {}).setdefault(line.method, {})
            curve[line.labels[table.x]] = mean_and_spread(values)
    return panels


def _with_losses(runs: Sequence[Run], over: str) -> _Panels:
    """Each panel of scores, and its log loss beside it."""
    scores, losses = _course(runs, over), _course(runs, over, other="log_loss")
    return {
        f"{panel}: {what}": curves[panel]
        for panel in scores
        for what, curves in (("%", scores), ("log loss", losses))
    }


def _course(runs: Sequence[Run], over: str, other: str = "") -> _Panels:
    """Scores over rounds or epochs, as ``metrics.jsonl`` has them; a panel for each cell.

    Where a line is a round, those with scores come ``evaluate_every`` epochs apart, the last
    where training ends.

    Args:
        other: a score in the place of the cell's, as it is; "": the cell's, in per cent.
    """
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    for run in runs:
        drawn, unit = other or run.cell.score, 1 if other else 100
        panel = values.setdefault(", ".join(run.cell.labels.values()), {})
        every, epochs = 1, 0
        if over == "epoch":
            settings = read_toml(run.folder / "run.toml")
            epochs = settings["fedoptimus"]["epochs"]
            every = settings.get("evaluate_every", 1) or epochs
        seen: dict[str, int] = {}
        for text in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            for name, title in run.cell.scores.items():
                scores = line if line["variant"] == name else line.get(name)
                if isinstance(scores, dict) and drawn in scores:
                    seen[title] = seen.get(title, 0) + 1
                    at = min(seen[title] * every, epochs) if over == "epoch" else number(line)
                    curve = panel.setdefault(title, {})
                    curve.setdefault(at, []).append(unit * scores[drawn])
    return {
        panel: {
            title: {at: mean_and_spread(each) for at, each in sorted(curve.items())}
            for title, curve in curves.items()
        }
        for panel, curves in values.items()
    }
