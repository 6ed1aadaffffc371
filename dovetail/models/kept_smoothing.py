"""State that a partner of APFed-S keeps of a run: its smoother, and the targets that it cannot
read.

Letters: L labelled rows, P ciphertexts, V and W bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.errors import ModelError
from dovetail.models.networks import Shape
from dovetail.models.patches import Patches, PatchesSpec
from dovetail.models.smoothers import Kernels, Smoother, Smoothing


@dataclass(frozen=True)
class SealedTargets(Saved):
    """How encrypted targets lie in ciphertexts.

    Attributes:
        parameters: of the encryption.
        labelled, columns, block, classes: L, T, and how both lie in coefficients.
        ciphertexts, target_bytes, key_bytes: sizes of what was sent.
    """

    parameters: str
    labelled: int
    columns: int
    block: int
    classes: int
    ciphertexts: int
    target_bytes: int
    key_bytes: int


class KeptSmoothing(nn.Module):
    """A ``Smoothing``, and the ciphertexts that its weights are multiplied with.

    Args:
        smoothing: of the party's columns.
        sizes: of the others.
    """

    key_W: Tensor
    targets_PV: Tensor
    nonce: Tensor
    dither: Tensor

    def __init__(self, smoothing: Smoothing, sizes: SealedTargets) -> None:
        super().__init__()
        self.smoothing = smoothing
        for name, shape in (
            ("key_W", (sizes.key_bytes,)),
            ("targets_PV", (sizes.ciphertexts, sizes.target_bytes)),
            ("nonce", (32,)),
            ("dither", (32,)),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.uint8))


@dataclass(frozen=True)
class SmoothingSpec(Saved):
    """The sizes of a ``KeptSmoothing``; stands where a data owner's network does."""

    kind: ClassVar[str] = "sealed-smoothing"

    smoother: Smoother
    num_bins: int
    least_rows: float
    sizes: SealedTargets
    pictures: PatchesSpec | None = None

    def build(self, input_shape: Shape, embedding: int) -> KeptSmoothing:
        """The network, of zeros.

        Raises:
            ModelError: numbers of another count.
        """
        if embedding != self.sizes.columns:
            raise ModelError(f"it gives no {embedding} numbers; copy the whole folder again")
        view, num_features = None, torch.Size(input_shape).numel()
        if self.pictures is not None:
            view, num_features = Patches(self.pictures), self.pictures.num_columns
        labelled = self.sizes.labelled
        smoothing = Smoothing(
            Kernels(num_features, self.num_bins),
            self.smoother,
            torch.zeros(labelled, num_features),
            torch.zeros(labelled, dtype=torch.int64),
            self.least_rows,
            view,
        )
        return KeptSmoothing(smoothing, self.sizes)
