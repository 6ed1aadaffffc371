"""Numbers of APFed-S at both ends: weights times encrypted targets, and what is decrypted.

A weight is a whole number times 2^-exponent. Each number is blurred by 2^-19 of what a row of
weights of that spread gives, so that it has no room for a second one. The blur of a row is the same
whenever it is asked about with the same weights: the mean of many answers is one of them.

Letters: R rows, L labelled rows, T columns of targets, J smoothers, W bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.stored import let_go
from dovetail.errors import MessageError
from dovetail.models.kept_smoothing import KeptSmoothing, SealedTargets, SmoothingSpec
from dovetail.models.learners.assisted import all_columns
from dovetail.models.learners.assisted_joint import Answers
from dovetail.models.patches import Patches
from dovetail.models.smoothers import Smoothing
from dovetail.privacy import encrypted

#: Rows of weights that are looked at at once.
_ROWS_AT_ONCE = 1024

# --- The partner --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """How a smoother's weights become whole numbers, and how its numbers are blurred."""

    exponent: int
    blur: int

    @classmethod
    def of(cls, weights_RL: Tensor) -> Whole:
        """For weights like these."""
        of_parts = []
        for part in weights_RL.split(_ROWS_AT_ONCE):
            sums = (each.sum(dim=1, dtype=torch.float64) for each in (part.abs(), part.square()))
            of_parts.append(torch.stack([*sums]))
            let_go()
        sizes, squared = torch.cat(of_parts, dim=1)
        exponent = encrypted.exponent_of(float(sizes.max()) if len(sizes) else 0.0)
        norm = math.ldexp(math.sqrt(float(squared.mean())) if len(sizes) else 0.0, exponent)
        return cls(exponent, max(1, int(norm * 2 ** (encrypted.TARGET_BITS - 19))))

    def numbers(self, weights_RL: Tensor) -> np.ndarray:
        """(R, L) int64; a row too large for ``encrypted.ROW_BITS`` is made smaller."""
        scaled = np.ldexp(weights_RL.double().numpy(), self.exponent)
        sizes = np.abs(scaled).sum(axis=1, keepdims=True)
        most = 2.0**encrypted.ROW_BITS - scaled.shape[1]  # rounding adds a half to each
        scaled *= np.minimum(1.0, most / np.maximum(sizes, 1.0))
        whole: np.ndarray = np.rint(scaled).astype(np.int64)
        return whole


class Multiplying:
    """A partner's weights times encrypted targets.

    Args:
        layout: how targets lie in slots.
        key_W, targets_PV, nonce: as they were sent, bytes.
        dither: 32 bytes of the partner's own, from which blurs follow.
        wholes: of each smoother that has answered before.

    Raises:
        MessageError: ciphertexts of other parameters.
    """

    def __init__(
        self,
        layout: encrypted.Layout,
        key_W: Tensor,
        targets_PV: Tensor,
        nonce: Tensor,
        dither: Tensor,
        wholes: Sequence[Whole] = (),
    ) -> None:
        self.layout, self.wholes = layout, list(wholes)
        self._wire = {"key_W": key_W, "targets_PV": targets_PV, "nonce": nonce, "dither": dither}
        self._dither = dither.numpy().tobytes()
        self._held = encrypted.Encrypted(
            layout, key_W.numpy(), targets_PV.numpy(), nonce.numpy().tobytes()
        )

    def times(self, weights_RL: Tensor, rows_R: Sequence[bytes], index: int) -> np.ndarray:
        """(ciphertexts, W) of one smoother's weights.

        Args:
            weights_RL: its weights.
            rows_R: what tells a row from another: equal ones have equal blurs.
            index: of the smoother.
        """
        if index == len(self.wholes):
            self.wholes.append(Whole.of(weights_RL))
        whole, columns = self.wholes[index], self.layout.columns
        start = self._dither + bytes([index])

        def blurs(rows: slice) -> np.ndarray:
            drawn = [hashlib.shake_256(start + row).digest(8 * columns) for row in rows_R[rows]]
            uniform = np.frombuffer(b"".join(drawn), "<u8").reshape(-1, columns)
            return (uniform % (2 * whole.blur + 1)).astype(np.int64) - whole.blur

        return self._held.multiply(
            lambda rows: whole.numbers(weights_RL[rows]), len(weights_RL), blurs
        )

    def kept(self, smoothing: Smoothing) -> tuple[KeptSmoothing, SmoothingSpec]:
        """What the partner keeps, to smooth rows that come later."""
        layout, wire = self.layout, self._wire
        sizes = SealedTargets(
            encrypted.PARAMETERS,
            layout.labelled,
            layout.columns,
            layout.block,
            layout.classes,
            tuple(each.exponent for each in self.wholes),
            tuple(each.blur for each in self.wholes),
            len(wire["targets_PV"]),
            wire["targets_PV"].shape[1],
            len(wire["key_W"]),
            len(wire["nonce"]),
        )
        kept = KeptSmoothing(smoothing, sizes)
        for name, values in wire.items():
            getattr(kept, name).copy_(values)
        num_bins = len(smoothing.kernels.encoding.column_M)
        spec = SmoothingSpec(
            smoothing.smoothers,
            num_bins,
            smoothing.least_rows,
            sizes,
            smoothing.view.spec if isinstance(smoothing.view, Patches) else None,
        )
        return kept, spec

    @classmethod
    def again(cls, kept: KeptSmoothing, sizes: SealedTargets) -> Multiplying:
        """As it was kept.

        Raises:
            MessageError: ciphertexts of other parameters.
        """
        if sizes.parameters != encrypted.PARAMETERS:
            raise MessageError(f"what it keeps was encrypted by {sizes.parameters[:60]!r}")
        layout = encrypted.Layout(sizes.labelled, sizes.columns, sizes.block, sizes.classes)
        wholes = [Whole(*each) for each in zip(sizes.exponents, sizes.blurs, strict=True)]
        wire = kept.key_W, kept.targets_PV, kept.nonce, kept.dither
        return cls(layout, *wire, wholes)


def row_digests(x_RF: Tensor, known_R: Tensor | None = None) -> list[bytes]:
    """What tells a row from another by its columns, and by being smoothed by other folds' rows.

    Args:
        x_RF: the rows.
        known_R: which labelled row each is, -1: none; None: none is.
    """
    known = (known_R >= 0).tolist() if known_R is not None else [False] * len(x_RF)
    rows = zip(x_RF.contiguous().numpy(), known, strict=True)
    return [
        hashlib.blake2b(row.tobytes(), digest_size=16, salt=bytes([out])).digest()
        for row, out in rows
    ]


# --- The label owner ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sealing:
    """Targets that are encrypted under a key of their own.

    Attributes:
        wire: fields of the message that brings them.
        key: decrypts what comes back.
        layout: how they lie in slots.
        unit: what one of their whole numbers stands for.
        regression: whether they are values.
    """

    wire: Mapping[str, Any]
    key: encrypted.Owner
    layout: encrypted.Layout
    unit: float
    regression: bool

    @classmethod
    def of(cls, targets_LT: Tensor, num_rows: int, *, regression: bool) -> Sealing:
        """Under a new key; ``num_rows`` are asked about."""
        whole, unit = encrypted.whole_targets(targets_LT.double().numpy())
        layout = encrypted.Layout.best(len(whole), whole.shape[1], num_rows)
        key, nonce = encrypted.Owner(), encrypted.new_nonce()
        wire = {
            "parameters": encrypted.PARAMETERS,
            "block": layout.block,
            "classes": layout.classes,
            "columns": layout.columns,
            "nonce_32": torch.tensor(list(nonce), dtype=torch.uint8),
            "key_1W": torch.from_numpy(key.public_key(nonce)[None]),
            "targets_PV": torch.from_numpy(key.encrypt(whole, layout, nonce)),
        }
        return cls(wire, key, layout, unit, regression)

    def reader(self, exponents: Sequence[int]) -> Reader:
        """Reads answers of these exponents.

        Raises:
            ModelError: exponents that cannot be.
        """
        layout = self.layout
        lie = layout.labelled, layout.columns, layout.block, layout.classes
        return Reader(self.key, Answers(*lie, self.unit, tuple(exponents)), self.regression)


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads a partner's answers.

    Attributes:
        key: decrypts.
        answers: how they lie.
        regression: whether targets are values.
    """

    key: encrypted.Owner
    answers: Answers
    regression: bool

    @property
    def layout(self) -> encrypted.Layout:
        """How targets lie in slots."""
        answers = self.answers
        return encrypted.Layout(answers.labelled, answers.columns, answers.block, answers.classes)

    def read(self, wire: np.ndarray, num_rows: int, *, strict: bool = True) -> Tensor:
        """(R, J C) numbers.

        Args:
            wire: as ``Kept.answers`` gives them.
            num_rows: R.
            strict: raise for what no weights give. Else such rows are NaN, and whoever sent them
                learns nothing of what they decrypt to.

        Raises:
            MessageError: no such ciphertexts.
        """
        answers, layout = self.answers, self.layout
        each = layout.num_answers(num_rows)
        parts = []
        decrypt = self.key.decrypt if strict else self.key.decrypt_any
        for index, exponent in enumerate(answers.exponents):
            whole = decrypt(wire[index * each : (index + 1) * each], layout, num_rows)
            z = torch.from_numpy(np.ldexp(whole * answers.unit, -exponent)).float()
            z[torch.from_numpy(~encrypted.plausible(whole))] = torch.nan
            parts.append(all_columns(z, regression=self.regression))
        return torch.cat(parts, dim=1)
