"""Curves of shares without event as one SVG that stands by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from dovetail.report.chart import NAME_REM, Chart, Tick, number_text, square, ticks

#: Colours that also colour-blind readers tell apart (Okabe & Ito 2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")

#: Of the plot, in pixels; names stand to its right.
_WIDTH, _HEIGHT, _LEFT, _NAMES = 560, 300, 46, 150


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
    rem = _HEIGHT / 15.0  # a chart's heights are in rem
    parts = [f'<text x="{_LEFT}" y="14" font-weight="bold">{escape(chart.title)}</text>']
    for tick in chart.y_ticks:
        y = 24 + float(tick.at) / 100 * _HEIGHT
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick.text}</text>'
        )
    for tick in chart.x_ticks:
        x = _LEFT + float(tick.at) / 100 * _WIDTH
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT + 42}" text-anchor="middle">{tick.text}</text>'
        )
    place = f"translate({_LEFT} 24) scale({_WIDTH / 1000} {_HEIGHT / 1000})"
    for line in chart.lines:
        colour = _COLOURS[line.colour % len(_COLOURS)]
        parts.append(
            f'<path transform="{place}" d="{line.path}" fill="none" stroke="{colour}" '
            f'stroke-width="2" stroke-dasharray="{line.dash}" vector-effect="non-scaling-stroke"/>'
            f'<text x="{_LEFT + _WIDTH + 8}" y="{24 + (float(line.at_rem) + NAME_REM) * rem:.1f}" '
            f'fill="{colour}">{escape(line.name)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _NAMES} '
        f'{_HEIGHT + 56}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(chart.summary)}">{"".join(parts)}</svg>\n'
    )
