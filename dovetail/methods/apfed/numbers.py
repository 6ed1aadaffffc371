"""Numbers that a partner of APFed-S gives: counted by row over all runs of a driver, and checked.

Before any work it checks sizes, samples, folds, and its policy.

Letters: as of ``sealed.py``; R all rows asked about, N and then U.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import MessageError, PartyError
from dovetail.methods.baselines import features
from dovetail.methods.limits import MAX_LABELLED
from dovetail.methods.settings.shared import SealedLimits
from dovetail.network.quota import Count, Quota
from dovetail.privacy import encrypted

_ADD = "INSERT INTO numbers VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET times ="
_GIVEN = "INSERT OR IGNORE INTO given VALUES (?, ?)"
_THESE = "(SELECT value FROM json_each(?))"


@dataclass(frozen=True, eq=False)
class NumbersGiven:
    """The count, in the party's site.

    Attributes:
        quota: of the site.
        driver: who is given them; "" of all drivers together.
        ids_N: of its rows: a row is counted by its id, whatever its index becomes.
        run: that it answers in.
    """

    quota: Quota
    driver: str
    ids_N: np.ndarray
    run: str = ""

    @cached_property
    def _digests(self) -> np.ndarray:
        return np.array([_digest(each) for each in self.ids_N.tolist()], dtype=np.int64)

    def most(self, rows_R: Tensor) -> int:
        """The most numbers that were given of any of these rows.

        Raises:
            QuotaError: the count cannot be read.
        """
        ((most,),) = self.quota.read(
            f"SELECT ifnull(max(times), 0) FROM numbers WHERE driver = ? AND id IN {_THESE}",
            *(self.driver, json.dumps(self._ids(rows_R))),
        )
        return int(most)

    def is_new(self, run: str, rows_R: Tensor, contents_R: Sequence[bytes]) -> Tensor:
        """(R,) bool: rows whose numbers of this run, by these columns, were not given before.

        Raises:
            QuotaError: the count cannot be read.
        """
        asked = self._of(run, rows_R, contents_R)
        found = self.quota.read(
            f"SELECT number FROM given WHERE driver = ? AND number IN {_THESE}",
            *(self.driver, json.dumps(asked)),
        )
        given = {number for (number,) in found}
        return torch.tensor([each not in given for each in asked])

    def add(
        self,
        rows_R: Tensor,
        numbers: int,
        contents_R: Sequence[bytes],
        *,
        check: Callable[[], None] = lambda: None,
        run: str | None = None,
    ) -> None:
        """Count an answer, before it is computed; given back where that fails (``Quota.work``).

        Args:
            rows_R: whose.
            numbers: of each.
            contents_R: what distinguishes a row's columns from others.
            check: raises where these are too many; nobody else is given any meanwhile.
            run: whose numbers; None: the one that it answers in.

        Raises:
            QuotaError: it cannot be written down, so the answer is not given.
        """
        run = self.run if run is None else run

        def decide() -> Count:
            check()
            new = self.is_new(run, rows_R, contents_R).tolist()
            given = [
                (self.driver, each)
                for each, is_new in zip(self._of(run, rows_R, contents_R), new, strict=True)
                if is_new
            ]
            counted = [(self.driver, id, numbers) for id in self._ids(rows_R)]
            return Count(
                [(f"{_ADD} times + excluded.times", counted), (_GIVEN, given)],
                [
                    (f"{_ADD} times - excluded.times", counted),
                    ("DELETE FROM given WHERE driver = ? AND number = ?", given),
                ],
            )

        self.quota.decide(decide, for_good=True)

    def _ids(self, rows_R: Tensor) -> list[int]:
        ids: list[int] = self._digests[rows_R.numpy()].tolist()
        return ids

    def _of(self, run: str, rows_R: Tensor, contents_R: Sequence[bytes]) -> list[int]:
        return [_digest((run, *each)) for each in zip(self._ids(rows_R), contents_R, strict=True)]


def _digest(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


#: Folds of labelled rows at the most: weights are made for each.
MAX_FOLDS = 16

#: What stands for a run where questions are counted: these are the same in any.
_QUESTIONS = "questions"

#: Of a partner that is simulated; labels of each class may be few there, too.
UNLIMITED = SealedLimits(numbers_per_row=10**6)


@dataclass(frozen=True, eq=False)
class Asked:
    """Request to a partner.

    Attributes:
        layout: how targets lie.
        x_LF: the labelled rows.
        x_RF: the rows that are asked about.
        known_R: which labelled row each is, -1: none.
        cells: the rows of its table that these are, which it counts.
    """

    layout: encrypted.Layout
    x_LF: Tensor
    x_RF: Tensor
    known_R: Tensor
    cells: Tensor

    @property
    def numbers(self) -> int:
        """That leave of each row."""
        return self.layout.columns


def checked(
    message: Any,
    shared: SharedRows,
    test: SharedRows | None,
    limits: SealedLimits,
) -> Asked:
    """The request, of sizes that the partner's policy allows, before any work.

    Args:
        message: ``sealed.Begin``.
        shared, test: the partner's rows by sample.
        limits: of its policy.

    Raises:
        MessageError: it is not as it should be.
    """
    name = message.wire_name()
    layout = _layout(message, limits)
    labelled, num = message.labelled_L, len(message.labelled_L)
    if not len(message.samples_N) + len(message.tested_U):
        raise MessageError(f"{name}: expected one sample or more")
    if test is None and len(message.tested_U):
        raise MessageError(f"{name}: it has no test table")
    rows_L, rows_N = shared.rows(labelled), shared.rows(message.samples_N)
    rows_U = rows_N[:0] if test is None else test.rows(message.tested_U)
    same = test is not None and test.x is shared.x
    cells = torch.cat([rows_N, rows_U]) if same else rows_N
    for what, each in (("labelled", rows_L), ("asked about", cells), ("asked about", rows_U)):
        if len(each.unique()) < len(each):
            raise MessageError(f"{name}: a sample is {what} twice")
    folds = message.folds_L.unique(return_counts=True)
    if len(folds[0]) < 2 or num - int(folds[1].max()) < limits.least_rows:
        raise MessageError(
            f"{name}: without its own fold a row is smoothed by fewer than "
            f"{limits.least_rows:g} others (its policy.sealed.least_rows)"
        )
    if len(folds[0]) > MAX_FOLDS:
        raise MessageError(f"{name}: {len(folds[0])} folds, and this party takes {MAX_FOLDS}")
    x_NF = features(shared.x)
    tested_UF = x_NF[:0] if test is None else features(test.x)[rows_U]
    index_of = {sample: index for index, sample in enumerate(labelled.tolist())}
    known_N = torch.tensor([index_of.get(sample, -1) for sample in message.samples_N.tolist()])
    known_R = torch.cat([known_N.long(), torch.full((len(rows_U),), -1)])
    x_RF = torch.cat([x_NF[rows_N], tested_UF])
    return Asked(layout, x_NF[rows_L], x_RF, known_R, cells)


def _layout(message: Any, limits: SealedLimits) -> encrypted.Layout:
    """How targets lie, of sizes that this party takes."""
    name, num = message.wire_name(), len(message.labelled_L)
    if message.parameters != encrypted.PARAMETERS:
        raise MessageError(
            f"{name}: encrypted by {message.parameters[:60]!r}, and this party takes "
            f"{encrypted.PARAMETERS}; use the same version on both sides"
        )
    if not limits.least_rows <= num <= MAX_LABELLED:
        raise MessageError(
            f"{name}: {num} labelled rows, and this party takes {limits.least_rows:g} (its "
            f"policy.sealed.least_rows) to {MAX_LABELLED}"
        )
    layout = encrypted.Layout(num, message.columns, message.block, message.classes)
    key, targets = message.key_1W, message.targets_PV
    if key.shape != (1, encrypted.KEY_WIRE) or targets.shape != (
        layout.num_targets,
        encrypted.TARGET_WIRE,
    ):
        raise MessageError(
            f"{name}: a key and targets of {tuple(key.shape)} and {tuple(targets.shape)} bytes; "
            f"expected {(1, encrypted.KEY_WIRE)} and "
            f"{(layout.num_targets, encrypted.TARGET_WIRE)}"
        )
    return layout


def counted(
    party: str,
    limits: SealedLimits,
    given: NumbersGiven | None,
    cells: Tensor,
    more: int,
    question: bytes,
) -> None:
    """Count numbers of these rows before they are made; those of a question asked before are free.

    Args:
        party: whose rows they are.
        limits: of its policy.
        given: how many numbers of each row it has given; None: nobody counts over runs.
        cells: rows of its table.
        more: numbers of each.
        question: distinguishes this one from others: its answer is the same whenever it is asked.

    Raises:
        PartyError: more than the policy gives, naming its key.
    """
    asked = [question] * len(cells)
    if given is not None and not given.is_new(_QUESTIONS, cells, asked).any():
        return

    def check() -> None:
        before = 0 if given is None else given.most(cells)
        if before + more > limits.numbers_per_row:
            raise PartyError(
                party,
                f"refuses {more} number{'s' * (more > 1)} a row: it has given {before} of a row "
                f"before, and its policy.sealed.numbers_per_row is {limits.numbers_per_row}; its "
                f"owner may write sealed = {{ numbers_per_row = {before + more} }} below [policy]",
            )

    if given is None:
        check()
    else:
        given.add(cells, more, asked, check=check, run=_QUESTIONS)
