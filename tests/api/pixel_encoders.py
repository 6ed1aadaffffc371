"""A frozen encoder of pictures, as a file that a site has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


def pixels_onnx(path: Path, seed: int = 0, size: int = 6) -> None:
    """A seeded encoder of (B, 3, 8, 8) pictures: one convolution, pooled."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(size, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["z"]),
        helper.make_node("Relu", ["z"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", size, 1, 1])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
