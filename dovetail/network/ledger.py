"""The ledger: what left each party, and for whom; and what came to it, and from whom.

``Ledger`` counts in memory, for a run's report. ``LedgerFile`` is a party's own record on its disk:
one line per message that left it or came, each bound to the one before by a hash, and all of them
the leaves of a Merkle tree (``tree.py``). ``reconcile.py`` holds two parties' records side by side.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from dovetail.errors import NetworkError
from dovetail.network.costs import cost_of
from dovetail.network.messages import Message, OnWire, on_wire
from dovetail.network.retry import open_private, patiently
from dovetail.network.tree import Digests, Tree, leaf_hash
from dovetail.settings.section import Precision

_Tensor = tuple[str, tuple[int, ...], str]  # name, shape, dtype
_Line = tuple[str, str, str, tuple[_Tensor, ...]]  # sender, receiver, message type, tensors

FORMAT = "dovetail ledger 2"


#: What the first line has for the hash of the line before.
NO_HASH = "0" * 64

_MAX_LINE_BYTES = 2**20

#: A file larger than this is put aside when its ledger is next opened: some 150,000 messages.
ROTATE_BYTES = 64 * 2**20

_HASH = b',"hash":"'
_OPENING = f'{{"ledger":"{FORMAT}",'.encode()

_log = logging.getLogger(__name__)
_to_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Ledger:
    """Counts messages by sender, receiver, type, and the names, shapes and dtypes of tensors.

    Bytes are those of the tensors as they travel; a message's header adds a few hundred.
    """

    def __init__(self) -> None:
        self._counts: dict[_Line, int] = {}
        self._bytes: dict[_Line, int] = {}

    def record(
        self, sender: str, receiver: str, message: Message, precision: Precision = "float32"
    ) -> None:
        """Add one message, whose float32 tensors travel in this precision."""
        described, num_bytes = _described(on_wire(message, precision))
        line = (sender, receiver, message.wire_name(), described)
        self._bytes[line] = self._bytes.get(line, 0) + num_bytes
        self._counts[line] = self._counts.get(line, 0) + 1

    def add(self, other: Ledger) -> None:
        """Count what another has counted, after what is here."""
        for line, count in other._counts.items():
            self._counts[line] = self._counts.get(line, 0) + count
            self._bytes[line] = self._bytes.get(line, 0) + other._bytes[line]

    def lines(self) -> Iterator[dict[str, Any]]:
        """JSON-ready lines, one per kind of message, in the order they first left."""
        for line, count in list(self._counts.items()):  # a queued message may leave meanwhile
            sender, receiver, kind, described = line
            yield {
                "from": sender,
                "to": receiver,
                "message": kind,
                "tensors": _tensor_list(described),
                "count": count,
                "bytes": self._bytes[line],
            }

    def bytes_by_party(self) -> dict[str, dict[str, int]]:
        """Party -> bytes "sent" and "received"."""
        totals: dict[str, dict[str, int]] = {}
        for (sender, receiver, _, _), num_bytes in list(self._bytes.items()):
            for party, direction in ((sender, "sent"), (receiver, "received")):
                totals.setdefault(party, {"sent": 0, "received": 0})[direction] += num_bytes
        return totals

    def state(self) -> dict[str, Any]:
        """All counts so far, JSON-ready, for a checkpoint."""
        return {"lines": list(self.lines())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there; what was counted here is forgotten."""
        self._counts, self._bytes = {}, {}
        for line in state["lines"]:
            described = tuple(
                (each["name"], tuple(each["shape"]), each["dtype"]) for each in line["tensors"]
            )
            key = (line["from"], line["to"], line["message"], described)
            self._counts[key], self._bytes[key] = line["count"], line["bytes"]


@lru_cache(maxsize=1024)
def _described(travelling: tuple[OnWire, ...]) -> tuple[tuple[_Tensor, ...], int]:
    """The tensors of a message as they travel, and their bytes."""
    described = tuple(
        (name, shape, str(dtype).removeprefix("torch.")) for name, shape, dtype, _ in travelling
    )
    return described, sum(each.num_bytes for each in travelling)


def _tensor_list(described: Iterable[_Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in described
    ]


# --- A party's own record -------------------------------------------------------------------------


class LedgerFile:
    """Appends one line of JSON for each message: before it leaves, and when one has come.

        time        when, UTC
        run         which run it belongs to
        sequence    the number of the request, or of the one that it answers
        to          for whom; or ``from``, of whom
        message     its type
        tensors     name -> [dtype, shape], as they travelled; of what left
        bytes       of these tensors
        bytes_to    running total for this receiver; of what left
        bytes_all   running total for all; of what left
        count       how many messages this line stands for, where that is not one
        epsilon     of the sample that messages to this receiver have cost most by now, this one
                    counted, where what leaves is noised; and ``delta``
        bits        that this message reveals of each row at the most, where that is bounded
        digest      SHA-256 of the message's bytes, as they travelled
        connection  of the connections with that other since this start, the number of this one
        previous    the hash of the line before
        hash        SHA-256 of this line, up to but without ``,"hash"``

    Each start writes such a line, too: ``ledger`` (the format), ``party`` and ``time``, and ``cut``
    where it has dropped the half line that a crash left. That message had not been sent, or not
    been read.

    A file above ``ROTATE_BYTES`` is put aside when the ledger is opened, as ``NAME-0001.jsonl`` and
    so on, and the chain goes on in a new one: its first line has ``follows`` (that file's name),
    the number of ``lines`` before it, ``bytes_so_far`` for each receiver, and the ``tree`` of those
    lines (its full parts' roots). All are one ledger.

    A request or answer that goes out again under its number, because a line was lost, has one line
    and is counted once. Of many failures in a row that a party sends one driver, a line stands for
    ``count`` at most, written before the first of them leaves, and one for the requests that they
    answer: refused requests cannot fill the disk.

    A line that was changed, removed, inserted or moved shows (``verify``). Two things do not show
    from the file alone: lines missing at its end, and a file written again as a whole. Who wants to
    see those notes the last hash elsewhere from time to time, and looks for it later; what parties
    hold of each other's ledgers is just that (``heads.py``).

    Lines reach the operating system at once, so that they outlive this process; they are forced
    to the disk when the ledger is closed. After a power cut the last seconds may be missing.

    Args:
        path: the file; it is made if there is none, for its owner's eyes only. One that exists is
            verified as a whole.
        party: whose ledger it is.

    Raises:
        NetworkError: a file that is no ledger, another party's, or broken; or cannot be written.
    """

    def __init__(self, path: str | Path, party: str = "") -> None:
        self.path = Path(path)
        self.party = party
        try:
            self._file = open_private(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise self._unwritable(error) from None
        self._close = weakref.finalize(self, _close, self._file)
        try:
            self._begin()
        except BaseException:
            self._close()
            raise

    def _begin(self) -> None:
        self._size = os.fstat(self._file).st_size
        self._bytes_to: dict[str, int] = {}
        self.last_hash = NO_HASH
        self.tree = Tree()
        opening: dict[str, Any] = {"ledger": FORMAT, "party": self.party, "time": _now()}
        if self._size:
            verified = verify(self.path, whole=False, keep=False)
            if verified.num_lines and verified.party != self.party:
                raise NetworkError(
                    f"{self.path}: expected the ledger of party {self.party!r}, found that of "
                    f"{verified.party!r}; give each party a file of its own"
                )
            self._bytes_to = verified.bytes_to()
            self.last_hash = verified.last_hash
            self.tree = verified.tree
            if verified.unfinished_bytes:
                opening["cut"] = verified.unfinished_bytes
                self._size -= verified.unfinished_bytes
                os.ftruncate(self._file, self._size)
                _log.warning("%s: dropped a half line after line %d", self.path, verified.num_lines)
            if self._size > ROTATE_BYTES:
                opening |= self._put_aside()
        self._append(opening)

    def _put_aside(self) -> dict[str, Any]:
        """Go on in a new file; what its first line says of the one before."""
        numbers = range(1, 10_000)
        names = (f"{self.path.stem}-{number:04d}{self.path.suffix}" for number in numbers)
        aside = next(name for name in names if not self.path.with_name(name).exists())
        self._close()
        try:
            os.rename(self.path, self.path.with_name(aside))
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._file = open_private(self.path, flags)
        except OSError as error:
            raise self._unwritable(error) from None
        self._close = weakref.finalize(self, _close, self._file)
        self._size = 0
        return {
            "follows": aside,
            "lines": self.num_lines,
            "bytes_so_far": self._bytes_to,
            "tree": [each.hex() for each in self.tree.frontier],
        }

    @property
    def num_lines(self) -> int:
        """All its lines, those of files that were put aside included."""
        return self.tree.size

    def record(
        self,
        receiver: str,
        message: Message,
        *,
        run: str = "",
        sequence: int = 0,
        precision: Precision = "float32",
        count: int = 1,
        digest: str = "",
        connection: int = 0,
    ) -> None:
        """Write down one message that is about to leave, encoded with these arguments.

        ``count`` above one is for messages without tensors, of which at most so many will leave.
        ``digest`` is of its bytes, and ``connection`` the number of the one that it takes.

        Raises:
            NetworkError: it cannot be written, and the message must not be sent.
        """
        described, num_bytes = _described(on_wire(message, precision))
        assert count == 1 or not described
        bytes_to = self._bytes_to.get(receiver, 0) + num_bytes
        bytes_all = sum(self._bytes_to.values()) + num_bytes
        self._add_line(
            f'{{"time":"{_now()}","run":{_quoted(run)},"sequence":{sequence},'
            f'"to":{_quoted(receiver)},"message":{_quoted(message.wire_name())},'
            f'"tensors":{_tensor_text(described)},"bytes":{num_bytes},"bytes_to":{bytes_to},'
            f'"bytes_all":{bytes_all}{_cost(message)}{_about(count, digest, connection)}'
        )
        self._bytes_to[receiver] = bytes_to

    def came(
        self,
        sender: str,
        message: str,
        num_bytes: int,
        *,
        run: str = "",
        sequence: int = 0,
        count: int = 1,
        digest: str = "",
        connection: int = 0,
    ) -> None:
        """Write down that a message has come, of this type and with so many bytes of tensors.

        Raises:
            NetworkError: it cannot be written, and the message must not be answered.
        """
        self._add_line(
            f'{{"time":"{_now()}","run":{_quoted(run)},"sequence":{sequence},'
            f'"from":{_quoted(sender)},"message":{_quoted(message)},"bytes":{num_bytes}'
            f"{_about(count, digest, connection)}"
        )

    def sync(self) -> None:
        """Forces all lines to the disk, so that what is reported of them holds after a power cut.

        Raises:
            NetworkError: it cannot be done.
        """
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritable(error) from None

    def close(self) -> None:
        """Forces all lines to the disk; nothing can be recorded any more."""
        self._close()

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, entries: Mapping[str, Any]) -> None:
        self._add_line(_to_json(entries)[:-1])

    def _add_line(self, text: str) -> None:
        """Add a line: JSON, of which the hashes and the end are still to come."""
        if not self._close.alive:
            raise NetworkError(f"{self.path}: this ledger is closed; open it again")
        body = f'{text},"previous":"{self.last_hash}"'.encode()
        digest = hashlib.sha256(body).hexdigest()
        line = b'%b%b%b"}\n' % (body, _HASH, digest.encode())
        try:
            if os.fstat(self._file).st_size != self._size:
                raise NetworkError(
                    f"{self.path}: somebody else has written to it since it was opened; "
                    "one process at a time keeps a ledger: end the other, and start again"
                )
            patiently(partial(self._write, line))
        except OSError as error:
            raise self._unwritable(error) from None
        self._size += len(line)
        self.last_hash = digest
        self.tree.add(line[:-1])

    def _write(self, line: bytes) -> None:
        """The whole line; of one that a full disk had room for in part, nothing stays."""
        try:
            rest = line
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            raise

    def _unwritable(self, error: OSError) -> NetworkError:
        return NetworkError(
            f"{self.path}: the ledger cannot be written ({error.strerror}), so nothing is sent; "
            "all earlier lines are kept; make room or allow writing there, and go on"
        )


def _cost(message: Message) -> str:
    """Epsilon and delta, or bits, where the message was noted with them."""
    return "".join(f',"{name}":{value!r}' for name, value in cost_of(message).items())


def _about(count: int, digest: str, connection: int) -> str:
    """Parts of a line that are there only if needed, each after a comma."""
    return (
        (f',"count":{count}' if count > 1 else "")
        + (f',"digest":"{digest}"' if digest else "")
        + (f',"connection":{connection}' if connection else "")
    )


# A step's messages differ in little: what they have in common is written out once.


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return _to_json(text)


@lru_cache(maxsize=1024)
def _tensor_text(described: tuple[_Tensor, ...]) -> str:
    return _to_json({name: (dtype, shape) for name, shape, dtype in described})


def _close(file: int) -> None:
    os.fsync(file)
    os.close(file)


def _now() -> str:
    now = time.time_ns() // 1_000_000
    return f"{_second(now // 1000)}.{now % 1000:03d}+00:00"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


# --- Reading it back ------------------------------------------------------------------------------


@dataclass
class Sent:
    """How often one kind of message left for one receiver, or came, when first and last."""

    count: int = 0
    bytes: int = 0
    first: str = ""
    last: str = ""
    cost: dict[str, float] = field(default_factory=dict)  # epsilon and delta, or bits, the largest


@dataclass
class Verified:
    """An unbroken ledger, summed up.

    Attributes:
        party: whose it is.
        follows: the file that this one follows, where that was not read.
        so_far: receiver -> bytes in that file and those before.
        hashes: those of all lines that were read, where they were to be kept.
        last_hash: that of the last line.
        unfinished_bytes: what stands after the last whole line.
        sent: (receiver, message type, tensors as (name, shape, dtype)) -> how often and how much.
        came: (sender, message type) -> how often and how much.
        tree: over all lines.
        leaves: those of the tree that were read here, the last ones; where they were to be kept.
    """

    party: str = ""
    last_hash: str = NO_HASH
    unfinished_bytes: int = 0
    sent: dict[tuple[str, str, tuple[_Tensor, ...]], Sent] = field(default_factory=dict)
    follows: str = ""
    so_far: dict[str, int] = field(default_factory=dict)
    hashes: Digests = field(default_factory=Digests)
    came: dict[tuple[str, str], Sent] = field(default_factory=dict)
    tree: Tree = field(default_factory=Tree)
    leaves: Digests = field(default_factory=Digests)

    @property
    def num_lines(self) -> int:
        """All of them, the lines of starts included."""
        return self.tree.size

    @property
    def root(self) -> str:
        """Root of the tree, in hexadecimal."""
        return self.tree.root().hex()

    def has(self, digest: str) -> bool:
        """Whether a line that was kept has this hash."""
        return any(each.hex() == digest for each in self.hashes)

    def bytes_to(self) -> dict[str, int]:
        """Receiver -> bytes of all tensors that left for it."""
        totals = dict(self.so_far)
        for (receiver, _, _), sent in self.sent.items():
            totals[receiver] = totals.get(receiver, 0) + sent.bytes
        return totals

    def lines(self) -> Iterator[dict[str, Any]]:
        """JSON-ready lines, one per receiver and kind of message, in the order they first left."""
        for (receiver, kind, described), sent in self.sent.items():
            yield {
                "to": receiver,
                "message": kind,
                "tensors": _tensor_list(described),
                "count": sent.count,
                "bytes": sent.bytes,
                "first": sent.first,
                "last": sent.last,
                **sent.cost,
            }

    def lines_came(self) -> Iterator[dict[str, Any]]:
        """JSON-ready lines, one per sender and kind of message, in the order they first came."""
        for (sender, kind), came in self.came.items():
            fields = {name: value for name, value in vars(came).items() if name != "cost"}
            yield {"from": sender, "message": kind, **fields}


def verify(
    path: str | Path, *, noted: str | None = None, whole: bool = True, keep: bool = True
) -> Verified:
    """Contents of an unbroken ``LedgerFile``.

    Memory grows by 64 bytes a line, and without ``keep`` not at all.

    Args:
        path: the file; it is only read.
        noted: a hash that was the last one at some time, and must be in the chain.
        whole: read the files that this one follows, too.
        keep: keep every line's hash and leaf.

    Raises:
        NetworkError: the first line that was changed, or does not follow the one before; a file
            that is no such ledger; or no line with the noted hash.
    """
    path = Path(path)
    verified, totals, is_there = Verified(), dict[str, int](), noted is None
    for each in files_of(path) if whole else [path]:
        if verified.unfinished_bytes:
            raise NetworkError(f"{each}: the file that it follows ends in half a line")
        try:
            with each.open("rb") as file:
                number = 0
                while line := file.readline(_MAX_LINE_BYTES):
                    if _is_unfinished(line, number):
                        verified.unfinished_bytes = len(line)
                        break
                    number += 1
                    _add(each, number, verified, totals, line, keep)
                    is_there = is_there or verified.last_hash == noted
        except OSError as error:
            raise NetworkError(f"{each}: cannot be read ({error.strerror})") from None
    if not is_there:
        raise NetworkError(
            f"{path}: its chain is unbroken, but no line has the hash {noted}: the file was "
            "written anew, or lines are missing at its end"
        )
    return verified


def files_of(path: Path) -> list[Path]:
    """The file, after those that it follows."""
    files = [path]
    while True:
        try:
            with files[0].open("rb") as file:
                opening = json.loads(file.readline(_MAX_LINE_BYTES))
        except (OSError, ValueError, RecursionError):
            return files  # which is told when it is read
        before = opening.get("follows") if isinstance(opening, dict) else None
        if not isinstance(before, str) or not re.fullmatch(r"[\w.-]+", before):
            return files
        before = path.with_name(before)
        if not before.exists() or before in files:
            return files
        files.insert(0, before)


def _is_unfinished(line: bytes, num_before: int) -> bool:
    if line.endswith(b"\n") or len(line) == _MAX_LINE_BYTES:
        return False
    # A short file of something else is not the beginning of a ledger.
    return bool(num_before) or line[: len(_OPENING)] == _OPENING[: len(line)]


def _add(
    path: Path, number: int, verified: Verified, totals: dict[str, int], line: bytes, keep: bool
) -> None:
    """Count one more line, if it is as written and follows the one before."""
    entries = _entries(path, number, line)
    body, _, rest = line.rpartition(_HASH)
    digest = hashlib.sha256(body).hexdigest()
    if rest != digest.encode() + b'"}\n':
        raise NetworkError(f"{path}: line {number} was changed: its hash is not that of its text")
    if number == 1 and not verified.num_lines and "follows" in entries:
        _go_on(path, verified, totals, entries)
    if entries.get("previous") != verified.last_hash:
        before = f"line {number - 1}" if number > 1 else "the beginning of a ledger"
        if number == 1 and verified.num_lines:
            before = "the last line of the file it follows"
        raise NetworkError(
            f"{path}: line {number} does not follow {before}: there a line was removed, inserted, "
            "moved or changed"
        )
    try:
        if "ledger" in entries:
            verified.party = str(entries["party"])
            frontier = [each.hex() for each in verified.tree.frontier]
            if entries["ledger"] != FORMAT or entries.get("tree", frontier) != frontier:
                raise ValueError("another tree than that of the lines before it")
        elif "from" in entries:
            _count_came(verified, entries)
        else:
            _count(verified, totals, entries)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise NetworkError(
            f"{path}: line {number} is no line of a ledger: it lacks something, or its running "
            "totals are not the sums"
        ) from None
    leaf = leaf_hash(line[:-1])
    verified.tree.add_leaf(leaf)
    verified.last_hash = digest
    if keep:
        verified.leaves.append(leaf)
        verified.hashes.append(bytes.fromhex(digest))


def _go_on(
    path: Path, verified: Verified, totals: dict[str, int], entries: Mapping[str, Any]
) -> None:
    """Take over what a first line says of files that are not read here."""
    lines, so_far = entries.get("lines"), entries.get("bytes_so_far")
    if type(lines) is not int or not isinstance(so_far, dict):
        raise NetworkError(f"{path}: line 1 is no line of a ledger: it lacks something")
    verified.follows, verified.last_hash = str(entries["follows"]), str(entries.get("previous"))
    verified.so_far = so_far
    totals |= so_far
    try:
        verified.tree = Tree(lines, [bytes.fromhex(each) for each in entries["tree"]])
    except (KeyError, TypeError, ValueError, OverflowError, NetworkError):
        raise NetworkError(
            f"{path}: line 1 is no line of a ledger: what it says of the tree of those before "
            "it is none"
        ) from None


def _entries(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(line)
    except (ValueError, RecursionError):
        entries = None
    if isinstance(entries, dict):
        if number > 1 or entries.get("ledger") == FORMAT or "previous" in entries:
            return entries
        if {"from", "to", "message", "count"} <= entries.keys():
            raise NetworkError(
                f"{path}: this is a run's summary of messages, which has no chain to verify; the "
                "ledger that a party keeps of what left it is ledger.jsonl in its own folder"
            )
    if number == 1:
        raise NetworkError(f"{path}: this is no ledger of a party: its first line is none of one")
    raise NetworkError(f"{path}: line {number} was changed: it is no line of a ledger")


def _count_came(verified: Verified, entries: Mapping[str, Any]) -> None:
    """Add the message of one line that has come.

    Raises:
        KeyError, TypeError, ValueError: it lacks something.
    """
    time = str(entries["time"])
    came = verified.came.setdefault(
        (str(entries["from"]), str(entries["message"])), Sent(first=time)
    )
    came.count += int(entries.get("count", 1))
    came.bytes += int(entries["bytes"])
    came.last = time


def _count(verified: Verified, totals: dict[str, int], entries: Mapping[str, Any]) -> None:
    """Add the message of one line.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it lacks something, or its totals are not
            the sums.
    """
    receiver, num_bytes, time = entries["to"], entries["bytes"], str(entries["time"])
    described = tuple(
        (name, tuple(shape), dtype) for name, (dtype, shape) in entries["tensors"].items()
    )
    totals[receiver] = totals.get(receiver, 0) + num_bytes
    if (entries["bytes_to"], entries["bytes_all"]) != (totals[receiver], sum(totals.values())):
        raise ValueError("running totals")
    sent = verified.sent.setdefault((receiver, entries["message"], described), Sent(first=time))
    sent.count += int(entries.get("count", 1))
    sent.bytes += num_bytes
    sent.last = time
    if float(entries.get("epsilon", 0)) > sent.cost.get("epsilon", 0):
        sent.cost = {name: float(entries[name]) for name in ("epsilon", "delta")}
    if float(entries.get("bits", 0)) > sent.cost.get("bits", 0):
        sent.cost["bits"] = float(entries["bits"])
