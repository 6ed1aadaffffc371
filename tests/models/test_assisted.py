"""The joint teacher of APFed-S where partners lack rows."""

from __future__ import annotations

import pytest
import torch

from dovetail.models.learners import NO_FOLD, Linear
from dovetail.models.learners.assisted import Inputs, fit_assisted
from dovetail.models.learners.assisted_teacher import fit_teacher
from dovetail.models.learners.distil import Owner
from dovetail.models.learners.specs import Fitted
from dovetail.models.losses import SquaredError


def test_own_outputs_stand_in_for_numbers_that_are_not_there() -> None:
    local = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    z = 3 * local + 0.5
    lacking = z.clone()
    lacking[::3] = torch.nan
    inputs = Inputs.fit(local, lacking, 1, regression=True)
    torch.testing.assert_close(inputs.of(local, lacking), inputs.of(local, z), rtol=0.05, atol=0.05)


def test_of_a_partner_that_shares_next_to_nothing_own_outputs_say_nothing() -> None:
    local, z = torch.randn(20, 3), torch.full((20, 3), torch.nan)
    z[:2] = torch.randn(2, 3)
    inputs = Inputs.fit(local, z, 3, regression=False)
    assert (inputs.of(local, z)[2:, 3:] == 0).all()


@pytest.mark.trained
def test_rows_that_lack_a_number_do_not_spoil_it_for_the_others() -> None:
    """A partner that has a third of the rows says of these what it says where it has all."""
    rng = torch.Generator().manual_seed(1)
    local = torch.randn(600, 1, generator=rng)
    hidden = torch.randn(600, 1, generator=rng)
    y = local + hidden
    z = y + 0.1 * torch.randn(600, 1, generator=rng)
    folds = torch.arange(600) % 4
    folds[400:] = NO_FOLD
    owner = Owner(local, y, folds, SquaredError())
    judged = folds >= 0
    errors = []
    for share in (1, 3):
        held = z.clone()
        held[torch.arange(600) % share != 0] = torch.nan
        inputs = Inputs.fit(local[judged], held[judged], 1, regression=True)
        inputs_RF = inputs.of(local, held)
        reported = fit_assisted(inputs_RF, owner, judged)["ridge"].outputs(inputs_RF).mean(dim=0)
        rows = torch.arange(400, 600)
        rows = rows[~held[rows].isnan().any(dim=1)]
        errors.append(float((reported[rows] - y[rows]).square().mean()))
    assert errors[1] < 3 * errors[0] < 0.2


def test_a_folds_teacher_reads_own_outputs_that_know_none_of_its_labels() -> None:
    """What it says of rows without a label hardly moves with these labels, as others' does."""
    rng = torch.Generator().manual_seed(2)
    x, z = torch.randn(400, 6, generator=rng), torch.randn(400, 1, generator=rng)
    y = x[:, :1] + z + 0.3 * torch.randn(400, 1, generator=rng)
    folds = torch.arange(400) % 4
    folds[80:] = NO_FOLD
    said = []
    for moved in (0.0, 1.0):
        owner = Owner(
            x, torch.where((folds == 2)[:, None], y + moved * x[:, 1:2], y), folds, SquaredError()
        )
        alone = Linear(penalties=(0.01,)).fit(owner.labelled_rows(), seed=0)
        found = fit_teacher(z, owner, alone)
        assert found is not None
        said.append(found.teacher.outputs_KRC[:, 80:, 0])
    change_K = (said[1] - said[0]).std(dim=1)
    assert change_K[2] < 0.5 * min(change_K[0], change_K[1], change_K[3])


def few_shared(shared: int) -> tuple[Owner, Fitted, torch.Tensor]:
    """60 labelled rows of which a partner has so many, and numbers that own columns mostly tell."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(300, 4, generator=rng)
    z = x[:, 1:2] + 0.1 * torch.randn(300, 1, generator=rng)
    y = x[:, :1] + 2 * z + 0.1 * torch.randn(300, 1, generator=rng)
    folds = torch.where(torch.arange(300) < 60, torch.arange(300) % 4, NO_FOLD)
    z[shared:60] = torch.nan
    owner = Owner(x, y, folds, SquaredError())
    return owner, Linear(penalties=(0.01,)).fit(owner.labelled_rows(), seed=0), z


@pytest.mark.trained
def test_where_few_labelled_rows_are_shared_all_of_them_teach() -> None:
    owner, alone, z = few_shared(12)
    filled, without = (fit_teacher(z, owner, alone, fill=fill) for fill in (True, False))
    assert filled is not None
    assert without is not None
    assert filled.teacher.aligned.all()
    assert without.teacher.aligned.sum() == filled.joint.aligned.sum() == 12 + 240
    # Own models are all that says something of rows that nobody has; they are not far off there.
    said = filled.teacher.held_out(owner.folds_R)[12:60]
    held_out = alone.held_out_NC[12:60]
    errors = [float((each - owner.targets_RC[12:60]).square().mean()) for each in (said, held_out)]
    assert errors[0] < 1.2 * errors[1]


def test_where_most_labelled_rows_are_shared_no_number_is_made_up() -> None:
    owner, alone, z = few_shared(50)
    found = fit_teacher(z, owner, alone)
    assert found is not None
    assert found.teacher.aligned.sum() == 50 + 240
