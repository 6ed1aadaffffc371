"""A table sorted by its label: no integer that a method's partner is sent goes with a label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from dovetail.audit.scenes import scene_of
from dovetail.network.inprocess import overheard
from dovetail.network.messages import Message
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data, setup

ROWS = 600
#: Class of each of the bank's rows, sorted; and which of them the shop's and the lab's rows are.
LABEL_R = np.arange(ROWS) * 2 // ROWS
LACKS = {"shop": 0, "lab": 1}  # of each four rows
THEIRS = {
    name: np.random.default_rng(lack).permutation(np.flatnonzero(np.arange(ROWS) % 4 != lack))
    for name, lack in LACKS.items()
}
#: Beyond so many standard errors of chance, of each of some dozens of figures, only a leak lies.
SURE = 5.0
#: Fields that name rows, by samples' numbers.
NAMES = ("samples_B", "samples_N", "labelled_L", "tested_U")


@dataclass(frozen=True)
class Brief:
    """What is set so that a method trains for seconds: in the run file, and in the parties'.

    ``numbered_anew``: samples in training, after the matching.
    """

    method: str
    run: str = "test = 0.25\n"
    party: str = ""
    policy: str = ""
    numbered_anew: bool = False


TWO_EPOCHS = "test = 0.25\n[apfed]\nepochs = 2\n"
BRIEF: Mapping[str, Brief] = {
    "apfed": Brief("apfed"),
    "apfed-c": Brief("apfed-c", TWO_EPOCHS, policy="apfed-mixed"),
    "apfed-d": Brief("apfed-d"),
    "apfed-d, gradients": Brief(
        "apfed-d",
        'test = 0.25\n[apfed.distil]\nexchange = "gradients"\nmax_steps = 60\n',
        "min_rows = 100\n",
    ),
    "apfed-r": Brief(
        "apfed-r", TWO_EPOCHS, '[apfed]\nloss = "reconstruction"\n', policy="apfed-mixed"
    ),
    "fedoptimus": Brief(
        "fedoptimus",
        "[fedoptimus]\nepochs = 3\n",
        "[fedoptimus]\ntest_share = 0.25\n",
        numbered_anew=True,
    ),
    "tvfl": Brief("tvfl", TWO_EPOCHS),
}


def run_of(folder: Path, brief: Brief) -> Path:
    """A run of a bank, whose rows lie sorted by class, and two who have three quarters of them."""
    rng = np.random.default_rng(0)
    ids = np.char.add("p", np.arange(ROWS).astype(str))
    noise = rng.normal(size=(ROWS, 6))
    tables = {"bank": {"id": ids, "a": noise[:, 0] + LABEL_R, "b": noise[:, 1]}}
    tables["bank"]["y"] = np.array(["n", "y"])[LABEL_R]
    for (name, rows), column in zip(THEIRS.items(), (2, 4), strict=True):
        columns = {f"{name}{each}": noise[rows, each] for each in (column, column + 1)}
        tables[name] = {"id": ids[rows], **columns}
    policy = f'[policy]\nalgorithms = ["align", "{brief.policy or brief.method}"]\n'
    for name, table in tables.items():
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
        label = 'label = "y"\n' if name == "bank" else ""
        (folder / f"{name}.toml").write_text(
            f'[party]\nname = "{name}"\ntable = "{name}.csv"\nid = "id"\n{label}'
            f"{policy}{brief.party}",
            encoding="utf-8",
        )
    parties = [str(folder / f"{name}.toml") for name in tables]
    path = folder / "run.toml"
    text = f'method = "{brief.method}"\nparties = {parties}\n{brief.run}'
    path.write_text(text, encoding="utf-8")
    return path


def heard_by_shop(folder: Path, brief: Brief) -> tuple[list[Message], Tensor]:
    """What the shop was sent in a run, its matching among it, and the class of each sample."""
    heard: list[Message] = []

    def listen(driver: str, party: str, request: Message, answer: Message) -> None:
        heard.extend([request] if party == "shop" else [])
        heard.extend([answer] if driver == "shop" else [])

    with overheard(listen):
        run = load_run(run_of(folder, brief))
        task = setup(run, 0, load_data(run))
        scene = scene_of(task)
        if brief.numbered_anew:
            heard.clear()
        task.played(task.method, 0, lambda *_: None).outcome(0, lambda *_: None)
    (order,) = scene.orders.values()
    return heard, torch.from_numpy(LABEL_R[THEIRS["shop"]])[order["shop"]]


def beside_labels(heard: list[Message], label_S: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Message and field -> integers that stand beside a named row, and that row's class.

    Of all messages of a kind: the row's place, its own name, which message it stands in, and what
    else the message says of it.
    """
    found: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for number, message in enumerate(heard):
        given = {each.name: getattr(message, each.name) for each in fields(message)}
        kind = [type(message).__name__, *(name for name, value in given.items() if value is True)]
        for name in NAMES:
            samples = given.get(name)
            if samples is None or not len(samples):
                continue
            beside: dict[str, Any] = {
                "place": torch.arange(len(samples)),
                "message": torch.full((len(samples),), number),
                "class of the one before": label_S[samples].roll(1),
            }
            beside |= {
                key: value
                for key, value in given.items()
                if isinstance(value, Tensor)
                and value.shape == samples.shape
                and not value.is_floating_point()
            }
            for key, value in beside.items():
                what = f"{' '.join(kind)}.{name}, {key}"
                found[what].append((value.double(), label_S[samples].double()))
    return {
        what: (torch.cat([one for one, _ in pairs]), torch.cat([other for _, other in pairs]))
        for what, pairs in found.items()
    }


def leaks(heard: list[Message], label_S: Tensor) -> Iterator[str]:
    """What goes with the labels, by more than chance."""
    for what, (value_N, label_N) in beside_labels(heard, label_S).items():
        if value_N.std() == 0 or label_N.std() == 0:
            continue
        # Rows are asked about again in each epoch, in another order: they count once.
        least = SURE / min(len(value_N), ROWS) ** 0.5
        found = float(torch.corrcoef(torch.stack([value_N, label_N]))[0, 1])
        if abs(found) > least:
            yield f"{what}: {found:.2f}, chance is below {least:.2f}"


@pytest.mark.parametrize("method", BRIEF)
def test_no_integer_that_a_partner_is_sent_goes_with_a_label(method: str, tmp_path: Path) -> None:
    heard, label_S = heard_by_shop(tmp_path, BRIEF[method])
    asked = beside_labels(heard, label_S)
    assert asked, "no message named a row"
    assert list(leaks(heard, label_S)) == []
    # The check can fail: the same messages, of rows named in the order of the bank's table.
    sorted_S = label_S.sort(stable=True).values
    named = [
        replace(message, **{name: value.sort().values})
        for message in heard
        for name in NAMES
        if (value := getattr(message, name, None)) is not None and len(value) > ROWS // 2
    ]
    if named:
        assert any("place" in each for each in leaks(named, sorted_S))
