"""APFed steps through an HTTP proxy and through a TCP balancer, against the same steps direct.

    python -m benchmarks.middlemen            needs tinyproxy and haproxy, Debian's packages

The steps and parties are those of ``benchmarks.apfed_stream``. All is on this machine: what is
measured is what the program in between costs, not its distance. The ways take turns, a few steps
each, and every way has a driver's port and a party's process of its own. The weights that the steps
lead to are compared, too: they are the same bits, or this ends with an error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks import _results
from benchmarks._line import issue, listening, running
from benchmarks.apfed_stream import CASES, DRIVER, PARTY, Turns, run_party
from dovetail.network.client import Way
from dovetail.network.stream import Stream

TINYPROXY = 'Port {port}\nListen 127.0.0.1\nTimeout 600\nAllow 127.0.0.1\nLogFile "{log}"\n'

HAPROXY = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen dovetail
    bind 127.0.0.1:{port}
    server bank 127.0.0.1:{to}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def start(stack: ExitStack, command: list[str], port: int | None = None) -> None:
    """A program, until the stack ends; waits until it listens."""
    stack.enter_context(running(command))
    for _ in range(200 if port else 0):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port or 0)):
            return
        time.sleep(0.05)


def between(stack: ExitStack, way: str, folder: Path, port: int) -> tuple[str, str]:
    """Where the party dials, and through which proxy."""
    if way == "direct":
        return f"127.0.0.1:{port}", ""
    program = {"proxy": "tinyproxy", "balancer": "haproxy"}[way]
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if path is None:
        raise SystemExit(f"{program} is not installed: apt-get install {program}")
    listening, config = free_port(), folder / f"{program}.conf"
    text = TINYPROXY if way == "proxy" else HAPROXY
    config.write_text(text.format(port=listening, to=port, log=folder / "tinyproxy.log"))
    flags = ["-d", "-c"] if way == "proxy" else ["-db", "-q", "-f"]
    start(stack, [path, *flags, str(config)], listening)
    if way == "proxy":
        return f"127.0.0.1:{port}", f"http://127.0.0.1:{listening}"
    return f"127.0.0.1:{listening}", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="turns of each [10]")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn [5]")
    parser.add_argument("--party", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.party:
        run_party(given.party[0], Path(given.party[2]), Way(proxy=given.party[1]))
        return
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        issue(folder, DRIVER, (PARTY,))
        streams: dict[str, Stream] = {}
        for way in ("direct", "proxy", "balancer"):
            streams[way] = stack.enter_context(listening(folder, DRIVER, (PARTY,), ledger=way))
            address, proxy = between(stack, way, folder, streams[way].port)
            command = [sys.executable, "-m", "benchmarks.middlemen", "--party"]
            start(stack, [*command, address, proxy, str(folder)])
        for stream in streams.values():
            stream.wait(60)
        for name, case in CASES.items():
            turns = {way: Turns(case, each.engine(name), ()) for way, each in streams.items()}
            for each in turns.values():
                each.take(3)  # the first ones allocate
                each.wall.clear()
            for _ in range(given.rounds):
                for each in turns.values():
                    each.take(given.steps)
            weights = [
                torch.cat([x.flatten() for x in each.active.encoder.parameters()])
                for each in turns.values()
            ]
            if not all(torch.equal(weights[0], each) for each in weights):
                raise SystemExit(f"{name}: the ways do not lead to the same weights")
            ms = {way: statistics.median(each.wall) * 1e3 for way, each in turns.items()}
            rows.append(
                {
                    "networks": case.networks,
                    "loss": case.loss,
                    "batch": case.batch_size,
                    **{f"{way} ms": each for way, each in ms.items()},
                    "proxy / direct": ms["proxy"] / ms["direct"],
                    "balancer / direct": ms["balancer"] / ms["direct"],
                    "same weights": "yes",
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    _results.write("middlemen", "APFed steps through a proxy and a balancer, and direct", rows)


if __name__ == "__main__":
    main()
