"""``dovetail.kaplan_meier`` and ``dovetail.cox``: curves, a test, hazard ratios of all parties."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from dovetail.api.fit import Parties, fit
from dovetail.api.lines import Partners
from dovetail.api.methods import Method
from dovetail.api.shown import Shown, line
from dovetail.errors import ConfigError
from dovetail.network.retry import write_text
from dovetail.privacy import spent_text
from dovetail.report.curves import steps_chart, svg_of

if TYPE_CHECKING:
    import pandas as pd

    from dovetail.api.run import Run

_NAMES = ("group", "time", "at_risk", "events", "censored", "survival", "low", "high")

#: Lines of a group that a terminal shows.
_SHOWN = 12


class Curves(Shown):
    """Kaplan and Meier's curves of all parties' rows together, and the log-rank test.

    Args:
        result: ``result.json`` of a run of ``method = "kaplan-meier"``.

    Attributes:
        rows: a dict for each group and interval: group, time (its end), at_risk (rows that came
            into it), events, censored, survival (share without event by then), and low and high,
            its 95 % limits.
        medians: group -> when half have had the event; None: not within the times.
        log_rank: chi2, degrees and p of the hypothesis that groups do not differ; None of one
            group.
        notes: what has to be said of them.

    Raises:
        ConfigError: the result of another run.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        if "survival" not in result:
            raise ConfigError(
                f'it is a run of {result.get("method")!r}; curves are of method = "kaplan-meier"'
            )
        found = result["survival"]
        self.rows: list[dict[str, Any]] = found["rows"]
        self.medians: dict[str, float | None] = found["medians"]
        self.log_rank: dict[str, float] | None = found["log_rank"]
        self._group: str = found["group"]
        self.notes = tuple(_notes(result))

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with a line for each group and interval.

        Raises:
            ConfigError: pandas is not installed.
        """
        return _frame(self.rows)

    def svg(self) -> str:
        """The curves, drawn."""
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in self.medians}
        for row in self.rows:
            points[row["group"]].append((row["time"], row["survival"]))
        return svg_of(steps_chart("share without event (Kaplan and Meier)", points))

    _repr_svg_ = svg

    def save(self, folder: str | Path) -> None:
        """Write ``curves.csv`` and ``curves.svg``."""
        _write(Path(folder) / "curves.csv", _NAMES, self.rows)
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
        table = Table()
        for name in (self._group or "group", *_NAMES[1:6], "95 % limits"):
            table.add_column(name, justify="right" if table.columns else "left")
        for name in self.medians:
            rows = [row for row in self.rows if row["group"] == name]
            for row in rows[:: max(1, len(rows) // _SHOWN)]:
                numbers = [f"{row[key]:g}" for key in _NAMES[1:5]]
                limits = f"{row['low']:.3f} to {row['high']:.3f}"
                table.add_row(name, *numbers, f"{row['survival']:.3f}", limits)
        yield table
        yield from map(line, self._lines())


class Coefficients(Shown):
    """Cox regression of all parties' rows together.

    Args:
        result: ``result.json`` of a run of ``method = "cox"``.

    Attributes:
        rows: a dict for each column: column, coefficient, error (standard), hazard_ratio, low and
            high (its 95 % limits) and p.
        baseline: ``times``, cumulative baseline ``hazards`` by then (Breslow), and ``at``: column
            -> the mean, at which they are.
        notes: what has to be said of them.

    Raises:
        ConfigError: the result of another run.
    """

    def __init__(self, result: Mapping[str, Any]) -> None:
        if "cox" not in result:
            raise ConfigError(
                f'it is a run of {result.get("method")!r}; coefficients are of method = "cox"'
            )
        found = result["cox"]
        self.rows: list[dict[str, Any]] = found["coefficients"]
        self.baseline: dict[str, Any] = found["baseline"]
        self.notes = (
            f"{found['rows']} rows with {found['events']} events at {len(found['parties'])} "
            f"parties: {', '.join(found['parties'])}. Each time counts as the end of its interval.",
        )

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with a line for each column.

        Raises:
            ConfigError: pandas is not installed.
        """
        return _frame(self.rows)

    def save(self, folder: str | Path) -> None:
        """Write ``coefficients.csv``."""
        _write(Path(folder) / "coefficients.csv", tuple(self.rows[0]), self.rows)

    def shown(self) -> Iterator[RenderableType]:
        for row in self.rows:
            yield line(
                f"{row['column']}: hazard ratio {row['hazard_ratio']:.3f} ({row['low']:.3f} to "
                f"{row['high']:.3f}), p = {row['p']:.3g}"
            )
        yield from map(line, self.notes)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    try:
        import pandas
    except ImportError:
        raise ConfigError("to_pandas() needs pandas: pip install pandas") from None
    return pandas.DataFrame(rows)


def _write(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(path, text.getvalue())


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
    columns: Sequence[str],
    *,
    times: Sequence[float] = (),
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
        times, secure, partners, overwrite, seed: as of ``kaplan_meier``.
        out: the run's folder, which gets ``coefficients.csv``, too; None: none.

    Returns:
        Coefficients, hazard ratios with limits, and the baseline.

    Raises:
        ConfigError: settings that do not fit.
        PartyError: a party that does not let itself be summed so; says why.
        TrainingError: columns that are functions of each other.
    """
    settings = {"columns": list(columns), "times": list(times), "secure": secure}
    run = _analysed("cox", settings, parties, out, partners, overwrite, seed)
    coefficients = Coefficients(run.result)
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
