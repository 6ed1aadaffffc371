"""Aligning by ids as they become many: processor time, memory, and bytes sent.

    python -m benchmarks.many_ids
    python -m benchmarks.many_ids --curve none --ids 1000000 3000000 10000000

Two parties with equally many ids, half of them in common, both in one process, through the bytes of
their messages, which are counted. Ids are texts that lie in a file, as those of a party's table do.
Memory is what the process has at most beyond what it has before there is any id: of both parties,
up to 96 MiB of files that are let go of among it. What was measured before is kept beside it; what
is planned follows from the last two that were measured.

With ``--curve none`` an exclusive or stands for each multiplication on the curve. It is as
commutative, so all else is the same: memory, messages, orders, comparing, proofs. That tells memory
of more ids than the curve has time for, and what everything but the curve takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks import _results

IDS = (100_000, 1_000_000, 3_000_000)
PLANNED = 1_000_000_000

OURS = """
import json, re, sys, time
import numpy as np, torch
from dovetail.alignment import Responder, align
from dovetail.data import stored
from dovetail.network import InProcess, encode
torch.set_num_threads(1)
num = int(sys.argv[1])

if sys.argv[2] == "none":
    from dovetail.alignment import Workers

    def xor(self, secret, points_N32):
        masked = np.array(np.frombuffer(secret, np.uint8) if isinstance(secret, bytes) else secret)
        masked[..., -1] = 0  # what comes out is reduced modulo 2^255 - 19
        return points_N32 ^ masked

    Workers.multiply = Workers.multiply_each = xor

def memory(what):
    return int(re.search(what + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def ids(start, num):
    made = stored.zeros((num,), "U18")
    for at in range(0, num, 1 << 16):
        stop = min(num, at + (1 << 16))
        made[at:stop] = [f"customer-{number:09d}" for number in range(start + at, start + stop)]
        stored.let_go()
    return made

class Counting(InProcess):
    sent = 0
    def _call(self, name, request, reply):
        answer = super()._call(name, request, reply)
        self.sent += len(encode(request)) + len(encode(answer))
        return answer

shop = Responder("shop", ids(0, 10))  # libraries are read before it counts
align(InProcess({"shop": shop}, driver="bank", through_bytes=True), ids(5, 10))
before = memory("VmRSS")
own, theirs = ids(0, num), ids(num // 2, num)
used, started = time.process_time(), time.perf_counter()
shop = Responder("shop", theirs)
engine = Counting({"shop": shop}, driver="bank", through_bytes=True)
aligned = align(engine, own)
used, seconds = time.process_time() - used, time.perf_counter() - started
assert aligned.overlap["shop"] == num - num // 2, aligned.overlap
samples = aligned.alignment.shared("bank", "shop")[:1000]
assert (own[aligned.alignment.rows["bank"][samples]] == theirs[shop.rows_S[samples]]).all()
peak = memory("VmHWM") - before
print(json.dumps({"s": used, "wall": seconds, "peak": peak, "before": before, "sent": engine.sent}))
"""


def measured(num: int, curve: str) -> dict[str, Any]:
    command = [sys.executable, "-c", OURS, str(num), curve]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    reply = json.loads(done.stdout)
    return {
        "curve": curve,
        "ids of each": num,
        "what": "measured",
        "processor s, both": reply["s"],
        "wall s": reply["wall"],
        "us an id": reply["s"] / num / 2 * 1e6,
        "MiB before": reply["before"] / 2**20,
        "MiB more, both": reply["peak"] / 2**20,
        "bytes an id": reply["peak"] / num / 2,
        "MB sent": reply["sent"] / 1e6,
    }


def planned(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """By the line through the last two."""
    steps = (PLANNED - two["ids of each"]) / (two["ids of each"] - one["ids of each"])
    keys = ("processor s, both", "MiB more, both", "MB sent")
    grown = {key: two[key] + steps * (two[key] - one[key]) for key in keys}
    grown |= {
        "us an id": grown["processor s, both"] / PLANNED / 2 * 1e6,
        "bytes an id": grown["MiB more, both"] * 2**20 / PLANNED / 2,
        "wall s": None,
    }
    if two["ids of each"] <= 1_000_000:  # below, it does grow: little lies in files
        grown |= {"MiB more, both": None, "bytes an id": None}
    return {**two, **grown, "ids of each": PLANNED, "what": "planned"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ids", type=int, nargs="+", default=IDS)
    parser.add_argument("--curve", choices=("X25519", "none"), default="X25519")
    asked = parser.parse_args()
    for num in asked.ids:
        write(measured(num, asked.curve))


def write(row: dict[str, Any]) -> None:
    """Put what was measured last among what was measured before."""
    before = [each for each in _results.before("many_ids") if each["what"] == "measured"]
    by_ids = {(each["curve"], each["ids of each"]): each for each in [*before, row]}
    rows = []
    for curve in ("X25519", "none"):
        rows += [each for (of, _), each in sorted(by_ids.items()) if of == curve]
        if len(rows) > 1 and rows[-2]["curve"] == curve:
            rows.append(planned(*rows[-2:]))
    _results.write("many_ids", "Aligning by ids as they become many", rows)


if __name__ == "__main__":
    main()
