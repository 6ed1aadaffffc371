"""Ctrl-C ends a command, also one that hangs while it ends; each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

#: Says when it works, and after Ctrl-C what the second argument says. It waits in short parts, as
#: a signal that comes just before a wait is seen after it.
COMMAND = """
import sys, threading, time
from dovetail.cli import interrupts
interrupts.LIMIT_S = float(sys.argv[1])
with interrupts.ends_by_ctrl_c():
    try:
        print("working", flush=True)
        while True:
            time.sleep(0.1)
    finally:
        print("ending", flush=True)
        if sys.argv[2] == "hangs":
            while True:
                threading.Event().wait(0.1)
"""


@pytest.mark.parametrize(
    ("limit_s", "ending", "signals", "code", "words"),
    [
        (60.0, "ends", 1, -signal.SIGINT, "KeyboardInterrupt"),
        (0.5, "hangs", 1, 1, "Timeout"),
        (60.0, "hangs", 2, 130, ""),
    ],
)
def test_ctrl_c_ends_what_hangs(
    limit_s: float, ending: str, signals: int, code: int, words: str
) -> None:
    command = [sys.executable, "-c", COMMAND, str(limit_s), ending]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        for line in ("working\n", "ending\n")[:signals]:
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert words in err
    assert time.monotonic() - began < 30
