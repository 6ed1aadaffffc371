"""Private set intersection: which ids two parties have in common, and nothing about the others.

Commutative Diffie-Hellman after Meadows (IEEE S&P 1986) and Huberman, Franklin & Hogg (EC 1999),
on Curve25519 (``curve.py``); proof for semi-honest parties under DDH in the random oracle model:
Agrawal, Evfimievski & Srikant (SIGMOD 2003). One party starts, the initiator; it has ids X and
drives. The others respond; each has ids Y, and each pair is a run of its own with fresh secrets.

    a (b H(x)) = b (a H(x))   so two parties can compare what both have multiplied

    Paper      Here               Shape     Lives at
    H(x)       points_N32         (N, 32)   initiator; never leaves it
    H(y)       points_M32         (M, 32)   responder; never leaves it
    a, b       secret                       each side its own; one run long
    a H(x)     Blinded.points_B32 (N, 32)   sent to the responder, in random order
    b H(y)     Blinded.points_B32 (M, 32)   sent to the initiator, in random order
    b a H(x)   Doubled.values_B16 (N, 16)   sent to the initiator
    a b H(y)   theirs_M16         (M, 16)   initiator; never leaves it
    c H(x)     Prove.points_B32   (Q, 32)   sent to who claims x, either way; c of one question
    b c H(x)   Proofs.values_B16  (Q, 16)   sent back; at the initiator it is a's turn

    Letters: N ids of the initiator, M of the responder, B of one message (at most ``MAX_IDS``),
    K common ids, S samples of the shared order, Q questions, 32 or 16 bytes of a point.
    A *place* is where a point is in the random order its owner sent it in.

Below: the messages, what both sides execute, and the initiator. ``responder.py`` is the responder.

Phases, each in messages of at most ``MAX_IDS`` ids:
    1. **Agree.** The initiator says which mode, how it normalised, and N; the responder M.
    2. **Blind X.** The initiator sends a H(x) in random order. The responder multiplies by b.
    3. **Blind Y.** The responder sends b H(y) in random order. The initiator multiplies by a.
    4. **Compare.** The responder returns b a H(x): in the order of phase 2 (intersection), or in
       a random order of its own, drawn over all N at once (cardinality). The initiator finds the
       values that occur on both sides; in cardinality mode it stops here, knowing how many.
    5. **Prove Y** (intersection only, as all that follows). The initiator asks the responder to
       prove a random part of what both seem to have (``proofs.py``).
    6. **Share.** The initiator numbers its N rows at random: these numbers are the shared samples,
       the same for all responders. It sends each responder the indices of its common ids, their
       sample numbers and the places where itself sent these ids; from its own random order the
       responder knows the rows.
    7. **Prove X.** The responder asks the initiator to prove a random part of that, and has no rows
       before all these proofs were right.

Who learns what, if all follow the protocol (semi-honest):

    mode          initiator learns              a responder learns
    intersection  M; which of its own ids the   N; which of its own ids the initiator has; a
                  responder has                 random number below N for each of those
    cardinality   M and K                       N

    A responder also sees how the initiator normalised its ids. Neither learns anything else about
    the other's ids, nor the other's row numbers or their order. All N rows are numbered, shared or
    not, so what a responder receives depends on its own intersection alone: nothing shows it which,
    or how many, samples another responder
    shares. Responders that pool what they know find their common samples by the numbers; with
    their ids on the table they could do so without them. Whoever only carries the messages learns
    N and M, and in intersection mode K.

What a party that does not follow the protocol cannot do:
    - **Claim a row whose id it has not sent.** A responder takes no place for shared, and an
      initiator no id, on the other's word. Each proof is about an id that the asking side knows and
      a point that the other sent before; without the id a right one is as hard as computational
      Diffie-Hellman, whatever was multiplied with what (``proofs.py``). Up to ``CHECKED`` shared
      rows all are proved. Of more, so many or every 50th, drawn at random: of K claims, m of them
      false, all pass with a probability of at most (1 - m/K)^Q, Q = max(512, K/50): 50 false ones
      with at most 37 %, 500 with 0.005 %. Who has none of the ids fails the first. A false proof
      ends the run without rows, is reported to the guard (``limits.py``), and is no mistake that an
      honest party makes.
    - **Do a phase again, or another one first.** Each batch of each phase is answered once, in
      order, and a phase after the one before.
    - **Be believed in cardinality mode:** there is nothing to believe. The responder learns
      nothing but N, and answers no message of phases 5 to 7. What the initiator counts it cannot
      check: a responder that lies about its points makes the number wrong.

What is not covered:
    - A party can list ids that it guesses, and then learns whether the other has them: it *has*
      these ids, and proves them. In phase 5 an initiator and in phase 7 a responder can ask about
      points of its choice, as if its list were longer by Q ids. ``min_ids``, ``max_ids`` and the
      guard bound that. Random points cannot be told from ids, so a small list can be padded;
      points that are repeated, also up to a point of low order, are refused.
    - An initiator that stops before phase 6 knows the intersection alone.
    - Repeated runs: sets that differ in one id reveal by their cardinalities whether it is shared.
    - Training on the result: a message that names samples shows which ones it is about. APFed on
      ``overlap = "common"`` names those that all share.

What is checked beside the proofs: batches are as many, as large and in the order announced; points
are 32 bytes, reduced mod p, not repeated, and not of low order (0, which stands for the identity,
among them); N is at most ``MAX_TOTAL_IDS``, and nothing of size N is made before N points came.

Departures from the papers:
    - Values are compared by their first 128 bits: two different ids are taken for the same with
      probability of at most about N M / 2^127 in a run (1e-26 for a million each). Nobody can
      choose ids to collide without knowing b.
    - Agrawal et al. sort the blinded sets to hide the order of rows; here the order is uniformly
      random, drawn from the system's secure random numbers, so that sending can begin at once.
    - The responder learns the intersection too, because it has to train on it.
    - Phases 5 and 7 are ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from dovetail.alignment.curve import POINT_BYTES, Workers
from dovetail.alignment.points import hashed_ids, matches
from dovetail.alignment.proofs import VALUE_BYTES, Questions, num_questions
from dovetail.data import Alignment
from dovetail.data.many_rows import absent, inverse, picked, put, random_order, rising
from dovetail.data.stored import Pile
from dovetail.errors import MessageError, PartyError
from dovetail.network import Engine, Message, Pending, check_shape
from dovetail.settings.alignment import CHECKED, IdAs

#: No message holds more ids than this: half a MiB of points, about half a second of work.
MAX_IDS = 16_384

#: A responder takes part in no run with more ids than this: 64 GiB of points.
MAX_TOTAL_IDS = 2**31

#: Stands in an initiator's alignment for a partner's row: it has one, and only it knows which.
ELSEWHERE = torch.iinfo(torch.int64).max

#: What a responder may agree to.
MODES = ("intersection", "cardinality")

#: Called with (points done, points in all) while a run goes on.
Progress = Callable[[int, int], None]


class Pace(TypedDict, total=False):
    """How an initiator works, whatever it compares.

    Attributes:
        workers: does the curve's arithmetic; None uses this process.
        batch_size: ids in one message, at most ``MAX_IDS``.
        timeout_s: seconds until a partner that has not answered a batch has failed; None waits.
        progress: called with (points done, points in all).
    """

    workers: Workers | None
    batch_size: int
    timeout_s: float | None
    progress: Progress | None


# --- What crosses the boundary -----------------------------------------------------------------


class Begin(Message):
    """Initiator -> responder: a run starts; what the initiator's ids are like. Phase 1."""

    initiator: str
    mode: str
    compared_as: str  # ids, as ``id_as`` of its party file says
    num_ids: int  # N
    batch_size: int


class Ready(Message):
    """Responder -> initiator: agreed. Phase 1."""

    num_ids: int  # M


class Blinded(Message):
    """Either way: own ids' points times own secret, in a random order. Phases 2 and 3."""

    batch: int
    points_B32: Tensor  # uint8


class Received(Message):
    """Responder -> initiator: a batch has come; proofs are right. Phases 2, 6 and 7."""

    batch: int


class GetBlinded(Message):
    """Initiator -> responder: send this batch of your blinded ids. Phase 3."""

    batch: int


class GetDoubled(Message):
    """Initiator -> responder: send this batch of my ids, now multiplied by both. Phase 4."""

    batch: int


class Doubled(Message):
    """Responder -> initiator: both secrets times the initiator's ids, cut to 128 bits. Phase 4."""

    batch: int
    values_B16: Tensor  # uint8


class Places(Message):
    """Initiator -> responder: which of your places are which shared samples. Phase 6."""

    batch: int
    num_shared: int  # K, of all batches; the same in each
    samples_B: Tensor  # int64, in 0..N-1
    places_B: Tensor  # int64, in 0..M-1
    own_B: Tensor  # int64, in 0..N-1: the index of my point that is this id


class Prove(Message):
    """Either way: multiply these by the secret of your points. Phases 5 and 7."""

    batch: int
    num_questions: int  # Q, of all batches; the same in each
    points_B32: Tensor  # uint8


class Proofs(Message):
    """Either way: these, cut to 128 bits. Phases 5 and 7."""

    batch: int
    values_B16: Tensor  # uint8


class GetProve(Message):
    """Initiator -> responder: I have told all places; what shall I prove? Phase 7."""

    batch: int


class Pass(Message):
    """Initiator -> responder: the next run compares this match key (``passes.py``)."""

    place: int  # from 0, each once, in order
    num_passes: int
    key: str  # as both sides resolve it
    num_samples: int  # rows of the initiator, with a key or without


class Passing(Message):
    """Responder -> initiator: agreed."""

    num_rows: int  # with a key or without


# --- What both sides execute -------------------------------------------------------------------


def batches_of(num_ids: int, batch_size: int) -> int:
    return -(-num_ids // batch_size)


def slice_of(batch: int, batch_size: int) -> slice:
    return slice(batch * batch_size, (batch + 1) * batch_size)


def size_of(batch: int, num_ids: int, batch_size: int) -> int:
    return min(batch_size, num_ids - batch * batch_size)


def _array(message: Message, name: str, num: int, width: int) -> np.ndarray:
    """The (num, width) uint8 field, contiguous.

    Raises:
        MessageError: another shape or dtype.
    """
    check_shape(message, name, (num, width), torch.uint8)
    return np.ascontiguousarray(getattr(message, name).cpu().numpy())


def times_secret(
    message: Blinded | Prove, num: int, secret: bytes, workers: Workers
) -> tuple[np.ndarray, np.ndarray]:
    """(num, 32) the other side's points, and (num, 16) values of them times our secret.

    Raises:
        MessageError: not ``num`` points of 32 bytes, or points no honest party sends.
    """
    points = _array(message, "points_B32", num, POINT_BYTES)
    words = points.view("<u8")  # (num, 4)
    largest = np.uint64(2**64 - 1)
    not_reduced = (words[:, 3] >= 2**63 - 1) & (
        (words[:, 3] >= 2**63)  # the unused bit 255
        | ((words[:, 0] >= 2**64 - 19) & (words[:, 1] == largest) & (words[:, 2] == largest))
    )
    if not_reduced.any():
        raise MessageError(
            f"{message.wire_name()}: {int(not_reduced.sum())} of {num} points are not reduced "
            "modulo 2^255 - 19"
        )
    multiplied = workers.multiply(secret, points)
    num_low = int((~multiplied.any(axis=1)).sum())
    if num_low:
        raise MessageError(
            f"{message.wire_name()}: {num_low} of {num} points are the identity or of low "
            "order, which no honest party sends"
        )
    return points, np.ascontiguousarray(multiplied[:, :VALUE_BYTES])


def questions_in(asked: Questions, batch: int, batch_size: int) -> Prove:
    """A batch of questions."""
    points = asked.points_Q32[slice_of(batch, batch_size)]
    return Prove(batch, len(asked), torch.from_numpy(points.copy()))


def wrong_in(message: Proofs, asked: Questions, batch: int, batch_size: int) -> int:
    """How many proofs of a batch are none."""
    _check_batch(message, batch)
    size = size_of(batch, len(asked), batch_size)
    values = _array(message, "values_B16", size, VALUE_BYTES)
    return asked.num_wrong(values, slice_of(batch, batch_size))


@dataclass(eq=False)
class Proving:
    """A side that is asked to prove what it sent."""

    most: int  # questions that can be asked
    batch_size: int
    secret: bytes
    workers: Workers
    num: int | None = None  # as the first batch says
    num_batches: int = 0  # that were answered

    def answer(self, prove: Prove) -> Proofs:
        """The next batch of proofs.

        Raises:
            MessageError: more questions than can be asked, or again, or points no honest party
                sends.
        """
        num, batch = prove.num_questions, prove.batch
        if not 1 <= num <= self.most or self.num not in (None, num):
            raise MessageError(
                f"{prove.wire_name()}: expected 1..{self.most} questions, the same number in each "
                f"batch, got {num}"
            )
        if batch != self.num_batches or batch >= batches_of(num, self.batch_size):
            raise MessageError(
                f"{prove.wire_name()}: expected batch {self.num_batches} of "
                f"{batches_of(num, self.batch_size)}, each once, got batch {batch}"
            )
        size = size_of(batch, num, self.batch_size)
        values = times_secret(prove, size, self.secret, self.workers)[1]
        self.num, self.num_batches = num, batch + 1
        return Proofs(batch, torch.from_numpy(values))


# --- What the initiator executes ---------------------------------------------------------------


@dataclass(frozen=True)
class PassCount:
    """How many rows one match key has found with one partner.

    Attributes:
        key: as both sides resolve it.
        usable: own rows that entered, each with a key of its own.
        ambiguous, missing: own rows that were left and share a key, or have none.
        num_shared: rows that it matched and no key before it.
    """

    key: str
    usable: int
    ambiguous: int
    missing: int
    num_shared: int


@dataclass(frozen=True, eq=False)
class PassDone(PassCount):
    """Result of one match key with one partner.

    Attributes:
        theirs: the partner's rows that entered.
        samples_K: what was matched.
    """

    theirs: int
    samples_K: Tensor


@dataclass(frozen=True, eq=False)
class Aligned:
    """Result of an alignment at the initiator.

    Attributes:
        alignment: its own row of each sample, and for each partner ``ELSEWHERE`` where that
            partner has the sample, -1 where not. The shared order holds all its rows, at random.
        num_ids: party -> how many ids it has; the initiator's own included.
        overlap: partner -> how many it shares with the initiator.
        passes: partner -> what each match key has found; none where ids were compared.
    """

    alignment: Alignment
    num_ids: Mapping[str, int]
    overlap: Mapping[str, int]
    passes: Mapping[str, tuple[PassDone, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Overlap:
    """Result of counting with one partner, at the initiator.

    Attributes:
        num_ids: how many ids the partner has.
        num_shared: how many of them are the initiator's too.
        passes: how many each match key has found; none where ids were counted.
    """

    num_ids: int
    num_shared: int
    passes: tuple[PassCount, ...] = field(default=(), repr=False)


@dataclass(eq=False)
class _Pair:
    """The initiator's side of its run with one partner."""

    num_theirs: int  # M
    secret: bytes
    order_N: np.ndarray  # index -> row
    whose: str  # in its folder large files lie

    def __post_init__(self) -> None:
        self.mine = Pile(VALUE_BYTES, np.uint8, self.whose)  # of phase 4
        self.points = Pile(POINT_BYTES, np.uint8, self.whose)  # of phase 3, as they came
        self.theirs = Pile(VALUE_BYTES, np.uint8, self.whose)  # the same, multiplied

    def matches(self) -> tuple[np.ndarray, np.ndarray]:
        """(K,) own indices and (K,) the partner's indices of what both have; asked once."""
        mine, theirs = self.mine.rows(), self.theirs.rows()
        self.mine.clear()
        self.theirs.clear()
        return matches(mine, theirs, self.whose)


@dataclass(frozen=True, eq=False)
class _Shared:
    """Message of the initiator to one partner about its shared samples."""

    samples_K: Tensor
    indices_K: Tensor  # the partner's
    local_K: Tensor  # the initiator's


def align(
    engine: Engine,
    ids: Sequence[Any] | np.ndarray,
    *,
    id_as: IdAs = "text",
    **pace: Unpack[Pace],
) -> Aligned:
    """The initiator's rows by shared sample, and who shares which; partners learn theirs.

    Every responder has its own ``rows_S`` afterwards, over the same samples. Cost: 2 (N + M)
    multiplications per partner, half of them at the partner, about 33 us each, and about 8 for each
    question; 48 N + 32 M + 24 K bytes.

    Args:
        engine: reaches ``Responder`` s; its driver is the initiator.
        ids: (N,) integers or strings, by row.
        id_as: compare ids as text, without regard to case or as digits; both sides the same.
        pace: see ``Pace``.

    Raises:
        AlignmentError: ids that are empty, repeated after normalisation, or of another type.
        PartyError: a partner refused, or did not follow the protocol.

    >>> from dovetail.alignment import Responder
    >>> from dovetail.network import InProcess
    >>> shop = Responder("shop", ["anna", "carl", "dora"])
    >>> aligned = align(InProcess({"shop": shop}, driver="bank"), ["anna", "bert", "carl"])
    >>> aligned.overlap["shop"]
    2
    >>> samples = aligned.alignment.shared("bank", "shop")
    >>> sorted(aligned.alignment.rows["bank"][samples].tolist())
    [0, 2]
    >>> sorted(shop.rows_S[samples].tolist())
    [0, 1]
    """
    initiator = Initiator(engine, id_as=id_as, **pace)
    pairs = initiator.compare("intersection", ids)
    num_ids = initiator.num_ids
    rows_S = random_order(num_ids, engine.driver)  # phase 6: sample -> own row
    rows = {engine.driver: torch.from_numpy(rows_S)}
    shared = initiator.send_indices(pairs, inverse(rows_S, engine.driver))
    for party, samples_K in shared.items():
        rows_of = absent(num_ids, engine.driver)
        put(rows_of, samples_K.numpy(), ELSEWHERE)
        rows[party] = torch.from_numpy(rows_of)
    return Aligned(
        Alignment(MappingProxyType(rows)),
        {engine.driver: num_ids, **{party: pair.num_theirs for party, pair in pairs.items()}},
        {party: len(samples_K) for party, samples_K in shared.items()},
    )


def count_overlap(
    engine: Engine,
    ids: Sequence[Any] | np.ndarray,
    *,
    id_as: IdAs = "text",
    **pace: Unpack[Pace],
) -> dict[str, Overlap]:
    """Partner -> how many ids it has and shares; which ones, nobody learns.

    Arguments and errors are those of ``align``.
    """
    initiator = Initiator(engine, id_as=id_as, **pace)
    counts = {}
    for party, pair in initiator.compare("cardinality", ids).items():
        with _blamed_on(party):
            counts[party] = Overlap(pair.num_theirs, len(pair.matches()[0]))
    return counts


class Initiator:
    """Runs the phases with all partners at once, batch by batch.

    While partners work on one batch, the initiator works on another.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        id_as: IdAs = "text",
        parties: Sequence[str] | None = None,
        order_N: np.ndarray | None = None,
        workers: Workers | None = None,
        batch_size: int = MAX_IDS,
        timeout_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """As of ``align``; ``order_N`` is that in which ids leave, where it must be the same."""
        if not 1 <= batch_size <= MAX_IDS:
            raise ValueError(f"batch_size must lie in 1..{MAX_IDS}, got {batch_size}")
        self.engine = engine
        self.parties = engine.parties if parties is None else tuple(parties)
        self.id_as: IdAs = id_as
        self.workers = workers or Workers()
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.progress = progress or (lambda done, total: None)
        self.num_ids = 0
        self.order_N = order_N

    def compare(self, mode: str, ids: Sequence[Any] | np.ndarray) -> dict[str, _Pair]:
        """Phases 1 to 4; partner -> what it takes to compare."""
        points_N32 = hashed_ids(
            ids, party=self.engine.driver, id_as=self.id_as, workers=self.workers
        )
        return self._compare(mode, points_N32, self.id_as)

    def compare_points(self, mode: str, points_N32: np.ndarray) -> dict[str, _Pair]:
        """Party -> its pair of compared sets, of match keys, whose points these are."""
        return self._compare(mode, points_N32, "text")

    def _compare(self, mode: str, points_N32: np.ndarray, id_as: IdAs) -> dict[str, _Pair]:
        self.num_ids, self.points_N32 = len(points_N32), points_N32
        pairs = self.agree(Begin(self.engine.driver, mode, id_as, self.num_ids, self.batch_size))
        self.done = 0
        self.total = sum(self.num_ids + pair.num_theirs for pair in pairs.values())
        self.progress(0, self.total)
        self.blind_local(pairs, self.points_N32)
        self.double_theirs(pairs)
        self.get_doubled(pairs)
        return pairs

    def send_indices(
        self, pairs: Mapping[str, _Pair], sample_of_row: np.ndarray
    ) -> dict[str, Tensor]:
        """Phases 5 to 7; partner -> (K,) the samples that it has, in order.

        Args:
            pairs: compared.
            sample_of_row: own row among those compared -> the sample it is reported as.
        """
        shared: dict[str, _Shared] = {}
        matched: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for party, pair in pairs.items():
            with _blamed_on(party):
                matched[party] = pair.matches()
        self.have_proved(pairs, matched)
        for pair in pairs.values():
            pair.points.clear()
        for party, pair in pairs.items():
            whose = pair.whose
            rows = picked(pair.order_N, matched[party][0], whose)
            samples = picked(sample_of_row, rows, whose)
            # The order they are sent in says no more than they do.
            order = rising(samples, whose)
            shared[party] = _Shared(
                *(
                    torch.from_numpy(picked(each, order, whose))
                    for each in (samples, matched[party][1], matched[party][0])
                )
            )
        self.share(shared)
        self.prove(pairs, {party: len(each.samples_K) for party, each in shared.items()})
        return {party: each.samples_K for party, each in shared.items()}

    def agree(self, begin: Begin) -> dict[str, _Pair]:
        """Phase 1."""
        requests = dict.fromkeys(self.parties, begin)
        replies = self.engine.ask(requests, Ready, timeout_s=self.timeout_s).or_raise()
        pairs = {}
        for party, ready in replies.items():
            if not 0 <= ready.num_ids <= MAX_TOTAL_IDS:
                raise PartyError(
                    party,
                    f"says it has {ready.num_ids} ids; expected 0 to {MAX_TOTAL_IDS:,}: ask its "
                    "owner which version runs there",
                )
            secret = secrets.token_bytes(POINT_BYTES)
            whose = self.engine.driver
            order_N = self.order_N
            if order_N is None:
                order_N = random_order(begin.num_ids, whose)
            pairs[party] = _Pair(ready.num_ids, secret, order_N, whose)
        return pairs

    def blind_local(self, pairs: Mapping[str, _Pair], points_N32: np.ndarray) -> None:
        """Phase 2."""
        pending: Pending[Received] | None = None
        for batch in range(batches_of(self.num_ids, self.batch_size)):
            requests = {}
            for party, pair in pairs.items():
                rows = pair.order_N[slice_of(batch, self.batch_size)]
                points = self.workers.multiply(pair.secret, picked(points_N32, rows))
                requests[party] = Blinded(batch, torch.from_numpy(points))
            if pending is not None:
                self.received(pending, batch - 1)
            pending = self.engine.send(requests, Received, timeout_s=self.timeout_s)
        if pending is not None:
            self.received(pending, batch)

    def received(self, pending: Pending[Received], batch: int) -> None:
        """Wait until a batch of phase 2 has come."""
        num_replies = len(pending.replies().or_raise())
        self.advance(num_replies * size_of(batch, self.num_ids, self.batch_size))

    def double_theirs(self, pairs: Mapping[str, _Pair]) -> None:
        """Phase 3."""
        most = max((pair.num_theirs for pair in pairs.values()), default=0)
        num_batches = batches_of(most, self.batch_size)
        pending: Pending[Blinded] | None = None
        for batch in range(num_batches + 1):
            asked = self.ask_blinded(pairs, batch) if batch < num_batches else None
            if pending is not None:
                self.double(pairs, pending.replies().or_raise(), batch - 1)
            pending = asked

    def ask_blinded(self, pairs: Mapping[str, _Pair], batch: int) -> Pending[Blinded]:
        """Ask those that have so many batches."""
        requests = {
            party: GetBlinded(batch)
            for party, pair in pairs.items()
            if batch < batches_of(pair.num_theirs, self.batch_size)
        }
        return self.engine.send(requests, Blinded, timeout_s=self.timeout_s)

    def double(
        self, pairs: Mapping[str, _Pair], replies: Mapping[str, Blinded], batch: int
    ) -> None:
        """Multiply a batch of every partner's points."""
        for party, reply in replies.items():
            pair = pairs[party]
            size = size_of(batch, pair.num_theirs, self.batch_size)
            with _blamed_on(party):
                _check_batch(reply, batch)
                points, multiplied = times_secret(reply, size, pair.secret, self.workers)
                pair.points.append(points)
                pair.theirs.append(multiplied)
            self.advance(size)

    def get_doubled(self, pairs: Mapping[str, _Pair]) -> None:
        """Phase 4, but for the comparison."""
        for batch in range(batches_of(self.num_ids, self.batch_size)):
            requests = dict.fromkeys(pairs, GetDoubled(batch))
            replies = self.engine.ask(requests, Doubled, timeout_s=self.timeout_s).or_raise()
            size = size_of(batch, self.num_ids, self.batch_size)
            for party, reply in replies.items():
                with _blamed_on(party):
                    _check_batch(reply, batch)
                    values = _array(reply, "values_B16", size, VALUE_BYTES)
                    num_zero = int((~values.any(axis=1)).sum())
                    if num_zero:
                        raise MessageError(
                            f"{reply.wire_name()}: {num_zero} of {size} values are the identity"
                        )
                pairs[party].mine.append(values)

    def have_proved(
        self,
        pairs: Mapping[str, _Pair],
        matched: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Phase 5: partners prove what they share."""
        questions = {}
        for party, (local_K, their_K) in matched.items():
            num = num_questions(len(local_K), CHECKED)
            if num:
                pair = pairs[party]
                drawn_Q = random_order(len(local_K), pair.whose)[:num]
                rows_Q = picked(pair.order_N, picked(local_K, drawn_Q))
                questions[party] = Questions.about(
                    picked(self.points_N32, rows_Q),
                    picked(pair.points.rows(), picked(their_K, drawn_Q)),
                    self.workers,
                )
        for batch in range(self.most_batches(questions)):
            requests = {
                party: questions_in(asked, batch, self.batch_size)
                for party, asked in questions.items()
                if batch < batches_of(len(asked), self.batch_size)
            }
            replies = self.engine.ask(requests, Proofs, timeout_s=self.timeout_s).or_raise()
            for party, reply in replies.items():
                with _blamed_on(party):
                    num_wrong = wrong_in(reply, questions[party], batch, self.batch_size)
                    if num_wrong:
                        raise MessageError(
                            f"cannot prove what it claims to share: {num_wrong} of "
                            f"{len(reply.values_B16)} ids that were checked, of "
                            f"{len(matched[party][0])}, are not its own"
                        )

    def most_batches(self, of: Mapping[str, Sized]) -> int:
        """Batches of the partner that has most."""
        return batches_of(max(map(len, of.values()), default=0), self.batch_size)

    def share(self, shared: Mapping[str, _Shared]) -> None:
        """Phase 6, messages; at least one each, so that a partner knows it shares nothing."""
        most = max((len(each.samples_K) for each in shared.values()), default=0)
        for batch in range(max(1, batches_of(most, self.batch_size))):
            part = slice_of(batch, self.batch_size)
            requests = {
                party: Places(
                    batch,
                    len(each.samples_K),
                    each.samples_K[part],
                    each.indices_K[part],
                    each.local_K[part],
                )
                for party, each in shared.items()
                if batch == 0 or batch < batches_of(len(each.samples_K), self.batch_size)
            }
            self.engine.ask(requests, Received, timeout_s=self.timeout_s).or_raise()

    def prove(self, pairs: Mapping[str, _Pair], num_shared: Mapping[str, int]) -> None:
        """Phase 7: partners that received places have them proved."""
        proving = {
            party: Proving(num, self.batch_size, pairs[party].secret, self.workers)
            for party, num in num_shared.items()
            if num
        }
        unproven, batch = tuple(proving), 0
        while unproven:
            requests = dict.fromkeys(unproven, GetProve(batch))
            asked = self.engine.ask(requests, Prove, timeout_s=self.timeout_s).or_raise()
            proofs = {}
            for party, prove in asked.items():
                with _blamed_on(party):
                    _check_batch(prove, batch)
                    proofs[party] = proving[party].answer(prove)
            self.engine.ask(proofs, Received, timeout_s=self.timeout_s).or_raise()
            batch += 1
            unproven = tuple(
                party
                for party in unproven
                if batch < batches_of(proving[party].num or 0, self.batch_size)
            )

    def advance(self, num_points: int) -> None:
        self.done += num_points
        self.progress(self.done, self.total)


@contextmanager
def _blamed_on(party: str) -> Iterator[None]:
    """Context in which an error in a partner's message is that partner's failure."""
    try:
        yield
    except MessageError as cause:
        raise PartyError(party, str(cause)) from None


def _check_batch(reply: Blinded | Doubled | Prove | Proofs, batch: int) -> None:
    if reply.batch != batch:
        raise MessageError(f"{reply.wire_name()}: expected batch {batch}, got {reply.batch}")
