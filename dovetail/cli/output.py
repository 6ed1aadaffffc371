"""What commands print: the table of a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from dovetail import methods
from dovetail.cli.talk import SCORES
from dovetail.models.recovered import recovered_text


def console() -> Console:
    """Standard output."""
    return Console()


def result_table(result: Mapping[str, Any], *, title: str | None = None) -> Table:
    """The scores of a run and its rulers; mean and spread where there are several seeds.

    Where several parties have a model of their own: a row for each, and their mean. Rulers are
    told by the mean over their parties.
    """
    method, own = result["method"], result["parties"]
    rows: dict[str, Mapping[str, Any]] = {}
    if "mean" in result:
        rows |= {f"{methods.title(method, method)}: {party}": own[party] for party in own}
        rows[f"{methods.title(method, method)}: mean of {len(own)} parties"] = result["mean"]
    else:
        rows |= {_title(method, method, scores): scores for scores in own.values()}
    rows |= {_title(method, name, scores): scores for name, scores in result["rulers"].items()}
    return score_table(rows, title=title, num_seeds=len(result.get("seeds", [0])))


def notes(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the table: how much of the partners' help stays, and plain warnings."""
    for name, each in _each_seed(result.get("distilled", {})):
        where = f"seed {name}: " if name else ""
        for party, why in each["lost"].items():
            yield f"{where}the joint model was trained without {party!r}: {why}"
        if not each["pays"]:
            yield f"{where}The solo model is the best model alone: {each['why']}."
    if "recovered" in result:
        yield recovered_text(result["recovered"])
    for warning in result.get("warnings", ()):
        yield f"WARNING: {warning}"


def _each_seed(told: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(Seed, what it says); "" for a run of one."""
    return [("", told)] if "pays" in told else list(told.items())


def _title(method: str, name: str, scores: Mapping[str, Any]) -> str:
    """What a row is called; scores on other rows than the table's say on which."""
    said = methods.title(method, name)
    if "rows" not in scores:
        return said
    rows = scores["rows"]
    num_rows = rows["mean"] if isinstance(rows, Mapping) else rows
    return f"{said} (on {num_rows:.0f} rows that all have)"


def score_table(
    rows: Mapping[str, Mapping[str, Any]], *, title: str | None, num_seeds: int
) -> Table:
    """One row per name, one column per score."""
    spread = f"mean ± std of {num_seeds} seeds" if num_seeds > 1 else None
    table = Table(title=title, caption=spread, title_justify="left", caption_justify="left")
    table.add_column("on the test rows")
    names = [name for name in SCORES if any(name in scores for scores in rows.values())]
    for name in names:
        table.add_column(name, justify="right")
    for title_, scores in rows.items():
        table.add_row(title_, *(_cell(scores.get(name)) for name in names))
    return table


def _cell(value: float | Mapping[str, float] | None) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return f"{value['mean']:.3f} ± {value['std']:.3f}"
    return f"{value:.3f}"
