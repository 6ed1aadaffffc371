"""Standard output of commands; Rich is imported when there is something to print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console() -> Console:
    """Standard output."""
    from rich.console import Console

    return Console()


def show(result: RenderableType) -> None:
    """A result of the face; lines with a path or command are not cut."""
    console().print(result, crop=False)


def print_text(template: str, **values: Any) -> None:
    """A text of ``cli/templates``, whose lines no terminal wraps."""
    from jinja2 import Environment, PackageLoader

    texts = Environment(loader=PackageLoader("dovetail.cli"), trim_blocks=True, lstrip_blocks=True)
    texts.filters["quoted"] = repr
    print_line(texts.get_template(template).render(values).rstrip("\n"))


def print_line(text: str) -> None:
    """A line that no terminal wraps: paths and commands are copied in one piece."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)
