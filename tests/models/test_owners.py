"""Networks of data owners and label owners, and what a data owner keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dovetail.data import ImageInput
from dovetail.data.saving import of_kind
from dovetail.errors import ConfigError, DataError, ModelError
from dovetail.models import (
    Bottom,
    ColumnsMlp,
    OwnerResNet,
    OwnersSpec,
    StripCnn,
    TopSpec,
    load_bottom,
)
from dovetail.models.owners import BottomSpec, EncodedMlp, mean_embedding

SPECS: list[tuple[BottomSpec, tuple[int, ...]]] = [
    (StripCnn(3, 5, (1, 2), 4), (1, 2, 28)),
    (StripCnn(), (3, 2, 32)),
    (ColumnsMlp((4, 3)), (6,)),
    (EncodedMlp((4, 3), num_bins=9), (6,)),
    (OwnerResNet(2), (3, 2, 32)),
]


@pytest.mark.parametrize(("spec", "shape"), SPECS)
def test_a_bottom_maps_rows_to_embeddings(spec: BottomSpec, shape: tuple[int, ...]) -> None:
    assert spec.build(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)
    assert of_kind(BottomSpec, json.loads(json.dumps(spec.to_json()))) == spec


def test_a_strip_is_read_by_one_convolution_and_two_linear_layers() -> None:
    network = StripCnn(channels=16, hidden=64).build((1, 2, 28), 32)
    shapes = [tuple(p.shape) for p in network.parameters() if p.dim() > 1]
    assert shapes == [(16, 1, 3, 3), (64, 16 * 2 * 28), (32, 64)]


@pytest.mark.parametrize("kind", [StripCnn(), OwnerResNet(2)])
def test_columns_are_no_image(kind: BottomSpec) -> None:
    with pytest.raises(ConfigError, match="image"):
        kind.build((6,), 4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StripCnn(channels=0),
        lambda: StripCnn(kernel=2),
        lambda: ColumnsMlp((0,)),
        lambda: TopSpec(0, (), 2),
        lambda: OwnersSpec((), (), (), TopSpec(2, (), 2)),
    ],
)
def test_sizes_that_cannot_be_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"positive|one or more"):
        wrong()  # type: ignore[operator]


def test_an_owner_that_is_not_given_is_left_out_of_the_mean() -> None:
    spec = OwnersSpec(
        ("a", "b"), ((2,), (3,)), (ColumnsMlp((4,)), ColumnsMlp((4,))), TopSpec(5, (3,), 2)
    )
    network = spec.build()
    x = {"a": torch.randn(4, 2), "b": torch.randn(4, 3)}
    first, second = network.bottoms[0](x["a"]), network.bottoms[1](x["b"])
    torch.testing.assert_close(network(x), network.top((first + second) / 2))
    torch.testing.assert_close(network({"b": x["b"]}), network.top(second))


def test_a_mean_leaves_what_it_is_of_as_it_was() -> None:
    parts = [torch.full((2, 3), float(value)) for value in (1, 2, 6)]
    assert mean_embedding(parts).eq(3).all()
    assert [part[0, 0].item() for part in parts] == [1, 2, 6]


def bottom() -> Bottom:
    spec = StripCnn(2, hidden=3)
    image = ImageInput(1, 4, 6, "height", 2, 4)
    about = {"method": "fedoptimus", "seed": 3}
    return Bottom("lab", spec.build((1, 2, 6), 4), spec, (1, 2, 6), 4, image, about)


def test_a_saved_bottom_embeds_as_it_did(tmp_path: Path) -> None:
    kept = bottom()
    x = torch.randint(256, (5, 1, 2, 6), dtype=torch.uint8)
    loaded = load_bottom(kept.save(tmp_path / "lab"))
    assert torch.equal(loaded.embed(x), kept.embed(x))
    assert (loaded.party, loaded.spec, loaded.about) == (kept.party, kept.spec, kept.about)
    assert loaded.input == kept.input
    with pytest.raises(DataError, match=r"takes rows of shape \(1, 2, 6\), got \(1, 4, 6\)"):
        loaded.embed(torch.zeros(2, 1, 4, 6))
    kept.save(tmp_path / "lab")  # once more


def test_a_folder_of_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="holds other files"):
        bottom().save(tmp_path)


def test_a_damaged_bottom_is_refused(tmp_path: Path) -> None:
    folder = bottom().save(tmp_path / "lab")
    path = folder / "bottom.json"
    description = json.loads(path.read_text())

    def stored(**changes: object) -> None:
        path.write_text(json.dumps({**description, **changes}))

    for changes, why in (
        ({"format": 9}, "expected format 1"),
        ({"weights_sha256": "0"}, "is not the file"),
        ({"network": {"kind": "forest"}}, "got 'forest'"),
        ({"embedding": 10**9}, "cannot be rebuilt"),
        ({"shape": [1, 2, -6]}, "positive whole numbers"),
    ):
        stored(**changes)
        with pytest.raises(ModelError, match=why):
            load_bottom(folder)
    path.unlink()
    with pytest.raises(ModelError, match=r"bottom\.json is missing"):
        load_bottom(folder)
