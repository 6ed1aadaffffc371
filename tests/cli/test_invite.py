"""``dovetail invite``: a new party's part of a finished HyFEM."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_breast_cancer

import dovetail as package
from dovetail.models import load

RUN = """
method = "hyfem"
baselines = []
[data]
source = "breast-cancer"
test = 0.2
[data.partition]
kind = "blocks"
blocks.radius = ["* radius"]
blocks.texture = ["* texture", "* smoothness"]
blocks.shape = ["* symmetry"]
disjoint = true
assignment = [
    { party = "north", blocks = ["radius", "texture"], classes = [1, 2], rows = 0.5 },
    { party = "south", blocks = ["texture", "shape"], classes = [1, 2], rows = 0.5 },
]
[hyfem]
rounds = 3
local_steps = 4
[hyfem.extractors]
"*" = [4]
"""

#: Its blocks are in another order than the run's, and it has no label.
PARTY = """
[party]
name = "hospice"
table = "hospice.csv"
id = "row"
blocks.shape = ["* symmetry"]
blocks.radius = ["* radius"]
"""


@pytest.fixture
def finished(dovetail: Any, tmp_path: Path) -> Path:
    """The folder of a run, beside a party that took no part in it."""
    cancer = load_breast_cancer()
    with (tmp_path / "hospice.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *cancer.feature_names])
        writer.writerows([i, *map(float, row)] for i, row in enumerate(cancer.data[:30]))
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "hospice.toml").write_text(PARTY)
    assert dovetail("train", "run.toml", "--out", "run", "-q").code == 0
    return tmp_path


def probabilities(answer: Any) -> torch.Tensor:
    rows = list(csv.DictReader(answer.out.splitlines()))
    return torch.tensor([[float(row[name]) for name in row if name[:2] == "p("] for row in rows])


def test_a_new_party_predicts_as_the_server_does_from_its_blocks(
    dovetail: Any, finished: Path
) -> None:
    done = dovetail("invite", "run", "hospice.toml", "--json")
    assert json.loads(done.out) == {
        "party": "hospice", "blocks": ["shape", "radius"], "model": "out/hospice",
    }  # fmt: skip
    part, server = load(finished / "out" / "hospice"), load(finished / "run" / "models" / "server")
    assert part.classes == server.classes
    x = {block: torch.randn(20, *shape) for block, shape in part.shapes.items()}
    # The sums over features have another order.
    torch.testing.assert_close(part.outputs(x), server.outputs(x))
    alone = dovetail("predict", "out/hospice", "hospice.csv")
    assert alone.code == 0
    assert len(probabilities(alone)) == 30
    python = package.invite(finished / "run", finished / "hospice.toml")
    assert torch.equal(python.outputs(x), part.outputs(x))


def test_blocks_named_on_the_line_need_no_file(dovetail: Any, finished: Path) -> None:
    done = dovetail("invite", "run", "clinic", "--block", "texture", "--out", "clinic")
    assert done.code == 0
    assert "clinic predicts from texture: clinic" in done.out
    part = load(finished / "clinic")
    assert set(part.shapes) == {"texture"}
    assert set(part.inputs) == {"texture"}  # and of no other block how it is encoded
    assert part.party == "clinic"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "hospice.toml"], "nowhere has no models/server"),
        (["run", "nobody.toml"], "there is no party file nobody.toml; name the party's blocks"),
        (["run", "clinic", "--block", "textur"], "does not have; its blocks are"),
        (["run", "north", "--block", "radius"], "'north' took part in this run: its model is"),
        (
            ["run", "wrong.toml"],
            "the server's has ['mean radius', 'worst radius']; a block must be",
        ),
        (["run", "hospice.toml", "--out", "run"], "run is there already; name another with --out"),
    ],
)
def test_what_cannot_be_invited_is_refused_in_a_sentence(
    dovetail: Any, finished: Path, words: list[str], sentence: str
) -> None:
    wrong = PARTY.replace("* radius", "* perimeter").replace("hospice", "wrong", 1)
    (finished / "wrong.toml").write_text(wrong)
    refused = dovetail("invite", *words)
    assert refused.code == 2
    assert sentence in refused.err
    assert "Traceback" not in refused.err
    assert not (finished / "out").exists()


def test_a_run_of_another_method_has_no_model_of_all_blocks(dovetail: Any, finished: Path) -> None:
    model = load(finished / "run" / "models" / "north")
    model.about["method"] = "apfed"  # type: ignore[index]
    model.save(finished / "other" / "models" / "server")
    refused = dovetail("invite", "other", "hospice.toml")
    assert refused.code == 2
    assert "'apfed' trains no model of which a new party could take a part" in refused.err
