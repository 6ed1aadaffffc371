"""FedOptimus: what it is equal to, how averages are stepped, and owners that fail or lie."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from joint_predictions import predict
from pydantic import ValidationError
from torch import Tensor

from dovetail.data import Classification, Regression, SharedRows
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Local, train
from dovetail.methods import fedoptimus, inference
from dovetail.methods.fedoptimus import evaluation, messages, predicting
from dovetail.methods.fedoptimus.local_data import Columns, Labels
from dovetail.methods.fedoptimus.requests import Averaging
from dovetail.methods.fedoptimus.server import Iterates, ServerOptimizer
from dovetail.models import (
    ColumnsMlp,
    OwnerResNet,
    RandomStream,
    StripCnn,
    generator,
    load,
    load_bottom,
)
from dovetail.models.joined import join
from dovetail.models.owners import BottomSpec, TopSpec
from dovetail.models.vectors import vector_of
from dovetail.network import Checkpoint, Composite, Engine, InProcess, Message

TASK = Classification((0, 1, 2))
PLAIN = {"server": "average", "slowmo": "off", "sync_every": 1, "learning_rate": 0.1}
SMALL = {"batch_size": 8, "embedding": 5, "top": (6,), "rounds": 4, "learning_rate": 0.1}
NUM_TEST = 11


def labelled(num: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    """Images of four by four pixels, and how many of their halves are bright."""
    rng = np.random.default_rng(seed)
    bright = rng.integers(0, 2, size=(num, 2))
    pixels = rng.integers(0, 156, size=(num, 1, 4, 4)) + 100 * bright.repeat(2, 1)[:, None, :, None]
    return torch.from_numpy(pixels.astype(np.uint8)), torch.from_numpy(bright.sum(axis=1))


@dataclass
class Owners:
    """Data owners and label owners of one simulation."""

    data: dict[str, fedoptimus.DataOwner]
    labels: dict[str, fedoptimus.LabelOwner]

    def engine(self, **options: Any) -> InProcess:
        return InProcess({**self.data, **self.labels}, driver="hub", **options)

    def coordinator(
        self, config: fedoptimus.Config, seed: int = 5, **more: Any
    ) -> fedoptimus.Coordinator:
        return fedoptimus.Coordinator(
            config, data_owners=[*self.data], label_owners=[*self.labels], seed=seed, **more
        )

    def weights(self) -> list[Tensor]:
        """Every weight there is."""
        bottoms = [owner.replicas.values.detach().clone() for owner in self.data.values()]
        tops = [vector_of(owner.top) for owner in self.labels.values()]
        return [*bottoms, *tops]

    def models(self) -> list[Tensor]:
        """Every weight that is kept."""
        bottoms = [owner.bottom_model().network for owner in self.data.values()]
        tops = [owner.model().network for owner in self.labels.values()]
        return [vector_of(network) for network in (*bottoms, *tops)]


def owners(
    shards: Sequence[int] = (20, 17),
    bottom: BottomSpec | None = None,
    num_data: int = 2,
) -> Owners:
    """Each data owner has one strip of all images; label owners have labels of their own rows."""
    bottom = bottom or StripCnn(channels=3, hidden=6)
    x, labels = labelled(sum(shards))
    x_test, labels_test = labelled(NUM_TEST, seed=8)
    names = [f"l{index}" for index in range(1, len(shards) + 1)]
    rows = dict(zip(names, torch.arange(len(x)).split(list(shards)), strict=True))
    height = 4 // num_data
    data = {}
    for index in range(num_data):
        name = f"d{index + 1}"
        strip = slice(index * height, (index + 1) * height)
        x_strip, test = x[:, :, strip], x_test[:, :, strip]
        if isinstance(bottom, ColumnsMlp):
            x_strip, test = x_strip.flatten(1).float() / 255, test.flatten(1).float() / 255
        shared = {label: SharedRows(name, x_strip, rows_S) for label, rows_S in rows.items()}
        tested = dict.fromkeys(names, SharedRows(name, test, torch.arange(NUM_TEST)))
        columns = Columns(name, shared, bottom, scored={"test": tested})
        data[name] = fedoptimus.DataOwner(columns, Local(name))
    tops = {
        name: fedoptimus.LabelOwner(
            Labels(name, TASK, labels[rows_S], scored={"test": labels_test}), Local(name)
        )
        for name, rows_S in rows.items()
    }
    return Owners(data, tops)


def config(**changes: Any) -> fedoptimus.Config:
    return fedoptimus.Config(**{**SMALL, **changes})


@dataclass
class Chosen:
    """A choice of data owners that keeps nothing."""

    of: Callable[[int, Engine], Sequence[str]]

    def __call__(self, number: int, network: Engine) -> Sequence[str]:
        return self.of(number, network)

    def report(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Any) -> None: ...


def run(
    made: Owners | None = None,
    engine: Engine | None = None,
    choose: Callable[[int, Engine], Sequence[str]] | None = None,
    **changes: Any,
) -> tuple[Owners, list[Averaging]]:
    made = made or owners()
    coordinator = made.coordinator(config(**changes), choose=choose and Chosen(choose))
    network = engine or made.engine()
    return made, list(train(coordinator, network))


def assert_same(one: Owners, other: Owners, tolerance: float = 0.0) -> None:
    for left, right in zip(one.weights(), other.weights(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=tolerance)


class Failing:
    """A party that answers only while ``fails`` says no; or lies by ``answer``."""

    def __init__(
        self,
        party: Any,
        fails: Callable[[Message], bool] = lambda message: False,
        answer: Callable[[Message], Message] = lambda reply: reply,
    ) -> None:
        self.party = party
        self.fails = fails
        self.answer = answer
        self.accepts = party.accepts

    def handle(self, message: Message) -> Message:
        if self.fails(message):
            raise PartyError("somebody", "is out")
        return self.answer(self.party.handle(message))


def replacing(made: Owners, name: str, **options: Any) -> InProcess:
    parties: dict[str, Any] = {**made.data, **made.labels}
    parties[name] = Failing(parties[name], **options)
    return InProcess(parties, driver="hub")


MEMBERS = {"members": 2, "embedding": 6, "skip": True, "patience": 1}


# --- Identities --------------------------------------------------------------------------------


@pytest.mark.parametrize("bottom", [StripCnn(channels=3, hidden=6), ColumnsMlp((6,))])
def test_one_label_owner_without_averages_is_one_pooled_network(bottom: BottomSpec) -> None:
    made = owners([24], bottom)
    networks = []
    for owner in made.data.values():
        with RandomStream(5, owner.name, "bottom"):
            networks.append(bottom.build(owner.shape, 5))
    with RandomStream(5, "top"):
        top = TopSpec(5, (6,), 3).build()
    parameters = [p for network in [*networks, top] for p in network.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    order = generator(5, "l1", "batches")
    labels = made.labels["l1"].labels_S
    expected = []
    for _ in range(2):
        for rows in torch.randperm(24, generator=order).split(8):
            strips = [owner.shared["l1"][rows] for owner in made.data.values()]
            strips = [x.float() / 255 if x.dtype == torch.uint8 else x for x in strips]
            embeddings = [f(x) for f, x in zip(networks, strips, strict=True)]
            loss = F.cross_entropy(top(torch.stack(embeddings).mean(dim=0)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    _, rounds = run(made, **PLAIN, rounds=6)
    assert [done.metrics["loss"] for done in rounds] == pytest.approx(expected, abs=1e-6)
    for owner, network in zip(made.data.values(), networks, strict=True):
        torch.testing.assert_close(owner.replicas.values[0], vector_of(network), rtol=0, atol=1e-6)
    torch.testing.assert_close(vector_of(made.labels["l1"].top), vector_of(top), rtol=0, atol=1e-6)


def test_through_bytes_is_the_same_bit_for_bit() -> None:
    direct, _ = run(iterate_average=2)
    made = owners()
    encoded, _ = run(made, made.engine(through_bytes=True), iterate_average=2)
    assert_same(direct, encoded)


def test_stepping_the_whole_way_without_momentum_is_fedavg() -> None:
    plain, _ = run(server="average", slowmo="off")
    stepped, _ = run(server="fedavgm", beta=0.0, slowmo="interpolate", alpha=1.0)
    assert_same(plain, stepped, 1e-6)


def test_label_owners_with_the_same_rows_learn_what_one_does() -> None:
    """With full batches both have the same gradient in each step, whatever their batches' order."""
    _, labels = labelled(8)
    made = [owners([8]), owners([8])]
    two = made[1]
    for owner in two.data.values():
        owner.shared["l2"] = owner.shared["l1"]
    two.labels["l2"] = fedoptimus.LabelOwner(Labels("l2", TASK, labels), Local("l2"))
    for each in made:
        run(each, **PLAIN)
    for one, both in zip(made[0].data.values(), two.data.values(), strict=True):
        torch.testing.assert_close(one.replicas.values[0], both.replicas.values[1])


def test_a_round_ends_with_one_model_at_all() -> None:
    made, _ = run(iterate_average=3)
    for owner in made.data.values():
        torch.testing.assert_close(
            owner.replicas.values[0], owner.replicas.values[1], rtol=0, atol=0
        )
    tops = [vector_of(owner.top) for owner in made.labels.values()]
    torch.testing.assert_close(tops[0], tops[1], rtol=0, atol=0)


def test_tops_stay_apart_where_they_are_not_averaged() -> None:
    made, _ = run(average_tops=False)
    tops = [vector_of(owner.top) for owner in made.labels.values()]
    assert not torch.allclose(tops[0], tops[1])


def test_averages_weigh_by_shard_size() -> None:
    made = owners([24, 8])
    coordinator = made.coordinator(config(**PLAIN, rounds=1))
    network = made.engine()
    coordinator.begin(network)
    replicas = {}
    for name, owner in made.data.items():
        average = owner.average

        def seen(owner: Any = owner, name: str = name, average: Any = average) -> None:
            replicas[name] = owner.replicas.values.detach().clone()
            average()

        owner.average = seen  # type: ignore[method-assign]
    coordinator.round(1, network)
    for name, owner in made.data.items():
        apart = replicas[name]
        assert not torch.allclose(apart[0], apart[1])
        torch.testing.assert_close(
            owner.replicas.values[0], 0.75 * apart[0] + 0.25 * apart[1], rtol=0, atol=1e-7
        )


def test_k_steps_are_made_between_averages() -> None:
    _, rounds = run(sync_every=3, rounds=2)
    assert [done.metrics["step"] for done in rounds] == [3, 6]


def test_epochs_are_rounded_up_to_whole_rounds() -> None:
    made = owners()
    coordinator = made.coordinator(config(rounds=None, epochs=3, sync_every=4))
    coordinator.begin(made.engine())
    assert coordinator.steps_per_epoch == 3  # 20 rows in batches of 8
    assert coordinator.num_rounds == 3  # 9 steps


@pytest.mark.trained
@pytest.mark.slow
def test_it_learns() -> None:
    made = owners([120, 80], StripCnn(channels=8, hidden=32))
    settings: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.01, "embedding": 16}
    _, rounds = run(made, rounds=40, **settings)
    assert rounds[-1].metrics["loss"] < 0.5 * rounds[0].metrics["loss"]


def test_the_best_epoch_by_rows_that_a_member_leaves_out_stays() -> None:
    settings = {**MEMBERS, **PLAIN, "patience": 3, "rounds": None, "epochs": 400}
    made = owners(bottom=ColumnsMlp((6,)))
    coordinator = made.coordinator(config(**settings))
    after: dict[int, list[Tensor]] = {}
    losses: dict[int, float] = {}
    for done in train(coordinator, made.engine()):
        bottoms = [owner.replicas.values.detach() for owner in made.data.values()]  # type: ignore[union-attr]
        tops = [vector_of(owner.top) for owner in made.labels.values()]  # type: ignore[arg-type]
        after[done.number] = [*(each[:2].flatten().clone() for each in bottoms), *tops]
        losses |= {done.number: done.metrics["held_out"]} if "held_out" in done.metrics else {}
    best = min(losses, key=lambda number: losses[number])
    assert 1 < best < len(after) < coordinator.num_rounds
    for kept, then in zip(made.models(), after[best], strict=True):
        assert torch.equal(kept, then)
    assert [*losses][-1] == len(after)
    assert 3 <= len(losses) - 1 - [*losses].index(best) + 1 <= 4


def test_a_member_learns_nothing_of_the_rows_that_it_leaves_out() -> None:
    made = owners()
    begun(made, **MEMBERS)
    owner = made.labels["l1"]
    batch = owner.draw(fedoptimus.Draw())
    mean_BE = torch.rand(len(batch.samples_B), 6)
    assert owner.top is not None
    each = [each.detach() for each in owner.top.each(mean_BE)]  # type: ignore[operator]
    learned = owner.learn(fedoptimus.Learn(1, mean_BE, give_top=False))
    assert owner._loss.fold_S is not None
    folds, labels = owner._loss.fold_S[batch.samples_B], owner.labels_S[batch.samples_B]
    assert {0, 1} < {*folds.tolist()} <= {0, 1, 2, 3}  # beyond its members: nobody leaves it out
    moved = learned.gradient_BE.view(-1, 2, 3).any(dim=2)
    assert torch.equal(moved, folds[:, None] != torch.arange(2))
    loss = sum(
        F.cross_entropy(each[member][folds == member], labels[folds == member], reduction="sum")
        for member in (0, 1)
    )
    assert learned.held_out == pytest.approx(2 * float(loss), rel=1e-5)


def test_a_resnet_runs_as_looped_replicas() -> None:
    made, rounds = run(owners(bottom=OwnerResNet(2)), rounds=1, batch_size=10)
    statistics_NQ = made.data["d1"].replicas.statistics_NQ
    torch.testing.assert_close(statistics_NQ[0], statistics_NQ[1])
    assert rounds[0].metrics["loss"] > 0


@pytest.mark.trained
@pytest.mark.slow
def test_a_number_is_learned_too() -> None:
    made = owners()
    for name, owner in made.labels.items():
        labels = owner.labels_S.float() - 1
        scored = {"test": torch.zeros(NUM_TEST)}
        made.labels[name] = fedoptimus.LabelOwner(
            Labels(name, Regression(0.0, 1.0), labels, scored=scored), Local(name)
        )
    coordinator = made.coordinator(config(rounds=30, learning_rate=0.05))
    network = made.engine()
    rounds = list(train(coordinator, network))
    assert rounds[-1].metrics["loss"] < rounds[0].metrics["loss"]
    scores = predicting.score(coordinator, network)
    assert scores["l1"].accuracy is None
    assert scores["l1"].loss > 0


# --- Steps on averages, by hand ----------------------------------------------------------------

W_0 = torch.tensor([1.0, 2.0])
AVERAGES = [torch.tensor([0.0, 3.0]), torch.tensor([0.0, 0.0])]


def trajectory(**changes: Any) -> list[list[float]]:
    server = ServerOptimizer(fedoptimus.Config(**changes), W_0)
    return [server.step(average).tolist() for average in AVERAGES]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"server": "average", "slowmo": "off"}, [[0, 3], [0, 0]]),
        # m = 0.5 delta = (0.5, -0.5), w = (0.5, 2.5); delta = w, m = (0.25, -0.25) + w / 2.
        (
            {"server": "fedavgm", "beta": 0.5, "slowmo": "off"},
            [[0.5, 2.5], [0.0, 1.5]],
        ),
        # The same, half as far each time: w = (0.75, 2.25); delta = w, m = (0.625, 0.875).
        (
            {"server": "fedavgm", "beta": 0.5, "server_learning_rate": 0.5, "slowmo": "off"},
            [[0.75, 2.25], [0.4375, 1.8125]],
        ),
        # v = delta = (1, -1), w = (0, 3); v = (0.5, -0.5) + w.
        (
            {"server": "fedavgm", "server_momentum": "undamped", "beta": 0.5, "slowmo": "off"},
            [[0.0, 3.0], [-0.5, 0.5]],
        ),
        # m = (0.5, -0.5) over 0.5; m = (0.25, -0.25) + (0, 1.5) over 0.75.
        (
            {"server": "fedavgm", "server_momentum": "corrected", "beta": 0.5, "slowmo": "off"},
            [[0.0, 3.0], [pytest.approx(-1 / 3), pytest.approx(4 / 3)]],
        ),
        # A quarter of w_t stays: (0.25, 2.75); then a quarter of that.
        (
            {"server": "average", "slowmo": "interpolate", "alpha": 0.75},
            [[0.25, 2.75], [0.0625, 0.6875]],
        ),
        # A quarter of w_0 each time.
        (
            {"server": "average", "slowmo": "initial", "alpha": 0.75},
            [[0.25, 2.75], [0.25, 0.5]],
        ),
        # u = w - average = (1, -1), w = (0, 3); u = (0.5, -0.5) + (0, 3), w = (-0.5, 0.5).
        (
            {"server": "average", "slowmo": "momentum", "slow_momentum": 0.5},
            [[0.0, 3.0], [-0.5, 0.5]],
        ),
        # FedAvgM's (0.5, 2.5) half the way: (0.75, 2.25); m = (0.25, -0.25) + (0.375, 1.125).
        (
            {"server": "fedavgm", "beta": 0.5, "slowmo": "interpolate", "alpha": 0.5},
            [[0.75, 2.25], [0.4375, 1.8125]],
        ),
    ],
)
def test_a_server_optimizer_goes_where_a_hand_says(
    settings: dict[str, Any], expected: list[list[float]]
) -> None:
    assert trajectory(**settings) == expected


def test_corrected_momentum_goes_on_where_it_was_stopped() -> None:
    config = fedoptimus.Config(server="fedavgm", server_momentum="corrected")
    through, stopped = ServerOptimizer(config, W_0), ServerOptimizer(config, W_0)
    stopped.step(AVERAGES[0])
    resumed = ServerOptimizer(config, W_0)
    resumed.restore(stopped.state())
    expected = [through.step(average) for average in AVERAGES]
    assert torch.equal(resumed.step(AVERAGES[1]), expected[1])


def test_optimizers_begin_anew_at_each_average_if_asked() -> None:
    made = owners()
    coordinator = made.coordinator(config(optimizer="adam", reset=True, rounds=2))
    network = made.engine()
    coordinator.begin(network)
    for number in (1, 2):
        coordinator.round(number, network)
        for owner in [*made.data.values(), *made.labels.values()]:
            assert not owner.optimizer.state, owner.name


def test_sgd_without_momentum_has_nothing_to_begin_anew() -> None:
    assert_same(run(optimizer="sgd", reset=True)[0], run(optimizer="sgd")[0])


def test_the_mean_of_the_last_iterates_is_over_so_many() -> None:
    iterates = Iterates(2)
    for value in (1.0, 2.0, 6.0):
        iterates.add(torch.tensor([value]))
    assert iterates.mean(torch.tensor([9.0])).tolist() == [4.0]
    alone = Iterates(1)
    alone.add(torch.tensor([1.0]))
    assert alone.mean(torch.tensor([9.0])).tolist() == [9.0]


def test_defaults_are_the_papers() -> None:
    paper = fedoptimus.Config()
    assert (paper.batch_size, paper.learning_rate, paper.epochs) == (128, 1e-3, 100)
    assert (paper.sync_every, paper.beta, paper.alpha) == (5, 0.9, 0.99)


# --- Who takes part ----------------------------------------------------------------------------


def test_a_share_of_the_data_owners_takes_part_and_others_stay_as_they_were() -> None:
    made = owners(num_data=4)
    coordinator = made.coordinator(config(share=0.5, rounds=3))
    network = made.engine()
    coordinator.begin(network)
    seen = set()
    for number in range(1, 7):
        before = {name: owner.replicas.values.detach().clone() for name, owner in made.data.items()}
        done = coordinator.round(number, network)
        assert len(done.participants) == 2
        seen.add(done.participants)
        for name, owner in made.data.items():
            stayed = torch.equal(before[name], owner.replicas.values.detach())
            assert stayed == (name not in done.participants)
    assert len(seen) > 1


def test_choose_says_who_takes_part() -> None:
    numbers: list[int] = []

    def choose(number: int, network: Engine) -> list[str]:
        assert set(network.parties) == {"d1", "d2", "l1", "l2"}
        numbers.append(number)
        return ["d2"]

    _, rounds = run(choose=choose)
    assert numbers == [1, 2, 3, 4]
    assert {done.participants for done in rounds} == {("d2",)}


@pytest.mark.parametrize("chosen", [(), ("d1", "d9")])
def test_a_choice_that_cannot_be_is_refused(chosen: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"choose one or more of the data owners \['d1', 'd2'\]"):
        run(choose=lambda number, network: chosen)


@pytest.mark.parametrize(
    "wrong", [{"sync_every": 0}, {"share": 0.0}, {"share": 1.01}, {"alpha": 0.0}, {"beta": 1.0}]
)
def test_settings_outside_their_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        fedoptimus.Config(**wrong)


# --- Owners that fail --------------------------------------------------------------------------


def test_a_data_owner_that_does_not_answer_is_left_out_and_asked_again() -> None:
    made = owners()
    network = replacing(
        made, "d2", fails=lambda m: isinstance(m, fedoptimus.Step) and m.step in (2, 3)
    )
    _, rounds = run(made, network, sync_every=5)
    assert rounds[0].missed == {"d2": 2}
    assert rounds[0].reasons == {"d2": "is out"}
    assert [done.missed for done in rounds[1:]] == [{}, {}, {}]


def test_a_data_owner_that_never_answers_is_as_if_it_were_not_there() -> None:
    made = owners()
    _, rounds = run(
        made, replacing(made, "d2", fails=lambda m: isinstance(m, fedoptimus.Step | Average))
    )
    alone = owners()
    run(alone, choose=lambda number, network: ["d1"])
    assert rounds[0].missed == {"d2": 6}
    torch.testing.assert_close(
        made.data["d1"].replicas.values, alone.data["d1"].replicas.values, rtol=0, atol=0
    )


Average = fedoptimus.Average


def test_a_data_owner_that_missed_the_average_makes_it_before_it_goes_on() -> None:
    made = owners()
    network = replacing(
        made, "d2", fails=lambda m: isinstance(m, fedoptimus.Average) and m.round == 1
    )
    _, rounds = run(made, network)
    assert rounds[0].missed == {"d2": 1}
    values = made.data["d2"].replicas.values
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_label_owner_that_does_not_answer_has_no_batch_until_it_does(optimizer: str) -> None:
    made = owners()
    out = [1, 2, 3]
    network = replacing(
        made, "l2", fails=lambda m: isinstance(m, fedoptimus.Learn) and bool(out) and out.pop() > 0
    )
    coordinator = made.coordinator(config(sync_every=2, optimizer=optimizer, momentum=0.5))
    coordinator.begin(network)
    start = made.data["d1"].replicas.values.detach().clone()
    average, seen = made.data["d1"].average, []

    def watched() -> None:
        seen.append(made.data["d1"].replicas.values.detach().clone())
        average()

    made.data["d1"].average = watched  # type: ignore[method-assign]
    rounds = [coordinator.round(number, network) for number in (1, 2)]
    assert [done.missed for done in rounds] == [{"l2": 2}, {"l2": 1}]
    assert set(rounds[0].losses) == {"l1"}
    assert torch.equal(seen[0][1], start[1])  # its replica did not move
    assert not torch.equal(seen[0][0], start[0])
    assert set(rounds[1].losses) == {"l1", "l2"}


def test_nobody_left_is_an_error_that_says_why() -> None:
    made = owners(num_data=1)
    network = replacing(made, "d1", fails=lambda m: isinstance(m, fedoptimus.Step))
    with pytest.raises(TrainingError, match=r"no data owner answered in round 1 \(d1: is out\)"):
        run(made, network)


# --- Owners that lie ---------------------------------------------------------------------------


def of(kind: type[Message], **changes: Any) -> Callable[[Message], Message]:
    """Replies of this kind, with these fields changed."""

    def answer(reply: Message) -> Message:
        if not isinstance(reply, kind):
            return reply
        changed = {name: make(getattr(reply, name)) for name, make in changes.items()}
        return replace(reply, **changed)

    return answer


@pytest.mark.parametrize(
    ("who", "answer", "why"),
    [
        ("d2", of(messages.Embeddings, embedding_BE=lambda x: x * torch.nan), "not finite"),
        ("d2", of(messages.Embeddings, embedding_BE=lambda x: x[:-1]), "expected shape"),
        ("d2", of(messages.Embeddings, embedding_BE=lambda x: x.double()), "float32"),
        ("l2", of(fedoptimus.Learned, gradient_BE=lambda x: x / 0), "not finite"),
        ("l2", of(fedoptimus.Learned, gradient_BE=lambda x: x[1:]), "expected shape"),
        ("l2", of(fedoptimus.Learned, loss=lambda x: float("inf")), "loss is not finite"),
        ("l2", of(fedoptimus.Learned, samples_B=lambda x: x + 17), "outside the 17"),
        ("l2", of(fedoptimus.Learned, samples_B=lambda x: x.repeat(9)), "1 to 8 samples"),
        ("l2", of(fedoptimus.Batch, samples_B=lambda x: x - 17), "outside the 17"),
        ("l2", of(fedoptimus.Learned, top_P=lambda x: x[:-1]), "expected shape"),
    ],
)
def test_what_cannot_be_is_refused_and_its_owner_named(
    who: str, answer: Callable[[Message], Message], why: str
) -> None:
    made = owners()
    _, rounds = run(made, replacing(made, who, answer=answer), rounds=1)
    assert set(rounds[0].missed) == {who}
    assert why in rounds[0].reasons[who]
    assert all(weights.isfinite().all() for weights in made.weights())


def step_message(**changes: Any) -> fedoptimus.Step:
    sizes = (4, 4)
    message = fedoptimus.Step(1, 0, torch.empty(0, 5), (0, 0), 1, torch.arange(4).repeat(2), sizes)
    return replace(message, **changes)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (step_message(samples_B=torch.tensor([0, 1, 2, 20, 0, 1, 2, 3])), "outside the 20"),
        (step_message(samples_B=torch.arange(7)), "expected shape"),
        (step_message(sizes=(8,)), "a size for each"),
        (step_message(samples_B=torch.zeros(21).long(), sizes=(21, 0)), "each sample once"),
        (step_message(gradient_BE=torch.full((1, 5), torch.nan), learned=(1, 0)), "not finite"),
        (step_message(gradient_BE=torch.zeros(8, 5), learned=(4, 3)), "expected shape"),
        (messages.Embed("l9", torch.arange(2), True), "shares no test rows with 'l9'"),
        (messages.Embed("l1", torch.arange(12), True), "each sample once"),
    ],
)
def test_a_data_owner_refuses_what_cannot_be(message: Message, why: str) -> None:
    made = owners()
    network = made.engine()
    made.coordinator(config()).begin(network)
    replies = network.ask({"d1": message}, messages.Embeddings)
    assert why in replies.failures["d1"].cause


def test_a_gradient_of_other_rows_is_refused() -> None:
    made = owners()
    network = made.engine()
    made.coordinator(config()).begin(network)
    before = made.data["d1"].replicas.values.detach().clone()
    network.ask({"d1": step_message()}, messages.Embeddings).or_raise()
    wrong = step_message(step=2, previous=1, gradient_BE=torch.ones(7, 5), learned=(4, 3))
    replies = network.ask({"d1": wrong}, messages.Embeddings)
    assert "the gradient is of (4, 3)" in replies.failures["d1"].cause
    assert torch.equal(before, made.data["d1"].replicas.values.detach())


@pytest.mark.parametrize(
    "message",
    [
        step_message(),
        fedoptimus.Learn(1, torch.zeros(2, 5), False),
        fedoptimus.Draw(),
    ],
)
def test_nothing_is_done_before_training_began(message: Message) -> None:
    made = owners()
    name = "d1" if isinstance(message, fedoptimus.Step) else "l1"
    replies = made.engine().ask({name: message}, Message)
    assert "before training began" in replies.failures[name].cause


# --- Owners that do not fit together -----------------------------------------------------------


def begun(made: Owners, **changes: Any) -> None:
    made.coordinator(config(**changes)).begin(made.engine())


def test_a_data_owner_without_rows_of_a_shard_is_refused() -> None:
    made = owners()
    del made.data["d2"].shared["l1"]
    with pytest.raises(PartyError, match=r"'d2': it has no rows .* of label owner 'l1'"):
        begun(made)


def test_a_data_owner_that_lacks_some_rows_is_refused() -> None:
    made = owners()
    shared = made.data["d2"].shared["l1"]
    lacking = torch.where(shared.rows_S == 3, -1, shared.rows_S)
    made.data["d2"].shared["l1"] = replace(shared, rows_S=lacking)
    with pytest.raises(PartyError, match=r"'d2': it lacks 1 of the 20 samples of label owner 'l1'"):
        begun(made)


def test_orders_of_different_lengths_are_refused() -> None:
    made = owners()
    shared = made.data["d2"].shared["l1"]
    made.data["d2"].shared["l1"] = replace(shared, rows_S=shared.rows_S[:-1])
    with pytest.raises(PartyError, match=r"shares 19 samples with label owner 'l1', .* says 20"):
        begun(made)


def test_label_owners_of_different_classes_are_refused() -> None:
    made = owners()
    other = Classification((0, 1, 3))
    held = Labels("l2", other, made.labels["l2"].labels_S)
    made.labels["l2"] = fedoptimus.LabelOwner(held, Local("l2"))
    with pytest.raises(ConfigError, match="all label owners learn one task"):
        begun(made)


def test_a_label_owner_without_labels_is_refused() -> None:
    with pytest.raises(ConfigError, match="'l1' needs one training sample or more"):
        fedoptimus.LabelOwner(Labels("l1", TASK, torch.full((4,), -1)), Local("l1"))


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        ({"embedding": 2**21}, "at most 100 layers of width 1048576"),
        ({"top": (2**15, 2**15)}, "bytes of parameters here"),
        ({"embedding": 2**19, "batch_size": 2}, "bytes of parameters here"),
        ({"iterate_average": 10**9}, "bytes of parameters here"),
    ],
)
def test_sizes_that_would_fill_a_partys_memory_are_refused(
    settings: dict[str, Any], who: str
) -> None:
    with pytest.raises(PartyError, match=who):
        begun(owners(bottom=StripCnn(channels=3, hidden=200)), **settings)


# --- Resuming ----------------------------------------------------------------------------------

EVERYTHING = {
    "optimizer": "adam",
    "iterate_average": 3,
    "sync_every": 2,
    "share": 0.5,
    "learning_rate": 0.01,
    "slowmo": "momentum",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        EVERYTHING,
        {**EVERYTHING, "slowmo": "initial", "optimizer": "sgd", "momentum": 0.5},
        {},
        MEMBERS,
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    def go(folder: Path, stop: int) -> tuple[Owners, Engine]:
        made = owners(num_data=4)
        checkpoint = Checkpoint(folder, about={"seed": 5})
        parties = checkpoint.hosting({**made.data, **made.labels})
        network = InProcess(parties, driver="hub")
        training = train(made.coordinator(config(**settings)), network, checkpoint)
        for done in training:
            if done.number == stop:
                next(training, None)  # saves this round; one more is made, and lost
                break
        return made, network

    whole, one = go(tmp_path / "whole", 4)
    go(tmp_path / "parts", 2)
    resumed, other = go(tmp_path / "parts", 4)
    assert_same(whole, resumed)
    for left, right in zip(whole.models(), resumed.models(), strict=True):
        assert torch.equal(left, right)
    assert one.ledger.state() == other.ledger.state()


def test_a_data_owner_that_lost_its_disk_begins_anew(tmp_path: Path) -> None:
    made = owners()
    checkpoint = Checkpoint(tmp_path)
    network = InProcess(checkpoint.hosting({**made.data, **made.labels}), driver="hub")
    training = train(made.coordinator(config()), network, checkpoint)
    next(training), next(training)
    training.close()
    for lost in ("d2", "l1"):
        for path in (tmp_path / "parties" / lost).iterdir():
            path.unlink()
    made = owners()
    checkpoint = Checkpoint(tmp_path)
    network = InProcess(checkpoint.hosting({**made.data, **made.labels}), driver="hub")
    rounds = list(train(made.coordinator(config()), network, checkpoint))
    assert [done.number for done in rounds] == [2, 3, 4]
    assert all(not done.missed for done in rounds)
    tops = [vector_of(owner.top) for owner in made.labels.values()]
    assert torch.equal(tops[0], tops[1])


def test_other_owners_do_not_go_on() -> None:
    made = owners()
    coordinator = made.coordinator(config())
    coordinator.begin(made.engine())
    other = fedoptimus.Coordinator(config(), data_owners=["d1"], label_owners=["l1"], seed=5)
    with pytest.raises(ConfigError, match="the saved run is of owners"):
        other.restore(coordinator.state())


# --- Predicting together -----------------------------------------------------------------------


def trained() -> tuple[Owners, fedoptimus.Coordinator, InProcess]:
    made = owners()
    coordinator = made.coordinator(config())
    network = made.engine()
    list(train(coordinator, network))
    return made, coordinator, network


def blocks(made: Owners) -> dict[str, Tensor]:
    return {name: owner.test["l1"].x for name, owner in made.data.items()}


def test_the_joint_model_says_what_messages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SCORED_AT_ONCE", 4)
    made, coordinator, network = trained()
    model = predicting.joint(made.labels["l1"], list(made.data.values()))
    outputs = model.outputs(blocks(made))
    samples = torch.arange(NUM_TEST)
    together = predict(
        network, made.labels["l1"].model(), "l1", samples, data_owners=["d1", "d2"], batch_size=4
    )
    torch.testing.assert_close(together.outputs, outputs)
    assert together.answered == ("d1", "d2")
    assert together.missed == {}
    labels = made.labels["l1"].test_labels
    scored = predicting.score(coordinator, network)
    right = (outputs.argmax(dim=1) == labels).float().mean().item()
    assert scored["l1"].accuracy == pytest.approx(right)
    assert scored["l1"].loss == pytest.approx(F.cross_entropy(outputs, labels).item())
    assert scored["l1"] == replace(scored["l2"])


def test_a_label_owner_tells_of_no_test_sample_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SCORED_AT_ONCE", 4)
    made, coordinator, network = trained()
    owner = made.labels["l1"]
    asked: list[tuple[messages.Measure, messages.Measured]] = []

    def seen(message: Any, handle: Any = owner.handle) -> Any:
        answer = handle(message)
        if isinstance(message, messages.Measure):
            asked.append((message, answer))
        return answer

    monkeypatch.setattr(owner, "handle", seen)
    whole = predicting.score(coordinator, network, label_owners=["l1"])["l1"]
    assert [len(message.samples_B) for message, _ in asked] == [4, 4, 3]
    answers = [(answer.loss, answer.num_right, answer.num_rows) for _, answer in asked]
    assert answers[:-1] == [(0.0, 0, 0)] * 2
    assert whole.accuracy is not None
    right = round(whole.accuracy * NUM_TEST)
    assert answers[-1] == (pytest.approx(whole.loss * NUM_TEST), right, NUM_TEST)
    code_E = asked[0][0].mean_BE[:1]
    for indices in ([0], [3], [4], [0, 1, 2], [1, 0, 2, 3]):  # by itself, again, in another order
        one = messages.Measure(torch.tensor(indices), code_E.expand(len(indices), -1))
        with pytest.raises(MessageError, match="its 11 samples come in order, 4 at a time"):
            owner.handle(one)
    first, second = asked[0][0], asked[1][0]
    owner.handle(first)
    owner.handle(second)
    assert owner.handle(first).num_rows == 0  # type: ignore[attr-defined]  # anew, not the last
    with pytest.raises(MessageError, match="mean_BE"):
        owner.handle(messages.Measure(second.samples_B, second.mean_BE[:, :-1]))


def test_a_label_owner_scores_no_more_often_than_its_policy_says() -> None:
    made = owners()
    shown = made.labels["l1"]
    made.labels["l1"] = fedoptimus.LabelOwner(replace(shown.data, max_scored=2), Local("l1"))
    coordinator = made.coordinator(config())
    network = made.engine()
    list(train(coordinator, network))
    for _ in range(2):
        predicting.score(coordinator, network, label_owners=["l1"])
    with pytest.raises(PartyError, match=r"'l1'.*more than 2 times.*policy\.max_uses"):
        predicting.score(coordinator, network, label_owners=["l1"])
    predicting.score(coordinator, network, label_owners=["l2"])


def test_a_data_owner_missing_at_inference_is_left_out_and_named() -> None:
    made, coordinator, _ = trained()
    network = replacing(made, "d2", fails=lambda m: isinstance(m, messages.Embed))
    top = made.labels["l1"].model()
    names = ["d1", "d2"]
    together = predict(network, top, "l1", torch.arange(3), data_owners=names)
    assert together.answered == ("d1",)
    assert together.missed == {"d2": "is out"}
    model = predicting.joint(made.labels["l1"], list(made.data.values()))
    alone = model.outputs({"d1": blocks(made)["d1"][:3]})
    torch.testing.assert_close(together.outputs, alone)
    assert predicting.score(coordinator, network)["l1"].answered == ("d1",)


def test_saved_owners_predict_as_they_did(tmp_path: Path) -> None:
    made, _, _ = trained()
    model = predicting.joint(made.labels["l1"], list(made.data.values()))
    outputs = model.outputs(blocks(made))
    torch.testing.assert_close(load(model.save(tmp_path / "joint")).outputs(blocks(made)), outputs)
    kept = [
        load_bottom(owner.bottom_model().save(tmp_path / name)) for name, owner in made.data.items()
    ]
    top = load(made.labels["l1"].model().save(tmp_path / "top"))
    torch.testing.assert_close(join(top, kept).outputs(blocks(made)), outputs)


def test_every_owner_is_told_that_training_is_over_but_who_was_not_chosen() -> None:
    made = owners(num_data=2)
    ended = []

    class Told(Failing):
        def handle(self, message: Message) -> Message:
            if isinstance(message, messages.FinishData | messages.FinishLabels):
                ended.append(self.party.name)
            return super().handle(message)

    parties = {name: Told(party) for name, party in {**made.data, **made.labels}.items()}
    network = InProcess(parties, driver="hub")
    run(made, network)
    assert sorted(ended) == ["d1", "d2", "l1", "l2"]
    ended.clear()
    run(made, network, choose=lambda number, network: ["d2"])
    assert sorted(ended) == ["d2", "l1", "l2"]


# --- Each at its site -----------------------------------------------------------------------------


def at_sites(made: Owners, held: dict[str, Tensor], seed: int = 3) -> dict[str, Any]:
    """Data owners after training, who have these of the test samples, each in an order of its own.

    What a label owner and a data owner agree on is the label owner's numbers of samples.
    """
    parties = {}
    for index, (name, held_N) in enumerate(held.items()):
        rng = torch.Generator().manual_seed(seed + index)
        order = torch.randperm(len(held_N), generator=rng)  # row -> sample
        rows_S = torch.where(held_N, order.argsort(), -1)
        owner = made.data[name]

        def kept(trained: str, owner: Any = owner, order: Tensor = order) -> Any:
            if trained != "run":
                raise PartyError(owner.name, f"it keeps no network of the run {trained!r}")
            return owner.bottom_model(), owner.test["l1"].x[order]

        parties[name] = predicting.Inference(rows_S, kept, Local(name))
    return parties


def held_of(**names: Sequence[int]) -> dict[str, Tensor]:
    """Data owner -> which test samples it has, all but these."""
    held = {name: torch.ones(NUM_TEST, dtype=torch.bool) for name in names}
    for name, absent in names.items():
        held[name][list(absent)] = False
    return held


def test_owners_at_home_predict_as_in_one_place() -> None:
    made, _, _ = trained()
    model = predicting.joint(made.labels["l1"], list(made.data.values()))
    held = held_of(d1=[], d2=[])
    network = InProcess(at_sites(made, held), driver="l1")
    answer = inference.ask(network, "run", predicting.EmbeddingsOf(5), held, batch_size=4)
    outputs = made.labels["l1"].model().outputs(answer.mean())
    torch.testing.assert_close(outputs, model.outputs(blocks(made)))
    assert answer.missed == {}


def test_a_mean_is_over_those_that_have_the_sample() -> None:
    made, _, _ = trained()
    model = predicting.joint(made.labels["l1"], list(made.data.values()))
    held = held_of(d1=[0, 1], d2=[1, 2, 5])
    network = InProcess(at_sites(made, held), driver="l1")
    answer = inference.ask(network, "run", predicting.EmbeddingsOf(5), held, batch_size=4)
    assert answer.answered.keys() == {"d1", "d2"}
    for name, answered in answer.answered.items():
        assert torch.equal(answered, held[name])
    outputs = made.labels["l1"].model().outputs(answer.mean())
    x = blocks(made)
    both = model.outputs(x)
    torch.testing.assert_close(outputs[[3, 4]], both[[3, 4]])
    torch.testing.assert_close(outputs[0], model.outputs({"d2": x["d2"]})[0])
    torch.testing.assert_close(outputs[[2, 5]], model.outputs({"d1": x["d1"]})[[2, 5]])
    assert not answer.mean()[1].any()


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        ({"fails": lambda m: 5 in m.samples_B}, "is out"),
        ({"answer": lambda reply: replace(reply, embedding_BE=reply.embedding_BE[1:])}, "shape"),
        ({"answer": lambda reply: replace(reply, embedding_BE=reply.embedding_BE / 0)}, "finite"),
    ],
)
def test_who_fails_once_is_left_out_of_what_follows(failing: Any, words: str) -> None:
    made, _, _ = trained()
    held = held_of(d1=[], d2=[])
    parties = at_sites(made, held)
    parties["d2"] = Failing(parties["d2"], **failing)
    answer = inference.ask(
        InProcess(parties, driver="l1"), "run", predicting.EmbeddingsOf(5), held, batch_size=4
    )
    assert answer.answered["d1"].all()
    num = 4 if "fails" in failing else 0  # the first message is answered before sample 5 comes
    assert answer.answered["d2"].nonzero().flatten().tolist() == list(range(num))
    assert words in answer.missed["d2"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (predicting.Recall("run", torch.arange(NUM_TEST + 1)), "each sample once"),
        (predicting.Recall("run", torch.tensor([NUM_TEST])), "outside the 11"),
        (predicting.Recall("run", torch.tensor([2])), "1 samples it does not have"),
        (predicting.Recall("run", torch.tensor([[1]])), "expected shape"),
        (predicting.Recall("other", torch.tensor([1])), "keeps no network of the run 'other'"),
    ],
)
def test_a_data_owner_at_home_refuses_what_cannot_be(message: Message, words: str) -> None:
    made, _, _ = trained()
    network = InProcess(at_sites(made, held_of(d1=[2])), driver="l1")
    replies = network.ask({"d1": message}, messages.Embeddings)
    assert words in replies.failures["d1"].cause


def test_features_are_the_replicas_embeddings() -> None:
    made, _, _ = trained()
    owner = made.data["d1"]
    samples = torch.tensor([3, 0])
    expected = owner.bottom_model().embed(owner.shared["l2"][samples])
    torch.testing.assert_close(owner.features("l2", samples), expected)


def test_one_party_may_have_columns_and_labels() -> None:
    made = owners()
    parties: dict[str, Any] = {"d1": made.data["d1"], "l1": made.labels["l1"]}
    parties["both"] = Composite(made.data["d2"], made.labels["l2"])
    for owner in made.data.values():
        owner.shared["both"] = owner.shared.pop("l2")
    coordinator = fedoptimus.Coordinator(
        config(), data_owners=["d1", "both"], label_owners=["l1", "both"], seed=5
    )
    rounds = list(train(coordinator, InProcess(parties, driver="hub")))
    other, expected = run()
    assert [done.metrics["loss"] for done in rounds] == pytest.approx(
        [done.metrics["loss"] for done in expected]
    )
    assert torch.equal(other.data["d1"].replicas.values, made.data["d1"].replicas.values)
    copy.deepcopy(rounds)
