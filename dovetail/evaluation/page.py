"""Who holds what on one self-contained page: the picture of ``coverage``, what ``methods`` found.

What comes from tables and files is escaped; the page has no script and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from dovetail.evaluation.coverage import (
    Band,
    Groups,
    Part,
    bands,
    blocks_text,
    bytes_text,
    classes_text,
    count_text,
    holders,
    rows_of,
    share_text,
    summary,
    widths,
)
from dovetail.evaluation.methods import Fit, Overlaps, recommended

#: Colours of parties on light and on dark ground; a row's name stands beside it, so that they may
#: repeat and nothing rests on telling them apart.
_COLOURS = (
    ("#2a78d6", "#3987e5"),
    ("#1baf7a", "#199e70"),
    ("#c98500", "#c98500"),
    ("#4a3aa7", "#9085e9"),
    ("#e34948", "#e66767"),
    ("#008300", "#3da33d"),
)

_CSS = """
:root { color-scheme: light dark; --ground: #fcfcfb; --ink: #1a1a19; --soft: #5c5b57;
  --line: #dddcd6; --track: #ecebe6; --mark: #eef4fc; --yes: #006300; LIGHT }
@media (prefers-color-scheme: dark) { :root { --ground: #1a1a19; --ink: #f3f2ed; --soft: #b4b2a9;
  --line: #3a3936; --track: #2c2b29; --mark: #1b2a3d; --yes: #5cc05c; DARK } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0 .75rem; }
.soft, caption { color: var(--soft); }
.next { background: var(--mark); border-radius: 8px; padding: .75rem 1rem; margin: 1rem 0; }
.next p { margin: 0; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.next code { display: block; margin-top: .4rem; }
.rows { display: grid; grid-template-columns: minmax(7rem, 15rem) 1fr; gap: 3px 1rem;
  align-items: center; }
.name { font-size: .9rem; line-height: 1.3; overflow-wrap: anywhere; }
.name b { margin-right: .3rem; }
.first { margin-top: .6rem; }
svg { display: block; overflow: visible; }
svg .track { fill: var(--track); }
svg .labels { fill: var(--ink); }
svg text { fill: var(--soft); font-size: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; font-size: .85rem; margin-top: .5rem;
  color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: .4rem; }
.legend i { width: 22px; height: 14px; border-radius: 2px; background: var(--c0); }
.legend .l { height: 6px; background: var(--ink); }
.legend .n { background: var(--track); }
.legend .p { opacity: .45; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; min-width: min(100%, 34rem); font-size: .92rem; }
caption { text-align: left; font-size: .85rem; padding-bottom: .35rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem 1.4rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.yes { color: var(--yes); font-weight: 600; }
@media (max-width: 40rem) { svg .tight { display: none; } th, td { padding-right: .8rem; }
  .rows { grid-template-columns: 1fr; gap: 1px; }
  .bar { margin-bottom: .3rem; } .bar.first { margin-top: 0; } table { font-size: .85rem; }
  thead th { white-space: normal; } }
@media print { body { max-width: none; } }
"""


def html(
    parts: Sequence[Part],
    fits: Sequence[Fit],
    overlaps: Overlaps,
    *,
    title: str = "Who holds what",
) -> str:
    """One self-contained page: the picture, its numbers, overlaps, and which methods fit.

    It is ASCII, needs no network and follows the reader's light or dark setting. There is no
    picture where overlaps were counted without comparing ids.
    """
    light, dark = (
        " ".join(f"--c{place}: {pair[side]};" for place, pair in enumerate(_COLOURS))
        for side in (0, 1)
    )
    groups = overlaps.groups
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(summary(parts, overlaps))}</p>',
        _next_html(fits),
    ]
    if groups is not None:
        body.append(_picture_html(parts, groups))
    body += [_parties_html(parts), _overlaps_html(overlaps), _methods_html(fits)]
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{_CSS.replace('LIGHT', light).replace('DARK', dark)}</style>\n"
        "</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()  # safe in any encoding


def _next_html(fits: Sequence[Fit]) -> str:
    best = recommended(fits)
    if best is None:
        return (
            '<div class="next"><p><strong>None of the methods fits as things are.</strong> '
            "Below, each says what is missing.</p></div>"
        )
    command = best.next_command
    shown = (
        f"<code>{escape(command)}</code>" if best.available else f"<p>Next: {escape(command)}.</p>"
    )
    return (
        f'<div class="next"><p><strong>{escape(best.title)}</strong> fits: '
        f"{escape(best.reason.removeprefix('yes: '))}.</p>{shown}</div>"
    )


def _picture_html(parts: Sequence[Part], groups: Groups) -> str:
    """The picture, and a table of the same numbers below it."""
    drawn = bands(groups)
    total = 1000
    sizes = widths([band.count for band in drawn], total, minimum=8)
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    places = [
        (f"{100 * start / total:.1f}%", f"{100 * size / total - 0.15:.2f}%")
        for start, size in zip(starts, sizes, strict=True)
    ]
    lines = []
    last = -1
    for row in rows_of(parts):
        name = escape(groups.parties[row.party])
        party = f"<b>{name}</b>" if row.party != last else ""
        first = ' first"' if row.party != last else '"'
        last = row.party
        held = round(sum(row.share(band) * band.count for band in drawn))
        share = share_text(held, groups.num_samples)
        said = f"{held:,} of {count_text(groups.num_samples, 'sample')}, {share}"
        letters = ", ".join(band.letter for band in drawn if row.share(band))
        height, top = (8, 5) if row.kind == "labels" else (18, 0)
        style = "labels" if row.kind == "labels" else f"c{row.party % len(_COLOURS)}"
        bars = [f'<rect class="track" x="0" y="{top}" width="100%" height="{height}" rx="2"/>']
        for band, (x, width) in zip(drawn, places, strict=True):
            part_held = row.share(band)
            if part_held:
                opacity = "" if part_held == 1 else f' opacity="{0.25 + 0.5 * part_held:.2f}"'
                bars.append(
                    f'<rect class="{style}" x="{x}" y="{top}" width="{width}" height="{height}" '
                    f'rx="2"{opacity}><title>{band.letter}: {band.count:,}</title></rect>'
                )
        lines.append(
            f'<div class="name{first}>{party}{escape(row.what)} '
            f'<span class="soft">{share}</span></div>'
            f'<svg class="bar{first} width="100%" height="18" role="img" '
            f'aria-label="{name}, {escape(row.what)}: {said}; groups {letters or "none"}">'
            f"{''.join(bars)}</svg>"
        )
    axis = []
    last_wide = last_tight = -total
    for band, start, (x, _) in zip(drawn, starts, places, strict=True):
        if start - last_wide >= 30:  # a letter needs room, the more on a phone
            last_wide = last_tight = start
            axis.append(f'<text x="{x}" y="12">{band.letter}</text>')
        elif start - last_tight >= 12:
            last_tight = start
            axis.append(f'<text x="{x}" y="12" class="tight">{band.letter}</text>')
    colours = "".join(f"svg .c{n} {{ fill: var(--c{n}); }}" for n in range(len(_COLOURS)))
    partly = (
        '<span><i class="p"></i>held for part of it</span>'
        if any(band.combinations > 1 for band in drawn)
        else ""
    )
    return (
        f"<style>{colours}</style><h2>Parties and samples</h2>"
        '<p class="soft">A row is a block of columns, or labels, of one party. A letter is a group '
        "of samples that the same parties hold, as wide as it is large (the smallest are drawn "
        "wider, to be seen).</p>"
        f'<div class="rows">{"".join(lines)}<div></div>'
        f'<svg width="100%" height="16" aria-hidden="true">{"".join(axis)}</svg></div>'
        '<div class="legend"><span><i></i>columns held</span><span><i class="l"></i>labels</span>'
        f'{partly}<span><i class="n"></i>not held</span></div>' + _groups_html(groups, drawn)
    )


def _groups_html(groups: Groups, drawn: Sequence[Band]) -> str:
    rows = [
        (
            band.letter,
            f"{band.count:,}",
            share_text(band.count, groups.num_samples),
            *(words or "–" for words in holders(band, groups.parties)),
        )
        for band in drawn
    ]
    return "<h2>Groups of samples</h2>" + _table_html(
        f"{count_text(groups.num_samples, 'sample')} in all; {groups.common():,} at every party",
        ("group", "samples", "share", "held by", "labelled at"),
        rows,
        numbers=(1, 2),
    )


def _parties_html(parts: Sequence[Part]) -> str:
    rows = [
        (
            part.name,
            f"{part.data.num_rows:,}",
            blocks_text(part) or "none",
            f"{len(part.data.labelled_rows()):,}",
            classes_text(part) or "–",
        )
        for part in parts
    ]
    head = ("party", "rows", "blocks (columns)", "labelled", "classes")
    return "<h2>Parties and labels</h2>" + _table_html("", head, rows, numbers=(1, 3))


def _overlaps_html(overlaps: Overlaps) -> str:
    if not overlaps.shared:
        return ""
    rows = [
        (name, f"{overlaps.rows[name]:,}", f"{count:,}", share_text(count, max(1, centre)))
        for centre in [overlaps.rows[overlaps.centre]]
        for name, count in overlaps.shared.items()
    ]
    common = "" if overlaps.common is None else f"; {overlaps.common:,} samples are at every party"
    how = "" if overlaps.groups is not None else "; counted without comparing ids in the clear"
    return "<h2>Overlaps</h2>" + _table_html(
        f"samples shared with {overlaps.centre}, which has "
        f"{overlaps.rows[overlaps.centre]:,} rows{common}{how}",
        ("party", "rows", "shared", f"of {overlaps.centre}'s"),
        rows,
        numbers=(1, 2, 3),
    )


def _methods_html(fits: Sequence[Fit]) -> str:
    lines = []
    for fit in fits:
        said, _, reason = fit.reason.partition(": ")
        mark = f'<span class="yes">{said}</span>' if fit.applies else said
        lines.append(
            f'<tr><th scope="row">{escape(fit.title)}</th><td>{mark}</td>'
            f"<td>{escape(reason)}</td></tr>"
        )
    page = (
        '<h2>Methods</h2><div class="scroll"><table><thead><tr><th scope="col">method</th>'
        '<th scope="col">fits</th><th scope="col">why</th></tr></thead><tbody>'
        + "".join(lines)
        + "</tbody></table></div>"
    )
    best = recommended(fits)
    if best is None or not best.messages:
        return page
    shown = best.messages[:20]
    rows = [
        (
            f"{size.party} ↔ {size.partner}",
            f"a {size.per}",
            bytes_text(size.sent_bytes),
            bytes_text(size.received_bytes),
        )
        for size in shown
    ]
    if len(best.messages) > len(shown):
        rows.append((f"and {len(best.messages) - len(shown)} more", "", "", ""))
    return (
        page
        + "<h2>Messages to come</h2>"
        + _table_html(
            f"with {best.title}; {best.messages[0].assuming}",
            ("between", "per", "sent →", "← received"),
            rows,
            numbers=(2, 3),
        )
    )


def _table_html(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int],
) -> str:
    """A table that scrolls by itself where it is wider than the page."""

    def cells(tag: str, values: Sequence[str]) -> str:
        opening = ["<" + tag + (' class="n"' if n in numbers else "") for n in range(len(values))]
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f"{start}{scope}>{escape(value)}</{tag}>"
            for start, value in zip(opening, values, strict=True)
        )

    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table>{above}<thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
