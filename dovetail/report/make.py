"""Run folders as one page, written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.errors import ConfigError
from dovetail.network.in_use import in_use
from dovetail.report.folder import read_run
from dovetail.report.gather import coverage_of, known_names, names_of
from dovetail.report.page import html
from dovetail.runs import versions, write_text

#: Packages whose version a page names.
_PACKAGES = ("dovetail", "torch", "numpy", "scikit-learn")


def make_report(
    paths: Sequence[Path], *, out: Path | None, data: bool, hide_below: int = 0
) -> Path:
    """Read the folders, write the page; gives its path.

    Args:
        paths: run folders.
        out: the page; None: report.html in the first folder.
        data: also read the tables that a run names; else only built-in data sets.
        hide_below: smaller numbers of shared samples are hidden.

    Raises:
        ConfigError: a folder that is none of a run, or a page that cannot be written.
    """
    folders = list(dict.fromkeys(path.resolve() for path in paths))
    runs = [read_run(path, name) for path, name in zip(folders, names_of(folders), strict=True)]
    held = {run.name: coverage_of(run, data, least=hide_below) for run in runs}
    page = html(
        runs,
        known_names(),
        coverage={name: overlaps for name, overlaps in held.items() if overlaps is not None},
        versions=versions(*_PACKAGES),
    )
    out = out or paths[0] / "report.html"
    try:
        with in_use(out.parent, "name another page", lock=f".{out.name}.lock", wait_s=10.0):
            write_text(out, page)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; name a file with --out") from None
    return out
