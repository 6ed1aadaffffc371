"""A model's folder to one ONNX file: raw columns in; class and probabilities, or value, out.

The preprocessing is in the graph, so that whoever runs the file needs nothing of Dovetail. What
was written is checked against the model on rows made of its training columns' statistics, and on
rows that are given, before the file is put in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data import kinds
from dovetail.data.fitted import CategoryColumn, NumberColumn
from dovetail.data.images import ImageInput
from dovetail.data.tables import InMemory
from dovetail.errors import ConfigError, ModelError
from dovetail.lazy import needed
from dovetail.models import Model
from dovetail.models.calibration import calibration_of
from dovetail.models.exported import FORMAT, IMAGES, METADATA, OnnxModel, of_bytes
from dovetail.models.learners.joint import JointSpec, WithPartners
from dovetail.models.owners import TopSpec
from dovetail.models.prediction import Prediction
from dovetail.models.raw import read_rows
from dovetail.models.saved import Raw

#: How far the file may be from the model: in a probability, or in standard deviations of the label.
TOLERANCE = 1e-5
_CHECKED = 64


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        path: the file.
        bytes: its size.
        inputs: its inputs' names.
        rows: how many it was checked on.
        difference: the furthest that it was from the model.
    """

    path: Path
    bytes: int
    inputs: tuple[str, ...]
    rows: int
    difference: float


def export(
    model: Model,
    out: str | Path,
    *,
    check: Raw | None = None,
    blocks: Sequence[str] = (),
) -> Exported:
    """Write a model as an ONNX file; an older one there is replaced.

    Args:
        model: one that predicts alone; of a joint one its solo model.
        out: the file; its name ends in ".onnx".
        check: rows to compare on besides those made up.
        blocks: of a model that predicts from some of its blocks: those that the file reads.

    Raises:
        ModelError: a model that does not predict alone, or a file that differs from it.
        ConfigError: a name that does not end in ".onnx", or packages that are not installed.
        DataError: rows to check that do not fit.
    """
    out = Path(out)
    if out.suffix.lower() != ".onnx":
        raise ConfigError(f"an ONNX file's name ends in .onnx, got {out}")
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.parent}; make it first")
    alone = solo_of(model, blocks)
    floats = check is not None and _has_float_images(alone, check)
    content = onnx_bytes(alone, floats=floats)
    written = of_bytes(content, where=str(out), ours=True)
    rows, difference = _compared(alone, written, _made_up(alone, floats=floats))
    if check is not None:
        given = read_rows(alone, check, allow_unseen=True).x
        more, further = _compared(alone, written, (given, written.feeds_of(check)))
        rows, difference = rows + more, max(difference, further)
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    names = tuple(each.name for each in written.session.get_inputs())
    return Exported(out, len(content), names, rows, difference)


def solo_of(model: Model, blocks: Sequence[str] = ()) -> Model:
    """The model that needs nobody else: itself, or of a joint one the solo model.

    Raises:
        ModelError: one that needs others, or has no such blocks.
    """
    if isinstance(model.spec, JointSpec):
        assert isinstance(model.network, WithPartners)
        block = model.spec.block
        return replace(
            model,
            network=model.network.solo,
            spec=model.spec.solo,
            shapes={block: model.shapes[block]},
            inputs={block: model.inputs[block]} if block in model.inputs else {},
        )
    if isinstance(model.spec, TopSpec):
        raise ModelError(
            f"the model of party {model.party!r} predicts from what data owners answer, not alone; "
            "give a folder with the data owners' networks beside it"
        )
    if not blocks:
        return model
    unknown = [name for name in blocks if name not in model.shapes]
    if unknown or not model.any_blocks:
        raise ModelError(
            f"the model of party {model.party!r} has the blocks {list(model.shapes)}"
            f"{'' if model.any_blocks else ' and needs all of them'}, got {list(blocks)}"
        )
    kept = [name for name in model.shapes if name in blocks]
    return replace(
        model,
        shapes={name: model.shapes[name] for name in kept},
        inputs={name: each for name, each in model.inputs.items() if name in kept},
    )


def onnx_bytes(model: Model, *, floats: bool = False) -> bytes:
    """The ONNX file of a model that predicts alone.

    Args:
        model: see ``standing_alone``.
        floats: images come as float32, not as bytes.

    Raises:
        ModelError: a network that cannot be translated.
        ConfigError: packages that are not installed.
    """
    with needed("exporting", "'dovetail-fl[export]'"):
        import onnx
        import onnxscript  # noqa: F401  # torch.onnx needs it

        from dovetail.companions.service.columns import image_features, table_features
        from dovetail.companions.service.graph import (
            Graph,
            calibrated,
            network_nodes,
            survival_nodes,
        )
    graph = Graph()
    blocks = {}
    for name, shape in model.shapes.items():
        how = model.inputs.get(name)
        if isinstance(how, dd.TableEncoder):
            blocks[name] = table_features(graph, how)
        elif isinstance(how, ImageInput):
            blocks[name] = image_features(graph, how, IMAGES, floats=floats)
        else:
            blocks[name] = graph.input(name or "x", onnx.TensorProto.FLOAT, shape)
    outputs = network_nodes(
        graph,
        model.network.eval().cpu(),
        blocks,
        dict(model.shapes),
    )
    first = _output_name("prediction", graph.inputs)
    if isinstance(model.task, dd.Classification):
        probabilities = calibrated(graph, calibration_of(model.about), outputs)
        classes = np.array(model.task.classes)
        is_number = classes.dtype.kind in "iu"
        names = graph.constant(classes, np.int64 if is_number else object)
        if model.decision is not None and len(classes) == 2:
            second = graph.node("Gather", probabilities, graph.constant(1, np.int64), axis=1)
            wide = graph.cast(second, onnx.TensorProto.DOUBLE)
            least = graph.constant(model.decision.threshold, np.float64)
            best = graph.cast(graph.node("GreaterOrEqual", wide, least), onnx.TensorProto.INT64)
        else:
            best = graph.node("ArgMax", probabilities, axis=1, keepdims=0)
        kind = onnx.TensorProto.INT64 if is_number else onnx.TensorProto.STRING
        program = graph.model(
            [
                (graph.node("Gather", names, best), first, kind, []),
                (
                    probabilities,
                    _output_name("probabilities", graph.inputs),
                    onnx.TensorProto.FLOAT,
                    [len(classes)],
                ),
            ]
        )
    elif isinstance(model.task, dd.Survival):
        program = graph.model(survival_nodes(graph, model.task, outputs, first))
    elif isinstance(model.task, (dd.Counts, dd.Quantiles, dd.MultiLabel, dd.MultiTarget)):
        kept = (outputs, first, onnx.TensorProto.FLOAT, [model.task.num_outputs])
        program = graph.model([kept])
    else:
        wide = graph.cast(outputs, onnx.TensorProto.DOUBLE)
        scaled = graph.node("Mul", wide, graph.constant(model.task.scale, np.float64))
        moved = graph.node("Add", scaled, graph.constant(model.task.mean, np.float64))
        value = graph.node("Squeeze", moved, graph.constant([1], np.int64))
        program = graph.model([(value, first, onnx.TensorProto.DOUBLE, [])])
    metadata = {
        "format": FORMAT,
        "party": model.party,
        **model.about,
        "task": model.task.to_json(),
        "blocks": {
            name: {
                "shape": list(shape),
                "input": model.inputs[name].to_json() if name in model.inputs else None,
            }
            for name, shape in model.shapes.items()
        },
    }
    onnx.helper.set_model_props(program, {METADATA: json.dumps(metadata)})
    onnx.checker.check_model(program)
    content: bytes = program.SerializeToString()
    return content


def _output_name(name: str, inputs: Sequence[str]) -> str:
    """The name, or one like it where a column has it."""
    while name in inputs:
        name = f"dovetail_{name}"
    return name


# --- Checked --------------------------------------------------------------------------------------


def _compared(
    model: Model, written: OnnxModel, rows: tuple[Mapping[str, Tensor], Mapping[str, np.ndarray]]
) -> tuple[int, float]:
    """How many rows, and the furthest difference.

    Raises:
        ModelError: it is beyond the tolerance.
    """
    x, feeds = rows
    difference = apart(model, model.predictions(x), written.run(feeds))
    if not difference <= TOLERANCE:
        raise ModelError(
            f"the ONNX file differs from the model of party {model.party!r} by {difference:.2g} "
            f"on a row it was checked on, expected no more than {TOLERANCE:g}; it was not written"
        )
    return len(next(iter(feeds.values()))), difference


def apart(model: Model, one: Prediction, other: Prediction) -> float:
    """The largest difference of a probability, or of a value in deviations of the label."""
    if isinstance(model.task, dd.Classification):
        assert one.probabilities is not None
        assert other.probabilities is not None
        far = np.abs(one.probabilities - other.probabilities).max(initial=0.0)
        # Of two classes that are as likely, or at the threshold, either may be said.
        if model.decision is not None and len(model.classes) == 2:
            sure = np.abs(one.probabilities[:, 1] - model.decision.threshold) > TOLERANCE
        else:
            top = np.sort(one.probabilities, axis=1)
            sure = top[:, -1] - top[:, -2] > 2 * TOLERANCE
        if (one.values.astype(str)[sure] != other.values.astype(str)[sure]).any():
            return float("inf")
        return float(far)
    if isinstance(model.task, dd.Survival):
        return max(
            float(np.abs(one.named[name] - other.named[name]).max(initial=0.0))
            for name in one.named
            if name != "risk"
        )
    if isinstance(model.task, dd.MultiLabel):
        assert one.probabilities is not None
        assert other.probabilities is not None
        return float(np.abs(one.probabilities - other.probabilities).max(initial=0.0))
    scale: Any = model.task.scale
    if isinstance(model.task, dd.Counts):
        scale = float(np.abs(one.values).mean())
    elif isinstance(model.task, dd.MultiTarget):
        scale = np.array(model.task.scales)
    far = np.abs(one.values - other.values) / np.maximum(scale, np.abs(one.values))
    return float(far.max(initial=0.0))


def _made_up(
    model: Model, *, floats: bool
) -> tuple[Mapping[str, Tensor], Mapping[str, np.ndarray]]:
    """Rows around the training columns' means, with missing and unseen values; whole images."""
    rng = np.random.default_rng(0)
    x: dict[str, Tensor] = {}
    feeds: dict[str, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {}
    schema: dict[str, dd.Reading] = {}
    for encoder in model.inputs.values():
        if isinstance(encoder, dd.TableEncoder):
            arrays |= made_up_columns(encoder, _CHECKED, rng)
            schema |= encoder.schema
    table = _as_read(arrays, schema) if arrays else None
    for name, shape in model.shapes.items():
        how = model.inputs.get(name)
        if isinstance(how, dd.TableEncoder):
            assert table is not None
            x[name] = how.transform(table, allow_unseen=True)
            feeds |= {column: values[:, None] for column, values in how.raw(table).items()}
        elif isinstance(how, ImageInput):
            size = (_CHECKED, how.channels, how.height, how.width)
            if IMAGES not in feeds:
                pixels = rng.integers(0, 256, size, dtype=np.uint8)
                feeds[IMAGES] = (pixels / 255).astype(np.float32) if floats else pixels
            x[name] = how.transform(torch.from_numpy(feeds[IMAGES]))
        else:
            feeds[name or "x"] = rng.normal(size=(_CHECKED, *shape)).astype(np.float32)
            x[name] = torch.from_numpy(feeds[name or "x"])
    return x, feeds


def _as_read(arrays: Mapping[str, np.ndarray], schema: Mapping[str, dd.Reading]) -> dd.Table:
    """Values as they are once they are read: dates are days."""
    columns = {
        name: replace(kinds.stored(each), reading=schema[name]) for name, each in arrays.items()
    }
    num_rows = len(next(iter(arrays.values())))
    return dd.Table("rows made up", tuple(columns), num_rows, InMemory(columns.__getitem__))


def made_up_columns(
    encoder: dd.TableEncoder, num_rows: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Column -> raw values such as training had, some of them missing and some unseen."""
    arrays: dict[str, np.ndarray] = {}
    for column in encoder.fitted:
        if isinstance(column, CategoryColumn):
            known = [*column.categories, None, "never seen in training"]
            arrays[column.name] = np.array(rng.choice(len(known), num_rows))
            arrays[column.name] = np.array(known, dtype=object)[arrays[column.name]]
            continue
        if not isinstance(column, NumberColumn):
            words = np.array(["", "", "something", "written", "of", "the", "rows"], dtype=object)
            drawn = words[rng.integers(0, len(words), (num_rows, 5))]
            arrays[column.name] = np.array([" ".join(row).strip() or None for row in drawn], object)
            continue
        values = rng.normal(column.mean, 1.5 * column.scale, num_rows)
        values[rng.random(num_rows) < 0.1] = np.nan
        arrays[column.name] = values
    if encoder.may_lack:  # one row in eight has none of them
        for values in arrays.values():
            values[::8] = None if values.dtype == object else np.nan
    return arrays


def _has_float_images(model: Model, check: Raw) -> bool:
    if not any(isinstance(each, ImageInput) for each in model.inputs.values()):
        return False
    images: Any = dd.read_images(Path(str(check)))
    pixels: Tensor = (images.test or images.train).x
    return pixels.dtype != torch.uint8
