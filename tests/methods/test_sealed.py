"""APFed-S: what the label owner decrypts is M t, and nobody else reads a label."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dovetail.data import Alignment, SharedRows, stored
from dovetail.errors import MessageError, ModelError, PartyError
from dovetail.federated import Local
from dovetail.methods.apfed import assisting, inference, numbers, sealed
from dovetail.methods.apfed.distil import AlignedRows
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.apfed.sealed import Reader, lasting
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models import Bottom, load_bottom
from dovetail.models.kept_smoothing import SmoothingSpec
from dovetail.models.learners import NO_FOLD, hard_targets, make_folds
from dovetail.models.learners.assisted import all_columns, targets
from dovetail.models.learners.assisted_joint import Answers
from dovetail.models.learners.distil import Owner
from dovetail.models.losses import CLASSES, SquaredError
from dovetail.models.patches import kernels_of
from dovetail.models.smoothers import Kernels, Smoother, Smoothing
from dovetail.network import Checkpoint, InProcess, Message, encode
from dovetail.network.costs import cost_of
from dovetail.network.quota import Quota
from dovetail.privacy import encrypted
from dovetail.settings.models import Pictures

SMOOTHER = Smoother("mean", 1.0)
#: So fine that a number is that of the smoother in the clear.
FINE = 24


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
        SquaredError() if regression else CLASSES,
    ), partner


def active_of(
    owner: Owner,
    rows: Mapping[str, Tensor],
    *,
    tested: bool = False,
    bank_rows: Tensor | None = None,
) -> sealed.Active:
    bank_rows = torch.arange(len(owner.x_RF)) if bank_rows is None else bank_rows
    table = AlignedRows.of(owner.x_RF, "bank", Alignment({"bank": bank_rows, **rows}))
    test = table if tested else None
    return sealed.Active(owner, table, test, Local("bank"), seed=3)


def partner_of(
    name: str,
    x: Tensor,
    rows: Tensor,
    limits: SealedLimits | None = None,
    given: NumbersGiven | None = None,
) -> sealed.Partner:
    """A partner; without limits its numbers are as good as those in the clear."""
    limits = limits or numbers.UNLIMITED.model_copy(update={"bits": FINE})
    test = SharedRows(name, x.clone(), rows)
    return sealed.Partner(SharedRows(name, x, rows), test, Local(name), limits, given=given)


def in_the_clear(owner: Owner, x: Tensor, rows_L: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """M and M t of all rows, from the same kernels."""
    local = Local(name)
    local.begin(3)
    kernels = Kernels.fit(x, lasting(local, "kernels"))
    made_of = Smoothing(
        kernels, SMOOTHER, x[rows_L], owner.folds_R[rows_L], numbers.UNLIMITED.least_rows
    )
    weights = made_of.weights(x)
    weights[rows_L] = made_of.left_out()
    return weights, weights @ targets(owner, rows_L)


@pytest.mark.parametrize("classes", [1, 2, 3, 12])
def test_what_is_decrypted_is_the_smoother_in_the_clear(classes: int) -> None:
    owner, partner = made(classes)
    everyone = torch.arange(len(partner))
    party = partner_of("shop", partner, everyone)
    active = active_of(owner, {"shop": everyone})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    rows_L = active.labelled("shop")
    weights, clear = in_the_clear(owner, partner, rows_L, "shop")
    clear = all_columns(clear, regression=owner.regression)
    assert float((active.numbers["shop"] - clear).abs().max()) < 0.02 * float(clear.std())
    # No label of a row's own fold has a part in its number.
    folds = owner.folds_R[rows_L]
    assert (weights[rows_L][folds[:, None] == folds[None]] == 0).all()


def test_numbers_are_blurred_by_their_bits_and_equal_rows_differ() -> None:
    """So a number is no fingerprint: nobody looks a row up by another one's."""
    owner, partner = made(2, rows=400)
    partner[200:] = partner[100]
    everyone = torch.arange(len(partner))
    party = partner_of("shop", partner, everyone, SealedLimits(bits=6))
    active = active_of(owner, {"shop": everyone})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    assert active.bits == {"shop": 6}
    question, _ = active.question("shop")
    assert cost_of(party.begin(question)) == {"bits": 6.0}  # so its ledger says, of each row
    alike = active.numbers["shop"][200:, 0]
    assert len(alike.unique()) > 195
    _, unit, _ = encrypted.whole_targets(targets(owner, active.labelled("shop")).numpy())
    width = unit * 2 ** (encrypted.NUMBER_BITS - 6)
    assert float(alike.max() - alike.min()) == pytest.approx(width, rel=0.05)
    assert float(alike.std()) == pytest.approx(width / 12**0.5, rel=0.1)


@pytest.mark.parametrize(("classes", "most"), [(2, 0.005), (10, 0.0)])
def test_next_to_no_number_is_read_from_the_other_end_of_its_interval(
    classes: int, most: float
) -> None:
    """Of digits, whose numbers lie far beyond what a mean of targets can be."""
    digits = load_digits()
    known, pixels = torch.from_numpy(digits.target) % classes, torch.from_numpy(digits.data).float()
    pixels = (pixels - pixels.mean(dim=0)) / pixels.std(dim=0).clamp(min=1e-6)
    folds = torch.full((len(known),), NO_FOLD)
    folds[:400] = make_folds(known[:400], 4, seed=0, regression=False)
    owner = Owner(pixels[:, :32], hard_targets(known, classes, regression=False), folds, CLASSES)
    everyone = torch.arange(len(known))
    party = partner_of("shop", pixels[:, 32:], everyone, SealedLimits(numbers_per_row=classes))
    active = active_of(owner, {"shop": everyone})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    rows_L = active.labelled("shop")
    _, clear = in_the_clear(owner, pixels[:, 32:], rows_L, "shop")
    _, unit, _ = encrypted.whole_targets(targets(owner, rows_L).numpy())
    blur = unit * 2 ** (encrypted.NUMBER_BITS - active.bits["shop"])
    off = (active.numbers["shop"][:, : clear.shape[1]] - clear).abs()
    assert float((off > 0.6 * blur).float().mean()) <= most  # half of it, and what is rounded


def test_the_same_question_has_the_same_answer_in_another_run_and_counts_once(
    tmp_path: Path,
) -> None:
    owner, partner = made(2)
    everyone, ids = torch.arange(len(partner)), np.arange(len(partner))
    limits = SealedLimits()

    def asked(
        labels: Owner, run: str, columns: Tensor = partner, order: Tensor = everyone
    ) -> Tensor | str:
        given = NumbersGiven(Quota(tmp_path), "bank", ids, run)
        local = Local("shop", secret=lambda: run.encode() * 8, lasting=b"of the site" * 2)
        test = SharedRows("shop", columns, order)
        party = sealed.Partner(test, None, local, limits, given=given)
        active = active_of(labels, {"shop": order}, bank_rows=order)
        list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
        return active.numbers.get("shop", active.lost.get("shop", ""))

    first = asked(owner, "run-1")
    assert isinstance(first, Tensor)
    for order in (everyone, everyone.roll(7)):  # aligned again, samples have other numbers
        again = asked(owner, "run-2", order=order)
        assert isinstance(again, Tensor), again
        assert torch.equal(first, again)
    other = replace(owner, targets_RC=owner.targets_RC.roll(1, 0))
    assert "write sealed = { numbers_per_row = 2 } below [policy]" in str(asked(other, "run-3"))
    assert "has given 1 of a row before" in str(asked(owner, "run-4", partner + 1))
    limits = SealedLimits(numbers_per_row=2)
    assert isinstance(asked(other, "run-3"), Tensor)


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
    weights, _ = in_the_clear(owner, partner, rows_L, "shop")
    one, other = (each[owner.folds_R == 2, 1] for each in numbers)
    shares = [1 - owner.targets_RC[rows_L, 0].mean()]
    flipped_targets = owner.targets_RC[rows_L].clone()
    in_fold = owner.folds_R[rows_L] == 2
    flipped_targets[in_fold] = flipped_targets[in_fold].flip(1)
    shares.append(1 - flipped_targets[:, 0].mean())
    moved = (shares[0] - shares[1]) * weights[owner.folds_R == 2].sum(dim=1)
    torch.testing.assert_close(other - one, moved, rtol=1e-2, atol=2e-3)


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
        active.numbers["shop"][held], whole.numbers["shop"][held], rtol=1e-2, atol=1e-3
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
    class Fails(sealed.Partner):
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


# --- What a partner can tell ---------------------------------------------------------------------


def question(owner: Owner, rows: int, seed: int = 3) -> sealed.Begin:
    active = active_of(owner, {"shop": torch.arange(rows)})
    active.local.begin(seed)
    return active.question("shop")[0]


def test_a_partner_cannot_tell_two_labellings_apart() -> None:
    """Messages of equal sizes, and no classifier of their bytes does better than a coin."""
    owner, _ = made(2)
    other = replace(owner, targets_RC=owner.targets_RC.flip(1) * 0 + torch.tensor([1.0, 0.0]))
    other.targets_RC[::7] = torch.tensor([0.0, 1.0])
    messages = [question(each, 120, seed) for seed in range(24) for each in (owner, other)]
    assert len({len(encode(each)) for each in messages}) == 1
    seen = {
        tuple((name, tuple(tensor.shape)) for name, tensor in each.tensors().items())
        for each in messages
    }
    assert len(seen) == 1

    def view(message: sealed.Begin) -> np.ndarray:
        """Shares of byte values at each place of a coefficient, and the means of the halves."""
        wire = message.targets_PV.numpy().reshape(-1, 8)
        parts = [np.bincount(wire[:, index], minlength=256) / len(wire) for index in range(8)]
        return np.concatenate([*parts, message.key_1W.numpy().reshape(-1, 8).mean(axis=0)])

    x, y = np.stack([view(each) for each in messages]), np.arange(len(messages)) % 2
    train, test = np.arange(32), np.arange(32, 48)
    scaled = (x - x[train].mean(axis=0)) / (x[train].std(axis=0) + 1e-12)
    model = LogisticRegression(C=1e-3, max_iter=500).fit(scaled[train], y[train])
    right = (model.predict(scaled[test]) == y[test]).mean()
    assert abs(right - 0.5) <= 0.375  # 3 standard errors of a coin


def test_the_order_of_a_question_gives_no_label_of_a_sorted_table_away() -> None:
    """A table often lies sorted by its label: no place in a message goes with a label then.

    Nor do places of one question tell those of another one of as many labelled rows.
    """
    rows = 400
    owner, _ = made(2, rows=rows, labels=rows)
    labels = torch.arange(rows) * 2 // rows
    owner = replace(owner, targets_RC=hard_targets(labels, 2, regression=False))
    owner = replace(owner, folds_R=make_folds(labels, 4, seed=0, regression=False))
    row_of = torch.randperm(rows, generator=torch.Generator().manual_seed(1))  # of a sample

    def orders(owner: Owner) -> dict[str, Tensor]:
        active = active_of(owner, {"shop": torch.arange(rows)}, tested=True, bank_rows=row_of)
        message, _ = active.question("shop")
        asked = message.labelled_L, message.samples_N, message.tested_U
        assert all(sorted(each.tolist()) == list(range(rows)) for each in asked)
        assert torch.equal(message.folds_L, owner.folds_R[row_of[message.labelled_L]])
        return dict(zip(("labelled", "asked", "tested"), asked, strict=True))

    # Beyond 5 standard errors of chance only a leak lies.
    most, place_R = 5 / rows**0.5, np.arange(rows)
    found = orders(owner)
    for each in found.values():
        assert abs(np.corrcoef(place_R, labels[row_of[each]].numpy())[0, 1]) < most
        assert (each[1:] - each[:-1]).sign().float().mean().abs() < most  # nor of the samples
    place = {name: each.argsort() for name, each in found.items()}
    for one, other in combinations(place, 2):
        assert abs(np.corrcoef(place[one], place[other])[0, 1]) < most
    later = orders(replace(owner, x_RF=owner.x_RF + 1))
    for name in found:
        row_then, row_now = (row_of[each[name]] for each in (found, later))
        assert abs(np.corrcoef(row_then, row_now)[0, 1]) < most


def test_more_test_rows_than_training_rows_are_asked_about() -> None:
    owner, _ = made(2)
    active = active_of(owner, {"shop": torch.arange(120)})
    later = torch.randn(300, 3, generator=torch.Generator().manual_seed(5))
    everyone = {"bank": torch.arange(300), "shop": torch.arange(300)}
    active.test = AlignedRows.of(later, "bank", Alignment(everyone))
    asked = active.question("shop")[0].tested_U
    assert sorted(asked.tolist()) == list(range(300))
    active.test = replace(active.test, x_RF=later + 1)
    assert not torch.equal(asked, active.question("shop")[0].tested_U)


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
    assert "a key and targets of" in refused(good, targets_PV=good.targets_PV[:, :-7])
    assert "a key and targets of (1, 0)" in refused(good, key_1W=good.key_1W[:, :0])
    nobody = torch.zeros(0, dtype=torch.int64)
    assert "expected one sample or more" in refused(good, samples_N=nobody, tested_U=nobody)
    assert "60 folds, and this party takes 16" in refused(good, folds_L=torch.arange(60))


def test_numbers_of_a_row_are_counted_over_runs(tmp_path: Path) -> None:
    """Targets of any kind tell so many bits a number: after so many there are no more."""
    owner, partner = made(4)
    turned = iter(range(1, 9))
    everyone, ids = torch.arange(len(partner)), np.arange(1000, 1000 + len(partner))

    def asked(rows: Tensor = everyone) -> sealed.Active:
        given = NumbersGiven(Quota(tmp_path), "bank", ids)  # another process each time
        party = partner_of("shop", partner, everyone, SealedLimits(numbers_per_row=7), given)
        labels = replace(owner, targets_RC=owner.targets_RC.roll(next(turned), 0))
        active = active_of(labels, {"shop": rows})
        list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
        return active

    assert asked().partners == ("shop",)  # 3 of 4 classes
    assert asked().partners == ("shop",)
    lost = asked().lost["shop"]
    assert "refuses 3 numbers a row: it has given 6 of a row before" in lost
    assert "policy.sealed.numbers_per_row is 7" in lost
    Quota(tmp_path).write("DROP TABLE numbers")
    assert "cannot read site.sqlite in its site" in asked().lost["shop"]


def test_runs_that_ask_at_once_have_no_more_numbers_than_one_after_the_other(
    tmp_path: Path,
) -> None:
    """One number a row, and eight drivers' threads whose questions are each another."""
    owner, partner = made(2)
    everyone, quota = torch.arange(len(partner)), Quota(tmp_path)
    together, answered = threading.Barrier(8), []

    def run(number: int) -> None:
        given = NumbersGiven(quota, "bank", np.arange(len(partner)), f"run-{number}")
        party = partner_of("shop", partner, everyone, SealedLimits(numbers_per_row=1), given)
        labels = replace(owner, targets_RC=owner.targets_RC.roll(number, 0))
        active = active_of(labels, {"shop": everyone})
        together.wait()
        list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
        answered.extend(active.partners)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answered == ["shop"]
    assert quota.read("SELECT max(times) FROM numbers") == [(1,)]


def test_one_row_is_never_all_of_a_number() -> None:
    owner, partner = made(2)
    partner[0] = partner[7]  # a twin, whose label alone would be its number
    everyone = torch.arange(len(partner))
    party = partner_of("shop", partner, everyone, SealedLimits(least_rows=15))
    active = active_of(owner, {"shop": everyone})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    weights = torch.from_numpy(encrypted.whole_weights(party.smoothing.weights(partner).numpy()))
    weights = weights.double().abs()  # as they are multiplied
    assert float((weights.sum(dim=1) ** 2 / weights.square().sum(dim=1)).min()) > 14.9


# --- Rows that come later ------------------------------------------------------------------------


def asked_again(
    folder: Path, owner: Owner, partner: Tensor, limits: SealedLimits
) -> tuple[sealed.Active, Callable[[Tensor], Tensor]]:
    """A run with a partner at its site, and what asks it about samples afterwards."""
    everyone, ids = torch.arange(len(partner)), np.arange(len(partner))
    quota = Quota(folder)
    given = NumbersGiven(quota, "bank", ids, "run-1")
    party = partner_of("shop", partner, everyone, limits, given)
    kept: list[Bottom] = []
    party.finished = lambda whole: kept.append(whole.bottom_model())
    active = active_of(owner, {"shop": everyone[: len(owner.x_RF)]})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    assert active.partners == ("shop",), active.lost
    (bottom,) = kept  # as soon as it has answered
    asks = inference.Smoother(
        everyone,
        lambda trained: (bottom, partner),
        Local("shop"),
        limits,
        NumbersGiven(quota, "bank", ids),
    )
    answers = Answers.from_json(active.answers["shop"])
    key = encrypted.SecretKey(active.keys["shop"].numpy().tobytes())
    reader = Reader(key, answers, owner.regression)

    def ask(samples: Tensor) -> Tensor:
        reply = asks.handle(inference.Smooth("run-1", samples))
        assert isinstance(reply, inference.Smoothed)
        return reader.read(reply.numbers_PW, reply.place_B, len(samples))

    return active, ask


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_numbers_of_new_rows_are_the_smoother_in_the_clear(tmp_path: Path, classes: int) -> None:
    owner, columns = made(classes)
    new = torch.randn(30, 5, generator=torch.Generator().manual_seed(9))
    whole = torch.cat([columns, new])
    active, ask = asked_again(
        tmp_path, owner, whole, SealedLimits(numbers_per_row=9).model_copy(update={"bits": FINE})
    )
    rows_L = active.labelled("shop")
    local = Local("shop")
    local.begin(3)
    kernels = Kernels.fit(whole, lasting(local, "kernels"))
    smoothing = Smoothing(kernels, SMOOTHER, whole[rows_L], owner.folds_R[rows_L], 10)
    clear = smoothing.weights(new) @ targets(owner, rows_L)
    clear = all_columns(clear, regression=owner.regression)
    found = ask(torch.arange(120, 150))
    assert float((found - clear).abs().max()) < 0.01 * float(clear.std())
    assert torch.equal(ask(torch.arange(120, 150).flip(0)).flip(0), found)  # to the bit


@pytest.mark.parametrize("pictures", ["patches", "flat"])
def test_a_partners_pictures_are_seen_alike_in_training_and_later(
    tmp_path: Path, pictures: Pictures
) -> None:
    owner, _ = made(3)
    rng = torch.Generator().manual_seed(4)
    images = torch.randint(256, (150, 1, 12, 10), generator=rng).byte()
    shared = SharedRows("shop", images, torch.arange(150))
    limits = SealedLimits().model_copy(update={"bits": FINE, "numbers_per_row": 9})
    party = sealed.Partner(shared, None, Local("shop"), limits, pictures=pictures)
    active = active_of(owner, {"shop": torch.arange(120)})
    list(assisting.rounds(active, InProcess({"shop": party}, driver="bank")))
    rows_L = active.made["shop"][0].labelled_L  # in the order of the targets
    x = images.flatten(1) / 255
    local = Local("shop")
    local.begin(3)
    view, kernels = kernels_of(x, torch.Size((1, 12, 10)), lasting(local, "kernels"), pictures)
    smoothing = Smoothing(kernels, SMOOTHER, view(x[rows_L]), owner.folds_R[rows_L], 10, view)
    clear = smoothing.weights(x)
    clear[rows_L] = smoothing.left_out()
    clear = all_columns(clear @ targets(owner, rows_L), regression=False)
    error = float((active.numbers["shop"] - clear[:120]).abs().max())
    assert error < 0.01 * float(clear.std())
    kept = load_bottom(party.bottom_model().save(tmp_path / "kept"))
    assert isinstance(kept.spec, SmoothingSpec)
    assert (kept.spec.pictures is None) == (pictures == "flat")
    weights = kept.network.smoothing.weights(x[120:])
    later = all_columns(weights @ targets(owner, rows_L), regression=False)
    torch.testing.assert_close(later, clear[120:], rtol=1e-3, atol=1e-5)


def test_rows_asked_about_together_count_once_and_in_other_company_anew(tmp_path: Path) -> None:
    """A second answer about a row has a blur of its own, so it tells of it once more."""
    owner, columns = made(4)
    new = torch.randn(30, 5, generator=torch.Generator().manual_seed(9))
    limits = SealedLimits(numbers_per_row=3)
    whole = torch.cat([columns, new])
    _, ask = asked_again(tmp_path, owner, whole, limits)
    first = ask(torch.arange(120, 150))
    for _ in range(3):
        assert torch.equal(ask(torch.arange(120, 150)), first)
    for others in (torch.arange(120, 149), torch.arange(60, 90)):  # these were asked in training
        with pytest.raises(PartyError, match="refuses 3 numbers a row: it has given 3 of a row be"):
            ask(others)
    given = NumbersGiven(Quota(tmp_path), "bank", np.arange(len(whole)))
    assert given.most(torch.arange(len(whole))) == 3


def test_weights_in_parts_and_in_a_file_are_those_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(260, 5, generator=rng)
    made = Smoothing(Kernels.fit(x, rng), SMOOTHER, x[:60], torch.arange(60) % 4, 10)
    known = torch.where(torch.arange(260) < 60, torch.arange(260), -1)
    known = known.roll(7)  # labelled rows stand among the others
    whole = made.weights(x.roll(7, 0), known)
    made.forget()
    monkeypatch.setattr("dovetail.data.stored.NUMBERS_BYTES", 0)
    in_file = made.weights(x.roll(7, 0), known)
    assert stored.in_file(in_file.numpy())
    assert torch.equal(in_file, whole)
