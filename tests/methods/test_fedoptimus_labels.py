"""FedOptimus with several labels at once and with times to an event."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dovetail.data import Classification, MultiLabel, MultiTarget, Regression, SharedRows, Task
from dovetail.data.survival import Survival, survival_of
from dovetail.errors import ConfigError, MessageError, TrainingError
from dovetail.federated import Local
from dovetail.federated import train as train_rounds
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus.local_data import Columns, Labels
from dovetail.methods.fedoptimus.messages import TakeTimes
from dovetail.models.decisions import supervised_loss
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.owners import ColumnsMlp, TopSpec
from dovetail.network import InProcess

LABELS = ("relapse", "sepsis", "pain")
YES_OR_NO = MultiLabel(LABELS)
NUMBERS = MultiTarget(LABELS, (0.0,) * 3, (1.0,) * 3)
TASKS = [pytest.param(task, id=task.kind) for task in (YES_OR_NO, NUMBERS)]
PLAIN: dict[str, Any] = {
    "embedding": 4, "top": (3,), "batch_size": 16, "rounds": 3, "sync_every": 2,
    "optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.02,
}  # fmt: skip
ROWS = 40


def columns_of(owner: int, num: int = ROWS) -> Tensor:
    return torch.from_numpy(np.random.default_rng(owner).normal(size=(num, 3))).float()


def drawn(task: Task, owner: int) -> Tensor:
    rng = np.random.default_rng(100 + owner)
    said = rng.normal(size=(ROWS, 3)) + columns_of(0).numpy()
    labels = (said > 0).astype(float) if isinstance(task, MultiLabel) else said
    return torch.from_numpy(labels).float()


def run(
    labels: dict[str, Tensor], task: Task | dict[str, Task], **changes: Any
) -> tuple[fedoptimus.Coordinator, dict[str, fedoptimus.LabelOwner], list[dict[str, Any]]]:
    """A run of two data owners, who have all samples of each label owner, to its last round."""
    tasks = task if isinstance(task, dict) else dict.fromkeys(labels, task)
    sides: dict[str, Any] = {
        f"data-{each}": fedoptimus.DataOwner(
            Columns(
                f"data-{each}",
                {
                    name: SharedRows(f"data-{each}", columns_of(each), torch.arange(ROWS))
                    for name in labels
                },
                ColumnsMlp((5,)),
            ),
            Local(f"data-{each}"),
        )
        for each in (0, 1)
    }
    owners = {
        name: fedoptimus.LabelOwner(
            Labels(name, tasks[name], held, scored={"test": held[:7]}), Local(name)
        )
        for name, held in labels.items()
    }
    coordinator = fedoptimus.Coordinator(
        fedoptimus.Config(**{**PLAIN, **changes}),
        data_owners=[*sides], label_owners=[*labels], seed=5,
    )  # fmt: skip
    rounds = train_rounds(coordinator, InProcess({**sides, **owners}, driver="coordinator"))
    return coordinator, owners, [dict(each.metrics) for each in rounds]


@pytest.fixture
def started_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tops whose first output begins alike, whatever others there are."""
    build = TopSpec.build

    def built(spec: TopSpec) -> torch.nn.Module:
        top = build(spec)
        one = build(dataclasses.replace(spec, num_outputs=1))
        with torch.no_grad():
            for whole, alone in zip(top.parameters(), one.parameters(), strict=True):
                alone.copy_(torch.linspace(-0.5, 0.7, alone.numel()).view_as(alone))
                if whole.shape == alone.shape:
                    whole.copy_(alone)
                elif spec.members > 1:
                    whole[..., :1] = alone
                else:
                    whole[:1] = alone
        return top

    monkeypatch.setattr(TopSpec, "build", built)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.usefixtures("started_alike")
def test_several_labels_of_which_rows_have_one_are_that_label(members: int) -> None:
    """In every round: half of a squared error is learned by twice the rate."""
    labels = {name: drawn(NUMBERS, number) for number, name in enumerate(("north", "south"))}
    for held in labels.values():
        held[:, 1:] = torch.nan
    config = {"members": members, "skip": members > 1, "optimizer": "sgd", "weight_decay": 0.0}
    _, among, first = run(labels, NUMBERS, **config, learning_rate=0.1)
    one = {name: held[:, 0] for name, held in labels.items()}
    _, alone, second = run(one, Regression(0.0, 1.0), **config, learning_rate=0.05)
    x = torch.randn(6, 4)
    for name in labels:
        said, expected = (each[name].model().network(x) for each in (among, alone))
        torch.testing.assert_close(said[:, :1], expected, atol=1e-5, rtol=1e-4)
    for several, single in zip(first, second, strict=True):
        assert 2 * several["loss"] == pytest.approx(single["loss"], rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_an_own_top_says_nothing_of_a_label_that_its_owner_lacks(task: Task) -> None:
    lacks = drawn(task, 0)
    lacks[:, 1] = torch.nan
    _, owners, _ = run({"clinic": lacks}, task, average_tops=False)
    outputs = owners["clinic"].model().network(torch.randn(6, 4))
    assert not outputs[:, 1].any()
    assert outputs[:, [0, 2]].all()


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_of_several_is_that_of_each_where_others_have_no_weight(task: Task) -> None:
    top = TopSpec(4, (3,), 3, skip=True, members=2, values=True).build()
    mean_BE, labels = torch.randn(9, 4), drawn(task, 1)[:9]
    each = []
    for place in range(3):
        only = torch.full_like(labels, torch.nan)
        only[:, place] = labels[:, place]
        top.zero_grad()
        outputs = top(mean_BE)
        supervised_loss(task, outputs, only).backward()
        each.append([p.grad.clone() for p in top.parameters() if p.grad is not None])
        one = loss_of(Classification((0, 1)) if task is YES_OR_NO else Regression(0.0, 1.0))
        logits = outputs[:, place : place + 1].detach()
        if task is YES_OR_NO:  # two classes whose logits are o and 0
            pair = torch.cat([torch.zeros_like(logits), logits], dim=1)
            expected = one.rows(pair, torch.stack([1 - labels[:, place], labels[:, place]], dim=1))
        else:
            expected = 0.5 * one.rows(logits, labels[:, place : place + 1])
        got = loss_of(task).rows(outputs.detach(), targets_of(task, only))
        torch.testing.assert_close(got, expected)
    top.zero_grad()
    supervised_loss(task, top(mean_BE), labels).backward()
    whole = [p.grad for p in top.parameters() if p.grad is not None]
    for together, *apart in zip(whole, *each, strict=True):
        torch.testing.assert_close(together, sum(apart), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_a_label_that_an_owner_lacks_moves_no_weight_of_its_output(
    task: Task, members: int
) -> None:
    """Weight decay would."""
    lacks = drawn(task, 1)
    lacks[:, 1] = torch.nan
    config = {"members": members, "skip": members > 1, "sync_every": 4, "rounds": 1}
    _, owners, _ = run({"clinic": lacks}, task, **config)
    start = fedoptimus.Coordinator(
        fedoptimus.Config(**{**PLAIN, **config}),
        data_owners=["d"], label_owners=["clinic"], seed=5,
    )  # fmt: skip
    start.ready = {"clinic": fedoptimus.messages.LabelsReady(ROWS, ROWS, 0, "")}
    start.start(3)
    before = TopSpec(4, (3,), 3, members > 1, members).build()
    torch.nn.utils.vector_to_parameters(start.top.w_P, before.parameters())
    after = owners["clinic"].top
    layer = [*before.parameters()][-1], [*after.parameters()][-1]
    for place in range(3):
        assert bool(torch.equal(layer[0][..., place], layer[1][..., place])) == (place == 1)


@pytest.mark.trained
def test_gaps_leave_a_run_finite_and_it_learns() -> None:
    labels = {name: drawn(YES_OR_NO, number) for number, name in enumerate(("north", "south"))}
    for number, held in enumerate(labels.values()):
        gaps = np.random.default_rng(number).random((ROWS, 3)) < 0.4
        held[torch.from_numpy(gaps)] = torch.nan
    labels["south"][3] = torch.nan  # a row without any trains nothing
    coordinator, owners, lines = run(
        labels, YES_OR_NO, members=2, skip=True, patience=30, rounds=60, learning_rate=0.05
    )
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert len(owners["south"].samples) < ROWS
    assert coordinator.ready["south"].num_rows == len(owners["south"].samples)
    north, south = (owners[name].model() for name in labels)
    x = torch.randn(5, 4)
    assert torch.equal(north.network(x), south.network(x))
    assert torch.equal(north.network(x), north.network.each(x).mean(dim=0))


def test_label_owners_of_other_labels_are_refused() -> None:
    labels = {"north": drawn(YES_OR_NO, 0), "south": drawn(YES_OR_NO, 1)}
    tasks: dict[str, Task] = {"north": YES_OR_NO, "south": MultiLabel(LABELS[::-1])}
    with pytest.raises(ConfigError, match="the same classes or labels, in one order"):
        run(labels, tasks)


def begun(labels: Tensor, task: Task) -> fedoptimus.LabelOwner:
    """A label owner before its first step."""
    owner = fedoptimus.LabelOwner(Labels("north", task, labels), Local("north"))
    settings = fedoptimus.Config(**PLAIN).model_dump_json()
    owner.handle(fedoptimus.messages.BeginLabels(settings, 5, ""))
    return owner


# --- Times to an event ---------------------------------------------------------------------------


def times(owner: int, longest: float = 100.0) -> Tensor:
    rng = np.random.default_rng(owner)
    signs = np.where(rng.random(ROWS) < 0.3, -1.0, 1.0)
    return torch.from_numpy(signs * rng.uniform(1, longest, ROWS)).float()


def test_hazards_of_one_interval_are_learned_as_a_class_of_two() -> None:
    """Of rows at risk in the only interval the loss is the logistic one, about the base."""
    labels = times(0, 10.0)
    task = survival_of((20.0,), labels)
    known = task.targets(labels)
    outputs = torch.randn(ROWS, 1)
    at_risk = known[:, 1] > 0
    pair = torch.cat([torch.zeros_like(outputs), outputs + task.base[0]], dim=1)
    expected = torch.nn.functional.cross_entropy(pair, known[:, 0].long(), reduction="none")
    torch.testing.assert_close(loss_of(task).rows(outputs, known)[at_risk], expected[at_risk])
    assert at_risk.any()


def test_owners_agree_on_intervals_and_keep_their_own_baselines() -> None:
    labels = {"north": times(1), "south": times(2, 400.0)}
    tasks = {
        name: survival_of(tuple(np.quantile(held[held > 0], (0.3, 0.6, 1)).tolist()), held)
        for name, held in labels.items()
    }
    coordinator, owners, _ = run(labels, dict(tasks), rounds=6)
    north, south = (owners[name].task for name in labels)
    assert isinstance(north, Survival)
    assert north.cuts == south.cuts
    assert all(float(f"{end:.2g}") == end for end in north.cuts)  # no time as it was
    assert north.base == survival_of(north.cuts, labels["north"]).base
    assert north.base != south.base
    for each in coordinator.ready.values():
        assert "base" not in each.task
    assert all(
        torch.isfinite(owners[name].model().network(torch.randn(3, 4))).all() for name in labels
    )


def test_agreed_intervals_outlive_a_restart() -> None:
    labels = {"north": times(1)}
    _, owners, _ = run(labels, survival_of((50.0, 100.0), labels["north"]))
    before = owners["north"]
    task = survival_of((30.0,), labels["north"])
    again = fedoptimus.LabelOwner(Labels("north", task, labels["north"]), Local("north"))
    again.restore(before.state())
    assert again.task == before.task
    batch = again.handle(fedoptimus.Draw())
    learn = fedoptimus.Learn(batch.batch, torch.randn(len(batch.samples_B), 4), False)
    assert again.handle(learn).loss == before.handle(learn).loss


@pytest.mark.parametrize("ends", [[3.0, 2.0], [], [0.0, 1.0], list(range(1, 12))])
def test_intervals_that_cannot_be_are_refused(ends: list[float]) -> None:
    owner = begun(times(1), survival_of((50.0, 100.0), times(1)))
    with pytest.raises(MessageError, match="rise from 0 on"):
        owner.handle(TakeTimes(torch.tensor(ends, dtype=torch.float64)))


def test_intervals_are_no_business_of_classes() -> None:
    owner = begun(drawn(YES_OR_NO, 0), YES_OR_NO)
    with pytest.raises(MessageError, match="its labels are multilabel"):
        owner.handle(TakeTimes(torch.tensor([1.0], dtype=torch.float64)))


def test_intervals_do_not_change_once_anything_was_learned() -> None:
    """A coordinator that moved them between steps would read a row's time from its gradients."""
    owner = begun(times(1), survival_of((50.0, 100.0), times(1)))
    agreed = TakeTimes(torch.tensor([40.0, 90.0], dtype=torch.float64))
    owner.handle(agreed)
    batch = owner.handle(fedoptimus.Draw())
    owner.handle(fedoptimus.Learn(batch.batch, torch.randn(len(batch.samples_B), 4), False))
    with pytest.raises(MessageError, match="agreed once, before the first step"):
        owner.handle(agreed)


def test_intervals_do_not_change_between_scores_and_refused_steps() -> None:
    """Neither makes a step, and each would say whether a row's event came by an interval's end."""
    held = times(1)
    task = survival_of((50.0, 100.0), held)
    owner = fedoptimus.LabelOwner(
        Labels("north", task, held, scored={"test": held[:1]}), Local("north")
    )
    config = fedoptimus.Config(**{**PLAIN, "top": (3,) * 8})
    begin = fedoptimus.messages.BeginLabels(config.model_dump_json(), 5, "")
    owner.handle(begin)
    mine, other = (TakeTimes(torch.tensor([end], dtype=torch.float64)) for end in (40.0, 90.0))
    owner.handle(mine)
    owner.handle(fedoptimus.messages.Measure(torch.arange(1), torch.randn(1, 4)))
    with pytest.raises(MessageError, match="agreed once"):
        owner.handle(other)
    num = sum(each.numel() for each in owner.top.parameters())
    owner.handle(fedoptimus.TakeTop(0, torch.full((num,), 1e6)))
    batch = owner.handle(fedoptimus.Draw())
    with pytest.raises(TrainingError, match="its loss is"):
        owner.handle(fedoptimus.Learn(1, torch.full((len(batch.samples_B), 4), 1e6), False))
    with pytest.raises(MessageError, match="agreed once"):
        owner.handle(other)
    owner.handle(mine)
    owner.handle(begin)  # a driver that fell; a policy counts how often
    owner.handle(other)
    assert fedoptimus.LabelOwner.few[TakeTimes] == 3  # however often it restarts
