"""How a room makes a page of a template, and reads what a page has posted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dovetail.companions.room.owner import MAX_PROPOSAL
from dovetail.network.printable import printable

#: Bytes of a form, and of one field; seconds that it has to come.
MAX_FORM, FORM_S = 2 * MAX_PROPOSAL, 30.0


@cache
def templates() -> Environment:
    """A room's templates; what is in them is text."""
    made = Environment(
        loader=PackageLoader("dovetail.companions.room"),
        autoescape=True,  # names and reasons come from others
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    made.filters["markdown"] = _markdown
    made.filters["clock"] = lambda at: f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
    made.filters["local"] = _local
    return made


def _local(text: str) -> str:
    """A time of a record, by this machine's clock and to the minute; what is none as it is.

    >>> _local("soon")
    'soon'
    """
    try:
        return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return text


def _markdown(text: str) -> Markup:
    """Markdown of ours, in which words of others stand; HTML in it is text."""
    made = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    made = made.replace("<table>", '<div class="scroll"><table>').replace(
        "</table>", "</table></div>"
    )
    return Markup(made)


async def rendered(template: str, values: Callable[[], dict[str, Any]]) -> Response:
    """A page; what it shows is read on another thread."""

    def render() -> str:
        return templates().get_template(template).render(values())

    return HTMLResponse(await asyncio.to_thread(render))


async def form_of(request: Request) -> dict[str, str]:
    """Fields that a page has posted, files as their text.

    Raises:
        HTTPException: too much of it.
    """
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > MAX_FORM:
        raise HTTPException(413, f"a form has {MAX_FORM:,} bytes at most, and says how many")
    read = request.form(max_files=1, max_fields=20, max_part_size=MAX_FORM)
    try:
        async with asyncio.timeout(FORM_S), read as form:
            return {
                key: (await value.read()).decode("utf-8", "replace")
                if isinstance(value, UploadFile)
                else value
                for key, value in form.items()
            }
    except TimeoutError:
        raise HTTPException(408, f"a form has {FORM_S:g} s to come") from None


def quoted(text: str) -> str:
    """A part of an address."""
    return quote(text, safe="")
