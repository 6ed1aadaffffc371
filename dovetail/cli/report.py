"""``dovetail report``: run folders as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.cli.output import console
from dovetail.errors import ConfigError
from dovetail.experiment import versions, write_text
from dovetail.report import html, read_run
from dovetail.report.gather import coverage_of, known_names, names_of

#: Packages whose version a page names.
_PACKAGES = ("dovetail", "torch", "numpy", "scikit-learn")


def run_report(paths: Sequence[Path], *, out: Path | None, data: bool, quiet: bool) -> None:
    """Read the folders, write the page.

    Args:
        paths: run folders.
        out: the page; None: report.html in the first folder.
        data: also read the tables that a run names; else only built-in data sets.
        quiet: print nothing.

    Raises:
        ConfigError: a folder that is none of a run, or a page that cannot be written.
    """
    places = list(dict.fromkeys(path.resolve() for path in paths))
    runs = [read_run(path, name) for path, name in zip(places, names_of(places), strict=True)]
    held = {run.name: coverage_of(run, data) for run in runs}
    page = html(
        runs,
        known_names(),
        coverage={name: found for name, found in held.items() if found is not None},
        versions=versions(*_PACKAGES),
    )
    out = out or paths[0] / "report.html"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; name a file with --out") from None
    if not quiet:
        console().print(f"Report: {out}", highlight=False, markup=False, soft_wrap=True)
