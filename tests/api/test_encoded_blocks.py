"""Texts and pictures as blocks of methods whose parties encode common columns alike."""

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper
from PIL import Image

import dovetail as dt
from dovetail.errors import DovetailError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Dark and light pictures, and a seeded encoder of them."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    light = rng.integers(0, 2, 160)
    for number, each in enumerate(light):
        pixels = rng.integers(0, 120, (8, 8, 3)) + 120 * each
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    weights = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])],
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 4, 6, 6])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "net.onnx")
    return folder, light


@pytest.fixture(scope="module")
def shops(photos):
    folder, light = photos
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "id": range(160),
            "photo": [f"{number}.png" for number in range(160)],
            "town": [f"town {each}" for each in rng.integers(0, 90, 160)],
            "sales": rng.normal(size=160),
            "label": np.where(light, "light", "dark"),
        }
    )
    encode = {
        "photo": {
            "kind": "picture",
            "model": str(folder / "net.onnx"),
            "folder": str(folder),
            "pixels": 8,
        },
        "town": {"kind": "hash", "size": 8},
    }
    return frame, encode


def parties(shops, **more):
    frame, encode = shops
    return [
        dt.Party(name, frame[start::2], id="id", label="label", encode=encode, **more)
        for start, name in enumerate(("north", "south"))
    ]


@pytest.mark.trained
def test_a_block_of_pictures_is_learned_together(shops):
    blocks = {"pictures": ["photo"], "trade": ["town", "sales"]}
    run = dt.fit(dt.HyFEM(rounds=20), parties(shops, blocks=blocks), quiet=True)
    accuracy = [row["accuracy"] for name, row in run.scores.to_dict().items() if "HyFEM" in name]
    assert min(accuracy) > 0.8
    assert run.models["north"].predict(shops[0]).shape == (160,)


@pytest.mark.trained
def test_common_columns_are_encoded_and_learned_together(shops):
    run = dt.fit(dt.CHFL(rounds=20), parties(shops), quiet=True)
    accuracy = [row["accuracy"] for row in run.scores.to_dict().values()]
    assert min(accuracy) > 0.8
    model = run.models["north"]
    (encoder,) = model.inputs.values()
    kinds = {column.name: column.kind for column in encoder.fitted}
    assert kinds == {"photo": "vector", "town": "vector", "sales": "number"}


def test_parties_that_read_a_common_column_otherwise_are_told(shops):
    frame, encode = shops
    other = {**encode, "town": {"kind": "hash", "size": 16}}
    given = [
        dt.Party("north", frame[::2], id="id", label="label", encode=encode),
        dt.Party("south", frame[1::2], id="id", label="label", encode=other),
    ]
    with pytest.raises(DovetailError, match="'town'"):
        dt.fit(dt.CHFL(rounds=2), given, quiet=True)
