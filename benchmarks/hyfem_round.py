"""A round of HyFEM in process against the same local steps of the same networks as plain loops.

    python -m benchmarks.hyfem_round

Random images in the shapes of the paper's settings, with the assignments of runs/hyfem; small CNNs,
batches of 64. What a round adds: slices out and back, the pull to the server, averages, matching.
Rounds and plain loops take turns, on one thread; seconds are of the processor, and the ratio is
that of the medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import _results
from benchmarks._turns import medians
from dovetail.data import Blocks, Column, Dataset, blocks
from dovetail.federated import Local
from dovetail.methods import hyfem
from dovetail.models import generator, network_input
from dovetail.models.blocks import SmallCnn
from dovetail.network import InProcess

RUNS = Path(__file__).parents[1] / "runs" / "hyfem"
NUM_ROWS = 2000
TARGET = 1.1

#: Name -> shape of the images, cut, assignment.
CASES = {
    "Fashion-MNIST, 4 blocks": ((1, 28, 28), "quadrants", "table-4.csv"),
    "CIFAR-10, 12 blocks": ((3, 32, 32), "quadrants-channels", "table-2-cifar10.csv"),
}


def federation(case: str) -> Blocks:
    """Parties with random images."""
    shape, cut, assignment = CASES[case]
    x = torch.randint(256, (NUM_ROWS, *shape), dtype=torch.uint8, generator=generator(0, case))
    labels = Column(np.arange(NUM_ROWS) % 10, np.zeros(NUM_ROWS, dtype=bool))
    dataset = Dataset(case, np.arange(NUM_ROWS), x, "class", labels)
    return blocks(dataset, None, blocks=cut, assignment=RUNS / assignment)  # type: ignore[arg-type]


def make(case: str, num_steps: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A round, and the same steps as plain loops."""
    parts = federation(case)
    config = hyfem.Settings(rounds=1, local_steps=num_steps, mu_1=0.1, mu_2=0.1, learning_rate=0.01)
    server = hyfem.Coordinator(parts.task, dict.fromkeys(parts.blocks, SmallCnn()), config, seed=0)
    members = {
        name: hyfem.Member(hyfem.HyfemData(party, parts.task), Local(name))
        for name, party in parts.train.parties.items()
    }
    engine = server.federation(InProcess(members, driver="server"))
    server.begin(engine)

    def plain() -> None:
        for member in members.values():
            network = server.model_of(member.name).network.train()
            optimizer = torch.optim.SGD(network.parameters(), lr=0.01, fused=True)
            for _ in range(num_steps):
                rows = next(member.batches)
                x = {name: network_input(block[rows]) for name, block in member.blocks.items()}
                loss = F.cross_entropy(network(x), member.labels[rows])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

    return lambda: server.round(1, engine), plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each [5]")
    parser.add_argument("--steps", type=int, default=32, help="local steps, Q [32]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        both = dict(zip(("round", "plain"), make(case, given.steps), strict=True))
        seconds = medians(both, given.rounds, first=1)
        rows.append(
            {
                "case": case,
                "parties": len(federation(case).train.parties),
                "steps": given.steps,
                "round s": seconds["round"],
                "plain loops s": seconds["plain"],
                "ratio": seconds["round"] / seconds["plain"],
                "at most": TARGET,
            }
        )
    _results.write("hyfem_round", "A round of HyFEM against the same local steps", rows)


if __name__ == "__main__":
    main()
