"""HyFEM's Theorem 1: how fast the server's model and the parties' gradients come to rest.

    python -m benchmarks.hyfem_theorem

Theorem 2 has Q = T steps a round, a rate of c / sqrt(Q T) and Eq. (22a); then the squared change of
the server's model from round to round, averaged over the T rounds of a run, is O(1 / T), and so is
the squared gradient of Eq. (6) by all Theta_m and w_m. Here on covertype in four groups of columns,
mu_1 = mu_2 = 0.1, for runs of several T: both means, the gradient over all rows of each party after
its steps, and the slopes of their logarithms over that of T. -1 is the theorem's rate; what T times
a mean does from one T to the next says whether it is bounded.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks import _results
from dovetail import data as dd
from dovetail import methods
from dovetail.methods.base import Loaded
from dovetail.methods.hyfem.hyfem import Member
from dovetail.models import pull
from dovetail.runs.runfile import load_run

RUN = Path(__file__).parents[1] / "runs" / "hyfem" / "covertype-4.toml"
LENGTHS = (8, 16, 32, 64, 128, 256)
RATE = 3.2  # c: a rate of 0.1 with T = 32
SEEDS = (0, 1)


def measured(length: int, seed: int) -> tuple[float, float]:
    """Means over a run of T = ``length``: squared change of Theta_0 and w_0, squared gradient."""
    settings: dict[str, Any] = {
        "rounds": length,
        "local_steps": length,
        "learning_rate": RATE / length,
    }
    settings |= {"schedule": "constant", "restart": "false", "mu_1": 0.1, "mu_2": 0.1}
    keys = [f"hyfem.{key}={value}" for key, value in settings.items()]
    run = load_run(RUN, overrides=(*keys, "baselines=[]", "evaluate_every=0"))
    assert run.data is not None
    train, test = dd.load(run.data.source, label=run.data.label, id=run.data.id)
    if test is None:
        assert run.data.test is not None
        train, test = dd.split(train, test=run.data.test, seed=0, stratify=True)
    loaded = Loaded(run.data.partition.deal(train, test, run.data), None)
    setup: Any = methods.method_of(run.method).setup(run, loaded, torch.device("cpu"))
    variant, weights, gradients = type(setup.kind.variant("hyfem")), list[Tensor](), list[float]()
    rounds, mean_loss = variant.rounds, Member.mean_loss

    def watched(self: Any, variant_run: Any) -> Iterator[Any]:
        for done in rounds(self, variant_run):
            weights.append(server(variant_run.driver))
            yield done

    def after_steps(self: Member, *losses_and_weights: Any) -> float:
        gradients.append(len(self.training_rows()) ** 2 * squared_gradient(self))
        return mean_loss(self, *losses_and_weights)

    with (
        mock.patch.object(variant, "rounds", watched),
        mock.patch.object(Member, "mean_loss", after_steps),
    ):
        setup.played("hyfem", seed, lambda *_: None, None)
    squared = [(after - before).square().sum() for before, after in itertools.pairwise(weights)]
    rows = sum(len(party.labelled_rows()) for party in loaded.data.train.parties.values())
    return float(torch.stack(squared).mean()), sum(gradients) / length / rows**2


def squared_gradient(member: Member) -> float:
    """Of f_m and its regularisers by Theta_m and w_m, over all its rows."""
    network = member.network
    network.zero_grad()
    member.loss(network, *member.batch(member.training_rows())).backward()
    pull(network.extractors.parameters(), member.theta_0, member.config.mu_1)
    pull(network.classifier.parameters(), member.w_0, member.config.mu_2)
    parts = [each.grad.square().sum() for each in network.parameters() if each.grad is not None]
    network.zero_grad()
    return float(torch.stack(parts).sum())


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


def main() -> None:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        started = time.process_time()
        change, gradient = (
            statistics.fmean(of_seeds)
            for of_seeds in zip(*(measured(length, seed) for seed in SEEDS), strict=True)
        )
        rows.append(
            {
                "T = Q": length,
                "rate": RATE / length,
                "mean squared change": round(change, 5),
                "times T": round(length * change, 3),
                "mean squared gradient": round(gradient, 7),
                "T times that": round(length * gradient, 5),
                "seeds": len(SEEDS),
                "cpu s": round(time.process_time() - started, 1),
            }
        )
        print(rows[-1], flush=True)
    lengths = [math.log(row["T = Q"]) for row in rows]
    for name in ("change", "gradient"):
        means = [math.log(row[f"mean squared {name}"]) for row in rows]
        slope = float(np.polyfit(lengths, means, 1)[0])
        for row in rows:
            row[f"slope, {name}"] = round(slope, 2)
    title = "HyFEM, Theorem 1: the server's model and the parties' gradients come to rest"
    _results.write("hyfem_theorem", title, rows)


if __name__ == "__main__":
    main()
