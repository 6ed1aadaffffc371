"""``dovetail serve`` as a process of its own."""

import contextlib
import re
import signal
import subprocess
import sys
import time

import forked

PATIENCE_S = 120.0


@contextlib.contextmanager
def serving(folder, log, *options, anew=False):
    """The command on a free port; its address and process id."""
    command = ["serve", f"m={folder}", "--port", "0", *map(str, options)]
    if anew:  # as a user's is, which reads all libraries
        with log.open("w") as log_lines:
            process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.cli.main", *command], stderr=log_lines
            )
    else:
        process = forked.begin(log.parent, None, *command, stdout=log.with_name("said"), stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (started := re.search(r"https?://[\d.]+:\d+", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield started[0], process.pid
        if anew:  # Ctrl-C ends it, with no word of leaks, nor of a run that goes on
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE_S) == 0
            log_lines = [
                line for line in log.read_text().splitlines() if "not answered" not in line
            ]
            assert log_lines[1:] == ["dovetail: stopped"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
