"""``dovetail report``: run folders as one page."""

from __future__ import annotations

from pathlib import Path

from dovetail.cli import precheck


def report(
    folders: list[Path],
    out: Path | None = None,
    data: bool = False,
    hide_below: int = 0,
    quiet: bool = False,
) -> None:
    """Write one page about runs: results, curves, inputs, data sent by each party.

    The page needs no network, follows light and dark, and prints. A folder of several seeds is one
    run with spread; one that still trains shows what there is so far. With --hide-below 10, small
    numbers of shared samples are hidden.

    Args:
        folders: run folders; several are shown side by side.
        out: the page; None: report.html in the first folder.
        data: read the tables that runs name, to draw who held what.
    """
    precheck.check_runs(folders)
    from dovetail.cli.output import print_line
    from dovetail.report.make import make_report

    page = make_report(folders, out=out, data=data, hide_below=hide_below)
    if not quiet:
        print_line(f"Report: {page}")
