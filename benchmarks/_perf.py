"""Instructions that a process executes: what it costs, however crowded the machine is.

Processor seconds grow with what others leave of the caches; these do not. Counted by Linux's perf,
where there is one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def counting(counts: Path) -> list[str]:
    """Words before a command, or before "-p PID": counts into this file; none without perf."""
    perf = shutil.which("perf")
    return [] if perf is None else [perf, "stat", "-x,", "-e", "instructions:u", "-o", str(counts)]


def millions(counts: Path) -> float | None:
    """What has been counted, once the process is gone."""
    if not counts.is_file():
        return None
    matched = re.search(r"^(\d+),", counts.read_text(), re.MULTILINE)
    return None if matched is None else int(matched[1]) / 1e6
