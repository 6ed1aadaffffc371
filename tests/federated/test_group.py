"""Steps that processes of torchrun share are those of one process, within float error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from dovetail.runs.runfile import check_run
from dovetail.runs.train import train_seeds

pytestmark = [pytest.mark.slow, pytest.mark.network]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

GRADIENTS = """
import sys
from pathlib import Path

import torch
from torch import nn
from dovetail.federated import Local
from dovetail.federated.group import joined, stepping

def loss(network, x, y, reduction):
    return nn.functional.cross_entropy(network(x["block"]), y, reduction=reduction)

def gradients(num):
    torch.manual_seed(num)
    network, x, y = nn.Linear(3, 2), torch.randn(num, 3), torch.arange(num) % 2
    optimizer = torch.optim.SGD(network.parameters(), 0.0)
    value = Local("p").step(optimizer, network, loss, torch.arange(num), {"block": x}, y)
    return [value, *(each.grad for each in network.parameters())]

with joined() as group:
    for num in (8, 5, 1):
        alone = gradients(num)
        with stepping(group):
            together = gradients(num)
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    Path(sys.argv[1], f"rank-{group.rank}-of-{group.size}").touch()
    if group.rank:
        group.follow(lambda variant, seed: {})
"""


def run_of(table: Path) -> dict[str, Any]:
    shares = [
        {"party": "one", "blocks": ["ab"], "classes": [1, 2], "rows": 0.5},
        {"party": "two", "blocks": ["ab", "cd"], "classes": [1, 2], "rows": 0.5},
    ]
    blocks = {"ab": ["a", "b"], "cd": ["c", "d"]}
    partition = {"kind": "blocks", "blocks": blocks, "assignment": shares}
    data = {"source": str(table), "label": "y", "id": "id", "test": 0.25, "partition": partition}
    return {"method": "hyfem", "data": data, "hyfem": {"rounds": 3, "batch_size": 7}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(160, 4)), columns=["a", "b", "c", "d"])
    frame["y"] = np.where(frame["a"] + frame["c"] > 0, "up", "down")
    frame.assign(id=range(len(frame))).to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def launched(*command: str) -> str:
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(3):
        done = subprocess.run(
            [*TORCHRUN, *command], env=settings, capture_output=True, text=True, timeout=120
        )
        # A process of PyTorch's may end so after its work, when its threads outlive it.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    (tmp_path / "gradients.py").write_text(GRADIENTS)
    (tmp_path / "done").mkdir()
    # a file of each: what two processes print may stand in one line
    launched(str(tmp_path / "gradients.py"), str(tmp_path / "done"))
    assert {path.name for path in (tmp_path / "done").iterdir()} == {"rank-0-of-2", "rank-1-of-2"}


def test_a_run_of_two_processes_is_that_of_one(table: Path, tmp_path: Path) -> None:
    values = run_of(table)
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    alone, together = tmp_path / "alone", tmp_path / "together"
    train_seeds(check_run(values, where="test"), alone, (0,), resume=False)
    command = shutil.which("dovetail", path=Path(sys.executable).parent)
    assert command is not None
    said = launched(command, "train", str(tmp_path / "run.toml"), "--out", str(together), "--json")
    assert json.loads(said)["method"] == "hyfem"  # one process speaks
    models = sorted(path.relative_to(alone) for path in alone.glob("models/*/*.safetensors"))
    assert len(models) >= 2
    for path in models:
        one, other = load_file(alone / path), load_file(together / path)
        for name, weights in one.items():
            torch.testing.assert_close(weights, other[name], rtol=1e-4, atol=1e-5)
