"""The engine in one process: who answered, who failed and why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dovetail.errors import PartyError, TrainingError
from dovetail.network import InProcess, Message


class Question(Message):
    x: Tensor
    times: int


class Answer(Message):
    x: Tensor


class Refusal(Message):
    why: str


class Multiplies:
    """Answers a question; or does what it was told to do instead."""

    accepts = (Question,)

    def __init__(self, instead: Exception | Message | None = None) -> None:
        self.instead = instead
        self.asked: list[Message] = []

    def handle(self, message: Message) -> Message:
        self.asked.append(message)
        if isinstance(self.instead, Exception):
            raise self.instead
        if self.instead is not None:
            return self.instead
        assert isinstance(message, Question)
        return Answer(message.x * message.times)


QUESTION = Question(torch.tensor([1.0, 2.0]), 3)
BOTH_WAYS = pytest.mark.parametrize("through_bytes", [False, True], ids=["directly", "bytes"])


@BOTH_WAYS
def test_every_party_answers_its_own_message(through_bytes: bool) -> None:
    engine = InProcess(
        {"shop": Multiplies(), "bank": Multiplies()}, driver="clinic", through_bytes=through_bytes
    )
    replies = engine.ask({"bank": QUESTION, "shop": Question(torch.ones(1), 5)}, Answer)
    assert {party: reply.x.tolist() for party, reply in replies.items()} == {
        "bank": [3.0, 6.0],
        "shop": [5.0],
    }
    assert not replies.failures
    assert replies.or_raise() is replies
    assert engine.parties == ("shop", "bank")


@BOTH_WAYS
def test_nobody_asked_is_nobody_answered(through_bytes: bool) -> None:
    engine = InProcess({}, driver="clinic", through_bytes=through_bytes)
    assert engine.ask({}, Answer).or_raise() == {}


@BOTH_WAYS
def test_an_error_of_ours_is_that_partys_failure(through_bytes: bool) -> None:
    parties = {"shop": Multiplies(TrainingError("its disk is full")), "bank": Multiplies()}
    engine = InProcess(parties, driver="clinic", through_bytes=through_bytes)
    replies = engine.ask(dict.fromkeys(parties, QUESTION), Answer)
    assert list(replies) == ["bank"]
    failure = replies.failures["shop"]
    assert (failure.party, failure.cause) == ("shop", "its disk is full")
    with pytest.raises(PartyError, match=r"^party 'shop': its disk is full$"):
        replies.or_raise()


@BOTH_WAYS
def test_any_other_error_is_a_bug_and_is_not_caught(through_bytes: bool) -> None:
    parties = {"shop": Multiplies(ZeroDivisionError("a bug"))}
    engine = InProcess(parties, driver="clinic", through_bytes=through_bytes)
    with pytest.raises(ZeroDivisionError):
        engine.ask({"shop": QUESTION}, Answer)


def test_a_party_that_is_not_there_is_a_failure_with_its_name() -> None:
    engine = InProcess({"shop": Multiplies()}, driver="clinic")
    replies = engine.ask({"shp": QUESTION}, Answer)
    assert str(replies.failures["shp"]) == "party 'shp': no such party; there are ['shop']"
    assert not list(engine.ledger.lines())


@BOTH_WAYS
def test_a_message_that_a_party_does_not_accept_never_reaches_it(through_bytes: bool) -> None:
    shop = Multiplies()
    engine = InProcess({"shop": shop}, driver="clinic", through_bytes=through_bytes)
    replies = engine.ask({"shop": Refusal("no")}, Answer)
    assert replies.failures["shop"].cause == "it does not answer test_inprocess.Refusal"
    assert not shop.asked
    assert not list(engine.ledger.lines())


@BOTH_WAYS
def test_another_answer_than_asked_for_is_a_failure(through_bytes: bool) -> None:
    shop = Multiplies(Refusal("no"))
    engine = InProcess({"shop": shop}, driver="clinic", through_bytes=through_bytes)
    cause = engine.ask({"shop": QUESTION}, Answer).failures["shop"].cause
    assert "test_inprocess.Answer, got" in cause
    assert "test_inprocess.Refusal" in cause


def test_through_bytes_a_party_gets_a_copy() -> None:
    for through_bytes in (False, True):
        shop = Multiplies()
        engine = InProcess({"shop": shop}, driver="clinic", through_bytes=through_bytes)
        engine.ask({"shop": QUESTION}, Answer)
        assert (shop.asked[0] is QUESTION) != through_bytes


def test_precision_is_that_of_what_arrives_on_either_side() -> None:
    x = torch.tensor([1.0, 2**-12 + 1, 0.3])
    for precision, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        shop = Multiplies()
        engine = InProcess({"shop": shop}, driver="clinic", precision=precision)  # type: ignore[arg-type]
        (answer,) = engine.ask({"shop": Question(x, 3)}, Answer).or_raise().values()
        (asked,) = shop.asked
        assert isinstance(asked, Question)
        assert torch.equal(asked.x, x.to(dtype).float())
        assert torch.equal(answer.x, (asked.x * 3).to(dtype).float())


def test_what_the_precision_cannot_tell_is_that_partys_failure() -> None:
    parties = {"shop": Multiplies(), "bank": Multiplies()}
    engine = InProcess(parties, driver="clinic", precision="int8")
    questions = {"shop": Question(torch.tensor([3e38]), 3), "bank": Question(torch.ones(1), 3)}
    replies = engine.ask(questions, Answer)
    assert replies["bank"].x.tolist() == [3.0]
    assert "Answer.x: a value is not finite" in replies.failures["shop"].cause
    assert engine.ledger.bytes_by_party()["shop"] == {"sent": 0, "received": 5}


def test_messages_are_sent_at_once_and_their_replies_fetched_later() -> None:
    engine = InProcess({"shop": Multiplies()}, driver="clinic")
    pending = engine.send({"shop": QUESTION}, Answer, timeout_s=1.0)
    assert pending.replies()["shop"].x.tolist() == [3.0, 6.0]
