"""Panels of curves as one SVG file: for a page of the docs, or to be opened by itself.

It needs no script and no network, follows light and dark, and says every point in words: to who
hovers over it, and to who does not see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from dovetail.report.chart import DASHES, number_text, ticks
from dovetail.report.views import COLOURS

#: Panel -> curve -> place -> mean and spread. Places are numbers, or names in their order.
Panels = Mapping[str, Mapping[str, Mapping[int | float | str, tuple[float, float | None]]]]

#: Panels beside each other, and the room of one: outside, and around what is drawn; pixels.
PER_ROW = 3
WIDTH, HEIGHT = 320, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 46

#: Of a legend: a line's height, a sample's width, and what a letter takes at the most.
ROW, SAMPLE, LETTER = 20, 34, 7.2


def panels_svg(panels: Panels, *, title: str, x: str, y: str) -> str:
    """The picture; each panel has axes of its own, a curve looks the same in all.

    Args:
        panels: what is drawn; every panel has a point.
        title: the whole in a line.
        x, y: what the axes say.
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = min(len(panels), PER_ROW)
    width, height = columns * WIDTH, -(-len(panels) // columns) * HEIGHT
    legend = list(_legend(names, width, height))
    whole = height + ROW * (1 + max(row for row, _ in legend))
    drawn = "\n".join(
        f'<g transform="translate({index % columns * WIDTH} {index // columns * HEIGHT})">'
        + "".join(_panel(panel, curves, names, x, y if index % columns == 0 else ""))
        + "</g>"
        for index, (panel, curves) in enumerate(panels.items())
    )
    samples = "".join(text for _, text in legend)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" '
        f'width="{width}" height="{whole}" role="img" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(_summary(panels, x))}</desc>\n"
        f"<style>{_style()}</style>\n"
        f'<rect class="ground" width="{width}" height="{whole}"/>\n{drawn}\n{samples}\n</svg>\n'
    )


def _style() -> str:
    light, dark = (
        "".join(f"--c{index}:{pair[side]};" for index, pair in enumerate(COLOURS))
        for side in (0, 1)
    )
    return (
        f":root{{--ground:#fcfcfb;--ink:#1a1a19;--line:#dddcd6;{light}}}"
        "@media (prefers-color-scheme:dark)"
        f"{{:root{{--ground:#1a1a19;--ink:#f3f2ed;--line:#3a3936;{dark}}}}}"
        "text{font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:var(--ink)}"
        ".ground{fill:var(--ground)}.grid{stroke:var(--line)}"
        ".mean,.bar{fill:none;stroke-width:2}.bar{stroke-width:1.2;opacity:.7}"
    )


def _panel(
    title: str,
    curves: Mapping[str, Mapping[int | float | str, tuple[float, float | None]]],
    names: list[str],
    x: str,
    y: str,
) -> Iterator[str]:
    positions = list(dict.fromkeys(at for curve in curves.values() for at in curve))
    numbers = [float(at) for at in positions if not isinstance(at, str)]
    if len(numbers) == len(positions):
        low_x, high_x = min(numbers), max(numbers)
        at_of = dict(zip(positions, numbers, strict=True))
        inner = [at for at in ticks(low_x, high_x, 4) if low_x <= at <= high_x]
        step = inner[1] - inner[0] if len(inner) > 1 else 1.0
        x_ticks = [(at, number_text(at, step)) for at in inner]
    else:  # names stand side by side
        low_x, high_x = 0.0, float(len(positions) - 1)
        at_of = {at: float(index) for index, at in enumerate(positions)}
        x_ticks = [(at_of[at], str(at)) for at in positions]
    ends = [
        mean + side * (spread or 0.0)
        for curve in curves.values()
        for mean, spread in curve.values()
        for side in (-1, 1)
    ]
    y_ticks = ticks(min(ends), max(ends), 4)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x_of(at: float) -> float:
        share = 0.5 if high_x == low_x else 0.04 + 0.92 * (at - low_x) / (high_x - low_x)
        return LEFT + share * (right - LEFT)

    def y_of(value: float) -> float:
        return bottom - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - TOP)

    yield f'<text x="{(LEFT + right) / 2}" y="18" text-anchor="middle">{escape(title)}</text>'
    for value in y_ticks:
        text = number_text(value, y_ticks[1] - y_ticks[0])
        yield f'<path class="grid" d="M{LEFT} {y_of(value):.1f}H{right}"/>'
        yield f'<text x="{LEFT - 6}" y="{y_of(value) + 4:.1f}" text-anchor="end">{text}</text>'
    for at, text in x_ticks:
        yield f'<text x="{x_of(at):.1f}" y="{bottom + 17}" text-anchor="middle">'
        yield f"{escape(text)}</text>"
    yield f'<text x="{(LEFT + right) / 2}" y="{bottom + 36}" text-anchor="middle">'
    yield f"{escape(x)}</text>"
    if y:
        middle = (TOP + bottom) / 2
        yield f'<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">'
        yield f"{escape(y)}</text>"
    for name, curve in curves.items():
        colour, dash = _look(names.index(name))
        points = [
            (x_of(at_of[at]), mean, spread or 0.0, at) for at, (mean, spread) in curve.items()
        ]
        line = "L".join(f"{at:.1f} {y_of(mean):.1f}" for at, mean, _, _ in points)
        yield f'<path class="mean" stroke="{colour}" stroke-dasharray="{dash}" d="M{line}"/>'
        for at, mean, spread, index in points:
            if spread:
                upper, lower = y_of(mean + spread), y_of(mean - spread)
                yield f'<path class="bar" stroke="{colour}" d="M{at:.1f} {upper:.1f}V{lower:.1f}'
                yield f'M{at - 3:.1f} {upper:.1f}h6M{at - 3:.1f} {lower:.1f}h6"/>'
            yield f'<circle cx="{at:.1f}" cy="{y_of(mean):.1f}" r="3.5" fill="{colour}">'
            yield f"<title>{escape(_point(name, x, index, mean, spread))}</title></circle>"


def _look(index: int) -> tuple[str, str]:
    """Colour and pattern; with both, twice as many curves are told apart."""
    return f"var(--c{index % len(COLOURS)})", DASHES[index % len(DASHES)]


def _legend(names: list[str], width: int, top: int) -> Iterator[tuple[int, str]]:
    """The row of each name, and its sample."""
    row, left = 0, 8.0
    for index, name in enumerate(names):
        takes = SAMPLE + 18 + LETTER * len(name)
        if left > 8 and left + takes > width:
            row, left = row + 1, 8.0
        colour, dash = _look(index)
        y = top + ROW * row + 8
        yield (
            row,
            f'<path class="mean" stroke="{colour}" stroke-dasharray="{dash}" '
            f'd="M{left:.0f} {y}h{SAMPLE}"/>'
            f'<text x="{left + SAMPLE + 6:.0f}" y="{y + 4}">{escape(name)}</text>',
        )
        left += takes


def _point(name: str, x: str, at: int | float | str, mean: float, spread: float) -> str:
    return f"{name}, {x} {at}: {mean:.2f}" + (f" ± {spread:.2f}" if spread else "")


def _summary(panels: Panels, x: str) -> str:
    """Every point in words."""
    return " ".join(
        (f"{panel}: " if panel else "")
        + "; ".join(
            _point(name, x, at, mean, spread or 0.0)
            for name, curve in curves.items()
            for at, (mean, spread) in curve.items()
        )
        + "."
        for panel, curves in panels.items()
    )
