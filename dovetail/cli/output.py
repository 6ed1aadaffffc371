"""Standard output of commands; Rich is imported when there is something to print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console() -> Console:
    """Standard output."""
    from rich.console import Console

    return Console()


def show(result: RenderableType) -> None:
    """A result of the face; lines with a path or command are not cut."""
    console().print(result, crop=False)


def print_line(text: str) -> None:
    """A line that no terminal wraps: paths and commands are copied in one piece."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)
