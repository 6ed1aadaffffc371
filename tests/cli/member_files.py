"""The breast cancer set at three parties that a coordinator drives, as files of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dovetail as package
from dovetail import data as dd
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.chfl.variant_settings import variant_config
from dovetail.models.owners import load_bottom
from dovetail.network import InProcess
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup
from dovetail.settings.section import narrowed

MEMBERS = ("north", "south", "west")

#: Method -> its section of a run file.
SETTINGS = {
    "chfl": """
[chfl]
widths = [8, 4]
rounds = 4
local_epochs = 1
batch_size = 16
learning_rate = 0.01
""",
    "hyfem": """
[hyfem]
classes = ["benign", "malignant"]
rounds = 4
local_steps = 4
batch_size = 16
learning_rate = 0.1
[hyfem.extractors]
size = [4]
looks = [4]
shape = [3]
""",
    "fedoptimus": """
[fedoptimus]
epochs = 3
batch_size = 16
optimizer = "adam"
learning_rate = 0.01
embedding = 8
top = [8]
""",
}

#: HyFEM: columns in groups, and the groups that each party has; none has all.
GROUPS = {"size": ["* area", "* radius"], "looks": ["* texture"], "shape": ["* symmetry"]}
HELD = {"north": ("size", "looks"), "south": ("looks", "shape"), "west": ("size", "shape")}

#: CHFL: the column that is each party's own.
OWN = {
    "north": "worst area",
    "south": "worst texture",
    "west": "area error",
    "east": "worst radius",
}

PARTY = """
[party]
name = "{name}"
table = "{name}.csv"
id = "row"
{label}
{blocks}
[policy]
algorithms = ["align", "{method}"]
{policy}
{own}
"""


def part_of(
    pooled: Any, names: Sequence[str], name: str, method: str
) -> tuple[Any, list[str], str, str]:
    """A party's rows and columns, its blocks in its file, and its section there."""
    index = names.index(name)
    if method == "fedoptimus":  # north has labels, the others columns of partly the same people
        part = pooled.take(np.arange(20 * index, 300 + 20 * index))
        globs = ([], ["mean *"], ["worst *"])[index]
        settings = "[fedoptimus]\nbottom = [8]" if globs else ""
        return part, part.x.select(globs) if globs else [], "", settings
    part = pooled.take(np.arange(index, pooled.num_rows, len(names)))
    if method == "chfl":
        return part, [*part.x.select(["mean *"]), OWN[name]], "", '[chfl]\ncommon = ["mean *"]'
    columns = [column for each in HELD[name] for column in part.x.select(GROUPS[each])]
    blocks = "".join(f"blocks.{each} = {json.dumps(GROUPS[each])}\n" for each in HELD[name])
    return part, columns, blocks, '[hyfem]\nwidths = [5]\nclasses = ["benign", "malignant"]'


def write_members(
    folder: Path, method: str, names: Sequence[str] = MEMBERS, *, policy: str = ""
) -> None:
    """A table and a party file for each, with these lines in its policy."""
    pooled, _ = dd.load("breast-cancer")
    for name in names:
        part, columns, blocks, settings = part_of(pooled, names, name, method)
        values = {column: part.x.column(column).values for column in columns}
        has_labels = method != "fedoptimus" or not columns
        if has_labels:
            values["diagnosis"] = part.labels.values
        dd.write_table(folder / f"{name}.csv", {"row": part.ids, **values})
        label = 'label = "diagnosis"' if has_labels else ""
        text = PARTY.format(
            name=name, method=method, label=label, blocks=blocks, policy=policy, own=settings
        )
        (folder / f"{name}.toml").write_text(text)


def state_of(kept: Path) -> dict[str, Tensor]:
    """The weights of a model, or of a data owner's part of one."""
    model = load_bottom(kept) if (kept / "bottom.json").exists() else package.load(kept)
    state: dict[str, Tensor] = model.network.state_dict()
    return state


def assert_equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    """Assert that two models have equal weights, bit for bit."""
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key


def looped(run_file: Path) -> dict[str, dict[str, Tensor]]:
    """Party -> weights of CHFL where members are called one after the other.

    Its command trains them as one stack, whose sums have another order.
    """
    run = load_run(run_file)
    task = setup(run, 0, load_data(run))
    members = task.parties(task.party_data)
    settings = variant_config(narrowed(task.settings, chfl.Config), "chfl", {})
    coordinator = chfl.Coordinator(settings, seed=0)
    for _ in chfl.train(coordinator, InProcess(members, driver="coordinator")):
        pass
    return {name: member.model().network.state_dict() for name, member in members.items()}
