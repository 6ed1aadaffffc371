"""Self-contained pages: what they are made of, and ``inspect``'s own: who holds what.

What comes from tables and files is escaped; a page has no script and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dovetail.data import coverage
from dovetail.data.wording import bytes_text, count_text, share_text
from dovetail.methods.facets.fits import Fit
from dovetail.runs.situations import recommended

if TYPE_CHECKING:
    from jinja2 import Environment

#: Colours on light and on dark ground; a name stands beside each use, so that they may repeat and
#: nothing rests on telling them apart.
COLOURS = (
    ("#2a78d6", "#3987e5"),
    ("#1baf7a", "#199e70"),
    ("#c98500", "#c98500"),
    ("#4a3aa7", "#9085e9"),
    ("#e34948", "#e66767"),
    ("#008300", "#3da33d"),
)


# --- What pages are made of -----------------------------------------------------------------------


@dataclass(frozen=True)
class StyledCell:
    """A cell of a style of its own.

    Attributes:
        text: what it says.
        style: a class of ``templates/style.css``.
    """

    text: str
    style: str


@dataclass(frozen=True)
class TableView:
    """A table; its first column names the row.

    Attributes:
        numbers: the columns that stand to the right.
        stack: on a phone, show each row as a list: for columns of words.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | StyledCell]]
    numbers: Collection[int] = ()
    stack: bool = False


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # for who draws a page

    return Environment(
        loader=PackageLoader("dovetail.report"),
        autoescape=True,  # names and values come from others
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """Self-contained page of a file in ``templates``; all values are escaped.

    It is ASCII, needs no network and follows the reader's light or dark setting.
    """
    light, dark = (
        " ".join(f"--c{index}: {pair[side]};" for index, pair in enumerate(COLOURS))
        for side in (0, 1)
    )
    values = {"light": light, "dark": dark, "num_colours": len(COLOURS), **values}
    text = _templates().get_template(template).render(values)
    return text.encode("ascii", "xmlcharrefreplace").decode()  # safe in any encoding


# --- Who holds what -------------------------------------------------------------------------------


def picture(parts: Sequence[coverage.Part], groups: coverage.Groups) -> dict[str, Any]:
    """Parties' blocks against groups of samples; places and widths are per cent, as CSS has them.

    A group's name below it is tight where there is room for it on a wide page only.
    """
    drawn = coverage.bands(groups)
    total = 1000
    sizes = coverage.widths([band.count for band in drawn], total, minimum=8)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    positions = [
        (f"{100 * start / total:.1f}%", f"{100 * size / total - 0.15:.2f}%")
        for start, size in zip(starts, sizes, strict=True)
    ]
    lines = []
    last = -1
    for row in coverage.rows_of(parts):
        name = groups.parties[row.party]
        held = round(sum(row.share(band) * band.count for band in drawn))
        share = share_text(held, groups.num_samples)
        letters = ", ".join(band.letter for band in drawn if row.share(band))
        bars = []
        for band, (x, width) in zip(drawn, positions, strict=True):
            part_held = row.share(band)
            if part_held:
                opacity = "" if part_held == 1 else f"{0.25 + 0.5 * part_held:.2f}"
                title = f"{band.letter}: {band.count:,}"
                bars.append({"x": x, "width": width, "opacity": opacity, "title": title})
        text = f"{held:,} of {count_text(groups.num_samples, 'sample')}, {share}"
        is_labels = row.kind == "labels"
        lines.append(
            {
                "party": name,
                "what": row.what,
                "share": share,
                "summary": f"{name}, {row.what}: {text}; groups {letters or 'none'}",
                "first": row.party != last,
                "is_labels": is_labels,
                "style": "labels" if is_labels else f"c{row.party % len(COLOURS)}",
                "bars": bars,
            }
        )
        last = row.party
    axis = []
    last_wide = last_tight = -total
    for band, start, (x, _) in zip(drawn, starts, positions, strict=True):
        if start - last_wide >= 30:  # a letter needs room, the more on a phone
            last_wide = last_tight = start
            axis.append({"x": x, "letter": band.letter, "tight": False})
        elif start - last_tight >= 12:
            last_tight = start
            axis.append({"x": x, "letter": band.letter, "tight": True})
    partly = any(band.combinations > 1 for band in drawn)
    return {"rows": lines, "axis": axis, "partly": partly}


def groups_table(groups: coverage.Groups) -> TableView:
    """A table of the numbers in the picture."""
    rows = [
        (
            band.letter,
            f"{band.count:,}",
            share_text(band.count, groups.num_samples),
            *(words or "–" for words in coverage.holders(band, groups.parties)),
        )
        for band in coverage.bands(groups)
    ]
    return TableView(
        f"{count_text(groups.num_samples, 'sample')} in all; {groups.common():,} at every party",
        ("group", "samples", "share", "held by", "labelled at"),
        rows,
        numbers=(1, 2),
        stack=True,
    )


def parties_table(parts: Sequence[coverage.Part], caption: str = "") -> TableView:
    """Table of what each party has."""
    rows = [
        (
            part.name,
            f"{part.data.num_rows:,}",
            coverage.blocks_text(part) or "none",
            f"{len(part.data.labelled_rows()):,}",
            coverage.classes_text(part) or "–",
        )
        for part in parts
    ]
    head = ("party", "rows", "blocks (columns)", "labelled", "classes")
    return TableView(caption, head, rows, numbers=(1, 3), stack=True)


# --- The page of ``dovetail inspect`` -------------------------------------------------------------


def html(
    parts: Sequence[coverage.Part],
    fits: Sequence[Fit],
    overlaps: coverage.Overlaps,
    *,
    title: str = "Who holds what",
) -> str:
    """Self-contained HTML page: the picture, its numbers, overlaps, and which methods fit.

    There is no picture where overlaps were counted without comparing ids.
    """
    groups = None if overlaps.least else overlaps.groups
    tables = [] if groups is None else [("Groups of samples", groups_table(groups))]
    tables += [("Parties and labels", parties_table(parts))]
    if overlaps.shared or overlaps.withheld:
        tables.append(("Overlaps", overlaps_table(overlaps)))
    tables.append(("Methods", _methods_table(fits)))
    best = recommended(fits)
    if best is not None and best.messages:
        tables.append(("Messages to come", _messages_table(best)))
    return render(
        "inspect.html",
        title=title,
        summary=coverage.summary(parts, overlaps),
        best=best,
        drawn=None if groups is None else picture(parts, groups),
        tables=tables,
    )


def overlaps_table(overlaps: coverage.Overlaps) -> TableView:
    """Samples that each party shares with the first that has labels: how many, or why not told."""
    centre = overlaps.rows[overlaps.centre]
    rows = [
        (
            name,
            f"{overlaps.rows[name]:,}" if name in overlaps.rows else "-",
            overlaps.shown(name),
            overlaps.share_shown(name),
        )
        for name in (*overlaps.shared, *overlaps.withheld)
    ]
    common = ""
    if overlaps.common is not None:
        common = f"; {coverage.shown(overlaps.common, least=overlaps.least)} are at every party"
    how = "" if overlaps.groups is not None else "; counted without comparing ids in the clear"
    return TableView(
        f"samples shared with {overlaps.centre}, which has {centre:,} rows{common}{how}",
        ("party", "rows", "shared", f"of {overlaps.centre}'s"),
        rows,
        numbers=(1, 2, 3),
    )


def _methods_table(fits: Sequence[Fit]) -> TableView:
    rows = []
    for fit in fits:
        verdict, _, reason = fit.reason.partition(": ")
        rows.append((fit.title, StyledCell(verdict, "yes") if fit.applies else verdict, reason))
    return TableView("", ("method", "fits", "why"), rows, stack=True)


def _messages_table(best: Fit) -> TableView:
    first = best.messages[:20]
    rows = [
        (
            f"{size.party} ↔ {size.partner}",
            f"a {size.per}",
            bytes_text(size.sent_bytes),
            bytes_text(size.received_bytes),
        )
        for size in first
    ]
    if len(best.messages) > len(first):
        rows.append((f"and {len(best.messages) - len(first)} more", "", "", ""))
    return TableView(
        f"with {best.title}; {best.messages[0].assuming}",
        ("between", "per", "sent →", "← received"),
        rows,
        numbers=(2, 3),
    )
