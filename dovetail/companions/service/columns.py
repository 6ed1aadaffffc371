"""Raw columns and images to network inputs, inside an ONNX graph.

An input a column, (rows, 1): a number as double, where NaN is missing; a category as string,
where "" and "?" are missing; of a text its vector as float, and 1 where it is missing. The
arithmetic is that of ``TableEncoder``, in its precision.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from dovetail.companions.service.graph import Graph
from dovetail.data.fitted import CategoryColumn, Limits, NumberColumn
from dovetail.data.images import ImageInput, ImageRegion
from dovetail.data.preprocessing import FittedColumn, TableEncoder
from dovetail.data.vectors import VectorColumn

_ML = "ai.onnx.ml"
#: What stands for "no value" in a column of categories.
MISSING_TEXTS = ("", "?")
#: Beyond every number.
_MOST = float(np.finfo(np.float64).max)


def table_features(graph: Graph, encoder: TableEncoder) -> str:
    """(B, F) float32 features of an encoder's columns; two encoders may share an input."""
    numbers = [each for each in encoder.fitted if isinstance(each, NumberColumn)]
    parts: list[str] = []
    flagged = [index for index, each in enumerate(numbers) if each.flag]
    rounds = [(index, period) for index, each in enumerate(numbers) for period in each.periods]
    if numbers:
        standardised, filled, missing = _numbers(graph, numbers)
        parts.append(standardised)
        if rounds:
            parts += _rounds(graph, filled, rounds)
        if flagged:
            parts.append(graph.node("Gather", missing, graph.constant(flagged, np.int64), axis=1))
    # All numbers stand first, then waves and flags: one product each. Their order is
    # mended below.
    first_flag = len(numbers) + 2 * len(rounds)
    width, number, turn = first_flag + len(flagged), 0, 0
    indices_F: list[int] = []
    for each in encoder.fitted:
        if isinstance(each, NumberColumn):
            indices_F.append(number)
            for _ in each.periods:
                indices_F += [len(numbers) + turn, len(numbers) + len(rounds) + turn]
                turn += 1
            if each.flag:
                indices_F.append(first_flag + flagged.index(number))
            number += 1
        else:
            if isinstance(each, VectorColumn):
                parts += _vector(graph, each)
            else:
                parts += _categories(graph, each)
            indices_F += range(width, width + len(each.feature_names))
            width += len(each.feature_names)
    features = parts[0] if len(parts) == 1 else graph.node("Concat", *parts, axis=1)
    if indices_F != list(range(width)):
        features = graph.node("Gather", features, graph.constant(indices_F, np.int64), axis=1)
    if not encoder.may_lack:
        return features
    lacks = _is_missing(graph, encoder.fitted[0])
    for each in encoder.fitted[1:]:
        lacks = graph.node("And", lacks, _is_missing(graph, each))
    return graph.node("Where", lacks, graph.constant(np.nan, np.float32), features)


def _is_missing(graph: Graph, column: FittedColumn) -> str:
    """(B, 1) whether a row has no value."""
    if isinstance(column, NumberColumn):
        return graph.node("IsNaN", _input(graph, column.name, TensorProto.DOUBLE))
    if isinstance(column, VectorColumn):
        last = graph.node("Gather", _vector_input(graph, column), _axis(graph, -1), axis=1)
        return graph.node("Greater", last, graph.constant(0.5, np.float32))
    raw = _input(graph, column.name, TensorProto.STRING)
    return graph.node(
        "Or", *(graph.node("Equal", raw, graph.constant([[t]], object)) for t in MISSING_TEXTS)
    )


def _numbers(graph: Graph, columns: list[NumberColumn]) -> tuple[str, str, str]:
    """(B, K) float32 standardised numbers, these filled as float64, and whether each is missing."""
    inputs = [_input(graph, each.name, TensorProto.DOUBLE) for each in columns]
    raw = inputs[0] if len(inputs) == 1 else graph.node("Concat", *inputs, axis=1)
    missing = graph.node("IsNaN", raw)

    def row(values: list[float]) -> str:
        return graph.constant([values], np.float64)

    filled = graph.node("Where", missing, row([each.median for each in columns]), raw)
    limits = [each.limits or Limits(-_MOST, _MOST) for each in columns]
    filled = graph.node("Max", filled, row([each.low for each in limits]))
    filled = graph.node("Min", filled, row([each.high for each in limits]))
    centred = graph.node("Sub", filled, row([each.mean for each in columns]))
    scaled = graph.node("Div", centred, row([each.scale for each in columns]))
    return graph.cast(scaled), filled, graph.cast(missing)


def _rounds(graph: Graph, filled: str, rounds: list[tuple[int, float]]) -> list[str]:
    """(B, K) float32 of both waves of dates that come round."""
    dates = graph.node("Gather", filled, graph.constant([i for i, _ in rounds], np.int64), axis=1)
    periods = graph.constant([[period for _, period in rounds]], np.float64)
    one, half, four = (graph.constant(number, np.float64) for number in (1.0, 0.5, 4.0))
    rest = graph.node("Add", graph.node("Mod", dates, periods, fmod=1), periods)
    part = graph.node("Div", graph.node("Mod", rest, periods, fmod=1), periods)
    waves = []
    for shift in (0.0, 0.25):
        moved = graph.node("Add", part, graph.constant(shift, np.float64))
        away = graph.node("Abs", graph.node("Sub", graph.node("Mod", moved, one, fmod=1), half))
        waves.append(graph.cast(graph.node("Sub", graph.node("Mul", away, four), one)))
    return waves


def _vector(graph: Graph, column: VectorColumn) -> list[str]:
    """(B, features) of a column of which a value becomes several."""
    raw = _vector_input(graph, column)
    if column.flag:
        return [raw]
    return [graph.node("Gather", raw, _axis(graph, *range(column.how.size)), axis=1)]


def _vector_input(graph: Graph, column: VectorColumn) -> str:
    if column.name in graph.inputs:
        return column.name
    return graph.input(column.name, TensorProto.FLOAT, [column.how.size + 1])


def _axis(graph: Graph, *indices: int) -> str:
    return graph.constant([*indices], np.int64)


def _categories(graph: Graph, column: CategoryColumn) -> list[str]:
    """(B, categories), and (B, 1) for "is another" and "is missing"."""
    raw = _input(graph, column.name, TensorProto.STRING)
    known = graph.node(
        "OneHotEncoder", raw, domain=_ML, cats_strings=list(column.categories), zeros=1
    )
    shape = graph.constant([-1, len(column.categories)], np.int64)
    known = graph.node("Reshape", known, shape)
    if not column.other and not column.flag:
        return [known]
    axes = graph.constant([1], np.int64)
    one = graph.constant(1.0, np.float32)
    none = graph.node("Sub", one, graph.node("ReduceSum", known, axes, keepdims=1))
    if not column.other:
        return [known, none]  # a category that training did not see counts as missing
    missing = graph.cast(_is_missing(graph, column))
    return [known, graph.node("Sub", none, missing), *[missing] * column.flag]


def _input(graph: Graph, name: str, kind: int) -> str:
    return name if name in graph.inputs else graph.input(name, kind, [1])


def image_features(graph: Graph, image: ImageInput, name: str, *, floats: bool) -> str:
    """(B, C, H, W) float32 of the part of whole images that a block is."""
    whole = (image.channels, image.height, image.width)
    raw = name
    if name not in graph.inputs:
        graph.input(name, TensorProto.FLOAT if floats else TensorProto.UINT8, whole)
    starts, stops = [0, 0, 0], list(whole)
    side = 1 if image.axis == "height" else 2
    starts[side], stops[side] = image.start, image.stop
    if isinstance(image, ImageRegion):
        starts = [image.first_channel, image.start, image.left]
        stops = [image.end_channel, image.stop, image.right]
    if (starts, stops) != ([0, 0, 0], list(whole)):
        raw = graph.node(
            "Slice",
            raw,
            graph.constant(starts, np.int64),
            graph.constant(stops, np.int64),
            graph.constant([1, 2, 3], np.int64),
        )
    if floats:
        return raw
    return graph.node("Div", graph.cast(raw), graph.constant(255.0, np.float32))
