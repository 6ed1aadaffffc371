"""A model that is saved and loaded predicts the same; a folder that is no model is refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.data import (
    Classification,
    ImageInput,
    Input,
    Regression,
    TableEncoder,
    Task,
    table_from_arrays,
)
from dovetail.errors import DataError, ModelError
from dovetail.models import (
    Convolutional,
    EncoderHead,
    EncoderHeadNetwork,
    EncoderSpec,
    Head,
    Model,
    Perceptron,
    RandomStream,
    load,
)
from dovetail.models.columns import ColumnsSpec

TABLE = table_from_arrays(
    "clients",
    {
        "age": np.array([31.0, 44.0, np.nan, 58.0, 23.0]),
        "job": np.array(["clerk", "cook", "clerk", None, "smith"], dtype=object),
    },
)
INPUT = TableEncoder.fit(TABLE, ["age", "job"], party="bank")
CLASSES = Classification(("no", "yes", "perhaps"))
LAYERS = Convolutional((3,), (3,), (2,))


def model(
    task: Task = CLASSES,
    encoder: EncoderSpec = Perceptron((7, 4)),  # noqa: B008  # frozen
    input_shape: tuple[int, ...] = (INPUT.num_features,),
    input: Input | None = INPUT,
    **about: Any,
) -> Model:
    spec = EncoderHead(encoder, Head((5,)), input_shape, task.num_outputs)
    with RandomStream(0, "test"):
        network = spec.build()
    inputs = {} if input is None else {"own": input}
    return Model("bank", task, network, spec, {"own": input_shape}, inputs, about)


def assert_same_predictions(one: Model, two: Model, x: Tensor) -> None:
    first, second = one.predictions(x), two.predictions(x)
    assert first.values.tolist() == second.values.tolist()
    assert first.classes == second.classes
    if first.probabilities is None or second.probabilities is None:
        assert first.probabilities is second.probabilities
    else:
        assert np.array_equal(first.probabilities, second.probabilities)


def test_a_model_of_a_table_predicts_the_same_after_loading(tmp_path: Path) -> None:
    saved = model(label="wants a loan", seed=3)
    loaded = load(saved.save(tmp_path / "bank"))
    fitted = loaded.inputs["own"]
    assert isinstance(fitted, TableEncoder)
    x = fitted.transform(TABLE)
    assert torch.equal(x, INPUT.transform(TABLE))
    assert_same_predictions(saved, loaded, x)
    assert (loaded.party, loaded.task, loaded.shapes) == ("bank", CLASSES, {"own": x.shape[1:]})
    assert loaded.spec == EncoderHead(Perceptron((7, 4)), Head((5,)), (6,), 3) == saved.spec
    assert loaded.about == {"label": "wants a loan", "seed": 3}


def test_a_model_of_images_predicts_the_same_after_loading(tmp_path: Path) -> None:
    strip = ImageInput(1, 8, 6, "height", 4, 8)
    saved = model(encoder=LAYERS, input_shape=(1, 4, 6), input=strip)
    loaded = load(saved.save(tmp_path / "bank"))
    images = torch.randint(256, (5, 1, 8, 6), dtype=torch.uint8)
    assert loaded.inputs == {"own": strip}
    assert_same_predictions(saved, loaded, strip.transform(images))


def test_a_model_of_numbers_predicts_in_their_unit_after_loading(tmp_path: Path) -> None:
    saved = model(Regression(mean=50.0, scale=4.0))
    loaded = load(saved.save(tmp_path / "bank"))
    x = INPUT.transform(TABLE)
    assert_same_predictions(saved, loaded, x)
    by_hand = saved.outputs(x)[:, 0].double() * 4 + 50
    assert loaded.predictions(x).values.tolist() == by_hand.tolist()


def test_a_loaded_model_can_be_saved_again(tmp_path: Path) -> None:
    first = load(model(label="l").save(tmp_path / "one"))
    first.save(tmp_path / "two")
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_loaded_model_can_be_trained_on(tmp_path: Path) -> None:
    loaded = load(model().save(tmp_path / "bank"))
    loaded.network(INPUT.transform(TABLE)).sum().backward()
    assert all(weights.grad is not None for weights in loaded.network.parameters())


def test_loading_draws_no_random_number(tmp_path: Path) -> None:
    folder = model().save(tmp_path / "bank")
    state = torch.get_rng_state()
    load(folder)
    assert torch.equal(torch.get_rng_state(), state)


class Doubles(nn.Module):
    """An encoder of one's own, two of whose weights are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def test_a_model_of_a_network_of_ones_own_is_loaded_into_it(tmp_path: Path) -> None:
    saved = Model("bank", CLASSES, Doubles(), None, {"own": (3,)})
    folder = saved.save(tmp_path / "bank")
    loaded = dovetail.load(folder, network=Doubles())
    assert loaded.inputs == {}
    assert_same_predictions(saved, loaded, torch.randn(4, 3))
    with pytest.raises(
        ModelError, match=r"bank: its network is one of your own: load\(folder, net"
    ):
        load(folder)
    with pytest.raises(ModelError, match=r"bank: the model cannot be rebuilt .*Missing key"):
        load(folder, network=nn.Sequential(Doubles()))


def test_an_encoder_and_a_head_of_ones_own_are_one_network(tmp_path: Path) -> None:
    def network_of(outputs: int = 3) -> EncoderHeadNetwork:
        return EncoderHeadNetwork(Perceptron((7, 4)).encoder((6,)), nn.Linear(4, outputs))

    saved = Model("bank", CLASSES, network_of(), None, {"own": (6,)})
    folder = saved.save(tmp_path / "bank")
    assert_same_predictions(saved, load(folder, network=network_of()), torch.randn(4, 6))
    with pytest.raises(ModelError, match=r"bank: the model cannot be rebuilt .*size mismatch"):
        load(folder, network=network_of(outputs=2))
    without_weights = Model("bank", CLASSES, nn.Identity(), None, {"own": (3,)})
    assert without_weights.predictions(torch.randn(4, 3)).values.shape == (4,)


def test_a_network_with_tensors_that_are_no_weights_is_rebuilt_with_them(tmp_path: Path) -> None:
    spec = ColumnsSpec(common=(2, 0), unique=(1,), widths=(4, 3), num_outputs=3)
    saved = Model("bank", CLASSES, spec.build(), spec, {"own": (3,)})
    loaded = load(saved.save(tmp_path / "bank"))
    assert loaded.spec == spec
    assert_same_predictions(saved, loaded, torch.randn(4, 3))


# --- Several blocks -----------------------------------------------------------------------------


class Sum(nn.Module):
    """Logits that are the sum of a layer's for each block that is given."""

    def __init__(self, *, any_blocks: bool = False) -> None:
        super().__init__()
        self.any_blocks = any_blocks
        self.layers = nn.ModuleDict({"left": nn.Linear(2, 3), "right": nn.Linear(4, 3)})

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = torch.stack([self.layers[name](block) for name, block in x.items()])
        return outputs.sum(dim=0)


def of_two_blocks(**settings: Any) -> Model:
    shapes = {"left": (2,), "right": (4,)}
    return Model("bank", CLASSES, Sum(**settings), None, shapes)


def test_a_model_of_several_blocks_takes_them_by_name(tmp_path: Path) -> None:
    saved = of_two_blocks()
    x = {"right": torch.randn(5, 4), "left": torch.randn(5, 2)}
    layers = saved.network.layers
    expected = layers["left"](x["left"]) + layers["right"](x["right"])
    torch.testing.assert_close(saved.outputs(x, batch_size=2), expected.detach())
    loaded = load(saved.save(tmp_path / "bank"), network=Sum())
    assert loaded.shapes == {"left": (2,), "right": (4,)}
    assert torch.equal(loaded.outputs(x), saved.outputs(x))


def test_a_network_that_can_predicts_from_the_blocks_there_are() -> None:
    one = of_two_blocks(any_blocks=True)
    x = torch.randn(5, 4)
    expected = one.network.layers["right"](x).detach()
    torch.testing.assert_close(one.outputs({"right": x}), expected)


@pytest.mark.parametrize(
    ("any_blocks", "x", "words"),
    [
        (False, torch.zeros(2, 6), "takes the blocks .* give a dict block -> rows, got one tensor"),
        (
            False,
            {"left": torch.zeros(2, 2)},
            r"takes the blocks \['left', 'right'\], got \['left'\]",
        ),
        (True, {}, r"takes one or more of the blocks \['left', 'right'\], got \[\]"),
        (True, {"top": torch.zeros(2, 2)}, r"got \['top'\]"),
        (True, {"left": torch.zeros(2, 3)}, r"rows of block 'left' of shape \(2,\), got \(3,\)"),
        (
            False,
            {"left": torch.zeros(2, 2), "right": torch.zeros(3, 4)},
            r"'bank' differ in rows: \{'left': 2, 'right': 3\}",
        ),
    ],
    ids=["a tensor", "one of two", "none", "another", "another shape", "other rows"],
)
def test_blocks_that_do_not_fit_are_refused(any_blocks: bool, x: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        of_two_blocks(any_blocks=any_blocks).predict(x)


# --- Predictions --------------------------------------------------------------------------------


def test_a_prediction_is_the_most_probable_class() -> None:
    prediction = model().predictions(INPUT.transform(TABLE))
    assert prediction.probabilities is not None
    assert prediction.probabilities.shape == (5, 3)
    np.testing.assert_allclose(prediction.probabilities.sum(axis=1), 1, rtol=1e-6)
    best = prediction.probabilities.argmax(axis=1)
    assert prediction.values.tolist() == [CLASSES.classes[index] for index in best]
    assert (
        model(Classification((4, 7))).predictions(INPUT.transform(TABLE)).values.dtype.kind == "i"
    )


def test_rows_are_predicted_alike_in_batches_of_any_size() -> None:
    one, x = model(), torch.randn(7, 6)
    for size in (1, 3, 7, 100):
        torch.testing.assert_close(one.outputs(x, batch_size=size), one.outputs(x))


def test_no_row_gives_no_prediction() -> None:
    prediction = model().predictions(torch.empty(0, 6))
    assert prediction.values.shape == (0,)
    assert prediction.probabilities is not None
    assert prediction.probabilities.shape == (0, 3)


def test_predicting_leaves_a_model_in_training_as_it_was() -> None:
    one = model()
    one.network.train()
    one.network.encoder.eval()
    x = torch.randn(4, 6)
    assert torch.equal(one.outputs(x), one.outputs(x))  # no dropout
    assert one.network.training
    assert one.network.head.training
    assert not one.network.encoder.training


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match=r"'bank' takes rows of shape \(6,\), got \(5,\)"):
        model().predict(torch.zeros(2, 5))


def test_outputs_that_are_not_finite_are_no_prediction() -> None:
    one = model()
    x = torch.zeros(4, 6)
    x[1] = torch.inf
    with pytest.raises(ModelError, match="'bank' gives 1 of 4 rows outputs that are not finite"):
        one.predict(x)


def test_saving_replaces_an_older_model_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "bank"
    model(seed=1).save(folder)
    model(seed=2).save(folder)
    assert load(folder).about == {"seed": 2}
    assert [path.name for path in folder.parent.iterdir()] == ["bank"]
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ModelError, match="holds other files; save the model to a folder of its"):
        model().save(tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "mine"


# --- Folders that are no model ------------------------------------------------------------------


def broken(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A model's folder with ``model.json`` changed."""
    model(label="l").save(folder)
    stored = json.loads((folder / "model.json").read_text())
    changed = change(stored)
    (folder / "model.json").write_text(json.dumps(stored if changed is None else changed))
    return folder


def assert_refused(folder: Path, words: str | None = None) -> None:
    """One sentence that names the folder."""
    with pytest.raises(ModelError, match=words) as caught:
        load(folder)
    error = str(caught.value)
    assert str(folder) in error
    assert "\n" not in error
    assert len(error) < 600


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = model().save(tmp_path / "bank")
    (folder / name).unlink()
    assert_refused(folder, f"is no model folder: {name} is missing; .*RUN/models/PARTY")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere", r"model\.json is missing")
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file", "cannot be read")


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, "\x00"])
def test_a_description_that_is_no_json_is_named(tmp_path: Path, text: str) -> None:
    folder = model().save(tmp_path / "bank")
    (folder / "model.json").write_text(text)
    assert_refused(folder, r"model\.json cannot be read")


def test_a_description_that_is_no_text_is_named(tmp_path: Path) -> None:
    folder = model().save(tmp_path / "bank")
    (folder / "model.json").write_bytes(b"\xff\xfe\x00")
    assert_refused(folder, r"model\.json cannot be read")


@pytest.mark.parametrize("stored", [[], 3, None, "model", {}, {"format": 1}, {"format": "2"}])
def test_another_format_is_refused(tmp_path: Path, stored: Any) -> None:
    folder = model().save(tmp_path / "bank")
    (folder / "model.json").write_text(json.dumps(stored))
    assert_refused(folder, "expected format 2; use the dovetail that wrote it")


def test_changed_weights_are_noticed(tmp_path: Path) -> None:
    folder = model().save(tmp_path / "bank")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert_refused(folder, r"model\.safetensors is not the file that model\.json was written for")


@pytest.mark.parametrize("weights", [b"", b"no weights", bytes(100)])
def test_weights_that_are_none_are_refused_whatever_their_sum(
    tmp_path: Path, weights: bytes
) -> None:
    def change(stored: dict[str, Any]) -> None:
        stored["weights_sha256"] = hashlib.sha256(weights).hexdigest()

    folder = broken(tmp_path / "bank", change)
    (folder / "model.safetensors").write_bytes(weights)
    assert_refused(folder, "cannot be rebuilt")


@pytest.mark.parametrize("key", ["party", "task", "network", "blocks"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    def change(stored: dict[str, Any]) -> None:
        del stored[key]

    assert_refused(broken(tmp_path / "bank", change), f"lacks '{key}'")


HOSTILE = [None, [], {}, "text", 3, -1, 1.5, True, [None], {"kind": None}, {"kind": []}, [[]]]


@pytest.mark.parametrize(
    "key",
    [
        ("task",),
        ("task", "kind"),
        ("task", "classes"),
        ("blocks",),
        ("blocks", "own"),
        ("blocks", "own", "shape"),
        ("network",),
        ("network", "kind"),
        ("network", "input_shape"),
        ("network", "encoder"),
        ("network", "encoder", "widths"),
        ("network", "encoder", "widths", 0),
        ("network", "head"),
        ("network", "head", "widths"),
        ("network", "head", "widths", 0),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, key: tuple[str | int, ...]) -> None:
    folder = model().save(tmp_path / "bank")
    whole = (folder / "model.json").read_text()
    for value in HOSTILE:
        stored = json.loads(whole)
        node: Any = stored
        for part in key[:-1]:
            node = node[part]
        node[key[-1]] = value
        (folder / "model.json").write_text(json.dumps(stored))
        assert_refused(folder)


@pytest.mark.parametrize("value", [3, "text", [1], {"kind": "query"}, {"kind": "table"}, True])
def test_an_input_of_another_type_is_refused(tmp_path: Path, value: Any) -> None:
    def change(stored: dict[str, Any]) -> None:
        stored["blocks"]["own"]["input"] = value

    assert_refused(broken(tmp_path / "bank", change))


@pytest.mark.parametrize("key", ["shape", "input"])
def test_a_missing_key_of_a_block_is_named(tmp_path: Path, key: str) -> None:
    def change(stored: dict[str, Any]) -> None:
        del stored["blocks"]["own"][key]

    assert_refused(broken(tmp_path / "bank", change), f"lacks '{key}'")


def test_a_network_that_does_not_fit_the_task_or_the_blocks_is_refused(tmp_path: Path) -> None:
    def fewer_classes(stored: dict[str, Any]) -> None:
        stored["task"]["classes"].pop()

    words = r"gives outputs of shape \(3,\), its task needs 2"
    assert_refused(broken(tmp_path / "one", fewer_classes), words)

    def wider(stored: dict[str, Any]) -> None:
        stored["blocks"]["own"]["shape"] = [10**9]  # not made: 8 GB

    before = getrusage(RUSAGE_SELF).ru_maxrss
    assert_refused(broken(tmp_path / "two", wider), "cannot be rebuilt")
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_layers_that_do_not_fit_the_weights_are_refused_without_being_made(
    tmp_path: Path,
) -> None:
    def change(stored: dict[str, Any]) -> None:
        stored["network"]["encoder"]["widths"] = [10**7, 10**7]  # 400 TB of weights

    assert_refused(broken(tmp_path / "bank", change), "cannot be rebuilt .*size mismatch")

    def endless(stored: dict[str, Any]) -> None:
        stored["network"]["num_outputs"] = math.inf

    assert_refused(broken(tmp_path / "two", endless), "cannot be read .*finite number, got inf")


def test_convolutions_that_cannot_be_are_refused(tmp_path: Path) -> None:
    folder = model(encoder=LAYERS, input_shape=(1, 4, 6), input=None).save(tmp_path / "bank")
    whole = json.loads((folder / "model.json").read_text())
    for key, value in {
        "strides": [0],
        "kernels": [100],
        "channels": [],
        "padding": "x",
        "kind": "recurrent",
    }.items():
        encoder = {**whole["network"]["encoder"], key: value}
        changed = {**whole, "network": {**whole["network"], "encoder": encoder}}
        (folder / "model.json").write_text(json.dumps(changed))
        assert_refused(folder)
