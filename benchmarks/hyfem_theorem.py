"""HyFEM's Theorems 1 and 2: both sides of Eq. (23), over runs of several lengths.

    python -m benchmarks.hyfem_theorem

Theorem 2 has T rounds of Q = T steps of Eq. (22a), at a rate of c / T that is at most 1 / L_x. Then
Eq. (23) bounds the mean over the rounds of

    mu / (eta Q) |z' - z|^2 + 1 / Q |gradient after the steps|^2 + mean over steps |gradient|^2

by 10 / (T Q eta) (L at the start - least L) and a term of the gradients' noise, which is O(1 / T).
z is Theta_0 and w_0; gradients are of Eq. (6) by all Theta_m and w_m, over all rows of each party.
Here on covertype in four groups of columns, mu_1 = mu_2 = 0.1. Stricter than the theorem: the bound
has no term of noise, and L at the end for the least. Measured at the first, the middle and the last
step of each round. The largest curvature of a party's loss times the rate is to be at most 1.
Slopes are those of logarithms over that of T, from the line before; -1 is the theorem's.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks import _results
from dovetail import data as dd
from dovetail import methods
from dovetail.federated.local import Local
from dovetail.methods.base import Loaded
from dovetail.methods.hyfem.hyfem import Member
from dovetail.models import pull
from dovetail.runs.runfile import load_run

RUN = Path(__file__).parents[1] / "runs" / "hyfem" / "covertype-4.toml"
LENGTHS = (8, 16, 32, 64, 128, 256)
#: c, of rates of c / T that the theorem admits from T = 8 on.
RATE = 0.4
SEEDS = (0, 1)
MU = 0.1
MEASURED = 2  # as many parts have a round's steps; measured between them, and at both ends
TURNS = 12  # of a power iteration


class Watch:
    """What one run shows.

    Args:
        steps: of a round.
        rows: of all parties.

    Attributes:
        servers: Theta_0 and w_0 after each round.
        squared, last: p_m^2 |gradient|^2 of each step measured, and of those after a round's last.
        first_losses, last_losses: party -> p_m (f_m and its pull) at the start, and at the end.
        curvature: the largest that a party's loss had, at the ends of rounds 1, 2, 4, 8, ...
    """

    def __init__(self, steps: int, rows: int) -> None:
        self.steps, self.rows = steps, rows
        self.servers: list[Tensor] = []
        self.squared: list[float] = []
        self.last: list[float] = []
        self.first_losses: dict[str, float] = {}
        self.last_losses: dict[str, float] = {}
        self.curvature = 0.0
        self._made: dict[str, int] = {}  # party -> steps and ends of rounds so far

    def step(self, member: Member) -> None:
        """Look before a step, or after a round's last."""
        made = self._made.get(member.name, 0)
        self._made[member.name] = made + 1
        if made % (self.steps + 1) * MEASURED % self.steps:
            return
        loss, gradient = loss_and_gradient(member)
        share = len(member.training_rows()) / self.rows
        self.squared.append(share**2 * float(gradient.square().sum()))
        self.first_losses.setdefault(member.name, share * loss)
        self.last_losses[member.name] = share * loss
        rounds, of_round = divmod(made, self.steps + 1)
        if of_round == self.steps:
            self.last.append(self.squared[-1])
            if (rounds + 1).bit_count() == 1:
                self.curvature = max(self.curvature, curvature(member))


def loss_and_gradient(member: Member, *, graph: bool = False) -> tuple[float, Tensor]:
    """f_m and its pull, and their gradient by Theta_m and w_m, over all of a party's rows."""
    network, config = member.network, member.config
    parameters = [each for each in network.parameters() if each.requires_grad]
    loss = member.loss(network, *member.batch(member.training_rows()))
    gradient = torch.autograd.grad(loss, parameters, create_graph=graph)
    for each in parameters:
        each.grad = torch.zeros_like(each)
    pull(network.extractors.parameters(), member.theta_0, config.mu_1)
    pull(network.classifier.parameters(), member.w_0, config.mu_2)
    added = [each.grad.clone() for each in parameters if each.grad is not None]
    network.zero_grad()
    # mu/2 |x - x_0|^2 is |mu (x - x_0)|^2 / (2 mu), and mu_1 is mu_2.
    of_pull = sum(float(each.square().sum()) for each in added) / (2 * MU)
    both = [one + two for one, two in zip(gradient, added, strict=True)]
    return float(loss.detach()) + of_pull, torch.cat([each.flatten() for each in both])


def curvature(member: Member) -> float:
    """The largest eigenvalue of f_m's second derivatives with its pull's, by power iteration."""
    parameters = [each for each in member.network.parameters() if each.requires_grad]
    _, gradient = loss_and_gradient(member, graph=True)
    generator = torch.Generator().manual_seed(0)
    vector, value = torch.randn(len(gradient), generator=generator), 0.0
    for _ in range(TURNS):
        vector = vector / vector.norm()
        times = torch.autograd.grad(gradient @ vector, parameters, retain_graph=True)
        product = torch.cat([each.flatten() for each in times]) + MU * vector
        value, vector = float(vector @ product), product
    return value


def measured(length: int, seed: int) -> dict[str, float]:
    """Both sides of Eq. (23) of one run of T = Q = ``length``, in means over its rounds."""
    settings: dict[str, Any] = {"rounds": length, "local_steps": length}
    settings |= {"learning_rate": RATE / length, "mu_1": MU, "mu_2": MU}
    settings |= {"schedule": "constant", "restart": "false"}
    keys = [f"hyfem.{key}={value}" for key, value in settings.items()]
    run = load_run(RUN, overrides=(*keys, "baselines=[]", "evaluate_every=0"))
    assert run.data is not None
    train, test = dd.load(run.data.source, label=run.data.label, id=run.data.id)
    if test is None:
        assert run.data.test is not None
        train, test = dd.split(train, test=run.data.test, seed=0, stratify=True)
    loaded = Loaded(run.data.partition.deal(train, test, run.data), None)
    parties = loaded.data.train.parties.values()
    rows = [len(party.labelled_rows()) for party in parties]
    setup: Any = methods.method_of(run.method).setup(run, loaded, torch.device("cpu"))
    variant, watch = type(setup.kind.variant("hyfem")), Watch(length, sum(rows))
    rounds, step, mean_loss = variant.rounds, Local.step, Member.mean_loss

    def watched(self: Any, variant_run: Any) -> Iterator[Any]:
        for done in rounds(self, variant_run):
            watch.servers.append(server(variant_run.driver))
            yield done

    def before_step(
        self: Local, optimizer: Any, network: Any, loss: Any, *given: Any, **also: Any
    ) -> Any:
        watch.step(loss.__self__)
        return step(self, optimizer, network, loss, *given, **also)

    def after_steps(self: Member, *losses_and_weights: Any) -> float:
        watch.step(self)
        return mean_loss(self, *losses_and_weights)

    with ExitStack() as patched:
        patched.enter_context(mock.patch.object(variant, "rounds", watched))
        patched.enter_context(mock.patch.object(Local, "step", before_step))
        patched.enter_context(mock.patch.object(Member, "mean_loss", after_steps))
        setup.played("hyfem", seed, lambda *_: None, None)
    pairs = itertools.pairwise(watch.servers)
    change = float(torch.stack([(after - before).square().sum() for before, after in pairs]).mean())
    gradient = sum(watch.squared) / length / (MEASURED + 1)
    # L is strongly convex in z by at least this (Lemma 1).
    mu = MU * min(rows) / sum(rows)
    fallen = sum(watch.first_losses.values()) - sum(watch.last_losses.values())
    return {
        "mean squared change": change,
        "mean squared gradient": gradient,
        "left side": mu * change / RATE + sum(watch.last) / length**2 + gradient,
        "bound": 10 * fallen / (length * RATE),
        "rate times curvature": RATE / length * watch.curvature,
    }


def server(driver: Any) -> Tensor:
    """Theta_0 and w_0 as one vector."""
    model = driver.server
    layers = [torch.as_tensor(np.asarray(part)).flatten() for part in flat(model.classifier)]
    return torch.cat([*model.extractors.values(), *layers]).double()


def flat(value: Any) -> list[Any]:
    """Arrays in a classifier, in their order."""
    if isinstance(value, Tensor | np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [each for part in parts for each in flat(part)]


def line(length: int) -> dict[str, Any]:
    """A row of the table: means over seeds, and the largest of what is to be at most 1."""
    started = time.process_time()
    runs = [measured(length, seed) for seed in SEEDS]
    mean = {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}
    shown = ("mean squared change", "mean squared gradient", "left side", "bound")
    return {
        "c": RATE,
        "T = Q": length,
        **{f"T times {name}": round(length * mean[name], 4) for name in shown},
        "rate times curvature": round(max(run["rate times curvature"] for run in runs), 2),
        "seeds": len(runs),
        "cpu s": round(time.process_time() - started, 1),
    }


def with_slopes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with slopes from the one before: of what falls as 1 / T it is -1."""
    slopes: list[dict[str, Any]] = []
    for before, row in itertools.pairwise([{}, *rows]):
        steps: dict[str, Any] = {}
        for name in ("change", "gradient"):
            what = f"T times mean squared {name}"
            steps[f"slope of {name}"] = (
                round(math.log2(row[what] / before[what]) - 1, 2) if before else ""
            )
        slopes.append(row | steps)
    return slopes


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        rows.append(line(length))
        print(rows[-1], flush=True)
    title = "HyFEM, Theorem 2: both sides of Eq. (23), over runs of T rounds"
    _results.write("hyfem_theorem", title, with_slopes(rows))


if __name__ == "__main__":
    main()
