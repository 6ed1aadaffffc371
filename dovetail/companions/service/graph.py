"""An ONNX graph that grows node by node, and torch modules and boosted trees as parts of it.

Networks are translated by ``torch.onnx``; boosted trees become one ``TreeEnsembleRegressor`` each,
whose thresholds are rounded so that float32 features fall on the same side as in float64.

Letters: B rows, C outputs, S scores of boosted trees, T trees.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, inliner, numpy_helper
from torch import nn

from dovetail.data import Survival
from dovetail.errors import ModelError
from dovetail.models.blocks import BlocksNetwork
from dovetail.models.calibration import Calibration
from dovetail.models.learners.boosting_model import BoostedTrees
from dovetail.models.learners.specs import Ensemble
from dovetail.models.learners.stacked import FURTHEST, StackedNetwork
from dovetail.models.networks import Shape

#: The first with Equal of strings is 19; torch translates to 20 directly.
OPSET = 20
ML_OPSET = 3
_ML = "ai.onnx.ml"


class Graph:
    """Nodes, constants and inputs; a value is known by its name, which every method gives back."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def name(self) -> str:
        """A new one; columns are named beside it, so it starts as no column is likely to."""
        self._count += 1
        return f"dovetail::{self._count}"

    @property
    def inputs(self) -> list[str]:
        return [each.name for each in self._inputs]

    def input(self, name: str, kind: int, shape: Sequence[int]) -> str:
        """An input of B rows of this shape."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, ["rows", *shape]))
        return name

    def constant(self, values: Any, dtype: Any) -> str:
        name = self.name()
        array = np.asarray(values, dtype=dtype)
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Output of an operator with one output."""
        output = self.name()
        self._nodes.append(
            helper.make_node(kind, list(inputs), [output], domain=domain, **attributes)
        )
        return output

    def cast(self, value: str, kind: int = TensorProto.FLOAT) -> str:
        return self.node("Cast", value, to=kind)

    def inline(self, program: onnx.ModelProto, given: Sequence[str]) -> str:
        """The only output of another graph, whose inputs are these values."""
        if program.functions:
            program = inliner.inline_local_functions(program)
        graph = program.graph
        renamed = dict(zip((each.name for each in graph.input), given, strict=True))

        def known(name: str) -> str:
            if name and name not in renamed:
                renamed[name] = self.name()
            return str(renamed.get(name, ""))

        for tensor in graph.initializer:
            tensor.name = known(str(tensor.name))
            self._constants.append(tensor)
        for node in graph.node:
            if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
                raise ModelError("its network has a loop or a branch, which cannot be exported")
            names = [known(name) for name in node.input], [known(name) for name in node.output]
            del node.input[:], node.output[:]
            node.input.extend(names[0])
            node.output.extend(names[1])
            node.name = ""
            del node.metadata_props[:]
            self._nodes.append(node)
        return known(str(graph.output[0].name))

    def model(self, outputs: Sequence[tuple[str, str, int, Sequence[int]]]) -> onnx.ModelProto:
        """The whole, with (value, name, kind, shape of a row) of each output."""
        named = []
        for value, name, kind, shape in outputs:
            self._nodes.append(helper.make_node("Identity", [value], [name]))
            named.append(helper.make_tensor_value_info(name, kind, ["rows", *shape]))
        graph = helper.make_graph(
            self._nodes, "dovetail", self._inputs, named, initializer=self._constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(_ML, ML_OPSET)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=9, producer_name="dovetail"
        )


def calibrated(graph: Graph, calibration: Calibration | None, outputs: str) -> str:
    """(B, C) probabilities of these outputs, as ``Calibration.applied`` has them."""
    if calibration is None:
        return graph.node("Softmax", outputs, axis=1)
    if calibration.kind == "temperature":
        temperature = graph.constant(calibration.temperature, np.float32)
        return graph.node("Softmax", graph.node("Div", outputs, temperature), axis=1)
    x, y = calibration.x, calibration.y
    assert x is not None
    assert y is not None
    # A rising line through knots is a sum of clipped ramps, one for each piece.
    second = graph.node("Softmax", graph.cast(outputs, TensorProto.DOUBLE), axis=1)
    second = graph.node("Gather", second, graph.constant([1], np.int64), axis=1)
    along = graph.node("Sub", second, graph.constant([x[:-1]], np.float64))
    none, whole = graph.constant(0.0, np.float64), graph.constant([np.diff(x)], np.float64)
    along = graph.node("Min", graph.node("Max", along, none), whole)
    rises = graph.constant((np.diff(y) / np.diff(x))[:, None], np.float64)
    calibrated = graph.node(
        "Add", graph.node("MatMul", along, rises), graph.constant(y[0], np.float64)
    )
    other = graph.node("Sub", graph.constant(1.0, np.float64), calibrated)
    return graph.cast(graph.node("Concat", other, calibrated, axis=1))


def survival_nodes(graph: Graph, task: Survival, outputs: str, first: str) -> list[Any]:
    """Outputs of a model of times: log odds, and survival at the end of each interval."""
    base = graph.constant([task.base], np.float64)
    logits = graph.node("Add", graph.cast(outputs, TensorProto.DOUBLE), base)
    # log(1 - hazard), summed over intervals so far.
    if task.link == "log":
        logs = graph.node("Neg", graph.node("Exp", logits))
    else:
        logs = graph.node("Log", graph.node("Sigmoid", graph.node("Neg", logits)))
    sums = graph.node("CumSum", logs, graph.constant(1, np.int64))
    shares = graph.node("Exp", sums)
    return [
        (outputs, first, TensorProto.FLOAT, [1]),
        (shares, f"{first}_survival", TensorProto.DOUBLE, [len(task.cuts)]),
    ]


def network_nodes(
    graph: Graph, network: nn.Module, blocks: dict[str, str], shapes: dict[str, Shape]
) -> str:
    """(B, C) outputs of a network, given the values of its blocks.

    Args:
        graph: grows.
        network: in evaluation mode.
        blocks: block -> (B, ...) float32.
        shapes: block -> shape of a row.
    """
    if len(blocks) == 1 and isinstance(network, Ensemble):
        ((name, value),) = blocks.items()
        if len(shapes[name]) > 1:
            value = graph.node("Flatten", value, axis=1)
        return _ensemble(graph, network, value, math.prod(shapes[name]))
    return _translated(
        graph,
        _OfBlocks(network, list(blocks)),
        list(blocks.values()),
        [shapes[name] for name in blocks],
    )


def _ensemble(graph: Graph, ensemble: Ensemble, x: str, num_features: int) -> str:
    """The mean value, or the logarithm of the mean probability over T."""
    member_outputs = [_member(graph, member, x, num_features) for member in ensemble.members]
    shares = ensemble.weights
    if ensemble.regression and shares is not None:
        member_outputs = [
            graph.node("Mul", each, graph.constant(share, np.float32))
            for each, share in zip(member_outputs, shares, strict=True)  # of each output, or one
        ]
        return graph.node("Sum", *member_outputs)
    if ensemble.regression:
        return (
            member_outputs[0] if len(member_outputs) == 1 else graph.node("Mean", *member_outputs)
        )
    outputs = member_outputs[0]
    if len(member_outputs) > 1:
        axes = graph.constant([0], np.int64)
        logs = [graph.node("LogSoftmax", each, axis=1) for each in member_outputs]
        if shares is not None:
            logs = [
                graph.node("Add", each, graph.constant(math.log(share), np.float32))
                for each, share in zip(logs, shares, strict=True)
            ]
        logs = [graph.node("Unsqueeze", each, axes) for each in logs]
        together = graph.node("Concat", *logs, axis=0)
        outputs = graph.node("ReduceLogSumExp", together, axes, keepdims=0)
    if ensemble.temperature == 1.0:
        return outputs
    return graph.node("Div", outputs, graph.constant(ensemble.temperature, np.float32))


def _member(graph: Graph, member: nn.Module, x: str, num_features: int) -> str:
    if isinstance(member, Ensemble):
        return _ensemble(graph, member, x, num_features)
    if isinstance(member, BoostedTrees):
        return _trees(graph, member, x)
    if isinstance(member, nn.Linear):
        weight = graph.constant(member.weight.detach().numpy(), np.float32)
        bias = graph.constant(member.bias.detach().numpy(), np.float32)
        return graph.node("Gemm", x, weight, bias, transB=1)
    if isinstance(member, StackedNetwork):
        return _stacked(graph, member, x)
    return _translated(graph, member, [x], [(num_features,)])


def _stacked(graph: Graph, network: StackedNetwork, x: str) -> str:
    """(B, C) of members side by side; a second or two less than ``torch.onnx`` takes for it."""

    def constant(values: torch.Tensor) -> str:
        return graph.constant(values.detach().numpy(), np.float32)

    def dense(layer: Any, given: str) -> str:
        product = graph.node("MatMul", given, constant(layer.weight))
        return graph.node("Add", product, constant(layer.bias))

    encoding, bottom, top = network.encoding, network.bottom, network.top
    far, low, high = (graph.constant(each, np.float32) for each in (FURTHEST, 0.0, 1.0))
    encoded = graph.node("Clip", x, graph.node("Neg", far), far)
    if len(encoding.column_M):
        columns = graph.constant(encoding.column_M.numpy(), np.int64)
        above = graph.node(
            "Sub", graph.node("Gather", x, columns, axis=1), constant(encoding.low_M)
        )
        bins = graph.node("Clip", graph.node("Div", above, constant(encoding.width_M)), low, high)
        encoded = graph.node("Concat", encoded, bins, axis=1)
    outputs = graph.node("MatMul", encoded, constant(bottom.linear))  # (K, B, C)
    if len(bottom.layers):
        code = encoded
        for layer in bottom.layers:
            code = graph.node("Relu", dense(layer, code))
        outputs = graph.node("Add", outputs, dense(top.head, code))
    else:
        outputs = graph.node("Add", outputs, constant(top.head.bias))
    axes = graph.constant([0], np.int64)
    if network.regression:
        return graph.node("ReduceMean", outputs, axes, keepdims=0)
    if len(bottom.linear) == 1:
        return graph.node("Squeeze", outputs, axes)
    logs = graph.node("LogSoftmax", outputs, axis=2)
    total = graph.node("ReduceLogSumExp", logs, axes, keepdims=0)
    return graph.node("Sub", total, graph.constant(math.log(len(bottom.linear)), np.float32))


def _trees(graph: Graph, trees: BoostedTrees, x: str) -> str:
    """(B, C) of boosted trees; two classes have one score, and the outputs (0, score)."""
    forest = trees.forest()
    roots_T = forest.roots_T.numpy()
    num_scores = len(trees.start_S)
    num_nodes = len(forest.feature) - 1  # the last one is no tree's
    # Nodes and leaves of all trees stand in a row: a tree's end where the next one's begin.
    bounds = np.append(roots_T[roots_T >= 0], num_nodes)
    splits_T = np.zeros(len(roots_T), dtype=np.int64)
    splits_T[roots_T >= 0] = np.diff(bounds)
    first_node_T = splits_T.cumsum() - splits_T
    first_leaf_T = (splits_T + 1).cumsum() - (splits_T + 1)

    tree_of_node = np.repeat(np.arange(len(roots_T)), splits_T)
    tree_of_leaf = np.repeat(np.arange(len(roots_T)), splits_T + 1)
    local_node = np.arange(num_nodes) - first_node_T[tree_of_node]
    local_leaf = np.arange(len(tree_of_leaf)) - first_leaf_T[tree_of_leaf] + splits_T[tree_of_leaf]

    def node_ids(child: np.ndarray) -> np.ndarray:
        leaf = -1 - child
        leaf_index = leaf - first_leaf_T[tree_of_node] + splits_T[tree_of_node]
        return np.where(child < 0, leaf_index, child - first_node_T[tree_of_node])

    num_leaves = len(tree_of_leaf)
    nothing = np.zeros(num_leaves, dtype=np.int64)
    # A tree's nodes stand together, root first: onnxruntime reads them so.
    tree = np.append(tree_of_node, tree_of_leaf)
    node = np.append(local_node, local_leaf)
    order = np.lexsort((node, tree))

    def sorted_list(nodes: np.ndarray, leaves: np.ndarray = nothing) -> list[Any]:
        listed: list[Any] = np.append(nodes, leaves)[order].tolist()
        return listed

    modes = np.array(["BRANCH_LEQ"] * num_nodes + ["LEAF"] * num_leaves)
    scores = graph.node(
        "TreeEnsembleRegressor",
        x,
        domain=_ML,
        n_targets=num_scores,
        base_values=trees.start_S.tolist(),
        nodes_treeids=tree[order].tolist(),
        nodes_nodeids=node[order].tolist(),
        nodes_featureids=sorted_list(forest.feature.numpy()[:-1]),
        nodes_values=sorted_list(_below(forest.threshold.numpy()[:-1])),
        nodes_modes=modes[order].tolist(),
        nodes_truenodeids=sorted_list(node_ids(forest.left.numpy()[:-1])),
        nodes_falsenodeids=sorted_list(node_ids(forest.right.numpy()[:-1])),
        target_treeids=tree_of_leaf.tolist(),
        target_nodeids=local_leaf.tolist(),
        target_ids=(tree_of_leaf % num_scores).tolist(),  # round by round, one a score
        target_weights=forest.leaves.numpy()[:num_leaves].tolist(),
    )
    if trees.num_outputs == num_scores:
        return scores
    zero = graph.node("Mul", scores, graph.constant(0.0, np.float32))
    return graph.node("Concat", zero, scores, axis=1)


def _below(thresholds: np.ndarray) -> np.ndarray:
    """The largest float32 that is no more: x <= it of float32 x as x <= the float64."""
    rounded = thresholds.astype(np.float32)
    too_high = rounded.astype(np.float64) > thresholds
    rounded[too_high] = np.nextafter(rounded[too_high], np.float32(-np.inf))
    return rounded


class _OfBlocks(nn.Module):
    """A network of a tensor, or of a dict of blocks, as one of tensors side by side."""

    def __init__(self, network: nn.Module, blocks: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.blocks = tuple(blocks)

    def forward(self, *rows: torch.Tensor) -> torch.Tensor:
        if isinstance(self.network, BlocksNetwork):
            return _one_by_one(self.network, dict(zip(self.blocks, rows, strict=True)))
        if len(self.blocks) == 1:
            return self.network(rows[0])  # type: ignore[no-any-return]
        return self.network(dict(zip(self.blocks, rows, strict=True)))  # type: ignore[no-any-return]


def _one_by_one(network: BlocksNetwork, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """A network of blocks without what makes it fast here, which fixes the number of rows there."""
    some, having = next(iter(x.values())), network.having(x)
    features = []
    for name, extractor, width in zip(
        network.blocks, network.extractors, network.features, strict=True
    ):
        if name in having:
            rows = extractor(torch.where(having[name], x[name], 0.0)).flatten(1)
            features.append(torch.where(having[name], rows, 0.0))
        elif name in x:
            features.append(extractor(x[name]).flatten(1))
        else:
            features.append(some.new_zeros(some.shape[0], width))
    joined = torch.cat(features, dim=1)
    outputs: torch.Tensor = network.classifier(joined * network.scale(x) if network.of else joined)
    return outputs


def _translated(
    graph: Graph, network: nn.Module, values: Sequence[str], shapes: Sequence[Shape]
) -> str:
    """Output of a network as ``torch.onnx`` translates it.

    Raises:
        ModelError: one that it cannot translate.
    """
    rows = torch.export.Dim("rows", min=2)
    zeros = tuple(torch.zeros(3, *shape) for shape in shapes)
    dynamic: Any = tuple({0: rows} for _ in shapes)
    if isinstance(network, _OfBlocks):
        dynamic = (dynamic,)  # of one starred argument
    try:
        with _quiet():
            program = torch.onnx.export(
                network.eval(),
                zeros,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic,
                verbose=False,
            )
    except Exception as error:  # of many kinds, from several libraries
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"torch cannot translate its network to ONNX ({cause[0]})") from None
    assert program is not None
    return graph.inline(program.model_proto, values)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress and warnings of libraries."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
