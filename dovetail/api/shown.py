"""Results as a terminal, ``print`` and a notebook show them, rendered by Rich."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from io import StringIO
from typing import Any
from unicodedata import category

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

#: Columns of what ``print`` shows.
WIDTH = 100

#: The numbers of an epoch or round that are shown while it trains.
SCORES = (
    "loss",
    "accuracy",
    "auc",
    "rmse",
    "mae",
    "r2",
    "c_index",
    "auc_labels",
    "r2_labels",
    "validation",
)


def scores_of(line: Mapping[str, Any]) -> list[str]:
    """The numbers of an epoch or round, as they are shown."""
    return [f"{name} {line[name]:.3f}" for name in SCORES if name in line]


def unit_of(line: Mapping[str, Any]) -> str:
    """Unit of a line: an epoch or a round."""
    return "rounds" if "round" in line else "epochs"


def waiting_text(address: str, here: Iterable[str], missing: Sequence[str]) -> str:
    """Text on which parties are here and which are waited for."""
    text = f"here: {', '.join(here) or 'nobody yet'}"
    return f"waiting at {address} for {', '.join(missing)}; {text}" if missing else text


def terminal_text(words: str, style: str = "") -> Text:
    """Words as a terminal may show them: a name from a table cannot move the cursor or set colours.

    >>> terminal_text("[red]bank\\x1b[0m").plain
    '[red]bank�[0m'
    """
    return Text(
        "".join("\N{REPLACEMENT CHARACTER}" if category(c)[0] == "C" else c for c in words), style
    )


class Shown:
    """A result with one description of what it shows."""

    def shown(self) -> Iterator[RenderableType]:
        """Parts to show, from top to bottom."""
        raise NotImplementedError

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield from self.shown()

    def __repr__(self) -> str:
        return printed(self.shown())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def printed(parts: Iterable[RenderableType], *, width: int = WIDTH) -> str:
    """Plain text of what a terminal of this width would show."""
    console = Console(file=StringIO(), width=width, color_system=None, force_jupyter=False)
    with console.capture() as captured:
        for each in parts:
            whole = isinstance(each, Text) and bool(each.no_wrap)
            console.print(each, highlight=False, markup=False, soft_wrap=whole)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))


def framed(page: str, *, height: int) -> str:
    """A whole page within a notebook's, with styles of its own.

    Args:
        page: HTML that has no script.
        height: pixels.
    """
    return (
        f'<iframe sandbox="" style="width:100%;height:{height}px;border:0" '
        f'srcdoc="{escape(page, quote=True)}"></iframe>'
    )


def line(text: str) -> Text:
    """A line that is copied in one piece."""
    return Text(text, no_wrap=True, overflow="ignore")


def lined_table(
    head: Iterable[str],
    rows: Iterable[Iterable[str | Text]] = (),
    *,
    left: Collection[int] = (0,),
    title: str = "",
    **look: Any,
) -> Table:
    """A table with lines.

    Args:
        head: the columns' names.
        rows: cells; a string is made safe for a terminal.
        left: places of the columns that hold words; the others are numbers.
        title: printed above the table.
        look: as ``rich.table.Table`` takes it.
    """
    above = terminal_text(title) if title else None
    table = Table(title=above, title_justify="left", caption_justify="left", **look)
    for index, name in enumerate(head):
        table.add_column(terminal_text(name), justify="left" if index in left else "right")
    for row in rows:
        table.add_row(*(terminal_text(each) if isinstance(each, str) else each for each in row))
    return table


def plain_table(
    head: Sequence[str], rows: Iterable[Iterable[str | Text]] = (), *, right: int = 0
) -> Table:
    """A table without lines, whose last ``right`` columns are numbers; cells as in another."""
    words = range(len(head) - right)
    table = lined_table(head, rows, left=words, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns[len(words) :]:
        column.no_wrap = True
    return table
