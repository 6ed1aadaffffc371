"""A model that is saved and loaded predicts the same; a folder that is no model is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
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
from dovetail.models import Convolutional, EncoderSpec, Head, Model, Perceptron, RandomStream, load

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
    spec: EncoderSpec = Perceptron((7, 4)),  # noqa: B008  # frozen
    input_shape: tuple[int, ...] = (INPUT.num_features,),
    input: Input | None = INPUT,
    **about: Any,
) -> Model:
    head = Head((5,))
    with RandomStream(0, "test"):
        encoder = spec.encoder(input_shape)
        width = encoder(torch.zeros(2, *input_shape)).flatten(1).shape[1]
        built = head.build(width, task.num_outputs)
    return Model(
        party="bank",
        task=task,
        encoder=encoder,
        head=built,
        input_shape=input_shape,
        input=input,
        encoder_spec=spec,
        head_spec=head,
        about=about,
    )


def assert_same_predictions(one: Model, two: Model, x: Tensor) -> None:
    first, second = one.predict(x), two.predict(x)
    assert first.values.tolist() == second.values.tolist()
    assert first.classes == second.classes
    if first.probabilities is None or second.probabilities is None:
        assert first.probabilities is second.probabilities
    else:
        assert np.array_equal(first.probabilities, second.probabilities)


def test_a_model_of_a_table_predicts_the_same_after_loading(tmp_path: Path) -> None:
    saved = model(label="wants a loan", seed=3)
    loaded = load(saved.save(tmp_path / "bank"))
    assert isinstance(loaded.input, TableEncoder)
    x = loaded.input.transform(TABLE)
    assert torch.equal(x, INPUT.transform(TABLE))
    assert_same_predictions(saved, loaded, x)
    assert (loaded.party, loaded.task, loaded.input_shape) == ("bank", CLASSES, (x.shape[1],))
    assert (loaded.encoder_spec, loaded.head_spec) == (Perceptron((7, 4)), Head((5,)))
    assert loaded.about == {"label": "wants a loan", "seed": 3}


def test_a_model_of_images_predicts_the_same_after_loading(tmp_path: Path) -> None:
    strip = ImageInput(1, 8, 6, "height", 4, 8)
    saved = model(spec=LAYERS, input_shape=(1, 4, 6), input=strip)
    loaded = load(saved.save(tmp_path / "bank"))
    images = torch.randint(256, (5, 1, 8, 6), dtype=torch.uint8)
    assert loaded.input == strip
    assert_same_predictions(saved, loaded, strip.transform(images))


def test_a_model_of_numbers_predicts_in_their_unit_after_loading(tmp_path: Path) -> None:
    saved = model(Regression(mean=50.0, scale=4.0))
    loaded = load(saved.save(tmp_path / "bank"))
    x = INPUT.transform(TABLE)
    assert_same_predictions(saved, loaded, x)
    by_hand = saved.outputs(x)[:, 0].double() * 4 + 50
    assert loaded.predict(x).values.tolist() == by_hand.tolist()


def test_a_loaded_model_can_be_saved_again(tmp_path: Path) -> None:
    first = load(model(label="l").save(tmp_path / "one"))
    first.save(tmp_path / "two")
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_loaded_model_can_be_trained_on(tmp_path: Path) -> None:
    loaded = load(model().save(tmp_path / "bank"))
    loaded.head(loaded.encoder(INPUT.transform(TABLE))).sum().backward()
    assert all(weights.grad is not None for weights in loaded.encoder.parameters())


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


def test_a_model_of_networks_of_ones_own_is_loaded_into_them(tmp_path: Path) -> None:
    saved = Model("bank", CLASSES, Doubles(), nn.Linear(3, 3), (3,))
    folder = saved.save(tmp_path / "bank")
    loaded = dovetail.load(folder, encoder=Doubles(), head=nn.Linear(3, 3))
    assert loaded.input is None
    assert_same_predictions(saved, loaded, torch.randn(4, 3))
    with pytest.raises(ModelError, match=r"a network of your own .* load\(folder, encoder=..., h"):
        load(folder)
    with pytest.raises(ModelError, match=r"the head is a network of your own: load\(folder, head="):
        load(folder, encoder=Doubles())
    with pytest.raises(ModelError, match=r"bank: the model cannot be rebuilt .*size mismatch"):
        load(folder, encoder=Doubles(), head=nn.Linear(3, 2))
    with pytest.raises(ModelError, match=r"bank: the model cannot be rebuilt .*Missing key"):
        load(folder, encoder=nn.Sequential(Doubles()), head=nn.Linear(3, 3))


def test_one_network_of_ones_own_is_enough(tmp_path: Path) -> None:
    whole = model()
    saved = Model(
        "bank", CLASSES, whole.encoder, nn.Identity(), whole.input_shape, encoder_spec=None
    )
    saved.head = nn.Linear(4, 3)
    loaded = load(
        saved.save(tmp_path / "bank"),
        encoder=Perceptron((7, 4)).encoder((6,)),
        head=nn.Linear(4, 3),
    )
    assert_same_predictions(saved, loaded, torch.randn(4, 6))
    without_weights = Model("bank", CLASSES, Doubles(), nn.Identity(), (3,))
    assert without_weights.predict(torch.randn(4, 3)).values.shape == (4,)


def test_a_prediction_is_the_most_probable_class() -> None:
    said = model().predict(INPUT.transform(TABLE))
    assert said.probabilities is not None
    assert said.probabilities.shape == (5, 3)
    np.testing.assert_allclose(said.probabilities.sum(axis=1), 1, rtol=1e-6)
    best = said.probabilities.argmax(axis=1)
    assert said.values.tolist() == [CLASSES.classes[place] for place in best]
    assert model(Classification((4, 7))).predict(INPUT.transform(TABLE)).values.dtype.kind == "i"


def test_rows_are_predicted_alike_in_batches_of_any_size() -> None:
    one, x = model(), torch.randn(7, 6)
    for size in (1, 3, 7, 100):
        torch.testing.assert_close(one.outputs(x, batch_size=size), one.outputs(x))


def test_no_row_gives_no_prediction() -> None:
    said = model().predict(torch.empty(0, 6))
    assert said.values.shape == (0,)
    assert said.probabilities is not None
    assert said.probabilities.shape == (0, 3)


def test_predicting_leaves_a_model_in_training_as_it_was() -> None:
    one = model()
    one.encoder.train()
    one.head.train()
    x = torch.randn(4, 6)
    assert torch.equal(one.outputs(x), one.outputs(x))  # no dropout
    assert one.encoder.training
    assert one.head.training


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
    said = str(caught.value)
    assert str(folder) in said
    assert "\n" not in said
    assert len(said) < 600


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


@pytest.mark.parametrize("stored", [[], 3, None, "model", {}, {"format": 2}, {"format": "1"}])
def test_another_format_is_refused(tmp_path: Path, stored: Any) -> None:
    folder = model().save(tmp_path / "bank")
    (folder / "model.json").write_text(json.dumps(stored))
    assert_refused(folder, "expected format 1; use the dovetail that wrote it")


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


@pytest.mark.parametrize("key", ["party", "task", "input", "input_shape", "encoder", "head"])
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
        ("input_shape",),
        ("encoder",),
        ("encoder", "widths"),
        ("encoder", "widths", 0),
        ("head",),
        ("head", "widths"),
        ("head", "widths", 0),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, key: tuple[str | int, ...]) -> None:
    folder = model().save(tmp_path / "bank")
    whole = (folder / "model.json").read_text()
    for value in HOSTILE:
        stored = json.loads(whole)
        place: Any = stored
        for part in key[:-1]:
            place = place[part]
        place[key[-1]] = value
        (folder / "model.json").write_text(json.dumps(stored))
        assert_refused(folder)


@pytest.mark.parametrize("value", [3, "text", [1], {"kind": "query"}, {"kind": "table"}, True])
def test_an_input_of_another_type_is_refused(tmp_path: Path, value: Any) -> None:
    assert_refused(broken(tmp_path / "bank", lambda stored: stored.update(input=value)))


def test_layers_that_do_not_fit_the_weights_are_refused_without_being_made(
    tmp_path: Path,
) -> None:
    def change(stored: dict[str, Any]) -> None:
        stored["encoder"]["widths"] = [10**7, 10**7]  # 400 TB of weights

    assert_refused(broken(tmp_path / "bank", change), "cannot be rebuilt .*size mismatch")


def test_convolutions_that_cannot_be_are_refused(tmp_path: Path) -> None:
    folder = model(spec=LAYERS, input_shape=(1, 4, 6), input=None).save(tmp_path / "bank")
    whole = json.loads((folder / "model.json").read_text())
    for key, value in {
        "strides": [0],
        "kernels": [100],
        "channels": [],
        "padding": "x",
        "kind": "recurrent",
    }.items():
        changed = {**whole, "encoder": {**whole["encoder"], key: value}}
        (folder / "model.json").write_text(json.dumps(changed))
        assert_refused(folder)
