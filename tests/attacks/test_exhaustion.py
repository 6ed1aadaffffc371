"""Whoever can reach a port, or drives, tries to use a machine up: descriptors, memory, disk."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from attackers import Town, town
from federations import PATIENCE_S, Process

from dovetail.alignment import psi
from dovetail.errors import PartyError
from dovetail.methods import apfed
from dovetail.network.checkpoint import Save, Saved
from dovetail.network.stream import MAX_STRANGERS, Stream

pytestmark = pytest.mark.network


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path).ending() as made:
        assert isinstance(made, Town)
        yield made


def idle_connections(stack: ExitStack, port: int, number: int) -> list[socket.socket]:
    """So many connections that never say a word."""
    return [
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        for _ in range(number)
    ]


def still_open(connections: list[socket.socket]) -> int:
    num = 0
    for each in connections:
        each.setblocking(False)
        try:
            num += bool(each.recv(1))
        except BlockingIOError:
            num += 1
        except OSError:
            pass
    return num


def descriptors(process: Process) -> int:
    return int(psutil.Process(process.process.pid).num_fds())


def test_1500_idle_connections_do_not_end_a_driver_with_1024_descriptors(federation: Town) -> None:
    federation.write(epochs=150)
    shop = federation.join("shop")
    driver = federation.start_poor(1024, "train", "run.toml", "--out", "out")
    federation.wait_for_lines("out", 2, driver)
    with ExitStack() as stack:
        held = idle_connections(stack, federation.port, 1500)
        now = len(federation.lines("out"))
        deadline = time.monotonic() + PATIENCE_S
        most = 0
        while len(federation.lines("out")) < now + 40:  # each opens files: a checkpoint a time
            assert time.monotonic() < deadline, driver.printed()
            assert driver.running(), driver.printed()
            most = max(most, descriptors(driver))
            time.sleep(0.05)
        assert most < 300
        assert still_open(held) <= MAX_STRANGERS + 4
        assert driver.ended() == 0, driver.printed()
    assert federation.result("out")["missed"] == {}
    assert "Too many open files" not in driver.printed()
    assert shop.running()


def test_who_hangs_up_on_silent_strangers_lets_a_lost_partner_back_in(federation: Town) -> None:
    federation.write()
    with (
        Stream(
            f"127.0.0.1:{federation.port}",
            driver="bank",
            credentials=federation.credentials("bank"),
            parties=["shop"],
        ) as stream,
        ExitStack() as stack,
    ):
        held = idle_connections(stack, federation.port, 1500)
        federation.join(
            "shop"
        )  # finds the cap full, and dials again until strangers are hung up on
        stream.wait(PATIENCE_S)
        assert still_open(held) == 0 or stream.connected == ("shop",)


def aligned(stream: Stream, federation: Town) -> None:
    ids = [f"P-{number:04d}" for number in range(200)]
    psi.align(stream.engine("a1"), ids)


#: A code so wide that the shop's decoder, 16 wide in the middle, has 64 MB of weights.
WIDE = apfed.Begin((1_000_000,), 0, 0)


def refusals(federation: Town) -> list[str]:
    path = federation.folder / "shop.site" / "refusals.jsonl"
    return [json.loads(line)["why"] for line in path.read_text().splitlines()]


def test_a_driver_that_begins_wide_runs_gets_no_more_memory_and_disk_than_agreed(
    federation: Town,
) -> None:
    federation.write(policy="max_memory_mb = 300\nmax_disk_mb = 150\nmax_begins = 2")
    with Stream(
        f"127.0.0.1:{federation.port}",
        driver="bank",
        credentials=federation.credentials("bank"),
        parties=["shop"],
    ) as stream:
        shop = federation.join("shop")
        stream.wait(PATIENCE_S)
        aligned(stream, federation)
        process = psutil.Process(shop.process.pid)
        before = process.memory_info().rss

        # One that is too large alone: refused before anything is allocated.
        huge = {"shop": apfed.Begin((4_000_000,), 0, 0)}
        asked = stream.engine("a1/apfed/huge").ask(huge, apfed.Ready)
        with pytest.raises(PartyError, match=r"300 MB of memory .* policy\.max_memory_mb larger"):
            asked.or_raise()
        assert process.memory_info().rss - before < 50 * 2**20
        assert any("policy.max_memory_mb" in why for why in refusals(federation))

        # And eight that are not, one after the other, each saved twice.
        for number in range(8):
            engine = stream.engine(f"a1/apfed/run-{number}")
            engine.ask({"shop": WIDE}, apfed.Ready, timeout_s=60).or_raise()
            for done in (1, 2):
                engine.ask({"shop": Save("apfed", done, done)}, Saved, timeout_s=60).or_raise()
        disk = sum(
            path.stat().st_size
            for path in (federation.folder / "shop.site").rglob("*")
            if path.is_file()
        )
        assert disk < 150 * 2**20
        assert process.memory_info().rss - before < 350 * 2**20  # eight times 64 MB were held

        # Disk that not even the run's own older states leave.
        engine = stream.engine("a1/apfed/run-7")
        saves = [Save("apfed", done, done - 1) for done in (3, 4)]
        engine.ask({"shop": saves[0]}, Saved, timeout_s=60).or_raise()
        asked = engine.ask({"shop": saves[1]}, Saved, timeout_s=60)
        with pytest.raises(PartyError, match=r"150 MB on its disk .* policy\.max_disk_mb larger"):
            asked.or_raise()

        # What was taken out of memory is answered again from what it has saved, or begun anew.
        engine = stream.engine("a1/apfed/run-0")
        engine.ask({"shop": WIDE}, apfed.Ready, timeout_s=60).or_raise()
        assert shop.running()


#: What a stranger sends in place of a handshake: noise, a request of another protocol, the head of
#: a TLS record that never ends, a greeting of HTTP/2 without TLS.
BABBLE = (
    bytes(range(256)) * 64,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
    b"\x16\x03\x01\xff\xff" + b"\x01" * 60_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9) * 4000,
)


@pytest.mark.slow
def test_2000_connections_that_babble_cost_a_driver_no_step_and_no_memory(federation: Town) -> None:
    federation.write(epochs=150)
    shop = federation.join("shop")
    driver = federation.start("train", "run.toml", "--out", "out")
    federation.wait_for_lines("out", 2, driver)
    before = psutil.Process(driver.process.pid).memory_info().rss
    most = 0
    for number in range(2000):
        try:
            with socket.create_connection(("127.0.0.1", federation.port), timeout=10) as connection:
                connection.sendall(BABBLE[number % len(BABBLE)])
        except OSError:  # closed before all was said
            pass
        if number % 50 == 0 and driver.running():
            most = max(most, psutil.Process(driver.process.pid).memory_info().rss)
    assert driver.ended() == 0, driver.printed()
    assert most - before < 200 * 2**20
    assert federation.result("out")["missed"] == {}
    assert shop.running()
