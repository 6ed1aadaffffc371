"""``dovetail inspect``: who holds what, which methods fit and why, and what to run next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli import precheck
from dovetail.cli.options import AsJson, HideBelow, Quiet, RunKeys


def inspect(
    run: Annotated[list[Path], typer.Argument(help="A run file, or party files (TOML).")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with the picture.")] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Compare ids blinded, and count only."),
    ] = False,
    hide_below: HideBelow = 0,
    overrides: RunKeys = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show which party holds what, and which of the methods fit and why.

    A picture of parties and blocks against samples, overlaps, where labels are, and for each
    method whether it applies, with the command to run next and the sizes of messages to come.
    Reads every party's table; with --private, ids are compared only blinded and only counts shown.

    If one party has labels, a linear model of its own columns shows by cross-validation how its
    score grows with labels. It is a weak hint of what partners are worth, and says how often it was
    right.

    A party that shares nothing reads "none", one whose policy does not agree to be counted
    "refused", one whose table lacks a column that its file names "column missing"; with
    --hide-below 10, less than that "fewer than 10 (hidden)".
    """
    precheck.check_files(run, overrides)
    from dovetail.api.inspecting import inspect as inspected
    from dovetail.cli.output import print_line, show

    inspection = inspected(
        list(run),
        private=private,
        hide_below=hide_below,
        overrides=tuple(overrides or ()),
        quiet=quiet or as_json,
    )
    page = None if html is None else inspection.save(html)
    if as_json:
        print(json.dumps(inspection.to_json(), indent=2))
    elif not quiet:
        show(inspection)
        if page is not None:
            print_line(f"Page: {page}")
