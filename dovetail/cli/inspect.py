"""``dovetail inspect``: who holds what, which methods fit and why, and what to run next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.cli import precheck
from dovetail.cli.command import command_of
from dovetail.cli.output import print_line


@command_of("api.inspecting:inspect", least={"hide_below": 0})
def inspect(
    call: Callable[..., Any],
    parties: list[Path],
    html: Path | None = None,
    overrides: list[str] | None = None,
    private: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Show which party holds what, and which of the methods fit and why.

    A picture of parties and blocks against samples, overlaps, where labels are, and for each
    method whether it applies, with the command to run next and the sizes of messages to come.
    Reads every party's table; with --private, ids are compared only blinded and only counts shown.

    If one party has labels, a linear model of its own columns shows by cross-validation how its
    score grows with labels: a weak hint of what partners are worth.

    A party that shares nothing reads "none", one whose policy does not agree to be counted
    "refused", one whose table lacks a column that its file names "column missing"; with
    --hide-below 10, less than that "fewer than 10 (hidden)".

    Args:
        parties: a run file, or party files (TOML).
        html: also write a page with the picture.
        private: compare ids only blinded, by private set intersection, and count; there is no
            picture.
    """
    precheck.check_files(parties, overrides, tables=not private)
    inspection = call()
    if html is not None:
        page = inspection.save(html)
        if not (quiet or as_json):
            print_line(f"Page: {page}")
