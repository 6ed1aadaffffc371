"""Model folders of somebody else: files that were made to end the process that reads them."""

import hashlib
import json
import re
import shutil
import subprocess
import sys

import lightgbm
import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from learned import clinic_table, fitted_model
from onnx import TensorProto, helper, numpy_helper

from dovetail.api.reading import joint_folder
from dovetail.companions.service.export import onnx_bytes
from dovetail.companions.service.served import open_served
from dovetail.errors import DovetailError, ModelError
from dovetail.models import load
from dovetail.models.card import kept_heads, renew
from dovetail.models.exported import METADATA, of_bytes
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.boosting_model import BoostedTrees


@pytest.fixture(scope="module")
def table():
    return clinic_table(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("trees") / "clinic"
    fitted_model(table, [Boosting()]).save(path)
    return path


def trees(model):
    (forest,) = (each for each in model.network.modules() if isinstance(each, BoostedTrees))
    return forest


#: A text's changes: each is taken by a reader that looks at trees alone.
FORGED = {
    "sizes": lambda text: re.sub(r"tree_sizes=\d+", "tree_sizes=99999999", text),
    "no class": lambda text: re.sub(r"num_class=\d+", "num_class=70000", text),
    "trees a round": lambda text: re.sub(
        r"num_tree_per_iteration=\d+", "num_tree_per_iteration=9999", text
    ),
    "features": lambda text: re.sub(r"max_feature_idx=\d+", "max_feature_idx=0", text),
    "linear leaves": lambda text: re.sub("tree_sizes=.*\n", "", text).replace(
        "is_linear=0",
        "is_linear=1\nleaf_const=0 0 0 0\nnum_features=1 1 1 1\nleaf_features=9000000 9000000 "
        "9000000 9000000 \nleaf_coeff=1 1 1 1 ",
    ),
    "categories": lambda text: re.sub("tree_sizes=.*\n", "", text).replace(
        "num_cat=0", "num_cat=9000000\ncat_boundaries=0 9000000\ncat_threshold=1"
    ),
}


def forged(folder, path, change):
    """A model folder with another text of its trees, whose sums agree."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("text_T"))
    before = tensors[name].numpy().tobytes().decode()
    text = change(before)
    assert text != before
    tensors[name] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    weights = safetensors.torch.save(tensors)
    model_text = (folder / "model.json").read_text()
    model_text = model_text.replace(f'"text_bytes": {len(before)}', f'"text_bytes": {len(text)}')
    model_text = re.sub(
        r'(sha256": )"[0-9a-f]{64}"', rf'\1"{hashlib.sha256(weights).hexdigest()}"', model_text
    )
    path.mkdir()
    (path / "model.json").write_text(model_text)
    (path / "model.safetensors").write_bytes(weights)
    return path


EXPLAIN = """
import sys
sys.path.insert(0, sys.argv[2])
from learned import clinic_table
from dovetail.models import load
shares = load(sys.argv[1]).explain(clinic_table(300).head(20))
print("explained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGED)
def test_explaining_trees_of_somebody_else_does_not_end_the_process(folder, tmp_path, name):
    path = forged(folder, tmp_path / "forged", FORGED[name])
    here = str(__file__).replace("attacks/test_hostile_folders.py", "service")
    done = subprocess.run(
        [sys.executable, "-c", EXPLAIN, str(path), here], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert "explained" in done.stdout


def test_what_lightgbm_is_given_are_the_same_trees(folder, table):
    model = load(folder)
    network = trees(model)
    x = np.random.default_rng(0).normal(size=(60, network.num_features))
    for options in ({"raw_score": True}, {"pred_contrib": True}):
        whole = lightgbm.Booster(model_str=network.text()).predict(x, **options)
        ours = lightgbm.Booster(model_str=network.checked_text()).predict(x, **options)
        np.testing.assert_array_equal(whole, ours)


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\xff" * 8,
        (2**60).to_bytes(8, "little") + b"{}",
        (10**6).to_bytes(8, "little") + b"[" * 10**6,
        (2).to_bytes(8, "little") + b"{}" + b"\x80\x04\x95cos\nsystem\n",
        b"\x80\x04cposix\nsystem\n(S'true'\ntR.",
    ],
    ids=["nothing", "noise", "a header of an exabyte", "nested", "no tensor", "a pickle"],
)
def test_weights_that_are_none_are_refused_in_a_sentence(folder, tmp_path, file):
    description = json.loads((folder / "model.json").read_text())
    (key,) = (each for each in description if "sha256" in each)
    description[key] = hashlib.sha256(file).hexdigest()
    (tmp_path / "model.json").write_text(json.dumps(description))
    (tmp_path / "model.safetensors").write_bytes(file)
    with pytest.raises(ModelError, match="the model cannot be rebuilt"):
        load(tmp_path)


#: What a value of model.json is changed to.
STRANGE = (
    None, -1, 0, 10**9, 10**30, 1e308, float("nan"), float("inf"), "x", "x" * 10**6, [], {}, [[]],
    True, [10**8] * 3, ["a"] * 10**4, {"kind": "custom"},
)  # fmt: skip


def values_of(values, at=()):
    """The place of every value."""
    found = [at] if at else []
    items = values.items() if isinstance(values, dict) else enumerate(values[:3])
    for key, value in items:
        inner = (*at, key)
        found += values_of(value, inner) if isinstance(value, dict | list) else [inner]
    return found


@pytest.mark.parametrize("draw", range(2))
def test_a_description_changed_anywhere_is_refused_in_a_sentence_or_predicts(
    folder, tmp_path, table, draw
):
    """Whatever it says: no traceback, no wait, no memory beyond what its weights take."""
    reported = json.loads((folder / "model.json").read_text())
    rng = np.random.default_rng(draw)
    indices = [each for each in values_of(reported) if each[0] not in ("format", "weights_sha256")]
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    refused = 0
    for _ in range(60):
        changed = json.loads(json.dumps(reported))
        *above, last = indices[rng.integers(len(indices))]
        inner = changed
        for key in above:
            inner = inner[key]
        inner[last] = STRANGE[rng.integers(len(STRANGE))]
        (tmp_path / "model.json").write_text(json.dumps(changed))
        try:
            load(tmp_path).predictions(table.head(5))
        except DovetailError:
            refused += 1
    assert 10 < refused < 60


DEEP = "[" * 200_000


def test_json_that_is_nested_without_end_is_no_model_and_no_card(folder, tmp_path):
    (tmp_path / "model.json").write_text(DEEP)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.json cannot be read"):
        load(tmp_path)
    assert joint_folder(tmp_path) is None
    run = tmp_path / "run"
    copied = run / "models" / "clinic"
    shutil.copytree(folder, copied)
    for name in ("result.json", "ledger.jsonl", "audit.json"):
        (run / name).write_text(DEEP)
    (copied / "card.json").write_text(DEEP)
    assert open_served("clinic", copied).card() is None
    assert kept_heads(copied) == {}
    renew(copied)
    assert json.loads((copied / "card.json").read_text())["party"] == "clinic"


def onnx_file(folder, change):
    """The folder's model as ONNX bytes, changed."""
    program = onnx.load_model_from_string(onnx_bytes(load(folder)))
    change(program)
    return program.SerializeToString()


def nested(program):
    (values,) = (each for each in program.metadata_props if each.key == METADATA)
    values.value = DEEP


def looping(program):
    """A loop of 2^62 turns before the first output."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )
    program.graph.initializer.append(numpy_helper.from_array(np.array(2**62), "turns"))
    program.graph.initializer.append(numpy_helper.from_array(np.array(True), "ever"))
    program.graph.node.append(helper.make_node("Loop", ["turns", "ever"], [], body=body))


def strange(program):
    program.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    node = helper.make_node("ExecuteAnything", [], ["z"], domain="com.microsoft")
    program.graph.node.append(node)


def calling(program):
    opsets = [helper.make_opsetid("", 18)]
    program.functions.append(helper.make_function("own", "f", [], ["z"], [], opsets))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (nested, "is damaged"),
        (looping, "has a loop or a branch"),
        (strange, r"has the operator com\.microsoft\.ExecuteAnything"),
        (calling, "has functions of its own"),
    ],
)
def test_an_onnx_file_that_no_export_wrote_is_refused_in_a_sentence(folder, change, why):
    assert of_bytes(onnx_file(folder, lambda program: None), where="clinic.onnx").party == "clinic"
    with pytest.raises(ModelError, match=why) as values:
        of_bytes(onnx_file(folder, change), where="clinic.onnx")
    assert len(str(values.value)) < 500
