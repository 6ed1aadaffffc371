"""Raw columns and images to network inputs, inside an ONNX graph.

An input a column, (rows, 1): a number as double, where NaN is missing; a category as string,
where "" and "?" are missing. The arithmetic is that of ``TableEncoder``, in its precision.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from dovetail.data.images import ImageInput
from dovetail.data.preprocessing import CategoryColumn, NumberColumn, TableEncoder
from dovetail.data.regions import ImageRegion
from dovetail.service.graph import Graph

_ML = "ai.onnx.ml"
#: What stands for "no value" in a column of categories.
MISSING_TEXTS = ("", "?")


def table_features(graph: Graph, encoder: TableEncoder) -> str:
    """(B, F) float32 features of an encoder's columns; two encoders may share an input."""
    numbers = [each for each in encoder.fitted if isinstance(each, NumberColumn)]
    parts: list[str] = []
    flagged = [index for index, each in enumerate(numbers) if each.flag]
    if numbers:
        standardised, missing = _numbers(graph, numbers)
        parts.append(standardised)
        if flagged:
            parts.append(graph.node("Gather", missing, graph.constant(flagged, np.int64), axis=1))
    # All numbers stand first, then their flags: one product each. Their order is mended below.
    width, number = len(numbers) + len(flagged), 0
    indices_F: list[int] = []
    for each in encoder.fitted:
        if isinstance(each, NumberColumn):
            indices_F.append(number)
            if each.flag:
                indices_F.append(len(numbers) + flagged.index(number))
            number += 1
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


def _is_missing(graph: Graph, column: NumberColumn | CategoryColumn) -> str:
    """(B, 1) whether a row has no value."""
    if isinstance(column, NumberColumn):
        return graph.node("IsNaN", _input(graph, column.name, TensorProto.DOUBLE))
    raw = _input(graph, column.name, TensorProto.STRING)
    return graph.node(
        "Or", *(graph.node("Equal", raw, graph.constant([[t]], object)) for t in MISSING_TEXTS)
    )


def _numbers(graph: Graph, columns: list[NumberColumn]) -> tuple[str, str]:
    """(B, K) float32 standardised numbers, and whether each is missing."""
    inputs = [_input(graph, each.name, TensorProto.DOUBLE) for each in columns]
    raw = inputs[0] if len(inputs) == 1 else graph.node("Concat", *inputs, axis=1)
    missing = graph.node("IsNaN", raw)

    def row(values: list[float]) -> str:
        return graph.constant([values], np.float64)

    filled = graph.node("Where", missing, row([each.median for each in columns]), raw)
    centred = graph.node("Sub", filled, row([each.mean for each in columns]))
    scaled = graph.node("Div", centred, row([each.scale for each in columns]))
    return graph.cast(scaled), graph.cast(missing)


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
