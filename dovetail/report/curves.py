"""Curves of shares without event as one SVG that stands by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.report.chart import HEIGHT_REM, Chart, Tick, number_text, square, ticks
from dovetail.report.views import render

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
