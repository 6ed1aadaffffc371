"""Processes of tests are forked from a server that has read the libraries once, and has no threads.

There is one such server for all tests of a process, so what it reads is said in one place. A
process of its own starts in a fraction of a second so, and shares no memory with the test.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "dovetail.methods.apfed",
        "dovetail.alignment.psi",
        "dovetail.cli.join",
        "dovetail.cli.main",
        "dovetail.cli.output",
        "dovetail.cli.train",
        "dovetail.experiment.train",
        "dovetail.face.reading",
        "dovetail.site.join",
        "dovetail.site.partyfile",
        "dovetail.network.dialling",
        "dovetail.network.stream",
        "sklearn.metrics",
        "sklearn.datasets",
        "torch.fx.experimental.symbolic_shapes",  # read when a gradient is first handed on
    ]
)


@dataclass(frozen=True)
class Ended:
    """A process that ended: its exit code, and what it printed where."""

    code: int
    out: str
    err: str


def command(folder: Path, *words: object, environment: Mapping[str, str] | None = None) -> Ended:
    """``dovetail WORDS`` in a folder, as a process of its own."""
    return _run(folder, None, ["dovetail", *map(str, words)], environment or {})


def script(
    folder: Path, path: Path, *words: object, environment: Mapping[str, str] | None = None
) -> Ended:
    """``python PATH WORDS`` in a folder, as a process of its own."""
    return _run(folder, path, [str(path), *map(str, words)], environment or {})


def code(folder: Path, text: str, *words: object, strict: bool = False) -> Ended:
    """``python -c TEXT WORDS`` in a folder, as a process of its own.

    Where it is strict, a warning is an error.
    """
    return _run(folder, text, ["-c", *map(str, words)], {}, strict=strict)


def _run(
    folder: Path,
    what: str | Path | None,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    strict: bool = False,
) -> Ended:
    with tempfile.TemporaryDirectory() as kept:
        out, err = Path(kept) / "out", Path(kept) / "err"
        args = (folder, what, words, environment, strict, out, err)
        process = context.Process(target=_child, args=args)
        process.start()
        process.join()
        return Ended(process.exitcode, out.read_text(), err.read_text())


def _child(
    folder: Path,
    what: str | Path | None,
    words: Sequence[str],
    environment: Mapping[str, str],
    strict: bool,
    out: Path,
    err: Path,
) -> None:
    for standard, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), standard)
    os.chdir(folder)
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [*words]
    if strict:
        warnings.simplefilter("error")
    match what:
        case None:
            from dovetail.cli.main import main

            main()
        case Path():
            sys.path.insert(0, str(what.parent))
            runpy.run_path(str(what), run_name="__main__")
        case str():
            exec(compile(what, "<code>", "exec"), {"__name__": "__main__"})
