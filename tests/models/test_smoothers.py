"""Linear smoothers: kernel ridge regression, a row's own fold left out, weights spread out."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from dovetail.errors import ModelError
from dovetail.models.smoothers import Kernels, Smoother, Smoothing, spread_out
from dovetail.settings.models import Kernel

KINDS = get_args(Kernel)


def carried_by(weights_BL: Tensor) -> Tensor:
    """(B,) how many rows carry each mean, 1 / sum w^2."""
    share = weights_BL.abs() / weights_BL.abs().sum(dim=1, keepdim=True).clamp(min=1e-30)
    return 1 / share.square().sum(dim=1).clamp(min=1e-30)


def table(rows: int = 80, columns: int = 4) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(rows, columns, generator=rng)
    x[:, 0] = (x[:, 0] > 0).float()
    return x


def smoothing(x: Tensor, labelled: int, smoother: Smoother, *, least: float = 1.0) -> Smoothing:
    kernels = Kernels.fit(x, torch.Generator().manual_seed(0))
    folds = torch.arange(labelled) % 4
    return Smoothing(kernels, smoother, x[:labelled], folds, least)


@pytest.mark.parametrize("kernel", KINDS)
def test_weights_are_those_of_kernel_ridge_regression(kernel: Kernel) -> None:
    x, targets = table(), torch.randn(40, 2, generator=torch.Generator().manual_seed(2))
    made = smoothing(x, 40, Smoother(kernel, 0.7))
    between = made.kernels(x[:40], x[:40], kernel)
    others = made.kernels(x[40:], x[:40], kernel)
    ridge = 0.7 * float(between.diagonal().mean())  # in mean eigenvalues
    known = KernelRidge(alpha=ridge, kernel="precomputed").fit(between, targets)
    expected = torch.from_numpy(known.predict(others)).float()
    torch.testing.assert_close(made.weights(x[40:]) @ targets, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kernel", KINDS)
def test_a_labelled_rows_own_fold_is_left_out(kernel: Kernel) -> None:
    x = table()
    made = smoothing(x, 40, Smoother(kernel, 1.0), least=5)
    weights = made.left_out()
    same = made.folds_L[:, None] == made.folds_L[None]
    assert (weights[same] == 0).all()
    assert (weights[~same] != 0).any()
    # It is what a smoother of the other folds' rows says.
    others = made.folds_L != 0
    fewer = Smoothing(made.kernels, made.smoother, x[:40][others], made.folds_L[others], 5)
    expected = fewer.weights(x[:40][~others])
    torch.testing.assert_close(weights[~others][:, others], expected)


def test_rows_of_equal_columns_share_all_trees_and_any_number_of_rows_is_compared() -> None:
    rng = torch.Generator().manual_seed(2)
    x = torch.randint(0, 3, (700, 2), generator=rng).float()  # more pairs than are compared at once
    kernels = Kernels.fit(x, torch.Generator().manual_seed(0))
    shared = kernels(x, x, "trees")
    torch.testing.assert_close(shared, shared.T)
    assert bool((shared[(x[:, None] == x[None]).all(dim=2)] == 1).all())
    parts = torch.cat([kernels(part, x, "trees") for part in x.split([1, 0, 2, 97, *[200] * 3])])
    assert torch.equal(parts, shared)
    assert kernels(x[:0], x, "trees").shape == (0, 700)


@pytest.mark.parametrize("kernel", KINDS)
def test_a_row_is_like_itself(kernel: Kernel) -> None:
    x = table(300, 6)
    kernels = Kernels.fit(x, torch.Generator().manual_seed(0))
    similarity = kernels(x, x, kernel).diagonal()
    assert 0.4 < float(similarity.mean()) < 1.5
    between = kernels(x, x, kernel).double()
    assert float(torch.linalg.eigvalsh((between + between.T) / 2).min()) > -1e-3


@pytest.mark.parametrize("least", [2.0, 7.0, 10.0, 30.0])
def test_no_mean_is_carried_by_fewer_rows_than_allowed(least: float) -> None:
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(200, 40, generator=rng).double() ** 3
    weights[:20, 5] = 1e6  # one row that would be all of it
    spread_weights = spread_out(weights, least)
    assert float(carried_by(spread_weights).min()) >= least - 1e-6
    assert (spread_weights.abs() <= weights.abs() + 1e-9).all()
    assert (spread_weights.sign() == weights.sign()).all()
    even = torch.ones(3, 40).double()
    assert (spread_out(even, least) == even).all()


def test_all_columns_of_an_image_or_a_constant_can_be_smoothed() -> None:
    x = torch.zeros(50, 1, 8, 8)
    x[:, 0, 2] = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))
    kernels = Kernels.fit(x, torch.Generator().manual_seed(0))
    made = Smoothing(kernels, Smoother("mean", 1.0), x[:20].flatten(1), torch.arange(20) % 4)
    assert made(x).isfinite().all()


def test_a_smoother_that_cannot_be_is_refused() -> None:
    with pytest.raises(ModelError, match="a kernel among linear, radial, trees, mean"):
        Smoother("cubic", 1.0)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="a ridge above"):
        Smoother("mean", 0.0)


def test_few_landmarks_stand_for_many_labelled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many landmarks as labelled rows the weights are exact; of half as many nearly so."""
    x = table(rows=600)
    targets = torch.sin(x[:, 1]) + x[:, 0]
    numbers = []
    for landmarks in (400, 200):
        monkeypatch.setattr("dovetail.models.smoothers._LANDMARKS", landmarks)
        made = smoothing(x, 400, Smoother("mean", 1.0), least=5)
        known = torch.where(torch.arange(600) < 400, torch.arange(600), -1)
        weights = made.weights(x, known)
        same = made.folds_L[:, None] == made.folds_L[None]
        assert (weights[:400][same] == 0).all()
        numbers.append(weights @ targets[:400])
    error = float((numbers[0] - numbers[1]).std() / numbers[0].std())
    assert 0 < error < 0.1
