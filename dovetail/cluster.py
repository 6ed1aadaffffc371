"""Where independent tasks are computed: in this process one after another, or on a Ray cluster.

Trials of a search, coalitions, seeds, cells of an audit and runs of a bench are each a function of
one task. They are written once, as ``tasks.map(work, given)``, and do not know where they run. A
task's result has the same bits on either: it gets as many threads as this process has.

Ray pickles what it carries between its machines, so a cluster is one trust domain: whoever reaches
its ports runs code there. Nothing of Ray crosses to a partner.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from dovetail.errors import ConfigError, DovetailError, NetworkError
from dovetail.lazy import needed

T = TypeVar("T")
R = TypeVar("R")

#: The cluster of this machine; where there is none, one that is started for the command.
AUTO = "auto"

#: Whose records a task's process hands back with its result.
_OURS = "dovetail"

#: What Python says where a package is not installed.
_LACKS = "No module named"

#: How often a task is begun again whose machine or process was lost.
RETRIES = 3

#: Where ``ray start`` says which cluster this machine has.
_CURRENT_CLUSTER = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")

#: Seconds in which a cluster's address has to answer.
REACHED_IN_S = 5.0

#: Seconds in which processes that are to stay begin, and the first of them: Ray's have a low
#: priority, and where others keep the cores, none begins.
BEGUN_IN_S, FIRST_IN_S = 60.0, 600.0


class Tasks:
    """Computes tasks in this process, one after another.

    Attributes:
        here: results need not travel: a task may write where this process reads.
    """

    here = True

    @property
    def slots(self) -> int:
        """How many tasks are computed at the same time."""
        return 1

    def map(self, work: Callable[[T], R], given: Iterable[T]) -> Iterator[R]:
        """``work`` of each, in the order of ``given``, from which no more is drawn than is needed.

        Raises:
            DovetailError: as ``work`` raises it.
            NetworkError: a cluster lost a task again and again.
        """
        return map(work, given)


#: No cluster.
LOCAL = Tasks()


class Started(Generic[R]):
    """A task on its way on a cluster."""

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray = ray
        self._ref = ref

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return bool(self._ray.wait([self._ref], timeout=0)[0])

    def result(self) -> R:
        """Result of ``work``; waits for it.

        Raises:
            DovetailError, NetworkError: as of ``Tasks.map``.
        """
        try:
            result, records = self._ray.get(self._ref)
        except self._ray.exceptions.RayError as error:
            raise failed(self._ray, error, "a task") from None
        for record in records:
            logging.getLogger(record.name).handle(record)
        return result  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End it; what it has is lost."""
        with suppress(Exception):  # it has ended, or its machine is gone
            self._ray.cancel(self._ref, force=True)


def failed(ray: Any, error: Any, what: str) -> Exception:
    """Exception for Ray's error: what the work raised, or that its process was lost."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, DovetailError):
        return cause
    if isinstance(cause, ray.exceptions.RaySystemError | ImportError) or _LACKS in str(error):
        lacking = str(error).partition(_LACKS)[2].partition("\n")[0]
        return ConfigError(
            f"the Ray cluster's machines cannot read {what}"
            + (f": they have no package {lacking.strip()}" if lacking else "")
            + "; install the same Dovetail, with its extras, on each of them as here"
        )
    if isinstance(error, ray.exceptions.RayTaskError):
        return error  # type: ignore[no-any-return]
    return NetworkError(
        f"the Ray cluster lost {what} {RETRIES + 1} times ({_first_line(error)}); see that its "
        "machines stay up and have the memory, then say the same again"
    )


class RayTasks(Tasks):
    """Computes tasks on a cluster, one on each of its cores.

    Twice as many as it has cores are on their way, so that none waits for the next to be drawn.

    Args:
        ray: the module, connected.
    """

    here = False

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    @property
    def slots(self) -> int:
        """Cores of the cluster, at this moment."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def share(self, value: Any) -> Any:
        """The value, put where all machines of the cluster find it; sent to each once."""
        return self.ray.put(value)

    def start(self, work: Any, given: Any, *, num_threads: int | None = None) -> Started[Any]:
        """Begin ``work`` of one task as soon as a core is free; ``work`` may be ``share``d.

        Args:
            num_threads: of PyTorch; None: as many as this process has.
        """
        call = self.ray.remote(_run).options(num_cpus=1, max_retries=RETRIES)
        how = num_threads or threads(), _versions()
        return Started(self.ray, call.remote(work, given, *how))

    def map(self, work: Callable[[T], R], given: Iterable[T]) -> Iterator[R]:
        shared, drawn = self.share(work), iter(given)
        started: deque[Started[R]] = deque()
        ahead, more = 2 * self.slots, True
        try:
            while True:
                while more and len(started) < ahead:
                    try:
                        started.append(self.start(shared, next(drawn)))
                    except StopIteration:
                        more = False
                if not started:
                    return
                result = started[0].result()
                started.popleft()
                yield result
        finally:  # whoever asks has enough, an error, or Ctrl-C
            for each in started:
                each.stop()

    def actors(self, kind: type, most: int, cpus: float, begun: Sequence[Actor]) -> list[Actor]:
        """``begun``, and as many more processes as cores are free: no more than ``most`` in all.

        Args:
            kind: what each has an object of, made with PyTorch's threads.
            cpus: cores that each takes.

        Raises:
            ConfigError: there is none: no machine has so many cores, or others keep them.
        """
        nodes = [each["Resources"].get("CPU", 0) for each in self.ray.nodes() if each["Alive"]]
        room = sum(int(cores / cpus + 1e-9) for cores in nodes)
        more = [Actor(self.ray, kind, cpus) for _ in range(min(most, room) - len(begun))]
        begins = {each.start("__ray_ready__").ref: each for each in more}
        if begins:
            wait = partial(self.ray.wait, list(begins))
            ready, waiting = wait(num_returns=len(begins), timeout=BEGUN_IN_S)
            if not (ready or begun):
                ready, waiting = wait(num_returns=1, timeout=FIRST_IN_S)
            for ref in waiting:
                begins[ref].stop()
            more = [begins[ref] for ref in ready]
        if not (begun or more):
            raise ConfigError(
                f"the Ray cluster has no machine with {cpus:g} free cores (cores of its machines: "
                f"{', '.join(f'{cores:g}' for cores in nodes)}); set engine.cpus to less, wait for "
                "what else runs there, or add machines"
            )
        return [*begun, *more]


class Actor:
    """A process of a cluster that stays, made again if it or its machine is lost.

    Args:
        ray: the module, connected.
        kind: what it has an object of, made with PyTorch's threads.
        cpus: cores that it takes.

    Attributes:
        made_by: what brings a new one to where the lost one was; each is given what calls it.
    """

    def __init__(self, ray: Any, kind: type, cpus: float) -> None:
        self._ray, self._kind = ray, kind
        self.made_by: dict[Any, Callable[[Callable[..., Any]], None]] = {}
        self._begin(cpus)

    def _begin(self, cpus: float) -> None:
        kind = self._ray.remote(self._kind).options(num_cpus=cpus)
        self._process = kind.remote(threads())

    def start(self, what: str, *given: Any) -> Called:
        """Call a method of its object."""
        return Called(self._ray, partial(self._call, what, *given), self._begin_again)

    def _call(self, what: str, *given: Any) -> Any:
        return getattr(self._process, what).remote(*given)

    def _begin_again(self) -> None:
        """On another machine, beside whatever computes there."""
        self.stop()
        self._begin(0)
        with suppress(self._ray.exceptions.RayActorError):  # lost again: the next call reports it
            for make in self.made_by.values():
                make(lambda what, *given: self._ray.get(self._call(what, *given)))

    def stop(self) -> None:
        """End it."""
        with suppress(Exception):  # its machine is gone
            self._ray.kill(self._process)


class Called:
    """A call that is on its way to an ``Actor``."""

    def __init__(self, ray: Any, call: Callable[[], Any], again: Callable[[], None]) -> None:
        self._ray, self._call, self._again = ray, call, again
        self.ref = call()

    def result(self) -> Any:
        """Result of the call; waits for it.

        Raises:
            DovetailError, NetworkError: as of ``Tasks.map``.
        """
        ray, ref = self._ray, self.ref
        for _ in range(RETRIES + 1):
            try:
                return ray.get(ref)
            except ray.exceptions.RayActorError as error:
                if error.actor_init_failed:  # it would fail anywhere
                    raise failed(ray, error, "a process") from None
                self._again()
                ref = self._call()
            except ray.exceptions.RayError as error:
                raise failed(ray, error, "a process") from None
        raise NetworkError(
            f"the Ray cluster lost a process {RETRIES + 1} times; see that its machines stay up "
            "and have the memory, and go on with --resume"
        )


def _versions() -> str:
    """Of what results depend on."""
    import torch

    from dovetail import __version__

    return f"Dovetail {__version__} and PyTorch {torch.__version__}"


def _run(
    work: Callable[[T], R], given: T, num_threads: int, versions: str
) -> tuple[R, list[logging.LogRecord]]:
    """In a process of the cluster: the result, and the warnings that it gave on the way.

    Raises:
        ConfigError: other versions than where the command runs.
    """
    import torch

    if versions != _versions():
        raise ConfigError(
            f"a machine of the Ray cluster, {socket.gethostname()}, has {_versions()}, and here "
            f"are {versions}; install the same on each"
        )
    torch.set_num_threads(num_threads)
    records = _Records()
    logger = logging.getLogger(_OURS)
    logger.addHandler(records)
    try:
        return work(given), records.records
    finally:
        logger.removeHandler(records)


class _Records(logging.Handler):
    """Keeps warnings, as text, until they can be told where the command runs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args, record.exc_info = record.getMessage(), (), None
        self.records.append(record)


def threads() -> int:
    """PyTorch's threads in this process."""
    import torch

    return torch.get_num_threads()


# --- A party's own cluster ------------------------------------------------------------------------

#: Where this process has its heavy parts computed; of a party's process, whose threads are many.
_current: Tasks = LOCAL


def current() -> Tasks:
    """Where this process has its heavy parts computed: here, or on its party's own cluster."""
    return _current


@contextmanager
def computing_at(address: str | None, key: str) -> Iterator[None]:
    """While open, ``current`` is the cluster at this address; None changes nothing.

    Raises:
        ConfigError: as of ``tasks_at``.
    """
    global _current
    if address is None:
        yield
        return
    before = _current
    with tasks_at(address, key) as tasks:
        _current = tasks
        try:
            yield
        finally:
            _current = before


# --- Reaching a cluster ---------------------------------------------------------------------------


@contextmanager
def tasks_at(address: str | None, key: str = "--ray") -> Iterator[Tasks]:
    """Context with what computes tasks.

    Args:
        address: None: this process. "auto": the cluster of this machine (``ray start``), or, where
            there is none, one of its cores that is started now. HOST:PORT or ray://HOST:PORT.
        key: what asked for it, in an error's words.

    Raises:
        ConfigError: Ray is not installed, or nothing answers there.
    """
    if address is None:
        yield LOCAL
        return
    if address == AUTO:
        _set_token()
    ray = imported(key)
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, key)
    try:
        yield RayTasks(ray)
    finally:
        if ours:
            ray.shutdown()


def _set_token() -> None:
    """Have a cluster that this process starts ask who connects for a token that nobody else has.

    Ray's ports listen on all addresses. These settings it reads once, when it is imported; a
    cluster that runs already has its own way.
    """
    runs = "RAY_ADDRESS" in os.environ or _CURRENT_CLUSTER.exists()
    if not runs and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def imported(key: str) -> Any:
    """The module ``ray``.

    Raises:
        ConfigError: it is not installed.
    """
    with needed(key, "'dovetail-fl[ray]'; or leave it out"):
        import ray
    return ray


def _connect(ray: Any, address: str, key: str) -> None:
    """Connect, or start a cluster of this machine's cores; no figures of use leave it.

    Raises:
        ConfigError: nothing answers there, or another version of Ray or Python.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address != AUTO:
        _check_answers(address, key)
    in_main = threading.current_thread() is threading.main_thread()
    ends = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        with warnings.catch_warnings(action="ignore"):  # what is wrong is reported below
            ray.init(
                address=None if address == AUTO else address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({"include_dashboard": False} if address == AUTO else {}),
            )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split())[:300]
        advice = (
            "install the cluster's versions of Ray and Python here"
            if "ersion" in text
            else "name the port of its head (mostly 6379), or ray:// and that of its client (10001)"
        )
        raise ConfigError(f"{key}: no Ray cluster at {address!r}: {text}; {advice}") from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, ends)  # Ray takes it


def _check_answers(address: str, key: str) -> None:
    """Ray itself waits for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    port = None
    with suppress(ValueError):  # no number
        port = parts.port
    if not parts.hostname or port is None or parts.scheme not in ("", "ray"):
        raise ConfigError(
            f"{key} takes auto, HOST:PORT or ray://HOST:PORT of a Ray cluster, got {address!r}"
        )
    try:
        with socket.create_connection((parts.hostname, port), REACHED_IN_S) as reached:
            _check_private(reached.getpeername()[0], address, key)
    except OSError as error:
        raise ConfigError(
            f"{key}: nothing answers at {address} ({error.strerror or error}); start a cluster "
            "there (ray start --head --port 6379), or name one that runs"
        ) from None


def _check_private(peer: str, address: str, key: str) -> None:
    """Ray is neither encrypted nor, by default, does it ask who connects."""
    if ipaddress.ip_address(peer.partition("%")[0]).is_global and not os.environ.get(
        "RAY_USE_TLS", ""
    ).strip("0"):
        raise ConfigError(
            f"{key}: {address} is {peer}, an address of the open internet, and Ray would send "
            "tables there in the clear; name a private address (of a VPN, or of an SSH tunnel), "
            "or set up TLS in Ray (RAY_USE_TLS=1)"
        )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
