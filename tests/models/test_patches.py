"""Patterns of pictures are learnt without a label, and say more of them than pixels."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from dovetail.errors import ModelError
from dovetail.models.learners import hard_targets
from dovetail.models.patches import Patches, PatchesSpec, kernels_of
from dovetail.models.smoothers import Smoother, Smoothing


def moved_digits(rows: int = 900) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, 196) digits of 8 x 8 pixels, each somewhere in 14 x 14, and their classes."""
    data = load_digits()
    rng = torch.Generator().manual_seed(0)
    pictures = torch.zeros(rows, 14, 14)
    for picture, image in zip(pictures, torch.from_numpy(data.images[:rows]).float(), strict=True):
        down, across = torch.randint(7, (2,), generator=rng).tolist()
        picture[down : down + 8, across : across + 8] = image / 16
    return pictures.flatten(1), torch.from_numpy(data.target[:rows])


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 14, 28), (3, 32, 16), (3, 4, 9), (1, 64, 64)])
def test_a_picture_of_any_shape_has_the_columns_that_its_sizes_say(
    shape: tuple[int, int, int],
) -> None:
    x = torch.rand(300, torch.Size(shape).numel(), generator=torch.Generator().manual_seed(1))
    made = Patches.fit(x, torch.Size(shape), torch.Generator().manual_seed(2))
    described = made(x)
    assert described.shape == (300, made.spec.num_columns)
    assert described.isfinite().all()
    assert torch.allclose(made(x[7:8]), described[7:8], atol=1e-5)
    assert made(x[:0]).shape == (0, made.spec.num_columns)
    spec = PatchesSpec.from_json({**vars(made.spec)})
    again = Patches(spec)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(x), described)


def test_kernels_of_patches_know_a_digit_wherever_it_stands() -> None:
    x, classes = moved_digits()
    t = hard_targets(classes[:300], 10, regression=False)
    right = {}
    for pictures in ("flat", "patches"):
        rng = torch.Generator().manual_seed(0)
        view, kernels = kernels_of(x, torch.Size((1, 14, 14)), rng, pictures)
        folds = torch.arange(300) % 4
        smoothing = Smoothing(kernels, Smoother("mean", 1.0), view(x[:300]), folds, view=view)
        said = smoothing.weights(x[300:]) @ t
        right[pictures] = float((said.argmax(dim=1) == classes[300:]).float().mean())
    assert right["patches"] > right["flat"] + 0.1


def test_a_table_is_seen_as_it_is() -> None:
    x = torch.rand(200, 5, generator=torch.Generator().manual_seed(1))
    view, _ = kernels_of(x, torch.Size((5,)), torch.Generator().manual_seed(0), "patches")
    assert view(x) is x


@pytest.mark.parametrize("size", [{"size": 9}, {"stride": 0}, {"patterns": 10**6}])
def test_sizes_that_cannot_be_are_refused(size: dict[str, int]) -> None:
    sizes = {"channels": 1, "height": 8, "width": 8, "size": 3, "stride": 1, "patterns": 4}
    with pytest.raises(ModelError, match="no patches of pictures"):
        PatchesSpec.from_json({**sizes, **size})
