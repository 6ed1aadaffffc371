"""``Flare``'s own part, with calls of this process in the place of NVFlare's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dovetail.companions.flare.calls import SERVER, Answers, collab_calls
from dovetail.errors import ConfigError, NetworkError, PartyError
from dovetail.network import LedgerFile, Message, decode, encode
from dovetail.network.calls import AbortedError, Calls, SlowError, UnreachableError
from dovetail.network.control import Failed
from dovetail.network.host import Host
from dovetail.network.ledger import verify


class Question(Message):
    x: Tensor


class Answer(Message):
    x: Tensor
    handled: int


class Doubles:
    accepts = (Question,)

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        self.handled += 1
        return Answer(2 * message.x, self.handled)


class Site:
    """A party at a site; ``trouble`` is met by every call first."""

    def __init__(self, name: str, ledger: LedgerFile | None = None) -> None:
        self.name = name
        self.party = Doubles()
        host = Host(name, lambda *_: self.party, ledger=ledger)
        self.answers = Answers(name, "bank", host)
        self.trouble: Callable[[bytes], None] = lambda data: None
        self.calls = 0

    def __call__(self, data: bytes, timeout_s: float, /) -> bytes:
        self.calls += 1
        self.trouble(data)
        return self.answers.handle(data, SERVER)

    def restart(self) -> None:
        """Another process, which has handled nothing."""
        self.__init__(self.name)  # type: ignore[misc]


@contextmanager
def lines(*sites: Site) -> Iterator[Calls]:
    with Calls({site.name: site for site in sites}, driver="bank") as made:
        made.wait(10)
        yield made


def ask(flare: Calls, *names: str, timeout_s: float = 5.0) -> dict[str, Answer]:
    engine = flare.engine("run", grace_s=0.2)
    questions = dict.fromkeys(names, Question(torch.ones(3)))
    return engine.ask(questions, Answer, timeout_s=timeout_s).or_raise()


def gone(data: bytes) -> None:
    raise UnreachableError("its process is gone")


def test_parties_answer_at_the_same_time() -> None:
    sites = [Site("shop"), Site("lab")]
    together = threading.Barrier(2, timeout=5)  # each waits for the other
    for site in sites:
        site.trouble = lambda data: together.wait() and None if data else None
    with lines(*sites) as flare:
        answers = ask(flare, "shop", "lab")
    assert [answer.x.tolist() for answer in answers.values()] == [[2.0] * 3] * 2


def test_a_call_that_was_given_up_is_made_again_and_handled_once(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger.jsonl", "shop") as ledger:
        site = Site("shop", ledger)
        answered = []

        def lose_the_first_answer(data: bytes) -> None:
            if data and not answered:
                answered.append(site.answers.handle(data, SERVER))
                raise SlowError("no answer came")

        site.trouble = lose_the_first_answer
        with lines(site) as flare:
            assert ask(flare, "shop")["shop"].handled == 1
            assert ask(flare, "shop")["shop"].handled == 2
    left = verify(tmp_path / "ledger.jsonl").lines()
    assert [line["count"] for line in left] == [2]


def test_a_party_that_is_gone_is_waited_for_once_and_then_fails_at_once() -> None:
    site = Site("shop")
    with lines(site) as flare:
        assert ask(flare, "shop")["shop"].handled == 1
        site.trouble = gone
        with pytest.raises(PartyError, match="party 'shop': has not been connected since"):
            ask(flare, "shop")
        began = time.monotonic()
        with pytest.raises(PartyError, match="has not been connected since"):
            ask(flare, "shop", timeout_s=60)
        assert time.monotonic() - began < 5
        site.restart()
        flare.wait(20)
        assert ask(flare, "shop")["shop"].handled >= 1


def test_a_party_that_stalls_fails_at_its_deadline_and_is_asked_again_once_it_has_answered() -> (
    None
):
    site, go_on = Site("shop"), threading.Event()
    site.trouble = lambda data: go_on.wait(20) and None if data else None
    with lines(site) as flare:
        for _ in range(2):
            with pytest.raises(PartyError, match="has not answered"):
                ask(flare, "shop", timeout_s=0.2)
        go_on.set()
        deadline = time.monotonic() + 10
        while True:
            try:
                assert ask(flare, "shop")["shop"].handled == 2  # the one that came late counts
                return
            except PartyError:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_a_party_that_goes_while_it_is_asked_is_noticed_beside_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dovetail.network.calls.BEAT_S", 0.1)
    site, over = Site("shop"), threading.Event()
    with lines(site) as flare:

        def never_answers(data: bytes) -> None:
            if not data:
                raise UnreachableError("its process is gone")
            over.wait(20)
            raise SlowError("no answer came")

        site.trouble = never_answers
        with pytest.raises(PartyError, match="has not been connected since"):
            ask(flare, "shop", timeout_s=60)
        site.trouble = lambda data: None
        over.set()
        flare.wait(10)
        assert ask(flare, "shop")["shop"].handled == 1


def test_a_job_that_is_aborted_ends_and_does_not_go_on_alone() -> None:
    site = Site("shop")

    def aborted(data: bytes) -> None:
        raise AbortedError("the job was aborted")

    with lines(site) as flare:
        site.trouble = aborted
        with pytest.raises(NetworkError):
            ask(flare, "shop")
        engine = flare.engine("run")
        with pytest.raises(AbortedError, match="the job was aborted"):
            engine.ask({}, Answer)


def test_who_does_not_come_is_named_with_the_cause() -> None:
    site = Site("shop")
    site.trouble = gone
    with (
        Calls({"shop": site, "lab": Site("lab")}, driver="bank") as flare,
        pytest.raises(NetworkError, match="no connection from 'shop'; 'shop': its process is gone"),
    ):
        flare.wait(0.3)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"good day", "does not say who it is"),
        (json.dumps({"protocol": 0, "instance": "a", "party": "shop"}).encode(), "same version"),
        (Site("lab").answers.handle(b"", SERVER), "its site's party file is that of 'lab'"),
    ],
    ids=["no party", "another protocol", "another party"],  # the last says a random instance
)
def test_a_site_that_is_not_the_party_is_not_taken_for_it(reply: bytes, words: str) -> None:
    with (
        Calls({"shop": lambda data, timeout_s, /: reply}, driver="bank") as flare,
        pytest.raises(NetworkError, match=words),
    ):
        flare.wait(0.3)


def test_only_the_server_of_the_job_is_answered() -> None:
    site = Site("shop")
    for caller in ("lab", "", "shop"):
        with pytest.raises(NetworkError, match="answers the server of its job only"):
            site.answers.handle(b"", caller)
    with pytest.raises(NetworkError, match="expected bytes, got str"):
        site.answers.handle("text", SERVER)  # type: ignore[arg-type]


def test_a_party_that_leaves_refuses_nothing_but_is_gone(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "ledger.jsonl", "shop") as ledger:
        site = Site("shop", ledger)
    request = encode(Question(torch.ones(3)), run="run", sequence=1)
    failed = decode(site.answers.handle(bytes(request), SERVER), (Failed,))
    assert isinstance(failed, Failed)
    assert "cannot write its ledger" in failed.cause
    site.answers.leave()
    for data in (b"", bytes(request)):
        with pytest.raises(NetworkError, match="its process of this job is ending"):
            site.answers.handle(data, SERVER)


def test_a_party_that_cannot_begin_says_why() -> None:
    answers = Answers("shop", "bank", ConfigError("there is no file shop.csv"))
    with (
        Calls({"shop": lambda data, _, /: answers.handle(data, SERVER)}, driver="bank") as flare,
        pytest.raises(PartyError, match=r"party 'shop': there is no file shop\.csv"),
    ):
        ask(flare, "shop")


def test_an_answer_that_cannot_be_read_is_that_questions_failure() -> None:
    site = Site("shop")
    lies = [b"nonsense"]

    def call(data: bytes, timeout_s: float, /) -> bytes:
        return lies.pop() if data and lies else site(data, timeout_s)

    with Calls({"shop": call}, driver="bank") as flare:
        with pytest.raises(PartyError, match="party 'shop'"):
            ask(flare, "shop")
        assert ask(flare, "shop")["shop"].handled == 1


def test_a_site_that_the_job_lacks_is_named() -> None:
    with pytest.raises(NetworkError, match="the job has no site 'lab'; it has none"):
        collab_calls({"shop": "lab"}, ())
