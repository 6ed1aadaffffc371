"""Heads of ledgers, exchanged: who rewrites its ledger is found out by what others hold of it.

The chain of a ledger shows every change but two: lines cut off at its end, and a file written again
as a whole. So at each save of a run, and when the driver leaves, driver and party send each other
the hash of their ledger's last line and the root of its tree, signed with their certificates' keys
where they have one. Each keeps what it received, and what it has sent:

    STEM.site/heads/PARTY.jsonl   heads of that party's ledger: ``of``, ``lines``, ``hash``,
                                  ``size`` and ``root`` of the tree, ``time``, ``proof`` (hex; ""
                                  where it has no certificate)

A head that is no hash of the party's ledger proves that the ledger is not the one it was, and the
signature that this party said so itself (``compare``). At most one head a minute is kept of each
party, beside the newest: all lines before it are in its hash. A ledger's lines are on the disk
before its head is sent.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cryptography import x509
from pydantic import ConfigDict, Field, TypeAdapter

from dovetail.errors import ConfigError, MessageError, NetworkError
from dovetail.network.certificates import certificate_name, make_folder
from dovetail.network.ledger import LedgerFile, Verified, verify
from dovetail.network.messages import Message
from dovetail.network.renewal import Identity, check_proof
from dovetail.network.retry import open_private, patiently
from dovetail.network.tree import Tree

#: Seconds from one head of a party that is kept for good to the next.
APART_S = 60.0

#: Where heads are kept, beside a ledger.
FOLDER = "heads"

#: The longest head on the wire: numbers, a hash and a proof in hexadecimal.
_MAX_HEAD = 20_000

_log = logging.getLogger(__name__)


# --- What crosses the boundary --------------------------------------------------------------------


class Tell(Message):
    """Driver -> party: I am about to leave; here my ledger stands, and where does yours?"""

    head: str = ""


class Told(Message):
    """Party -> driver: here; and what I say of the runs that I took part in, where I say it."""

    head: str = ""
    account: str = ""  # node/record.py


_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class LedgerHead:
    """Where one party's ledger stood: lines, hash of the last, root of the tree over all."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    of: str
    lines: Annotated[int, Field(strict=True)]
    hash: _Digest
    time: Annotated[str, Field(max_length=40)]
    root: _Digest
    proof: Annotated[str, Field(pattern="^([0-9a-f]{2})*$")] = ""

    def statement(self) -> bytes:
        """Bytes that are signed."""
        fields = [self.of, self.lines, self.hash, self.time, self.root]
        return b"dovetail ledger head 3\n" + json.dumps(fields).encode()

    def check(self, identity: Identity) -> None:
        """Refuse a head that its party has not signed.

        Raises:
            MessageError: why it is not believed.
        """
        identity.check(self.of, self.statement(), bytes.fromhex(self.proof))


_HEAD = TypeAdapter(LedgerHead)


def read_head(fields: Mapping[str, Any], party: str) -> LedgerHead:
    """A head of this party's ledger, as it was written or told.

    Raises:
        ValueError: it is none.
    """
    head = _HEAD.validate_python(fields)
    if head.of != party:
        raise ValueError(f"of {head.of!r}")
    return head


class Heads:
    """This party's end of the exchange.

    Args:
        ledger: its own; those of others are kept beside it.
        identity: signs its heads and checks the others'; None: it has no certificate.
    """

    def __init__(self, ledger: LedgerFile, identity: Identity | None = None) -> None:
        self._ledger = ledger
        self._identity = identity
        self._kept: dict[str, float] = {}  # party -> when a head was last kept for good

    def current(self) -> str:
        """The head of its own ledger as it is now, to go with a message; kept here, too.

        Raises:
            NetworkError: the lines cannot be forced to the disk.
        """
        self._ledger.sync()
        head = LedgerHead(
            self._ledger.party,
            self._ledger.num_lines,
            self._ledger.last_hash,
            datetime.now(UTC).isoformat(timespec="seconds"),
            self._ledger.tree.root().hex(),
        )
        if self._identity is not None:
            head = replace(head, proof=self._identity.sign(head.statement()).hex())
        self._write(head)
        return json.dumps(vars(head))

    def last(self, parties: Sequence[str]) -> dict[str, LedgerHead]:
        """Party -> the last head of its ledger that was told; its own, and those of these."""
        heads: dict[str, LedgerHead] = {}
        for party in (self._ledger.party, *parties):
            with suppress(NetworkError):  # damaged: dovetail ledger says so
                for head in heads_of(self._ledger.path.parent, party):
                    heads[party] = head
        return heads

    def report(self, parties: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Party -> lines and hash of its ledger: its own now, of others what they told last."""
        heads = {
            party: {"lines": head.lines, "hash": head.hash}
            for party, head in self.last(parties).items()
        }
        now = {"lines": self._ledger.num_lines, "hash": self._ledger.last_hash}
        heads[self._ledger.party] = now
        return {party: heads[party] for party in parties if party in heads}

    def keep(self, party: str, text: str) -> None:
        """Keep what another has told.

        Raises:
            MessageError: no head, or not signed as it must be.
        """
        if not text:
            return  # it keeps no ledger
        head = _read(party, text)
        if self._identity is not None:
            head.check(self._identity)
        self._write(head)

    def _write(self, head: LedgerHead) -> None:
        now = time.monotonic()
        name = _file_name(head.of)
        if not name:
            return
        path = self._ledger.path.parent / FOLDER / f"{name}.jsonl"
        for_good = now - self._kept.get(head.of, -APART_S) >= APART_S
        try:
            patiently(lambda: _write(path, head, for_good=for_good))
        except OSError as error:  # a head less is no reason not to train
            _log.warning("the head of %s is not kept: %s", head.of, error)
            return
        if for_good:
            self._kept[head.of] = now


def _read(party: str, text: str) -> LedgerHead:
    try:
        if len(text) > _MAX_HEAD:
            raise ValueError("too long")
        return read_head(json.loads(text), party)
    except (ValueError, RecursionError):
        raise MessageError(
            f"what party {party!r} tells of its ledger is no head; it must run the same version "
            "of dovetail"
        ) from None


def _write(path: Path, head: LedgerHead, *, for_good: bool) -> None:
    """Append it, or put it instead of the last, which was not to stay."""
    make_folder(path.parent)
    fields = {**vars(head), "stays": for_good}
    older = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if older and not json.loads(older[-1]).get("stays", True):
        older.pop()
    fresh = path.with_name(f".{path.name}.new")
    with open(open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(b"".join([*older, json.dumps(fields).encode() + b"\n"]))
    os.replace(fresh, path)


# --- Two books, compared --------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """Comparison of a party's ledger with what another holds of it.

    Attributes:
        holder: who holds the heads.
        of: whose ledger it is.
        heads: how many.
        signed: how many of them are signed.
        lines: up to which line of the ledger they reach.
        after: how many lines stand behind it, which no head covers.
        why: what is wrong; "" where every head is in the ledger.
    """

    holder: str
    of: str
    heads: int = 0
    signed: int = 0
    lines: int = 0
    after: int = 0
    why: str = ""


def compare(
    one: Path, other: Path, *, authorities: Sequence[x509.Certificate] = ()
) -> tuple[Verified, Verified, list[Compared]]:
    """Each ledger against the heads that the other's party holds of it.

    Args:
        one: a party's ledger, or its folder.
        other: another's.
        authorities: who must have issued the certificates that heads are signed with; without any,
            signatures are checked against the certificates that come with them.

    Raises:
        NetworkError: a ledger that is broken by itself, or both of one party.
    """
    paths = [path / "ledger.jsonl" if path.is_dir() else path for path in (one, other)]
    first, second = (verify(path) for path in paths)
    if first.party == second.party:
        raise NetworkError(
            f"{paths[0]} and {paths[1]} are both of party {first.party!r}; name the ledgers of two "
            "parties that have worked together"
        )
    compared = [
        _compared(first, second.party, paths[1], authorities),
        _compared(second, first.party, paths[0], authorities),
    ]
    return first, second, compared


def _compared(
    ledger: Verified, holder: str, beside: Path, authorities: Sequence[x509.Certificate]
) -> Compared:
    num_heads, signed, reached = 0, 0, 0

    def compared(after: int, why: str = "") -> Compared:
        return Compared(holder, ledger.party, num_heads, signed, reached, after, why)

    held = list(heads_of(beside.parent, ledger.party))
    wanted = {head.hash for head in held}
    positions = {
        digest: number
        for number, each in enumerate(ledger.hashes, start=1)
        if (digest := each.hex()) in wanted
    }
    roots = _roots(ledger, {head.lines for head in held})
    for head in held:
        num_heads += 1
        if head.proof:
            try:
                proof = bytes.fromhex(head.proof)
                check_proof(head.of, head.statement(), proof, authorities, at=None)
            except (MessageError, ValueError) as error:
                return compared(0, str(error))
            signed += 1
        if head.hash not in positions:
            how = "signed" if head.proof else "told"
            return compared(
                0,
                f"the ledger of {ledger.party!r} is not the one it was on {head.time}: {holder!r} "
                f"holds the head that {ledger.party!r} {how} of line {head.lines:,}, "
                f"{head.hash[:16]}..., and no line has it; the ledger was written anew, or lines "
                "are missing at its end",
            )
        if roots.get(head.lines, head.root) != head.root:
            return compared(
                0,
                f"the tree over the ledger of {ledger.party!r} is not the one whose root it told "
                f"{holder!r} on {head.time}, {head.root[:16]}...: lines are the same, and it told "
                "another tree of them",
            )
        reached = max(reached, positions[head.hash])
    return compared(len(ledger.hashes) - reached)


def _roots(ledger: Verified, sizes: set[int]) -> dict[int, str]:
    """Size -> root of the tree when it had so many leaves; none where older files are not here."""
    if len(ledger.leaves) != ledger.num_lines:
        return {}
    roots, tree = dict[int, str](), Tree()
    for leaf in ledger.leaves:
        tree.add_leaf(leaf)
        if tree.size in sizes:
            roots[tree.size] = tree.root().hex()
    return roots


def _file_name(party: str) -> str:
    try:
        return certificate_name(party)
    except ConfigError:
        return ""  # of no party that is known over a network


def heads_of(site_folder: Path, party: str) -> Iterator[LedgerHead]:
    """The heads of a party's ledger that a site keeps, in the order in which they were told.

    Raises:
        NetworkError: a file that cannot be read, or a line that is no head.
    """
    path = site_folder / FOLDER / f"{_file_name(party)}.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise NetworkError(f"{path}: cannot be read ({error})") from None
    for number, line in enumerate(lines, start=1):
        try:
            fields: dict[str, Any] = json.loads(line)
            fields.pop("stays", None)
            head = read_head(fields, party)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise NetworkError(f"{path}: line {number} is no head of {party!r}'s ledger") from None
        yield head
