"""Private set intersection on match keys, one pass for each: what stands in for an id in common.

Keys are tried in order (``matchkeys.py``). A pass is a run of ``psi.py`` of its own, with fresh
secrets, over the rows that no pass before has matched and whose key is theirs alone; what it
matches does not enter the next. Each partner has passes of its own, since its matches differ.

    Pass       initiator -> responder   which key comes next; both sides resolve it to the same text
    Passing    responder -> initiator   how many rows it has in all

In addition to what a run of ``psi.py`` reveals, of each pass: both sides learn how
many rows of the other have a usable key and are not matched yet, and of each row that they share by
which key it was found. A row that is matched by a weak key only (sounds of a name) shows that a
stronger one differs, is missing or is ambiguous on one side. Of rows that share a key nothing
leaves.

Counting (``count_by_keys``) has the same passes in mode cardinality, over all rows of both sides in
each: where a row has no key of its own, a random point stands for it. Both sides keep the order of
their rows over all passes of a count: the responder that of its points, and that in which it gives
back what it has multiplied, both drawn again for each count. So the initiator sees rows without
knowing whose they are, and which of them share which key; what one pass matched it leaves out of
the next by itself. Of each partner it learns how many rows that has, and how many of its own were
matched by each key, and nobody learns which. Beside the numbers it sees which keys one shared row
has in common: whose row alone could have just these would be known by that. A responder learns how
many rows the initiator has, and, unlike in aligning, not how many have a key. What is ambiguous is
so among all rows, not among those that are left: a count may be lower than an alignment.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import MappingProxyType
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from dovetail.alignment import psi
from dovetail.alignment.curve import POINT_BYTES, Workers
from dovetail.alignment.limits import Alignments
from dovetail.alignment.matchkeys import KeyValues, check_agreed
from dovetail.alignment.points import hashed_rows, random_points
from dovetail.alignment.responder import Responder, Run
from dovetail.data import Alignment
from dovetail.data.many_rows import absent, inverse, picked, put, random_order
from dovetail.data.stored import zeros
from dovetail.errors import AlignmentError, MessageError, PartyError
from dovetail.network import Engine, State
from dovetail.settings.alignment import CHECKED

# --- What the initiator executes -----------------------------------------------------------------


def align_by_keys(
    engine: Engine,
    keys: Sequence[KeyValues],
    **pace: Unpack[psi.Pace],
) -> psi.Aligned:
    """The initiator's rows by shared sample, and who shares which; as ``psi.align`` of ids.

    Args:
        engine: reaches ``KeyResponder`` s with the same keys; its driver is the initiator.
        keys: in the order in which they are tried.
        pace: as of ``psi.align``; its progress starts again with each pass.

    Raises:
        AlignmentError: no key.
        PartyError: a partner refused, has other keys, or did not follow the protocol.
    """
    if not keys:
        raise AlignmentError("there is no match key to align by: list some in party.match")
    num_rows = len(keys[0].values)
    rows_S = random_order(num_rows, engine.driver)  # sample -> own row
    sample_of_row = inverse(rows_S, engine.driver)
    rows = {engine.driver: torch.from_numpy(rows_S)}
    num_ids = {engine.driver: num_rows}
    overlap: dict[str, int] = {}
    passes: dict[str, tuple[psi.PassDone, ...]] = {}
    for party in engine.parties:
        rows[party] = torch.from_numpy(absent(num_rows, engine.driver))
        left_N = np.ones(num_rows, dtype=bool)
        done = []
        for index, key in enumerate(keys):
            asked = psi.Pass(index, len(keys), str(key.key), num_rows)
            num_ids[party] = _begun(engine, party, asked, pace.get("timeout_s"))
            usable, ambiguous = key.usable(left_N)
            initiator = psi.Initiator(engine, parties=(party,), **pace)
            points = hashed_rows(key.values, usable, engine.driver, initiator.workers)
            pairs = initiator.compare_points("intersection", points)
            samples_K = initiator.send_indices(pairs, sample_of_row[usable])[party]
            put(rows[party].numpy(), samples_K.numpy(), psi.ELSEWHERE)
            missing = int((left_N & (key.values == b"")).sum())
            left_N[rows_S[samples_K.numpy()]] = False
            counts = str(key.key), len(usable), ambiguous, missing, len(samples_K)
            done.append(psi.PassDone(*counts, pairs[party].num_theirs, samples_K))
        passes[party] = tuple(done)
        overlap[party] = int((rows[party] >= 0).sum())
    return psi.Aligned(
        Alignment(MappingProxyType(rows)), num_ids, overlap, MappingProxyType(passes)
    )


def count_by_keys(
    engine: Engine,
    keys: Sequence[KeyValues],
    **pace: Unpack[psi.Pace],
) -> dict[str, psi.Overlap]:
    """Partner -> how many rows it has and how many are shared, by key; which ones, nobody learns.

    Arguments and errors are those of ``align_by_keys``.
    """
    if not keys:
        raise AlignmentError("there is no match key to count by: list some in party.match")
    num_rows = len(keys[0].values)
    everybody = np.ones(num_rows, dtype=bool)
    counts = {}
    for party in engine.parties:
        order_N = random_order(num_rows, engine.driver)
        left_N = everybody.copy()  # by place, at which nobody knows whose row stands
        left_M = np.empty(0, dtype=bool)
        done = []
        num_theirs = 0
        for index, key in enumerate(keys):
            asked = psi.Pass(index, len(keys), str(key.key), num_rows)
            num_theirs_now = _begun(engine, party, asked, pace.get("timeout_s"))
            if index == 0:
                num_theirs = num_theirs_now
            initiator = psi.Initiator(engine, parties=(party,), order_N=order_N, **pace)
            usable, ambiguous = key.usable(everybody)
            points = random_points(num_rows, engine.driver, initiator.workers)
            put(points, usable, hashed_rows(key.values, usable, engine.driver, initiator.workers))
            pair = initiator.compare_points("cardinality", points)[party]
            if pair.num_theirs != num_theirs:
                raise PartyError(
                    party,
                    f"said it has {num_theirs} rows, and in pass {index} {pair.num_theirs}; all of "
                    "them must enter each pass: ask its owner which version runs there",
                )
            if index == 0:
                left_M = np.ones(num_theirs, dtype=bool)
            try:
                mine_K, their_K = pair.matches()
            except MessageError as cause:
                raise PartyError(party, str(cause)) from None
            new = left_N[mine_K] & left_M[their_K]
            left_N[mine_K[new]] = False
            left_M[their_K[new]] = False
            done.append(
                psi.PassCount(str(key.key), len(usable), ambiguous, key.missing, int(new.sum()))
            )
        shared = sum(each.num_shared for each in done)
        counts[party] = psi.Overlap(num_theirs, shared, tuple(done))
    return counts


def _begun(engine: Engine, party: str, asked: psi.Pass, timeout_s: float | None) -> int:
    """How many rows a partner says it has, when it starts a pass.

    Raises:
        PartyError: it refused, or says what cannot be.
    """
    num_rows = (
        engine.ask({party: asked}, psi.Passing, timeout_s=timeout_s).or_raise()[party].num_rows
    )
    if not 0 <= num_rows <= psi.MAX_TOTAL_IDS:
        raise PartyError(
            party,
            f"says it has {num_rows} rows; expected 0 to {psi.MAX_TOTAL_IDS:,}: ask its owner "
            "which version runs there",
        )
    return num_rows


# --- What a responder executes -------------------------------------------------------------------


#: What of passes are numbers and texts.
_OF_PASSES = ("_pass_index", "_settled", "_num_samples", "_opened", "_mode")


class KeyResponder(Responder):
    """A party that answers by match keys: one ``Pass`` and one run of ``psi.py`` after the other.

    It has rows when the last pass is over. One alignment at a time, as of ``Responder``. All passes
    of one are in one mode; in mode cardinality all its rows enter each, in one order.

    Args:
        name: the party's name.
        keys: in the order in which they are tried.
        modes, max_ids, checked, workers: as of ``Responder``.
        min_ids: the smallest number of rows of an initiator; passes after the first have fewer.
    """

    has_passes = True

    def __init__(
        self,
        name: str,
        keys: Sequence[KeyValues],
        *,
        modes: Sequence[str] = psi.MODES,
        min_ids: int = 0,
        max_ids: int | None = None,
        checked: int = CHECKED,
        workers: Workers | None = None,
    ) -> None:
        super().__init__(name, [], modes=modes, max_ids=max_ids, checked=checked, workers=workers)
        self._keys = tuple(keys)
        self._smallest = min_ids
        self._num_rows = len(keys[0].values) if keys else 0
        # Here, and not when asked: how long it takes depends on the keys.
        self._points = [self._points_of(key) for key in keys]
        self._forget()

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def _points_of(self, key: KeyValues) -> np.ndarray:
        there = np.flatnonzero(key.values != b"")
        points = zeros((len(key.values), POINT_BYTES), np.uint8, self.name)
        put(points, there, hashed_rows(key.values, there, self.name, self._workers))
        return points

    def _forget(self) -> None:
        self._pass_index = -1  # of the pass that was opened last
        self._settled = -1  # of the last that is over
        self._num_samples = 0
        self._aligned: list[Tensor] = []  # by pass: (S,) rows, -1 where it found none
        self._left_M = np.ones(self._num_rows, dtype=bool)
        self._usable_K = np.empty(0, dtype=np.int64)
        self._opened = False
        self._mode = ""  # of the first pass; all others have it
        # Of a count: the orders of its own rows, and of the initiator's.
        self._order_M = np.empty(0, dtype=np.int64)
        self._mixed_N = np.empty(0, dtype=np.int64)

    def guarded(self, guard: Alignments | None) -> KeyResponder:
        fresh = copy.copy(super().guarded(guard))
        assert isinstance(fresh, KeyResponder)
        fresh._forget()
        return fresh

    def state(self) -> State | None:
        """State on which its next answers depend, also between passes; None: nothing goes on."""
        is_last = self._settled == len(self._keys) - 1
        if self._pass_index < 0 or (is_last and (self._run is None or self._is_counted)):
            return None
        arrays = {"left_M": self._left_M, "order_M": self._order_M, "mixed_N": self._mixed_N}
        if self._mode == "cardinality":  # random points stand for rows without a key
            arrays["points_M32"] = self._points_M32
        return {
            "run": None if self._run is None else self._run.state(),
            "passes": {name: getattr(self, name) for name in _OF_PASSES},
            "aligned": {str(place): rows_S for place, rows_S in enumerate(self._aligned)},
            **{name: torch.from_numpy(each.copy()) for name, each in arrays.items()},
        }

    def restore(self, state: State) -> None:
        """Go on from there, with the same keys.

        Raises:
            AlignmentError: its table has other rows now.
        """
        self._forget()
        self._rows_S = self._run = None
        if len(state["left_M"]) != self._num_rows:
            raise AlignmentError("has another table than when the alignment began; align anew")
        for name in _OF_PASSES:
            setattr(self, name, state["passes"][name])
        self._aligned = [state["aligned"][str(each)] for each in range(len(state["aligned"]))]
        self._left_M, self._order_M = state["left_M"].numpy(), state["order_M"].numpy()
        self._mixed_N = state["mixed_N"].numpy()
        self._enter(self._pass_index)
        if "points_M32" in state:
            self._points_M32 = state["points_M32"].numpy()
        if state["run"] is not None:
            super().restore(state["run"])

    def _enter(self, place: int) -> None:
        """The rows that are left and have a key of this pass enter it."""
        self._usable_K, _ = self._keys[place].usable(self._left_M)
        self._points_M32 = picked(self._points[place], self._usable_K, self.name)

    def _pass(self, message: psi.Pass, sender: str = "the initiator") -> psi.Passing:
        """A pass starts: its rows are those that are left and have a key of their own."""
        if message.num_passes != len(self._keys):
            raise AlignmentError(
                f"{sender} has {message.num_passes} match keys, this party {len(self._keys)}: both "
                "files must list the same in party.match"
            )
        expected = 0 if message.place == 0 else self._settled + 1
        if not 0 <= message.place < len(self._keys) or message.place != expected:
            raise MessageError(
                f"{message.wire_name()}: expected pass {expected} of {len(self._keys)}, got "
                f"{message.place}"
            )
        check_agreed([str(key.key) for key in self._keys], message.key, message.place, sender)
        if message.place == 0:
            self._forget()
            self._rows_S = None
            self._num_samples = message.num_samples
            self._check_size(message.num_samples, sender)
        elif message.num_samples != self._num_samples:
            raise MessageError(
                f"{message.wire_name()}: {sender} had {self._num_samples} rows, and in pass "
                f"{message.place} {message.num_samples}"
            )
        self._run = None
        self._pass_index, self._opened = message.place, True
        self._enter(message.place)
        return psi.Passing(self._num_rows)

    def _enter_all(self) -> None:
        """All rows enter a pass of a count; a random point stands for one without a key.

        One is drawn for each row: the time of drawing those that are needed told how many lack a
        key (``benchmarks/psi_timing.py``).
        """
        padded = random_points(self._num_rows, self.name, self._workers)
        put(padded, self._usable_K, self._points_M32)
        self._points_M32 = padded

    def _check_size(self, num_rows: int, sender: str) -> None:
        most = psi.MAX_TOTAL_IDS if self._max_ids is None else self._max_ids
        if not max(0, self._smallest) <= num_rows <= most:
            raise AlignmentError(
                f"{sender} has {num_rows} rows; this party compares itself with sets of "
                f"{max(0, self._smallest)} to {most}: ask its owner to change policy.min_ids or "
                "policy.max_ids"
            )

    def _begin(self, begin: psi.Begin) -> psi.Ready:
        if not self._opened:
            raise AlignmentError(
                f"{begin.initiator!r} compares ids, this party match keys; both files must list "
                "the same in party.match"
            )
        if self._pass_index and begin.mode != self._mode:
            raise MessageError(
                f"{begin.wire_name()}: {begin.initiator!r} began in mode {self._mode!r} and goes "
                f"on in mode {begin.mode!r}"
            )
        counts = begin.mode == "cardinality"
        if begin.num_ids > self._num_samples or (counts and begin.num_ids < self._num_samples):
            raise MessageError(
                f"{begin.wire_name()}: {begin.initiator!r} has {self._num_samples} rows and sends "
                f"{begin.num_ids} keys"
            )
        if counts:
            self._enter_all()
            if not self._pass_index:
                self._order_M = random_order(self._num_rows, self.name)
                self._mixed_N = random_order(self._num_samples, self.name)
        ready = super()._begin(begin)
        self._opened, self._mode = False, begin.mode
        if counts:  # it is told nothing of what is shared, and has nothing to settle
            self._settled = self._pass_index
        return ready

    def _order(self, begin: psi.Begin) -> np.ndarray:
        return self._order_M if begin.mode == "cardinality" else super()._order(begin)

    def _mixed(self, begin: psi.Begin) -> np.ndarray:
        return self._mixed_N

    def _mode_of(self, begin: psi.Begin) -> str:
        return f"{begin.mode}, key {self._pass_index + 1}"  # its sets are compared with this key's

    def _samples_of(self, begin: psi.Begin) -> int:
        return self._num_samples

    def _rows_of(self, indices_K: np.ndarray) -> np.ndarray:
        return picked(self._usable_K, indices_K, self.name)

    def _keep(self, run: Run) -> None:
        """The end of a pass; of the last, the rows of all of them."""
        assert run.rows_S is not None
        new_S = run.rows_S >= 0
        if any(bool((new_S & (kept_rows >= 0)).any()) for kept_rows in self._aligned):
            raise MessageError(
                f"{run.begin.initiator!r} names a sample that an earlier key has matched"
            )
        self._aligned.append(run.rows_S)
        self._left_M[run.rows_S[new_S].numpy()] = False
        self._settled = self._pass_index
        if self._settled == len(self._keys) - 1:
            rows_S = torch.from_numpy(absent(self._num_samples, self.name))
            for kept_rows in self._aligned:
                rows_S = torch.where(kept_rows >= 0, kept_rows, rows_S)
            self._rows_S = rows_S
            self._aligned = []
