"""Aligning by ids as they become many: processor time, and memory, an id.

    python -m benchmarks.many_ids

Two parties with equally many ids, half of them in common, both in one process, through the bytes of
their messages. Memory is what the process has at most beyond what it has before there is any id,
over the ids of both; ids are the strings of a table, and counted. What is planned follows from the
last two measured: time and memory are lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks import _results

IDS = (10_000, 100_000, 1_000_000)
PLANNED = 10_000_000
AT_MOST = 200  # bytes an id

OURS = """
import json, re, sys, time
import numpy as np, torch
from dovetail.alignment import Responder, align
from dovetail.network import InProcess
torch.set_num_threads(1)
num = int(sys.argv[1])

def memory(what):
    return int(re.search(what + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def ids(start, num):
    numbers = range(start, start + num)
    return np.array([f"customer-{number:09d}" for number in numbers], dtype=object)

shop = Responder("shop", ids(0, 10))  # libraries are read before it counts
align(InProcess({"shop": shop}, driver="bank", through_bytes=True), ids(5, 10))
before = memory("VmRSS")
own, theirs = ids(0, num), ids(num // 2, num)
tables = memory("VmRSS") - before
used = time.process_time()
shop = Responder("shop", theirs)
engine = InProcess({"shop": shop}, driver="bank", through_bytes=True)
shared = align(engine, own).overlap["shop"]
used = time.process_time() - used
assert shared == num - num // 2, shared
peak = memory("VmHWM") - before
print(json.dumps({"s": used, "peak": peak, "tables": tables, "before": before}))
"""


def measured(num: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", OURS, str(num)], check=True, capture_output=True)
    reply = json.loads(done.stdout)
    return {
        "ids of each": num,
        "what": "measured",
        "processor s, both": reply["s"],
        "us an id": reply["s"] / num / 2 * 1e6,
        "MiB before": reply["before"] / 2**20,
        "MiB more, both": reply["peak"] / 2**20,
        "bytes an id": reply["peak"] / num / 2,
        "of these its table's": reply["tables"] / num / 2,
        "at most": AT_MOST,
        "MB sent": num * (48 + 32 + 12) / 1e6,  # and 24 for each of the half that is shared
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ids", type=int, nargs="+", default=IDS)
    rows = [measured(num) for num in parser.parse_args().ids]
    if len(rows) > 1:
        one, two = rows[-2], rows[-1]
        steps = (PLANNED - two["ids of each"]) / (two["ids of each"] - one["ids of each"])
        planned = {
            key: two[key] + steps * (two[key] - one[key])
            for key in ("processor s, both", "MiB more, both", "MB sent")
        }
        planned |= {
            "us an id": planned["processor s, both"] / PLANNED / 2 * 1e6,
            "bytes an id": planned["MiB more, both"] * 2**20 / PLANNED / 2,
        }
        rows.append({**two, **planned, "ids of each": PLANNED, "what": "planned"})
    _results.write("many_ids", "Aligning by ids as they become many", rows)


if __name__ == "__main__":
    main()
