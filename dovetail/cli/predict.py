"""``dovetail predict``: a saved model and raw data in, classes and probabilities out."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dovetail import data as dd
from dovetail.cli.setup import device as device_named
from dovetail.errors import DataError, ModelError
from dovetail.evaluation import score
from dovetail.models import Model, load


def run_predict(
    folder: Path,
    source: Path,
    *,
    out: Path | None,
    id_column: str | None,
    allow_unseen: bool,
    quiet: bool,
    as_json: bool,
    device: str | None,
) -> None:
    """Predict every row of ``source`` and write the table."""
    model = load(_model_folder(folder))
    if device is not None:
        target = device_named(device)
        model.encoder.to(target)
        model.head.to(target)
    ids, x, labels = _read(model, source, id_column, allow_unseen=allow_unseen)
    prediction = model.predict(x)
    label = str(model.about.get("label", "prediction"))
    columns: dict[str, np.ndarray] = {id_column or "row": ids, label: prediction.values}
    if prediction.probabilities is not None:
        for place, name in enumerate(prediction.classes):
            columns[f"p({name})"] = prediction.probabilities[:, place].astype(np.float64)
    if out is not None:
        dd.write_table(out, columns)
        if not (quiet or as_json):
            print(f"{len(ids)} rows predicted: {out}", file=sys.stderr)
    elif not as_json:
        _print_csv(columns)
    scores = None
    if labels is not None and not labels.missing.any():
        scores = _scores(model, x, labels, label)
        if scores is not None and not (quiet or as_json):
            shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            print(f"against the column {label!r}: {shown}", file=sys.stderr)
    if as_json:
        _print_json(columns, scores, out)


def _model_folder(folder: Path) -> Path:
    """The folder itself, or the only model of a run's folder."""
    if (folder / "model.json").exists():
        return folder
    models = sorted(path.parent for path in folder.glob("models/*/model.json"))
    models = models or sorted(path.parent for path in folder.glob("seed-*/models/*/model.json"))
    if len(models) == 1:
        return models[0]
    if models:
        raise ModelError(f"{folder} has {len(models)} models; name one, for example {models[0]}")
    return folder


def _read(
    model: Model, source: Path, id_column: str | None, *, allow_unseen: bool
) -> tuple[np.ndarray, Tensor, dd.Column | None]:
    """Ids, network inputs and, where the data have it, the label."""
    if isinstance(model.input, dd.TableEncoder):
        table = dd.read_table(source)
        x = model.input.transform(table, allow_unseen=allow_unseen)
        label = model.about.get("label")
        labels = table.column(label) if label in table.names else None
        if id_column is None:
            return np.arange(len(x)), x, labels
        ids = table.column(id_column)
        if ids.missing.any():
            raise DataError(f"{source}: {ids.missing.sum()} rows have no {id_column!r}")
        return ids.values, x, labels
    if isinstance(model.input, dd.ImageInput):
        images = dd.read_images(source)
        part = images.test or images.train
        labels = dd.Column(part.labels, np.zeros(len(part.labels), dtype=bool))
        try:
            x = model.input.transform(part.x)
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
        return np.arange(len(x)), x, labels
    raise ModelError(
        f"the model of party {model.party!r} was saved without its input columns; "
        "use dovetail.load(folder).predict(tensor) from Python"
    )


def _scores(model: Model, x: Tensor, labels: dd.Column, label: str) -> dict[str, float] | None:
    """Scores against the label; None, with a note, where it is another than was trained on."""
    if isinstance(model.task, dd.Regression) and labels.is_text:
        print(f"dovetail: not scored: label {label!r} is text, not numbers", file=sys.stderr)
        return None
    try:
        truth = dd.encode_labels(model.task, labels.values, labels.missing, label=label)
    except DataError as error:
        print(f"dovetail: not scored: {error}", file=sys.stderr)
        return None
    return score(model.task, model.outputs(x), truth)


def _print_csv(columns: dict[str, np.ndarray]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_rounded(values) for values in columns.values()), strict=True))


def _print_json(
    columns: dict[str, np.ndarray], scores: dict[str, float] | None, out: Path | None
) -> None:
    result: dict[str, Any] = {"rows": len(next(iter(columns.values())))}
    if out is not None:
        result["out"] = str(out)
    else:
        result["columns"] = {name: values.tolist() for name, values in columns.items()}
    if scores is not None:
        result["scores"] = scores
    print(json.dumps(result))


def _rounded(values: np.ndarray) -> list[Any]:
    if values.dtype.kind == "f":
        return [f"{value:.6g}" for value in values.tolist()]
    return list(values.tolist())
