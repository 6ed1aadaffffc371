"""Features of pictures, learnt without a label: how alike their patches are to common patterns.

Coates, Ng and Lee 2011 (AISTATS, PMLR 15), an analysis of single-layer networks in unsupervised
feature learning: patches p are normalised and whitened, K-means finds K patterns c in them, and

    f_k(p) = max(0, mean_j |p - c_j| - |p - c_k|)

says which patterns a patch is near. The means of f over parts of the picture are its columns. A
party learns patterns from its own pictures, so nothing of them depends on labels.

Letters: N pictures of C channels and H x W pixels, P patches, E pixels of a patch, K patterns.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.errors import ModelError
from dovetail.models.smoothers import Kernels
from dovetail.settings.models import Pictures

SIZE, PATTERNS = 6, 96
#: Patches of a picture, about; further apart in larger ones.
_PATCHES = 400
#: What is added to a patch's variance, of pixels in 0 to 1, and to the whitened ones'.
_FLAT, _WHITE = 1.5e-4, 0.1
#: Pictures and patches that patterns are learnt from; pictures that are described at once, and that
#: bins and scales of kernels are learnt from.
_LEARNT_FROM, _LEARNT_PATCHES, _AT_ONCE, _FOR_KERNELS = 2000, 20_000, 256, 4000


@dataclass(frozen=True)
class PatchesSpec(Saved):
    """The sizes of ``Patches``.

    Attributes:
        channels, height, width: of a picture.
        size: patches have so many rows and columns of pixels.
        stride: pixels from one to the next.
        patterns: K.
    """

    channels: int
    height: int
    width: int
    size: int
    stride: int
    patterns: int

    def __post_init__(self) -> None:
        sizes = asdict(self).values()
        if min(sizes) < 1 or max(sizes) > 2**14 or self.size > min(self.height, self.width):
            raise ModelError(f"no patches of pictures: {self}; copy the whole folder again")

    @classmethod
    def of(cls, shape: torch.Size) -> PatchesSpec:
        """For pictures of this shape (C, H, W)."""
        channels, height, width = shape
        size = min(SIZE, height, width)
        places = (height - size + 1) * (width - size + 1)
        return cls(channels, height, width, size, math.ceil(math.sqrt(places / _PATCHES)), PATTERNS)

    @property
    def places(self) -> tuple[int, int]:
        """Patches from top to bottom, and from left to right."""
        down, across = self.height - self.size, self.width - self.size
        return down // self.stride + 1, across // self.stride + 1

    @property
    def parts(self) -> tuple[int, int]:
        """Parts of a picture, likewise: 2 by 2, of a wide one 2 by 3."""
        down, across = self.places
        longest = [3 if one >= 2 * other else 2 for one, other in ((down, across), (across, down))]
        return min(longest[0], down), min(longest[1], across)

    @property
    def num_columns(self) -> int:
        return self.patterns * math.prod(self.parts)


class Patches(nn.Module):
    """(N, C H W) pixels in 0 to 1 -> (N, columns)."""

    mean_E: Tensor
    white_EE: Tensor
    patterns_KE: Tensor

    def __init__(self, spec: PatchesSpec) -> None:
        super().__init__()
        self.spec = spec
        num = spec.channels * spec.size**2
        self.register_buffer("mean_E", torch.zeros(num))
        self.register_buffer("white_EE", torch.eye(num))
        self.register_buffer("patterns_KE", torch.zeros(spec.patterns, num))

    @classmethod
    def fit(cls, x_NF: Tensor, shape: torch.Size, rng: torch.Generator) -> Patches:
        """Patterns of these pictures."""
        from sklearn.cluster import MiniBatchKMeans

        self = cls(PatchesSpec.of(shape))
        some = x_NF[torch.randperm(len(x_NF), generator=rng)[:_LEARNT_FROM]]
        cut_PE = self._cut(some)
        cut_PE = cut_PE[torch.randperm(len(cut_PE), generator=rng)[:_LEARNT_PATCHES]]
        self.mean_E = cut_PE.mean(dim=0)
        cut_PE = cut_PE - self.mean_E
        values, vectors = torch.linalg.eigh(cut_PE.T @ cut_PE / len(cut_PE))
        self.white_EE = (vectors * (values.clamp(min=0) + _WHITE).rsqrt()) @ vectors.T
        seed = int(torch.randint(2**31, (1,), generator=rng))
        found = MiniBatchKMeans(min(PATTERNS, len(cut_PE)), n_init=1, random_state=seed)
        centres = found.fit((cut_PE @ self.white_EE).numpy()).cluster_centers_
        self.patterns_KE[: len(centres)] = torch.from_numpy(centres)
        return self

    def _cut(self, x_NF: Tensor) -> Tensor:
        """(N P, E) normalised patches."""
        spec = self.spec
        pictures = x_NF.view(-1, spec.channels, spec.height, spec.width)
        cut_NEP = nn.functional.unfold(pictures, spec.size, stride=spec.stride)
        cut_PE = cut_NEP.transpose(1, 2).flatten(0, 1)
        cut_PE = cut_PE - cut_PE.mean(dim=1, keepdim=True)
        normal: Tensor = cut_PE / (cut_PE.square().mean(dim=1, keepdim=True) + _FLAT).sqrt()
        return normal

    def forward(self, x_NF: Tensor) -> Tensor:
        parts = [self._described(part) for part in x_NF.split(_AT_ONCE) if len(part)]
        return torch.cat(parts) if parts else torch.empty(0, self.spec.num_columns)

    def _described(self, x_NF: Tensor) -> Tensor:
        white_PE = (self._cut(x_NF) - self.mean_E) @ self.white_EE
        apart_PK = torch.cdist(white_PE, self.patterns_KE)
        near_PK = (apart_PK.mean(dim=1, keepdim=True) - apart_PK).clamp_(min=0)
        near_NKHW = near_PK.view(len(x_NF), *self.spec.places, -1).permute(0, 3, 1, 2)
        return nn.functional.adaptive_avg_pool2d(near_NKHW, self.spec.parts).flatten(1)


def kernels_of(
    x_NF: Tensor, shape: torch.Size, rng: torch.Generator, pictures: Pictures
) -> tuple[nn.Module, Kernels]:
    """Module that gives what kernels see of a row, and the kernels of these rows; no row needs a
    label.

    Args:
        x_NF: columns, or pixels in 0 to 1.
        shape: of a row.
        rng: of all that is drawn.
        pictures: what is seen of pictures.
    """
    if pictures == "flat" or len(shape) != 3:
        return nn.Identity(), Kernels.fit(x_NF, rng)
    view = Patches.fit(x_NF, shape, rng)
    some = torch.randperm(len(x_NF), generator=rng)[:_FOR_KERNELS]
    return view, Kernels.fit(view(x_NF[some]), rng)
