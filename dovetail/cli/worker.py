"""A ``dovetail`` command as a child of another one: it stops, keeping what it has, when that one
closes its standard input or ends in whatever way.

    python -m dovetail.cli.worker train RUN --out DIR --resume
"""

from __future__ import annotations

import _thread
import os
import signal
import threading

from dovetail.cli.main import main


def _watch() -> None:
    # Not sys.stdin.read(): that would hold a lock which the interpreter wants when it ends.
    while os.read(0, 1):
        pass
    _thread.interrupt_main()


if __name__ == "__main__":
    # Begun in the background of a shell, it would inherit that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, daemon=True).start()
    main()
