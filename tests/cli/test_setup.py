"""What a run file stands for."""

from __future__ import annotations

import tomllib

import torch

from dovetail.methods.apfed.variants import pool
from dovetail.runs.runfile import check_run
from dovetail.runs.setup import load_data, setup

RUN = """
method = "apfed-c"
[data]
source = "breast-cancer"
test = 0.25
labels = 60
[data.partition]
kind = "columns"
active = "clinic"
parties = { lab = ["worst *"], clinic = ["mean *"] }
"""


def test_fewer_labels_change_labels_and_nothing_else() -> None:
    run = check_run(tomllib.loads(RUN), where="RUN")
    loaded = load_data(run)
    task = setup(run, 0, loaded)
    before, after = loaded.data.train, task.loaded.data.train
    assert list(after.parties) == list(before.parties) == ["lab", "clinic"]
    assert len(after["clinic"].labelled_rows()) == 60
    for name, party in before.parties.items():
        assert torch.equal(party.joined(), after[name].joined())
    kept = after["clinic"].labelled_rows()
    assert torch.equal(after["clinic"].labels[kept], before["clinic"].labels[kept])
    # So that what is pooled to train on and to test on has its columns in one order.
    assert torch.equal(
        pool(task.loaded.data, after, "clinic").joined(),
        pool(task.loaded.data, before, "clinic").joined(),
    )
