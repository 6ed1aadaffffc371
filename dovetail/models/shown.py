"""Results as small HTML tables, which notebooks show, and as pages of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def html_table(
    rows: Iterable[Sequence[object]], *, head: Sequence[str] = (), note: str = ""
) -> str:
    """An HTML table; the first cell of a row is its heading, and everything is escaped.

    >>> print(html_table([("rows", "1 < 2")]).replace(' style="text-align:left"', ""))
    <table><tbody><tr><th>rows</th><td>1 &lt; 2</td></tr></tbody></table>
    """
    left = ' style="text-align:left"'
    top = "".join(f"<th{left}>{escape(each)}</th>" for each in head)
    body = "".join(
        f"<tr><th{left}>{escape(str(row[0]))}</th>"
        + "".join(f"<td{left}>{escape(str(cell))}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    caption = f'<caption style="caption-side:bottom">{escape(note)}</caption>' if note else ""
    head_html = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f"<table>{caption}{head_html}<tbody>{body}</tbody></table>"


def few(names: Sequence[object], most: int = 12) -> str:
    """The first names, and how many more there are.

    >>> few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def markdown_page(
    package: str, template: str, filters: Mapping[str, Callable[..., Any]], **values: Any
) -> str:
    """A page of a template of this package; words of others are to be made plain by a filter."""
    page = _templates(package, tuple(filters.items())).get_template(template)
    return str(page.render(**values)).rstrip("\n") + "\n"


@lru_cache(maxsize=4)
def _templates(package: str, filters: tuple[tuple[str, Callable[..., Any]], ...]) -> Environment:
    """Environment that compiles a package's templates: each once, as a run may write a page a
    party."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader(package), undefined=StrictUndefined)
    made.filters |= dict(filters)
    return made
