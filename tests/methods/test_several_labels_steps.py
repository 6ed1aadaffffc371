"""Several labels, and numbers, in CHFL and HyFEM: what a step depends on and leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dovetail.data import (
    Amounts,
    Counts,
    MultiLabel,
    MultiTarget,
    PartyData,
    Quantiles,
    Task,
    table_from_arrays,
)
from dovetail.errors import ConfigError
from dovetail.federated import Local
from dovetail.federated import train as train_rounds
from dovetail.methods import hyfem
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.outcome import goodness
from dovetail.models import Column, Perceptron
from dovetail.models.decisions import Supervised
from dovetail.network import InProcess
from dovetail.settings.privacy import PrivateSteps

LABELS = ("relapse", "sepsis", "pain")
YES_OR_NO = MultiLabel(LABELS)
NUMBERS = MultiTarget(LABELS, (0.0, 1.0, 2.0), (1.0, 2.0, 3.0))
TASKS = [pytest.param(task, id=task.kind) for task in (YES_OR_NO, NUMBERS)]
ONE_NUMBER = [
    pytest.param(Counts(1.0), id="counts"),
    pytest.param(Counts(1.0, "years"), id="a rate"),
    pytest.param(Amounts(1.0), id="amounts"),
    pytest.param(Quantiles(0.0, 1.0), id="quantiles"),
]
#: One step of plain gradient descent on all rows of a party.
ONE_STEP: dict[str, Any] = {
    "widths": (5,), "rounds": 1, "local_epochs": 1, "batch_size": 64, "learning_rate": 0.5,
    "optimizer": "sgd", "momentum": 0.0,
}  # fmt: skip


def drawn(task: Task, num_rows: int, seed: int = 0, lacks: int | None = None) -> PartyData:
    """Rows of two columns; a quarter of the labels is missing, and all of label ``lacks``."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 2))
    if not isinstance(task, (MultiLabel, MultiTarget)):
        return _numbers(task, x, rng, seed)
    said = np.stack([x[:, 0], x[:, 1], x.sum(axis=1)], axis=1)
    labels = (said > 0).astype(np.float32) if isinstance(task, MultiLabel) else said
    labels = np.where(rng.random(labels.shape) < 0.25, np.nan, labels)
    labels[0] = 1.0
    if lacks is not None:
        labels[:, lacks] = np.nan
    table = table_from_arrays("t", {"age": x[:, 0], "dose": x[:, 1]})
    ids = np.arange(num_rows) + 1000 * seed
    y = torch.from_numpy(labels).float()
    return PartyData(f"p{seed}", ids, labels=y, tables={"columns": table})


def _numbers(task: Task, x: np.ndarray, rng: np.random.Generator, seed: int) -> PartyData:
    """Counts with their exposure, amounts or a number that depend on the first column."""
    amounts = rng.gamma(4, np.exp(x[:, 0]) / 4).astype(np.float32)
    labels = torch.from_numpy(amounts)
    if isinstance(task, Counts) and task.exposure is not None:
        exposures = rng.uniform(0.5, 2, len(x))
        both = np.stack([rng.poisson(amounts * exposures), exposures], axis=1)
        labels = torch.from_numpy(both).float()
    table = table_from_arrays("t", {"age": x[:, 0], "dose": x[:, 1]})
    ids = np.arange(len(x)) + 1000 * seed
    return PartyData(f"p{seed}", ids, labels=labels, tables={"columns": table})


def labelled(rows: PartyData) -> PartyData:
    return rows.take(rows.labelled_rows())


def member_of(rows: PartyData, task: Task) -> chfl.Member:
    return chfl.Member(chfl.ChflData(labelled(rows), task, ("age", "dose")), Local(rows.name))


def trained(parts: list[PartyData], task: Task, **changes: Any) -> chfl.Coordinator:
    members = {rows.name: member_of(rows, task) for rows in parts}
    coordinator = chfl.Coordinator(chfl.Config(**{**ONE_STEP, **changes}), seed=3)
    list(chfl.train(coordinator, InProcess(members, driver="hub")))
    return coordinator


@pytest.mark.parametrize("task", [*TASKS, *ONE_NUMBER])
def test_a_step_of_parties_is_the_step_of_their_pooled_rows(task: Task) -> None:
    parts = [labelled(drawn(task, rows, seed)) for seed, rows in ((1, 20), (2, 13), (3, 31))]
    weighed = trained(parts, task, weights="samples")
    pooled = PartyData(
        "pooled",
        np.concatenate([rows.ids for rows in parts]),
        labels=torch.cat([rows.required_labels for rows in parts]),
    )
    members = {rows.name: member_of(rows, task) for rows in parts}
    coordinator = chfl.Coordinator(chfl.Config(**{**ONE_STEP, "rounds": 1}), seed=3)
    rounds = chfl.train(coordinator, InProcess(members, driver="hub"))
    start = coordinator.initial(2, task.num_outputs)
    next(iter(rounds))
    x = torch.cat([members[rows.name].x_common for rows in parts])
    column = Column.build(2, (5,), task.num_outputs)
    torch.nn.utils.vector_to_parameters(start, column.parameters())
    Supervised(task).of(column(x), pooled.required_labels).backward()
    gradient = torch.cat([each.grad.flatten() for each in column.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(weighed.common_P, start - 0.5 * gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("task", TASKS)
def test_a_label_alone_has_the_gradient_that_it_has_among_others_that_are_missing(
    task: Task,
) -> None:
    labels = drawn(task, 30).required_labels
    x, column = torch.randn(30, 2), Column.build(2, (5,), 3)
    only = labels.clone()
    only[:, 1:] = torch.nan

    def gradients(network: Column, task: Task, labels: Tensor) -> list[Tensor]:
        Supervised(task).of(network(x), labels).backward()
        return [each.grad for each in network.parameters() if each.grad is not None]

    one = Column.build(2, (5,), 1)
    one.load_state_dict(
        {k: v[:1] if k.startswith("layers.1") else v for k, v in column.state_dict().items()}
    )
    alone: Task = MultiLabel(LABELS[:1])
    if isinstance(task, MultiTarget):
        alone = MultiTarget(LABELS[:1], task.means[:1], task.scales[:1])
    among, expected = gradients(column, task, only), gradients(one, alone, labels[:, :1])
    for whole, part in zip(among[:2], expected[:2], strict=True):
        torch.testing.assert_close(whole, part, atol=1e-7, rtol=1e-6)
    for whole, part in zip(among[2:], expected[2:], strict=True):
        torch.testing.assert_close(whole[:1], part, atol=1e-7, rtol=1e-6)
        assert not whole[1:].any()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("task", TASKS)
def test_a_label_that_a_party_lacks_moves_no_weight_of_its_head(task: Task, optimizer: str) -> None:
    """Weight decay would: Adam's as fast as any gradient."""
    rows = drawn(task, 40, lacks=1)
    own = chfl.ChflData(labelled(rows), task, ("age",))
    member = chfl.Member(own, Local("p0"))
    config = chfl.Config(
        widths=(5,), local_epochs=3, batch_size=8, optimizer=optimizer, weight_decay=0.1
    )
    coordinator = chfl.Coordinator(config, seed=0)
    rounds = chfl.train(coordinator, InProcess({"p0": member}, driver="hub"))
    start = coordinator.initial(1, 3)
    next(iter(rounds))
    column = Column.build(1, (5,), 3)
    torch.nn.utils.vector_to_parameters(start, column.parameters())
    before, after = column.layers[-1], member.columns.common.layers[-1]
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(old[1], new[1])
        assert (old[[0, 2]] != new[[0, 2]]).all()
    assert member.columns.unique is not None
    for head in member.columns.unique.heads():  # of what it never saw its own tower says nothing
        for each in head.parameters():
            assert not each[1].any()
            assert each[0].any()


def hyfem_rounds(parts: list[PartyData], task: Task, **changes: Any) -> hyfem.Coordinator:
    x = {rows.name: torch.randn(len(rows.ids), 2) for rows in parts}
    data = [
        PartyData(rows.name, rows.ids, {"age": x[rows.name]}, labels=rows.labels) for rows in parts
    ]
    members = {
        rows.name: hyfem.Member(hyfem.HyfemData(rows, task, (4,)), Local(rows.name))
        for rows in data
    }
    settings = {"rounds": 1, "local_steps": 6, "batch_size": 8, "weight_decay": 0.1, **changes}
    coordinator = hyfem.Coordinator(
        task, {"age": Perceptron((3,))}, hyfem.Settings(**settings), seed=0
    )
    rounds = train_rounds(coordinator, InProcess(members, driver="server"))
    next(iter(rounds))
    return coordinator


@pytest.mark.parametrize("task", TASKS)
def test_a_label_is_learnt_from_the_parties_that_know_it(task: Task) -> None:
    parts = [drawn(task, 40, 1), drawn(task, 24, 2, lacks=1)]
    coordinator = hyfem_rounds(parts, task, class_weights=True, match_rounds=0)
    sent = coordinator.known["p1"][1]
    knows = coordinator.agreed.layout.classifier(sent, ("age",), (4,)).layers[-1]
    torch.testing.assert_close(
        torch.as_tensor(coordinator.server.classifier[-1])[1].float(),
        torch.as_tensor(knows)[1].float(),
    )
    counts = (~parts[0].required_labels.isnan()).sum(dim=0).tolist()
    assert coordinator.agreed.class_counts()[0].tolist() == counts
    assert coordinator.agreed.class_counts()[1][1] == 0
    even = hyfem_rounds(parts, task, match_rounds=0)
    start = even.agreed.initial(even.config, 0, "server").classifier[-1]
    idle = even.agreed.layout.classifier(even.known["p2"][1], ("age",), (4,)).layers[-1]
    np.testing.assert_array_equal(np.asarray(idle)[1], np.asarray(start)[1])
    assert (np.asarray(idle)[0] != np.asarray(start)[0]).any()


def test_a_label_that_nobody_has_is_refused() -> None:
    parts = [drawn(YES_OR_NO, 20, seed, lacks=2) for seed in (1, 2)]
    with pytest.raises(ConfigError, match="no party has a sample of label 'pain'; leave the label"):
        hyfem_rounds(parts, YES_OR_NO)


@pytest.mark.parametrize("task", TASKS)
def test_rows_count_within_noise_as_they_do_of_one_label(task: Task) -> None:
    steps = PrivateSteps(clip=0.5, noise=1.0)
    rows = [drawn(task, 40, 1), drawn(task, 30, 2, lacks=1)]
    before = chfl.Coordinator(chfl.Config(**ONE_STEP), seed=3).initial(2, 3)
    coordinator = trained(rows, task, private=steps)
    assert coordinator.common_P.isfinite().all()
    # Noise is on all weights: who has a label is not told by those that do not move.
    assert (coordinator.common_P != before).all()


def test_goodness_is_of_the_labels_that_rows_have() -> None:
    nan = float("nan")
    labels = torch.tensor([[1.0, nan, 0.0], [nan, 1.0, 1.0]])
    outputs = torch.tensor([[2.0, -1.0, 1.0], [3.0, 1.0, 1.0]])
    assert goodness(YES_OR_NO, outputs, labels) == 3 / 4
    assert goodness(NUMBERS, outputs, labels) == 1 / (1 + 2 / 4)
