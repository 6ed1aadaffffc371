"""One FedOptimus step of 14 data owners x 5 label owners, against loops and one fused network.

    python -m benchmarks.fedoptimus_step

Strips of 2 x 28, 128 rows a label owner, the defaults of ``StripCnn`` and ``Config``, fused
optimizers everywhere. "looped" is the same mathematics as 70 bottom and 5 top networks by autograd,
one after the other. "fused" is one network that learns from all 640 rows at once: 14 bottoms, which
then need no replicas, and one top; as many multiplications, and none of the parties, messages and
averages. Dovetail has five replicas of each bottom: five times the weights to step and to average,
and products in five stacks. A profile of the smallest network with Adam: products 36 %, batches
gathered and weights copied 20 %, checks of messages and the ledger 9 %. So networks of 8 channels
may miss the bar of "fused", and all that of "looped", which is of the products' own speed: side by
side saves what Python and autograd take, not the products. The three take turns, step by step, in
one process and on one thread, so that a noisy machine slows all alike; milliseconds are of the
processor, ratios those of the medians. Every fifth step ends a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import _results
from benchmarks._turns import medians
from dovetail.data import Classification, SharedRows
from dovetail.federated import Local
from dovetail.methods import fedoptimus
from dovetail.methods.fedoptimus.local_data import Columns, Labels
from dovetail.models import StripCnn, TopSpec, generator, network_input
from dovetail.models.optimizers import Optimizer
from dovetail.network import InProcess

NUM_DATA, NUM_LABELS, BATCH, NUM_ROWS = 14, 5, 128, 1280
SHAPE = (1, 2, 28)
TARGETS = {"looped": 0.6, "fused": 1.2}
Step = Callable[[], object]


def pixels() -> tuple[list[Tensor], Tensor]:
    """Each data owner's strips and the labels: time does not depend on what they show."""
    rng = generator(0, "strips")
    size = (NUM_DATA, NUM_LABELS * NUM_ROWS, *SHAPE)
    images = torch.randint(256, size, dtype=torch.uint8, generator=rng)
    return list(images), torch.randint(10, (NUM_LABELS * NUM_ROWS,), generator=rng)


def dovetail_steps(config: fedoptimus.Config, bottom: StripCnn) -> Step:
    """One round as a run trains it; ``sync_every`` steps."""
    strips, labels = pixels()
    rows = torch.arange(len(labels)).split(NUM_ROWS)
    names = [f"label-{index}" for index in range(1, NUM_LABELS + 1)]
    data = {}
    for index, strip in enumerate(strips):
        name = f"data-{index + 1}"
        shared = {
            owner: SharedRows(name, strip, label_rows)
            for owner, label_rows in zip(names, rows, strict=True)
        }
        data[name] = fedoptimus.DataOwner(Columns(name, shared, bottom), Local(name))
    task = Classification(tuple(range(10)))
    tops = {
        name: fedoptimus.LabelOwner(Labels(name, task, labels[label_rows]), Local(name))
        for name, label_rows in zip(names, rows, strict=True)
    }
    coordinator = fedoptimus.Coordinator(config, data_owners=[*data], label_owners=names, seed=0)
    network = InProcess({**data, **tops}, driver="coordinator")
    coordinator.begin(network)
    return lambda: coordinator.round(1, network)


def networks(config: fedoptimus.Config, bottom: StripCnn) -> tuple[nn.ModuleList, nn.Module]:
    torch.manual_seed(0)
    bottoms = nn.ModuleList(bottom.build(SHAPE, config.embedding) for _ in range(NUM_DATA))
    return bottoms, TopSpec(config.embedding, config.top, 10).build()


def looped_steps(config: fedoptimus.Config, bottom: StripCnn) -> Step:
    """As many steps of 70 bottom and 5 top networks, each by itself, and their average."""
    strips, labels = pixels()
    rows = torch.arange(len(labels)).split(NUM_ROWS)
    replicas = [networks(config, bottom) for _ in range(NUM_LABELS)]
    parts: list[nn.Module] = [part for bottoms, top in replicas for part in (*bottoms, top)]
    optimizers = [Optimizer.of(config, part.parameters()) for part in parts]
    rng = generator(0, "order")

    def step() -> None:
        for rows_here, (bottoms, top) in zip(rows, replicas, strict=True):
            batch = rows_here[torch.randint(NUM_ROWS, (BATCH,), generator=rng)]
            embeddings = [
                network(network_input(strip[batch]))
                for network, strip in zip(bottoms, strips, strict=True)
            ]
            loss = F.cross_entropy(top(sum(embeddings) / NUM_DATA), labels[batch])
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def steps() -> None:
        for _ in range(config.sync_every):
            step()
        with torch.no_grad():
            for same in zip(*(_parameters(replica) for replica in replicas), strict=True):
                mean = torch.stack(same).mean(dim=0)
                for parameter in same:
                    parameter.copy_(mean)

    return steps


def _parameters(replica: tuple[nn.ModuleList, nn.Module]) -> Sequence[nn.Parameter]:
    return [*replica[0].parameters(), *replica[1].parameters()]


def fused_steps(config: fedoptimus.Config, bottom: StripCnn) -> Step:
    """As many steps of one network on all label owners' rows."""
    strips, labels = pixels()
    bottoms, top = networks(config, bottom)
    optimizer = Optimizer.of(config, [*bottoms.parameters(), *top.parameters()])
    rng = generator(0, "order")

    def steps() -> None:
        for _ in range(config.sync_every):
            batch = torch.randint(len(labels), (NUM_LABELS * BATCH,), generator=rng)
            embeddings = [
                network(network_input(strip[batch]))
                for network, strip in zip(bottoms, strips, strict=True)
            ]
            loss = F.cross_entropy(top(sum(embeddings) / NUM_DATA), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return steps


STEPS = {"dovetail": dovetail_steps, "looped": looped_steps, "fused": fused_steps}


def milliseconds(config: fedoptimus.Config, bottom: StripCnn, num: int) -> dict[str, float]:
    """Median of a step of each, taking turns."""
    steps = {name: make(config, bottom) for name, make in STEPS.items()}
    seconds = medians(steps, num, first=2)
    return {name: taken / config.sync_every * 1e3 for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of each [20]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for optimizer in ("sgd", "adam"):
        for bottom in (StripCnn(), StripCnn(channels=8, hidden=32)):
            config = fedoptimus.Config(optimizer=optimizer)
            measured = milliseconds(config, bottom, given.rounds)
            rows.append(
                {
                    "optimizer": optimizer,
                    "channels": bottom.channels,
                    "hidden": bottom.hidden,
                    **{f"{name} ms": milliseconds for name, milliseconds in measured.items()},
                    **{
                        key: value
                        for name, target in TARGETS.items()
                        for key, value in (
                            (f"of {name}", measured["dovetail"] / measured[name]),
                            (f"at most, {name}", target),
                        )
                    },
                }
            )
    _results.write("fedoptimus_step", "FedOptimus step against loops and one fused network", rows)


if __name__ == "__main__":
    main()
