"""A ledger of a million lines: processor time a line, files, and memory to write and to verify.

    python -m benchmarks.long_ledger

A party writes lines of a message with one tensor, opens its ledger anew every 100,000 (a site that
is restarted, which is when a file above 64 MiB is put aside), and then verifies all of its files,
and the last one alone. Writing and verifying are processes of their own; memory is what they have
at most beyond what they have before the first line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _results

LINES = (10_000, 100_000, 1_000_000)
PLANNED = 10_000_000
OPENED_EVERY = 100_000

#: Runs in a process of its own; prints its figures.
BOTH = """
import json, re, sys, time
import torch
from dovetail.network.ledger import LedgerFile, files_of, verify
from dovetail.methods.apfed import Codes
path, num = sys.argv[1], int(sys.argv[2])

def memory(what):
    return int(re.search(what + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

before, used = memory("VmRSS"), time.process_time()
"""

WRITE = """
message = Codes(torch.arange(64), torch.zeros(64, 32))
left, opened = num, 0
while left > 0:
    with LedgerFile(path, "bank") as ledger:
        opened += 1
        for number in range(min(left, EVERY) - 1):  # one line says that it was opened
            ledger.record("shop", message, run="r", sequence=number)
    left -= EVERY
print(json.dumps({"s": time.process_time() - used, "bytes": memory("VmHWM") - before}))
"""

VERIFY = """
from pathlib import Path
found = verify(path, whole=sys.argv[3] == "all", keep=False)
told = {"s": time.process_time() - used, "bytes": memory("VmHWM") - before}
print(json.dumps({**told, "lines": found.num_lines, "files": len(files_of(Path(path)))}))
"""


def run(script: str, *arguments: object) -> dict[str, Any]:
    """What a process of its own tells."""
    command = [sys.executable, "-c", BOTH + script, *map(str, arguments)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def measured(num: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "ledger.jsonl"
        write = run(WRITE.replace("EVERY", str(OPENED_EVERY)), path, num)
        whole, last = run(VERIFY, path, num, "all"), run(VERIFY, path, num, "last")
        assert whole["lines"] == num, whole
        return {
            "lines": num,
            "what": "measured",
            "files": whole["files"],
            "disk MB": sum(each.stat().st_size for each in Path(name).iterdir()) / 1e6,
            "write s": write["s"],
            "write MiB": write["bytes"] / 2**20,
            "verify s": whole["s"],
            "verify MiB": whole["bytes"] / 2**20,
            "verify the last file s": last["s"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=LINES)
    rows = [measured(num) for num in parser.parse_args().lines]
    last = rows[-1]
    factor = PLANNED / last["lines"]
    grows = ("files", "disk MB", "write s", "verify s")
    planned = {key: last[key] * factor for key in grows}
    rows.append({**last, **planned, "lines": PLANNED, "what": "planned"})
    _results.write("long_ledger", "A long ledger: processor time, disk and memory", rows)


if __name__ == "__main__":
    main()
