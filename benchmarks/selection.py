"""Selection: are planted data owners found, and for how many distances?

    python -m benchmarks.selection

14 data owners of two columns each. Of 4, the mean depends on the class (two classes, means two
standard deviations apart in a random direction); of 10 it does not. One row for each way of asking,
over 20 seeds of data, rows and groups. In the last two cases the 10 are copies of the first two,
with a little noise, and the best four are to tell all that the 4 do. "first" counts the seeds in
which the 4 come before the others, or that is so. "of brute force" is the share of the distances
that would be sent had every owner sent each of its distances once (under masks: once for each
group, as a masked distance serves one sum);
"per group" compares with brute force for each group on both. Times are of the processor, of all
parties together.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import _results
from dovetail.methods import selection
from dovetail.methods.fedoptimus import choosing
from dovetail.network import InProcess

INFORMATIVE, NOISE = 4, 10
NEEDED, TARGET = 19, 0.30

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "500 rows": (500, {}),
    "1000 rows": (1000, {}),
    "1000 rows, 250 queries": (1000, {"queries": 250}),
    "500 rows, groups of 3": (500, {"group_size": 3}),
    "500 rows, each alone": (500, {"groups": 0}),
    "500 rows, masked": (500, {"secure": True}),
    "500 rows, copies": (500, {"groups": 0}),
    "500 rows, copies, forward": (500, {"groups": 0, "order": "forward", "share": 4 / 14}),
}


def planted(
    seed: int, num_rows: int, *, copies: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns of each owner, and the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num_rows)
    columns: dict[str, np.ndarray] = {}
    for index in range(INFORMATIVE + NOISE):
        x = rng.normal(size=(num_rows, 2))
        if index < INFORMATIVE:
            direction = rng.normal(size=2)
            x += 2 * labels[:, None] * direction / np.linalg.norm(direction)
        elif copies:
            x = columns[f"informative-{index % 2 + 1}"] + 0.1 * x
        kind = "informative" if index < INFORMATIVE else "copy" if copies else "noise"
        columns[f"{kind}-{index + 1}"] = x
    return columns, labels


def separates_all(names: Sequence[str]) -> bool:
    """Whether each of the informative owners, or a copy of it, is among these."""
    origins = set()
    for name in names:
        kind, number = name.split("-")
        origins.add((int(number) - 1) % 2 if kind == "copy" else int(number) - 1)
        if kind == "noise":
            return False
    return origins == set(range(INFORMATIVE))


def select(
    columns: dict[str, np.ndarray], labels: np.ndarray, config: selection.Config, seed: int
) -> selection.Scores:
    """The scores of this data."""
    parties: dict[str, Any] = {name: data_owner(name, x) for name, x in columns.items()}
    samples = torch.arange(len(labels))
    parties["bank"] = selection.LabelOwner("bank", samples, torch.from_numpy(labels))
    network = InProcess(parties, driver="coordinator")
    find = choosing.forward if config.order == "forward" else selection.score
    return find(network, list(columns), ["bank"], config, seed=seed)


def data_owner(name: str, x: np.ndarray) -> selection.DataOwner:
    rows = torch.from_numpy(x)
    return selection.DataOwner(name, lambda _, samples_B: rows[samples_B])


def measure(
    num_rows: int, settings: dict[str, Any], num_seeds: int, *, copies: bool = False
) -> dict[str, Any]:
    """One line of the table."""
    config = selection.Config(rows=num_rows, **settings)
    first, shares, per_group, seconds = 0, [], [], []
    for seed in range(num_seeds):
        columns, labels = planted(seed, num_rows, copies=copies)
        started = time.process_time()
        scores = select(columns, labels, config, seed)
        seconds.append(time.process_time() - started)
        first += separates_all(scores.ranked[:INFORMATIVE])
        shares.append(scores.distances / scores.brute_force)
        pairs = (config.queries or num_rows) * (num_rows - 1)
        per_group.append(
            scores.distances / pairs / sum(len(members) for members, _ in scores.groups)
        )
    return {
        "first": f"{first} of {num_seeds}",
        "of brute force": statistics.fmean(shares),
        "at most": max(shares),
        "per group": statistics.fmean(per_group),
        "seconds": statistics.median(seconds),
        "reached": first * 20 >= NEEDED * num_seeds and max(shares) < TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    rows = [
        {"case": name, **measure(num_rows, settings, seeds, copies="copies" in name)}
        for name, (num_rows, settings) in CASES.items()
    ]
    _results.write("selection", "Selection of planted data owners", rows)


if __name__ == "__main__":
    main()
