"""FedOptimus with secure = true: means under masks, that outlive lost data owners."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.data import Classification, SharedRows
from dovetail.errors import ConfigError, PartyError, TrainingError
from dovetail.federated import Local, train
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus import masked, messages
from dovetail.methods.fedoptimus.local_data import Columns, Labels
from dovetail.methods.fedoptimus.masked import SummingSettings
from dovetail.models.owners import ColumnsMlp
from dovetail.network import InProcess, Message

SETTINGS: dict[str, Any] = {
    "batch_size": 16,
    "embedding": 6,
    "top": (5,),
    "rounds": 3,
    "learning_rate": 0.1,
    "sync_every": 2,
    "timeout_s": 5,
}
NAMES = ("d1", "d2", "d3", "d4")
BOTTOM = ColumnsMlp((7,))


def owners(
    summing: SummingSettings = masked.UNASKED,
) -> tuple[dict[str, fedoptimus.DataOwner], dict[str, fedoptimus.LabelOwner]]:
    rng = torch.Generator().manual_seed(3)
    labels = torch.randint(3, (60,), generator=rng)
    shards = dict(zip(("l1", "l2"), torch.randperm(60, generator=rng).split(30), strict=True))
    data = {}
    for name in NAMES:
        x = torch.randn(60, 4, generator=rng)
        shared = {owner: SharedRows(name, x, rows) for owner, rows in shards.items()}
        data[name] = fedoptimus.DataOwner(
            Columns(name, shared, BOTTOM, summing=summing), Local(name)
        )
    task = Classification((0, 1, 2))
    tops = {
        name: fedoptimus.LabelOwner(Labels(name, task, labels[rows]), Local(name))
        for name, rows in shards.items()
    }
    return data, tops


class Falls:
    """A data owner that falls where it is asked for this, in the second sum."""

    def __init__(self, owner: Any, at: type[Message]) -> None:
        self.owner, self.at, self.accepts = owner, at, owner.accepts

    def handle(self, message: Message) -> Message:
        if isinstance(message, self.at) and message.number == 2:  # type: ignore[attr-defined]
            raise TrainingError("it fell")
        answer: Message = self.owner.handle(message)
        return answer


def run(
    data: dict[str, Any], tops: dict[str, Any], **changes: Any
) -> tuple[list[Any], fedoptimus.Coordinator]:
    config = fedoptimus.Config(**{**SETTINGS, **changes})
    coordinator = fedoptimus.Coordinator(config, data_owners=NAMES, label_owners=[*tops], seed=11)
    rounds = list(train(coordinator, InProcess({**data, **tops}, driver="hub")))
    return rounds, coordinator


def test_a_run_under_masks_learns_what_one_in_the_clear_does():
    _, plain = run(*owners())
    data, tops = owners()
    shown: list[int] = []
    for owner in data.values():
        handle = owner.handle

        def spy(message: Message, handle: Any = handle) -> Message:
            answer: Message = handle(message)
            if isinstance(answer, messages.Embeddings):
                shown.append(len(answer.embedding_BE))
            return answer

        owner.handle = spy  # type: ignore[method-assign]
    _, secret = run(data, tops, secure=True)
    torch.testing.assert_close(secret.top.w_P, plain.top.w_P, rtol=1e-4, atol=1e-5)
    assert shown == [0] * len(shown)
    assert len(shown) == 4 * 2 * 3


@pytest.mark.parametrize(
    ("at", "is_in"),
    [
        (masked.GiveKeys, False),
        (masked.GiveParts, False),
        (masked.GiveMasked, False),
        (masked.GiveOpened, True),  # its embeddings had come
    ],
)
def test_a_lost_data_owner_costs_its_own_part_and_not_the_step(at: type[Message], is_in: bool):
    data, tops = owners()
    rounds, coordinator = run(
        {**data, "d2": Falls(data["d2"], at)}, tops, secure=True, quorum=0.5, rounds=1
    )
    assert rounds[0].missed == {"d2": 1}
    assert rounds[0].reasons == {"d2": "it fell"}
    others, plain_tops = owners()
    lost = Falls(others["d2"], fedoptimus.Step)

    def second(message: Message) -> Message:
        if isinstance(message, fedoptimus.Step) and message.step == 2 and not is_in:
            raise TrainingError("it fell")
        answer: Message = others["d2"].handle(message)
        return answer

    lost.handle = second  # type: ignore[method-assign]
    _, plain = run({**others, "d2": lost}, plain_tops, rounds=1)
    torch.testing.assert_close(coordinator.top.w_P, plain.top.w_P, rtol=1e-4, atol=1e-5)


def test_where_too_few_stay_the_run_ends_in_words():
    data, tops = owners()
    falling = {name: Falls(data[name], masked.GiveMasked) for name in ("d1", "d2")}
    with pytest.raises(TrainingError, match="too few data owners answered to the end of a secret"):
        run({**data, **falling}, tops, secure=True, quorum=0.5)


def test_a_data_owner_s_own_quorum_counts():
    data, tops = owners(SummingSettings(quorum=0.8))  # of four: all
    falling = {"d2": Falls(data["d2"], masked.GiveMasked)}
    with pytest.raises(TrainingError, match="too few data owners"):
        run({**data, **falling}, tops, secure=True, quorum=0.5)


def test_embeddings_are_in_one_sum_and_no_other():
    """Two sums over the same rows, with and without one owner, would differ by that one's."""
    data, tops = owners()
    run(data, tops, secure=True, rounds=1)
    owner = data["d1"]
    step = messages.Embed("l1", torch.arange(5), False)
    assert owner.handle(step).embedding_BE.shape == (0, 6)
    owner.handle(masked.GiveKeys(50))
    owner.handle(masked.GiveKeys(50))
    with pytest.raises(PartyError, match="has no embeddings for sum 51: each is in one sum"):
        owner.handle(masked.GiveKeys(51))
    owner.handle(step)
    owner.handle(masked.GiveKeys(51))


def test_a_party_s_file_refuses_a_run_in_the_clear():
    data, tops = owners(SummingSettings(secure=True))
    with pytest.raises((ConfigError, PartyError), match=r"its file says fedoptimus\.secure"):
        run(data, tops)
    run(data, tops, secure=True, rounds=1)


def test_two_data_owners_make_no_secret_sum():
    data, tops = owners()
    two = {name: data[name] for name in NAMES[:2]}
    config = fedoptimus.Config(**SETTINGS, secure=True)
    coordinator = fedoptimus.Coordinator(config, data_owners=[*two], label_owners=[*tops], seed=1)
    with pytest.raises(TrainingError, match="needs three or more members"):
        list(train(coordinator, InProcess({**two, **tops}, driver="hub")))
