"""A round of CHFL: all members as stacked tensors against plain loops over the same networks.

The plain loop is what somebody simulating CHFL would write: ``nn.Linear`` networks and one fused
optimizer per column, member after member, with no message in between. Networks and batches are the
paper's (section V-A): 54 columns of which 30 % are common and the rest split, hidden widths
512, 256 and 128, 7 classes, batches of 64, five local epochs over covertype's 9,072 training rows
split evenly (60 % of 15,120), Adam. Times include messages, averages and keeping the round's
parameters. The three take turns; medians of rounds after a first one.

Products and Adam cost the same number of operations in all three: "bare" is processor seconds of
these alone, on one thread, each member's in memory of its own, as its weights and moments are;
"cached" is the same in one member's memory, which stays in the cache. On one thread stacking
saves only what Python and autograd take beside them. On several a stack is computed on one core
each, where the loops share each product among all and wait for the last to end. Ratios are of
processor seconds: wall times with two threads mean nothing on a busy machine, where such waiting
takes ever longer. "looped" is Dovetail, member after member.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import _results
from benchmarks._turns import medians
from dovetail.data import Classification, PartyData, table_from_arrays
from dovetail.federated import Local, play_round
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.chfl.stacked import StackedInProcess
from dovetail.models import ColumnsSpec, generator
from dovetail.models.optimizers import Optimizer
from dovetail.network import InProcess

NUM_COMMON, NUM_CLASSES, BATCH_SIZE, EPOCHS = 16, 7, 64, 5
WIDTHS = (512, 256, 128)
MEMBERS = (5, 50)
#: Of what products and Adam take alone, at most: below it nothing can go.
MOST = 1.15


def local_columns(num_members: int) -> int:
    """How many of the 38 columns that are not common a member has; at least one."""
    return max(1, (54 - NUM_COMMON) // num_members)


def rows_of(index: int, num_rows: int, num_unique: int) -> tuple[Tensor, Tensor]:
    """Random rows: time does not depend on what they show."""
    rng = generator(0, "rows", str(index))
    x = torch.randn(num_rows, NUM_COMMON + num_unique, generator=rng)
    return x, torch.randint(NUM_CLASSES, (num_rows,), generator=rng)


def data_of(index: int, num_rows: int, num_unique: int) -> chfl.ChflData:
    """A member's rows, as its network reads them."""
    x, labels = rows_of(index, num_rows, num_unique)
    common = tuple(f"common {i}" for i in range(NUM_COMMON))
    names = (*common, *(f"own {i}" for i in range(num_unique)))
    name = f"member-{index}"
    table = table_from_arrays(name, dict(zip(names, x.numpy().T, strict=True)))
    data = PartyData(name, np.arange(num_rows), labels=labels, tables={"columns": table})
    return chfl.ChflData(data, Classification(tuple(range(NUM_CLASSES))), common)


class Dovetail:
    """Rounds as a run trains them."""

    def __init__(self, num_members: int, num_rows: int, *, stacked: bool) -> None:
        party_data = [data_of(k, num_rows, local_columns(num_members)) for k in range(num_members)]
        members = {
            local_data.name: chfl.Member(local_data, Local(local_data.name))
            for local_data in party_data
        }
        self.coordinator = chfl.Coordinator(
            chfl.Config(widths=WIDTHS, batch_size=BATCH_SIZE, local_epochs=EPOCHS), seed=0
        )
        engine = StackedInProcess if stacked else InProcess
        self.network = engine(members, driver="coordinator")
        self.federation = self.coordinator.federation(self.network)
        self.coordinator.begin(self.federation)
        self.number = 0

    def round(self) -> None:
        self.number += 1
        play_round(self.coordinator, self.number, self.federation)


class Plain:
    """A round's mathematics in a plain loop."""

    def __init__(self, num_members: int, num_rows: int) -> None:
        num_unique = local_columns(num_members)
        common, unique = range(NUM_COMMON), range(NUM_COMMON, NUM_COMMON + num_unique)
        spec = ColumnsSpec(tuple(common), tuple(unique), WIDTHS, NUM_CLASSES)
        self.networks = [spec.build() for _ in range(num_members)]
        self.rows = [rows_of(k, num_rows, num_unique) for k in range(num_members)]
        self.optimizers = [
            torch.optim.Adam(network.unique.parameters(), lr=1e-3, fused=True)
            for network in self.networks
            if network.unique is not None
        ]
        self.theta = self.networks[0].common.state_dict()

    def round(self) -> None:
        trained = []
        for network, (x, labels), unique_optimizer in zip(
            self.networks, self.rows, self.optimizers, strict=True
        ):
            network.common.load_state_dict(self.theta)
            optimizer = torch.optim.Adam(network.common.parameters(), lr=1e-3, fused=True)
            passes = [torch.randperm(len(x)).split(BATCH_SIZE) for _ in range(EPOCHS)]
            for rows in itertools.chain(*passes):
                x_common, x_unique = x[rows, :NUM_COMMON], x[rows, NUM_COMMON:]
                loss = F.cross_entropy(network.common(x_common), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    z_common = network.common.outputs(x_common)
                joint_loss = F.cross_entropy(network.joint(x_unique, z_common), labels[rows])
                unique_optimizer.zero_grad()
                joint_loss.backward()
                unique_optimizer.step()
            trained.append(network.common.state_dict())
        self.theta = {
            name: torch.stack([weights[name] for weights in trained]).mean(dim=0)
            for name in self.theta
        }


def bare_seconds(num_members: int, num_rows: int, num_networks: int) -> float:
    """Processor seconds of a round's products and Adam steps, and nothing else, on one thread.

    Args:
        num_networks: those that take turns, step by step, each in memory of its own.
    """
    num_unique, sizes = local_columns(num_members), (*WIDTHS, NUM_CLASSES)
    common = list(itertools.pairwise((NUM_COMMON, *sizes)))
    unique = list(itertools.pairwise((num_unique, *sizes)))
    laterals = list(itertools.pairwise(sizes))
    layers = [*common, *unique, *laterals]
    forward = [(BATCH_SIZE, i, o) for i, o in (*layers, *common)]  # common columns move between
    by_weights = [(i, BATCH_SIZE, o) for i, o in layers]
    by_inputs = [(BATCH_SIZE, o, i) for i, o in (*common[1:], *unique[1:])]

    def network() -> list[Callable[[], object]]:
        calls: list[Callable[[], object]] = []
        for rows, inner, columns in (*forward, *by_weights, *by_inputs):
            left, right = torch.randn(rows, inner), torch.randn(inner, columns)
            out = torch.empty(rows, columns)
            calls.append(partial(torch.mm, left, right, out=out))
        for column in (common, [*unique, *laterals]):
            weights = torch.nn.Parameter(torch.zeros(sum(i * o for i, o in column)))
            weights.grad = torch.zeros_like(weights)
            calls.append(Optimizer.of(chfl.Config(), [weights]).step)
        return calls

    networks = [network() for _ in range(num_networks)]

    def steps() -> None:
        for calls in networks:
            for call in calls:
                call()

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = medians({"steps": steps}, 50 if num_networks == 1 else 10, first=3)["steps"]
    torch.set_num_threads(num_threads)
    return seconds / num_networks * EPOCHS * num_members * num_rows / BATCH_SIZE


def time_all(num_members: int, num_rows: int, num_rounds: int) -> dict[str, tuple[float, float]]:
    """Median wall and processor seconds of a round of each, taking turns."""
    ways: dict[str, Dovetail | Plain] = {
        "stacked": Dovetail(num_members, num_rows, stacked=True),
        "looped": Dovetail(num_members, num_rows, stacked=False),
        "plain": Plain(num_members, num_rows),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(num_rounds + 1):
        for name, way in ways.items():
            started, worked = time.perf_counter(), time.process_time()
            way.round()
            took = time.perf_counter() - started, time.process_time() - worked
            if number:  # the first allocates
                seconds[name].append(took)
    return {
        name: (statistics.median(wall), statistics.median(worked))
        for name, measured in seconds.items()
        for wall, worked in [zip(*measured, strict=True)]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each [3]")
    parser.add_argument("--rows", type=int, default=9072, help="rows of all members [9072]")
    parser.add_argument("--threads", type=int, default=2, help="processor threads [2]")
    parser.add_argument("--members", type=int, nargs="+", choices=MEMBERS, default=MEMBERS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for num_members in given.members:
        num_rows = given.rows // num_members
        seconds = time_all(num_members, num_rows, given.rounds)
        rows.append(
            {
                "members": num_members,
                "rows each": num_rows,
                **{f"{name} s": wall for name, (wall, _) in seconds.items()},
                **{f"{name} CPU s": worked for name, (_, worked) in seconds.items()},
                "of looped": seconds["stacked"][1] / seconds["looped"][1],
                "of plain": seconds["stacked"][1] / seconds["plain"][1],
                "cached CPU s": (cached := bare_seconds(num_members, num_rows, 1)),
                "bare CPU s": (bare := bare_seconds(num_members, num_rows, num_members)),
                "of cached": seconds["stacked"][1] / cached,
                "of bare": seconds["stacked"][1] / bare,
                "at most": MOST,
            }
        )
    _results.write("chfl_round", "CHFL round, stacked against plain loops", rows)


if __name__ == "__main__":
    main()
