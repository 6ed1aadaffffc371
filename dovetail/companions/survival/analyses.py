"""``dovetail.kaplan_meier`` and ``dovetail.cox``: curves, a test, hazard ratios of all parties."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType

from dovetail.api.fit import Parties, fit
from dovetail.api.lines import Partners
from dovetail.api.methods import Method
from dovetail.api.shown import Shown, line, lined_table
from dovetail.errors import ConfigError
from dovetail.lazy import needed
from dovetail.methods.local_data import DRIVER
from dovetail.network.retry import write_text
from dovetail.privacy import spent_text
from dovetail.report.chart import steps_chart, svg_of

if TYPE_CHECKING:
    import pandas as pd

    from dovetail.api.run import Run
    from dovetail.models import Model

#: What a terminal shows of a curve's line, and lines of a group.
_SHOWN, _MOST_LINES = ("time", "at_risk", "events", "survival"), 12


class Analysis(Shown):
    """Result of an analysis of several parties' rows: a table, and words.

    Args:
        result: ``result.json`` of its run.

    Attributes:
        rows: a dict for each line of the table.
        notes: remarks on them.

    Raises:
        ConfigError: the result of another run.
    """

    #: Of result.json, the run's method, and the file of its table.
    key: ClassVar[str]
    method: ClassVar[str]
    file: ClassVar[str]
    rows: list[dict[str, Any]]
    notes: tuple[str, ...]

    def __init__(self, result: Mapping[str, Any]) -> None:
        if self.key not in result:
            raise ConfigError(
                f'it is a run of {result.get("method")!r}, not of method = "{self.method}"'
            )
        self._read(result[self.key], result)

    def _read(self, found: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with the table's lines.

        Raises:
            ConfigError: pandas is not installed.
        """
        with needed("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame(self.rows)

    def save(self, folder: str | Path) -> None:
        """Write the table, as CSV."""
        text = io.StringIO()
        table = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_text(Path(folder) / self.file, text.getvalue())

    def _lines(self) -> Iterator[str]:
        yield from self.notes

    def shown(self) -> Iterator[RenderableType]:
        yield from map(line, self._lines())


class Curves(Analysis):
    """Kaplan and Meier's curves of all parties' rows together, and the log-rank test.

    Attributes:
        rows: a dict for each group and interval: group, time (its end), at_risk (rows that came
            into it), events, censored, survival (share without event by then), and low and high,
            its 95 % limits.
        medians: group -> when half have had the event; None: not within the times.
        log_rank: chi2, degrees and p of the hypothesis that groups do not differ; None of one
            group.
    """

    key, method, file = "survival", "kaplan-meier", "curves.csv"

    def _read(self, found: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self.rows = found["rows"]
        self.medians: dict[str, float | None] = found["medians"]
        self.log_rank: dict[str, float] | None = found["log_rank"]
        self._group: str = found["group"]
        self.notes = tuple(_notes(result))

    def svg(self) -> str:
        """The curves, drawn."""
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in self.medians}
        for row in self.rows:
            points[row["group"]].append((row["time"], row["survival"]))
        return svg_of(steps_chart("share without event (Kaplan and Meier)", points))

    _repr_svg_ = svg

    def save(self, folder: str | Path) -> None:
        """Write ``curves.csv`` and ``curves.svg``."""
        super().save(folder)
        write_text(Path(folder) / "curves.svg", self.svg())

    def _lines(self) -> Iterator[str]:
        for name, median in self.medians.items():
            title = f"{self._group} = {name}" if self._group else name
            yield f"median of {title}: {'after the last time' if median is None else f'{median:g}'}"
        if self.log_rank is not None:
            yield (
                f"log-rank: chi square {self.log_rank['chi2']:.3f}, "
                f"{self.log_rank['degrees']:.0f} degrees of freedom, p = {self.log_rank['p']:.3g}"
            )
        yield from self.notes

    def shown(self) -> Iterator[RenderableType]:
        lines = []
        for name in self.medians:
            rows = [row for row in self.rows if row["group"] == name]
            for row in rows[:: max(1, len(rows) // _MOST_LINES)]:
                numbers = [f"{row[key]:g}" for key in _SHOWN[:-1]]
                limits = f"{row['low']:.3f} to {row['high']:.3f}"
                lines.append((name, *numbers, f"{row['survival']:.3f}", limits))
        yield lined_table((self._group or "group", *_SHOWN, "95 % limits"), lines)
        yield from super().shown()


class Coefficients(Analysis):
    """Cox regression of all parties' rows together.

    Attributes:
        rows: a dict for each column: column, coefficient, error (standard), hazard_ratio, low and
            high (its 95 % limits) and p.
        baseline: ``times``, cumulative baseline ``hazards`` by then (Breslow), ``at``: column ->
            the mean, at which they are, and ``spread``: column -> its standard deviation.
        model: survival at times and the median of new rows; None of a ``result.json`` that is read,
            whose run has it in ``models/coordinator``.
    """

    key, method, file = "cox", "cox", "coefficients.csv"
    model: Model | None = None

    def _read(self, found: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self.rows = found["coefficients"]
        self.baseline: dict[str, Any] = found["baseline"]
        self.notes = (
            f"{found['rows']} rows with {found['events']} events at {len(found['parties'])} "
            f"parties: {', '.join(found['parties'])}. Each time counts as the end of its interval.",
        )

    def _lines(self) -> Iterator[str]:
        for row in self.rows:
            yield (
                f"{row['column']}: hazard ratio {row['hazard_ratio']:.3f} ({row['low']:.3f} to "
                f"{row['high']:.3f}), p = {row['p']:.3g}"
            )
        yield from self.notes


def kaplan_meier(
    parties: Parties,
    *,
    group: str | None = None,
    times: Sequence[float] = (),
    least: int = 5,
    secure: bool = True,
    private: Mapping[str, float] | None = None,
    out: str | Path | None = None,
    partners: Partners | None = None,
    overwrite: bool = False,
    seed: int = 0,
) -> Curves:
    """Curves of all parties' rows together, of sums that hide each party's counts.

    Args:
        parties: three or more with ``label = {"time": ..., "event": ...}``, or party files.
        group: a column of all parties; a curve for each of its values, and the log-rank test.
        times: where intervals end, rising; none: agreed by quantiles of all events.
        least: intervals in which a group has fewer events or censored rows, but some, are joined
            with the next.
        secure: counts are summed in secret; False: they leave in the clear, where every party's
            own file allows it (``survival={"secure": False}``).
        private: noise that each party adds, {"noise": deviation}; with "epsilon" a limit.
        out: the run's folder, which gets ``curves.csv`` and ``curves.svg``, too; None: none.
        partners: parties on other machines, of ``listen``; ``parties`` is then empty.
        overwrite: replace a run in ``out``.
        seed: of the run.

    Returns:
        The table, medians and the test.

    Raises:
        ConfigError: settings that do not fit.
        PartyError: a party that does not let itself be counted so; says why.
    """
    settings: dict[str, Any] = {"times": list(times), "least": least, "secure": secure}
    settings |= {} if group is None else {"group": group}
    settings |= {} if private is None else {"private": dict(private)}
    run = _analysed("kaplan-meier", settings, parties, out, partners, overwrite, seed)
    curves = Curves(run.result)
    if out is not None:
        curves.save(out)
    return curves


def cox(
    parties: Parties,
    columns: str | Sequence[str],
    *,
    times: Sequence[float] = (),
    least: int = 5,
    secure: bool = True,
    out: str | Path | None = None,
    partners: Partners | None = None,
    overwrite: bool = False,
    seed: int = 0,
) -> Coefficients:
    """Cox regression of all parties' rows together, by sums that hide each party's.

    Args:
        parties: as of ``kaplan_meier``.
        columns: numbers that all parties have; rows that lack one are left out.
        least: the baseline has no step of fewer events.
        times, secure, partners, overwrite, seed: as of ``kaplan_meier``.
        out: the run's folder, which gets ``coefficients.csv``, too; None: none.

    Returns:
        Coefficients, hazard ratios with limits, the baseline, and the model of these.

    Raises:
        ConfigError: settings that do not fit.
        PartyError: a party that does not let itself be summed so; says why.
        TrainingError: columns that are functions of each other.
    """
    columns = [columns] if isinstance(columns, str) else list(columns)
    settings = {"columns": columns, "times": list(times), "least": least, "secure": secure}
    run = _analysed("cox", settings, parties, out, partners, overwrite, seed)
    coefficients = Coefficients(run.result)
    coefficients.model = run.models[DRIVER]
    if out is not None:
        coefficients.save(out)
    return coefficients


def _analysed(
    name: str,
    settings: Mapping[str, Any],
    parties: Parties,
    out: str | Path | None,
    partners: Partners | None,
    overwrite: bool,
    seed: int,
) -> Run:
    return fit(
        Method(name, **settings), parties, test=None, seeds=[seed], out=out, partners=partners,
        overwrite=overwrite, quiet=True,
    )  # fmt: skip


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    found = result["survival"]
    yield (
        f"{len(found['parties'])} parties: {', '.join(found['parties'])}. Each time counts as the "
        "end of its interval."
    )
    if found["joined"]:
        yield f"{found['joined']} intervals with few events or censored rows were joined."
    if found["noise"]:
        yield (
            f"Every count has noise of deviation {found['noise']:.3g}; limits and p do not mind it."
        )
    for each in result.get("epsilon", ()):
        yield spent_text(each)
