"""Picture of parties and their blocks in a terminal; see ``data/coverage.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dovetail.api.shown import terminal_text
from dovetail.data import coverage
from dovetail.data.wording import share_text

_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")

#: Kind of row -> glyph where all of a band is held, and where part of it is.
_GLYPHS = {"block": ("█", "▒"), "labels": ("◆", "◇"), "ids": ("▪", "▫")}
_ASCII = {"block": ("#", "+"), "labels": ("L", "l"), "ids": ("i", "-")}


class Picture:
    """The coverage of parties × blocks × samples, for rich; fits the width it is given."""

    def __init__(self, parts: Sequence[coverage.Part], groups: coverage.Groups) -> None:
        self.parts = parts
        self.groups = groups

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        groups = self.groups
        if not groups.num_samples:
            yield Text("There is no sample: every party's table is empty.")
            return
        rows = list(coverage.rows_of(self.parts))
        glyphs = _ASCII if options.ascii_only else _GLYPHS
        absent = "." if options.ascii_only else "·"
        at_most = options.max_width - 2
        party_width = min(max(cell_len(name) for name in groups.parties), max(4, at_most // 6))
        what_width = min(max(cell_len(row.what) for row in rows), max(6, at_most // 5))
        room = max(2, at_most - party_width - what_width - 2)
        drawn = coverage.bands(groups, min(coverage.MAX_BANDS, room))
        sizes = coverage.widths([band.count for band in drawn], room)
        last = -1
        for row in rows:
            style = _STYLES[row.party % len(_STYLES)]
            line = Text(no_wrap=True, overflow="crop")
            party = groups.parties[row.party] if row.party != last else ""
            line.append(_fit(party, party_width) + " ", "bold " + style)
            line.append(_fit(row.what, what_width) + " ")
            for band, size in zip(drawn, sizes, strict=True):
                share = row.share(band)
                whole, partly = glyphs[row.kind]
                glyph = whole if share == 1 else partly if share else absent
                line.append(glyph * size, style if share else "dim")
            yield line
            last = row.party
        axis = "".join(
            band.letter + " " * (size - 1) for band, size in zip(drawn, sizes, strict=True)
        )
        yield Text(" " * (party_width + what_width + 2) + axis, no_wrap=True, overflow="crop")
        yield self._legend({row.kind for row in rows}, glyphs, absent, drawn)
        yield Text()
        yield group_table(groups, drawn)

    def _legend(
        self,
        kinds: set[str],
        glyphs: Mapping[str, tuple[str, str]],
        absent: str,
        drawn: Sequence[coverage.Band],
    ) -> Text:
        words = {"block": "columns held", "labels": "labels", "ids": "ids alone"}
        entries = [f"{glyphs[kind][0]} {word}" for kind, word in words.items() if kind in kinds]
        if any(band.combinations > 1 for band in drawn):
            entries.append(f"{glyphs['block'][1]} partly held")
        entries.append(f"{absent} not held")
        return Text("   ".join(entries), style="dim")


def picture(parts: Sequence[coverage.Part], groups: coverage.Groups | None = None) -> Picture:
    """Parties' blocks against groups of samples, as rich prints it, with counts per group below.

    Raises:
        DataError: parties that cannot be compared.
    """
    return Picture(parts, groups or coverage.group(parts))


def group_table(groups: coverage.Groups, drawn: Sequence[coverage.Band]) -> Table:
    """Counts per group."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("held by")
    table.add_column("labelled at")
    for band in drawn:
        table.add_row(
            band.letter,
            f"{band.count:,}",
            share_text(band.count, groups.num_samples),
            *(terminal_text(words) for words in coverage.holders(band, groups.parties)),
        )
    table.add_row("", f"{groups.num_samples:,}", "", "in all", "", style="dim")
    return table


def _fit(text: str, width: int) -> str:
    """A name cut or padded to a width in terminal cells."""
    text = terminal_text(text).plain
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    return set_cell_size(text, width)
