"""``dovetail report``: run folders as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.cli.output import console
from dovetail.report.make import make_report


def run_report(paths: Sequence[Path], *, out: Path | None, data: bool, quiet: bool) -> None:
    """Read the folders, write the page; see ``make_report``."""
    page = make_report(paths, out=out, data=data)
    if not quiet:
        console().print(f"Report: {page}", highlight=False, markup=False, soft_wrap=True)
