"""APFed-S with pictures: what a partner's numbers are worth from patches, and from flat pixels.

    python -m benchmarks.pictures [--seeds 3] [--runs]

Pictures are cut into two strips; the upper is the label owner's. 300 labels, 4,000 pictures train.
"numbers" is the accuracy in % of a partner's numbers by themselves, on test pictures; made in the
clear, since M t is what decryption gives. Seconds are of a core: patterns, kernels and numbers.
``--runs`` adds whole runs on Fashion-MNIST: solo and joint model.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch

from benchmarks import _results
from dovetail.methods.apfed.sealed_checks import UNLIMITED
from dovetail.methods.base import Loaded
from dovetail.methods.baselines import features
from dovetail.methods.training import Training
from dovetail.models.learners import hard_targets, make_folds
from dovetail.models.learners.assisted import all_columns
from dovetail.models.patches import Pictures, kernels_of
from dovetail.models.smoothers import Smoother, Smoothing
from dovetail.runs.runfile import RunFile, load_run
from dovetail.runs.setup import load_data, setup

SOURCES = {"fashion_mnist": "", "cifar10_jpeg": "", "eurosat_rgb_jpeg_a": "data.test = 0.2\n"}
LABELS = 300


def loaded(source: str, pictures: str = "patches") -> tuple[RunFile, Loaded]:
    """A run file of this source, and its data."""
    text = (
        f'method = "apfed-s"\nbaselines = []\n{SOURCES[source]}'
        f'data.source = "{source}"\ndata.rows = 4000\ndata.labels = {LABELS}\n'
        'data.partition = { kind = "strips", views = 2, active = 1 }\n'
        f'passive.pictures = "{pictures}"\n'
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(text)
        run = load_run(path)
    return run, load_data(run)


def numbers(source: str, pictures: Pictures, seed: int) -> dict[str, Any]:
    """Accuracy of a partner's numbers on test pictures."""
    _, data = loaded(source)
    assert data.data.test is not None
    owner, partner = list(data.data.train.parties)
    train, test = (part.parties[partner].joined() for part in (data.data.train, data.data.test))
    classes, tested = (
        part.parties[owner].required_labels for part in (data.data.train, data.data.test)
    )
    tested, test = tested[:2000], test[:2000]
    rng = torch.Generator().manual_seed(seed)
    rows_L = torch.randperm(len(train), generator=rng)[:LABELS]
    started = time.process_time()
    x_NF = features(train)
    view, kernels = kernels_of(x_NF, train.shape[1:], rng, pictures)
    folds_L = make_folds(classes[rows_L], 4, seed=seed)
    smoothing = Smoothing(
        kernels, [Smoother("mean", 1.0)], view(x_NF[rows_L]), folds_L, UNLIMITED.least_rows, view
    )
    weights_UL = smoothing.weights(features(test), 0)
    seconds = time.process_time() - started
    t_LC = hard_targets(classes[rows_L], data.data.task.num_outputs, regression=False)
    shares_C = t_LC.mean(dim=0)
    z_UC = all_columns(weights_UL @ (t_LC - shares_C)[:, :-1], regression=False)
    right = float(((z_UC + shares_C).argmax(dim=1) == tested).float().mean())
    about = {"pictures": source, "seen as": pictures, "seed": seed}
    return {**about, "numbers": 100 * right, "s": seconds, "solo": None, "joint": None}


def whole_run(source: str, pictures: str, seed: int) -> dict[str, Any]:
    """Scores of a run."""
    run, data = loaded(source, pictures)
    training = setup(run, seed, data)
    assert isinstance(training, Training)
    outcome = training.train("apfed-s", seed, lambda *_: None)
    (party,) = outcome.scores["apfed-s"]
    solo, joint = (100 * outcome.scores[what][party]["accuracy"] for what in ("apfed-s", "joint"))
    about = {"pictures": source, "seen as": pictures, "seed": seed}
    return {**about, "numbers": None, "s": None, "solo": solo, "joint": joint}


def lines(seeds: Sequence[int], *, runs: bool) -> list[dict[str, Any]]:
    """What was measured."""
    kinds = get_args(Pictures)
    found = [numbers(*each) for each in itertools.product(SOURCES, kinds, seeds)]
    if runs:
        found += [whole_run("fashion_mnist", kind, seed) for kind in kinds for seed in seeds]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", action="store_true")
    arguments = parser.parse_args()
    rows = lines(range(1, arguments.seeds + 1), runs=arguments.runs)
    _results.write("pictures", "APFed-S: a partner's pictures, as patches and flat", rows)


if __name__ == "__main__":
    main()
