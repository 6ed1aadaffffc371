"""An ONNX file of somebody else: what is refused before it runs, and how much memory it may take.

A file is a program, and 129 bytes of one can ask for gigabytes (``ConstantOfShape``, ``Expand``,
``Tile``, an outer product). So the shape of every value is inferred before onnxruntime sees the
file, from the shapes of its inputs and its constants alone. A file with a value whose shape does
not follow from these is refused. What all values take together must grow evenly with the rows: then
rows are run in pieces that fit in ``MOST_BYTES``.
"""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from typing import Any

from dovetail.errors import ModelError
from dovetail.lazy import needed

#: Bytes that all values of one run may take, beside the file's own constants.
MOST_BYTES = 2**29

#: Rows of one run at most: shapes are looked at up to so many.
MOST_ROWS = 4096

#: Whose operators an export has.
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")

#: Constants of more elements say no shape, and are not copied to be looked at.
_SHAPE_ELEMENTS = 1024

#: Bytes of an element, whatever its type; of a text, beside its letters.
_ELEMENT, _TEXT = 8, 32


@dataclass(frozen=True)
class Memory:
    """Memory that the values of a run take.

    Attributes:
        fixed: bytes, however many rows there are.
        per_row: bytes more for each row.
    """

    fixed: int
    per_row: int

    @property
    def rows(self) -> int:
        """Rows that one run may have."""
        room = (MOST_BYTES - self.fixed) // max(1, self.per_row)
        return max(0, min(MOST_ROWS, room))


def check_graph(content: bytes, *, where: str) -> Memory:
    """Refuse what no export of ours has; what its values take.

    Refused are loops, branches, functions, operators of others, and values without end. A loop of a
    few bytes would never end, and nothing ends a session that runs.

    Raises:
        ModelError: naming what is there.
        ConfigError: onnx is not installed.
    """
    with needed("an ONNX file", "'dovetail-fl[export]'"):
        import onnx
    try:
        program = onnx.load_model_from_string(content)
    except Exception as error:  # of the format's reader, which has no type of its own
        raise ModelError(f"{where} is no ONNX file that onnxruntime runs ({error})") from None
    found = ["functions of its own"] if program.functions else []
    if program.graph.sparse_initializer:
        found.append("sparse constants")
    for node in program.graph.node:
        if node.domain not in _DOMAINS:
            found.append(f"the operator {node.domain[:60]}.{node.op_type[:60]}")
        elif any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            found.append(f"a loop or a branch ({node.op_type[:60]})")
        elif any(attribute.HasField("sparse_tensor") for attribute in node.attribute):
            found.append("sparse constants")
    if found:
        raise ModelError(f"{where} has {found[0]}, which no file of dovetail export has")
    return memory_of(program, where=where)


def memory_of(program: Any, *, where: str) -> Memory:
    """Memory that a program's values take, by the shapes of its inputs and its constants.

    Raises:
        ModelError: a value of no known shape, memory that does not grow evenly with the rows, or
            more than a run of one row may take.
    """
    text_bytes = _TEXT + _longest_text(program)
    _forget(program)
    ends = [
        dim
        for value in program.graph.input
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    ]
    found = []
    # Sizes that a file computes are polynomials of the rows: none is even at rows drawn at random.
    drawn = random.SystemRandom().sample(range(2, MOST_ROWS), 3)
    for rows in (1, *drawn, MOST_ROWS):
        for dim in ends:
            dim.dim_value = rows
        found.append((rows, _bytes_of(program, text_bytes, where=where)))
    (_, one), *others = found
    per_row, odd = divmod(others[-1][1] - one, MOST_ROWS - 1)
    if odd or per_row < 0 or any(size != one + per_row * (rows - 1) for rows, size in others):
        raise ModelError(
            f"{where} takes memory that does not grow evenly with the rows, which no file of "
            "dovetail export does; it is not run"
        )
    taken = Memory(one - per_row, per_row)
    if taken.rows < 1:
        raise ModelError(
            f"{where} takes {one / 2**20:,.0f} MiB for one row, and a file may take "
            f"{MOST_BYTES >> 20}; serve the model's folder in its place"
        )
    return taken


def _bytes_of(program: Any, text_bytes: int, *, where: str) -> int:
    """Bytes of all values together."""
    import onnx

    try:
        sized = onnx.shape_inference.infer_shapes(program, strict_mode=True, data_prop=True)
    except Exception as error:  # of the inference, which has several
        cause = str(error).strip().splitlines()[:1]
        raise ModelError(
            f"{where} is no ONNX file that onnxruntime runs ({''.join(cause)[:200]})"
        ) from None
    types = {each.name: each.type for each in (*sized.graph.value_info, *sized.graph.output)}
    total = 0
    for node in sized.graph.node:
        for name in filter(None, node.output):
            tensor = types[name].tensor_type if name in types else None
            if tensor is None or not _is_known(tensor):
                raise ModelError(
                    f"{where} has a value whose size nothing in the file says ({node.op_type[:60]})"
                    ", which no file of dovetail export has"
                )
            each = text_bytes if tensor.elem_type == onnx.TensorProto.STRING else _ELEMENT
            total += each * math.prod(dim.dim_value for dim in tensor.shape.dim)
    return total


def _is_known(tensor: Any) -> bool:
    return tensor.HasField("shape") and all(
        dim.HasField("dim_value") and dim.dim_value >= 0 for dim in tensor.shape.dim
    )


def _tensors(program: Any) -> list[Any]:
    """All constants, of the graph and of its nodes."""
    attributes = [each for node in program.graph.node for each in node.attribute]
    inner = [tensor for each in attributes for tensor in each.tensors]
    return [
        *program.graph.initializer,
        *(each.t for each in attributes if each.HasField("t")),
        *inner,
    ]


def _longest_text(program: Any) -> int:
    """Bytes of the longest text in the file; a value may have it in each element."""
    texts = [b"", *(text for tensor in _tensors(program) for text in tensor.string_data)]
    for node in program.graph.node:
        for each in node.attribute:
            texts += [each.s, *each.strings]
    return max(map(len, texts))


def _forget(program: Any) -> None:
    """Leave out what it says of shapes itself, and weights, which a look would copy each time."""
    for tensor in _tensors(program):
        if math.prod(tensor.dims) > _SHAPE_ELEMENTS:
            for kept in ("raw_data", "float_data", "double_data", "int64_data", "int32_data"):
                tensor.ClearField(kept)
    del program.graph.value_info[:]
    for value in program.graph.output:
        value.type.tensor_type.ClearField("shape")


def open_session(content: bytes, *, where: str, threads: int | None = None) -> Any:
    """onnxruntime's session of an ONNX file's bytes.

    Raises:
        ModelError: onnxruntime refuses it.
        ConfigError: onnxruntime is not installed.
    """
    with needed("an ONNX file", "'dovetail-fl[export]'"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # A stranger's file may say that its weights lie in files beside it: there are none.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", os.devnull
    )
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own, of several kinds
        raise ModelError(f"{where} is no ONNX file that onnxruntime runs ({error})") from None
