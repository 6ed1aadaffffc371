"""What a site counts is counted before the work: who asks at once, or fails, has no more of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from federations import Federation, free_port
from forked import context
from processes import credentials

from dovetail import data as dd
from dovetail.alignment import psi
from dovetail.alignment.limits import Alignments
from dovetail.errors import DovetailError
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.base import Algorithm
from dovetail.methods.settings.party import PolicySection
from dovetail.network import Message
from dovetail.network.certificates import Authority
from dovetail.network.costs import noted
from dovetail.network.credentials import Credentials
from dovetail.network.messages import Samples
from dovetail.network.quota import Quota
from dovetail.network.stream import Stream
from dovetail.node.agreements import Agreements
from dovetail.node.limits import GivenSums, RunLimits
from dovetail.node.proposal import Proposal

THREADS, MOST = 8, 3

#: Does what was asked, in the middle of an answer.
Work = Callable[[], None]

#: Answers the thread of this number, by doing the work; raises to refuse.
Ask = Callable[[int, Work], None]


class OpenAsked(Message):
    """Driver -> party: begin."""


class Tell(Message):
    """Driver -> party: something of which a run needs few."""


class About(Message):
    """Driver -> party: something of these samples."""

    samples_B: Samples


ALGORITHM = cast(
    Algorithm,
    SimpleNamespace(
        begins=(OpenAsked.wire_name(),), few={Tell.wire_name(): MOST}, samples=True, policy="any"
    ),
)


def guarded(folder: Path, message: Callable[[int], Message], run: str, **policy: int) -> Ask:
    """What a run's guard lets pass."""
    limits = RunLimits(Quota(folder), PolicySection(**policy))  # type: ignore[arg-type]

    def ask(number: int, work: Work) -> None:
        guard = limits.of("bank", run.format(number), "any", ALGORITHM)

        def handle(message: Message) -> Message:
            work()
            return message

        guard.answer(message(number), handle)

    return ask


def begins(folder: Path) -> Ask:
    return guarded(folder, lambda _: OpenAsked(), "one", max_begins=MOST)


def runs_of_a_day(folder: Path) -> Ask:
    return guarded(folder, lambda _: OpenAsked(), "{}", max_runs_per_day=MOST)


def few(folder: Path) -> Ask:
    return guarded(folder, lambda _: Tell(), "one")


def uses(folder: Path) -> Ask:
    return guarded(folder, lambda _: About(torch.arange(40)), "one", max_uses=MOST)


def numbers(folder: Path) -> Ask:
    """Numbers of each row, which all runs of a driver share."""
    quota, rows = Quota(folder), torch.arange(50)
    contents = [bytes([row]) for row in range(50)]

    def ask(number: int, work: Work) -> None:
        given = NumbersGiven(quota, "bank", np.arange(50), f"run-{number}")

        def check() -> None:
            if given.most(rows) + 1 > MOST:
                raise DovetailError("no more numbers of these rows")

        with quota.work():
            given.add(rows, 1, contents, check=check)
            work()

    return ask


def aligned(folder: Path, **most: int) -> Ask:
    quota = Quota(folder)
    limits = {"max_alignments": 10**6, "max_ids": 10**6, **most}
    made = Alignments(quota, print_line=lambda _: None, **limits)

    def ask(number: int, work: Work) -> None:
        with quota.work():
            made.of("bank", f"a{number}").begins("bank", "intersection", 10)
            work()

    return ask


def alignments(folder: Path) -> Ask:
    return aligned(folder, max_alignments=MOST)


def ids(folder: Path) -> Ask:
    return aligned(folder, max_ids=10 * MOST + 9)


def signatures(folder: Path) -> Ask:
    """Runs of a proposal that all have signed; one that began on it has, whatever it comes to."""
    agreements = Agreements(folder, "shop", (), required=False, num_rows=10, quota=Quota(folder))
    proposal = cast(Proposal, SimpleNamespace(name="p" * 64, attempts=MOST))

    def ask(number: int, work: Work) -> None:
        agreements._begin(proposal, f"a{number}/chfl/seed-0", "chfl", "bank", lambda: "digest")
        work()

    return ask


def epsilon(folder: Path) -> Ask:
    """Releases of a party that may make so many, and counts them as the last thing it does."""
    limits = RunLimits(Quota(folder), PolicySection())
    spent = [0]

    def ask(number: int, work: Work) -> None:
        def handle(message: Message) -> Message:
            before = spent[0]
            if before >= MOST:
                raise DovetailError("its budget of epsilon is spent")
            work()
            spent[0] = before + 1
            return noted(Tell(), {"epsilon": 1.0, "delta": 0.0, "releases": spent[0]})

        limits.of("bank", "one", "any", ALGORITHM).answer(About(torch.arange(40)), handle)

    return ask


LIMITS = (begins, runs_of_a_day, few, uses, numbers, alignments, ids, signatures, epsilon)


def answered(ask: Ask, work: Work, *, first: int = 0) -> int:
    """How many of as many threads that ask at once are answered."""
    together, done = threading.Barrier(THREADS), []

    def one(number: int) -> None:
        together.wait()
        try:
            ask(number, work)
        except (DovetailError, RuntimeError):
            return
        done.append(number)

    threads = [
        threading.Thread(target=one, args=(number,)) for number in range(first, first + THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(done)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.__name__)
def test_threads_that_ask_at_once_are_answered_as_often_as_one_would_be(
    limit: Callable[[Path], Ask], tmp_path: Path
) -> None:
    ask = limit(tmp_path)
    assert answered(ask, lambda: time.sleep(0.01)) == MOST
    assert answered(ask, lambda: None, first=THREADS) == 0


def failing() -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    "limit", [each for each in LIMITS if each is not signatures], ids=lambda limit: limit.__name__
)
def test_an_answer_that_comes_to_nothing_is_given_back(
    limit: Callable[[Path], Ask], tmp_path: Path
) -> None:
    ask = limit(tmp_path)
    assert answered(ask, failing) == 0
    assert answered(ask, lambda: None, first=THREADS) == MOST
    assert Quota(tmp_path).read("SELECT * FROM reserved") == []


def test_one_sum_of_a_round_is_given_a_share_of(tmp_path: Path) -> None:
    quota, chosen = Quota(tmp_path), []

    def ask(number: int, work: Work) -> None:
        chosen.append(GivenSums(quota, "bank", "one").only(1, f"sum {number}"))

    assert answered(ask, lambda: None) == THREADS
    assert len(set(chosen)) == 1

    def fails() -> None:
        with quota.work():
            GivenSums(quota, "bank", "one").only(2, "sum a")
            failing()

    with pytest.raises(RuntimeError):
        fails()
    assert GivenSums(quota, "bank", "one").only(2, "sum b") == "sum b"


# --- Processes -----------------------------------------------------------------------------------


def killed_in_the_middle(folder: Path, limit: Callable[[Path], Ask]) -> None:
    limit(folder)(0, lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", [begins, few, numbers, alignments], ids=lambda each: each.__name__
)
def test_a_party_killed_in_the_middle_of_an_answer_has_not_given_it(
    limit: Callable[[Path], Ask], tmp_path: Path
) -> None:
    for _ in range(MOST + 1):
        process = context.Process(target=killed_in_the_middle, args=(tmp_path, limit))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert len(Quota(tmp_path).read("SELECT * FROM reserved")) == 1
        Quota(tmp_path).give_back_unfinished()
    assert answered(limit(tmp_path), lambda: None, first=THREADS) == MOST


def asked_in_a_process(folder: Path, limit: Callable[[Path], Ask], number: int) -> None:
    try:
        limit(folder)(number, lambda: time.sleep(0.05))
    except DovetailError:
        os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [runs_of_a_day, numbers, ids], ids=lambda limit: limit.__name__)
def test_processes_that_count_in_one_file_at_once_give_no_more(
    limit: Callable[[Path], Ask], tmp_path: Path
) -> None:
    Quota(tmp_path)
    processes = [
        context.Process(target=asked_in_a_process, args=(tmp_path, limit, number))
        for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(process.exitcode or 0 for process in processes) == [0, 0, 0, 1]


IDS = [f"P-{number:04d}" for number in range(60)]
DRIVERS = ("bank", "hospital", "school", "museum")
SHOP = """
[party]
name = "shop"
table = "shop.csv"
id = "person"

[policy]
together = true
max_alignments = 3
"""


def align_at_once(driver: str, address: str, shown: Credentials, begin: Any) -> None:
    """A driver's process: one alignment with the shop, when all may."""
    stream = Stream(address, driver=driver, credentials=shown, parties=["shop"])
    begin.wait()
    try:
        psi.align(stream.engine("rows"), IDS)
    except DovetailError:
        os._exit(1)
    finally:
        stream.close()


@pytest.mark.network
@pytest.mark.slow
def test_drivers_that_come_at_once_to_one_party_have_what_they_may_together(tmp_path: Path) -> None:
    authority = Authority.create(now=datetime.now(UTC))
    columns: dict[str, Any] = {"person": np.array(IDS, dtype=object), "x": np.arange(60.0)}
    dd.write_table(tmp_path / "shop.csv", columns)
    (tmp_path / "shop.toml").write_text(SHOP)
    made, folder = credentials(authority, "shop"), tmp_path / "certificates" / "shop"
    folder.mkdir(parents=True)
    for name, content in (
        ("ca.pem", made.ca),
        ("shop.pem", made.certificate),
        ("shop.key", made.key),
    ):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    begin, addresses = context.Event(), {name: f"127.0.0.1:{free_port()}" for name in DRIVERS}
    drivers = [
        context.Process(
            target=align_at_once,
            args=(name, address, credentials(authority, name, listens=True), begin),
        )
        for name, address in addresses.items()
    ]
    named = [word for each in addresses.items() for word in ("--driver", "=".join(each))]
    with Federation(tmp_path, free_port(), local_secrets=True).ending() as federation:
        for driver in drivers:
            driver.start()
        shop = federation.start("join", "shop.toml", *named)
        for name in DRIVERS:
            shop.wait_for(f"connected to {name}")
        begin.set()
        for driver in drivers:
            driver.join()
    assert sorted(driver.exitcode or 0 for driver in drivers) == [0, 0, 0, 1], shop.printed()
    assert len(Quota(tmp_path / "shop.site").read("SELECT * FROM alignments")) == 3
