"""``dovetail join``: a party goes online, and answers one driver until it is told to stop.

    shop.toml                          the party file
    shop.site/                         what the party keeps; only its owner may enter
        aligned/DRIVER.safetensors     its rows of the samples it shares with that driver
        checkpoints/DRIVER/RUN/ALGORITHM/  its state in that run; of the last 16 runs
        ledger.jsonl                   what left it, and for whom
        refusals.jsonl                 what it refused, to whom and why
        join.log

**Which alignment a run uses.** An alignment has a name, which is the run id of its messages. When
it is complete, each responder keeps its rows under that name (``alignment/stored.py``), in the
place of those it had with that driver; the driver keeps its own. The id of every run that trains on
them is ``NAME/...`` (``stored.training_run``). A party opens such a run only if the rows it keeps
are of alignment NAME, with this driver, and its table is still the one that was aligned. So two
sides that remember different alignments find out before the first code is sent, and neither can
go on with numbers of samples that mean other people.

**What a driver can set.** It sends messages, and a message has no field for a network, a loss, a
rate, a table or a policy: these come from the party file, which is read once, when ``join`` starts.
CHFL and HyFEM are the exceptions: what is learned together has the coordinator's settings, which
their ``Begin`` carries. A party must allow both by name, they are not among a policy's defaults.
"""

from __future__ import annotations

import copy
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from rich.status import Status
from rich.text import Text
from torch import Tensor

from dovetail.alignment import psi
from dovetail.alignment.stored import StoredRows, alignment_of, digest, load_rows, save_rows
from dovetail.cli.methods import METHODS
from dovetail.cli.methods.members import Asked, Maker
from dovetail.cli.partyfile import ALGORITHMS, Site, open_site
from dovetail.cli.sections import ADDRESS
from dovetail.cli.setup import device as device_of
from dovetail.errors import AlignmentError, CheckpointError, ConfigError
from dovetail.models import Model
from dovetail.network import Message, Party
from dovetail.network.certificates import Credentials, certificate_name, make_folder
from dovetail.network.checkpoint import Keeper
from dovetail.network.dialling import Event, serve
from dovetail.network.frames import printable
from dovetail.network.host import MAX_RUNS, Host
from dovetail.network.ledger import LedgerFile

#: Stands for a run id's slashes in the name of its folder; no run's id has one.
_SLASH = "+"

#: Runs of one driver whose states are kept; the oldest go.
KEPT_RUNS = 16

#: Seconds from one report of runs to the next.
REPORT_S = 30.0

#: Seconds after its last message that a run counts as idle.
IDLE_S = 5.0

#: Seconds until a signal is noticed, and from one look of the status line to the next.
TICK_S = 0.2

_log = logging.getLogger(__name__)


def run_join(
    path: Path,
    *,
    address: str,
    driver: str | None,
    certificates: Path | None,
    home: Path | None,
    device_name: str | None,
    quiet: bool,
) -> None:
    """Serve until told to stop."""
    if not ADDRESS.fullmatch(address):
        raise ConfigError(
            f"--driver takes HOST:PORT, for example bank.example.org:7443, got {address!r}"
        )
    device = device_of(device_name or "cpu")
    site = open_site(path)
    driver = _driver(site, driver)
    credentials = Credentials.load(certificates or certificates_of(site), site.name)
    stop = threading.Event()
    with (
        Home(home or path.with_name(f"{path.stem}.site")) as kept,
        logged(kept.path / "join.log"),
        Teller(driver, quiet=quiet) as teller,
        LedgerFile(kept.path / "ledger.jsonl", site.name) as ledger,
        threads_end(),
        _signals() as signalled,
    ):
        refusals = Refusals(kept.path / "refusals.jsonl", teller.say)
        runs = Runs(site, kept.path, refusals, teller, device)
        host = Host(
            site.name,
            runs.open,
            admit=site.policy.admit,
            on_refusal=refusals.record,
            ledger=ledger,
            max_bytes=site.file.policy.max_message_bytes,
        )
        for line in describe(site, driver, address, kept.path):
            teller.line(line)
        with ThreadPoolExecutor(1, "dovetail-serve") as pool:
            serving = pool.submit(
                serve,
                host,
                address,
                credentials,
                driver=driver,
                stop=stop,
                on_event=teller.event,
            )
            # Here and not in a handler: an Event may not be set by a signal that interrupts it.
            while not (signalled or serving.done()):
                wait([serving], timeout=TICK_S)
                teller.tick()
            stop.set()
            serving.result()
        teller.stopped(ledger.last_hash)


def _driver(site: Site, chosen: str | None) -> str:
    """Whose certificate the driver must show.

    Raises:
        ConfigError: nobody was named, several are, or the policy would refuse them.
    """
    drivers = site.file.policy.drivers
    if chosen is None:
        if drivers is None or len(drivers) != 1:
            named = ", ".join(drivers or ()) or "none"
            raise ConfigError(
                f"{site.path}: say who drives with --name NAME, the name in the driver's "
                f"certificate; policy.drivers names {named}"
            )
        (chosen,) = drivers
    site.policy.check_driver(chosen)
    return certificate_name(chosen)


def certificates_of(site: Site) -> Path:
    """Where the party's certificates are, unless somebody says."""
    name = certificate_name(site.name)
    places = [site.path.parent / "certificates" / name, Path("certificates") / name]
    for place in places:
        if place.is_dir():
            return place
    raise ConfigError(
        f"there is no folder {places[0]} with ca.pem, {name}.pem and {name}.key; name it with "
        f"--certificates, or make them: dovetail certificates {name} --request"
    )


def describe(site: Site, driver: str, address: str, home: Path) -> Iterator[str]:
    """What the party will and will not agree to; nothing of its table but its size."""
    policy = site.file.policy
    num_columns = len([name for names in site.table.blocks.values() for name in names])
    columns = f", {num_columns} columns" if num_columns else ""
    yield f"{site.name!r} joins {driver!r} at {address}"
    yield f"  table      {site.table.num_rows:,} rows{columns}"
    known = {each.policy for each in ALGORITHMS.values()}
    agreed = [name for name in policy.algorithms if name in known]
    yield f"  agrees to  {', '.join(agreed) or 'nothing'}"
    if "align" in agreed:
        least = f", with sets of {policy.min_ids:,} ids or more" if policy.min_ids else ""
        yield f"  aligns by  {' or '.join(policy.align_modes) or 'no mode'}{least}"
    for method in METHODS.values():
        for line in method.describe(site, agreed):
            yield f"  {line}"
    if policy.messages is not None:
        yield f"  messages   {', '.join(policy.messages) or 'none'}"
    weights = [each.policy for each in ALGORITHMS.values() if each.weights]
    weights = [name for name in weights if name in agreed]
    unlimited = f" (of {' and '.join(weights)} by size alone)" if weights else ""
    yield (
        f"  refuses    all else, and messages above {policy.max_message_mb:g} MB or "
        f"{policy.max_rows:,} rows{unlimited}"
    )
    yield f"  keeps      {home}/ (ledger.jsonl, refusals.jsonl, join.log)"


# --- What it keeps --------------------------------------------------------------------------------


class Home:
    """The party's folder; one process at a time uses it, and only its owner reads what is written.

    Raises:
        ConfigError: on entering, if another process does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Home:
        self._umask = os.umask(0o077)
        try:
            self._enter()
        except BaseException:
            os.umask(self._umask)
            raise
        return self

    def _enter(self) -> None:
        make_folder(self.path)
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(
                f"another dovetail command uses {self.path}; stop it, or give dovetail join a "
                "folder of its own with --home"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)
        os.umask(self._umask)


class Refusals:
    """What was refused, a line each; what is repeated is counted, and told at 10, 100, ... times.

    Args:
        path: the file.
        say: shows a line to whoever watches.
    """

    #: Different refusals that are written; a driver that invents more cannot fill the disk.
    MOST = 10_000

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._counts: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    def record(self, driver: str, message: str, run: str, why: str) -> None:
        """Write one; ``message`` is empty where none was read."""
        message, run, why = message[:100], run[:200], why[:500]
        with self._lock:
            what = (driver, message, why)
            if what not in self._counts and len(self._counts) >= self.MOST:
                what = (
                    driver,
                    "",
                    "refusals of many kinds; from here on only their number is kept",
                )
                message, run, why = "", "", what[2]
            self._counts[what] = count = self._counts.get(what, 0) + 1
            if not re.fullmatch("10*", str(count)):
                return
            line = {
                "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
                "driver": driver,
                "message": message,
                "run": run,
                "why": why,
                "times": count,
            }
            try:
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(handle, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:  # a full disk ends no training
                _log.warning("a refusal is not written to %s: %s", self._path, error)
        times = f" ({count} times)" if count > 1 else ""
        self._say(f"refused {message or 'a message'} of {driver!r}: {why}{times}")


# --- What it answers ------------------------------------------------------------------------------


@dataclass(eq=False)
class Activity:
    """What a run has cost so far; bytes are those of tensors."""

    num_messages: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    reported: int = 0
    last: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return (
            f"{self.num_messages:,} messages, {_size(self.received_bytes)} in, "
            f"{_size(self.sent_bytes)} out"
        )


class Watched:
    """A party whose messages are counted, and what its policy refuses of them is written down.

    That is a message of more rows than allowed, or an alignment of another kind.
    """

    def __init__(
        self,
        party: Party,
        activity: Activity,
        max_rows: int,
        refuse: Callable[[Message, str], None],
    ) -> None:
        self.party = party
        self._activity = activity
        self._max_rows = max_rows
        self._refuse = refuse

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        return self.party.accepts

    def handle(self, message: Message) -> Message:
        tensors = message.tensors()
        rows = max((len(each) for each in tensors.values() if each.ndim), default=0)
        if rows > self._max_rows:
            why = f"refuses {rows} rows in one message: its policy allows {self._max_rows}"
            self._refuse(message, why)
            raise ConfigError(why)
        try:
            answer = self.party.handle(message)
        except AlignmentError as refusal:
            if isinstance(message, psi.Begin):
                self._refuse(message, str(refusal))
            raise
        activity = self._activity
        activity.num_messages += 1
        activity.received_bytes += sum(each.nbytes for each in tensors.values())
        activity.sent_bytes += sum(each.nbytes for each in answer.tensors().values())
        activity.last = time.monotonic()
        return answer


class Aligning:
    """A responder whose rows are kept as soon as an alignment has found them."""

    accepts = psi.Responder.accepts

    def __init__(self, responder: psi.Responder, keep: Callable[[Tensor], None]) -> None:
        self._responder = responder
        self._keep = keep

    def handle(self, message: Message) -> Message:
        answer = self._responder.handle(message)
        if isinstance(message, psi.Places):
            try:
                rows_S = self._responder.rows_S
            except AlignmentError:  # there are none before the last batch
                return answer
            self._keep(rows_S)
        return answer


class Runs:
    """Makes the party's side of each run that its policy allows.

    Args:
        site: the party file and its table; inputs are fitted to all of its rows, once.
        home: where rows and states are kept.
        refusals: told of what a host lets pass and the policy does not.
        teller: told of runs that begin.
        device: where it computes.
    """

    def __init__(
        self,
        site: Site,
        home: Path,
        refusals: Refusals,
        teller: Teller,
        device: torch.device,
    ) -> None:
        self._site = site
        self._home = home
        self._refusals = refusals
        self._teller = teller
        self._device = device
        policies = site.file.policy.algorithms
        # Both now and not when asked: mistakes in the table are told at once, and how long it
        # takes depends on the table.
        self._responder = site.responder() if "align" in policies else None
        allowed = [prefix for prefix, each in ALGORITHMS.items() if each.policy in policies]
        self._makers: dict[str, Maker] = {}
        for method in METHODS.values():
            self._makers |= method.members(site, allowed)

    def open(self, run: str, algorithm: str, driver: str) -> Party:
        """The party that answers this run's messages of this algorithm.

        Raises:
            ConfigError: the policy does not allow it.
            AlignmentError: there are no rows of the alignment that the run is of.
        """
        party = self._open(run, algorithm, driver)
        activity = self._teller.run(run, algorithm)

        def refuse(message: Message, why: str) -> None:
            self._refusals.record(driver, message.wire_name(), run, why)

        weights = ALGORITHMS[algorithm].weights
        max_rows = sys.maxsize if weights else self._site.file.policy.max_rows
        return Watched(party, activity, max_rows, refuse)

    def _open(self, run: str, algorithm: str, driver: str) -> Party:
        if algorithm not in ALGORITHMS:
            raise ConfigError(f"refuses {algorithm[:100]!r}: no such algorithm is known here")
        self._site.policy.check(ALGORITHMS[algorithm].policy, driver)
        if algorithm == "psi":
            assert self._responder is not None
            # A copy has the same points, which took long, and a run of its own.
            return Aligning(
                copy.copy(self._responder), lambda rows_S: self._keep(run, driver, rows_S)
            )
        models = self._home / "models" / run.replace("/", _SLASH)
        made = self._makers[algorithm](
            Asked(
                self._device,
                lambda: self._stored(run, driver).rows_S,
                lambda model, scores: self._keep_model(model, scores, models),
            )
        )
        states = self._states(driver) / run.replace("/", _SLASH)
        self._drop_oldest(states)
        folder = states / algorithm
        keeper = Keeper(made(), folder)
        if not ALGORITHMS[algorithm].goes_on:
            return keeper
        try:
            step = keeper.resume_latest()
        except CheckpointError as error:  # the driver begins anew, or hears that it must
            _log.warning("run %s: %s", run, error)
            return Keeper(made(), folder)
        if step is not None:
            self._teller.say(f"run {run} goes on from step {step}, which is saved here")
        return keeper

    def _keep_model(self, model: Model, scores: Mapping[str, float], folder: Path) -> None:
        """Save what this party can use alone, and say how good it is on its own test rows."""
        make_folder(folder.parent)
        model.save(folder)
        told = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self._teller.say(f"model {folder}{': on its test rows ' if told else ''}{told}")

    def _keep(self, run: str, driver: str, rows_S: Tensor) -> None:
        """Keep the rows of a finished alignment."""
        path, ids = self._path(driver), self._site.table.ids
        replaced = run
        with suppress(AlignmentError):  # there is none, or none that any run can use
            replaced = load_rows(path, self._site.name, ids).run
        try:
            make_folder(path.parent)
            save_rows(path, StoredRows(self._site.name, run, rows_S, digest(ids), driver))
        except (AlignmentError, ConfigError, OSError) as error:  # names files of this machine
            _log.error("run %s: %s", run, error)
            raise AlignmentError(
                "it cannot save its rows of the alignment; its log has the details"
            ) from None
        if replaced != run:
            self._forget(driver, replaced)
        num_shared = int((rows_S >= 0).sum())
        self._teller.say(
            f"aligned with {driver!r}: {num_shared:,} of {self._site.table.num_rows:,} rows are "
            f"shared (alignment {run})"
        )

    def _states(self, driver: str) -> Path:
        return self._home / "checkpoints" / certificate_name(driver)

    def _forget(self, driver: str, alignment: str) -> None:
        """Drop the states of runs of an alignment whose rows were replaced."""
        for folder in self._states(driver).glob("*"):
            if folder.name.partition(_SLASH)[0] == alignment:
                shutil.rmtree(folder, ignore_errors=True)

    def _drop_oldest(self, opened: Path) -> None:
        """Keep the states of a driver's last runs, this one among them."""

        def saved(folder: Path) -> float:
            with suppress(OSError):
                return max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
            return 0.0

        others = [folder for folder in opened.parent.glob("*") if folder != opened]
        for folder in sorted(others, key=saved, reverse=True)[KEPT_RUNS - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)

    def _stored(self, run: str, driver: str) -> StoredRows:
        """The rows that a run is to use.

        Raises:
            AlignmentError: none are kept, or they are of another alignment, table or driver.
        """
        again = f"align first (at {driver!r}: dovetail align RUN)"
        path = self._path(driver)
        if not path.exists():
            raise AlignmentError(f"is not aligned with {driver!r} yet; {again}")
        try:
            stored = load_rows(path, self._site.name, self._site.table.ids)
        except AlignmentError as error:  # names files of this machine, which the driver need not
            _log.warning("run %s: %s", run, error)
            raise AlignmentError(
                f"the rows it keeps of the alignment with {driver!r} do not fit its table, which "
                f"has changed since; {again}"
            ) from None
        asked = alignment_of(run)
        if stored.run != asked or stored.driver != driver:
            raise AlignmentError(
                f"the run is of alignment {asked!r}, and this party's rows are of "
                f"{stored.run!r} with {stored.driver!r}; {again}"
            )
        return stored

    def _path(self, driver: str) -> Path:
        return self._home / "aligned" / f"{certificate_name(driver)}.safetensors"


# --- What is said ---------------------------------------------------------------------------------


class Teller:
    """Tells whoever watches: lines, and on a terminal a status line below them.

    Args:
        driver: its name.
        quiet: say nothing.
    """

    def __init__(self, driver: str, *, quiet: bool) -> None:
        self._driver = driver
        self._console = Console(quiet=quiet)
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], Activity] = {}
        self._connected = False
        self._reported = time.monotonic()
        self._status: Status | None = None
        if self._console.is_terminal and not quiet:
            self._status = Status("", console=self._console)

    def __enter__(self) -> Teller:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def line(self, text: str) -> None:
        """One line, as it is: names and causes come from others, and are no markup."""
        self._console.print(Text(printable(text)), highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.file.flush()

    def say(self, text: str) -> None:
        """One line with the time."""
        _log.info("%s", text)
        self.line(f"{datetime.now():%H:%M:%S}  {text}")

    def event(self, event: Event) -> None:
        """What happened to the line to the driver."""
        self._connected = event.kind == "connected"
        self.say(event.text)

    def run(self, run: str, algorithm: str) -> Activity:
        """A run begins, or is taken up again."""
        activity = Activity()
        with self._lock:
            self._runs[run, algorithm] = activity
            while len(self._runs) > MAX_RUNS:
                del self._runs[next(iter(self._runs))]
        self.say(f"run {run} ({ALGORITHMS[algorithm].policy}) begins")
        return activity

    def tick(self) -> None:
        """Keeps the status line fresh; reports runs every now and then, and when they fall idle."""
        now = time.monotonic()
        with self._lock:
            runs = dict(self._runs)
        if self._status is not None:
            state = "connected to" if self._connected else "waiting for"
            busiest = max(runs.items(), key=lambda item: item[1].last, default=None)
            doing = "" if busiest is None else f"; run {busiest[0][0]}: {busiest[1]}"
            self._status.update(Text(f"{state} {self._driver}{doing}; Ctrl-C stops"))
        is_due = now - self._reported >= REPORT_S
        if is_due:
            self._reported = now
        for (run, _), activity in runs.items():
            is_idle = now - activity.last >= IDLE_S
            if (is_due or is_idle) and activity.num_messages != activity.reported:
                activity.reported = activity.num_messages
                self.say(f"run {run}: {activity}{', idle' if is_idle else ''}")

    def stopped(self, last_hash: str) -> None:
        """The end; whoever notes the hash can tell later whether the ledger lost its last lines."""
        with self._lock:
            runs = dict(self._runs)
        for (run, _), activity in runs.items():
            if activity.num_messages != activity.reported:
                self.say(f"run {run}: {activity}")
        self.say(f"stopped; the ledger's last hash is {last_hash}")


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """The log of this package goes to a file that does not grow without end."""
    handler = RotatingFileHandler(path, maxBytes=10_000_000, backupCount=3, encoding="utf-8")
    path.chmod(0o600)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger("dovetail")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()


@contextmanager
def threads_end(timeout_s: float = 5.0) -> Iterator[None]:
    """Waits for threads that were started meanwhile: gRPC's are daemons.

    One that is still in C++ when the interpreter leaves takes the process down with SIGABRT.
    """
    before = set(threading.enumerate())
    try:
        yield
    finally:
        deadline = time.monotonic() + timeout_s
        for thread in set(threading.enumerate()) - before:
            thread.join(max(0.0, deadline - time.monotonic()))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Holds the first Ctrl-C or SIGTERM; a second one ends the process as ever."""
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for each, old in before.items():
            signal.signal(each, old)

    before = {each: signal.signal(each, catch) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for each, old in before.items():
            signal.signal(each, old)
