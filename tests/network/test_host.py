"""A party's side over bytes: it answers, refuses, and handles a message once."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from forked import context
from torch import Tensor

from dovetail.errors import ConfigError, DataError, PartyError, TrainingError
from dovetail.network import Message, Party, decode, encode
from dovetail.network.checkpoint import Restore, Save, Saved
from dovetail.network.control import Failed, Notice, Noticed
from dovetail.network.host import MAX_RUNS, Host
from dovetail.network.ledger import LedgerFile, verify
from dovetail.network.messages import open_message
from dovetail.network.recording import LARGE_BYTES


class Question(Message):
    x: Tensor


class Answer(Message):
    x: Tensor


class Undeclared(Message):
    x: Tensor


class Doubles:
    """Answers, or raises what it was told to."""

    accepts = (Question, Save)

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.handled: list[Message] = []

    def handle(self, message: Message) -> Message:
        self.handled.append(message)
        if self.error is not None:
            raise self.error
        if isinstance(message, Save):
            return Saved(message.done)
        assert isinstance(message, Question)
        return Answer(2 * message.x)


QUESTION = Question(torch.tensor([1.0, 2.0]))


def hosting(party: Party, **settings: Any) -> Host:
    return Host("shop", lambda run, algorithm, driver: party, **settings)


def ask(
    host: Host, sequence: int, message: Message = QUESTION, *, run: str = "r", driver: str = "bank"
) -> Message:
    """The answer, whose header must be that of the question."""
    answer = host.handle(encode(message, run=run, sequence=sequence), driver)
    header = open_message(answer).header
    assert (header.run, header.sequence) == (run, sequence)
    return decode(answer, (Answer, Saved, Failed))


def cause(message: Message) -> str:
    assert isinstance(message, Failed)
    return message.cause


def test_an_answer_bears_the_run_and_number_of_its_question() -> None:
    answer = ask(hosting(Doubles()), 7, run="run of May")
    assert isinstance(answer, Answer)
    assert answer.x.tolist() == [2.0, 4.0]


def test_an_answer_travels_as_its_question_did() -> None:
    question = encode(Question(torch.ones(3)), sequence=1, precision="bfloat16")
    assert open_message(hosting(Doubles()).handle(question, "bank")).header.precision == "bfloat16"


def test_an_answer_that_the_precision_cannot_tell_is_a_failure() -> None:
    question = encode(Question(torch.tensor([3e38])), sequence=1, precision="int8")
    answer = decode(hosting(Doubles()).handle(question, "bank"), (Failed,))
    assert "a value is not finite, and int8 has no code for that" in answer.cause


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TrainingError("its disk is full"), "its disk is full"),
        (PartyError("shop", "was sent codes too soon"), "was sent codes too soon"),
    ],
)
def test_an_error_of_ours_is_told_to_the_driver(error: Exception, words: str) -> None:
    assert cause(ask(hosting(Doubles(error)), 1)) == words


def test_of_any_other_error_only_the_type_leaves(caplog: pytest.LogCaptureFixture) -> None:
    words = cause(ask(hosting(Doubles(KeyError("anna's salary"))), 1))
    assert words == "internal error: KeyError; its log has the details"
    assert "anna's salary" in caplog.text  # in the party's own log


def test_of_an_error_about_its_table_no_word_leaves(caplog: pytest.LogCaptureFixture) -> None:
    words = cause(ask(hosting(Doubles(DataError("clinic.csv has the value 3000.5"))), 1))
    assert words == "its table does not fit what was asked; its log has the details"
    assert "clinic.csv has the value 3000.5" in caplog.text


@pytest.mark.parametrize("again", [5, 4, 0])
def test_a_number_that_does_not_grow_is_refused_and_logged(
    again: int, caplog: pytest.LogCaptureFixture
) -> None:
    party = Doubles()
    host = hosting(party)
    ask(host, 5)
    assert f"number {again} after number 5" in cause(ask(host, again))
    assert len(party.handled) == 1
    assert f"number {again} after number 5" in caplog.text


def test_on_a_new_connection_the_last_question_is_answered_and_not_handled_again() -> None:
    party = Doubles()
    host = hosting(party)
    first = host.handle(encode(QUESTION, run="r", sequence=5), "bank")
    host.connected("bank")
    assert host.handle(encode(QUESTION, run="r", sequence=5), "bank") == first
    assert len(party.handled) == 1
    assert "replayed" in cause(ask(host, 5))  # but once


def test_only_the_first_question_on_a_new_connection_may_be_an_old_one() -> None:
    host = hosting(Doubles())
    ask(host, 5)
    host.connected("bank")
    ask(host, 6)
    assert "replayed" in cause(ask(host, 6))
    host.connected("bank")
    assert "replayed" in cause(ask(host, 5))


def test_a_failure_is_repeated_on_a_new_connection_too() -> None:
    party = Doubles(TrainingError("no"))
    host = hosting(party)
    ask(host, 1)
    host.connected("bank")
    assert cause(ask(host, 1)) == "no"
    assert len(party.handled) == 1


def test_each_driver_counts_for_itself_and_has_parties_of_its_own() -> None:
    opened: list[tuple[str, ...]] = []

    def open_run(*asked: str) -> Party:
        opened.append(asked)
        return Doubles()

    host = Host("shop", open_run)
    for driver in ("bank", "clinic"):
        for sequence in (1, 2):
            assert isinstance(ask(host, sequence, driver=driver), Answer)
    assert opened == [("r", "test_host", "bank"), ("r", "test_host", "clinic")]


def test_policy_refuses_before_a_run_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    def admit(header: Any, driver: str) -> None:
        raise ConfigError(f"it does not let {driver} ask {header.type}")

    def open_run(*asked: str) -> Party:
        raise AssertionError("opened")

    refusals: list[tuple[str, ...]] = []
    host = Host("shop", open_run, admit=admit, on_refusal=lambda *words: refusals.append(words))
    assert cause(ask(host, 1)) == "it does not let bank ask test_host.Question"
    assert "refused test_host.Question of run 'r' from bank" in caplog.text
    words = "it does not let bank ask test_host.Question"
    assert refusals == [("bank", "test_host.Question", "r", words)]


def test_a_run_that_cannot_be_opened_says_why() -> None:
    def open_run(run: str, algorithm: str, driver: str) -> Party:
        raise ConfigError(f"it has no {algorithm}")

    assert cause(ask(Host("shop", open_run), 1)) == "it has no test_host"


def test_a_type_that_is_not_accepted_never_reaches_the_party() -> None:
    party = Doubles()
    words = cause(ask(hosting(party), 1, Undeclared(torch.zeros(1))))
    assert words == "it does not answer test_host.Undeclared"
    assert not party.handled


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", bytes(1000)])
def test_bytes_that_are_no_message_are_refused(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = decode(hosting(Doubles()).handle(data, "bank"), (Failed,))
    assert answer.cause
    assert f"from bank: {len(data)} bytes: " in caplog.text


@pytest.mark.parametrize(
    "kind", ["x\n2026-01-01 WARNING forged.line", "a.\ud800", "a." + "b" * 99, "a", "a.b.c", "é.b"]
)
def test_a_type_that_is_none_is_refused_in_one_short_line(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Forged(Undeclared):
        @classmethod
        def wire_name(cls) -> str:
            return kind

    refusals: list[tuple[str, ...]] = []
    host = hosting(Doubles(), on_refusal=lambda *each: refusals.append(each))
    host.handle(encode(Forged(torch.zeros(1)), sequence=1), "bank")
    host.refuse("bank", f"why\n{kind}", kind=kind, run=kind)
    first, second = (record.getMessage() for record in caplog.records)
    assert "expected a type like 'apfed.Codes'" in first
    for text in (first, second, *(word for each in refusals for word in each)):
        assert text.isprintable()
        assert len(text) < 600


def test_a_question_larger_than_allowed_is_refused() -> None:
    party = Doubles()
    assert "1000" in cause(ask(hosting(party, max_bytes=1000), 1, Question(torch.zeros(1000))))
    assert not party.handled


def test_the_run_that_is_idle_longest_makes_room() -> None:
    opened: list[str] = []

    def open_run(run: str, algorithm: str, driver: str) -> Party:
        opened.append(run)
        return Doubles()

    host = Host("shop", open_run)
    runs = [f"r{number}" for number in range(MAX_RUNS)]
    for sequence, run in enumerate([*runs, "r0", "one more", "r0", "r1"]):
        ask(host, sequence, run=run)
    assert opened == [*runs, "one more", "r1"]  # r0 was used in between and stayed


def test_a_checkpoint_is_about_the_algorithm_it_names() -> None:
    parties = {"apfed": Doubles(), "chfl": Doubles()}
    seen: list[str] = []

    def admit(header: Any, driver: str) -> None:
        seen.append(header.type)

    host = Host("shop", lambda run, algorithm, driver: parties[algorithm], admit=admit)
    assert isinstance(ask(host, 1, Save("chfl", 3, 2)), Saved)
    assert len(parties["chfl"].handled) == 1
    assert not parties["apfed"].handled
    assert seen == ["chfl.Save"]
    assert cause(ask(host, 2, Restore("chfl", 3, True))) == (
        "it does not answer checkpoint.Restore"
    )


class _Kept:
    """A ledger in a list."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.lines: list[tuple[str, str]] = []
        self.runs: list[str] = []
        self.counts: list[int] = []
        self.arrived: list[tuple[str, int, bool]] = []

    def came(
        self,
        sender: str,
        message: str,
        num_bytes: int,
        *,
        count: int = 1,
        digest: str = "",
        **_: Any,
    ) -> None:
        if self.error is not None:
            raise self.error
        assert sender == "bank"
        self.arrived.append((message, count, bool(digest)))

    def record(
        self, receiver: str, message: Message, *, run: str = "", count: int = 1, **_: Any
    ) -> None:
        if self.error is not None:
            raise self.error
        self.lines.append((receiver, message.wire_name()))
        self.runs.append(run)
        self.counts.append(count)


def test_all_that_leaves_is_written_down_failures_too() -> None:
    ledger = _Kept()
    host = hosting(Doubles(), ledger=ledger)
    ask(host, 1)
    ask(host, 2, Undeclared(torch.zeros(1)))
    ask(host, 2)  # a replay
    host.handle(b"no message", "bank")
    assert host.pass_over("a message of 9 bytes; at most 8 are allowed", "bank")
    assert ledger.lines == [("bank", "test_host.Answer"), *[("bank", "control.Failed")] * 4]
    host.connected("bank")
    ask(host, 2, Undeclared(torch.zeros(1)))  # the same answer once more
    assert len(ledger.lines) == 5
    assert ledger.arrived == [
        *[("test_host.Question", 1, True), ("test_host.Undeclared", 1, True)],
        *[("test_host.Question", 1, True), ("", 1, True), ("", 1, False)],
    ]


def test_refused_requests_take_few_lines_that_allow_for_all_of_them() -> None:
    ledger = _Kept()
    host = hosting(Doubles(), ledger=ledger)
    for sent in range(1, 1001):
        host.handle(b"no message", "bank")
        assert sent <= sum(ledger.counts) <= 1.1 * sent + 1
    assert len(ledger.lines) < 100
    assert [each[1] for each in ledger.arrived] == ledger.counts
    ask(host, 1)
    assert ledger.arrived[-1] == ("test_host.Question", 1, True)
    host.handle(b"no message", "bank")
    assert ledger.counts[-2:] == [1, 1]


def test_a_kind_of_refusal_is_one_line_of_the_log_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = hosting(Doubles(OSError("No space left on device")))
    for sequence in range(1, 1001):
        ask(host, sequence)
    bugs = [each for each in caplog.records if "a bug in" in each.getMessage()]
    assert len(bugs) == 4
    assert bugs[-1].getMessage().endswith("(1000 times)")
    caplog.clear()
    for sequence in range(1, 101):  # replays, each of another number
        ask(host, sequence)
    host.handle(b"no message", "bank")  # another kind
    messages = [each.getMessage() for each in caplog.records]
    assert len(messages) == 4
    assert messages[2].endswith("number 100 after number 1000: a replayed message (100 times)")
    assert "no message" in messages[3] or "10 bytes" in messages[3]


def test_a_count_of_failures_is_verified_and_summed_up(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger.jsonl", "shop") as ledger:
        host = hosting(Doubles(), ledger=ledger)
        for _ in range(200):
            host.handle(b"no message", "bank")
        ask(host, 1)
    failed, answer = verify(tmp_path / "ledger.jsonl").lines()
    assert 200 <= failed["count"] <= 220
    assert (answer["message"], answer["count"]) == ("test_host.Answer", 1)


@pytest.mark.parametrize(
    ("run", "kept"), [("run of May", "run of May"), ("a\nb", ""), ("\ud800", ""), ("雪" * 100, "")]
)
def test_only_a_name_of_a_run_is_written_to_the_ledger(run: str, kept: str) -> None:
    ledger = _Kept()
    ask(hosting(Doubles(), ledger=ledger), 1, run=run)
    assert ledger.runs == [kept]


def test_what_cannot_be_written_down_does_not_leave() -> None:
    refusals: list[tuple[str, ...]] = []
    full = _Kept(OSError("disk full"))
    host = hosting(Doubles(), ledger=full, on_refusal=lambda *each: refusals.append(each))
    assert "sends nothing that is not written down" in cause(ask(host, 1))
    assert "sends nothing that is not written down" in cause(ask(host, 1))  # nor for a replay
    unread = decode(host.handle(b"no message", "bank"), (Failed,))
    assert "sends nothing that is not written down" in cause(unread)
    assert "sends nothing that is not written down" in host.pass_over("too large", "bank")
    assert refusals[0] == ("bank", Question.wire_name(), "r", "disk full")  # at the party, too


def test_questions_are_handled_one_at_a_time() -> None:
    busy = threading.Lock()

    class Alone(Doubles):
        def handle(self, message: Message) -> Message:
            assert busy.acquire(blocking=False), "two at once"
            time.sleep(0.02)
            busy.release()
            return super().handle(message)

    party = Alone()
    host = hosting(party)
    answers: list[Message] = []
    askers = [
        threading.Thread(target=lambda driver=driver: answers.append(ask(host, 1, driver=driver)))
        for driver in ("a", "b", "c")
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert [type(answer) for answer in answers] == [Answer] * 3


@pytest.fixture(autouse=True)
def _logs_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dovetail")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 64], ids=["small", "large, written by a thread"])
def test_who_is_killed_has_a_line_of_all_that_was_answered(rows: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ours, theirs = context.Pipe()
    party = context.Process(target=processes.answers, args=(path, theirs), daemon=True)
    party.start()
    theirs.close()
    came, left = [], []
    try:
        for number in range(1, 41):
            question = processes.Question(torch.rand(rows, 256))
            data = bytes(encode(question, run="r", sequence=number))
            assert (len(data) >= LARGE_BYTES) == (rows > 1)
            ours.send_bytes(data)
            if number == 40:
                break  # killed while it has this one in hand
            reply = ours.recv_bytes()
            came.append(hashlib.sha256(data).hexdigest())
            left.append(hashlib.sha256(reply).hexdigest())
    finally:
        party.kill()
        party.join()
    verify(path)
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]]
    assert [line["digest"] for line in lines if "from" in line][:39] == came
    assert [line["digest"] for line in lines if "to" in line][:39] == left
    kinds = ["from" if "from" in line else "to" for line in lines[:78]]
    assert kinds == ["from", "to"] * 39


def test_what_came_large_and_cannot_be_written_down_is_not_answered(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path / "ledger.jsonl", "shop")
    host = hosting(Doubles(), ledger=ledger)
    large = Question(torch.rand(64, 256))
    assert isinstance(ask(host, 1, large), Answer)
    with open(ledger.path, "ab") as other:
        other.write(b"somebody else's\n")
    assert "sends nothing that is not written down" in cause(ask(host, 2, large))


def test_a_notice_is_handed_on_as_text_fit_for_a_terminal_and_answered() -> None:
    notices: list[tuple[str, str, str]] = []
    host = hosting(Doubles(), on_notice=lambda *notice: notices.append(notice))
    data = encode(Notice("no\x1b[2J\n" + "x" * 2_000), run="r", sequence=1, instance="a")
    assert isinstance(decode(host.handle(data, "bank"), (Noticed, Failed)), Noticed)
    ((driver, run, why),) = notices
    assert (driver, run) == ("bank", "r")
    assert why == "no [2J " + "x" * 993
