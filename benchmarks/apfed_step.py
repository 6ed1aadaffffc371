"""One APFed step in process against the same mathematics as one hand-written PyTorch graph.

    python -m benchmarks.apfed_step

MNIST's 2-1 setting with the networks of Table 3, one passive party, fused SGD on both sides. The
two take turns, step by step, in one process and on one thread, so that a noisy machine slows both
alike; the ratio is that of the medians. Peak memory is that of a process which runs one of them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import _results
from benchmarks._turns import medians
from dovetail.data import Alignment, Classification, PartyData, SharedRows
from dovetail.federated import Local
from dovetail.methods import apfed
from dovetail.models import TABLE_3, Head, generator, network_input
from dovetail.network import InProcess

NUM_ROWS = 4096
TARGET = 1.05
Step = Callable[[], object]


def strips() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two strips of random pixels and labels: time does not depend on what they show."""
    rng = generator(0, "strips")
    images = torch.randint(256, (2, NUM_ROWS, 1, 14, 28), dtype=torch.uint8, generator=rng)
    return images[0], images[1], torch.randint(10, (NUM_ROWS,), generator=rng)


def dovetail_step(loss: str, batch_size: int) -> Step:
    """APFed as a run trains it."""
    strip, other, labels = strips()
    alignment = Alignment({name: torch.arange(NUM_ROWS) for name in ("view-1", "view-2")})
    active = apfed.Active(
        PartyData("view-1", np.arange(NUM_ROWS), {"strip": strip}, labels),
        alignment,
        Classification(tuple(range(10))),
        apfed.Config(batch_size=batch_size),
        Local("view-1"),
        seed=0,
        encoder=TABLE_3,
        head=Head((256,), 0.5),
    )
    config = apfed.PassiveConfig(loss=loss)  # type: ignore[arg-type]
    passive = apfed.Passive(
        SharedRows("view-2", other, alignment.rows["view-2"]), config, TABLE_3, Local("view-2")
    )
    engine = InProcess({"view-2": passive}, driver="view-1")
    active.begin(engine)
    return lambda: active.step(engine)


def plain_step(loss: str, batch_size: int) -> Step:
    """A step on the loss as one graph: what somebody without privacy in mind would write."""
    strip, other, labels = strips()
    torch.manual_seed(0)
    encoder = TABLE_3.encoder((1, 14, 28))
    head = Head((256,), 0.5).build(64 * 10 * 24, 10)
    helper = (
        TABLE_3.encoder((1, 14, 28))
        if loss == "contrastive"
        else TABLE_3.decoder((64, 10, 24), (1, 14, 28))
    )
    parameters = [*encoder.parameters(), *head.parameters(), *helper.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
    order = torch.randperm(NUM_ROWS)
    start = 0

    def step() -> float:
        nonlocal start
        rows = order[start : start + batch_size]
        start = (start + batch_size) % NUM_ROWS
        x, x_other = network_input(strip[rows]), network_input(other[rows])
        code = encoder(x).flatten(1)
        total = F.cross_entropy(head(code), labels[rows])
        if loss == "contrastive":
            total = total + apfed.contrastive_loss(code, helper(x_other).flatten(1), 1.0)
        else:
            total = total + F.mse_loss(helper(code), x_other)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        return total.item()

    return step


STEPS = {"dovetail": dovetail_step, "plain": plain_step}


def time_both(loss: str, batch_size: int, num_steps: int) -> tuple[float, float]:
    """Median seconds of a step of each, taking turns."""
    steps = {name: make(loss, batch_size) for name, make in STEPS.items()}
    seconds = medians(steps, num_steps, first=3, clock=time.perf_counter)
    return seconds["dovetail"], seconds["plain"]


def peak_memory(name: str, loss: str, batch_size: int) -> float:
    """MiB that a process of its own peaks at while it makes ten steps."""
    command = [sys.executable, "-m", "benchmarks.apfed_step", "--memory-of", name]
    command += ["--loss", loss, "--batch-size", str(batch_size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each [60]")
    parser.add_argument("--memory-of", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--loss", default="contrastive", help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, default=64, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.memory_of:
        step = STEPS[given.memory_of](given.loss, given.batch_size)
        for _ in range(10):
            step()
        # Not ru_maxrss: Linux carries the parent's over into the child.
        status = Path("/proc/self/status").read_text()
        print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)  # type: ignore[index]
        return
    rows = []
    for loss in ("reconstruction", "contrastive"):
        for batch_size in (64, 256):
            ours, plain = time_both(loss, batch_size, given.steps)
            rows.append(
                {
                    "loss": loss,
                    "batch": batch_size,
                    "dovetail ms": ours * 1e3,
                    "plain ms": plain * 1e3,
                    "ratio": ours / plain,
                    "at most": TARGET,
                    "dovetail MiB": peak_memory("dovetail", loss, batch_size),
                    "plain MiB": peak_memory("plain", loss, batch_size),
                }
            )
    _results.write("apfed_step", "APFed step in process against one graph", rows)


if __name__ == "__main__":
    main()
