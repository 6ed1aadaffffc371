"""The scores of a run and its baselines: a small table that prints well, and its picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rich.box import HEAVY_HEAD, Box
from rich.console import RenderableType

from dovetail import methods
from dovetail.api.shown import Shown, line, lined_table, printed
from dovetail.data.wording import count_text
from dovetail.lazy import needed
from dovetail.models.metrics import SCORES, on_rows, shown_first
from dovetail.models.recovered import recovered_text
from dovetail.models.shown import html_table
from dovetail.privacy import spent_text
from dovetail.report.chart import Spread, dots
from dovetail.report.views import render

if TYPE_CHECKING:
    import pandas as pd

#: One score: a number, or its mean and spread over seeds.
Value = float | Mapping[str, float]


def result_rows(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Title -> scores, of the run's models and of its baselines.

    Where several parties have a model of their own: a row for each, and their mean. Baselines are
    shown by the mean over their parties.
    """
    method, by_party = result["method"], result["parties"]
    rows: dict[str, Mapping[str, Any]] = {}
    if "mean" in result:
        rows |= {f"{methods.title(method, method)}: {party}": by_party[party] for party in by_party}
        rows[f"{methods.title(method, method)}: mean of {len(by_party)} parties"] = result["mean"]
    else:
        rows |= {_title(method, method, scores): scores for scores in by_party.values()}
    return rows | {
        _title(method, name, scores): scores for name, scores in result["baselines"].items()
    }


def _title(method: str, name: str, scores: Mapping[str, Any]) -> str:
    """Title of a row; scores on other rows than the table's name these rows."""
    title = methods.title(method, name)
    if "rows" not in scores:
        return title
    rows = scores["rows"]
    num_rows = rows["mean"] if isinstance(rows, Mapping) else rows
    return f"{title} (on {num_rows:.0f} rows that all have)"


def result_intervals(result: Mapping[str, Any]) -> dict[str, Mapping[str, Sequence[float]]]:
    """Title -> score -> its 95 % interval over draws of the test rows; of one seed, and of rows
    that are of one party."""
    method = result["method"]
    rows: dict[str, Mapping[str, Sequence[float]]] = {}
    for variant in result.get("variants", {}).values():
        for name, each in variant.get("details", {}).items():
            if name == method and "mean" in result:
                rows |= {
                    f"{methods.title(method, method)}: {party}": scores["intervals"]
                    for party, scores in each.items()
                }
            elif len(each) == 1:
                scores = variant["scores"][name]
                title = _title(method, name, *scores.values())
                rows[title] = next(iter(each.values()))["intervals"]
    return rows


def cell(value: Value | None, interval: Sequence[float] | None = None) -> str:
    """A score as a table shows it.

    >>> cell(0.5), cell({"mean": 0.5, "std": 0.1}), cell(0.5, [0.4, 0.6])
    ('0.500', '0.500 ± 0.100', '0.500 (0.400 to 0.600)')
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return f"{value['mean']:.3f} ± {value['std']:.3f}"
    return f"{value:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


#: Beside the rows of a run that has no score of any.
UNTESTED = (
    "No scores, as no rows were held back to test on: test = 0.25 in the run file "
    "(--set test=0.25) holds back a quarter of those with labels. A coordinator without data has "
    "none: each party that joined has its own at its site (test_share in its file)."
)


def notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Notes below the table: the share of the gain kept, and plain warnings."""
    seeds = _each_seed(result.get("distilled", {}))
    for name, each in seeds:
        where = f"seed {name}: " if name else ""
        for party, why in each["lost"].items():
            yield f"{where}the joint model was trained without {party!r}: {why}"
        if not each["pays"]:
            yield f"{where}The solo model is the best local model: {each['why']}."
        elif own := [name for name, one in each.get("labels", {}).items() if not one["pays"]]:
            yield (
                f"{where}The solo model says of {', '.join(own)} what the best local model says: "
                "on held-out rows the partners did not help with that."
            )
    for few in {str(each["few"]): each["few"] for _, each in seeds if each.get("few")}.values():
        rows = ", ".join(f"{count_text(num, 'row')} of {name}" for name, num in few.items())
        yield (
            f"Only {rows} trained: which model is best, and whether partners help, is chosen on "
            "held-out rows, and of so few that is close to chance. Label more, or compare seeds "
            "(seeds = [0, 1, 2, 3, 4])."
        )
    for num in sorted({each["no_joint"] for _, each in seeds if "no_joint" in each}):
        yield (
            f"No joint model: of the labelled rows that partners share, {num} are not of the "
            "majority class, too few to learn from and to judge by. Label more of other classes."
        )
    refitted = {
        (each["refitted"]["labelled"], each["refitted"]["tested"])
        for _, each in seeds
        if "refitted" in each
    }
    for labelled, tested in sorted(refitted):
        yield (
            f"The model that is kept learned from all {labelled:,} labelled rows, once {tested:,} "
            "of them had scored it."
        )
    for party, rows in result.get("only_tested", {}).items():
        why = "" if "distilled" in result else ": to learn from them, it would ask partners again"
        yield (
            f"{rows:,} labelled rows of {party!r} scored the model and are not learned from{why}; "
            "test = 0 holds none back."
        )
    if "recovered" in result:
        yield recovered_text(result["recovered"])
    for name, spent in _epsilons(result.get("epsilon", ())):
        where = f"seed {name}: " if name else ""
        for each in spent:
            yield where + spent_text(each)
    for warning in result.get("warnings", ()):
        yield f"WARNING: {warning}"


def _epsilons(reported: Any) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """(Seed, what noised releases cost); "" for a run of one."""
    return list(reported.items()) if isinstance(reported, Mapping) else [("", reported)]


def _each_seed(reported: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(Seed, what it says); "" for a run of one."""
    return [("", reported)] if "pays" in reported else list(reported.items())


def caption(num_seeds: int, intervals: bool) -> str:
    """Caption of scores: spread over seeds, or interval."""
    if num_seeds > 1:
        return f"mean ± std of {num_seeds} seeds"
    return "in brackets: 95 % interval, bootstrap of the test rows" if intervals else ""


class Scores(Shown, Mapping[str, Mapping[str, Value]]):
    """Row -> score -> its value, on the test rows; mean and spread where there are several seeds.

    Args:
        result: ``result.json`` of a run.

    Attributes:
        names: the scores that any row has.
        shown_scores: the one or two of them that are printed.
        notes: what is below the table: what of the partners' help stays, and warnings.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._rows = result_rows(result)
        self._num_seeds = len(result.get("seeds", [0]))
        self.names = [name for name in SCORES if any(name in row for row in self._rows.values())]
        self.notes = tuple(notes(result)) if self.names else (UNTESTED, *notes(result))
        self.shown_scores = shown_first(self.names)
        self._intervals = result_intervals(result)

    def __getitem__(self, row: str) -> Mapping[str, Value]:
        return self._rows[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Row -> score -> its mean; ``"NAME std"`` has the spread over several seeds."""
        table: dict[str, dict[str, float]] = {}
        cells: dict[str, float]
        for title, row in self._rows.items():
            cells = table[title] = {}
            for name in self.names:
                value = row.get(name)
                if isinstance(value, Mapping):
                    cells |= {name: value["mean"], f"{name} std": value["std"]}
                elif value is not None:
                    cells[name] = value
        return table

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with a line for each row.

        Raises:
            ConfigError: pandas is not installed.
        """
        with needed("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame.from_dict(self.to_dict(), orient="index")

    def __repr__(self) -> str:
        return printed(self._parts(None), width=200)

    def shown(self) -> Iterator[RenderableType]:
        return self._parts(HEAVY_HEAD)

    def _parts(self, box: Box | None) -> Iterator[RenderableType]:
        """The table, in lines of this kind, and what is below it."""
        if self.names:
            head = (on_rows(self.shown_scores), *self.shown_scores)
            rows = ((title, *self._cells(title)) for title in self)
            edge, below = box is not None, self._caption or None
            yield lined_table(head, rows, caption=below, box=box, pad_edge=edge)
        yield from map(line, self.notes)

    def _cells(self, title: str) -> list[str]:
        row, intervals = self[title], self._intervals.get(title, {})
        return [
            cell(row.get(name), intervals.get(name) if name == self.shown_scores[0] else None)
            for name in self.shown_scores
        ]

    @property
    def _caption(self) -> str:
        return caption(self._num_seeds, bool(self._intervals))

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        if not self.names:
            return below
        rows = [(title, *self._cells(title)) for title in self]
        head = (on_rows(self.shown_scores), *self.shown_scores)
        return html_table(rows, head=head, note=self._caption) + below

    def picture(self) -> str:
        """The first score of each row as a dot on one axis, with its spread: an SVG."""
        if not self.shown_scores:
            return ""
        name = self.shown_scores[0]
        rows = []
        for title, row in self.items():
            value = row.get(name)
            if value is not None:
                both = value if isinstance(value, Mapping) else {"mean": value, "std": 0.0}
                cut = title if len(title) <= 46 else title[:45] + "…"
                rows.append(Spread(cut, f"{both['mean']:.3f}", both["mean"], both["std"]))
        return render("scores.svg", drawn=dots(f"{name} {on_rows(self.shown_scores)}", rows))
