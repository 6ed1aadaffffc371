"""APFed-D: the teacher is the one that is trained in one place, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dovetail.data import Alignment, SharedRows
from dovetail.errors import ConfigError, MessageError, PartyError
from dovetail.federated import Epoch, Local
from dovetail.methods import METHODS
from dovetail.methods.apfed import distil, teaching
from dovetail.methods.limits import Limited, Limits
from dovetail.methods.settings.apfed import DistilConfig as Config
from dovetail.methods.settings.apfed import PartnerConfig
from dovetail.models import RandomStream
from dovetail.models.learners import NO_FOLD, Rows, fit_stacked, hard_targets, make_folds
from dovetail.models.learners.distil import Owner
from dovetail.network import Checkpoint, InProcess, Message
from dovetail.network.checkpoint import StatefulParty

CONFIG = Config(
    exchange="gradients", folds=3, copies=1, max_steps=60, patience=20, batch_size=16,
    widths=(6, 4), bins=4,
)  # fmt: skip
PARTNER = PartnerConfig(widths=(6, 4), bins=4)
SEED = 3


def made(rows: int = 90, labels: int = 60) -> tuple[Owner, Tensor]:
    """An owner, and a partner's columns of the same rows, which say the class as well."""
    rng = torch.Generator().manual_seed(0)
    x, partner = torch.randn(rows, 3, generator=rng), torch.randn(rows, 5, generator=rng)
    noise = 0.5 * torch.randn(rows, generator=rng)
    classes = (x[:, 0] + 2 * partner[:, 0] + noise > 0).long()
    folds = torch.full((rows,), NO_FOLD)
    folds[:labels] = make_folds(classes[:labels], CONFIG.folds, seed=0)
    return Owner(x, hard_targets(classes, 2, regression=False), folds), partner


def everyone(owner: Owner) -> Tensor:
    return torch.arange(len(owner.x_RF))


def active_of(owner: Owner, rows: Mapping[str, Tensor], config: Config = CONFIG) -> distil.Active:
    alignment = Alignment({"bank": everyone(owner), **rows})
    table = distil.AlignedRows.of(owner.x_RF, "bank", alignment)
    return distil.Active(owner, table, table, config, Local("bank"), seed=SEED)


def partner_of(
    name: str, x: Tensor, rows: Tensor, config: PartnerConfig = PARTNER
) -> distil.Partner:
    shared = SharedRows(name, x, rows)
    return distil.Partner(shared, shared, config, Local(name))


def taught(
    owner: Owner,
    partners: Mapping[str, tuple[Tensor, Tensor]],
    config: Config = CONFIG,
    faults: Mapping[str, type[distil.Partner]] | None = None,
) -> tuple[distil.Active, dict[str, distil.Partner], list[Epoch]]:
    """A teacher of these partners: name -> columns, row of each sample."""
    active = active_of(owner, {name: rows for name, (_, rows) in partners.items()}, config)
    parties = {name: partner_of(name, x, rows) for name, (x, rows) in partners.items()}
    for name, kind in (faults or {}).items():
        x, rows = partners[name]
        shared = SharedRows(name, x, rows)
        parties[name] = kind(shared, shared, PARTNER, Local(name))
    rounds = list(teaching.train(active, InProcess(parties, driver="bank")))
    return active, parties, rounds


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("stack", ["network", "linear"])
def test_the_federated_teacher_is_the_one_that_is_trained_in_one_place(
    stack: str, dropout: float
) -> None:
    owner, partner = made()
    copies = 2 if dropout else 1
    config = CONFIG.model_copy(update={"dropout": dropout, "copies": copies})
    active, parties, _ = taught(owner, {"shop": (partner, everyone(owner))}, config)
    labelled = owner.labelled
    rows = Rows(owner.x_RF[labelled], owner.targets_RC[labelled], owner.folds_R[labelled])
    pooled = fit_stacked(
        [owner.x_RF[labelled], partner[labelled]],
        rows,
        replace(
            CONFIG.stack(stack),
            batch_size=16,
            max_steps=60,
            patience=20,
            dropout=dropout,
            copies=copies,
        ),
        seed=SEED,
        encode_on=[owner.x_RF, partner],
        streams=[
            RandomStream(SEED, "bank", "active", stack),
            RandomStream(SEED, "shop", "partner", stack),
        ],
    )
    here = active.taught[stack]
    networks = [here.stack.bottom, parties["shop"].stacks[stack].bottom, here.head.top]
    for network, other in zip(networks, [*pooled.bottoms, pooled.top], strict=True):
        for name, value in other.state_dict().items():
            torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert here.head.best_step == pooled.steps > 0
    assert here.head.best_loss == pytest.approx(pooled.loss, rel=1e-5)
    assert active.teacher_outputs is not None
    torch.testing.assert_close(
        active.teacher_outputs.train[stack],
        pooled.member_outputs([owner.x_RF, partner]),
        rtol=1e-4,
        atol=1e-5,
    )
    assert active.teacher_outputs.test is not None
    torch.testing.assert_close(
        active.teacher_outputs.test[stack], active.teacher_outputs.train[stack]
    )


@pytest.mark.slow
def test_a_row_that_a_partner_lacks_has_its_zeros_and_moves_nothing_there() -> None:
    owner, partner = made()
    rows = everyone(owner).clone()
    rows[::3] = -1
    active, parties, _ = taught(owner, {"shop": (partner, rows)})
    outputs = active.teacher_outputs
    assert outputs is not None
    assert outputs.train["network"][:, rows < 0].isnan().all()
    assert outputs.train["network"][:, rows >= 0].isfinite().all()
    # With one partner only its rows teach: what it lacks is as if it were not there.
    kept = rows >= 0
    fewer = Owner(owner.x_RF, owner.targets_RC, owner.folds_R.masked_fill(~kept, NO_FOLD))
    other, others, _ = taught(fewer, {"shop": (partner, everyone(owner))})
    for name, value in others["shop"].stacks["network"].bottom.state_dict().items():
        expected = parties["shop"].stacks["network"].bottom.state_dict()[name]
        torch.testing.assert_close(expected, value, rtol=1e-5, atol=1e-6)
    assert other.teacher_outputs is not None


@pytest.mark.slow
def test_two_partners_of_different_rows_both_teach() -> None:
    owner, partner = made()
    first, second = everyone(owner).clone(), everyone(owner).clone()
    first[1::2], second[::2] = -1, -1
    second[::10] = torch.arange(0, 90, 10)
    active, _, _ = taught(owner, {"shop": (partner, first), "lab": (partner[:, :2], second)})
    assert active.teacher_outputs is not None
    assert active.teacher_outputs.train["network"].isfinite().all()


class _Leaves(distil.Partner):
    """Answers so many messages, and then no more."""

    left = 12

    def handle(self, message: Message) -> Message:
        if isinstance(message, distil.Encode):
            self.left -= 1
        if self.left < 0:
            raise PartyError(self.name, "is gone")
        return super().handle(message)


class _LeavesLate(_Leaves):
    left = 10**9

    def handle(self, message: Message) -> Message:
        if isinstance(message, distil.Finish):
            self.left = 0
        return super().handle(message)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_Leaves, _LeavesLate])
def test_a_partner_that_leaves_is_left_out_as_if_it_had_never_been_there(
    kind: type[distil.Partner],
) -> None:
    owner, partner = made()
    shop, lab = (partner, everyone(owner)), (partner[:, 1:], everyone(owner))
    active, _, rounds = taught(owner, {"shop": shop, "lab": lab}, faults={"lab": kind})
    without, _, _ = taught(owner, {"shop": shop})
    assert active.partners == ("shop",)
    assert "is gone" in active.lost["lab"]
    assert active.teacher_outputs is not None
    assert without.teacher_outputs is not None
    for name in ("network", "linear"):
        assert torch.equal(active.teacher_outputs.train[name], without.teacher_outputs.train[name])
    assert sum(each.missed.get("lab", 0) for each in rounds) > 0


class _Counts(Limited):
    """A partner with a policy, which notes how often it began and what it was asked about."""

    def __init__(self, party: StatefulParty, limits: Limits) -> None:
        super().__init__(party, limits)
        self.begins = 0
        self.asked: list[int] = []

    def handle(self, message: Message) -> Message:
        answer = super().handle(message)
        self.begins += isinstance(message, distil.Begin)
        if isinstance(message, distil.Encode):
            self.asked.append(len(message.samples_N.unique()))
        return answer


def limited(
    owner: Owner,
    partners: Mapping[str, tuple[Tensor, Tensor]],
    limits: Limits,
    faults: Mapping[str, type[distil.Partner]] | None = None,
    config: Config = CONFIG,
) -> tuple[distil.Active, dict[str, _Counts], list[Epoch]]:
    """As ``taught``, by partners with policies."""
    active = active_of(owner, {name: rows for name, (_, rows) in partners.items()}, config)
    parties = {}
    for name, (x, rows) in partners.items():
        shared = SharedRows(name, x, rows)
        kind = (faults or {}).get(name, distil.Partner)
        parties[name] = _Counts(kind(shared, shared, PARTNER, Local(name)), limits)
    rounds = list(teaching.train(active, InProcess(parties, driver="bank")))
    return active, parties, rounds


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_Leaves, _LeavesLate])
def test_where_a_run_may_begin_once_the_others_go_on_when_a_partner_leaves(
    kind: type[distil.Partner],
) -> None:
    owner, partner = made()
    shop, lab = (partner, everyone(owner)), (partner[:, 1:], everyone(owner))
    limits = Limits(min_rows=16, max_begins=1)
    active, parties, rounds = limited(owner, {"shop": shop, "lab": lab}, limits, {"lab": kind})
    assert (active.partners, parties["shop"].begins) == (("shop",), 1)
    assert "is gone" in active.lost["lab"]
    assert active.teacher_outputs is not None
    assert tuple(active.code_widths) == ("shop",)
    assert active.taught["network"].head.top.code_widths == (4, 4)
    # It teaches as well as one that never had the other: of held-out rows, the share that is right.
    without, _, _ = taught(owner, {"shop": shop})
    assert without.teacher_outputs is not None
    labels = owner.targets_RC[owner.labelled].argmax(dim=1)

    def right(teacher_outputs: distil.TeacherOutputs) -> float:
        outputs = teacher_outputs.train["linear"][:, owner.labelled].mean(dim=0)
        return float((outputs.argmax(dim=1) == labels).float().mean())

    assert right(active.teacher_outputs) > right(without.teacher_outputs) - 0.05
    assert sum(each.missed.get("lab", 0) for each in rounds) > 0


@pytest.mark.slow
def test_a_message_is_about_as_many_samples_as_a_policy_asks_for_and_nothing_else_changes() -> None:
    owner, partner = made()
    rows = everyone(owner).clone()
    rows[5::2] = -1  # so that few of a batch are there
    config = CONFIG.model_copy(update={"batch_size": 2})
    free, _, _ = taught(owner, {"shop": (partner, rows)}, config)
    active, parties, _ = limited(
        owner, {"shop": (partner, rows)}, Limits(min_rows=20), config=config
    )
    assert min(parties["shop"].asked) == 20
    assert free.teacher_outputs is not None
    assert active.teacher_outputs is not None
    for name in ("network", "linear"):
        torch.testing.assert_close(
            active.teacher_outputs.train[name],
            free.teacher_outputs.train[name],
            rtol=1e-4,
            atol=1e-5,
            equal_nan=True,
        )


def test_a_teacher_ends_before_a_sample_is_asked_about_too_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner, partner = made()
    shop = {"shop": (partner, everyone(owner))}
    active, parties, _ = limited(owner, shop, Limits(max_uses=25))
    assert active.teacher_outputs is not None
    assert not active.lost
    assert max(map(int, parties["shop"]._uses.used["train"])) <= 25
    assert 0 < active.step_number < 25
    assert "answers 25 times about one sample in a run (its policy.max_uses)" in caplog.text
    with pytest.raises(ConfigError, match=r"policy\.max_uses\), too few for a round of APFed-D"):
        limited(owner, shop, Limits(max_uses=3))
    with pytest.raises(ConfigError, match=r"shares 90 samples and answers about 200 or more"):
        limited(owner, shop, Limits(min_rows=200))


@pytest.mark.slow
def test_a_run_that_went_on_without_a_partner_resumes_the_same(tmp_path: Path) -> None:
    owner, partner = made()
    rows = everyone(owner)
    limits = Limits(max_begins=1)
    whole, _, rounds = limited(
        owner, {"shop": (partner, rows), "lab": (partner, rows)}, limits, {"lab": _Leaves}
    )

    def again(kind: type[distil.Partner]) -> tuple[distil.Active, InProcess, Checkpoint]:
        checkpoint = Checkpoint(tmp_path, about={"run": "one"})
        shared = SharedRows("lab", partner, rows)
        parties: dict[str, StatefulParty] = {
            "shop": Limited(partner_of("shop", partner, rows), limits),
            "lab": Limited(kind(shared, shared, PARTNER, Local("lab")), limits),
        }
        engine = InProcess(checkpoint.hosting(parties), driver="bank")
        return active_of(owner, {"shop": rows, "lab": rows}), engine, checkpoint

    lost = next(each.number for each in rounds if each.missed)
    for stop in (lost + 1, None):
        active, engine, checkpoint = again(_Leaves if stop else distil.Partner)
        for each in teaching.train(active, engine, checkpoint):
            if each.number == stop:
                break
    assert (active.partners, active.begins) == (("shop",), 1)
    assert active.teacher_outputs is not None
    assert whole.teacher_outputs is not None
    assert torch.equal(
        active.teacher_outputs.train["network"], whole.teacher_outputs.train["network"]
    )


def test_without_any_partner_left_there_is_no_teacher_and_it_says_why() -> None:
    owner, partner = made()
    shop = (partner, everyone(owner))
    active, _, rounds = taught(owner, {"shop": shop}, faults={"shop": _Leaves})
    assert active.teacher_outputs is None
    assert active.why_not == "no partner took part to the end"
    assert rounds[-1].missed == {"shop": rounds[-1].num_steps}


def test_too_few_shared_labels_make_no_teacher() -> None:
    owner, partner = made()
    rows = torch.full((90,), -1)
    rows[58:] = torch.arange(58, 90)
    active, _, rounds = taught(owner, {"shop": (partner, rows)})
    assert active.teacher_outputs is None
    assert "too few for 3 folds" in active.why_not
    assert not rounds


@pytest.mark.slow
def test_a_teacher_that_is_resumed_is_the_one_that_was_not_stopped(tmp_path: Path) -> None:
    owner, partner = made()
    rows = everyone(owner)
    whole, _, rounds = taught(owner, {"shop": (partner, rows)})
    assert len(rounds) > 3

    def again() -> tuple[distil.Active, InProcess, Checkpoint]:
        checkpoint = Checkpoint(tmp_path, about={"run": "one"})
        party: StatefulParty = partner_of("shop", partner, rows)
        engine = InProcess(checkpoint.hosting({"shop": party}), driver="bank")
        return active_of(owner, {"shop": rows}), engine, checkpoint

    epochs = []
    for stop in (1, 2, None):
        active, engine, checkpoint = again()
        for each in teaching.train(active, engine, checkpoint):
            epochs.append(each)
            if stop and each.number > stop:
                break  # as killed before this round was saved
    assert active.teacher_outputs is not None
    assert whole.teacher_outputs is not None
    for name in ("network", "linear"):
        assert torch.equal(active.teacher_outputs.train[name], whole.teacher_outputs.train[name])
    assert {each.number: each.loss for each in epochs} == {
        each.number: each.loss for each in rounds
    }


@pytest.mark.slow
def test_a_partner_that_lost_its_state_takes_part_from_the_beginning(tmp_path: Path) -> None:
    owner, partner = made()
    rows = everyone(owner)
    whole, _, _ = taught(owner, {"shop": (partner, rows)})
    for stop in (2, None):
        checkpoint = Checkpoint(tmp_path, about={"run": "one"})
        parties = checkpoint.hosting({"shop": partner_of("shop", partner, rows)})
        active = active_of(owner, {"shop": rows})
        for each in teaching.train(active, InProcess(parties, driver="bank"), checkpoint):
            if each.number == stop:
                break
        for path in (tmp_path / "parties" / "shop").iterdir():
            path.unlink()
    assert active.teacher_outputs is not None
    assert whole.teacher_outputs is not None
    assert torch.equal(
        active.teacher_outputs.train["network"], whole.teacher_outputs.train["network"]
    )


@pytest.mark.parametrize(
    "change",
    [
        {"stacks": ("other",)},
        {"stacks": ("linear", "linear")},
        {"members": 0},
        {"members": 10**6},
        {"num_outputs": 10**9},
    ],
)
def test_a_partner_makes_no_network_that_cannot_be(change: Mapping[str, object]) -> None:
    owner, partner = made()
    party = partner_of("shop", partner, everyone(owner))
    begin = replace(distil.Begin(("network", "linear"), 3, 2, SEED), **change)
    with pytest.raises(MessageError, match="expected stacks"):
        party.handle(begin)


def test_a_partner_makes_no_network_larger_than_its_limit() -> None:
    party = partner_of("shop", torch.randn(4, 400), torch.arange(4))
    with pytest.raises(MessageError, match="ask for fewer folds or copies"):
        party.handle(distil.Begin(("network",), 160, 10_000, SEED))


def test_a_partner_steps_by_no_gradient_that_is_not_of_its_codes() -> None:
    owner, partner = made()
    party = partner_of("shop", partner, everyone(owner))
    party.handle(distil.Begin(("linear",), 3, 2, SEED))
    samples, none = torch.arange(6), torch.zeros(0, 0)

    def ask(gradient: Tensor, *, training: bool = True) -> Message:
        return party.handle(distil.Encode(("linear",), (), gradient, samples, training, test=False))

    with pytest.raises(Exception, match="a gradient for codes it did not send"):
        ask(torch.ones(6, 2))
    ask(none)
    with pytest.raises(MessageError, match="gradient_ND: expected shape"):
        ask(torch.ones(5, 2))
    ask(none)
    with pytest.raises(Exception, match="not finite"):
        ask(torch.full((6, 2), torch.inf))
    with pytest.raises(MessageError, match="3 blocks of samples"):
        party.handle(distil.Encode(("linear",), (), none, torch.arange(5), True, test=False))


def test_each_message_of_a_method_is_called_as_the_side_that_answers_it() -> None:
    for method in METHODS.values():
        for side, algorithm in method.algorithms.items():
            assert {name.split(".")[0] for name in algorithm.messages} == {side}
