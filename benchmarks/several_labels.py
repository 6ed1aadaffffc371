"""Fourteen labels of yeast genes at once: what partners add to each, and what one exchange saves.

    pip download --no-deps river==0.26.1
    python -m benchmarks.several_labels river-0.26.1-*.whl [--seeds 3]

The wheel has the multi-label set of Elisseeff and Weston (2002): 2,417 genes, 14 groups of
functions, of which a gene has four on average. A laboratory has the genes' phylogenetic profiles
(the last 24 columns) and knows the functions of 600; another has their expression in microarray
experiments (the first 79). A quarter of the rows tests. All else is the default.

``at once`` is one run of 14 labels; ``one by one`` is 14 runs of one, on the same rows. Finished
runs are kept in results/several_labels_runs.jsonl, a line a seed and way.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import json
import statistics
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dovetail as dt
from benchmarks import _results

MEMBER = "river/datasets/yeast.csv.gz"
RESULTS = _results.FOLDER / "several_labels_runs.jsonl"
LABELS = [f"Class{number}" for number in range(1, 15)]
PROFILES = [f"Att{number}" for number in range(80, 104)]
EXPRESSION = [f"Att{number}" for number in range(1, 80)]
LABELLED = 600
#: What stands in a line -> what a run calls it.
MODELS = {"local": "best-alone", "solo": "apfed", "joint": "joint"}


def genes(wheel: Path) -> pd.DataFrame:
    """The set, and an id of each gene."""
    with zipfile.ZipFile(wheel) as archive, gzip.open(archive.open(MEMBER)) as file:
        names, *rows = csv.reader(io.TextIOWrapper(file, "utf-8"))
    table = pd.DataFrame(np.array(rows, dtype=float), columns=names)
    return table.assign(gene=np.arange(len(rows)))


def trained(table: pd.DataFrame, labels: list[str], seed: int) -> dict[str, Any]:
    """Label -> model -> AUC on test rows; seconds, bytes and messages of the run."""
    tests = np.random.default_rng(seed).permutation(len(table))[-len(table) // 4 :]
    split = np.where(np.isin(np.arange(len(table)), tests), "test", "train")
    simulation = dt.simulate(
        table[["gene", *PROFILES, *EXPRESSION, *labels]].assign(split=split),
        dt.Columns({"profiles": PROFILES, "arrays": EXPRESSION}, active="profiles"),
        id="gene",
        label=labels if len(labels) > 1 else labels[0],
        split_column="split",
        labels=LABELLED,
    )
    started = time.perf_counter()
    run = dt.fit(dt.APFed(), simulation, seeds=[seed], quiet=True)
    seconds = time.perf_counter() - started
    result, aucs = run.result, dict[str, dict[str, float]]()
    for what, name in MODELS.items():
        scores = {} if name == result["method"] else result["baselines"].get(name, {})
        scores = scores or result["parties"]["profiles"]
        details = result["variants"]["apfed"]["details"][name]["profiles"]
        each = details.get("labels") or {labels[0]: scores}
        for label in labels:
            aucs.setdefault(label, {})[what] = each[label]["auc"]
    gates = result["distilled"].get("labels") or {labels[0]: result["distilled"]}
    ledger = (run.folder / "ledger.jsonl").read_text().splitlines()
    sent = [each for each in map(json.loads, ledger) if each["message"].startswith("sealed.")]
    return {
        "auc": aucs,
        "helped": [name for name, gate in gates.items() if gate["pays"]],
        "seconds": seconds,
        "bytes": sum(each["bytes"] for each in sent),
        "messages": sum(each["count"] for each in sent),
    }


def merged(each: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of several runs."""
    return {
        "auc": {label: aucs for one in each for label, aucs in one["auc"].items()},
        "helped": [name for one in each for name in one["helped"]],
        **{key: sum(one[key] for one in each) for key in ("seconds", "bytes", "messages")},
    }


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds: a row a way, and, of all at once, a row a label."""
    rows = []
    for way in ("at once", "one by one"):
        own = [line for line in lines if line["way"] == way]
        every = [auc for line in own for auc in line["auc"].values()]
        rows.append(
            {
                "what": f"all labels, {way}",
                **_means(every),
                "helped": statistics.fmean(len(line["helped"]) for line in own),
                "messages": own[0]["messages"],
                "MB": statistics.fmean(line["bytes"] / 1e6 for line in own),
                "seconds": statistics.fmean(line["seconds"] for line in own),
            }
        )
    own = [line for line in lines if line["way"] == "at once"]
    for label in LABELS:
        helped = sum(label in line["helped"] for line in own)
        means = _means([line["auc"][label] for line in own])
        empty = dict.fromkeys(("messages", "MB", "seconds"), "")
        rows.append({"what": label, **means, "helped": helped, **empty})
    return rows


def _means(aucs: list[dict[str, float]]) -> dict[str, float]:
    return {what: statistics.fmean(100 * auc[what] for auc in aucs) for what in MODELS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = genes(given.wheel)

    def run(seed: int, way: str) -> dict[str, Any]:
        if way == "at once":
            return trained(table, LABELS, seed)
        return merged([trained(table, [label], seed) for label in LABELS])

    ways = itertools.product(range(given.seeds), ("at once", "one by one"))
    lines = _results.resumed(RESULTS, ({"seed": seed, "way": way} for seed, way in ways), run)
    _results.write(
        "several_labels", "AUC in % of fourteen labels, at once and one by one", summary(lines)
    )


if __name__ == "__main__":
    main()
