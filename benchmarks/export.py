"""Exported files beside the models they are of: difference, size, rows a second.

``DOVETAIL_DATA=... python -m benchmarks.export`` fits each learner on 500 rows of each table in a
few steps, and gives the networks of the other methods random weights (what they say does not matter
here, only that the file says the same); then compares on up to 20,000 rows of the table.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks._results import FOLDER, write
from dovetail import data as dd
from dovetail.companions.service.export import TOLERANCE, apart, export
from dovetail.data.frames import table_from_frame
from dovetail.data.tables import Table
from dovetail.models import Model
from dovetail.models.blocks import BlocksSpec
from dovetail.models.columns import ColumnsSpec
from dovetail.models.exported import load_onnx
from dovetail.models.learners import Boosting, Learner, Linear, Network, StackedConfig
from dovetail.models.learners.boosting import FEW_ROWS
from dovetail.models.learners.rows import Rows, first_fold_only, make_folds
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.networks import Head, Perceptron
from dovetail.models.specs import EncoderHead

DATA = Path(os.environ.get("DOVETAIL_DATA", "data"))
ROWS, LABELLED = 20_000, 500
PARTIAL = FOLDER / "export.partial.jsonl"

#: Of each kind, as little training as makes one.
SHORT: tuple[Learner, ...] = (
    Linear(max_iterations=50),
    Boosting(trees=FEW_ROWS[:1], max_rounds=50, max_trees=200),
    Network(StackedConfig(max_steps=50)),
)

#: Table -> file, label, a label that is a number, columns that are none.
TABLES = {
    "adult": ("adult", "income", "hours-per-week", ("split",)),
    "credit": ("default_credit", "default.payment.next.month", "LIMIT_BAL", ("ID",)),
    "bank": ("bank_marketing", "y", "balance", ()),
    "covertype": ("covertype", "Cover_Type", "Elevation", ()),
    "digits": ("", "digit", "pixel_3_3", ()),
    "cub": ("cub_views", "label", "image_0", ("id",)),
}


@cache
def table_of(name: str) -> Table:
    """A table of this benchmark, in memory: what is timed reads no file."""
    file, *_ = TABLES[name]
    if file:
        frame = pd.read_parquet(DATA / f"{file}.parquet")
    else:
        digits = load_digits()
        frame = pd.DataFrame({f"pixel_{at // 8}_{at % 8}": digits.data[:, at] for at in range(64)})
        frame["digit"] = digits.target
    return table_from_frame(frame.sample(min(ROWS, len(frame)), random_state=0))


def models(name: str) -> Iterator[tuple[str, Model]]:
    """What is exported of a table, by the name of its kind."""
    _, label, number, left_out = TABLES[name]
    table = table_of(name)
    train = table.take(torch.arange(min(LABELLED, table.num_rows)).numpy())
    kinds: dict[str, dd.Kind] = {label: "classification", number: "regression"}
    for target, task_kind in kinds.items():
        regression = task_kind == "regression"
        values = table.column(target)
        task = dd.fit_task(
            values.values,
            values.missing,
            kind="regression" if regression else "classification",
            label=target,
        )
        columns = [each for each in table.names if each not in (target, label, *left_out)]
        encoder = dd.TableEncoder.fit(table, columns, party="reader")
        x_NF = encoder.transform(train)
        target_column = train.column(target)
        y_N = dd.encode_labels(task, target_column.values, target_column.missing, label=target)
        width = encoder.num_features

        def model(network: nn.Module, spec: Any, *, blocks: bool = False) -> Model:
            inputs, shapes = {"columns": encoder}, {"columns": (width,)}  # noqa: B023
            if blocks:
                halves = (columns[::2], columns[1::2])  # noqa: B023
                inputs = {
                    f"block-{at}": dd.TableEncoder.fit(table, half, party="reader")
                    for at, half in enumerate(halves)
                }
                shapes = {block: (each.num_features,) for block, each in inputs.items()}
            return Model("reader", task, network.eval(), spec, shapes, inputs, {"label": target})  # noqa: B023

        folds_N = first_fold_only(make_folds(y_N, 4, seed=0, regression=regression))
        rows = Rows(x_NF, targets_of(task, y_N), folds_N, loss=loss_of(task))
        for learner in SHORT:
            fitted = learner.fit(rows, seed=0)
            kind = f"APFed-D, {learner.name}{', a number' if regression else ''}"
            yield kind, model(fitted.network, fitted.spec)
        torch.manual_seed(0)
        head = EncoderHead(Perceptron((64, 32)), Head((64,)), (width,), task.num_outputs)
        yield f"APFed-R and -C{', a number' if regression else ''}", model(head.build(), head)
        if not regression:
            half = width // 2
            chfl = ColumnsSpec(
                tuple(range(half)), tuple(range(half, width)), (32, 16), task.num_outputs
            )
            yield "CHFL", model(chfl.build(), chfl)
        widths = [
            dd.TableEncoder.fit(table, columns[at::2], party="reader").num_features for at in (0, 1)
        ]
        hyfem = BlocksSpec(
            ("block-0", "block-1"),
            ((widths[0],), (widths[1],)),
            (Perceptron((32,)), Perceptron((32,))),
            (64,),
            task.num_outputs,
        )
        kind = f"HyFEM{', a number' if regression else ''}"
        yield kind, model(hyfem.build(), hyfem, blocks=True)


def measured(name: str, kind: str, model: Model) -> dict[str, Any]:
    """One line of the table."""
    table = table_of(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        size = export(model, path).bytes
        written = load_onnx(path)
        began = time.perf_counter()
        expected = model.predictions(table)
        predict_s = time.perf_counter() - began
        feeds = written.feeds(table)
        began = time.perf_counter()
        found = written.run(feeds)
        run_s = time.perf_counter() - began
    difference = apart(model, expected, found)
    assert difference <= TOLERANCE, (name, kind, difference)
    return {
        "table": name,
        "model": kind,
        "rows": table.num_rows,
        "difference": f"{difference:.1e}",
        "KB": round(size / 1000, 1),
        "predict, rows a second": round(table.num_rows / predict_s),
        "onnxruntime, rows a second": round(table.num_rows / run_s),
    }


def main() -> None:
    done = []
    if PARTIAL.exists():
        done = [json.loads(line) for line in PARTIAL.read_text().splitlines()]
    for name in TABLES:
        if sum(each["table"] == name for each in done) == 11:
            continue
        done = [each for each in done if each["table"] != name]
        done += [measured(name, kind, model) for kind, model in models(name)]
        PARTIAL.write_text("".join(json.dumps(each) + "\n" for each in done))
    write("export", "Exported files beside their models", done)
    PARTIAL.unlink()


if __name__ == "__main__":
    main()
