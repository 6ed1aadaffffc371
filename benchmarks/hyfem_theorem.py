"""HyFEM's Theorem 1: how fast the server's model comes to rest.

    python -m benchmarks.hyfem_theorem

Theorem 2 has Q = T steps a round, a rate of c / sqrt(Q T) and Eq. (22a); then the squared change of
the server's model from round to round, averaged over the T rounds of a run, is O(1 / T). Here on
covertype in four groups of columns, mu_1 = mu_2 = 0.1, for runs of several T: the mean squared
change, and the slope of its logarithm over that of T, which is to be -1 or less.
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
from dovetail.runs.runfile import load_run

RUN = Path(__file__).parents[1] / "runs" / "hyfem" / "covertype-4.toml"
LENGTHS = (8, 16, 32, 64)
RATE = 3.2  # c: a rate of 0.1 with T = 32
SEEDS = (0, 1)


def changes(length: int, seed: int) -> list[float]:
    """Squared change of Theta_0 and w_0 in each round of a run of T = ``length``."""
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
    variant, weights = type(setup.kind.variant("hyfem")), list[Tensor]()
    rounds = variant.rounds

    def watched(self: Any, variant_run: Any) -> Iterator[Any]:
        for done in rounds(self, variant_run):
            weights.append(server(variant_run.driver))
            yield done

    with mock.patch.object(variant, "rounds", watched):
        setup.played("hyfem", seed, lambda *_: None, None)
    return [float((after - before).square().sum()) for before, after in itertools.pairwise(weights)]


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
        of_seeds = [statistics.fmean(changes(length, seed)) for seed in SEEDS]
        rows.append(
            {
                "T = Q": length,
                "rate": RATE / length,
                "mean squared change": round(statistics.fmean(of_seeds), 4),
                "times T": round(length * statistics.fmean(of_seeds), 3),
                "seeds": len(SEEDS),
                "cpu s": round(time.process_time() - started, 1),
            }
        )
        print(rows[-1], flush=True)
    lengths = [math.log(row["T = Q"]) for row in rows]
    means = [math.log(row["mean squared change"]) for row in rows]
    slope = float(np.polyfit(lengths, means, 1)[0])
    for row in rows:
        row["slope"] = round(slope, 2)
    _results.write("hyfem_theorem", "HyFEM, Theorem 1: the server's model comes to rest", rows)


if __name__ == "__main__":
    main()
