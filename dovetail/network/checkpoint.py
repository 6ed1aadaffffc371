"""Checkpoints: driver and parties save at the same step, each at its site; a run goes on from it.

    driver                              party
    Save(done=7, kept=6)   -------->    writes 7.safetensors; keeps 6, drops the rest
                           <--------    Saved(7)
    writes driver.safetensors (7)

The driver writes last and sends the parties which step its own file has. So whatever is killed
when, every party has the step that the driver will ask for, or, where it missed that save and the
driver went on without it, the newest one before. Each file is written whole or not at all, and
holds tensors and JSON: nothing in it can be executed.

An algorithm gets all this by ``state`` and ``restore`` of its driver and its parties, and by

    done = checkpoint.resume(driver, network)
    if not done:
        begin(driver, network)
        checkpoint.save(0, driver, network)
    for number in range(done + 1, last + 1):
        ...
        yield ...  # who listens has written its line when the generator goes on
        checkpoint.save(number, driver, network)
"""

from __future__ import annotations

import json
import logging
import math
import re
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from dovetail.errors import (
    CheckpointError,
    ConfigError,
    MessageError,
    PartyError,
    TrainingError,
)
from dovetail.network.engine import Engine, Party
from dovetail.network.messages import Message
from dovetail.network.retry import write_private

FORMAT = "dovetail checkpoint 1"

_log = logging.getLogger(__name__)

#: Dicts with string or integer keys, lists and tuples of these; tensors, numbers, strings, bools
#: and None.
State = dict[str, Any]


class Stateful(Protocol):
    """Whatever a run depends on: saved between two steps, and put back later."""

    def state(self) -> State:
        """All that the next step depends on and the constructor's arguments do not give."""

    def restore(self, state: State) -> None:
        """Go on from there; called on an object made with the same arguments, new or used."""


class StatefulParty(Party, Stateful, Protocol):
    """A party that can be saved; a restored one needs no other message before the next step."""


# --- What crosses the boundary -----------------------------------------------------------------


class Save(Message):
    """Driver -> party: keep your state at its site, as that of this step.

    ``kept`` is the step that the driver would restore if it fell now; older ones may go.
    """

    algorithm: str  # the file whose party is meant, as in the names of its messages
    done: int
    kept: int
    head: str = ""  # of the driver's ledger (heads.py), put in as the message leaves


class Saved(Message):
    """Party -> driver: the state of this step is on its disk."""

    done: int
    head: str = ""  # of the party's ledger


class Restore(Message):
    """Driver -> party: go on from the state of this step; 0 forgets all that was saved.

    If not ``exactly``, the newest state that is no newer is enough.
    """

    algorithm: str
    done: int
    exactly: bool


class Restored(Message):
    """Party -> driver: the step it goes on from; 0 if it has nothing and must begin again."""

    done: int


#: What a driver may ask of every party that saves, whatever the algorithm.
REQUESTS = (Save, Restore)


# --- What a party executes ---------------------------------------------------------------------


class ChangedError(CheckpointError):
    """A party is not what it was when it saved; its states are left as they are."""


class Checkpointed:
    """A party that saves and restores its state when the driver says so; else the party itself.

    Args:
        party: whose state it is.
        folder: where its states lie; one folder for one run and algorithm.
        allow: told before a state is written how many bytes its tensors have; raises to refuse.
        about: what the party's states are of, as name -> digest; none is used where one differs.
        restored: called with the party whenever it has gone back to a state.

    Attributes:
        more: what ``park`` kept beside the state that it has gone on from.
    """

    def __init__(
        self,
        party: StatefulParty,
        folder: str | Path,
        *,
        allow: Callable[[int], None] | None = None,
        about: Mapping[str, str] | None = None,
        restored: Callable[[StatefulParty], None] = lambda party: None,
    ) -> None:
        self.party = party
        self._restored = restored
        self.folder = Path(folder)
        self._allow = allow
        self._about = dict(about or {})
        self._changed = ""
        self.more: State = {}

    @property
    def accepts(self) -> tuple[type[Message], ...]:
        return (*self.party.accepts, *REQUESTS)

    def handle(self, message: Message) -> Message:
        if self._changed:
            # It must not begin anew in the middle of a run, either: only where the driver does.
            if not (isinstance(message, Restore) and message.done == 0):
                raise ChangedError(self._changed)
            self._changed = ""
        match message:
            case Save():
                with self._untold(message.done):
                    return self._save(message)
            case Restore():
                self._check_has(message)
                with self._untold(message.done):
                    return self._restore(message)
        return self.party.handle(message)

    def resume_latest(self) -> int | None:
        """Go on from the newest state that can be read: for a party whose process was restarted.

        Returns its step, or None if there is none.

        Raises:
            ChangedError: the party is not what it was; it answers nothing until it is asked
                to forget its states.
            CheckpointError: the state does not fit the party as it is now.
        """
        try:
            return self._restore_newest(self.steps())
        except ChangedError as error:
            self._changed = str(error)
            raise

    def park(self, path: Path, more: State) -> None:
        """Write the state that it is in, which no step is of, and more beside it.

        Raises:
            CheckpointError: it cannot be written.
        """
        try:
            state = self.party.state()
        except TrainingError:  # it has nothing before training began
            state = None
        if state is not None and self._allow is not None:
            self._allow(_num_bytes(state))
        save_state(path, {"party": state, "more": more}, {"of": self._about} if self._about else {})

    def resume_parked(self, path: Path) -> None:
        """Go on from what ``park`` wrote; ``more`` is what was beside it.

        Raises:
            ChangedError, CheckpointError: as of ``resume_latest``.
        """
        state, about = load_state(path)
        try:
            self._check_same(about)
        except ChangedError as error:
            self._changed = str(error)
            raise
        if state["party"] is not None:
            with _fitting(path):
                self.party.restore(state["party"])
            self._restored(self.party)
        self.more = state["more"]

    def steps(self) -> list[int]:
        """Which steps are on its disk, the newest first."""
        if not self.folder.is_dir():
            return []
        names = (re.fullmatch(r"(\d+)\.safetensors", path.name) for path in self.folder.iterdir())
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def _save(self, message: Save) -> Saved:
        if not 0 <= message.done < 2**63:
            raise MessageError(f"{message.wire_name()}: there is no step {message.done}")
        state = self.party.state()
        if self._allow is not None:
            self._allow(_num_bytes(state))
        about = {"done": message.done, **({"of": self._about} if self._about else {})}
        save_state(self._path(message.done), state, about)
        older = [step for step in self.steps() if step <= message.kept]
        self._forget(but=(message.done, *older[:1]))  # it may have missed the save of ``kept``
        return Saved(message.done)

    def _restore(self, message: Restore) -> Restored:
        if message.done == 0:
            self._forget(but=())
            return Restored(0)
        if not message.exactly:
            usable = [step for step in self.steps() if step <= message.done]
            return Restored(self._restore_newest(usable) or 0)
        self._put_back(message.done, *load_state(self._path(message.done)))
        return Restored(message.done)

    def _check_has(self, message: Restore) -> None:
        if message.done and message.exactly and message.done not in self.steps():
            have = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(
                f"it has no state of step {message.done} (it has: {have}); start anew with "
                "--overwrite"
            )

    @contextmanager
    def _untold(self, step: int) -> Iterator[None]:
        """The driver hears that it failed; paths and sizes of networks stay in the log here."""
        try:
            yield
        except ChangedError:
            raise  # names neither
        except CheckpointError as error:
            _log.warning("%s", error)
            raise CheckpointError(
                f"its saved state of step {step} cannot be read, written or does not fit; its log "
                "has the details: mend that there, or start anew with --overwrite"
            ) from None

    def _restore_newest(self, steps: list[int]) -> int | None:
        for step in steps:
            try:
                state, about = load_state(self._path(step))
            except CheckpointError:  # damaged: the one before it is why two are kept
                continue
            self._put_back(step, state, about)
            return step
        return None

    def _put_back(self, step: int, state: State, about: State) -> None:
        self._check_same(about, f"step {step}")
        with _fitting(self._path(step)):
            self.party.restore(state)
        self._restored(self.party)

    def _check_same(self, about: State, where: str = "its last letter") -> None:
        """Refuse a state of other rows or settings; one that does not say of which is enough.

        Raises:
            ChangedError: naming what differs.
        """
        then = about.get("of", {})
        changed = [name for name, now in self._about.items() if then.get(name, now) != now]
        if changed:
            raise ChangedError(
                f"refuses to go on from {where}: since it saved that, its "
                f"{' and its '.join(changed)} changed; put back what was there and start it "
                "again, or align and train anew"
            )

    def _forget(self, *, but: tuple[int, ...]) -> None:
        for step in set(self.steps()) - set(but):
            self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"{step}.safetensors"


# --- What the driver executes ------------------------------------------------------------------


class Checkpoint:
    """The driver's side of a run's checkpoints: ``driver.safetensors`` in a folder.

    Args:
        folder: where it lies; one folder for one run of one algorithm. None saves nothing.
        about: what the run is (method, seed, settings); a checkpoint about another is refused.
        every: steps from one save to the next.
        last: the run's last step, which is saved in any case.
        timeout_s: how long parties may take to save or restore.

    Attributes:
        extra: more to keep with the driver's state; ``resume`` puts it back.
        failures: party -> why it did not save or restore when last asked.
        behind: party -> the older step it goes on from, after a lenient ``resume``; 0: none.
    """

    def __init__(
        self,
        folder: str | Path | None,
        *,
        about: Mapping[str, Any] | None = None,
        every: int = 1,
        last: int | None = None,
        timeout_s: float | None = 60.0,
    ) -> None:
        if every < 1:
            raise ConfigError(
                f"checkpoint_every must be 1 or more steps here, got {every}: set it so"
            )
        self.folder = None if folder is None else Path(folder)
        self.about = dict(about or {})
        self.every = every
        self.last = last
        self.timeout_s = timeout_s
        self.extra: State = {}
        self.failures: dict[str, PartyError] = {}
        self.behind: dict[str, int] = {}
        self._tolerate_missing = False
        self._kept = 0
        self._unsaved = False

    @property
    def lost(self) -> tuple[str, ...]:
        """Parties that have no state any more, after a lenient ``resume``; they must begin
        again."""
        return tuple(name for name, step in self.behind.items() if step == 0)

    @classmethod
    def none(cls) -> Checkpoint:
        """Saves nothing and costs nothing."""
        return cls(None)

    def hosting(self, parties: Mapping[str, StatefulParty]) -> dict[str, Party]:
        """Parties of this process, saving in this folder: what ``InProcess`` is given."""
        if self.folder is None:
            return dict(parties)
        return {
            name: Checkpointed(party, self.folder / "parties" / name)
            for name, party in parties.items()
        }

    def done(self) -> int:
        """The step that is saved here, 0 if none; reads no tensor.

        Raises:
            ConfigError: the checkpoint is about another run.
            CheckpointError: it cannot be read.
        """
        path = self._path()
        if path is None or not path.exists():
            return 0
        return self._checked(path, read_about(path))

    def resume(self, driver: Stateful, network: Engine, *, tolerate_missing: bool = False) -> int:
        """Put driver, parties and ledger back to the last save; gives its step, 0 to begin again.

        Args:
            driver: made with the same arguments as the one that was saved.
            network: reaches the parties.
            tolerate_missing: the algorithm goes on without a party that fails, or with its older
                state.

        Raises:
            ConfigError: the checkpoint is about another run.
            CheckpointError: it cannot be read, or does not fit the driver.
            PartyError: a party cannot go on from that step; not if ``tolerate_missing``.
        """
        self._tolerate_missing = tolerate_missing
        self._kept = 0
        path = self._path()
        if path is None:
            return 0
        if not path.exists():
            self._restore_parties(0, driver, network)  # an older run's states are forgotten
            return 0
        state, about = load_state(path)
        done = self._checked(path, about)
        self._restore_parties(done, driver, network)
        with _fitting(path):
            driver.restore(state["driver"])
            network.ledger.restore(state["ledger"])
        self.extra.clear()
        self.extra.update(state["extra"])
        self._kept = done
        return done

    def begin_anew(self, driver: Stateful, network: Engine) -> None:
        """Have parties forget what a process before this one began, where there may be one.

        For what saves nothing while it asks: a party counts what starts, and would refuse it twice.
        """
        path = self._path()
        if path is None:
            return
        self._tolerate_missing = True
        begun = path.with_name("begun")
        if begun.exists():
            self._restore_parties(0, driver, network)
        begun.parent.mkdir(parents=True, exist_ok=True)
        begun.touch()

    def save(self, done: int, driver: Stateful, network: Engine) -> None:
        """Save this step, at the parties first; ``failures`` has those that did not.

        Step 0 is saved by the parties alone: one that falls in the first step returns as it began,
        while a driver that falls starts again. Where no party can be spared, the driver keeps its
        older file until all have saved. A file that cannot be written ends no training: the older
        one is still there, and the log has a warning.
        """
        path = self._path()
        if path is None or (done % self.every and done != self.last):
            return
        request = Save(algorithm_of(driver), done, self._kept)
        requests = dict.fromkeys(network.parties, request)
        replies = network.ask(requests, Saved, timeout_s=self.timeout_s)
        for name, failure in replies.failures.items():
            if name not in self.failures:  # told once, not at each step that it stays away
                _log.warning("step %d is not saved there: %s", done, failure)
        self.failures = replies.failures
        if done == 0 or (self.failures and not self._tolerate_missing):
            return
        state = {"driver": driver.state(), "ledger": network.ledger.state(), "extra": self.extra}
        try:
            save_state(path, state, {"done": done, "run": self.about})
        except CheckpointError as error:
            if not self._unsaved:  # told once, not at each step that the disk is full
                _log.warning("step %d is not saved, and training goes on: %s", done, error)
            self._unsaved = True
            return
        self._unsaved = False
        self._kept = done

    def _restore_parties(self, done: int, driver: Stateful, network: Engine) -> None:
        request = Restore(algorithm_of(driver), done, exactly=not self._tolerate_missing)
        requests = dict.fromkeys(network.parties, request)
        replies = network.ask(requests, Restored, timeout_s=self.timeout_s)
        self.failures = replies.failures
        self.behind = {name: reply.done for name, reply in replies.items() if reply.done != done}
        if self._tolerate_missing:
            # A party that cannot begin says so itself, when it is asked to.
            level = logging.WARNING if done else logging.INFO
            for failure in self.failures.values():
                _log.log(level, "it does not go back to step %d: %s", done, failure)
            for name, step in self.behind.items():
                _log.warning("party %r goes on from step %d, not %d", name, step, done)
            return
        replies.or_raise()
        for name, step in self.behind.items():
            why = f"was to go on from step {done}, went on from {step}; train anew with --overwrite"
            raise PartyError(name, why)

    def _checked(self, path: Path, about: Mapping[str, Any]) -> int:
        """The step of a checkpoint that is about this run."""
        done, run = about.get("done"), about.get("run")
        if type(done) is not int or not isinstance(run, dict):
            raise CheckpointError(
                f"{path} is no checkpoint of a driver; start anew with --overwrite"
            )
        differences = list(_differences(run, self.about))
        if differences:
            raise ConfigError(
                f"{path} is from another run: {'; '.join(differences[:3])}; resume with the same "
                "settings, or start anew with --overwrite"
            )
        return done

    def _path(self) -> Path | None:
        return None if self.folder is None else self.folder / "driver.safetensors"


def algorithm_of(driver: Stateful) -> str:
    """The first word of its messages' names: its ``family``, or the file its class is in."""
    return getattr(driver, "family", "") or type(driver).__module__.rpartition(".")[2]


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Reports a state that is not of this object, which torch does in several ways."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        why = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise CheckpointError(
            f"{path} does not fit what is to go on from it ({why}); resume with the same networks "
            "and settings, or start anew with --overwrite"
        ) from None


def _differences(then: Any, now: Any, name: str = "") -> Iterator[str]:
    """Differences between two nested descriptions, one phrase each."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted({*then, *now}, key=str):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(then.get(key), now.get(key), inner)
    elif then != now:
        yield f"{name} was {_short(then)} and is {_short(now)}"


def _short(value: Any) -> str:
    return textwrap.shorten(repr(value), 80)


# --- Files -------------------------------------------------------------------------------------


def save_state(path: str | Path, state: State, about: State) -> None:
    """Write both to one safetensors file that is there whole, even if power fails, or not at all.

    Raises:
        CheckpointError: it cannot be written; a file that was there before still is.
        TypeError: a value that no ``State`` has.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    texts = {
        "state": json.dumps(_plain(state, tensors), allow_nan=False),
        "about": json.dumps(_plain(about, {}), allow_nan=False),
    }
    metadata = {"format": FORMAT, **texts, "crc32": _checksum(texts, tensors)}
    data = safetensors.torch.save(tensors, metadata=metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, data)  # weights and optimizer of one party: for its own eyes
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error.strerror or error}; the one before it is "
            "untouched: free the disk and go on with --resume"
        ) from None


def load_state(path: str | Path) -> tuple[State, State]:
    """The state and the description that ``save_state`` wrote, bit for bit.

    Raises:
        CheckpointError: no such file, one that is damaged, or one of another format.
    """
    path = Path(path)
    metadata, data = _read(path, whole=True)
    try:
        # Copies, so that a restored tensor lies in memory as one that torch made.
        tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(data).items()}
        texts = {"state": metadata["state"], "about": metadata["about"]}
        if metadata["crc32"] != _checksum(texts, tensors):
            raise ValueError("its contents do not match their checksum")
        state, about = (_nested(json.loads(text), tensors) for text in texts.values())
    except (safetensors.SafetensorError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None
    return state, about


def written_state(state: State) -> bytes:
    """The state as bytes, for another process of the same party."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(state, tensors), allow_nan=False)
    return safetensors.torch.save(tensors, metadata={"state": text})


def read_state(data: bytes) -> State:
    """The state that ``written_state`` wrote."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(data).items()}
    state: State = _nested(json.loads(header["__metadata__"]["state"]), tensors)
    return state


def read_about(path: str | Path) -> State:
    """The description alone; reads no tensor, and so cannot know whether they are damaged.

    Raises:
        CheckpointError: no such file, one that is damaged, or one of another format.
    """
    metadata, _ = _read(Path(path), whole=False)
    try:
        about: State = _nested(json.loads(metadata["about"]), {})
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(Path(path), error) from None
    return about


def _damaged(path: Path, why: object) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} is damaged ({why}); start anew with --overwrite, or put back a "
        "copy of it"
    )


def _read(path: Path, *, whole: bool) -> tuple[dict[str, str], bytes]:
    """The file's metadata, and its bytes if all are wanted."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > path.stat().st_size - 8:
                raise _damaged(path, "its header is cut off")
            header = file.read(length)
            data = start + header + file.read() if whole else b""
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {error.strerror}; allow reading it, or start anew "
            "with --overwrite"
        ) from None
    try:
        metadata = json.loads(header)["__metadata__"]
        form = metadata["format"]
    except (KeyError, RecursionError, TypeError, ValueError):
        raise _damaged(path, "its header cannot be read") from None
    if form != FORMAT:
        raise CheckpointError(
            f"{path} has the format {form!r}, expected {FORMAT!r}; resume with the version of "
            "dovetail that wrote it, or start anew with --overwrite"
        )
    return metadata, data


def _checksum(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Over all that is saved: a flipped bit is found, not trained on.

    CRC-32 is for accidents, and 8 x faster than SHA-256.
    """
    checksum = zlib.crc32(json.dumps([texts["state"], texts["about"]]).encode())
    for name in sorted(tensors, key=int):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        checksum = zlib.crc32(data, checksum)
    return f"{checksum:08x}"


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for a value; its tensors go to ``tensors``, by number."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Tensor):
        name = str(len(tensors))
        # A copy where it is not one dense piece of memory of its own, which safetensors asks for.
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if type(value) is int:
        return value
    if type(value) is float:  # JSON has no infinity
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_plain(item, tensors) for item in value]}
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, _plain(item, tensors)] for key, item in value.items()]}
    raise TypeError(f"a state holds no {type(value).__name__} here: {_short(value)}")


def _num_bytes(value: Any) -> int:
    """Bytes of all tensors in a state."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return sum(map(_num_bytes, value))


def _nested(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that ``_plain`` told."""
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    match kind:
        case "tensor":
            return tensors[inner]
        case "float":
            return float(inner)
        case "list":
            return [_nested(item, tensors) for item in inner]
        case "tuple":
            return tuple(_nested(item, tensors) for item in inner)
        case "dict":
            return {key: _nested(item, tensors) for key, item in inner}
    raise ValueError(f"it holds a {kind!r}")
