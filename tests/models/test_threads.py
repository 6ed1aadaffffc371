"""Small products on one thread, calls side by side; a user's number is kept to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_info

import dovetail as dt
from dovetail.data import Classification, Federation, Partitioned, PartyData
from dovetail.methods.base import Loaded
from dovetail.models.threads import num_threads, one_core_each, one_thread, side_by_side
from dovetail.runs.setup import threads_for


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """A user asked PyTorch for three."""
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def blas() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_one_thread_holds_for_products_of_torch_and_numpy_and_ends_with_the_context() -> None:
    before = blas()
    with one_thread():
        assert (torch.get_num_threads(), blas()) == (1, {1})
        with one_thread():
            assert (torch.get_num_threads(), num_threads()) == (1, 3)
        assert (torch.get_num_threads(), blas()) == (1, {1})
    assert (torch.get_num_threads(), blas()) == (3, before)


def test_one_thread_holds_for_libraries_that_nobody_has_used_yet() -> None:
    said = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "3"
from threadpoolctl import threadpool_info
from dovetail.models.threads import one_thread
with one_thread():
    import scipy.optimize
    print({each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"})
"""
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout == "{1}\n"


def test_one_thread_ends_with_an_error_too() -> None:
    with pytest.raises(MemoryError), one_thread():
        raise MemoryError
    assert (torch.get_num_threads(), num_threads()) == (3, 3)


def test_threads_that_overlap_leave_each_other_the_number_that_each_had() -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        torch.set_num_threads(3)
        with one_thread():
            entered.set()
            leave.wait(10)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    with one_thread():
        thread.start()
        assert entered.wait(10)
    assert torch.get_num_threads() == 3
    leave.set()
    thread.join()
    assert seen == [3]
    assert num_threads() == 3


def test_as_many_calls_at_once_as_torch_was_given_threads_each_on_one() -> None:
    together = threading.Barrier(3, timeout=10)

    def call(_: threading.Event) -> tuple[int, int]:
        together.wait()  # three at a time, or none
        return threading.get_ident(), torch.get_num_threads()

    for run in (side_by_side, one_core_each):
        given = run([call] * 6)
        assert len({ident for ident, _ in given}) == 3
        assert {threads for _, threads in given} == {1}
    torch.set_num_threads(1)
    caller = threading.get_ident()
    assert side_by_side([lambda _: threading.get_ident()] * 3) == [caller] * 3


@pytest.mark.parametrize(("shape", "threads"), [((5,), 1), ((1, 8, 8), 3)])
def test_tables_are_computed_on_one_thread_and_images_on_those_of_torch(
    shape: tuple[int, ...], threads: int
) -> None:
    party = PartyData("a", ids=torch.arange(4).numpy(), blocks={"x": torch.zeros(4, *shape)})
    data = Partitioned(Federation([party]), None, Classification(("n", "y")), {}, "y")
    with threads_for(Loaded(data, "a")):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


@pytest.mark.slow
@pytest.mark.usefixtures("brief_learners")
def test_a_run_on_a_table_is_the_same_on_any_number_of_threads() -> None:
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.iloc[:200]
    frame = frame.assign(id=range(200), target=frame.target.map({0: "m", 1: "b"}))
    a = dt.Party("a", frame.filter(regex="^mean|id|target"), id="id", label="target")
    b = dt.Party("b", frame.filter(regex="^worst|id$"), id="id")
    outputs = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        run = dt.fit("apfed-d", [a, b], test=0.2, quiet=True)
        outputs.append(run.models["a"].predict_proba(frame))
        assert torch.get_num_threads() == threads
    assert (outputs[0] == outputs[1]).all()


@pytest.mark.slow
def test_the_command_lets_threads_wait_without_spinning_unless_the_user_says_otherwise() -> None:
    code = (
        "import os, sys; from dovetail.cli.main import main; sys.argv = ['dovetail', '--version']\n"
        "try: main()\nexcept SystemExit: print(os.environ['OMP_WAIT_POLICY'])"
    )
    plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for asked, expected in ({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**plain, **asked},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split()[-1] == expected
