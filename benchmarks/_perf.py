"""Instructions that a process executes: what it costs, however crowded the machine is.

Processor seconds grow with what others leave of the caches; these do not. Counted by Linux's perf,
where there is one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def counting(told: Path) -> list[str]:
    """Words before a command, or before "-p PID": counts into this file; none without perf."""
    perf = shutil.which("perf")
    return [] if perf is None else [perf, "stat", "-x,", "-e", "instructions:u", "-o", str(told)]


def millions(told: Path) -> float | None:
    """What has been counted, once the process is gone."""
    if not told.is_file():
        return None
    found = re.search(r"^(\d+),", told.read_text(), re.MULTILINE)
    return None if found is None else int(found[1]) / 1e6
