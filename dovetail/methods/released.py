"""A party's columns as they leave once, noised, for who may ask what it likes.

    code_n = clip(P (x_n - mean) / deviation) + noise        once for all runs and drivers

P are the first ``width`` principal components, scaled so that the usual row has length 1. Clip and
noise bound what a code says of its row, and are counted: one release of a row, however often it is
asked for. Directions and scale come from the whole table and are not counted.

Answers that are made of these columns reveal no more of a row than the code, whatever is asked.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from dovetail.federated.party import SavedAttributes
from dovetail.models import generator
from dovetail.privacy import epsilon
from dovetail.settings.privacy import Once


def released_columns(
    x: Tensor, once: Once, name: str, lasting: bytes | None
) -> tuple[Tensor, ReleasedRows]:
    """A party's rows as its answers may know them: what it releases once, in its columns' place.

    Whatever is asked, and however often, reveals no more of a row than this one release. At a site
    it is the same for all runs and drivers, as long as table and setting are.

    Args:
        x: (N, ...) its rows; images in 0..255 come back in 0..1.
        once: how.
        name: the party's.
        lasting: a secret of its site's; None in simulation.
    """
    flat_NF = x.flatten(1).float() / (255 if x.dtype == torch.uint8 else 1)
    purpose = [name, "released", repr(once)]
    if lasting is not None:
        purpose.append(hashlib.sha256(flat_NF.numpy().tobytes()).hexdigest())
    release = ReleasedRows(flat_NF, once, generator(0, *purpose, secret=lasting))
    columns: Tensor = release.columns().view(x.shape)
    return columns, release


class ReleasedRows(SavedAttributes):
    """Release of a partner's rows, drawn once.

    Args:
        x_NF: all rows of its table.
        once: how.
        rng: draws the noise; a site's own, which nobody else can draw again.
    """

    saved = ("code_ND",)  # what left before leaves again

    def __init__(self, x_NF: Tensor, once: Once, rng: torch.Generator) -> None:
        self.once = once
        self._mean_F, self._deviation_F = x_NF.mean(dim=0), x_NF.std(dim=0).clamp(min=1e-6)
        x_NF = (x_NF - self._mean_F) / self._deviation_F
        _, lengths, directions_FF = torch.linalg.svd(x_NF.double(), full_matrices=False)
        width = max(1, min(once.width, int((lengths > 1e-6 * lengths[0]).sum())))
        code_ND = (x_NF.double() @ directions_FF[:width].T).float()
        length_N1 = torch.linalg.vector_norm(code_ND, dim=1, keepdim=True)
        usual = length_N1.median().clamp(min=1e-12)
        self._back_DF = directions_FF[:width].float() * usual
        code_ND = code_ND / usual
        length_N1 = torch.linalg.vector_norm(code_ND, dim=1, keepdim=True)
        code_ND = code_ND * (once.clip / length_N1.clamp(min=once.clip))
        self.code_ND = code_ND + once.noise * once.clip * torch.randn(code_ND.shape, generator=rng)

    def columns(self) -> Tensor:
        """(N, F) the columns that the codes say, in the table's own scale: of them nothing more."""
        columns_NF: Tensor = (self.code_ND @ self._back_DF) * self._deviation_F + self._mean_F
        return columns_NF

    @property
    def width(self) -> int:
        return int(self.code_ND.shape[1])

    def report(self) -> dict[str, Any]:
        """Epsilon of any row, JSON-ready; infinite without noise."""
        # A row's code may move by twice the clip.
        spent = epsilon(1, self.once.noise / 2, self.once.delta)
        return {"epsilon": spent, "delta": self.once.delta, "releases": 1, "stopped": False}
