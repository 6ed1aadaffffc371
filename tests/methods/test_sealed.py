"""APFed-S: what the label owner decrypts is M t, and nobody else reads a label."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dovetail.data import Alignment, SharedRows, stored
from dovetail.errors import MessageError, ModelError, PartyError
from dovetail.federated import Local
from dovetail.methods.apfed import (
    assisting,
    sealed,
    sealed_checks,
    sealed_inference,
    sealed_numbers,
    second_question,
)
from dovetail.methods.apfed.distil import Table
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.apfed.sealed_numbers import Multiplying, Reader, Whole, row_digests
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models import load_bottom
from dovetail.models.kept_smoothing import SmoothingSpec
from dovetail.models.learners import NO_FOLD, hard_targets, make_folds
from dovetail.models.learners.assisted import all_columns, targets
from dovetail.models.learners.assisted_joint import Answers
from dovetail.models.learners.distil import Owner
from dovetail.models.losses import CLASSES, Values
from dovetail.models.patches import kernels_of
from dovetail.models.smoothers import Kernels, Smoother, Smoothing
from dovetail.network import Checkpoint, InProcess, Message, encode
from dovetail.network.quota import Quota
from dovetail.privacy import encrypted
from dovetail.settings.models import Pictures

pytest.importorskip("seal")

SMOOTHERS = (Smoother("mean", 1.0),)


def made(
    classes: int = 3, rows: int = 120, labels: int = 60, seed: int = 0
) -> tuple[Owner, Tensor]:
    """An owner, and a partner's columns of the same rows; 1 class: a regression."""
    rng = torch.Generator().manual_seed(seed)
    x, partner = torch.randn(rows, 3, generator=rng), torch.randn(rows, 5, generator=rng)
    score = x[:, 0] + 2 * partner[:, 0] + 0.5 * torch.randn(rows, generator=rng)
    regression = classes == 1
    known = score if regression else (score.argsort().argsort() * classes // rows)
    folds = torch.full((rows,), NO_FOLD)
    folds[:labels] = make_folds(known[:labels], 4, seed=0, regression=regression)
    return Owner(
        x,
        hard_targets(known, classes, regression=regression),
        folds,
        Values() if regression else CLASSES,
    ), partner


def active_of(
    owner: Owner,
    rows: Mapping[str, Tensor],
    smoothers: tuple[Smoother, ...] = SMOOTHERS,
    *,
    tested: bool = False,
    more: tuple[Smoother, ...] = (),
) -> second_question.Active:
    bank_rows = torch.arange(len(owner.x_RF))
    table = Table.of(owner.x_RF, "bank", Alignment({"bank": bank_rows, **rows}))
    test = table if tested else None
    return second_question.Active(owner, table, test, smoothers, Local("bank"), seed=3, more=more)


def partner_of(
    name: str,
    x: Tensor,
    rows: Tensor,
    limits: SealedLimits | None = None,
    given: NumbersGiven | None = None,
) -> second_question.Partner:
    test = SharedRows(name, x.clone(), rows)
    return second_question.Partner(
        SharedRows(name, x, rows), test, Local(name), limits, given=given
    )


def in_the_clear(
    owner: Owner, x: Tensor, rows_L: Tensor, name: str, smoother: Smoother
) -> tuple[Tensor, Tensor]:
    """M and M t of all rows, from the same kernels."""
    local = Local(name)
    local.begin(3)
    kernels = Kernels.fit(x, local.generator("kernels"))
    made_of = Smoothing(
        kernels, [smoother], x[rows_L], owner.folds_R[rows_L], sealed_checks.UNLIMITED.least_rows
    )
    weights = made_of.weights(x, 0)
    weights[rows_L] = made_of.left_out(0)
    return weights, weights @ targets(owner, rows_L)


@pytest.mark.parametrize("classes", [1, 2, 3, 12])
def test_what_is_decrypted_is_the_smoother_in_the_clear(classes: int) -> None:
    owner, partner = made(classes)
    smoothers = (Smoother("mean", 1.0), Smoother("trees", 3.0))
    everyone = torch.arange(len(partner))
    party = partner_of("shop", partner, everyone)
    active = active_of(owner, {"shop": everyone}, smoothers)
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    num = owner.targets_RC.shape[1]
    rows_L = active.labelled("shop")
    for index, smoother in enumerate(smoothers):
        weights, clear = in_the_clear(owner, partner, rows_L, "shop", smoother)
        clear = all_columns(clear, regression=owner.regression)
        numbers = active.numbers["shop"][:, index * num : (index + 1) * num]
        assert float((numbers - clear).abs().max()) < 1e-4 * float(clear.std())
        # No label of a row's own fold has a part in its number.
        folds = owner.folds_R[rows_L]
        assert (weights[rows_L][folds[:, None] == folds[None]] == 0).all()


def test_a_labelled_rows_number_does_not_know_its_label() -> None:
    owner, partner = made(2)
    everyone = torch.arange(len(partner))
    numbers = []
    for flipped in (False, True):
        changed = owner.targets_RC.clone()
        if flipped:
            fold = owner.folds_R == 2
            changed[fold] = changed[fold].flip(1)
        other = replace(owner, targets_RC=changed)
        active = active_of(other, {"shop": everyone})
        party = partner_of("shop", partner, everyone)
        list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
        # The classes' shares are of all labels; their part is the sum of a row's weights.
        numbers.append(active.numbers["shop"])
    rows_L = (owner.folds_R >= 0).nonzero().flatten()
    weights, _ = in_the_clear(owner, partner, rows_L, "shop", SMOOTHERS[0])
    one, other = (each[owner.folds_R == 2, 1] for each in numbers)
    shares = [1 - owner.targets_RC[rows_L, 0].mean()]
    flipped_targets = owner.targets_RC[rows_L].clone()
    in_fold = owner.folds_R[rows_L] == 2
    flipped_targets[in_fold] = flipped_targets[in_fold].flip(1)
    shares.append(1 - flipped_targets[:, 0].mean())
    moved = (shares[0] - shares[1]) * weights[owner.folds_R == 2].sum(dim=1)
    torch.testing.assert_close(other - one, moved, rtol=1e-3, atol=1e-4)


def test_a_partner_that_lacks_rows_says_nothing_of_them() -> None:
    owner, partner = made(2)
    some = torch.arange(len(partner))
    some[::3] = -1
    active = active_of(owner, {"shop": some, "lab": torch.arange(len(partner))})
    parties = {
        "shop": partner_of("shop", partner, some),
        "lab": partner_of("lab", partner[:, :2], torch.arange(len(partner))),
    }
    engine = InProcess(parties, driver="bank")
    (epoch,) = assisting.rounds(active, engine)
    assert active.numbers["shop"][::3].isnan().all()
    assert active.numbers["shop"][1::3].isfinite().all()
    assert active.aligned().all()
    assert epoch.num_steps == 1
    # Two messages a partner: a question and its answer.
    counted = [(line["from"], line["to"], line["count"]) for line in engine.ledger.lines()]
    assert sorted(counted) == sorted(
        [("bank", "shop", 1), ("shop", "bank", 1), ("bank", "lab", 1), ("lab", "bank", 1)]
    )


def test_no_more_rows_are_asked_about_than_are_wanted() -> None:
    owner, partner = made(2)
    everyone = torch.arange(len(partner))
    active = active_of(owner, {"shop": everyone})
    active.max_rows = 25
    party = partner_of("shop", partner, everyone)
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    assert int(active.aligned().sum()) == 60 + 25
    assert active.aligned()[owner.labelled].all()
    whole = active_of(owner, {"shop": everyone})
    list(assisting.rounds(whole, InProcess({"shop": party}, driver="bank")))
    held = active.aligned()
    torch.testing.assert_close(
        active.numbers["shop"][held], whole.numbers["shop"][held], rtol=1e-4, atol=1e-5
    )


def test_a_run_that_is_resumed_asks_nobody_again(tmp_path: Path) -> None:
    owner, partner = made(2)
    everyone = torch.arange(len(partner))
    parties = {"shop": partner_of("shop", partner, everyone)}
    first = active_of(owner, {"shop": everyone}, tested=True)
    list(assisting.rounds(first, InProcess(parties, driver="bank"), Checkpoint(tmp_path)))
    again = active_of(owner, {"shop": everyone}, tested=True)
    engine = InProcess({}, driver="bank")  # nobody is there any more
    assert not list(assisting.rounds(again, engine, Checkpoint(tmp_path)))
    assert torch.equal(again.numbers["shop"], first.numbers["shop"])
    assert torch.equal(again.tested["shop"], first.tested["shop"])


def test_a_partner_that_fails_is_left_out_and_the_others_answer() -> None:
    class Fails(second_question.Partner):
        def begin(self, message: sealed.Begin) -> sealed.Answered:
            raise PartyError(self.name, "its disk is full")

    owner, partner = made(2)
    everyone = torch.arange(len(partner))
    rows = SharedRows("shop", partner, everyone)
    parties = {
        "shop": Fails(rows, None, Local("shop")),
        "lab": partner_of("lab", partner, everyone),
    }
    active = active_of(owner, {"shop": everyone, "lab": everyone})
    (epoch,) = assisting.rounds(active, InProcess(parties, driver="bank"))
    assert active.partners == ("lab",)
    assert epoch.reasons == {"shop": "its disk is full"}


# --- Asked once more -----------------------------------------------------------------------------


def test_more_numbers_are_asked_for_where_the_first_pay() -> None:
    owner, partner = made(3)
    everyone, more = torch.arange(len(partner)), (Smoother("linear", 2.0), Smoother("trees", 1.0))
    party = partner_of("shop", partner, everyone)
    active = active_of(owner, {"shop": everyone}, more=more, tested=True)
    engine = InProcess({"shop": party}, driver="bank")
    list(assisting.rounds(active, engine, pays=lambda: True))
    assert active.asked_more == ["shop"]
    rows_L = active.labelled("shop")
    for index, smoother in enumerate((*SMOOTHERS, *more)):
        _, clear = in_the_clear(owner, partner, rows_L, "shop", smoother)
        clear = all_columns(clear, regression=False)
        found = active.numbers["shop"][:, 3 * index : 3 * index + 3]
        assert float((found - clear).abs().max()) < 1e-4 * float(clear.std())
    assert active.tested["shop"].shape == active.numbers["shop"].shape
    assert len(active.answers["shop"]["exponents"]) == 3
    assert [line["count"] for line in engine.ledger.lines()] == [1, 1, 1, 1]
    once = active_of(owner, {"shop": everyone}, more=more)
    list(assisting.rounds(once, InProcess({"shop": party}, driver="bank")))  # they do not pay
    assert not once.asked_more


def test_no_more_numbers_are_asked_for_than_a_policy_gives() -> None:
    owner, partner = made(3)
    everyone, more = torch.arange(len(partner)), (Smoother("linear", 2.0), Smoother("trees", 1.0))
    for most, asked in ((5, 2), (3, 1)):
        party = partner_of("shop", partner, everyone, SealedLimits(numbers_per_row=most))
        active = active_of(owner, {"shop": everyone}, more=more)
        list(assisting.rounds(active, InProcess({"shop": party}, driver="bank"), pays=lambda: True))
        assert active.numbers["shop"].shape[1] == 3 * asked, active.lost
    limited = partner_of("shop", partner, everyone, SealedLimits(numbers_per_row=3))
    limited.handle(question(owner, 120))
    with pytest.raises(PartyError, match=r"refuses 4 numbers a row: .*numbers_per_row is 3"):
        limited.handle(second_question.More(("trees",), (1.0,)))
    free = partner_of("shop", partner, everyone)
    free.handle(question(owner, 120))
    with pytest.raises(MessageError, match="expected 1 to 11 more smoothers, got 12 kernels"):
        free.handle(second_question.More(("trees",) * 12, (1.0,) * 12))


# --- What a partner can tell ---------------------------------------------------------------------


def question(owner: Owner, rows: int) -> sealed.Begin:
    active = active_of(owner, {"shop": torch.arange(rows)})
    return active.question("shop")[0]


def test_a_partner_cannot_tell_two_labellings_apart() -> None:
    """Messages of equal sizes, and no classifier of their bytes does better than a coin."""
    owner, _ = made(2)
    other = replace(owner, targets_RC=owner.targets_RC.flip(1) * 0 + torch.tensor([1.0, 0.0]))
    other.targets_RC[::7] = torch.tensor([0.0, 1.0])
    messages = [question(each, 120) for _ in range(24) for each in (owner, other)]
    assert len({len(encode(each)) for each in messages}) == 1
    seen = {
        tuple((name, tuple(tensor.shape)) for name, tensor in each.tensors().items())
        for each in messages
    }
    assert len(seen) == 1

    def view(message: sealed.Begin) -> np.ndarray:
        """Shares of byte values at each place of a coefficient, and the means of the halves."""
        wire = message.targets_PV.numpy().reshape(-1, 7)
        parts = [np.bincount(wire[:, index], minlength=256) / len(wire) for index in range(7)]
        return np.concatenate([*parts, message.key_1W.numpy().reshape(-1, 7).mean(axis=0)])

    x, y = np.stack([view(each) for each in messages]), np.arange(len(messages)) % 2
    train, test = np.arange(32), np.arange(32, 48)
    scaled = (x - x[train].mean(axis=0)) / (x[train].std(axis=0) + 1e-12)
    model = LogisticRegression(C=1e-3, max_iter=500).fit(scaled[train], y[train])
    right = (model.predict(scaled[test]) == y[test]).mean()
    assert abs(right - 0.5) <= 0.375  # 3 standard errors of a coin


class Traced:
    """What a part of the library does, written down by name."""

    def __init__(self, part: Any, done: list[str]) -> None:
        self._part, self._done = part, done

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)

        def traced(*arguments: Any) -> Any:
            self._done.append(name)
            return found(*arguments)

        return traced if callable(found) else found


def test_work_on_targets_is_the_same_whatever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a message's time says nothing of labels: the same steps on polynomials of equal length."""
    owner, _ = made(2)
    one_class = replace(owner, targets_RC=torch.tensor([[1.0, 0.0]]).repeat(120, 1))
    one_class.targets_RC[0] = torch.tensor([0.0, 1.0])
    ring, traces = encrypted._ring(), []
    for each in (owner, one_class):
        done: list[str] = []
        monkeypatch.setattr(ring, "encoder", Traced(ring.encoder, done))
        monkeypatch.setattr(ring, "evaluator", Traced(ring.evaluator, done))
        question(each, 120)
        traces.append(done)
        monkeypatch.undo()
    assert traces[0] == traces[1]
    assert traces[0].count("encode") == len(question(owner, 120).targets_PV)


def test_times_of_two_labellings_are_alike() -> None:
    """Processor seconds of questions taken in turn: ranks of one labelling are no higher."""
    owner, _ = made(2)
    other = replace(owner, targets_RC=owner.targets_RC.flip(1))
    other.targets_RC[::3] = torch.tensor([1.0, 0.0])
    taken: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(40):
        which = (turn + turn // 2) % 2  # 0 1 1 0 0 1 1 0: no drift counts
        started = time.process_time()
        question((owner, other)[which], 120)
        taken[which].append(time.process_time() - started)
    assert mannwhitneyu(taken[0], taken[1]).pvalue > 1e-4


# --- What a partner refuses ----------------------------------------------------------------------


def refused(message: Message, **changes: object) -> str:
    _, partner = made(2)
    party = partner_of("shop", partner, torch.arange(len(partner)))
    with pytest.raises((MessageError, ModelError, PartyError)) as refusal:
        party.handle(replace(message, **changes))
    return str(refusal.value)


def test_what_is_not_as_agreed_is_refused_in_a_sentence() -> None:
    owner, _ = made(2)
    good = question(owner, 120)
    other = "bfv-4096-36.36.37-20"
    assert "encrypted by 'bfv-4096-36.36.37-20', and this party takes" in refused(
        good, parameters=other
    )
    assert "do not lie in blocks of 1 rows and 1 columns" in refused(
        good, labelled_L=torch.arange(60), folds_L=good.folds_L, block=1, columns=1_000_000
    )
    million = torch.zeros(1_000_000, dtype=torch.int64)
    assert "1000000 labelled rows, and this party takes 10" in refused(
        good, labelled_L=million, folds_L=million
    )
    few = {"labelled_L": good.labelled_L[:9], "folds_L": good.folds_L[:9]}
    assert "9 labelled rows, and this party takes 10" in refused(good, **few)
    assert "a sample is labelled twice" in refused(
        good, labelled_L=torch.cat([good.labelled_L[:-1], good.labelled_L[:1]])
    )
    assert "a sample is asked about twice" in refused(
        good, samples_N=torch.cat([good.samples_N, good.samples_N])
    )
    assert "is smoothed by fewer than 10 others" in refused(
        good, folds_L=torch.zeros_like(good.folds_L)
    )
    altered = good.targets_PV.clone()
    altered[0, :7] = 255
    assert "it is no ciphertext of bfv" in refused(good, targets_PV=altered)
    assert "targets" in refused(good, targets_PV=good.targets_PV[:, :-7])
    assert "expected 1 to 12 smoothers" in refused(good, kernels=("mean",) * 13, ridges=(1.0,) * 13)
    assert "a kernel among" in refused(good, kernels=("cubic",))
    assert "ridge above" in refused(good, ridges=(-1.0,))


def test_numbers_of_a_row_are_counted_over_runs(tmp_path: Path) -> None:
    """One-hot targets read a column of M a number: after so many there are no more."""
    owner, partner = made(4)
    everyone, ids = torch.arange(len(partner)), np.arange(1000, 1000 + len(partner))

    def asked(rows: Tensor = everyone) -> second_question.Active:
        given = NumbersGiven(Quota(tmp_path), "bank", ids)  # another process each time
        party = partner_of("shop", partner, everyone, SealedLimits(numbers_per_row=7), given)
        active = active_of(owner, {"shop": rows})
        list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
        return active

    assert asked().partners == ("shop",)  # 3 of 4 classes
    assert asked().partners == ("shop",)
    lost = asked().lost["shop"]
    assert "refuses 3 numbers a row: it has given 6 of a row before" in lost
    assert "policy.sealed.numbers_per_row is 7" in lost
    Quota(tmp_path).write("DROP TABLE numbers")
    assert "cannot read site.sqlite in its site" in asked().lost["shop"]


def test_one_row_is_never_all_of_a_number() -> None:
    owner, partner = made(2)
    partner[0] = partner[7]  # a twin, whose label alone would be its number
    everyone = torch.arange(len(partner))
    party = partner_of("shop", partner, everyone, SealedLimits(least_rows=15))
    active = active_of(owner, {"shop": everyone})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    weights = party.smoothing.weights(partner, 0).abs()
    assert float((weights.sum(dim=1) ** 2 / weights.square().sum(dim=1)).min()) > 14.99


def test_a_number_has_no_room_for_a_second_one() -> None:
    """What is below 2^-19 of a number's spread is noise: bits for one number and no more."""
    owner, partner = made(2)
    everyone = torch.arange(len(partner))
    decrypted = []
    for seed in (1, 2):
        rng = torch.Generator().manual_seed(seed)
        weights, _ = in_the_clear(owner, partner, torch.arange(60), "shop", SMOOTHERS[0])
        asked, sealing = active_of(owner, {"shop": everyone}).question("shop")
        dither = torch.randint(256, (32,), generator=rng).byte()
        wire = asked.key_1W[0], asked.targets_PV, asked.nonce_32, dither
        numbers = Multiplying(sealing.layout, *wire).times(weights, row_digests(partner), 0)
        decrypted.append(sealing.key.decrypt(numbers, sealing.layout, 120)[:, 0])
    apart = np.abs(decrypted[0] - decrypted[1]).max() / decrypted[0].std()
    assert 2**-21 < apart < 2**-15


# --- Rows that come later ------------------------------------------------------------------------


def asked_again(
    folder: Path, owner: Owner, partner: Tensor, limits: SealedLimits
) -> tuple[second_question.Active, Callable[[Tensor], Tensor]]:
    """A run with a partner at its site, and what asks it about samples afterwards."""
    everyone, ids = torch.arange(len(partner)), np.arange(len(partner))
    quota = Quota(folder)
    given = NumbersGiven(quota, "bank", ids, "run-1")
    party = partner_of("shop", partner, everyone, limits, given)
    active = active_of(owner, {"shop": everyone[: len(owner.x_RF)]})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    assert active.partners == ("shop",), active.lost
    bottom = party.bottom_model()
    asks = sealed_inference.Smoother(
        everyone,
        lambda trained: (bottom, partner),
        Local("shop"),
        limits,
        NumbersGiven(quota, "bank", ids),
    )
    answers = Answers.from_json(active.answers["shop"])
    key = encrypted.Owner(active.keys["shop"].numpy())
    reader = Reader(key, answers, owner.regression)

    def ask(samples: Tensor) -> Tensor:
        reply = asks.handle(sealed_inference.Smooth("run-1", samples))
        assert isinstance(reply, sealed_inference.Smoothed)
        return reader.read(reply.numbers_PW.numpy(), len(samples), strict=False)

    return active, ask


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_numbers_of_new_rows_are_the_smoother_in_the_clear(tmp_path: Path, classes: int) -> None:
    owner, columns = made(classes)
    new = torch.randn(30, 5, generator=torch.Generator().manual_seed(9))
    whole = torch.cat([columns, new])
    active, ask = asked_again(tmp_path, owner, whole, SealedLimits())
    rows_L = active.labelled("shop")
    local = Local("shop")
    local.begin(3)
    kernels = Kernels.fit(whole, local.generator("kernels"))
    smoothing = Smoothing(kernels, SMOOTHERS, whole[rows_L], owner.folds_R[rows_L], 10)
    clear = smoothing.weights(new, 0) @ targets(owner, rows_L)
    clear = all_columns(clear, regression=owner.regression)
    found = ask(torch.arange(120, 150))
    assert float((found - clear).abs().max()) < 1e-4 * float(clear.std())
    assert torch.equal(ask(torch.arange(120, 150).flip(0)).flip(0), found)  # to the bit


@pytest.mark.parametrize("pictures", ["patches", "flat"])
def test_a_partners_pictures_are_seen_alike_in_training_and_later(
    tmp_path: Path, pictures: Pictures
) -> None:
    owner, _ = made(3)
    rng = torch.Generator().manual_seed(4)
    images = torch.randint(256, (150, 1, 12, 10), generator=rng).byte()
    shared = SharedRows("shop", images, torch.arange(150))
    party = second_question.Partner(shared, None, Local("shop"), pictures=pictures)
    active = active_of(owner, {"shop": torch.arange(120)})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    rows_L, x = active.labelled("shop"), images.flatten(1) / 255
    local = Local("shop")
    local.begin(3)
    view, kernels = kernels_of(x, torch.Size((1, 12, 10)), local.generator("kernels"), pictures)
    smoothing = Smoothing(kernels, SMOOTHERS, view(x[rows_L]), owner.folds_R[rows_L], 10, view)
    clear = smoothing.weights(x, 0)
    clear[rows_L] = smoothing.left_out(0)
    clear = all_columns(clear @ targets(owner, rows_L), regression=False)
    error = float((active.numbers["shop"] - clear[:120]).abs().max())
    assert error < 1e-4 * float(clear.std())
    kept = load_bottom(party.bottom_model().save(tmp_path / "kept"))
    assert isinstance(kept.spec, SmoothingSpec)
    assert (kept.spec.pictures is None) == (pictures == "flat")
    weights = kept.network.smoothing.weights(x[120:], 0)
    later = all_columns(weights @ targets(owner, rows_L), regression=False)
    torch.testing.assert_close(later, clear[120:], rtol=1e-3, atol=1e-5)


def test_a_row_counts_once_a_run_however_often_it_is_asked_about(tmp_path: Path) -> None:
    owner, columns = made(4)
    new = torch.randn(30, 5, generator=torch.Generator().manual_seed(9))
    limits = SealedLimits(numbers_per_row=3)
    whole = torch.cat([columns, new])
    _, ask = asked_again(tmp_path, owner, whole, limits)
    for _ in range(3):
        ask(torch.arange(120, 150))  # new rows: three numbers each, once
        ask(torch.arange(60, 120))  # of the run, without label: as they were given
    with pytest.raises(PartyError, match="refuses 3 numbers a row: it has given 3 of a row before"):
        ask(torch.arange(50, 60))  # labelled: now by every labelled row, a number that is new
    given = NumbersGiven(Quota(tmp_path), "bank", np.arange(len(whole)))
    assert given.most(torch.arange(len(whole))) == 3


def test_an_owner_does_not_show_whether_an_answer_decrypts(tmp_path: Path) -> None:
    """Else a partner that makes answers up would read targets by who is asked again."""
    owner, columns = made(2)
    active, _ = asked_again(tmp_path, owner, columns, SealedLimits())
    reader = Reader(
        encrypted.Owner(active.keys["shop"].numpy()),
        Answers.from_json(active.answers["shop"]),
        regression=False,
    )
    rng = torch.Generator().manual_seed(0)
    each = reader.layout.num_answers(100), encrypted.ANSWER_WIRE
    made_up = torch.randint(256, each, generator=rng).byte().numpy().reshape(-1, 7)
    made_up[:, 6] = 0  # below every prime
    found = reader.read(made_up.reshape(each), 100, strict=False)
    assert found.isnan().any()  # in half of the rows; in the others it is some number
    with pytest.raises(MessageError, match="numbers that no weights give"):
        reader.read(made_up.reshape(each), 100)


def test_weights_in_parts_and_in_a_file_are_those_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(260, 5, generator=rng)
    made = Smoothing(Kernels.fit(x, rng), SMOOTHERS, x[:60], torch.arange(60) % 4, 10)
    known = torch.where(torch.arange(260) < 60, torch.arange(260), -1)
    known = known.roll(7)  # labelled rows stand among the others
    whole = made.weights(x.roll(7, 0), 0, known)
    expected = Whole.of(whole)
    made.forget()
    monkeypatch.setattr("dovetail.data.stored.NUMBERS_BYTES", 0)
    monkeypatch.setattr(sealed_numbers, "_ROWS_AT_ONCE", 33)
    in_file = made.weights(x.roll(7, 0), 0, known)
    assert stored.in_file(in_file.numpy())
    assert torch.equal(in_file, whole)
    assert Whole.of(in_file) == expected
    assert np.array_equal(expected.numbers(in_file[40:50]), expected.numbers(whole)[40:50])
