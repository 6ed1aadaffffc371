"""A party file with pictures beside its table: HyFEM reads both, and predicts from both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dovetail as package
from dovetail import data as dd
from dovetail.data.images import read_image_samples

PARTY = """
[party]
name = "{name}"
table = "{table}"
id = "sample"
label = "digit"
{more}
[policy]
algorithms = ["hyfem", "chfl", "apfed-mixed"]
[hyfem]
widths = [8]
"""

RUN = """
method = "hyfem"
baselines = ["standalone"]
parties = ["both.toml", "table.toml", "images.toml"]
[hyfem]
rounds = 24
local_steps = 12
batch_size = 16
learning_rate = 0.3
[hyfem.extractors]
images = { kind = "small-cnn", channels = [4] }
lower = [8]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Digits: the upper half as a picture, the lower half's pixels as columns of a table."""
    digits, _ = dd.load("digits-images")
    assert isinstance(digits.x, torch.Tensor)
    pixels = (digits.x * 255).round().to(torch.uint8).numpy()
    labels = digits.labels.values
    for index, name in enumerate(("both", "table", "images")):
        rows = np.arange(index, 450, 3)
        ids = np.array([f"s{row:04}" for row in rows])
        order = np.random.default_rng(index).permutation(len(rows))  # pictures stand otherwise
        np.savez(
            tmp_path / f"{name}.npz",
            x=pixels[rows[order], 0, :4],
            sample=ids[order],
            digit=labels[rows[order]].astype(np.int64),
        )
        lower = pixels[rows, 0, 4:].reshape(len(rows), -1)
        columns = {f"pixel {at}": lower[:, at] for at in range(lower.shape[1])}
        dd.write_table(tmp_path / f"{name}.csv", {"sample": ids, "digit": labels[rows], **columns})
        more = 'blocks.lower = ["pixel *"]' if name != "images" else ""
        if name == "both":
            more += '\nimages = "both.npz"'
        table = "images.npz" if name == "images" else f"{name}.csv"
        text = PARTY.format(name=name, table=table, more=more)
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


@pytest.mark.trained
@pytest.mark.slow
def test_a_party_with_pictures_and_a_table_trains_and_predicts_from_both(
    folder: Path, dovetail: Any
) -> None:
    out = folder / "run"
    assert dovetail("train", folder / "run.toml", "--out", out).code == 0
    models = out / "models"
    shapes = {name: [*package.load(models / name).shapes] for name in ("both", "table", "images")}
    assert shapes == {"both": ["images", "lower"], "table": ["lower"], "images": ["images"]}

    command = ("predict", models / "both", folder / "both.csv", "--id", "sample", "--json")
    report = json.loads(dovetail(*command, "--images", folder / "both.npz").out)
    assert report["scores"]["accuracy"] > 0.5
    # By hand: the pictures in the order of the table's rows.
    x, ids, _ = read_image_samples(folder / "both.npz", id="sample", label=None)
    row_of = {name: at for at, name in enumerate(ids.values)}
    wanted = [row_of[name] for name in report["columns"]["sample"]]
    assert wanted != sorted(wanted)
    model = package.load(models / "both")
    encoder = model.inputs["lower"]
    assert isinstance(encoder, dd.TableEncoder)
    lower = encoder.transform(dd.read_table(folder / "both.csv"))
    values = model.predictions({"images": x[wanted], "lower": lower}).values
    assert values.tolist() == report["columns"]["digit"]

    refused = dovetail(*command)
    assert refused.code == 2
    assert "takes columns (lower) and images (images): give the table" in refused.err
    alone = ("predict", models / "table", folder / "table.csv", "--id", "sample")
    assert (
        "does not take columns and images" in dovetail(*alone, "--images", folder / "both.npz").err
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "both.npz",
            "table.npz",
            "party 'both': {folder}/table.npz has no picture of 150 of the table's 150 rows, "
            "such as 's0000'; add them",
        ),
        ("both.npz", "gone", "there is no file or folder"),
        ("both.csv", "both.npz", "images stand beside a table, and party.table holds images"),
        ("blocks.lower", "blocks.images", "the block 'images' is that of party.images"),
    ],
)
def test_pictures_that_do_not_go_with_the_table_are_told(
    folder: Path, dovetail: Any, old: str, new: str, words: str
) -> None:
    file = folder / "both.toml"
    text = file.read_text().replace(old, new, 1)
    if new == "both.npz":
        text = text.replace('blocks.lower = ["pixel *"]', "")
    file.write_text(text)
    done = dovetail("train", folder / "run.toml", "--out", folder / "run")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert words.format(folder=folder) in done.err


def test_methods_of_one_kind_of_rows_refuse_pictures_beside_a_table(
    folder: Path, dovetail: Any
) -> None:
    text = 'method = "chfl"\nparties = ["both.toml", "table.toml"]\n'
    (folder / "run.toml").write_text(text)
    done = dovetail("train", folder / "run.toml", "--out", folder / "run")
    assert done.code == 2
    assert "party 'both' has images beside its table; CHFL reads the one or the other" in done.err
