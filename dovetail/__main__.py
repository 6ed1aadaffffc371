"""``dovetail`` and ``python -m dovetail``: the command, as a process of its own."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress


def process() -> None:
    """Runs ``main``, and ends once all threads and all that waits for the end are through.

    Nothing is freed object by object: of PyTorch's that takes as long as reading two tables.
    """
    code = 1  # of a traceback

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a reader that is gone; closed
                stream.flush()
        os._exit(code)

    atexit.register(end)  # before all others, so it is called after them
    try:
        from dovetail.cli.main import main

        main()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
        raise


if __name__ == "__main__":
    process()
