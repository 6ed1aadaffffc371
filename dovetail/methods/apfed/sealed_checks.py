"""What a partner of APFed-S checks before any work: sizes, samples, folds, and its policy.

Letters: as of ``sealed.py``; R all rows asked about, N and then U.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import MessageError, PartyError
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.baselines import features
from dovetail.methods.limits import MAX_LABELLED
from dovetail.methods.settings.apfed import MAX_SMOOTHERS
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models.smoothers import Smoother, smoother_of
from dovetail.privacy import encrypted

#: Of a partner that is simulated; labels of each class may be few there, too.
UNLIMITED = SealedLimits(numbers_per_row=10**6)


@dataclass(frozen=True, eq=False)
class Asked:
    """What a partner is asked for.

    Attributes:
        smoothers: J.
        layout: how targets lie.
        x_LF: the labelled rows.
        x_RF: the rows that are asked about.
        known_R: which labelled row each is, -1: none.
        cells: the rows of its table that these are, which it counts.
        numbers: that leave of each.
    """

    smoothers: tuple[Smoother, ...]
    layout: encrypted.Layout
    x_LF: Tensor
    x_RF: Tensor
    known_R: Tensor
    cells: Tensor
    numbers: int


def checked(
    message: Any,
    shared: SharedRows,
    test: SharedRows | None,
    limits: SealedLimits,
    given: NumbersGiven | None,
) -> Asked:
    """What is asked for, within the partner's policy.

    Args:
        message: ``sealed.Begin``.
        shared, test: the partner's rows by sample.
        limits: of its policy.
        given: how many numbers of each row it has given.

    Raises:
        MessageError: it is not as it should be.
        PartyError: it is more than the policy gives.
    """
    smoothers, name = _smoothers(message, limits), message.wire_name()
    labelled, num = message.labelled_L, len(message.labelled_L)
    layout = encrypted.Layout(num, message.columns, message.block, message.classes)
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
    numbers = len(smoothers) * message.columns
    within_policy(shared.party, limits, given, cells, numbers)
    x_NF = features(shared.x)
    tested_UF = x_NF[:0] if test is None else features(test.x)[rows_U]
    index_of = {sample: index for index, sample in enumerate(labelled.tolist())}
    known_N = torch.tensor([index_of.get(sample, -1) for sample in message.samples_N.tolist()])
    known_R = torch.cat([known_N.long(), torch.full((len(rows_U),), -1)])
    x_RF = torch.cat([x_NF[rows_N], tested_UF])
    return Asked(smoothers, layout, x_NF[rows_L], x_RF, known_R, cells, numbers)


def _smoothers(message: Any, limits: SealedLimits) -> tuple[Smoother, ...]:
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
    if not 0 < len(message.kernels) == len(message.ridges) <= MAX_SMOOTHERS:
        raise MessageError(
            f"{name}: expected 1 to {MAX_SMOOTHERS} smoothers, got {len(message.kernels)} kernels "
            f"and {len(message.ridges)} ridges"
        )
    return tuple(map(smoother_of, message.kernels, message.ridges))


def counted_left(
    party: str,
    limits: SealedLimits,
    given: NumbersGiven | None,
    asked: Asked,
    rows_R: Sequence[bytes],
) -> int:
    """Numbers of a row that the policy still gives, once these are counted, before any work."""
    if given is None:
        return max(0, limits.numbers_per_row - asked.numbers)
    cells, more = asked.cells, asked.numbers
    given.add(
        cells,
        more,
        rows_R[: len(cells)],
        check=lambda: within_policy(party, limits, given, cells, more),
    )
    return max(0, limits.numbers_per_row - given.most(asked.cells))


def within_policy(
    party: str, limits: SealedLimits, given: NumbersGiven | None, cells: Tensor, more: int
) -> None:
    """Refuse more numbers of these rows than the policy gives.

    Raises:
        PartyError: naming the policy's key.
    """
    before = 0 if given is None else given.most(cells)
    if before + more > limits.numbers_per_row:
        raise PartyError(
            party,
            f"refuses {more} numbers a row: it has given {before} of a row before, and its "
            f"policy.sealed.numbers_per_row is {limits.numbers_per_row}; ask its owner to "
            "raise it",
        )
