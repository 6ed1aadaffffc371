"""Fourteen labels at four laboratories that share no gene: alone, CHFL and HyFEM, one by one.

    pip download --no-deps river==0.26.1
    python -m benchmarks.several_labels_by_rows river-0.26.1-*.whl [--seeds 3]

The set of ``several_labels``. Its genes are split over four laboratories: all have the phylogenetic
profiles, each a quarter of the expression columns of its own. A quarter of the rows tests, a
quarter of the others validates. All else is the default. Boosted trees are LightGBM's with its own
defaults, a model a label on a laboratory's own columns and all of its rows but those that test.

Finished runs are kept in results/several_labels_by_rows_runs.jsonl, a line a seed and way.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.metrics import roc_auc_score

import dovetail as dt
from benchmarks import _results
from benchmarks.several_labels import EXPRESSION, LABELS, PROFILES, genes

RESULTS = _results.FOLDER / "several_labels_by_rows_runs.jsonl"
LABORATORIES = ["lab-1", "lab-2", "lab-3", "lab-4"]
WAYS = {
    "CHFL, at once": dt.CHFL(),
    "CHFL, one by one": dt.CHFL(),
    "HyFEM, at once": dt.HyFEM(class_weights=True),
}
BOOSTED = "local boosted trees"
#: What a laboratory reaches alone with the same network.
BASELINES = {"CHFL, at once": ["local"]}


def split_genes(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Every row with its laboratory, its part, and what that laboratory has measured of it."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(np.arange(len(table)) % len(LABORATORIES))
    split = np.where(rng.permutation(len(table)) < len(table) // 4, "test", "train")
    frame = table.assign(lab=np.array(LABORATORIES)[place], split=split)
    for index in range(len(LABORATORIES)):
        here = place == index
        others = [name for i, name in enumerate(EXPRESSION) if i % len(LABORATORIES) != index]
        frame.loc[here, others] = np.nan
    return frame


def trained(frame: pd.DataFrame, way: str, labels: list[str], seed: int) -> dict[str, Any]:
    """Variant -> label -> laboratory -> AUC on its test rows."""
    columns = ["gene", *PROFILES, *EXPRESSION, *labels, "lab", "split"]
    simulation = dt.simulate(
        frame[columns],
        dt.ByColumn("lab", LABORATORIES),
        id="gene",
        label=labels if len(labels) > 1 else labels[0],
        split_column="split",
    )
    started = time.perf_counter()
    run = dt.fit(WAYS[way], simulation, seeds=[seed], quiet=True, baselines=BASELINES.get(way, []))
    seconds = time.perf_counter() - started
    aucs: dict[str, Any] = {}
    variants = run.result["variants"].values()
    every = {name: each for one in variants for name, each in one.get("details", {}).items()}
    for variant, details in every.items():
        for laboratory, own in details.items():
            of_each = own.get("labels") or {labels[0]: run.result["parties"][laboratory]}
            for label, scores in of_each.items():
                if "auc" in scores:
                    aucs.setdefault(variant, {}).setdefault(label, {})[laboratory] = scores["auc"]
    return {"aucs": aucs, "seconds": seconds}


def boosted(frame: pd.DataFrame, seed: int) -> dict[str, Any]:
    """The same of boosted trees that each laboratory has alone."""
    started = time.perf_counter()
    aucs: dict[str, dict[str, float]] = {}
    for laboratory, rows in frame.groupby("lab"):
        columns = [name for name in (*PROFILES, *EXPRESSION) if rows[name].notna().any()]
        train, test = rows[rows["split"] == "train"], rows[rows["split"] == "test"]
        for label in LABELS:
            if train[label].nunique() < 2 or test[label].nunique() < 2:
                continue
            trees = LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1)
            trees.fit(train[columns], train[label])
            said = np.asarray(trees.predict_proba(test[columns]))[:, 1]
            aucs.setdefault(label, {})[str(laboratory)] = float(roc_auc_score(test[label], said))
    return {"aucs": {"lightgbm": aucs}, "seconds": time.perf_counter() - started}


def run_of(table: pd.DataFrame, seed: int, way: str) -> dict[str, Any]:
    """One way of learning all labels."""
    frame = split_genes(table, seed)
    if way == BOOSTED:
        return boosted(frame, seed)
    if "at once" in way:
        return trained(frame, way, LABELS, seed)
    each = [trained(frame, way, [label], seed) for label in LABELS]
    aucs: dict[str, Any] = {}
    for one in each:
        for variant, of_labels in one["aucs"].items():
            aucs.setdefault(variant, {}).update(of_labels)
    return {"aucs": aucs, "seconds": sum(one["seconds"] for one in each)}


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean AUC in % over labels, laboratories and seeds, and over seeds how it spreads."""
    rows = []
    for way in (*WAYS, BOOSTED):
        own = [line for line in lines if line["way"] == way]
        for variant in dict.fromkeys(name for line in own for name in line["aucs"]):
            means = _means(own, variant)
            rows.append(
                {
                    "what": "local network" if variant == "local" else way,
                    "auc": statistics.fmean(means),
                    "lowest seed": min(means),
                    "highest seed": max(means),
                    "seconds": statistics.fmean(line["seconds"] for line in own),
                }
            )
    return rows


def _means(lines: list[dict[str, Any]], variant: str) -> list[float]:
    """Of each seed the mean over labels of the mean over laboratories, in %."""
    return [
        100
        * statistics.fmean(
            statistics.fmean(of.values()) for of in line["aucs"][variant].values() if of
        )
        for line in lines
        if line["aucs"].get(variant)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = genes(given.wheel)
    ways = itertools.product(range(given.seeds), (*WAYS, BOOSTED))
    wanted = ({"seed": seed, "way": way} for seed, way in ways)
    lines = _results.resumed(RESULTS, wanted, partial(run_of, table))
    _results.write(
        "several_labels_by_rows",
        "AUC in % of fourteen labels at four laboratories",
        summary(lines),
    )


if __name__ == "__main__":
    main()
