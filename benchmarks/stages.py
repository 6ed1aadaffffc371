"""Processor time of what happens to a small message at either end, stage by stage.

    python -m benchmarks.stages [--beside FOLDER]

The least mean of five: each stage alone, a few thousand times, on one thread, with other
messages of the same shape as a method sends them (only their number differs). "beside" is another
checkout's, measured in a process of its own in the same run. A hand-over is one message put into a
queue and taken out by another thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks import _results
from benchmarks.exchange import Echo, There
from dovetail.network import LedgerFile, encode
from dovetail.network.host import Host
from dovetail.network.messages import decode, open_message

SIZES = {"1 KB": (1, 256), "131 KB": (128, 256)}


def least_us(call: Callable[[], object], times: int = 1500) -> float:
    """Processor microseconds of this thread in one call, the least mean of five."""
    means = []
    for _ in range(5):
        before = time.thread_time()
        for _ in range(times // 5):
            call()
        means.append((time.thread_time() - before) / (times // 5) * 1e6)
    return min(means)


def hand_over_us(times: int = 5000) -> float:
    """Processor microseconds of all threads for one message from one to another."""
    there, back = SimpleQueue[int](), SimpleQueue[int]()

    def answer() -> None:
        while there.get():
            back.put(1)

    threading.Thread(target=answer, daemon=True).start()
    before = time.process_time()
    for _ in range(times):
        there.put(1)
        back.get()
    there.put(0)
    return (time.process_time() - before) / (2 * times) * 1e6


def measure() -> dict[str, dict[str, float]]:
    """Size -> stage -> microseconds."""
    torch.set_num_threads(1)
    results = {}
    for size, shape in SIZES.items():
        message = There(torch.randn(shape))
        number = iter(range(1, 10**9))

        def asked(message: There = message, number: Any = number) -> memoryview:
            return encode(message, run="bench", sequence=next(number), instance="0123456789abcdef")

        came = [bytes(asked()) for _ in range(1500)]
        each, opened = iter(came), iter([open_message(data) for data in came])
        digest = hashlib.sha256(came[0]).hexdigest()
        with tempfile.TemporaryDirectory() as folder:
            ledger = LedgerFile(Path(folder) / "a.jsonl", "shop")
            about: dict[str, Any] = {
                "run": "bench",
                "sequence": 5,
                "digest": digest,
                "connection": 1,
            }
            encoding = least_us(asked)
            timings = {
                "encode": encoding,
                "read the header": least_us(lambda: open_message(next(each))),  # noqa: B023
                "decode": least_us(lambda: decode(next(opened), (There,))),  # noqa: B023
                "SHA-256": least_us(lambda: hashlib.sha256(came[0]).hexdigest()),  # noqa: B023
                "line of what leaves": least_us(lambda: ledger.record("bank", message, **about)),  # noqa: B023
                "line of what came": least_us(lambda: ledger.came("bank", "a.B", 9, **about)),  # noqa: B023
            }
            with LedgerFile(Path(folder) / "b.jsonl", "shop") as ledger_file:
                for name, ledger_path in (("no ledger", None), ("ledger", ledger_file)):
                    host = Host("shop", lambda *_: Echo(), ledger=ledger_path)
                    taken = least_us(lambda: host.handle(asked(), "bank"))  # noqa: B023
                    timings[f"a party's whole answer, {name}"] = taken - encoding
            ledger.close()
        results[size] = timings
    results["1 KB"]["hand-over to a thread"] = hand_over_us()
    return results


def measured_in(folder: Path) -> dict[str, dict[str, float]]:
    """Timings of a checkout, in a separate process."""
    here = str(Path(__file__).parents[1])
    script = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import dovetail; "
        f"sys.path[0] = {here!r}; sys.argv = ['stages', '--measure']; "
        "from benchmarks.stages import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    results: dict[str, dict[str, float]] = json.loads(done.stdout)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="a folder with another version's dovetail/")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure()))
        return
    before = None if given.beside is None else measured_in(given.beside.absolute())
    now = measured_in(Path(__file__).parents[1])
    rows = [
        {
            "size": size,
            "stage": step,
            **({} if before is None else {"beside us": before[size][step]}),
            "us": taken,
        }
        for size, timings in now.items()
        for step, taken in timings.items()
    ]
    _results.write("stages", "What happens to a small message at either end", rows)


if __name__ == "__main__":
    main()
