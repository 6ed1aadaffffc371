"""A responder's side of private set intersection: the phases of ``psi.py``, each in its turn."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.alignment import psi
from dovetail.alignment.curve import POINT_BYTES, Workers
from dovetail.alignment.limits import Alignments
from dovetail.alignment.points import hashed_ids, matches
from dovetail.alignment.proofs import VALUE_BYTES, Questions, num_questions
from dovetail.data import Alignment
from dovetail.data.many_rows import absent, picked, put, random_order, repeats
from dovetail.data.stored import Pile
from dovetail.errors import AlignmentError, MessageError
from dovetail.network import Message, State, check_shape
from dovetail.settings.alignment import CHECKED, IdAs


@dataclass(eq=False)
class Run:
    """A responder's side of one run."""

    begin: psi.Begin
    secret: bytes
    order_M: np.ndarray  # index -> row
    whose: str  # in its folder large files lie
    num_theirs: int = 0  # batches of phase 2 that came
    doubled_N16: np.ndarray | None = None  # all of them, in the order of phase 4
    num_blinded: int = 0  # batches of phase 3 that left
    num_doubled: int = 0  # batches of phase 4 that left
    proving: psi.Proving | None = None  # phase 5
    num_shared: int | None = None  # as the first batch of phase 6 says
    num_claims: int = 0  # batches of phase 6 that came
    rows_S: Tensor | None = None  # claimed, and not yet proven
    questions: Questions | None = None  # of phase 7
    num_asked: int = 0  # batches of it
    num_proven: int = 0  # batches of it

    def __post_init__(self) -> None:
        self.theirs = Pile(POINT_BYTES, np.uint8, self.whose)  # what came in phase 2
        self.doubled = Pile(VALUE_BYTES, np.uint8, self.whose)  # the same, multiplied
        # What came in phase 6: samples, own indices, the initiator's.
        self.claims = Pile(3, np.int64, self.whose)

    def state(self) -> State:
        """All of it, to go on from in another process."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        arrays = {
            "secret": np.frombuffer(self.secret, np.uint8),
            "order_M": self.order_M,
            "doubled_N16": self.doubled_N16,
            "rows_S": None if self.rows_S is None else self.rows_S.numpy(),
            "points_Q32": None if self.questions is None else self.questions.points_Q32,
            "right_Q16": None if self.questions is None else self.questions.right_Q16,
            **{name: getattr(self, name).rows() for name in _PILES},
        }
        return {
            "begin": {each.name: getattr(self.begin, each.name) for each in fields(self.begin)},
            "numbers": numbers,
            "proving": None if self.proving is None else [self.proving.most, self.proving.num],
            "num_proving": 0 if self.proving is None else self.proving.num_batches,
            **{
                name: None if each is None else torch.from_numpy(np.ascontiguousarray(each).copy())
                for name, each in arrays.items()
            },
        }

    @classmethod
    def of_state(cls, state: State, whose: str, workers: Workers) -> Run:
        """Run that was saved as ``state``."""
        begin, secret = psi.Begin(**state["begin"]), state["secret"].numpy().tobytes()
        run = cls(begin, secret, state["order_M"].numpy(), whose, **state["numbers"])
        if state["doubled_N16"] is not None:
            run.doubled_N16 = state["doubled_N16"].numpy()
        run.rows_S = state["rows_S"]
        if state["points_Q32"] is not None:
            run.questions = Questions(state["points_Q32"].numpy(), state["right_Q16"].numpy())
        if state["proving"] is not None:
            most, num = state["proving"]
            asked = state["num_proving"]
            run.proving = psi.Proving(most, begin.batch_size, secret, workers, num, asked)
        for name in _PILES:
            getattr(run, name).append(state[name].numpy())
        return run


#: What of a run are counts, and what is piled up.
_NUMBERS = (
    *("num_theirs", "num_blinded", "num_doubled", "num_shared", "num_claims"),
    *("num_asked", "num_proven"),
)
_PILES = ("theirs", "doubled", "claims")


class Responder:
    """A party that answers: holds ids, and after a run the row of each shared sample.

    It keeps its ids' points and not its ids. One run at a time: the next ``Begin`` that it agrees
    to ends the last, and in intersection mode forgets its rows.

    Args:
        name: the party's name.
        ids: (M,) integers or strings, by row.
        id_as: compare ids as text, without regard to case or as digits; both sides the same.
        modes: which modes it agrees to; both by default.
        min_ids: the smallest set it lets itself be compared with.
        max_ids: the largest; None sets no limit of its own.
        checked: so many rows that an initiator claims are checked, or all; of many, one in 50.
        workers: does the curve's arithmetic; None uses this process.

    Raises:
        AlignmentError: ids that are empty, repeated after normalisation, or of another type.
    """

    accepts = (
        psi.Pass,
        psi.Begin,
        psi.Blinded,
        psi.GetBlinded,
        psi.GetDoubled,
        psi.Prove,
        psi.Places,
        psi.GetProve,
        psi.Proofs,
    )

    #: Whether an alignment is several runs, each after a ``Pass``.
    has_passes = False

    def __init__(
        self,
        name: str,
        ids: Sequence[Any] | np.ndarray,
        *,
        id_as: IdAs = "text",
        modes: Sequence[str] = psi.MODES,
        min_ids: int = 0,
        max_ids: int | None = None,
        checked: int = CHECKED,
        workers: Workers | None = None,
    ) -> None:
        self.name = name
        self._modes = tuple(modes)
        self._min_ids = min_ids
        self._max_ids = max_ids
        self._checked = checked
        self._guard: Alignments | None = None
        self._workers = workers or Workers()
        self._id_as = id_as
        # Here, and not when asked: how long it takes depends on the ids.
        self._points_M32 = hashed_ids(ids, party=name, id_as=id_as, workers=self._workers)
        self._run: Run | None = None
        self._rows_S: Tensor | None = None

    def guarded(self, guard: Alignments | None) -> Responder:
        """Responder with the same ids and points, with its own runs, which reports to a guard."""
        fresh = copy.copy(self)
        fresh._guard, fresh._run, fresh._rows_S = guard or self._guard, None, None
        return fresh

    def unsaved(self) -> str:
        """Description of what is lost if the process ends now; "" if no run is under way."""
        return "" if self._run is None else "an alignment is under way, and its secret is nowhere"

    def state(self) -> State | None:
        """State that the next answers depend on; None: no run is under way."""
        return None if self._run is None or self._is_counted else self._run.state()

    @property
    def _is_counted(self) -> bool:
        """Whether the run is a count of which everything has left."""
        if self._run is None or self._run.begin.mode != "cardinality":
            return False
        theirs, size = self._run.begin.num_ids, self._run.begin.batch_size
        return self._run.num_doubled >= psi.batches_of(
            theirs, size
        ) and self._run.num_blinded >= psi.batches_of(self.num_ids, size)

    def restore(self, state: State) -> None:
        """Go on from there, with the same ids.

        Raises:
            AlignmentError: its table has other ids now.
        """
        run = Run.of_state(state, self.name, self._workers)
        if len(run.order_M) != self.num_ids:
            raise AlignmentError("has another table than when the alignment began; align anew")
        self._run = run

    @property
    def num_ids(self) -> int:
        return len(self._points_M32)

    @property
    def num_rows(self) -> int:
        """All of them, whether or not they enter a run."""
        return self.num_ids

    @property
    def rows_S(self) -> Tensor:  # noqa: N802  # its suffix is its shape
        """(S,) int64, the row of each shared sample, -1 where this party has none.

        Raises:
            AlignmentError: no run has found them yet.
        """
        if self._rows_S is None:
            raise AlignmentError(
                f"party {self.name!r} is not aligned with anyone yet; run an alignment in "
                "intersection mode first"
            )
        return self._rows_S

    def handle(self, message: Message) -> Message:
        if isinstance(message, psi.Pass):
            return self._pass(message)
        if isinstance(message, psi.Begin):
            return self._begin(message)
        if self._run is None:
            raise AlignmentError(
                "has no alignment under way: it was started again in the middle of one, or that "
                "one ended; align anew"
            )
        match message:
            case psi.Blinded():
                return self._double(self._run, message)
            case psi.GetBlinded():
                return self._blind(self._run, message.batch)
            case psi.GetDoubled():
                return self._doubled(self._run, message.batch)
            case psi.Prove():
                return self._prove(self._run, message)
            case psi.Places():
                return self._share(self._run, message)
            case psi.GetProve():
                return self._question(self._run, message.batch)
            case psi.Proofs():
                return self._believe(self._run, message)
        raise AssertionError(f"an engine passes on only {self.accepts}")

    def _pass(self, message: psi.Pass) -> psi.Passing:
        """Another kind of alignment, which this party has no keys for."""
        raise AlignmentError(
            "the initiator compares match keys, this party ids; both files must list the same in "
            "party.match"
        )

    def _mode_of(self, begin: psi.Begin) -> str:
        """Mode within which the guard compares sets."""
        return begin.mode

    def _order(self, begin: psi.Begin) -> np.ndarray:
        """The order in which its own points leave: index -> row."""
        return random_order(self.num_ids, self.name)

    def _mixed(self, begin: psi.Begin) -> np.ndarray:
        """In counting, the order in which the initiator's come back."""
        return random_order(begin.num_ids, self.name)

    def _samples_of(self, begin: psi.Begin) -> int:
        """How many samples there are to be numbered."""
        return begin.num_ids

    def _rows_of(self, indices_K: np.ndarray) -> np.ndarray:
        """Rows of the points that this party sent."""
        return indices_K

    def _keep(self, run: Run) -> None:
        """The rows that a run has proven."""
        self._rows_S = run.rows_S

    def _begin(self, begin: psi.Begin) -> psi.Ready:
        """Phase 1."""
        if begin.mode not in self._modes:
            raise AlignmentError(
                f"{begin.initiator!r} asks for mode {begin.mode!r}; this party agrees to "
                f"{' or '.join(self._modes)}; its owner may add to policy.align_modes"
            )
        if begin.compared_as != self._id_as:
            raise AlignmentError(
                f"{begin.initiator!r} compares ids as {begin.compared_as[:20]!r}, {self.name!r} as "
                f"{self._id_as!r}; both party files must have the same id_as"
            )
        if begin.num_ids < max(0, self._min_ids):
            raise AlignmentError(
                f"{begin.initiator!r} has {begin.num_ids} ids; this party compares itself with "
                f"sets of {self._min_ids} or more: ask its owner to lower policy.min_ids"
            )
        if begin.num_ids > psi.MAX_TOTAL_IDS:
            raise AlignmentError(
                f"{begin.initiator!r} has {begin.num_ids} ids; an alignment takes at most "
                f"{psi.MAX_TOTAL_IDS}, so align in parts"
            )
        if self._max_ids is not None and begin.num_ids > self._max_ids:
            raise AlignmentError(
                f"{begin.initiator!r} has {begin.num_ids} ids; this party compares itself with "
                f"sets of at most {self._max_ids}: ask its owner to raise policy.max_ids"
            )
        if not 1 <= begin.batch_size <= psi.MAX_IDS:
            raise MessageError(
                f"{begin.wire_name()}: expected a batch size in 1..{psi.MAX_IDS}, "
                f"got {begin.batch_size}"
            )
        if self._guard is not None:
            self._guard.begins(begin.initiator, self._mode_of(begin), begin.num_ids)
        if begin.mode == "intersection":
            self._rows_S = None
        self._run = Run(
            begin,
            secrets.token_bytes(POINT_BYTES),
            self._order(begin),
            self.name,
        )
        if not begin.num_ids:
            self._run.doubled_N16 = self._run.doubled.rows()  # no batch of phase 2 will come
        return psi.Ready(self.num_ids)

    def _double(self, run: Run, message: psi.Blinded) -> psi.Received:
        """Phase 2: multiply a batch of theirs."""
        begin = run.begin
        batch, num_batches = run.num_theirs, psi.batches_of(begin.num_ids, begin.batch_size)
        if message.batch != batch or batch == num_batches:
            expected = f"batch {batch}" if batch < num_batches else "no more"
            raise MessageError(
                f"{message.wire_name()}: expected {expected} of {num_batches} batches from "
                f"{begin.initiator!r}, got batch {message.batch}"
            )
        size = psi.size_of(batch, begin.num_ids, begin.batch_size)
        try:
            points, multiplied = psi.times_secret(message, size, run.secret, self._workers)
            run.doubled.append(multiplied)
            run.num_theirs += 1
            if begin.mode == "intersection":  # to check what it claims of them
                run.theirs.append(points)
            if batch + 1 == num_batches:
                values = run.doubled.rows()
                # Repeated points come out repeated, which would mark them in any order.
                matches(values, values[:0], self.name)
                if begin.mode == "cardinality":
                    values = picked(values, self._mixed(begin), self.name)
                run.doubled_N16 = values
                run.doubled.clear()
        except MessageError as cause:
            self._run = None
            raise MessageError(f"refuses what {begin.initiator!r} sent: {cause}") from None
        return psi.Received(batch)

    def _blind(self, run: Run, batch: int) -> psi.Blinded:
        """Phase 3: multiply a batch of its own."""
        self._known(batch, self.num_ids, run.begin, psi.GetBlinded)
        _all_doubled(run, psi.GetBlinded)  # what it sends must not depend on what it is sent
        _in_turn(batch, run.num_blinded, run.begin, psi.GetBlinded)
        run.num_blinded += 1
        rows = run.order_M[psi.slice_of(batch, run.begin.batch_size)]
        points = self._workers.multiply(run.secret, picked(self._points_M32, rows))
        return psi.Blinded(batch, torch.from_numpy(points))

    def _doubled(self, run: Run, batch: int) -> psi.Doubled:
        """Phase 4: what both have multiplied."""
        begin = run.begin
        self._known(batch, begin.num_ids, begin, psi.GetDoubled)
        values_N16 = _all_doubled(run, psi.GetDoubled)
        self._blinded_all(run, psi.GetDoubled)
        _in_turn(batch, run.num_doubled, begin, psi.GetDoubled)
        run.num_doubled += 1
        return psi.Doubled(
            batch, torch.from_numpy(values_N16[psi.slice_of(batch, begin.batch_size)])
        )

    def _known(self, batch: int, num_ids: int, begin: psi.Begin, kind: type[Message]) -> None:
        num_batches = psi.batches_of(num_ids, begin.batch_size)
        if not 0 <= batch < num_batches:
            raise MessageError(
                f"{kind.wire_name()}: there are {num_batches} batches, {begin.initiator!r} asked "
                f"for batch {batch}"
            )

    def _blinded_all(self, run: Run, kind: type[Message]) -> None:
        """Refuse what comes before the end of phase 3."""
        num_batches = psi.batches_of(self.num_ids, run.begin.batch_size)
        if run.num_blinded < num_batches:
            raise MessageError(
                f"{kind.wire_name()}: {run.begin.initiator!r} has asked for {run.num_blinded} of "
                f"{num_batches} batches of this party's points; all must come first"
            )

    def _compared(self, run: Run, kind: type[Message]) -> None:
        """Refuse what comes before the end of phase 4, or in a mode that ends with it."""
        begin = run.begin
        if begin.mode != "intersection":
            raise MessageError(f"{kind.wire_name()}: not in mode {begin.mode!r}")
        _all_doubled(run, kind)
        self._blinded_all(run, kind)
        num_batches = psi.batches_of(begin.num_ids, begin.batch_size)
        if run.num_doubled < num_batches:
            raise MessageError(
                f"{kind.wire_name()}: {begin.initiator!r} has asked for {run.num_doubled} of "
                f"{num_batches} batches of its own points; all must come first"
            )

    def _prove(self, run: Run, message: psi.Prove) -> psi.Proofs:
        """Phase 5: its own points are its ids'."""
        begin = run.begin
        self._compared(run, psi.Prove)
        if run.num_shared is not None:
            raise MessageError(
                f"{message.wire_name()}: {begin.initiator!r} asks after it has told places"
            )
        if run.proving is None:
            most = num_questions(min(begin.num_ids, self.num_ids), CHECKED)
            run.proving = psi.Proving(most, begin.batch_size, run.secret, self._workers)
        return run.proving.answer(message)

    def _share(self, run: Run, message: psi.Places) -> psi.Received:
        """Phase 6: its own rows of the shared samples, as the initiator claims."""
        begin = run.begin
        self._compared(run, psi.Places)
        most = min(begin.num_ids, self.num_ids)
        if not 0 <= message.num_shared <= most:
            raise MessageError(
                f"{message.wire_name()}: expected 0..{most} shared ids from {begin.initiator!r}, "
                f"got {message.num_shared}"
            )
        if run.num_shared not in (None, message.num_shared):
            raise MessageError(
                f"{message.wire_name()}: {begin.initiator!r} said {run.num_shared} ids are shared, "
                f"and in batch {message.batch} {message.num_shared}"
            )
        if message.batch != run.num_claims or run.rows_S is not None:
            expected = f"batch {run.num_claims}" if run.rows_S is None else "no more"
            raise MessageError(
                f"{message.wire_name()}: expected {expected} from "
                f"{begin.initiator!r}, got batch {message.batch}"
            )
        size = psi.size_of(message.batch, message.num_shared, begin.batch_size)
        for name in ("samples_B", "places_B", "own_B"):
            check_shape(message, name, (size,), torch.int64)
        run.num_shared = message.num_shared
        run.num_claims += 1
        claims = (message.samples_B, message.places_B, message.own_B)
        run.claims.append(torch.stack(claims, dim=1).cpu().numpy())
        if len(run.claims) == message.num_shared:
            self._claimed(run)
        return psi.Received(message.batch)

    def _claimed(self, run: Run) -> None:
        """The end of phase 6: what phase 7 is to prove; the run is over if it is nothing."""
        begin, num_samples = run.begin, self._samples_of(run.begin)
        claims = run.claims.rows()
        samples_K, indices_K, local_K = (np.ascontiguousarray(claims[:, each]) for each in range(3))
        run.claims.clear()
        try:
            _check_indices("samples_B", samples_K, num_samples, begin.initiator, self.name)
            _check_indices("places_B", indices_K, self.num_ids, begin.initiator, self.name)
            _check_indices("own_B", local_K, begin.num_ids, begin.initiator, self.name)
        except MessageError:
            self._run = None  # and with it the secret
            raise
        points_K = picked(run.order_M, indices_K, self.name)
        rows_S = absent(num_samples, self.name)
        put(rows_S, samples_K, self._rows_of(points_K))
        run.rows_S = torch.from_numpy(rows_S)
        num = num_questions(len(samples_K), self._checked)
        if not num:
            self._settle(run)
            return
        drawn_Q = random_order(len(samples_K), self.name)[:num]
        run.questions = Questions.about(
            picked(self._points_M32, points_K[drawn_Q]),
            picked(run.theirs.rows(), local_K[drawn_Q]),
            self._workers,
        )
        run.theirs.clear()

    def _question(self, run: Run, batch: int) -> psi.Prove:
        """Phase 7: what the initiator is to prove; each question once."""
        begin = run.begin
        if run.questions is None:
            raise MessageError(
                f"{psi.GetProve.wire_name()}: {begin.initiator!r} asks before it told all places"
            )
        self._known(batch, len(run.questions), begin, psi.GetProve)
        _in_turn(batch, run.num_asked, begin, psi.GetProve)
        run.num_asked += 1
        return psi.questions_in(run.questions, batch, begin.batch_size)

    def _believe(self, run: Run, message: psi.Proofs) -> psi.Received:
        """Phase 7: the rows are shared if all proofs are right, and else the run is over."""
        begin, asked = run.begin, run.questions
        if asked is None or run.num_asked == run.num_proven:
            raise MessageError(
                f"{message.wire_name()}: {begin.initiator!r} proves what it was not asked for"
            )
        try:
            num_wrong = psi.wrong_in(message, asked, run.num_proven, begin.batch_size)
        except MessageError:
            self._run = None  # there is one try
            raise
        if num_wrong:
            self._run = None
            if self._guard is not None:
                self._guard.unproven()
            size = len(message.values_B16)
            raise AlignmentError(
                f"refuses the {run.num_shared} places that {begin.initiator!r} claims to share: "
                f"{num_wrong} of {size} that were checked are not of ids that it has sent; "
                "ask its owner why"
            )
        run.num_proven += 1
        if run.num_proven == psi.batches_of(len(asked), begin.batch_size):
            self._settle(run)
        return psi.Received(message.batch)

    def _settle(self, run: Run) -> None:
        """The end: its rows are those."""
        self._run = None
        self._keep(run)
        if self._guard is not None:
            self._guard.shares(run.num_shared or 0)


def _all_doubled(run: Run, kind: type[Message]) -> np.ndarray:
    """(N, 16) what both have multiplied.

    Raises:
        MessageError: phase 2 is not over, and this kind of message must wait for its end.
    """
    if run.doubled_N16 is None:
        begin = run.begin
        raise MessageError(
            f"{kind.wire_name()}: {begin.initiator!r} has sent {run.num_theirs} of "
            f"{psi.batches_of(begin.num_ids, begin.batch_size)} batches; all must come first"
        )
    return run.doubled_N16


def _in_turn(batch: int, expected: int, begin: psi.Begin, kind: type[Message]) -> None:
    if batch != expected:
        raise MessageError(
            f"{kind.wire_name()}: expected {begin.initiator!r} to ask for batch {expected} next, "
            f"each once, got batch {batch}"
        )


def _check_indices(name: str, values_K: np.ndarray, limit: int, initiator: str, party: str) -> None:
    if len(values_K) and not 0 <= int(values_K.min()) <= int(values_K.max()) < limit:
        raise MessageError(f"psi.Places.{name}: {initiator!r} sent numbers outside 0..{limit - 1}")
    if repeats(values_K, limit, party):
        raise MessageError(f"psi.Places.{name}: {initiator!r} sent a number twice")


def with_rows_of(aligned: psi.Aligned, responders: Iterable[Responder]) -> Alignment:
    """The alignment with every party's rows: for simulation, where one process holds all tables."""
    theirs = {responder.name: responder.rows_S for responder in responders}
    return Alignment(MappingProxyType({**aligned.alignment.rows, **theirs}))
