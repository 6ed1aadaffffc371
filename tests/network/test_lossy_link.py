"""The link that the other tests train across: it must itself be as slow and lossy as it says."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import lossy_link
import pytest
from lossy_link import ADDRESS, LossyLink

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(bool(why := lossy_link.available()), reason=str(why)),
]
PORT = 5000


def across(link: LossyLink, far: str, near: str) -> list[float]:
    """What ``near`` printed on side a, while ``far`` listens on side b."""
    start = [sys.executable, __file__]
    with subprocess.Popen(link.command("b", [*start, far]), stdout=subprocess.PIPE) as listens:
        try:
            assert listens.stdout is not None
            assert listens.stdout.readline() == b"listens\n"
            argv = link.command("a", [*start, near])
            done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
            return [float(number) for number in done.stdout.split()]
        finally:
            listens.kill()


def test_a_round_trip_takes_twice_the_delay() -> None:
    with LossyLink(30, 0, 0) as link:
        least_ms = 1e3 * min(across(link, "echo", "round_trips"))
    assert 60 <= least_ms < 80  # the median waits for a processor, too


def test_the_stated_share_of_packets_is_lost() -> None:
    num = 4000
    with LossyLink(5, 0.05, 0) as link:
        (came,) = across(link, "count_datagrams", "send_datagrams")
        passed, dropped = link.counts()
    # Four standard deviations of a binomial are 0.014.
    assert came / num == pytest.approx(0.95, abs=0.014)
    assert num <= passed + dropped <= num + 10  # and some that were asked how many had come
    assert dropped / (passed + dropped) == pytest.approx(0.05, abs=0.014)


def test_data_arrive_whole_though_packets_are_lost() -> None:
    with LossyLink(2, 0.01, 0, mtu=9000) as link:
        (same,) = across(link, "hash_all", "send_all")
        passed, dropped = link.counts()
    assert same
    assert dropped > 0.005 * passed


def test_nothing_passes_a_cut_link_and_all_passes_a_mended_one() -> None:
    with LossyLink(0, 0, 0) as link:
        link.cut()
        with pytest.raises(subprocess.CalledProcessError, match="returned non-zero"):
            across(link, "echo", "connect")
        passed, dropped = link.counts()
        assert (passed, dropped > 0) == (0, True)
        link.mend()
        (seconds,) = across(link, "echo", "connect")
    assert seconds < 1


def test_namespaces_go_when_the_link_is_left() -> None:
    link = LossyLink(0, 0, 0)
    paths = [Path("/run/netns", name) for name in link.spaces.values()]

    def fail() -> None:
        with link:
            assert all(path.exists() for path in paths)
            raise KeyError("what a test might raise")

    with pytest.raises(KeyError):
        fail()
    assert not any(path.exists() for path in paths)


# --- What runs in a namespace --------------------------------------------------------------------


def _listen() -> socket.socket:
    server = socket.create_server((ADDRESS["b"], PORT))
    print("listens", flush=True)
    return server.accept()[0]


def _connect() -> socket.socket:
    line = socket.create_connection((ADDRESS["b"], PORT), timeout=3)
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def connect() -> None:
    started = time.perf_counter()
    _connect()
    print(time.perf_counter() - started)


def echo() -> None:
    line = _listen()
    while data := line.recv(1):
        line.sendall(data)


def round_trips() -> None:
    line = _connect()
    for _ in range(15):
        started = time.perf_counter()
        line.sendall(b"?")
        line.recv(1)
        print(time.perf_counter() - started)


def count_datagrams() -> None:
    """Counts what comes until asked; answers each time it is asked."""
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    line.bind((ADDRESS["b"], PORT))
    print("listens", flush=True)
    num = 0
    while True:
        data, peer = line.recvfrom(100)
        if data == b"how many?":
            line.sendto(str(num).encode(), peer)
        else:
            num += 1


def send_datagrams() -> None:
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.connect((ADDRESS["b"], PORT))
    for number in range(4000):
        line.send(b"one")
        if number % 100 == 99:
            time.sleep(0.005)  # no queue is ever full
    time.sleep(0.2)
    line.settimeout(0.2)
    for _ in range(5):  # question or answer may be lost
        line.send(b"how many?")
        try:
            return print(line.recv(100).decode())
        except TimeoutError:
            pass


def hash_all() -> None:
    line, digest = _listen(), hashlib.sha256()
    while data := line.recv(1 << 20):
        digest.update(data)
    line.sendall(digest.digest())


def send_all() -> None:
    data = random.Random(0).randbytes(20_000_000)
    line = _connect()
    line.sendall(data)
    line.shutdown(socket.SHUT_WR)
    print(int(line.recv(32) == hashlib.sha256(data).digest()))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
