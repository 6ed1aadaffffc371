"""APFed-S with pictures: what a partner's numbers are worth from patches, and from flat pixels.

    python -m benchmarks.pictures [--seeds 2]

Pictures are cut into two strips; the upper is the label owner's. 300 labels, 4,000 pictures train.
"numbers" is the accuracy in % of a partner's numbers by themselves, on test pictures; made in the
clear, since M t is what decryption gives. Seconds are of a core: patterns, kernels and numbers.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch

from benchmarks import _results
from dovetail.data import Partitioned
from dovetail.methods.apfed.numbers import UNLIMITED
from dovetail.methods.baselines import features
from dovetail.models.learners import hard_targets, make_folds
from dovetail.models.learners.assisted import all_columns
from dovetail.models.patches import kernels_of
from dovetail.models.smoothers import Smoother, Smoothing
from dovetail.runs.runfile import load_run
from dovetail.runs.setup import load_data
from dovetail.settings.models import Pictures

SOURCES = {"fashion_mnist": "", "cifar10_jpeg": "", "eurosat_rgb_jpeg_a": "data.test = 0.2\n"}
LABELS = 300


@lru_cache(maxsize=1)
def loaded(source: str) -> Partitioned:
    """Strips of a source's pictures."""
    text = (
        f'method = "apfed"\nbaselines = []\n{SOURCES[source]}'
        f'data.source = "{source}"\ndata.rows = 4000\n'
        'data.partition = { kind = "strips", views = 2, active = 1 }\n'
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(text)
        return load_data(load_run(path)).data


def numbers(source: str, pictures: Pictures, seed: int) -> dict[str, Any]:
    """Accuracy of a partner's numbers on test pictures."""
    data = loaded(source)
    assert data.test is not None
    owner, partner = data.train.parties
    train, test = (part.parties[partner].joined() for part in (data.train, data.test))
    classes, tested = (part.parties[owner].required_labels for part in (data.train, data.test))
    tested, test = tested[:2000], test[:2000]
    rng = torch.Generator().manual_seed(seed)
    rows_L = torch.randperm(len(train), generator=rng)[:LABELS]
    started = time.process_time()
    x_NF = features(train)
    view, kernels = kernels_of(x_NF, train.shape[1:], rng, pictures)
    folds_L = make_folds(classes[rows_L], 4, seed=seed)
    smoothing = Smoothing(
        kernels, Smoother("mean", 1.0), view(x_NF[rows_L]), folds_L, UNLIMITED.least_rows, view
    )
    weights_UL = smoothing.weights(features(test))
    seconds = time.process_time() - started
    t_LC = hard_targets(classes[rows_L], data.task.num_outputs, regression=False)
    shares_C = t_LC.mean(dim=0)
    z_UC = all_columns(weights_UL @ (t_LC - shares_C)[:, :-1], regression=False)
    right = float(((z_UC + shares_C).argmax(dim=1) == tested).float().mean())
    about = {"pictures": source, "seen as": pictures, "seed": seed}
    return {**about, "numbers": round(100 * right, 1), "s": round(seconds, 1)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As results/bench/sealed.md has it: means over draws."""
    kinds = get_args(Pictures)
    text = f"| pictures | draws | {' | '.join(kinds)} | {' | '.join(f'{k}, s' for k in kinds)} |\n"
    text += "|---" * (2 + 2 * len(kinds)) + "|\n"
    for source in dict.fromkeys(row["pictures"] for row in rows):
        of_kind = {
            k: [r for r in rows if (r["pictures"], r["seen as"]) == (source, k)] for k in kinds
        }
        if not all(of_kind.values()):
            continue
        means = [
            f"{statistics.fmean(row[what] for row in found):.1f}"
            for what in ("numbers", "s")
            for found in of_kind.values()
        ]
        text += f"| {source} | {len(of_kind[kinds[0]])} | {' | '.join(means)} |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(1, parser.parse_args().seeds + 1)
    rows: list[dict[str, Any]] = []
    for each in itertools.product(SOURCES, get_args(Pictures), seeds):
        rows.append(numbers(*each))
        _results.write("pictures", "APFed-S: a partner's pictures, as patches and flat", rows)
    _results.insert(_results.FOLDER / "bench" / "sealed.md", "pictures", table(rows))


if __name__ == "__main__":
    main()
