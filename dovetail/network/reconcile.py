"""Two parties' ledgers side by side, and single lines of one proved.

What one says left for the other is what the other says came from it: the same messages in the same
order, told by the SHA-256 of their bytes (``reconcile``). Of each pair there is one connection at a
time, on which a request waits for its answer, so there are few reasons why two honest ledgers
differ, and each leaves its trace in both:

    not received    It left, and did not come: it was the last on its connection, which ended then,
                    or the sender's or the receiver's process did. The sender's next line with that
                    other is of a later connection or start, or there is none; so is the
                    receiver's; and neither ledger has an answer to it.
    received again  A request that came, whose answer was lost with the receiver's process, comes
                    again under its number once that has started again.
    refused         Of many failures in a row a line stands for several (``recording.py``): as many
                    requests and failures may have no line of their own.

All else is a difference, and its first line is named. Which of the two is wrong, ledgers alone do
not say: a line that one has and the other lacks may have been dropped or made up. The heads that
each holds of the other's ledger do (``heads.compare``), up to the line that they reach.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from dovetail.errors import MessageError, NetworkError
from dovetail.network.control import Failed
from dovetail.network.heads import FOLDER, LedgerHead, heads_of, read_head
from dovetail.network.ledger import files_of, verify
from dovetail.network.renewal import check_proof
from dovetail.network.tree import leaf_hash, path, root_of

PROOF = "dovetail proof 1"

#: A larger file is no proof: a line, and a hash for each doubling of the ledger.
_MAX_PROOF_BYTES = 2**21


# --- Two ledgers
# ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A line about one message.

    Attributes:
        where: file and number of the line.
        left: whether the message left; else it came.
        start: how many starts of its writer's stand before it.
        connection: which one it took.
        count: how many it stands for; they have no ``digest`` then.
    """

    where: str
    left: bool
    start: int
    connection: int
    run: str
    sequence: int
    message: str
    digest: str
    count: int

    @property
    def stretch(self) -> tuple[int, int]:
        """The connection, over all starts."""
        return self.start, self.connection

    @property
    def number(self) -> tuple[str, int]:
        """A request's, and that of its answer."""
        return self.run, self.sequence

    def __str__(self) -> str:
        return f"{self.message or 'an unread message'} (number {self.sequence} of {self.run!r})"


@dataclass
class Agreement:
    """Comparison of what one ledger sent to the other with what that received.

    Attributes:
        sender, receiver: whose ledgers.
        same: messages that both have.
        lost: why each of those that did not come is no difference, in order.
        again: how many came twice.
        refused: how many have no line of their own, of requests or failures in a row.
        why: the first difference; "" where there is none.
    """

    sender: str
    receiver: str
    same: int = 0
    lost: list[str] = field(default_factory=list)
    again: int = 0
    refused: int = 0
    why: str = ""


def reconcile(one: Path, other: Path) -> list[Agreement]:
    """Both directions between the parties of two ledgers that are unbroken by themselves.

    Raises:
        NetworkError: a file that cannot be read.
    """
    ledgers = [_Ledger(one), _Ledger(other)]
    first, second = ledgers
    first.of(second.party)
    second.of(first.party)
    return [_held_against(first, second), _held_against(second, first)]


class _Ledger:
    """Lines of one ledger about messages with one other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.party = ""
        self.is_whole = True
        self._with: dict[str, list[Entry]] = {}  # other -> lines about messages with it
        self.entries: list[Entry] = []
        files = files_of(path)
        start = 0
        for file in files:
            for number, line in enumerate(_lines_of(file), start=1):
                if "ledger" in line:
                    start += 1
                    self.party = str(line["party"])
                    if file == files[0] and number == 1 and "follows" in line:
                        self.is_whole = False
                else:
                    other, entry = _entry(f"{file}: line {number}", start, line)
                    self._with.setdefault(other, []).append(entry)

    def of(self, other: str) -> None:
        """Keep the lines about this other."""
        self.entries = self._with.get(other, [])
        self.indices = {id(entry): index for index, entry in enumerate(self.entries)}

    def ends_after(self, entry: Entry) -> str:
        """How its connection ended with this line; "" where it did not."""
        index = self.indices[id(entry)] + 1
        if index == len(self.entries):
            return f"the book of {self.party!r} ends there"
        following = self.entries[index]
        if following.start != entry.start:
            return f"{self.party!r} ended there, and began anew"
        return "" if following.stretch == entry.stretch else "the line was lost there"

    def is_answer(self, entry: Entry) -> bool:
        """Whether it answers a request that came just before."""
        for index in range(self.indices[id(entry)] - 1, -1, -1):
            before = self.entries[index]
            if before.left or before.start != entry.start:
                return False
            if before.number == entry.number:
                return True
        return False

    def answer_to(self, entry: Entry) -> Entry | None:
        """Entry that came in answer to this request, before the next one left."""
        for following in self.entries[self.indices[id(entry)] + 1 :]:
            if following.left:
                return None
            if following.number == entry.number:
                return following
        return None


def _entry(where: str, start: int, line: Mapping[str, Any]) -> tuple[str, Entry]:
    """The other, and what the line says.

    Raises:
        NetworkError: it lacks something, as a line that somebody made up may.
    """
    try:
        left = "to" in line
        about = int(line.get("connection", 0)), str(line["run"]), int(line["sequence"])
        digest, count = str(line.get("digest", "")), int(line.get("count", 1))
        entry = Entry(where, left, start, *about, str(line["message"]), digest, count)
        return str(line["to" if left else "from"]), entry
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NetworkError(f"{where} is no line of a ledger: it lacks something") from None


def _lines_of(file: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of one file; the half line of a crash is left out."""
    try:
        with file.open("rb") as text:
            for line in text:
                if line.endswith(b"\n"):
                    yield json.loads(line)
    except OSError as error:
        raise NetworkError(f"{file}: cannot be read ({error.strerror})") from None


def _held_against(sender: _Ledger, receiver: _Ledger) -> Agreement:
    return _Walk(sender, receiver).run()


class _Walk:
    """Through both lists of messages at once, in order."""

    def __init__(self, sender: _Ledger, receiver: _Ledger) -> None:
        self.sender, self.receiver = sender, receiver
        self.left = [entry for entry in sender.entries if entry.left]
        self.came = [entry for entry in receiver.entries if not entry.left]
        if not receiver.is_whole:  # older files of it are not here
            known = {entry.digest for entry in self.came}
            while self.left and self.left[0].digest not in known:
                self.left.pop(0)
        if not sender.is_whole:
            known = {entry.digest for entry in self.left}
            while self.came and self.came[0].digest not in known:
                self.came.pop(0)
        self.i = self.j = 0
        self.found = Agreement(sender.party, receiver.party)
        self.unread = 0  # requests that the receiver's last line about several allows for
        self.untold = 0  # failures that the sender's last line about several allows for

    def run(self) -> Agreement:
        while not self.found.why and (self.i < len(self.left) or self.j < len(self.came)):
            self._step()
        return self.found

    @property
    def _sent(self) -> Entry | None:
        return self.left[self.i] if self.i < len(self.left) else None

    @property
    def _got(self) -> Entry | None:
        return self.came[self.j] if self.j < len(self.came) else None

    def _step(self) -> None:
        sent, got = self._sent, self._got
        if sent is not None and not sent.digest:
            self.untold += sent.count
            self.i += 1
        elif got is not None and not got.digest:
            self._several(got)
        elif sent is not None and got is not None and sent.digest == got.digest:
            self._pair(sent, got)
        elif got is not None and self._is_again(got):
            self.found.again += 1
            self.j += 1
        elif got is not None and got.message == Failed.wire_name() and self.untold:
            self._refused()
            self.untold -= 1
            self.j += 1
        elif sent is not None and self.unread:
            self._refused()
            self.unread -= 1
            self.i += 1
        elif sent is not None and (why := self._lost(sent)):
            self.found.lost.append(f"{sent.where}: {sent} left for {self.receiver.party!r}: {why}")
            self.i += 1
        else:
            self.found.why = self._difference(sent, got)

    def _several(self, got: Entry) -> None:
        """A line of the receiver's about several, or about one that it has not read."""
        if got.message == Failed.wire_name() and self.untold:
            self._refused()
            self.untold -= 1
        else:
            self.unread += got.count
        self.j += 1

    def _refused(self) -> None:
        self.found.refused += 1

    def _pair(self, sent: Entry, got: Entry) -> None:
        """Note a message that both ledgers have with the same bytes."""
        following = self.left[self.i + 1 : self.i + 2]
        after = self.came[self.j + 1 : self.j + 2]
        twice = bool(following) and following[0].digest == sent.digest
        if twice and not (after and after[0].digest == sent.digest) and (why := self._lost(sent)):
            # The same was said again, and of the two it is the first that was lost.
            self.found.lost.append(f"{sent.where}: {sent} left for {self.receiver.party!r}: {why}")
            self.i += 1
            return
        if (sent.message, sent.number) != (got.message, (got.run or sent.run, got.sequence)):
            self.found.why = (
                f"{sent.where} says that {sent} left for {self.receiver.party!r}, and {got.where}, "
                f"of a message with the same bytes, that it was {got}"
            )
            return
        self.unread = self.untold = 0
        self.found.same += 1
        self.i, self.j = self.i + 1, self.j + 1

    def _is_again(self, got: Entry) -> bool:
        """A request that goes out again to a process that has started again."""
        before = self.came[self.j - 1] if self.j else None
        return before is not None and before.digest == got.digest and before.start != got.start

    def _lost(self, sent: Entry) -> str:
        """Why a message left and never came, if nothing speaks against it."""
        why = self.sender.ends_after(sent)
        before = self.came[self.j - 1] if self.j else None
        got = self._got
        goes_on = before is not None and got is not None and before.stretch == got.stretch
        if not why or goes_on:
            return ""
        if self.sender.is_answer(sent):
            return why
        if self.sender.answer_to(sent) is not None:
            return ""
        first = 0 if before is None else self.receiver.indices[id(before)] + 1
        last = None if got is None else self.receiver.indices[id(got)]
        window = self.receiver.entries[first:last]
        answers = [entry for entry in window if entry.left and entry.number == sent.number]
        if before is not None and before.number == sent.number:  # the first answers that
            answers = answers[1:]
        return "" if answers else why

    def _difference(self, sent: Entry | None, got: Entry | None) -> str:
        one, other = self.sender.party, self.receiver.party
        came = Counter(entry.digest for entry in self.came[self.j :])
        left = Counter(entry.digest for entry in self.left[self.i :])
        if sent is None or (got is not None and sent.digest in came and got.digest not in left):
            assert got is not None
            return (
                f"{got.where} says that {got} came from {one!r}, and the book of {one!r} has no "
                f"line that it left ({self._about(got)})"
            )
        where = "its book ends before it" if got is None else f"{got.where} is {got}"
        if got is not None and sent.digest in came:
            return (
                f"{sent.where} says that {sent} left for {other!r}, which has it at another place: "
                f"there {where}"
            )
        if got is not None and got.number == sent.number and got.message == sent.message:
            return (
                f"{sent.where} says that {sent} left for {other!r}, digest {sent.digest[:16]}..., "
                f"and {got.where} that it came with other bytes, digest {got.digest[:16]}..."
            )
        return (
            f"{sent.where} says that {sent} left for {other!r}, and the book of {other!r} has no "
            f"line that it came ({self._about(sent)}); {where}"
        )

    def _about(self, entry: Entry) -> str:
        """Why it cannot have been lost on the way."""
        if not entry.left:
            return f"digest {entry.digest[:16]}..."
        if not self.sender.is_answer(entry) and self.sender.answer_to(entry) is not None:
            return "it was answered"
        if not self.sender.ends_after(entry):
            return "and its connection did not end there"
        return "and nothing was lost there by the other book"


# --- One line -------------------------------------------------------------------------------------


def prove(ledger: Path, line: int, *, by: Path | None = None) -> dict[str, Any]:
    """That this line is in the ledger: its text, and the hashes from it to a signed head.

    Args:
        ledger: the file.
        line: its number; of a ledger in several files, over all of them.
        by: the site of a party that holds heads of this ledger; None: those that its own site has.

    Raises:
        NetworkError: a broken ledger, no such line, or no head that reaches it.
    """
    verified = verify(ledger)
    if not 1 <= line <= verified.num_lines:
        raise NetworkError(f"{ledger}: there is no line {line:,}; it has {verified.num_lines:,}")
    if len(verified.leaves) != verified.num_lines:
        raise NetworkError(
            f"{ledger}: {verified.follows}, which it follows, is not here; a line is proved from "
            "all files of a ledger"
        )
    site_folder = ledger.parent if by is None else by
    heads = (head for head in heads_of(site_folder, verified.party) if head.lines >= line)
    head = next(heads, None)
    if head is None:
        raise NetworkError(
            f"{site_folder / FOLDER} has no head of the ledger of {verified.party!r} that reaches "
            f"line {line:,}: heads are told when a run saves, and when a driver leaves"
        )
    return {
        "format": PROOF,
        "party": verified.party,
        "line": line,
        "text": _text(ledger, line),
        "path": [each.hex() for each in path(verified.leaves[: head.lines], line - 1)],
        "head": vars(head),
    }


def _text(ledger: Path, line: int) -> str:
    before = 0
    for file in files_of(ledger):
        lines = file.read_bytes().split(b"\n")[:-1]
        if line <= before + len(lines):
            return lines[line - before - 1].decode()
        before += len(lines)
    raise AssertionError(line)


@dataclass(frozen=True)
class Proved:
    """Result of checking a proof.

    Attributes:
        party: whose ledger it is.
        line: which line.
        text: what it says.
        head: the head that it is shown under; signed if it has a proof.
    """

    party: str
    line: int
    text: str
    head: LedgerHead


def check_line(proof: Path, *, authorities: Sequence[x509.Certificate] = ()) -> Proved:
    """Result of checking a file of ``prove``.

    Args:
        proof: the file.
        authorities: who must have issued the certificate that the head is signed with; none:
            anybody.

    Raises:
        NetworkError: it shows nothing, and why.
    """
    try:
        if proof.stat().st_size > _MAX_PROOF_BYTES:
            raise ValueError("it is larger than any")
        proof_json = json.loads(proof.read_bytes())
        if proof_json["format"] != PROOF:
            raise ValueError(f"its format is not {PROOF!r}")
        party, text = str(proof_json["party"]), str(proof_json["text"])
        head, line = read_head(proof_json["head"], party), int(proof_json["line"])
        hashes = [bytes.fromhex(each) for each in proof_json["path"]]
    except OSError as error:
        raise NetworkError(f"{proof}: cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise NetworkError(f"{proof} is no proof of a line: {error}") from None
    root = root_of(leaf_hash(text.encode()), line - 1, head.lines, hashes)
    if root is None or root.hex() != head.root:
        raise NetworkError(
            f"{proof}: the line that it shows is not in the tree of its head: the text, a hash, or "
            "the head was changed"
        )
    if head.proof:
        try:
            signature = bytes.fromhex(head.proof)
            check_proof(head.of, head.statement(), signature, authorities, at=None)
        except MessageError as error:
            raise NetworkError(f"{proof}: {error}") from None
    elif authorities:
        raise NetworkError(f"{proof}: its head is not signed")
    return Proved(party, line, text, head)
