"""How many threads compute: one for small products, side by side where there are several of them.

PyTorch shares each product among its threads, and the threads spin while they wait for each other.
If another process has one of the cores, every product of microseconds then waits for a time slice
of milliseconds: training on a table took five times as long on two busy cores as on one thread. So
tables are computed on one thread a product, and learners, folds and members run side by side on as
many threads as PyTorch was given. The number follows from the size of the work, never from the
load, so that a run is repeated bit for bit (``benchmarks/results/threads.md``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

from dovetail.models.computing import is_narrow, narrow_too

T = TypeVar("T")


class _Given:
    """How many threads PyTorch was given, while some thread of this process limits itself to one.

    Attributes:
        lock: held while these change.
        depth: contexts that are open.
        num_threads: PyTorch's number before the first of them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.num_threads = 1


_given = _Given()


@contextmanager
def one_thread(*, blas: bool = True) -> Iterator[None]:
    """Within it, each product of PyTorch, NumPy and SciPy is computed on one thread.

    It holds for the thread that enters, and for those that it starts. Afterwards all numbers are
    as before. ``num_threads`` stays what it was.

    Args:
        blas: NumPy's and SciPy's products, too; looking up their libraries takes a millisecond.
    """
    if blas:
        # A limit holds for libraries that are loaded. SciPy's own BLAS would be loaded later, by
        # whoever fits a linear model, and spin: four times the processor time of `inspect`.
        import scipy.linalg  # noqa: F401
    with _given.lock:
        before = torch.get_num_threads()
        if not _given.depth:
            _given.num_threads = before
        outermost = not _given.depth
        _given.depth += 1
        torch.set_num_threads(1)
    limits = threadpool_limits(limits=1, user_api="blas") if blas and outermost else nullcontext()
    try:
        with limits:
            yield
    finally:
        with _given.lock:
            _given.depth -= 1
            torch.set_num_threads(before)


def num_threads() -> int:
    """Threads that may compute at the same time.

    What ``torch.set_num_threads`` or ``OMP_NUM_THREADS`` says; otherwise one for each core.
    """
    return _given.num_threads if _given.depth else torch.get_num_threads()


def one_core_each(calls: Sequence[Callable[[Event], T]]) -> list[T]:
    """``side_by_side`` with each call on one core: its bits do not depend on how many there are."""
    with one_thread():
        return side_by_side(calls)


def side_by_side(
    calls: Sequence[Callable[[Event], T]],
    given_up: Event | None = None,
    *,
    workers: int | None = None,
) -> list[T]:
    """Results of these calls, in their order.

    For calls that spend their time in libraries which let other threads run, and that draw nothing
    from PyTorch's own generator, which all threads share. Each is given an event that is set once
    nobody waits for it: it should end then, as after Ctrl-C, since Python waits for threads.
    Networks are computed as in the thread that calls.

    Args:
        given_up: is set then.
        workers: threads at most; None: ``num_threads()``.
    """
    given_up = given_up or Event()
    workers = min(len(calls), workers or num_threads())
    if workers <= 1:
        return [call(given_up) for call in calls]
    enter = narrow_too if is_narrow() else None  # a worker ends with the pool
    with one_thread(), ThreadPoolExecutor(workers, initializer=enter) as pool:
        try:
            started = [pool.submit(call, given_up) for call in calls]
            for each in as_completed(started):
                each.result()  # raises at once, though an earlier call may still work
            return [each.result() for each in started]
        except BaseException:
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def asked_threads() -> int | None:
    """Number of threads in ``OMP_NUM_THREADS``, if it is set to a number."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) or None if asked.isdecimal() else None


def cores() -> int:
    """That this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
