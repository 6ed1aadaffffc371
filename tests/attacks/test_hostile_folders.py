"""Model folders of somebody else: files that were made to end the process that reads them."""

import hashlib
import json
import re
import subprocess
import sys

import lightgbm
import numpy as np
import pytest
import safetensors.torch
import torch
from learned import clinic_table, fitted_model

from dovetail.models import load
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.boosting_model import BoostedTrees


@pytest.fixture(scope="module")
def table():
    return clinic_table(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    place = tmp_path_factory.mktemp("trees") / "clinic"
    fitted_model(table, [Boosting()]).save(place)
    return place


def trees(model):
    (found,) = (each for each in model.network.modules() if isinstance(each, BoostedTrees))
    return found


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


def forged(folder, place, change):
    """The same folder with another text of its trees, whose sums agree."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("text_T"))
    before = tensors[name].numpy().tobytes().decode()
    text = change(before)
    assert text != before
    tensors[name] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    weights = safetensors.torch.save(tensors)
    said = (folder / "model.json").read_text()
    said = said.replace(f'"text_bytes": {len(before)}', f'"text_bytes": {len(text)}')
    said = re.sub(r'(sha256": )"[0-9a-f]{64}"', rf'\1"{hashlib.sha256(weights).hexdigest()}"', said)
    place.mkdir()
    (place / "model.json").write_text(said)
    (place / "model.safetensors").write_bytes(weights)
    return place


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
    place = forged(folder, tmp_path / "forged", FORGED[name])
    here = str(__file__).replace("attacks/test_hostile_folders.py", "service")
    done = subprocess.run(
        [sys.executable, "-c", EXPLAIN, str(place), here], capture_output=True, text=True
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
    from dovetail.errors import ModelError

    said = json.loads((folder / "model.json").read_text())
    (key,) = (each for each in said if "sha256" in each)
    said[key] = hashlib.sha256(file).hexdigest()
    (tmp_path / "model.json").write_text(json.dumps(said))
    (tmp_path / "model.safetensors").write_bytes(file)
    with pytest.raises(ModelError, match="the model cannot be rebuilt"):
        load(tmp_path)
