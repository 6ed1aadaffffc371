"""Boosted trees walked by Dovetail, beside LightGBM's own predictor on the same trees.

    DOVETAIL_DATA=... python -m benchmarks.trees

``Boosting`` with its defaults, on 8,000 rows of each table; its five models, one after the other,
answer so many rows of it in a call, on one thread. Dovetail reads the trees' text itself, since
LightGBM ends its process at a text that was tampered with; LightGBM gets the checked one. The two
take turns; microseconds a row are of the processor, the ratio is that of the medians. "reading" is
of all five, before the first row. A single row of a server goes through neither
(``benchmarks/results/serve.md``).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import _results
from benchmarks._turns import medians
from benchmarks.export import TABLES, table_of
from dovetail import data as dd
from dovetail.models import lightgbm_core as lightgbm
from dovetail.models.learners import Boosting
from dovetail.models.learners.boosting_model import BoostedTrees
from dovetail.models.learners.rows import Rows, make_folds
from dovetail.models.losses import loss_of, targets_of

NAMES, LABELLED = ("adult", "credit", "covertype"), 8000
#: Rows of a call, and how often it is made.
CALLS = {1: 300, 64: 100, 1024: 20, 16_384: 5}
#: Of LightGBM's time, from 64 rows on.
MOST = 1.5


def fitted(name: str) -> tuple[list[BoostedTrees], Tensor]:
    """The folds' models of a table's label, and the features of all its rows."""
    _, label, _, left_out = TABLES[name]
    table = table_of(name)
    target = table.column(label)
    task = dd.fit_task(target.values, target.missing, kind="classification", label=label)
    columns = [each for each in table.names if each not in (label, *left_out)]
    x_NF = dd.TableEncoder.fit(table, columns, party="reader").transform(table)
    y_N = dd.encode_labels(task, target.values, target.missing, label=label)[:LABELLED]
    rows = Rows(
        x_NF[:LABELLED], targets_of(task, y_N), make_folds(y_N, 5, seed=0), loss=loss_of(task)
    )
    network = Boosting().fit(rows, seed=0).network
    return [each for each in network.modules() if isinstance(each, BoostedTrees)], x_NF


def measured(name: str) -> list[dict[str, Any]]:
    """A row of each number of rows."""
    trees, x_NF = fitted(name)
    began = time.process_time()
    forests = [each.forest() for each in trees]
    reading_s = time.process_time() - began
    boosters = [lightgbm.Booster(model_str=each.checked_text()) for each in trees]
    table = []
    for num_rows, calls in CALLS.items():
        x = x_NF[torch.arange(num_rows) % len(x_NF)]

        def ours(x: Tensor = x) -> list[Tensor]:
            with torch.no_grad():
                return [each(x) for each in trees]

        def theirs(x: Tensor = x) -> list[np.ndarray]:
            options: dict[str, Any] = {"raw_score": True, "num_threads": 1}
            raw = [each.predict(x.numpy(), **options) for each in boosters]
            return [np.asarray(each, dtype=np.float32) for each in raw]

        same = all(
            np.array_equal(found[:, -each.start_S.shape[0] :].numpy(), start)
            for each, found, raw in zip(trees, ours(), theirs(), strict=True)
            for start in [raw.reshape(len(x), -1) + each.start_S.numpy()]
        )
        seconds = medians({"ours": ours, "theirs": theirs}, calls, first=3)
        table.append(
            {
                "table": name,
                "trees": sum(len(each.roots_T) for each in forests),
                "leaves": sum(len(each.leaves) - 1 for each in forests),
                "rows": num_rows,
                "dovetail us a row": seconds["ours"] / num_rows * 1e6,
                "LightGBM us a row": seconds["theirs"] / num_rows * 1e6,
                "ratio": seconds["ours"] / seconds["theirs"],
                "at most": MOST if num_rows > 1 else "-",
                "same to the last bit": "yes" if same else "no",
                "reading ms": 1000 * reading_s,
            }
        )
    return table


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    reported = [row for name in NAMES for row in measured(name)]
    _results.write("trees", "Boosted trees beside LightGBM's predictor, the same trees", reported)


if __name__ == "__main__":
    main()
