"""The driver's context and the loop: means, who is missing, the best round, and going on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dovetail.errors import PartyError
from dovetail.federated import BestRound, Driver, Federation, Local, Party, Round, handles, train
from dovetail.network import Checkpoint, Floats, InProcess, Message


class Ask(Message):
    number: int


class Answer(Message):
    values_P: Floats


class Speaker(Party):
    """Sends its rows; is ill in the rounds that it names."""

    def __init__(self, values: list[float], local: Local, *, ill: tuple[int, ...] = ()) -> None:
        self.values, self.ill = values, ill

    @handles
    def ask(self, ask: Ask) -> Answer:
        if ask.number in self.ill:
            raise PartyError(self.name, "is ill")
        return Answer(torch.tensor(self.values))


class Mean(Driver):
    """Asks all for their values, and keeps the round whose mean is the largest."""

    num_rounds = 9
    saved = ("mean_P",)

    def __init__(self, figures: list[float] | None = None, patience: int | None = None) -> None:
        self.figures = figures
        self.mean_P = torch.zeros(2)
        self.best_round = BestRound(patience)

    def round(self, number: int, federation: Federation) -> Round:
        replies = federation.ask(Ask(number), Answer, P=2)
        self.mean_P = federation.mean(replies, "values_P")
        if self.figures:
            assert self.best_round is not None
            self.best_round.note(number, self.figures[number - 1])
        return Round(metrics={"mean": float(self.mean_P.sum())})


def parties(**ill: tuple[int, ...]) -> InProcess:
    values = {"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 9.0]}
    return InProcess(
        {
            name: Speaker(value, Local(name), ill=ill.get(name, ()))
            for name, value in values.items()
        },
        driver="hub",
    )


def test_a_mean_is_of_those_who_answered_and_in_double_precision() -> None:
    federation = Federation(parties(b=(1,)))
    replies = federation.ask(Ask(1), Answer)
    assert torch.equal(federation.mean(replies, "values_P"), torch.tensor([3.0, 5.5]))
    weighed = federation.mean(replies, "values_P", {"a": 0.25, "c": 0.75})
    assert torch.equal(weighed, torch.tensor([4.0, 7.25]))
    small = {str(index): Answer(torch.tensor([1e-9, 1.0])) for index in range(1000)}
    exact = torch.tensor([1e-9, 1.0])
    assert torch.equal(federation.mean(small, "values_P"), exact)


def test_one_message_goes_to_all_or_to_some() -> None:
    federation = Federation(parties())
    assert list(federation.ask(Ask(1), Answer)) == ["a", "b", "c"]
    assert list(federation.ask(Ask(1), Answer, to=["c"])) == ["c"]
    assert list(federation.ask({"b": Ask(1)}, Answer)) == ["b"]


def test_who_does_not_answer_is_named_in_the_rounds_line_and_asked_again() -> None:
    lines = [done.left_out() for done in train(Mean(), parties(b=(2, 3)))]
    expected = {"missed": {"b": 1}, "reasons": {"b": "is ill"}}
    assert lines == [{}, expected, expected, *[{}] * 6]


def test_an_answer_of_another_size_is_missing_too() -> None:
    engine = parties()
    federation = Federation(engine)
    assert not federation.ask(Ask(1), Answer, P=3)
    assert federation.missing.keys() == {"a", "b", "c"}
    assert "expected" in federation.missing["a"]


@pytest.mark.parametrize(
    ("patience", "played", "best"), [(None, 9, 6), (1, 3, 2), (3, 5, 2), (4, 9, 6)]
)
def test_rounds_end_when_they_no_longer_improve(
    patience: int | None, played: int, best: int
) -> None:
    driver = Mean([1.0, 5.0, 4.0, 4.0, 3.0, 6.0, 1.0, 1.0, 1.0], patience)
    assert len(list(train(driver, parties()))) == played
    assert driver.best_round is not None
    assert driver.best_round.number == best


def test_the_best_round_is_saved_and_gone_on_with(tmp_path: Path) -> None:
    figures = [1.0, 5.0, 4.0, 4.0, 3.0, 4.0, 1.0, 1.0, 1.0]
    whole = Mean(figures, 4)
    assert len(list(train(whole, parties()))) == 6

    def saving() -> tuple[InProcess, Checkpoint]:
        checkpoint = Checkpoint(tmp_path)
        made = {name: Speaker([1.0, 2.0], Local(name)) for name in "abc"}
        return InProcess(checkpoint.hosting(made), driver="hub"), checkpoint

    stopped = train(Mean(figures, 4), *saving())
    for _ in range(4):
        next(stopped)
    stopped.close()
    resumed = Mean(figures, 4)
    assert [done.number for done in train(resumed, *saving())] == [4, 5, 6]
    assert resumed.best_round == whole.best_round
