"""Round trips through ``Stream`` against a bare gRPC echo of the same bytes, in the same run.

    python -m benchmarks.exchange

Parties are processes on this machine, with mutual TLS over loopback. Both engines stand as they
would in use: the driver listens, each party dials out and keeps one stream open, under the same
options of gRPC. The bare one sends the encoded message as one gRPC message and gets the same bytes
back; ``Stream`` encodes, writes a line of its ledger, cuts into frames, checks, decodes, answers
with a tensor of the same size, writes that down, and decodes the answer. A second ``Stream`` keeps
no ledger files, and "coded" is the bare one with the message made and read at both ends, but not
written down, numbered, admitted or kept to be repeated: what is left of a ratio when no more than
safetensors and their checks are added to gRPC. All take turns, so that a noisy machine slows them
alike; ratios are of medians.
Processor time is that of driver and parties together, over trips in blocks of 20 that take turns:
beside a ratio of a busy machine it says what a trip costs. It is told part by part, too
(``results/exchange_parts.md``): the bare trip; messages made and read, which is what "coded" takes
more; sessions, numbers and queues, which ``Stream`` without ledgers takes more than that; four
hashes and four lines of ledgers, each timed by itself; the rest. "At most" is 1.3 times ``Stream``
without ledgers, the hashes and the lines: no message can cost less than these while ledgers say
what was in it, and they are timed alone, with all caches theirs. A message of 1 KB is made and read
in 15 us where that is all a processor does; after gRPC and another process, whose code and data
fill its caches, it takes ten times as long.

Bytes on the wire are those of the driver's sockets (TCP_INFO), TLS and heartbeats included,
against the bytes of tensors that went both ways.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import torch
from torch import Tensor

from benchmarks import _results
from benchmarks._line import issue, listening, running
from dovetail.network import LedgerFile, Message, encode
from dovetail.network.client import serve
from dovetail.network.credentials import Credentials
from dovetail.network.frames import options
from dovetail.network.host import Host
from dovetail.network.messages import decode, open_message
from dovetail.network.stream import Stream

#: Of the parts together, at the most.
REST = 1.3
TARGET_BYTES = 1.02
DRIVER = "bank"
PARTIES = ("shop", "clinic")
SIZES = {"1 KB": (1, 256), "131 KB": (128, 256), "4 MB": (1024, 1024)}
METHOD = "/bare/Echo"

#: Of 20 trips each, of which processor time is taken; of 4 MB fewer.
_BLOCKS, _FEWER = 60, 15
BARE_OPTIONS = [
    *(each for each in options(silence_s=6.0) if not each[0].endswith("_message_length")),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


class There(Message):
    """Driver -> party: send it back."""

    x: Tensor


class Back(Message):
    """Party -> driver: what came."""

    x: Tensor


class Echo:
    """Sends tensors back."""

    accepts = (There,)

    def handle(self, message: Message) -> Message:
        assert isinstance(message, There)
        return Back(message.x)


# --- Parties -------------------------------------------------------------------------------------


def run_party(kind: str, name: str, port: int, folder: Path) -> None:
    """Answers until it is ended."""
    shown = Credentials.load(folder, name)
    if kind not in ("bare", "coded"):
        # Imported under the name that the driver knows its messages by.
        from benchmarks.exchange import Echo as ByName

        ledger = LedgerFile(folder / f"{name}.jsonl", name) if kind == "stream" else None
        host = Host(name, lambda *_: ByName(), ledger=ledger)
        serve(host, f"127.0.0.1:{port}", shown, driver=DRIVER, stop=threading.Event())
        return
    shows = grpc.ssl_channel_credentials(shown.ca, shown.key, shown.certificate)
    channel = grpc.secure_channel(f"127.0.0.1:{port}", shows, BARE_OPTIONS)
    outbox: SimpleQueue[bytes | None] = SimpleQueue()
    outbox.put(name.encode())
    try:
        for data in channel.stream_stream(METHOD)(iter(outbox.get, None)):
            outbox.put(data if kind == "bare" else coded(data))
    except grpc.RpcError:
        pass  # the driver has finished


def coded(data: bytes) -> bytes:
    """The answer to a request, made as a host makes it."""
    # Under the name that the driver knows its messages by.
    from benchmarks.exchange import Back, There

    opened = open_message(data)
    message = decode(opened, (There,))
    assert isinstance(message, There)
    header = opened.header
    return bytes(encode(Back(message.x), run=header.run, sequence=header.sequence))


class Bare:
    """The driver's end of the bare echo."""

    def __init__(self, credentials: Credentials) -> None:
        self.lines: dict[str, tuple[SimpleQueue[bytes | None], SimpleQueue[bytes]]] = {}
        self.server = grpc.server(futures.ThreadPoolExecutor(4), options=BARE_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self.exchange)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("bare", {"Echo": handler}),)
        )
        shows = grpc.ssl_server_credentials(
            [(credentials.key, credentials.certificate)], credentials.ca, require_client_auth=True
        )
        self.port = self.server.add_secure_port("127.0.0.1:0", shows)
        self.server.start()

    def exchange(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        outbox: SimpleQueue[bytes | None] = SimpleQueue()
        inbox: SimpleQueue[bytes] = SimpleQueue()
        self.lines[next(incoming).decode()] = outbox, inbox

        def receive() -> None:
            try:
                for data in incoming:
                    inbox.put(data)
            except grpc.RpcError:
                outbox.put(None)

        threading.Thread(target=receive, daemon=True).start()
        yield from iter(outbox.get, None)

    def ask(self, parties: tuple[str, ...], data: bytes) -> list[bytes]:
        for party in parties:
            self.lines[party][0].put(data)
        return [self.lines[party][1].get(timeout=60) for party in parties]

    def close(self) -> None:
        for outbox, _ in self.lines.values():
            outbox.put(None)
        self.server.stop(grace=1).wait()


# --- Measuring -----------------------------------------------------------------------------------


def take_turns(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, for so many seconds in all."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    number = 0
    while time.perf_counter() - started < seconds or number < 20:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if number >= 5:  # the first ones open windows
                taken[name].append((time.perf_counter() - began) * 1e3)
        number += 1
    return taken


def socket_bytes(port: int) -> int:
    """Bytes that all connections to this port of this process have carried, both ways."""
    total = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(entry))
        except OSError:
            continue  # that of the listing
        try:
            socket_copy = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # no socket
            continue
        with socket_copy:
            if socket_copy.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if socket_copy.getsockname()[1] != port:
                continue
            info = socket_copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        acked, received = struct.unpack_from("QQ", info, 120)  # struct tcp_info, linux/tcp.h
        total += acked + received
    return total


def ledgers_us(message: There, folder: Path) -> dict[str, float]:
    """Processor time that ledgers take of a trip with one party, part by part."""
    data = bytes(encode(message))
    digest, size = sha256(data).hexdigest(), len(data)
    with LedgerFile(folder / f"parts-{size}.jsonl", DRIVER) as ledger:

        def lines() -> None:
            ledger.record(PARTIES[0], message, run="bench", sequence=1, digest=digest)
            ledger.came(PARTIES[0], There.wire_name(), size, run="bench", sequence=1, digest=digest)

        def taken(call: Callable[[], object], number: int) -> float:
            each = timeit.repeat(call, number=number, repeat=9, timer=time.process_time)
            return min(each) / number * 1e6

        hashes = taken(lambda: sha256(data).hexdigest(), 20)
        return {"4 hashes": 4 * hashes, "4 lines": 2 * taken(lines, 300)}


def processor_us(
    calls: dict[str, Callable[[], object]], processes: Sequence[int], blocks: int
) -> dict[str, float]:
    """Processor time of a trip of each, here and in these processes, in microseconds."""

    def spent() -> float:
        ticks = 0
        for number in processes:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

    taken = dict.fromkeys(calls, 0.0)
    for _ in range(blocks):
        for name, call in calls.items():
            before = spent()
            for _ in range(20):
                call()
            taken[name] += spent() - before
    return {name: each / (20 * blocks) * 1e6 for name, each in taken.items()}


def ask_coded(bare: Bare, parties: tuple[str, ...], message: There, number: int) -> list[Message]:
    data = encode(message, run="bench", sequence=number, instance="0123456789abcdef")
    return [decode(open_message(each), (Back,)) for each in bare.ask(parties, bytes(data))]


def measure(
    stream: Stream,
    unwritten: Stream,
    bare: Bare,
    coding: Bare,
    processes: Sequence[int],
    folder: Path,
    seconds: float,
    sizes: Sequence[str],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Trips, and the parts of those with one party."""
    rows, parts = [], []
    number = itertools.count(1)
    for num_parties in (1, 2):
        parties = PARTIES[:num_parties]
        engine = stream.engine("bench", parties=parties)
        other = unwritten.engine("bench", parties=parties)
        for size, shape in ((each, SIZES[each]) for each in sizes):
            message = There(torch.randn(shape))
            data = bytes(encode(message))
            requests = dict.fromkeys(parties, message)
            calls: dict[str, Callable[[], object]] = {
                "stream": lambda: engine.ask(requests, Back).or_raise(),  # noqa: B023
                "no ledger": lambda: other.ask(requests, Back).or_raise(),  # noqa: B023
                "coded": lambda: ask_coded(coding, parties, message, next(number)),  # noqa: B023
                "bare": lambda: bare.ask(parties, data),  # noqa: B023
            }
            taken = take_turns(calls, seconds)
            cpu = processor_us(calls, processes, _FEWER if size == "4 MB" else _BLOCKS)
            medians = {name: statistics.median(each) for name, each in taken.items()}
            of_ledgers = ledgers_us(message, folder)
            known = cpu["no ledger"] + num_parties * sum(of_ledgers.values())
            before = socket_bytes(stream.port)
            for _ in range(20):
                engine.ask(requests, Back).or_raise()
            on_wire = socket_bytes(stream.port) - before
            rows.append(
                {
                    "parties": num_parties,
                    "size": size,
                    "stream ms": medians["stream"],
                    "stream p95": statistics.quantiles(taken["stream"], n=20)[-1],
                    "bare ms": medians["bare"],
                    "bare p95": statistics.quantiles(taken["bare"], n=20)[-1],
                    "ratio": medians["stream"] / medians["bare"],
                    "ratio, no ledger": medians["no ledger"] / medians["bare"],
                    "ratio, coded": medians["coded"] / medians["bare"],
                    "cpu us": cpu["stream"],
                    "bare cpu us": cpu["bare"],
                    "cpu ratio": cpu["stream"] / cpu["bare"],
                    "at most": REST * known / cpu["bare"],
                    "cpu ratio, no ledger": cpu["no ledger"] / cpu["bare"],
                    "cpu ratio, coded": cpu["coded"] / cpu["bare"],
                    "bytes ratio": on_wire / (20 * 2 * num_parties * message.x.nbytes),
                    "bytes at most": TARGET_BYTES if size == "131 KB" else "",
                }
            )
            if num_parties == 1:
                told = {
                    "bare": cpu["bare"],
                    "made and read": cpu["coded"] - cpu["bare"],
                    "sessions": cpu["no ledger"] - cpu["coded"],
                    **of_ledgers,
                    "rest": cpu["stream"] - known,
                    "whole, us": cpu["stream"],
                }
                parts.append({"size": size, **{name: round(value) for name, value in told.items()}})
    return rows, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each row [4]")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--party", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.party:
        kind, name, port, folder = given.party
        run_party(kind, name, int(port), Path(folder))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        issue(folder, DRIVER, PARTIES)
        credentials = Credentials.load(folder, DRIVER)
        bare, coding = Bare(credentials), Bare(credentials)
        with (
            listening(folder, DRIVER, PARTIES) as stream,
            listening(folder, DRIVER, PARTIES, ledger=None) as unwritten,
        ):
            command = [sys.executable, "-m", "benchmarks.exchange", "--party"]
            ports = {"stream": stream.port, "unwritten": unwritten.port}
            ports |= {"bare": bare.port, "coded": coding.port}
            commands = [
                [*command, kind, name, str(port), temporary]
                for kind, port in ports.items()
                for name in PARTIES
            ]
            with running(*commands) as started, closing(bare), closing(coding):
                stream.wait(180)
                unwritten.wait(180)
                while min(len(bare.lines), len(coding.lines)) < len(PARTIES):
                    time.sleep(0.1)
                # Under the name that parties know its messages by.
                from benchmarks.exchange import measure as by_name

                numbers = [process.pid for process in started]
                rows, parts = by_name(
                    stream, unwritten, bare, coding, numbers, folder, given.seconds, given.sizes
                )
    _results.write("exchange_parts", "Processor time of a round trip, part by part", parts)
    _results.write("exchange", "Round trips through Stream against a bare gRPC echo", rows)


if __name__ == "__main__":
    main()
