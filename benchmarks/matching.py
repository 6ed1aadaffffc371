"""Matching classifiers against scipy's assignment alone, on the same matrices.

    python -m benchmarks.matching

One sweep over all parties from nothing: each is matched to those before it, then again to all
others. "unrelated" classifiers are drawn apart, as after a first round from weights of their own;
"related" ones are one classifier, its neurons in another order at each party, and noise of 0.3, as
later on: there scipy's search ends almost at once, so that building the matrices shows. A party
holds five of eight blocks of 32 features. Times are of the processor. "bound" is what scipy and the
one product that each of its matrices is made of take by themselves, over scipy alone: whatever is
written around the two, the ratio cannot be less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from scipy import optimize

from benchmarks import _results
from dovetail.models import matching

SIZES = (32,) * 8
NUM_OUTPUTS = 10
TARGET = 2.0

#: Widths and numbers of parties; the widest with few parties only, to keep it short.
CASES = [(64, 4), (64, 64), (256, 4), (256, 64), (1024, 4), (1024, 16), (2048, 4), (2048, 8)]


def classifiers(kind: str, width: int, num_parties: int) -> list[matching.Classifier]:
    """Parties that hold five of the eight blocks each."""
    rng = np.random.default_rng(0)
    whole = _draw(rng, sum(SIZES), width)
    parties = []
    for _ in range(num_parties):
        blocks = tuple(sorted(rng.choice(len(SIZES), 5, replace=False).tolist()))
        columns = np.concatenate([np.arange(32 * b, 32 * b + 32) for b in blocks])
        columns = np.append(columns, sum(SIZES))
        if kind == "related":
            order = rng.permutation(width)
            noise = _draw(rng, sum(SIZES), width)[0]
            first = (whole[0] + 0.3 * noise)[order][:, columns]
            layers = [first, np.concatenate([whole[1][:, :-1][:, order], whole[1][:, -1:]], 1)]
        else:
            layers = _draw(rng, len(columns) - 1, width)
        parties.append(matching.Classifier(blocks, tuple(layers)))
    return parties


def _draw(rng: np.random.Generator, num_inputs: int, width: int) -> list[np.ndarray]:
    scale = num_inputs**-0.5
    return [
        rng.normal(size=(width, num_inputs + 1), scale=scale).astype(np.float32),
        rng.normal(size=(NUM_OUTPUTS, width + 1), scale=scale).astype(np.float32),
    ]


def time_case(kind: str, width: int, num_parties: int, repeats: int) -> tuple[float, float]:
    """Median seconds of CPU of matching, and of scipy's part of it."""
    parties = classifiers(kind, width, num_parties)
    weights = [1 / num_parties] * num_parties
    totals, assigned = [], []
    spent = 0.0
    assign = optimize.linear_sum_assignment

    def timed(matrix: np.ndarray, maximize: bool = False) -> Any:
        nonlocal spent
        started = time.process_time()
        assignment = assign(matrix, maximize=maximize)
        spent += time.process_time() - started
        return assignment

    optimize.linear_sum_assignment = timed  # matching reads it when it is called
    try:
        for _ in range(repeats):
            spent = 0.0
            started = time.process_time()
            matching.match(
                parties,
                SIZES,
                weights,
                cost=matching.Pfnm(),
                width=(width,),
                sweeps=1,
                rng=np.random.default_rng(0),
            )
            totals.append(time.process_time() - started)
            assigned.append(spent)
    finally:
        optimize.linear_sum_assignment = assign
    return statistics.median(totals), statistics.median(assigned)


def time_products(width: int, num_parties: int, repeats: int) -> float:
    """Median seconds of CPU of one product for each of the matches of ``time_case``."""
    rng = np.random.default_rng(0)
    server, party_layers = (_draw(rng, sum(SIZES), width)[0] for _ in range(2))
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        for _ in range(2 * num_parties):  # placed once, then matched again in the sweep
            server @ party_layers.T
        spent.append(time.process_time() - started)
    return statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each case [3]")
    parser.add_argument("--widest", type=int, default=2048, help="leave wider cases out [2048]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in ("unrelated", "related"):
        for width, num_parties in CASES:
            if width > given.widest:
                continue
            total, assigned = time_case(kind, width, num_parties, given.repeats)
            products = time_products(width, num_parties, given.repeats)
            rows.append(
                {
                    "classifiers": kind,
                    "width": width,
                    "parties": num_parties,
                    "matching ms": total * 1e3,
                    "scipy ms": assigned * 1e3,
                    "products ms": products * 1e3,
                    "ratio": total / assigned,
                    "bound": 1 + products / assigned,
                    "at most": TARGET,
                }
            )
    _results.write("matching", "Matching classifiers against scipy's assignment alone", rows)


if __name__ == "__main__":
    main()
