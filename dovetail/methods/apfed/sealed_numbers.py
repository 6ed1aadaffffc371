"""Numbers of APFed-S at both ends: weights times encrypted targets, and what is decrypted.

All that is random in an answer follows from a secret of the partner's site and from the question:
key and targets, the rows and their columns, and the weights. So the same question has the same
answer, and no two others share a blur. Rows are put into ciphertexts in an order that follows from
it, too: an owner that makes targets up does not know whose numbers it mixes.

Letters: R rows, L labelled rows, T columns of targets, W bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.federated import Local
from dovetail.models import generator
from dovetail.models.kept_smoothing import KeptSmoothing, SealedTargets, SmoothingSpec
from dovetail.models.learners.assisted import all_columns
from dovetail.models.learners.assisted_joint import Answers
from dovetail.models.patches import Patches
from dovetail.models.smoothers import Smoothing
from dovetail.privacy import encrypted


def lasting(local: Local, *purpose: str) -> torch.Generator:
    """Random numbers of a site, the same in all of its runs; in simulation of the run's seed."""
    return generator(local.seed, local.name, *purpose, secret=local.lasting or local.key)


def bytes_of(rng: torch.Generator) -> Tensor:
    """(32,) bytes, which nobody else can compute."""
    return torch.randint(256, (encrypted.SEED_BYTES,), generator=rng).byte()


def row_names(ids_R: Sequence[Any], x_RF: Tensor) -> list[bytes]:
    """What tells a row from another: its id, and its columns as they are now."""
    rows = zip(np.asarray(ids_R).tolist(), x_RF.contiguous().numpy(), strict=True)
    return [
        hashlib.blake2b(repr(id).encode() + b"\0" + row.tobytes(), digest_size=16).digest()
        for id, row in rows
    ]


# --- The partner --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows of a question, in the order in which they lie in ciphertexts.

    Attributes:
        digest: of the question.
        order_R: the row at each place.
        place_R: the place of each row.
    """

    digest: bytes
    order_R: Tensor
    place_R: Tensor


class Multiplying:
    """A partner's weights times encrypted targets.

    Args:
        layout: how targets lie in coefficients.
        key_W, targets_PV, nonce: as they were sent, bytes.
        dither: 32 bytes of the partner's own, from which all that is random follows.

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
    ) -> None:
        self.layout = layout
        self._wire = {"key_W": key_W, "targets_PV": targets_PV, "nonce": nonce, "dither": dither}
        self._secret = dither.numpy().tobytes()
        self._encrypted = encrypted.Encrypted(
            layout, key_W.numpy(), targets_PV.numpy(), nonce.numpy().tobytes()
        )

    def placed(self, names_R: Sequence[bytes], smoothing: Smoothing, bits: int) -> Placed:
        """Where rows of these names lie, in whatever order they were asked about."""
        state = b"".join(each.numpy().tobytes() for each in smoothing.state_dict().values())
        settings = repr((smoothing.smoother, smoothing.least_rows, bits)).encode()
        whole = hashlib.blake2b(state).digest() + self._encrypted.digest + settings
        digest = hashlib.blake2b(whole + b"".join(sorted(names_R)), key=self._secret).digest()
        drawn = [hashlib.blake2b(name, key=digest, digest_size=16).digest() for name in names_R]
        order_R = torch.tensor(sorted(range(len(drawn)), key=drawn.__getitem__))
        return Placed(digest, order_R, order_R.argsort())

    def times(self, weights_RL: Tensor, digest: bytes, bits: int) -> np.ndarray:
        """(ciphertexts, W) of weights of rows in the order in which they lie."""

        def whole(rows: slice) -> np.ndarray:
            return encrypted.whole_weights(weights_RL[rows].numpy())

        return self._encrypted.multiply(whole, len(weights_RL), bits, self._secret, digest)

    def answered(
        self, smoothing: Smoothing, x_RF: Tensor, placed: Placed, bits: int,
        known_R: Tensor | None = None, party: str = "",
    ) -> Tensor:  # fmt: skip
        """(ciphertexts, W) of M t of these rows.

        Args:
            smoothing: makes M.
            x_RF: the rows, as they were asked about.
            placed: where they lie.
            bits: that each number tells at the most.
            known_R: which labelled row each is, -1: none; None: none is.
            party: whose rows they are.
        """
        order_R = placed.order_R
        known_R = None if known_R is None else known_R[order_R]
        weights_RL = smoothing.weights(x_RF[order_R], known_R, party)
        return torch.from_numpy(self.times(weights_RL, placed.digest, bits))

    def kept(self, smoothing: Smoothing) -> tuple[KeptSmoothing, SmoothingSpec]:
        """What the partner keeps, to smooth rows that come later."""
        layout, wire = self.layout, self._wire
        sizes = SealedTargets(
            encrypted.PARAMETERS,
            layout.labelled,
            layout.columns,
            layout.block,
            layout.classes,
            ciphertexts=len(wire["targets_PV"]),
            target_bytes=wire["targets_PV"].shape[1],
            key_bytes=len(wire["key_W"]),
        )
        kept = KeptSmoothing(smoothing, sizes)
        for name, values in wire.items():
            getattr(kept, name).copy_(values)
        num_bins = len(smoothing.kernels.encoding.column_M)
        spec = SmoothingSpec(
            smoothing.smoother,
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
        return cls(layout, kept.key_W, kept.targets_PV, kept.nonce, kept.dither)


# --- The label owner ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sealing:
    """Targets that are encrypted under a key of their own.

    Attributes:
        wire: fields of the message that brings them.
        key: decrypts what comes back.
        layout: how they lie in coefficients.
        unit: what one of their whole numbers stands for.
        middle_C: of what is read, in units.
        regression: whether they are values.
    """

    wire: Mapping[str, Any]
    key: encrypted.Owner
    layout: encrypted.Layout
    unit: float
    middle_C: np.ndarray
    regression: bool

    @classmethod
    def of(
        cls, targets_LT: Tensor, num_rows: int, *, regression: bool, secret: bytes, asked: bytes
    ) -> Sealing:
        """Under a key that follows from the question, so that the same one is sent twice alike.

        Args:
            targets_LT: what is encrypted.
            num_rows: that are asked about.
            regression: whether they are values.
            secret: 32 bytes of the label owner's own.
            asked: what else the question has.
        """
        whole, unit, middle_C = encrypted.whole_targets(targets_LT.double().numpy())
        layout = encrypted.Layout.best(len(whole), whole.shape[1], num_rows)
        question = f"{layout} {unit} ".encode() + whole.tobytes() + asked
        drawn = hashlib.blake2b(question, key=secret).digest()
        key, nonce = encrypted.Owner(drawn[:32]), drawn[32:]
        wire = {
            "parameters": encrypted.PARAMETERS,
            "block": layout.block,
            "classes": layout.classes,
            "columns": layout.columns,
            "nonce_32": torch.tensor(list(nonce), dtype=torch.uint8),
            "key_1W": torch.from_numpy(key.public_key(nonce)[None]),
            "targets_PV": torch.from_numpy(key.encrypt(whole, layout, nonce)),
        }
        return cls(wire, key, layout, unit, middle_C, regression)

    @property
    def reader(self) -> Reader:
        """Reads answers."""
        layout = self.layout
        lie = layout.labelled, layout.columns, layout.block, layout.classes
        answers = Answers(*lie, self.unit, tuple(self.middle_C.tolist()))
        return Reader(self.key, answers, self.regression)


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
        """How targets lie in coefficients."""
        answers = self.answers
        return encrypted.Layout(answers.labelled, answers.columns, answers.block, answers.classes)

    def read(self, wire_PW: Tensor, place_R: Tensor, num_rows: int) -> Tensor:
        """(R, C) numbers. Every ciphertext is some number, so whoever sent it learns nothing.

        Args:
            wire_PW: of ``Multiplying``.
            place_R: where each row lies.
            num_rows: R.

        Raises:
            MessageError: no such ciphertexts, or places.
        """
        if not torch.equal(place_R.sort().values, torch.arange(num_rows)):
            raise MessageError(f"an answer about {num_rows} rows has a place for each, once")
        whole = self.key.decrypt(wire_PW.numpy(), self.layout, num_rows)
        if self.answers.middle:
            whole = encrypted.around(whole, np.array(self.answers.middle))
        z_RT = torch.from_numpy(whole * self.answers.unit).float()[place_R]
        return all_columns(z_RT, regression=self.regression)
