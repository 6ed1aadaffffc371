"""Parties in processes of their own, mutual TLS over loopback: the same bits, and who fails when.

Certificates, frames and messages that no honest party sends come from a bare gRPC client here.
"""

from __future__ import annotations

import itertools
import logging
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import processes
import pytest
import torch
from processes import IDS, Answer, Other, Process, Processes, Question

from dovetail.alignment import align
from dovetail.errors import ConfigError, NetworkError
from dovetail.methods import apfed
from dovetail.network import Engine, InProcess, encode
from dovetail.network.certificates import Authority
from dovetail.network.client import MAX_WAITING, Event, serve
from dovetail.network.credentials import Credentials
from dovetail.network.frames import CHUNK_BYTES, MESSAGE, METHOD, Hello, frames, options
from dovetail.network.host import Host
from dovetail.network.ledger import LedgerFile, verify
from dovetail.network.messages import open_message
from dovetail.network.stream import Stream

pytestmark = pytest.mark.network

PARTIES = ("shop", "clinic", "lab")
SILENCE_S = 3.0
QUESTION = Question(torch.tensor([1.0, 2.0]))
LOSSES = {"R": "reconstruction", "C": "contrastive"}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create(now=processes.NOW)


@pytest.fixture(scope="module")
def shown(authority: Authority) -> dict[str, Credentials]:
    """Party -> its credentials."""
    bank = processes.credentials(authority, "bank", listens=True)
    return {"bank": bank, **{name: processes.credentials(authority, name) for name in PARTIES}}


@pytest.fixture
def started() -> Iterator[Processes]:
    with processes.processes() as all_of_them:
        yield all_of_them


@pytest.fixture
def listen(shown: dict[str, Credentials]) -> Iterator[Callable[..., Stream]]:
    """Makes the driver's end; closed when the test is over."""
    streams: list[Stream] = []

    def make(*parties: str, port: int = 0, **settings: Any) -> Stream:
        settings = {"silence_s": SILENCE_S, **settings}
        streams.append(
            Stream(
                f"127.0.0.1:{port}",
                driver="bank",
                credentials=shown["bank"],
                parties=parties,
                **settings,
            )
        )
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


@pytest.fixture(scope="module")
def running(shown: dict[str, Credentials]) -> Iterator[Stream]:
    """Three parties that no test harms."""
    with (
        processes.processes() as started,
        Stream(
            "127.0.0.1:0",
            driver="bank",
            credentials=shown["bank"],
            parties=PARTIES,
            silence_s=SILENCE_S,
        ) as stream,
    ):
        for name in PARTIES:
            started.party(name, stream.port, shown[name], losses=RUNS[name])
        stream.wait(30)
        yield stream


#: Party -> run -> its loss.
RUNS = {
    name: {"all R": LOSSES["R"], "all C": LOSSES["C"], "mixed": LOSSES[kind]}
    for name, kind in zip(PARTIES, "RCR", strict=True)
}

_runs = itertools.count()


def fresh(stream: Stream, *parties: str, **settings: Any) -> Engine:
    """The engine of a run that no other test has."""
    return stream.engine(f"run {next(_runs)}", parties=parties or None, **settings)


def cause(engine: Engine, party: str, question: Question = QUESTION, **settings: Any) -> str:
    """Why a party did not answer."""
    replies = engine.ask({party: question}, Answer, **settings)
    assert not replies
    return replies.failures[party].cause


# --- The same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["all R", "all C", "mixed"])
def test_apfed_over_the_network_is_apfed_in_process_bit_for_bit(running: Stream, run: str) -> None:
    def trained(engine: Engine) -> tuple[apfed.Active, list[float]]:
        active = processes.active("bank", PARTIES)
        epochs = list(apfed.train(active, engine))
        assert not any(epoch.missed for epoch in epochs)
        return active, [epoch.loss for epoch in epochs]

    here = {name: processes.open_party(RUNS[name], name, run, "apfed") for name in PARTIES}
    in_process = InProcess(here, driver="bank")
    over_network = running.engine(run)
    expected, losses = trained(in_process)
    active, network_losses = trained(over_network)
    assert network_losses == losses
    for one, other in ((expected.encoder, active.encoder), (expected.head, active.head)):
        for name, weight in one.state_dict().items():
            assert torch.equal(weight, other.state_dict()[name]), name
    # Line by line; in which order two parties first answer is the network's.
    assert sorted(map(str, over_network.ledger.lines())) == sorted(
        map(str, in_process.ledger.lines())
    )


def test_alignment_over_the_network_is_set_intersection(running: Stream) -> None:
    ids = list(range(60, 400))
    aligned = align(fresh(running), ids, batch_size=100, timeout_s=30.0)
    for party in PARTIES:
        samples = aligned.alignment.shared("bank", party)
        shared_ids = {ids[row] for row in aligned.alignment.rows["bank"][samples].tolist()}
        assert shared_ids == set(ids) & set(IDS[party])
        assert aligned.overlap[party] == len(shared_ids)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES // 4, 3 * CHUNK_BYTES // 4 + 1])
def test_a_tensor_of_any_size_comes_back_doubled(running: Stream, size: int) -> None:
    x = torch.randn(size)
    replies = fresh(running).ask(dict.fromkeys(PARTIES, Question(x)), Answer).or_raise()
    assert list(replies) == list(PARTIES)
    assert all(torch.equal(reply.x, 2 * x) for reply in replies.values())


def test_a_narrower_precision_rounds_what_is_sent(running: Stream) -> None:
    x = torch.tensor([1.0, 1.0 + 2**-12])
    replies = fresh(running, "shop", precision="float16").ask({"shop": Question(x)}, Answer)
    assert replies["shop"].x.tolist() == [2.0, 2.0]


# --- Asking --------------------------------------------------------------------------------------


def test_the_driver_works_while_parties_work(running: Stream) -> None:
    engine = fresh(running)
    began = time.monotonic()
    slow = Question(torch.ones(1), sleep_s=0.4)
    pending = engine.send(dict.fromkeys(PARTIES, slow), Answer)
    assert time.monotonic() - began < 0.2
    time.sleep(0.3)
    pending.replies().or_raise()
    assert time.monotonic() - began < 0.7  # neither 3 x 0.4, nor 0.3 + 0.4
    assert pending.replies()["shop"].handled == 1  # asked twice, the same


def test_messages_sent_before_the_last_is_answered_wait_their_turn(running: Stream) -> None:
    engine = fresh(running, "shop")
    pending = [engine.send({"shop": QUESTION}, Answer) for _ in range(5)]
    assert [each.replies()["shop"].handled for each in reversed(pending)] == [5, 4, 3, 2, 1]


def test_two_runs_are_two_parties(running: Stream) -> None:
    one, other = fresh(running, "shop"), fresh(running, "shop")
    handled = [
        engine.ask({"shop": QUESTION}, Answer)["shop"].handled for engine in (one, one, other)
    ]
    assert handled == [1, 2, 1]


def test_what_a_party_cannot_do_arrives_with_its_name_and_cause(running: Stream) -> None:
    engine = fresh(running)
    words = cause(engine, "shop", Question(torch.ones(1), instead="fail"))
    assert words == "its loss is [31m nan lower its rate"  # fit for a terminal
    words = cause(engine, "shop", Question(torch.ones(1), instead="crash"))
    assert words == "internal error: KeyError; its log has the details"
    words = cause(engine, "shop", Question(torch.ones(1), instead="lie"))
    assert "expected" in words
    assert "got 'processes.Other'" in words
    replies = engine.ask({"shop": Other()}, Answer)
    assert replies.failures["shop"].cause == "it does not answer processes.Other"
    assert cause(engine, "bakery") == f"no such party; there are {list(PARTIES)}"
    assert engine.ask({"shop": QUESTION}, Answer)["shop"].handled == 4


def test_a_late_party_fails_at_once_until_it_has_answered(running: Stream) -> None:
    engine = fresh(running)
    late = Question(torch.ones(1), sleep_s=0.8)
    began = time.monotonic()
    assert "has not answered processes.Question since" in cause(engine, "shop", late, timeout_s=0.2)
    assert 0.15 < time.monotonic() - began < 0.6
    assert "has not answered processes.Question since" in cause(engine, "shop", timeout_s=60.0)
    assert time.monotonic() - began < 0.7  # at once
    engine.ask({"clinic": QUESTION}, Answer).or_raise()
    time.sleep(max(0.0, began + 1.1 - time.monotonic()))
    assert engine.ask({"shop": QUESTION}, Answer)["shop"].handled == 2  # not the late answer


# --- Parties that go and come back ---------------------------------------------------------------


def test_a_killed_party_is_noticed_at_once_and_another_process_takes_its_place(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop", "clinic")
    shop = started.party("shop", stream.port, shown["shop"])
    started.party("clinic", stream.port, shown["clinic"])
    stream.wait(20)
    engine = fresh(stream, grace_s=0.5)
    both = dict.fromkeys(("shop", "clinic"), Question(torch.ones(1), sleep_s=0.3))
    pending = engine.send(both, Answer)
    time.sleep(0.1)
    began = time.monotonic()
    shop.signal(signal.SIGKILL)
    while "shop" in stream.connected:
        assert time.monotonic() - began < 1.0
        time.sleep(0.001)
    replies = pending.replies()
    assert time.monotonic() - began < 1.5
    assert list(replies) == ["clinic"]
    assert "has not been connected since" in replies.failures["shop"].cause
    began = time.monotonic()
    assert list(engine.ask(both, Answer)) == ["clinic"]
    assert time.monotonic() - began < 0.45  # no grace a second time
    started.party("shop", stream.port, shown["shop"])
    stream.wait(20)
    replies = engine.ask(both, Answer).or_raise()
    assert (replies["shop"].handled, replies["clinic"].handled) == (1, 3)  # opened anew


def test_a_party_that_dies_while_it_is_asked_is_asked_again_when_it_is_back_in_time(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    shop = started.party("shop", stream.port, shown["shop"])
    stream.wait(20)
    pending = fresh(stream, grace_s=20.0).send({"shop": Question(torch.ones(1), 0.5)}, Answer)
    time.sleep(0.1)
    shop.signal(signal.SIGKILL)
    again = started.party("shop", stream.port, shown["shop"])
    assert pending.replies().or_raise()["shop"].pid == again.pid


def test_a_frozen_party_is_noticed_in_seconds_and_takes_part_again_when_it_thaws(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop", "clinic")
    shop = started.party("shop", stream.port, shown["shop"])
    started.party("clinic", stream.port, shown["clinic"])
    stream.wait(20)
    engine = fresh(stream, grace_s=0.2)
    both = dict.fromkeys(("shop", "clinic"), QUESTION)
    engine.ask(both, Answer).or_raise()
    shop.signal(signal.SIGSTOP)
    began = time.monotonic()
    replies = engine.ask(both, Answer)  # no deadline: the heartbeat alone tells
    assert time.monotonic() - began < 2 * SILENCE_S
    assert list(replies) == ["clinic"]
    shop.signal(signal.SIGCONT)
    stream.wait(10)
    replies = engine.ask(both, Answer).or_raise()
    assert replies["shop"].pid == shop.pid  # the same process, with all it knew


def test_a_question_is_handled_once_even_if_its_answer_was_lost(
    listen: Callable[..., Stream], shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    doubles = processes.Doubles()
    stop = threading.Event()
    host = Host("shop", lambda *_: doubles)
    address = f"127.0.0.1:{stream.port}"
    settings = {"driver": "bank", "stop": stop, "silence_s": SILENCE_S}
    party = threading.Thread(target=serve, args=(host, address, shown["shop"]), kwargs=settings)
    party.start()
    stream.wait(10)
    engine = fresh(stream)
    pending = engine.send({"shop": Question(torch.ones(1), sleep_s=0.3)}, Answer)
    time.sleep(0.1)
    connection = stream.links["shop"]._connection
    assert connection is not None
    connection.hang_up()  # while the party works
    assert pending.replies().or_raise()["shop"].handled == 1
    assert engine.ask({"shop": QUESTION}, Answer)["shop"].handled == 2
    stop.set()
    party.join(5)
    assert not party.is_alive()


def test_a_party_waits_for_a_driver_that_was_killed_and_finds_the_next_one(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    first = listen("shop")
    port = first.port
    first.close()  # a port that is free
    shop = started.party("shop", port, shown["shop"])
    assert "bank is not at 127.0.0.1" in shop.await_event("waiting")
    driver = started.start(processes.drive, port, shown["bank"])
    driver.await_event("asked")
    driver.signal(signal.SIGKILL)
    assert "lost the line to bank" in shop.await_event("lost")
    time.sleep(0.3)
    stream = listen("shop", port=port)
    stream.wait(10)
    assert fresh(stream).ask({"shop": QUESTION}, Answer)["shop"].handled == 1


def test_a_party_that_is_told_to_stop_ends_cleanly_and_soon(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    shop = started.party("shop", stream.port, shown["shop"])
    stream.wait(20)
    pending = fresh(stream).send({"shop": Question(torch.ones(1), sleep_s=0.3)}, Answer)
    time.sleep(0.1)
    shop.signal(signal.SIGTERM)
    assert pending.replies().or_raise()["shop"].handled == 1  # what is in hand is answered
    shop.await_event("stopped", 2.0)
    shop.process.join(5)
    assert shop.process.exitcode == 0


def test_waiting_says_who_is_here_and_who_is_missing(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop", "clinic")
    shop = started.party("shop", stream.port, shown["shop"])
    seen: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    shop.await_event("connected")
    with pytest.raises(NetworkError, match=r"after 0.3 s there is no connection from 'clinic'"):
        stream.wait(0.3, lambda here, missing: seen.append((here, missing)))
    assert seen[-1] == (("shop",), ("clinic",))


def test_what_leaves_the_driver_is_written_down_and_what_cannot_be_does_not_leave(
    listen: Callable[..., Stream],
    started: Processes,
    shown: dict[str, Credentials],
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    with LedgerFile(path, "bank") as ledger:
        stream = listen("shop", ledger=ledger)
        engine = stream.engine("r", grace_s=60, timeout_s=0.2)
        for words in ("has not answered processes.Question", "has not been connected"):
            assert words in cause(engine, "shop")  # its own limit, where none is set
        assert list(verify(path).lines()) == list(engine.ledger.lines()) == []  # never sent
        started.party("shop", stream.port, shown["shop"])
        stream.wait(20)
        engine = fresh(stream)
        engine.ask({"shop": QUESTION}, Answer).or_raise()
        (sent,) = verify(path).lines()
        assert (sent["to"], sent["count"]) == ("shop", 1)
        slow = engine.send({"shop": Question(torch.ones(1), sleep_s=0.3)}, Answer)
        queued = engine.send({"shop": QUESTION}, Answer)
        assert sum(each["count"] for each in verify(path).lines()) == 2
    for sent_before in (slow, queued):  # an answer that cannot be written down does not count
        with pytest.raises(NetworkError, match="this ledger is closed"):
            sent_before.replies()
    with pytest.raises(NetworkError, match="this ledger is closed"):
        engine.ask({"shop": QUESTION}, Answer)
    assert sum(each["count"] for each in verify(path).lines()) == 2


def test_a_question_that_goes_out_again_is_written_down_once(
    listen: Callable[..., Stream],
    started: Processes,
    shown: dict[str, Credentials],
    tmp_path: Path,
) -> None:
    with LedgerFile(tmp_path / "ledger.jsonl", "bank") as ledger:
        stream = listen("shop", ledger=ledger)
        started.party("shop", stream.port, shown["shop"])
        stream.wait(20)
        pending = fresh(stream).send({"shop": Question(torch.ones(1), sleep_s=0.3)}, Answer)
        time.sleep(0.1)
        connection = stream.links["shop"]._connection
        assert connection is not None
        connection.hang_up()
        assert pending.replies().or_raise()["shop"].handled == 1
    (sent,) = verify(tmp_path / "ledger.jsonl").lines()
    assert sent["count"] == 1


def test_who_dials_while_the_driver_leaves_is_not_told_that_it_is_a_stranger(
    listen: Callable[..., Stream], shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    stream._closed = True  # between its first step and its last
    code, details, got = dial(stream.port, shown["shop"], [HELLO], shown["shop"].ca)
    assert (code, details, got) == (grpc.StatusCode.UNAVAILABLE, "the driver is leaving", [])


def test_a_closed_stream_fails_its_requests_and_refuses_a_port_in_use(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{stream.port}"):
        listen("shop", port=stream.port)
    engine = fresh(stream)
    pending = engine.send({"shop": QUESTION}, Answer)
    stream.close()
    assert pending.replies().failures["shop"].cause == "the driver has hung up"
    with pytest.raises(ConfigError, match=r"no such parties: \['lab'\]"):
        stream.engine("r", parties=["lab"])


# --- Who is refused, while others work on --------------------------------------------------------


def dial(
    port: int, shown: Credentials | None, sent: list[bytes], ca: bytes
) -> tuple[grpc.StatusCode, str, list[bytes]]:
    """How a bare gRPC client fares: its status, and what it got before."""
    secrets = (None, None) if shown is None else (shown.key, shown.certificate)
    outbox: SimpleQueue[bytes | None] = SimpleQueue()
    for each in sent:
        outbox.put(each)
    got: list[bytes] = []
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(
        f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca, *secrets), options
    ) as channel:
        call = channel.stream_stream(METHOD)(iter(outbox.get, None))
        try:
            for frame in call:
                got.append(frame)
            return grpc.StatusCode.OK, "", got
        except grpc.RpcError as error:
            return error.code(), error.details(), got
        finally:
            outbox.put(None)


def stranger(kind: str, authority: Authority, started: Processes, port: int) -> Process:
    """A party whose certificate will not do."""
    match kind:
        case "another authority's":
            shown = processes.credentials(Authority.create(now=processes.NOW), "clinic")
            shown = Credentials(authority.pem, shown.certificate, shown.key)
        case "expired":
            shown = processes.expired(authority, "clinic")
        case "unlisted":
            shown = processes.credentials(authority, "bakery")
        case _:
            raise AssertionError(kind)
    return started.party("clinic", port, shown)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("another authority's", "no trusted line to bank"),
        ("expired", "no trusted line to bank"),
        ("unlisted", "this run does not expect that name"),
    ],
)
def test_a_certificate_that_will_not_do_is_refused_and_others_work_on(
    running: Stream, started: Processes, authority: Authority, kind: str, words: str
) -> None:
    party = stranger(kind, authority, started, running.port)
    assert words in party.await_event("refused")
    assert running.connected == PARTIES
    fresh(running).ask(dict.fromkeys(PARTIES, QUESTION), Answer, timeout_s=10.0).or_raise()


def test_without_a_certificate_there_is_no_line(running: Stream, authority: Authority) -> None:
    code, _, got = dial(running.port, None, [Hello("x").encode()], authority.pem)
    assert (code, got) == (grpc.StatusCode.UNAVAILABLE, [])


def test_an_unlisted_name_is_refused_and_logged_before_it_says_a_word(
    running: Stream, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    bakery = processes.credentials(authority, "bakery")
    code, _, got = dial(running.port, bakery, [], authority.pem)
    assert (code, got) == (grpc.StatusCode.PERMISSION_DENIED, [])
    assert "'bakery' is not a party of this run" in caplog.text


def test_a_party_does_not_talk_to_a_driver_of_another_name(
    running: Stream, started: Processes, shown: dict[str, Credentials]
) -> None:
    party = started.party("shop", running.port, shown["shop"], driver="hospital")
    text = party.await_event("refused")
    assert "the driver's certificate is of 'hospital'" in text
    assert running.connected == PARTIES


def test_a_party_cannot_pass_for_the_driver(
    shown: dict[str, Credentials], authority: Authority, started: Processes
) -> None:
    with Stream(
        "127.0.0.1:0", driver="clinic", credentials=shown["clinic"], parties=["shop"]
    ) as impostor:
        party = started.party("shop", impostor.port, shown["shop"], driver="clinic")
        party.await_event("refused")
        assert impostor.connected == ()


def test_of_two_processes_with_one_certificate_the_newer_stays(
    listen: Callable[..., Stream],
    started: Processes,
    shown: dict[str, Credentials],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = listen("shop")
    older = started.party("shop", stream.port, shown["shop"])
    stream.wait(20)
    newer = started.party("shop", stream.port, shown["shop"])
    assert "run only one, and give nobody else the key" in older.await_event("ended")
    assert fresh(stream).ask({"shop": QUESTION}, Answer)["shop"].pid == newer.pid
    assert "another process with the certificate of 'shop'" in caplog.text


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


HELLO = Hello("liar").encode()


def announced(length: int) -> bytes:
    """A message's first frame, which says how long it will be."""
    return struct.pack("<4sB3xQ", b"DVTL", MESSAGE, length) + bytes(CHUNK_BYTES)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n"], "no frame"),
        ([b"".join(frames(MESSAGE, b"{}"))], "begins with a hello"),
        ([HELLO, bytes(range(256)) * 100], "no frame"),
        ([HELLO, HELLO], "a second hello"),
        ([HELLO, b"".join(frames(MESSAGE, b"unasked"))], "nobody asked for"),
        ([HELLO, announced(2**32)], "a message of 4294967296 bytes; at most"),
        ([HELLO, announced(2**63)], "a message of 9223372036854775808 bytes; at most"),
    ],
)
def test_nonsense_closes_its_own_line_alone_and_memory_stays_flat(
    listen: Callable[..., Stream],
    started: Processes,
    shown: dict[str, Credentials],
    caplog: pytest.LogCaptureFixture,
    sent: list[bytes],
    words: str,
) -> None:
    stream = listen("shop", "lab")
    started.party("lab", stream.port, shown["lab"])
    while stream.connected != ("lab",):
        time.sleep(0.01)
    before = resident_bytes()
    for _ in range(3):
        code, details, _ = dial(stream.port, shown["shop"], sent, shown["shop"].ca)
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert words in details
    assert resident_bytes() - before < 32 * 2**20
    assert "closed the line to shop (ipv4:127.0.0.1" in caplog.text
    assert stream.connected == ("lab",)
    assert fresh(stream).ask({"lab": QUESTION}, Answer)["lab"].handled == 1


def test_a_frame_larger_than_any_of_ours_is_refused_by_grpc(
    running: Stream, listen: Callable[..., Stream], shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    code, _, _ = dial(stream.port, shown["shop"], [bytes(2 * CHUNK_BYTES)], shown["shop"].ca)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


def answering(
    stream: Stream, shown: Credentials, answer: Callable[[bytes], list[bytes]]
) -> threading.Thread:
    """A party of bare gRPC that answers each frame as it likes, until its line is closed."""

    def run() -> None:
        outbox: SimpleQueue[bytes | None] = SimpleQueue()
        outbox.put(Hello("liar").encode())
        credentials = grpc.ssl_channel_credentials(shown.ca, shown.key, shown.certificate)
        with grpc.secure_channel(f"127.0.0.1:{stream.port}", credentials) as channel:
            call = channel.stream_stream(METHOD)(iter(outbox.get, None))
            try:
                next(call)  # the driver's hello
                for frame in call:
                    for each in answer(frame[16:]):
                        outbox.put(each)
            except grpc.RpcError:
                pass
            finally:
                outbox.put(None)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def message(data: Any) -> list[bytes]:
    return list(frames(MESSAGE, data))


def wrong_sequence(data: bytes) -> list[bytes]:
    header = open_message(data).header
    answer = Answer(torch.ones(1), 1, 1)
    return message(encode(answer, run=header.run, sequence=header.sequence - 1))


def wrong_run(data: bytes) -> list[bytes]:
    header = open_message(data).header
    return message(encode(Answer(torch.ones(1), 1, 1), run="x", sequence=header.sequence))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (wrong_sequence, "asked was number"),
        (wrong_run, "it answered number"),
        (lambda _: message(b"no message at all"), ""),
        (lambda data: message(data), "expected"),
        (lambda _: [b"no frame"], "what it sent cannot be read"),
        (lambda _: [announced(2**32)], "what it sent cannot be read: a message of 4294967296"),
    ],
    ids=["sequence", "run", "garbage", "its question", "no frame", "4 GiB"],
)
def test_a_party_that_lies_has_failed_and_others_have_not(
    listen: Callable[..., Stream],
    started: Processes,
    shown: dict[str, Credentials],
    answer: Callable[[bytes], list[bytes]],
    words: str,
) -> None:
    stream = listen("shop", "lab")
    started.party("lab", stream.port, shown["lab"])
    liar = answering(stream, shown["shop"], answer)
    stream.wait(20)
    engine = fresh(stream, grace_s=0.2)
    replies = engine.ask(dict.fromkeys(("shop", "lab"), QUESTION), Answer, timeout_s=10.0)
    assert list(replies) == ["lab"]
    assert words in replies.failures["shop"].cause
    engine.ask({"lab": QUESTION}, Answer).or_raise()
    stream.close()
    liar.join(5)
    assert not liar.is_alive()


def test_an_answer_larger_than_allowed_is_a_failure_and_the_party_is_back_for_the_next(
    listen: Callable[..., Stream], started: Processes, shown: dict[str, Credentials]
) -> None:
    stream = listen("shop", max_message_bytes=10_000)
    started.party("shop", stream.port, shown["shop"])
    stream.wait(20)
    engine = fresh(stream)
    words = cause(engine, "shop", Question(torch.ones(CHUNK_BYTES)))
    assert "at most 10000 are allowed" in words
    stream.wait(10)
    assert engine.ask({"shop": QUESTION}, Answer)["shop"].handled == 2


def test_a_party_refuses_a_question_by_its_announced_size_and_reads_the_next(
    listen: Callable[..., Stream], shown: dict[str, Credentials]
) -> None:
    stream = listen("shop")
    stop = threading.Event()
    host = Host("shop", lambda *_: processes.Doubles(), max_bytes=10_000)
    settings = {"driver": "bank", "stop": stop, "silence_s": SILENCE_S}
    address = f"127.0.0.1:{stream.port}"
    party = threading.Thread(target=serve, args=(host, address, shown["shop"]), kwargs=settings)
    party.start()
    stream.wait(10)
    engine = fresh(stream)
    words = cause(engine, "shop", Question(torch.ones(CHUNK_BYTES)))
    assert "it refused a message of" in words
    assert "at most 10000 are allowed" in words
    assert engine.ask({"shop": QUESTION}, Answer)["shop"].handled == 1
    stop.set()
    party.join(5)


class Deaf:
    """A driver that asks on and on and reads no answer."""

    def __init__(self, shown: Credentials, num: int) -> None:
        question = Question(torch.ones(CHUNK_BYTES // 4))
        self.asked = [
            frame for number in range(num) for frame in message(encode(question, sequence=number))
        ]
        self.gone = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(4), options=options(SILENCE_S))
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        _, service, method = METHOD.split("/")
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        secrets = grpc.ssl_server_credentials(
            [(shown.key, shown.certificate)], shown.ca, require_client_auth=True
        )
        self.port = self.server.add_secure_port("127.0.0.1:0", secrets)
        self.server.start()

    def _exchange(self, incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield HELLO
        yield from self.asked
        self.gone.wait(20)


@pytest.mark.parametrize("how", ["the party stops", "the line is lost"])
def test_a_driver_that_does_not_read_is_not_answered_on_and_on(
    shown: dict[str, Credentials], how: str
) -> None:
    deaf = Deaf(shown["bank"], 60)
    doubles = processes.Doubles()
    stop = threading.Event()
    events: list[Event] = []
    settings = {"driver": "bank", "stop": stop, "silence_s": SILENCE_S, "on_event": events.append}
    host = Host("shop", lambda *_: doubles)
    address = f"127.0.0.1:{deaf.port}"
    party = threading.Thread(target=serve, args=(host, address, shown["shop"]), kwargs=settings)
    party.start()
    seen, deadline = -1, time.monotonic() + 15
    while seen != doubles.handled or not seen:
        assert time.monotonic() < deadline
        seen = doubles.handled
        time.sleep(0.5)
    assert MAX_WAITING <= seen < 15  # two wait, one is in hand, and some are on the line
    if how == "the line is lost":
        deaf.server.stop(0)
        while not any(event.kind == "lost" for event in events):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    stop.set()
    party.join(5)
    assert not party.is_alive()
    deaf.gone.set()
    deaf.server.stop(0).wait()


def test_a_driver_that_sends_a_message_twice_is_refused_and_the_party_says_so(
    listen: Callable[..., Stream], shown: dict[str, Credentials], caplog: pytest.LogCaptureFixture
) -> None:
    stream = listen("shop")
    doubles = processes.Doubles()
    stop = threading.Event()
    settings = {"driver": "bank", "stop": stop, "silence_s": SILENCE_S}
    address = f"127.0.0.1:{stream.port}"
    host = Host("shop", lambda *_: doubles)
    party = threading.Thread(target=serve, args=(host, address, shown["shop"]), kwargs=settings)
    party.start()
    stream.wait(10)
    engine = fresh(stream)
    pending = engine.send({"shop": QUESTION}, Answer)
    pending.replies().or_raise()
    connection = stream.links["shop"]._connection
    assert connection is not None
    request = next(iter(pending.sent.values()))  # type: ignore[attr-defined]
    connection.outbox.put(request.data)
    deadline = time.monotonic() + 5
    while "replayed" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert doubles.handled == 1
    stop.set()
    party.join(5)


@pytest.fixture(autouse=True)
def _logs_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dovetail")
