"""Waiting for a command that serves."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.error
import urllib.request


def until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return once this address answers; the process that serves there must not end before."""
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(url, timeout=5).read()
            return
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
