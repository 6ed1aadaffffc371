"""ONNX files of somebody else: a few bytes that ask for gigabytes when the model is opened.

Each bomb stands in a file of ``dovetail export`` that is otherwise as it was. Before sizes were
looked at, 129 bytes of ``ConstantOfShape`` took 4.4 GB when the file was opened.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from federations import Federation, free_port
from learned import clinic_table, fitted_model
from onnx import TensorProto, helper, numpy_helper

from dovetail.companions.service.export import onnx_bytes
from dovetail.errors import ModelError
from dovetail.models.exported import of_bytes
from dovetail.models.learners.boosting import Boosting
from dovetail.models.learners.linear import Linear
from dovetail.models.onnx_files import MOST_BYTES, MOST_ROWS, check_graph, open_session

HUGE = 2**30


@pytest.fixture(scope="module")
def table() -> Any:
    return clinic_table(300)


@pytest.fixture(scope="module")
def exported(table: Any) -> bytes:
    return onnx_bytes(fitted_model(table, [Linear()]))


def constant(program: Any, name: str, values: Any, dtype: Any = np.int64) -> str:
    program.graph.initializer.append(numpy_helper.from_array(np.asarray(values, dtype), name))
    return name


def grown(program: Any, *nodes: Any) -> None:
    """These nodes before all others, and the last one's value added to the age, as zero."""
    last = nodes[-1].output[0]
    constant(program, "none", 0.0, np.float64)
    ends = [
        helper.make_node("ReduceMin", [last], ["least"], keepdims=0),
        helper.make_node("Cast", ["least"], ["least double"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["least double", "none"], ["nothing"]),
        helper.make_node("Add", ["age", "nothing"], ["aged"]),
    ]
    before = [*program.graph.node]
    for node in before:
        for index, name in enumerate(node.input):
            if name == "age":
                node.input[index] = "aged"
    del program.graph.node[:]
    program.graph.node.extend([*nodes, *ends, *before])


def constant_of_shape(program: Any, huge: int) -> None:
    shape = constant(program, "shape", [huge])
    grown(program, helper.make_node("ConstantOfShape", [shape], ["huge"]))


def expanded(program: Any, huge: int) -> None:
    shape = constant(program, "shape", [1, huge])
    grown(program, helper.make_node("Expand", ["age", shape], ["huge"]))


def tiled(program: Any, huge: int) -> None:
    repeats = constant(program, "repeats", [1, huge])
    grown(program, helper.make_node("Tile", ["age", repeats], ["huge"]))


def doubled(program: Any, huge: int) -> None:
    names = ["age", *(f"twice {index}" for index in range(huge.bit_length() - 1))]
    made = [helper.make_node("Concat", [a, a], [b], axis=1) for a, b in pairwise(names)]
    grown(program, *made)


def crossed(program: Any, huge: int) -> None:
    """An outer product of two constants of 128 kB each."""
    side = round(huge**0.5)
    constant(program, "column", np.zeros((side, 1)), np.float32)
    constant(program, "row", np.zeros((1, side)), np.float32)
    grown(program, helper.make_node("Add", ["column", "row"], ["huge"]))


def long_texts(program: Any, huge: int) -> None:
    """A name of a megabyte, a thousand times."""
    text = helper.make_tensor("text", TensorProto.STRING, [1], ["x" * 2**20])
    program.graph.initializer.append(text)
    shape = constant(program, "shape", [huge >> 20])
    constant(program, "other", ["y"], object)
    grown(
        program,
        helper.make_node("Expand", ["text", shape], ["huge"]),
        helper.make_node("Equal", ["huge", "other"], ["equal"]),
        helper.make_node("Cast", ["equal"], ["number"], to=TensorProto.DOUBLE),
    )


def rows_by_rows(program: Any, huge: int) -> None:
    """Every row beside every row: small while it is opened, 3 GB of 20,000 rows."""
    grown(
        program,
        helper.make_node("Transpose", ["age"], ["across"]),
        helper.make_node("MatMul", ["age", "across"], ["huge"]),
    )


def counted_rows(program: Any, huge: int) -> None:
    """A size that is computed of the number of rows."""
    grown(
        program,
        helper.make_node("Shape", ["age"], ["shape"]),
        helper.make_node("Mul", ["shape", "shape"], ["squared"]),
        helper.make_node("ConstantOfShape", ["squared"], ["huge"]),
    )


def of_values(program: Any, huge: int) -> None:
    """A size that stands in a row: nothing in the file says how large it becomes."""
    grown(
        program,
        helper.make_node("Cast", ["age"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["whole", constant(program, "end", [-1])], ["flat"]),
        helper.make_node("ConstantOfShape", ["flat"], ["huge"]),
    )


def sparse(program: Any, huge: int) -> None:
    one = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    where = numpy_helper.from_array(np.zeros(1, np.int64), "where")
    program.graph.sparse_initializer.append(helper.make_sparse_tensor(one, where, [huge]))
    grown(program, helper.make_node("Identity", ["sparse"], ["huge"]))


BOMBS: dict[str, tuple[Callable[[Any, int], None], str]] = {
    "constant of shape": (constant_of_shape, r"takes 8,19\d MiB for one row, and a file may take"),
    "expanded": (expanded, r"takes 8,19\d MiB for one row"),
    "tiled": (tiled, r"takes 8,19\d MiB for one row"),
    "doubled": (doubled, r"takes 16,38\d MiB for one row"),
    "crossed": (crossed, r"takes 8,19\d MiB for one row"),
    "long texts": (long_texts, r"takes 1,02\d MiB for one row"),
    "rows by rows": (rows_by_rows, "memory that does not grow evenly with the rows"),
    "counted rows": (counted_rows, "memory that does not grow evenly with the rows"),
    "of values": (of_values, r"a value whose size nothing in the file says \(ConstantOfShape\)"),
    "sparse": (sparse, "has sparse constants"),
}


def bomb(exported: bytes, name: str, huge: int = HUGE) -> bytes:
    program = onnx.load_model_from_string(exported)
    BOMBS[name][0](program, huge)
    return bytes(program.SerializeToString())


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_a_sentence_before_it_takes_memory(exported: bytes, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=BOMBS[name][1]) as told:
        of_bytes(bomb(exported, name), where="clinic.onnx")
    assert str(told.value).startswith("clinic.onnx ")
    taken_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert taken_mib < 100


def peak_mib() -> float:
    """Of this program; ``getrusage`` has the peak of the process that started it, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def ran(content: bytes, feeds: dict[str, np.ndarray], took: Any) -> None:
    """The most that a process with a session of these bytes takes, in MiB."""
    open_session(content, where="clinic.onnx").run(None, feeds)
    took.send(peak_mib())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("name", ["constant of shape", "crossed", "rows by rows"])
def test_without_that_look_a_bomb_takes_what_it_asks_for(
    exported: bytes, table: Any, name: str
) -> None:
    """Small ones: onnxruntime refuses none of them."""
    model = of_bytes(exported, where="clinic.onnx")
    rows = 6000 if "rows" in name else 1
    feeds = {key: np.resize(each, (rows, 1)) for key, each in model.feeds_of(table).items()}
    here, there = get_context("spawn").Pipe(duplex=False)
    peaks = []
    for content in (exported, bomb(exported, name, 2**26)):
        process = get_context("spawn").Process(target=ran, args=(content, feeds, there))
        process.start()
        peaks.append(here.recv())
        process.join()
    assert peaks[1] > peaks[0] + 50


@pytest.mark.slow
@pytest.mark.network
def test_a_service_does_not_open_a_bomb(exported: bytes, tmp_path: Path) -> None:
    (tmp_path / "clinic.onnx").write_bytes(bomb(exported, "constant of shape"))
    service = Federation(tmp_path, free_port(), ()).start("serve", "clinic.onnx", "--port", "0")
    assert service.ended() == 2
    assert "clinic.onnx takes 8,19" in service.printed()
    assert "Traceback" not in service.printed()


@pytest.mark.parametrize("learner", [Linear(), Boosting()], ids=["linear", "boosting"])
def test_what_an_export_takes_is_known_and_rows_in_pieces_say_the_same(
    table: Any, learner: Any
) -> None:
    content = onnx_bytes(fitted_model(table, [learner]))
    memory = check_graph(content, where="clinic.onnx")
    assert memory.rows == MOST_ROWS
    assert memory.fixed + MOST_ROWS * memory.per_row < MOST_BYTES / 10
    model = of_bytes(content, where="clinic.onnx")
    whole = model.predict_proba(table)
    pieces = replace(model, rows=7).predict_proba(table)
    np.testing.assert_allclose(pieces, whole, atol=1e-6)
    assert (replace(model, rows=7).predict(table) == model.predict(table)).all()
