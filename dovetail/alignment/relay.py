"""Private set intersection between parties who reach each other through a coordinator only.

``psi.align`` wants to be where the initiator's ids are, and to reach the responders. Where a
coordinator without data drives, neither party reaches the other, so it carries their messages:

    coordinator                initiator (ids X)             responder (ids Y)
    Describe            -----> Description              ---> Description
    Start               -----> psi starts, with the ids of one part
                        <----- Requests: for each responder
                               the bytes of a psi message
    Carry               -------------------------------------> answers as ``responder.py``
                        <------------------------------------- Carried: the bytes of its answer
    Answers             -----> psi goes on
                        <----- Requests, until ``done``:
                               the samples that all have
    Narrow              -------------------------------------> keeps its rows of these
                        <------------------------------------- Narrowed

An initiator aligns its ids in parts, such as rows that train and rows that test, each with all
responders; the order of a part has the samples that all of them have. With match keys in place of
ids (``passes.py``) it goes from responder to responder, and the coordinator sees which key is tried
and how many rows have it.

The protocol, what each side learns of the other, and what is checked are those of ``psi.py``. The
coordinator learns how many ids each has and how many they share; the points that it carries are
blinded. A responder learns also which of the samples that it shares all others share. It passes
bytes on and decodes none of them. Whoever carries messages can also make some up: a coordinator
that breaks the rules can pass for an initiator, and then learns of ids that it guesses whether the
responder has them, as any dishonest initiator does. It cannot claim rows whose ids it has not, nor
read the ids of an alignment that it only carries. A responder's site counts all that one
coordinator carries as that coordinator's, whatever initiators it names.

Letters: P parties addressed, X bytes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dovetail.alignment import psi, responder
from dovetail.alignment.limits import Alignments
from dovetail.alignment.matchkeys import Keys
from dovetail.alignment.passes import align_by_keys
from dovetail.errors import DovetailError, MessageError
from dovetail.network import (
    Engine,
    Message,
    Pending,
    Replies,
    State,
    check_shape,
    decode,
    encode,
)
from dovetail.settings.alignment import IdAs

R = TypeVar("R", bound=Message)

#: Bytes of one carried message: psi's largest has 16 384 points and indices.
MAX_CARRIED_BYTES = 2**20

#: Seconds that an initiator waits for answers before it gives an alignment up.
PATIENCE_S = 3600.0

# --- What crosses the boundary -----------------------------------------------------------------


class Describe(Message):
    """Coordinator -> any: are you one that initiates, and which rows of this alignment are kept?"""

    alignment: str  # its name; "" where there was none


class Description(Message):
    """Any -> coordinator: that."""

    parts: tuple[str, ...]  # of an initiator's ids; a responder has none
    num_ids: int
    aligned: tuple[str, ...]  # initiators of whose samples it keeps its rows


class Start(Message):
    """Coordinator -> initiator: align this part of your ids with these responders'."""

    part: str
    responders: tuple[str, ...]


class Requests(Message):
    """Initiator -> coordinator: hand these on; or, once ``done``, the result."""

    done: bool
    responders: tuple[str, ...]
    sizes_P: Tensor  # int64, bytes of each one's message; once done, samples shared with each
    messages_1X: Tensor  # uint8, one after the other
    num_ids: int  # once done: of this part
    common_K: Tensor  # int64, once done: samples that all responders have


class Answers(Message):
    """Coordinator -> initiator: what the responders answered, in the order of the requests."""

    sizes_P: Tensor  # int64
    messages_1X: Tensor  # uint8


class Carry(Message):
    """Coordinator -> responder: this initiator's message."""

    initiator: str
    message_1X: Tensor  # uint8


class Carried(Message):
    """Responder -> coordinator: the answer to it."""

    message_1X: Tensor  # uint8


class Narrow(Message):
    """Coordinator -> responder: these samples of the alignment that just ended are the order."""

    initiator: str
    part: str
    samples_K: Tensor  # int64


class Narrowed(Message):
    """Responder -> coordinator: its rows of them are kept."""

    num_samples: int


def _bytes_of(message: Message) -> bytes:
    return bytes(encode(message))


def _tensor_of(parts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """(P,) sizes and (1, X) bytes."""
    whole = np.frombuffer(b"".join(parts), dtype=np.uint8).copy()
    return torch.tensor([len(part) for part in parts], dtype=torch.int64), torch.from_numpy(
        whole
    ).reshape(1, -1)


def _parts_of(message: Requests | Answers, num: int) -> list[bytes]:
    """The messages that one holds.

    Raises:
        MessageError: sizes that do not add up.
    """
    check_shape(message, "sizes_P", (num,), torch.int64)
    sizes, whole = message.sizes_P.tolist(), message.messages_1X
    if any(not 0 <= size <= MAX_CARRIED_BYTES for size in sizes):
        raise MessageError(
            f"{message.wire_name()}: a carried message has at most {MAX_CARRIED_BYTES} bytes"
        )
    check_shape(message, "messages_1X", (1, sum(sizes)), torch.uint8)
    data, start, parts = whole.cpu().numpy().tobytes(), 0, []
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    return parts


# --- What a responder executes -------------------------------------------------------------------


class Responder:
    """A party that answers initiators whom it does not reach itself, one after the other.

    Args:
        responder: its side of an alignment.
        keep: called with an initiator's name, a part and the (K,) rows of its samples.
        aligned: the name of an alignment -> initiators of whose samples it keeps rows.
    """

    accepts = (Describe, Carry, Narrow)

    def __init__(
        self,
        responder: responder.Responder,
        keep: Callable[[str, str, Tensor], None],
        aligned: Callable[[str], Sequence[str]] = lambda name: (),
    ) -> None:
        self._fresh = responder
        self._responder = responder
        self._initiator: str | None = None
        self._keep = keep
        self._aligned = aligned

    def handle(self, message: Message) -> Message:
        if isinstance(message, Describe):
            kept = tuple(self._aligned(message.alignment))
            return Description((), self._fresh.num_rows, kept)
        if isinstance(message, Narrow):
            return self._narrow(message)
        assert isinstance(message, Carry)
        size = message.message_1X.numel()
        if size > MAX_CARRIED_BYTES:
            raise MessageError(
                f"{message.wire_name()}: {size} bytes; at most {MAX_CARRIED_BYTES} are carried"
            )
        check_shape(message, "message_1X", (1, size), torch.uint8)
        carried = decode(message.message_1X.cpu().numpy().tobytes(), responder.Responder.accepts)
        if isinstance(carried, psi.Begin) and carried.initiator != message.initiator:
            raise MessageError(
                f"{message.wire_name()}: {message.initiator!r} is said to begin, and its "
                f"message says {carried.initiator!r}"
            )
        if self._is_first(carried):
            self._responder, self._initiator = self._fresh.guarded(None), message.initiator
        elif message.initiator != self._initiator:
            raise MessageError(
                f"{message.wire_name()}: {message.initiator!r} goes on, but {self._initiator!r} "
                "began; one alignment at a time"
            )
        answer = self._responder.handle(carried)
        return Carried(_tensor_of([_bytes_of(answer)])[1])

    def _is_first(self, carried: Message) -> bool:
        """Whether an alignment starts: of ids with its one run, of match keys with the first."""
        if isinstance(carried, psi.Pass):
            return carried.place == 0
        return isinstance(carried, psi.Begin) and not self._fresh.has_passes

    def _narrow(self, message: Narrow) -> Narrowed:
        if message.initiator != self._initiator:
            raise MessageError(
                f"{message.wire_name()}: {message.initiator!r} has not been aligned just now"
            )
        rows_S = self._responder.rows_S  # raises where the alignment is not over
        num = message.samples_K.numel()
        check_shape(message, "samples_K", (num,), torch.int64)
        samples = message.samples_K
        if num and not 0 <= int(samples.min()) <= int(samples.max()) < len(rows_S):
            raise MessageError(f"{message.wire_name()}: samples outside 0..{len(rows_S) - 1}")
        rows_K = rows_S[samples]
        if num and (int(rows_K.min()) < 0 or len(samples.unique()) < num):
            raise MessageError(
                f"{message.wire_name()}: samples that are named twice, or that it does not share"
            )
        self._keep(message.initiator, message.part, rows_K)
        return Narrowed(num)

    def state(self) -> State:
        """Nothing: an alignment that was left starts again."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing to restore."""


# --- What an initiator executes ------------------------------------------------------------------


class Initiator:
    """A party that aligns its ids with responders whom a coordinator reaches.

    ``psi.align`` runs in a thread of its own, whose engine hands messages to the coordinator; or
    ``passes.align_by_keys`` does.

    Args:
        name: the party's.
        ids: part -> (N,) integers or strings, by row; or its match keys, in the order in which they
            are tried.
        keep: called with a part and the (K,) rows of it that all responders have, in the order
            that they share.
        aligned: as of ``Responder``.
        id_as: compare ids as text, without regard to case or as digits; all the same.
        guard: counts what is started here, too: the coordinator may be the responders itself, and
            learns of ids that it guesses whether they are among these.

    Raises:
        AlignmentError: in the thread, and told to the coordinator: ids that are empty or repeated.
    """

    accepts = (Describe, Start, Answers)

    def __init__(
        self,
        name: str,
        ids: Mapping[str, Sequence[Any] | np.ndarray | Keys],
        keep: Callable[[str, Tensor], None],
        aligned: Callable[[str], Sequence[str]] = lambda name: (),
        *,
        id_as: IdAs = "text",
        guard: Alignments | None = None,
    ) -> None:
        self.name = name
        self._guard = guard
        self._ids = dict(ids)
        self._keep = keep
        self._aligned = aligned
        self._id_as: IdAs = id_as
        self._engine: _Handed | None = None

    def handle(self, message: Message) -> Message:
        if isinstance(message, Describe):
            num_ids = sum(
                ids.num_rows if isinstance(ids, Keys) else len(ids) for ids in self._ids.values()
            )
            kept = tuple(self._aligned(message.alignment))
            return Description(tuple(self._ids), num_ids, kept)
        if isinstance(message, Start):
            if self._engine is not None:
                self._engine.give_up()
            if message.part not in self._ids:
                raise MessageError(
                    f"{message.wire_name()}: there is no part {message.part!r}; there are "
                    f"{', '.join(self._ids)}"
                )
            if self._guard is not None:
                self._guard.begins(self.name, f"carried, {message.part}", 0)
            self._engine = _Handed(self.name, message.responders)
            self._part = message.part
            self._asked: tuple[str, ...] = ()
            ids = self._ids[message.part]
            threading.Thread(target=self._run, args=(self._engine, ids), daemon=True).start()
        else:
            assert isinstance(message, Answers)
            if self._engine is None:
                raise MessageError(f"expected relay.Start first, got {message.wire_name()}")
            parts = _parts_of(message, len(self._asked))
            self._engine.answers.put(dict(zip(self._asked, parts, strict=True)))
        return self._next(self._engine)

    def _run(self, engine: _Handed, ids: Sequence[Any] | np.ndarray | Keys) -> None:
        """In the thread."""
        try:
            if isinstance(ids, Keys):
                engine.requests.put(align_by_keys(engine, ids))
            else:
                engine.requests.put(psi.align(engine, ids, id_as=self._id_as))
        except Exception as error:
            engine.requests.put(error)

    def _next(self, engine: _Handed) -> Requests:
        """Next requests to hand on, or the result."""
        request = engine.requests.get()
        if not isinstance(request, dict):
            self._engine = None
        if isinstance(request, Exception):
            raise request
        nothing = torch.empty(0, dtype=torch.int64)
        if isinstance(request, psi.Aligned):
            responders = engine.parties
            shared = torch.tensor([request.overlap[name] for name in responders], dtype=torch.int64)
            common_K = request.alignment.shared(*responders)
            self._keep(self._part, request.alignment.rows[self.name][common_K])
            empty = torch.empty(1, 0, dtype=torch.uint8)
            return Requests(True, responders, shared, empty, request.num_ids[self.name], common_K)
        self._asked = tuple(request)
        return Requests(False, self._asked, *_tensor_of(list(request.values())), 0, nothing)

    def state(self) -> State:
        """Nothing: an alignment that was left starts again."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing to restore."""


class _GaveUpError(DovetailError):
    """Another alignment began."""


class _Handed(Engine):
    """An engine whose messages somebody else carries."""

    def __init__(self, driver: str, parties: tuple[str, ...]) -> None:
        super().__init__(driver)
        self._parties = parties
        self.requests: queue.Queue[dict[str, bytes] | psi.Aligned | Exception] = queue.Queue()
        self.answers: queue.Queue[dict[str, bytes] | None] = queue.Queue()

    @property
    def parties(self) -> tuple[str, ...]:
        return self._parties

    def give_up(self) -> None:
        """End the thread that waits here."""
        self.answers.put(None)

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Pending[R]:
        if requests:
            self.requests.put({party: _bytes_of(each) for party, each in requests.items()})
        return _Answered(self, tuple(requests), reply)


class _Answered(Pending[R]):
    """Messages that the coordinator carries; they come back in the order that they went."""

    def __init__(self, engine: _Handed, parties: tuple[str, ...], reply: type[R]) -> None:
        self._engine = engine
        self._parties = parties
        self._reply = reply

    def replies(self) -> Replies[R]:
        if not self._parties:
            return Replies({}, {})
        try:
            came = self._engine.answers.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise _GaveUpError(f"no answer within {PATIENCE_S:g} s") from None
        if came is None:
            raise _GaveUpError("another alignment began")
        return Replies({party: decode(came[party], (self._reply,)) for party in self._parties}, {})


# --- What the coordinator executes ---------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Result of an alignment with one initiator, at the coordinator.

    Attributes:
        num_ids: how many ids it has.
        num_common: how many of them all responders have.
        shared: responder -> how many of them it has.
    """

    num_ids: int
    num_common: int
    shared: Mapping[str, int]


def align(
    engine: Engine,
    initiators: Mapping[str, Sequence[str]],
    responders: Sequence[str],
    *,
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[tuple[str, str], Overlap]:
    """(Initiator, part) -> overlap with all responders; one is aligned after the other.

    Args:
        engine: reaches ``Initiator`` s and ``Responder`` s.
        initiators: name -> its parts.
        responders: names.
        timeout_s: seconds until a party that has not answered has failed; None waits.
        progress: called with each initiator that starts.

    Raises:
        PartyError: one refused, did not answer, or did not follow the protocol.
    """
    overlaps = {}
    for name, parts in initiators.items():
        if progress is not None:
            progress(name)
        for part in parts:
            overlaps[name, part] = _align_part(engine, name, part, tuple(responders), timeout_s)
    return overlaps


def _align_part(
    engine: Engine, name: str, part: str, responders: tuple[str, ...], timeout_s: float | None
) -> Overlap:
    asked: Message = Start(part, responders)
    while True:
        request = engine.ask({name: asked}, Requests, timeout_s=timeout_s).or_raise()[name]
        if request.done:
            break
        parts = _parts_of(request, len(request.responders))
        carried = engine.ask(
            {
                responder: Carry(name, _tensor_of([each])[1])
                for responder, each in zip(request.responders, parts, strict=True)
            },
            Carried,
            timeout_s=timeout_s,
        ).or_raise()
        back = [
            carried[responder].message_1X.cpu().numpy().tobytes()
            for responder in request.responders
        ]
        asked = Answers(*_tensor_of(back))
    check_shape(request, "sizes_P", (len(request.responders),), torch.int64)
    check_shape(request, "common_K", (request.common_K.numel(),), torch.int64)
    narrow = Narrow(name, part, request.common_K)
    engine.ask(dict.fromkeys(responders, narrow), Narrowed, timeout_s=timeout_s).or_raise()
    shared = dict(zip(request.responders, request.sizes_P.tolist(), strict=True))
    return Overlap(request.num_ids, len(request.common_K), shared)
