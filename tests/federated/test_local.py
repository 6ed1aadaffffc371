"""A party's context: what it draws, builds, steps and releases, and what it refuses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dovetail.data import Minibatches
from dovetail.errors import ConfigError, MessageError, PartyError
from dovetail.federated import Local, Party, handles
from dovetail.models import RandomStream, generator
from dovetail.network import Floats, Message
from dovetail.privacy import most_releases
from dovetail.settings.privacy import PrivateSteps, Release


@dataclass(frozen=True)
class Budget:
    epsilon: float
    delta: float = 1e-5


class Begin(Message):
    seed: int


class Train(Message):
    weights_P: Floats


class Trained(Message):
    weights_P: Floats


X_NF = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
LABELS_N = (X_NF[:, 0] > 0).long()
STEPS = PrivateSteps(noise=8.0)


def loss(call, x_BF: Tensor, labels_B: Tensor, *, reduction: str) -> Tensor:
    return cross_entropy(call(x_BF), labels_B, reduction=reduction)


class Learner(Party):
    """The shortest party that trains: two passes a round, whose weights leave."""

    saved = ("network", "batches")

    def __init__(self, steps: PrivateSteps | None, local: Local) -> None:
        self.steps = steps

    @handles
    def begin(self, ask: Begin) -> Trained:
        self.local.bound_steps(self.steps, None, num_rows=20, what="its weights", key="private")
        self.network = self.local.build(lambda: nn.Linear(3, 2), "network")
        self.batches = self.local.batches(torch.arange(20), 6)
        return self.answer()

    @handles
    def train(self, ask: Train) -> Trained:
        optimizer = torch.optim.SGD(self.network.parameters(), 0.1)
        for rows, x, y in self.local.passes(self.batches, 2, X_NF, LABELS_N):
            self.local.step(optimizer, self.network, loss, rows, x, y)
        return self.answer()

    def answer(self) -> Trained:
        return Trained(nn.utils.parameters_to_vector(self.network.parameters()).detach())


def trained(party: Party, rounds: int, *, seed: int = 5) -> Tensor:
    answer = party.handle(Begin(seed))
    for _ in range(rounds):
        answer = party.handle(Train(torch.zeros(8)))
    assert isinstance(answer, Trained)
    return answer.weights_P


def test_a_party_is_not_made_without_its_context() -> None:
    with pytest.raises(TypeError, match="Learner is made with its context: give it a Local"):
        Learner(None, None)  # type: ignore[arg-type]
    assert Learner(None, Local("shop")).name == "shop"


class Asked(Message):
    number: int


class Counts(Party):
    """A party that answers one message."""

    @handles
    def begin(self, ask: Begin) -> Trained:
        return Trained(torch.zeros(1))

    @handles(most=2)
    def train(self, ask: Train) -> Trained:
        return Trained(torch.ones(1))


class Answers(Party):
    """Another, which answers a second one before training begins."""

    @handles(before_begin=True)
    def asked(self, ask: Asked) -> Trained:
        return Trained(torch.full((1,), float(ask.number)))

    @handles
    def finish(self, ask: Train) -> Trained:
        return Trained(torch.full((1,), 7.0))


class Both(Counts, Answers):
    """A party of two bases."""


def test_a_party_of_two_bases_answers_what_either_does_and_the_first_decides() -> None:
    party = Both(Local("lab"))
    assert set(Both.accepts) == {Begin, Train, Asked}
    assert Both.begins == (Begin,)
    assert Both.few == {Train: 2}
    assert Both.finish_with is Train
    assert float(party.handle(Asked(3)).weights_P) == 3.0
    party.handle(Begin(1))
    assert float(party.handle(Train(torch.zeros(1))).weights_P) == 1.0  # as Python resolves it


def test_a_network_is_drawn_from_the_partys_own_stream() -> None:
    party = Learner(None, Local("shop"))
    party.handle(Begin(5))
    with RandomStream(5, "shop", "network"):
        drawn = nn.Linear(3, 2)
    assert torch.equal(party.network.weight, drawn.weight)
    kept = Learner(None, Local("shop", secret=lambda: bytes(16)))
    kept.handle(Begin(5))
    assert not torch.equal(kept.network.weight, drawn.weight)


def test_networks_of_a_run_share_one_size_limit() -> None:
    local = Local("shop", max_bytes=100)
    local.begin(0)
    local.build(lambda: nn.Linear(4, 3), "first")  # 60 bytes
    with pytest.raises(MessageError, match="networks of more than 100 bytes of parameters"):
        local.build(lambda: nn.Linear(4, 3), "second")
    local.begin(1)  # the run's networks are replaced
    local.build(lambda: nn.Linear(4, 3), "first")


def test_a_network_that_is_too_large_takes_no_memory() -> None:
    local = Local("shop")
    with pytest.raises(MessageError, match="more than 268435456 bytes"):
        local.build(lambda: nn.Linear(2**24, 2**24), "network")


def test_passes_give_the_batches_of_plain_minibatches() -> None:
    local = Local("shop")
    local.begin(5)
    batches = local.batches(torch.arange(20), 6)
    plain = Minibatches(torch.arange(20), 6, generator(5, "shop", "batches"))
    for rows, x in local.passes(batches, 3, X_NF):
        expected = next(plain)
        assert torch.equal(rows, expected)
        assert torch.equal(x, X_NF[expected])
    with pytest.raises(StopIteration):
        next(local.passes(batches, 0, X_NF))


def test_a_plain_step_is_a_step_of_the_optimizer() -> None:
    weights_P = trained(Learner(None, Local("shop")), 1)
    with RandomStream(5, "shop", "network"):
        network = nn.Linear(3, 2)
    batches = Minibatches(torch.arange(20), 6, generator(5, "shop", "batches"))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2 * batches.steps_per_pass):
        rows = next(batches)
        optimizer.zero_grad()
        cross_entropy(network(X_NF[rows]), LABELS_N[rows]).backward()
        optimizer.step()
    assert torch.equal(weights_P, nn.utils.parameters_to_vector(network.parameters()))


def test_steps_are_counted_and_end_with_the_budget() -> None:
    most = most_releases(3.0, STEPS.noise / 2, 1e-5)
    party = Learner(STEPS, Local("shop", budget=Budget(3.0)))
    party.handle(Begin(5))
    moved, before = 0, trained(party, 0)
    for _ in range(most):
        after = party.handle(Train(torch.zeros(8))).weights_P
        moved += not torch.equal(after, before)
        before = after
    assert moved == most // 2  # two visits of each row a round
    (spent,) = party.spent()
    assert (spent["releases"], spent["stopped"]) == (most // 2 * 2, True)


def test_a_step_outside_of_passes_asks_the_budget_itself() -> None:
    local = Local("shop", budget=Budget(3.0))
    local.begin(0)
    local.bound_steps(STEPS, None, num_rows=20, what="its weights", key="private")
    network, rows = nn.Linear(3, 2), torch.arange(20)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(2 * most_releases(3.0, STEPS.noise / 2, 1e-5)):
        local.step(optimizer, network, loss, rows, X_NF, LABELS_N)
    assert local.spent()[0]["releases"] == most_releases(3.0, STEPS.noise / 2, 1e-5)


def test_under_a_budget_nothing_leaves_that_was_not_bounded() -> None:
    local, network = Local("shop", budget=Budget(3.0)), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    with pytest.raises(ConfigError, match=r"has a budget .* steps are not noised"):
        local.step(optimizer, network, loss, torch.arange(20), X_NF, LABELS_N)
    with pytest.raises(ConfigError, match=r"has a budget .* its codes are not noised"):
        local.release("codes", "bank", torch.arange(20), X_NF)
    with pytest.raises(ConfigError, match="its codes would leave without noise; set codes"):
        local.bound_releases(None, what="codes", key="codes")


def test_releases_are_plain_clipped_noised_and_refused() -> None:
    rows, samples = 10 * torch.ones(4, 3), torch.arange(4)
    plain = Local("shop")
    plain.bound_releases(None, what="codes", key="codes")
    assert plain.release("codes", "bank", samples, rows) is rows
    clipped = Local("shop")
    clipped.bound_releases(Release(clip=1.0), what="codes", key="codes")
    left = clipped.release("codes", "bank", samples, rows)
    assert torch.allclose(left.norm(dim=1), torch.ones(4))
    assert clipped.spent() == []
    noised = Local("shop", budget=Budget(3.0))
    noised.bound_releases(Release(clip=1.0, noise=8.0), what="codes", key="codes")
    most = most_releases(3.0, 4.0, 1e-5)
    for _ in range(most):
        noised.release("codes", "bank", samples, rows)
    assert not noised.allows("codes", "bank", samples)
    with pytest.raises(PartyError, match="has spent its budget of epsilon"):
        noised.release("codes", "bank", samples, rows)
    assert not noised.release("codes", "bank", samples, rows, or_zeros=True).any()
    assert noised.allows("codes", "shop-2", samples)  # each receiver has its own
    assert noised.spent()[0]["releases"] == most


def test_a_party_goes_on_from_its_state_bit_for_bit_and_nothing_is_forgotten() -> None:
    steps = PrivateSteps(noise=8.0, epsilon=8.0)
    party = Learner(steps, Local("shop"))
    trained(party, 2)
    state = deepcopy(party.state())  # as one that is on disk
    expected = party.handle(Train(torch.zeros(8))).weights_P
    again = Learner(steps, Local("shop"))
    again.restore(state)
    assert torch.equal(again.handle(Train(torch.zeros(8))).weights_P, expected)
    spent = party.spent()[0]["releases"]
    party.restore(state)  # a driver that has it go back
    assert party.spent()[0]["releases"] == spent == 6
    party.handle(Begin(6))  # or begin again
    assert party.spent()[0]["releases"] == spent
    again.counts_at_least(40)
    assert again.spent()[0]["releases"] == 40
