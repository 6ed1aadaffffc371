"""What the literature would pick where a partner may go, by identities."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.models.learners import Rows, StackedConfig, fit_stacked, hard_targets, make_folds
from dovetail.models.learners.stacked import mean_outputs
from dovetail.models.learners.subsets import fit_laser, fit_party_dropout
from dovetail.models.learners.vertical import Stacked

CONFIG = StackedConfig(widths=(8, 4), bins=4, max_steps=60, patience=60)


def parts(num: int = 120, seed: int = 0) -> tuple[list[Tensor], Rows]:
    """Two parties' columns; the class depends on both."""
    rng = torch.Generator().manual_seed(seed)
    xs = [torch.randn(num, 3, generator=rng) for _ in range(2)]
    classes = (xs[0][:, 0] + 2 * xs[1][:, 0] > 0).long()
    rows = Rows(
        xs[0], hard_targets(classes, 2, regression=False), make_folds(classes, 3, seed=seed)
    )
    return xs, rows


def outputs_of(stacked: Stacked, xs: list[Tensor]) -> Tensor:
    return mean_outputs(stacked.member_outputs(xs), regression=False)


def test_laser_of_one_party_is_the_network_alone() -> None:
    xs, rows = parts()
    laser = fit_laser(xs[:1], rows, CONFIG, seed=3)
    alone = fit_stacked(xs[:1], rows, CONFIG, seed=3)
    assert torch.equal(laser.outputs(xs[:1]), outputs_of(alone, xs[:1]))
    assert laser.stacked.loss == alone.loss


def test_party_dropout_of_nobody_is_the_joint_network() -> None:
    xs, rows = parts()
    never = fit_party_dropout(xs, rows, CONFIG, seed=3, drop=0)
    joint = fit_stacked(xs, rows, CONFIG, seed=3)
    assert torch.equal(never.outputs(xs), outputs_of(joint, xs))
    assert torch.equal(never.stacked.held_out_NC, joint.held_out_NC)


def test_a_partner_who_is_always_dropped_teaches_nothing() -> None:
    xs, rows = parts()
    always = fit_party_dropout(xs, rows, CONFIG, seed=3, drop=1)
    other = fit_party_dropout([xs[0], xs[1].flip(0)], rows, CONFIG, seed=3, drop=1)
    assert torch.equal(always.outputs([xs[0], None]), other.outputs([xs[0], None]))


@pytest.mark.slow
@pytest.mark.parametrize("fit", [fit_laser, fit_party_dropout])
def test_both_predict_with_the_partner_and_without(fit) -> None:  # type: ignore[no-untyped-def]
    xs, rows = parts(400)
    test_xs, test_rows = parts(400, seed=1)
    config = StackedConfig(widths=(8, 4), bins=4, max_steps=300)
    fitted = fit(xs, rows, config, seed=0)
    truth = test_rows.targets_NC.argmax(dim=1)

    def right(given: list[Tensor | None]) -> float:
        return float((fitted.outputs(given).argmax(dim=1) == truth).float().mean())

    together, without_partner = right([*test_xs]), right([test_xs[0], None])
    # With the partner it can know the class; without it at best 1/2 + arctan(1/2) / pi = 0.65.
    assert together > 0.85
    assert 0.57 < without_partner < 0.72


@pytest.mark.slow
@pytest.mark.parametrize("fit", [fit_laser, fit_party_dropout])
def test_what_stands_in_rows_that_a_partner_lacks_is_not_read(fit) -> None:  # type: ignore[no-untyped-def]
    xs, rows = parts()
    held_PN = torch.ones(2, len(xs[0]), dtype=torch.bool)
    held_PN[1, ::2] = False
    nonsense = torch.where(held_PN[1][:, None], xs[1], torch.tensor(7.0))
    one, other = (
        fit([xs[0], partner], rows, CONFIG, seed=1, held_PN=held_PN, encode_on=xs)
        for partner in (xs[1], nonsense)
    )
    assert torch.equal(one.outputs([xs[0], None]), other.outputs([xs[0], None]))


def test_a_probability_outside_0_to_1_is_refused() -> None:
    xs, rows = parts()
    with pytest.raises(ConfigError, match="drop is a probability, 0 to 1; got 2"):
        fit_party_dropout(xs, rows, CONFIG, seed=0, drop=2)
