"""Curves and dots as a page draws them: places in per cent, so that text keeps its size on a phone.

A plot is an SVG that is stretched to the room there is, with lines whose width is not; names and
numbers beside it are the page's own text, in the page's colours.

Curves of shares without event are one SVG that stands by itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.report.views import render

#: Lines' patterns, in pixels drawn and left out; with the colours they tell lines apart twice.
DASHES = ("", "8 4", "2 4", "12 4 2 4", "5 3", "1 3", "14 5", "8 3 2 3 2 3")

#: Lines of one plot; more are left to the tables.
MAX_SERIES = 10

#: Height of a plot, and of a name beside it, in rem.
HEIGHT_REM = 15.0
NAME_REM = 1.25


@dataclass(frozen=True)
class Point:
    """Mean over seeds at one epoch or round, and how far one standard deviation reaches."""

    x: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """Line of a chart.

    Attributes:
        name: what is beside it.
        points: in order.
        style: its place among the colours and patterns.
        is_main: whether it is what the run is about.
    """

    name: str
    points: Sequence[Point]
    style: int
    is_main: bool = False


@dataclass(frozen=True)
class Tick:
    """A number of an axis; its place in per cent from the top or from the left."""

    at: str
    text: str


@dataclass(frozen=True)
class Line:
    """A series as it is drawn; x and y in thousandths of the plot.

    Attributes:
        path: the mean, as an SVG path.
        band: what one standard deviation covers; "" for one seed.
        dots: a path of dots, where there are few points.
        at_rem: where its name stands, from the top.
    """

    name: str
    colour: int
    dash: str
    path: str
    band: str
    dots: str
    at_rem: str
    is_main: bool


@dataclass(frozen=True)
class Chart:
    """A plot.

    Attributes:
        title: what is drawn.
        summary: the same in words.
        x_name: what the lower axis counts.
        note: what was left out.
    """

    title: str
    summary: str
    x_name: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    lines: Sequence[Line]
    has_bands: bool
    note: str = ""


def points_of(seeds: Sequence[Mapping[int, float]]) -> list[Point]:
    """Mean and sample standard deviation over seeds, at the places that all have.

    Seeds stop at different rounds, and a mean over those that are left would jump.

    >>> points_of([{1: 0.5, 2: 0.75, 3: 0.75}, {1: 0.5, 2: 0.75}])
    [Point(x=1, mean=0.5, low=0.5, high=0.5), Point(x=2, mean=0.75, low=0.75, high=0.75)]
    """
    finite = [{x: y for x, y in seed.items() if math.isfinite(y)} for seed in seeds]
    finite = [seed for seed in finite if seed]
    if not finite:
        return []
    points = []
    for x in sorted(set.intersection(*(set(seed) for seed in finite))):
        mean, spread = mean_std([seed[x] for seed in finite])
        points.append(Point(x, mean, mean - spread, mean + spread))
    return points


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.52, 0.81), ticks(3, 3)
    ([0.5, 0.6, 0.7, 0.8, 0.9], [2.0, 3.0, 4.0])
    """
    if not high > low:
        pad = abs(low) / 3 or 1.0
        low, high = low - pad, high + pad
        about = 2
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that cover a range above 0.

    >>> log_ticks(0.02, 2.2)
    [0.01, 0.1, 1.0, 10.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def number_text(value: float, step: float) -> str:
    """A tick's number, with the digits that its step needs.

    >>> number_text(0.5, 0.1), number_text(2000, 500), number_text(1e-7, 1e-7)
    ('0.5', '2,000', '1e-07')
    """
    if abs(step) < 1e-4 or abs(value) >= 1e7:
        return f"{value:.3g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}"


#: A logarithmic axis begins to pay where values lie so many times apart.
_LOG_FROM = 20


def chart(
    title: str, series: Sequence[Series], *, x_name: str, falling: bool = False
) -> Chart | None:
    """The plot of these lines; None where none has two points to be joined.

    Args:
        title: what is drawn.
        series: the lines.
        x_name: what the lower axis counts.
        falling: the values are a loss's; where they lie far apart and are above 0, the upright axis
            is logarithmic, so that its end can be read as well as its beginning.
    """
    drawn = [each for each in series if each.points][:MAX_SERIES]
    if not any(len(each.points) > 1 for each in drawn):
        return None
    left_out = sum(bool(each.points) for each in series) - len(drawn)
    first = min(point.x for each in drawn for point in each.points)
    last = max(point.x for each in drawn for point in each.points)
    means = [point.mean for each in drawn for point in each.points]
    is_log = falling and min(means) > 0 and max(means) > _LOG_FROM * min(means)
    y_ticks = log_ticks(min(means), max(means)) if is_log else ticks(*_range(drawn))
    scale = math.log10 if is_log else float
    low, high = scale(y_ticks[0]), scale(y_ticks[-1])

    def x_of(x: int) -> float:
        return 1000 * (x - first) / (last - first)

    def y_of(y: float) -> float:
        within = min(max(y, y_ticks[0]), y_ticks[-1])
        return 1000 * (1 - (scale(within) - low) / (high - low))

    ends = [y_of(each.points[-1].mean) / 1000 * HEIGHT_REM for each in drawn]
    lines = []
    for each, at in zip(drawn, _apart(ends), strict=True):
        marks = [(x_of(point.x), y_of(point.mean)) for point in each.points]
        band = ""
        if any(point.high > point.low for point in each.points):
            upper = [(x_of(point.x), y_of(point.high)) for point in each.points]
            lower = [(x_of(point.x), y_of(point.low)) for point in reversed(each.points)]
            band = _path([*upper, *lower]) + "Z"
        dotted = marks if len(marks) <= 40 else marks[-1:]
        lines.append(_line(each.name, each.style, marks, dotted, at, band, is_main=each.is_main))
    step = y_ticks[1] - y_ticks[0]
    y_texts = [f"{y:g}" if is_log else number_text(y, step) for y in y_ticks]
    inner = [x for x in ticks(first, last, 6) if first <= x <= last and x == int(x)]
    return Chart(
        title,
        _summary(title, drawn, x_name),
        x_name,
        [Tick(f"{x_of(int(x)) / 10:.2f}", f"{int(x):,}") for x in inner],
        [Tick(f"{y_of(y) / 10:.2f}", text) for y, text in zip(y_ticks, y_texts, strict=True)],
        lines,
        any(line.band for line in lines),
        "; ".join(
            (["logarithmic"] if is_log else [])
            + ([f"{left_out} more are in the table."] if left_out else [])
        ),
    )


def square(
    title: str, x_name: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
) -> Chart:
    """Lines in the square from 0 to 1, the first of which is the main one."""
    marks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    ends = [(1 - points[-1][1]) * HEIGHT_REM for _, points in lines]
    drawn = []
    for index, ((name, points), at) in enumerate(zip(lines, _apart(ends), strict=True)):
        drawn_points = [(1000 * x, 1000 * (1 - y)) for x, y in points]
        dotted = drawn_points if index == 0 and len(drawn_points) <= 12 else []
        drawn.append(_line(name, index, drawn_points, dotted, at, is_main=index == 0))
    first = lines[0][1]
    text = ", ".join(f"{y:.2f} at {x:.2f}" for x, y in first[:: max(1, len(first) // 6)])
    return Chart(
        title,
        f"{title} by {x_name}. {lines[0][0]}: {text}.",
        x_name,
        [Tick(f"{100 * x:.0f}", f"{x:.1f}") for x in marks],
        [Tick(f"{100 * (1 - y):.0f}", f"{y:.1f}") for y in marks],
        drawn,
        False,
    )


def _line(
    name: str,
    style: int,
    points: Sequence[tuple[float, float]],
    dotted: Sequence[tuple[float, float]],
    at_rem: float,
    band: str = "",
    *,
    is_main: bool,
) -> Line:
    """A line through points, some of them with a dot; its name stands around this height."""
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in dotted)
    top = f"{at_rem - NAME_REM / 2:.2f}"
    return Line(name, style, DASHES[style % len(DASHES)], _path(points), band, dots, top, is_main)


def _range(series: Sequence[Series]) -> tuple[float, float]:
    """Range of the upright axis: the lines, and the bands unless they dwarf these."""
    means = [point.mean for each in series for point in each.points]
    lows = [point.low for each in series for point in each.points]
    highs = [point.high for each in series for point in each.points]
    low, high = min(means), max(means)
    pad = (high - low) / 2
    return max(min(lows), low - pad), min(max(highs), high + pad)


def _apart(ends: Sequence[float]) -> list[float]:
    """Places for names, near these ends but none upon another."""
    order = sorted(range(len(ends)), key=lambda index: ends[index])
    placed = [0.0] * len(ends)
    at = -math.inf
    for index in order:
        at = max(ends[index], at + NAME_REM)
        placed[index] = at
    over = at - HEIGHT_REM  # those that were pushed out below go up again
    ceiling = HEIGHT_REM
    for index in reversed(order):
        if over > 0 and placed[index] > ceiling:
            placed[index] = ceiling
        ceiling = placed[index] - NAME_REM
    return placed


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _summary(title: str, series: Sequence[Series], x_name: str) -> str:
    """A plot in words, for who does not see it."""
    ends = [
        f"{each.name}: {each.points[0].mean:.3f} at {x_name} {each.points[0].x}, "
        f"{each.points[-1].mean:.3f} at {each.points[-1].x}"
        for each in series
    ]
    return f"{title} by {x_name}. {'; '.join(ends)}."


# --- Dots -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A row of a plot of dots, as it is given.

    Attributes:
        name: what stands before it.
        text: the number.
        mean, std: where the dot is, and how far its bar reaches to either side.
        colour: its place among the colours.
        is_main: whether it is what the run is about.
        each: every seed's.
        interval: where its bar starts and ends, in place of ``std``.
    """

    name: str
    text: str
    mean: float
    std: float
    colour: int = 0
    is_main: bool = False
    each: Sequence[float] = ()
    interval: tuple[float, float] | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Where its bar starts and ends."""
        return self.interval or (self.mean - self.std, self.mean + self.std)


@dataclass(frozen=True)
class Dots:
    """Rows of dots above one axis.

    Attributes:
        marks: numbers of the axis, rising.
        has_zero: whether a line stands at 0.
    """

    title: str
    rows: Sequence[Spread]
    marks: Sequence[float]
    has_zero: bool

    def at(self, value: float) -> str:
        """Position in per cent from the left."""
        low, high = self.marks[0], self.marks[-1]
        return f"{100 * (value - low) / (high - low):.2f}"

    @property
    def x_ticks(self) -> list[Tick]:
        step = self.marks[1] - self.marks[0]
        return [Tick(self.at(mark), number_text(mark, step)) for mark in self.marks]

    @property
    def summary(self) -> str:
        """The plot in words."""
        return f"{self.title}. " + "; ".join(f"{row.name}: {row.text}" for row in self.rows)


def dots(title: str, rows: Sequence[Spread], *, zero: bool = False) -> Dots | None:
    """A plot of dots; None without a row.

    Args:
        title: what is drawn.
        rows: from the top.
        zero: let the axis have 0.
    """
    kept = [row for row in rows if all(map(math.isfinite, (row.mean, row.std, *row.each)))]
    if not kept:
        return None
    ends = [end for row in kept for end in (*row.ends, *row.each)]
    marks = ticks(min(ends + [0.0] * zero), max(ends + [0.0] * zero), 4)
    return Dots(title, kept, marks, zero and marks[0] < 0 < marks[-1])


#: Colours that also colour-blind readers tell apart (Okabe & Ito 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def steps_chart(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Chart:
    """Steps that begin at 1 and keep their value until the next time.

    Args:
        title: what is drawn.
        curves: name -> (time, share from then on), rising times.
    """
    last = max((time for points in curves.values() for time, _ in points), default=1.0)
    lines = []
    for name, points in curves.items():
        steps, share = [(0.0, 1.0)], 1.0
        for time, after in points:
            steps += [(time / last, share), (time / last, after)]
            share = after
        lines.append((name, steps))
    marks = [mark for mark in ticks(0.0, last, 6) if mark <= last]
    step = marks[1] - marks[0]
    x_ticks = [Tick(f"{100 * mark / last:.2f}", number_text(mark, step)) for mark in marks]
    return replace(square(title, "time", lines), x_ticks=x_ticks)


def svg_of(chart: Chart) -> str:
    """The plot as an SVG."""
    return render("curves.svg", chart=chart, colours=_COLOURS, pixels=300 / HEIGHT_REM)
