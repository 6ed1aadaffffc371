"""Linear smoothers: what a party's columns say of its rows is a weighted mean of targets.

    M = K_RL (K_LL + ridge I)^-1,   z = M t          (kernel ridge regression)

Of many labelled rows K is that of rank 500 through landmarks Z, which are labelled rows at even
distances (Williams and Seeger 2001): K = K_Z K_ZZ^+ K_Z', so M = K_RZ B, with B of 500 rows. Of 500
labelled rows or fewer it is the kernel itself.

Targets t enter linearly, so a party computes M from its columns alone and never needs to read t:
APFed-S multiplies M with targets that are encrypted.

Three kernels, each scaled so that K(x, x) is about 1, and their mean:

    linear   inner product of piecewise-linear bins (``PiecewiseLinear``), centred
    radial   exp(-|a - b|^2 / m), of ranks where there are few columns; m is the median
    trees    the share of random trees in which both rows fall into one leaf
    mean     the mean of the three

A labelled row is smoothed by rows of other folds only, so its own target does not come back.

Letters: N rows, F features, L labelled rows, T trees, D levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.data.stored import let_go, zeros
from dovetail.errors import ModelError
from dovetail.models.learners.stacked import FURTHEST, PiecewiseLinear
from dovetail.settings.models import Kernel

TREES, LEVELS = 200, 6

#: More columns than this are standardised for the radial kernel; fewer become ranks.
_MOST_RANKED = 60
#: Quantiles of which ranks are made.
_RANKS = 101
#: Pairs of rows that are compared at once.
_CACHED = 2**18
#: Rows of which scales are the mean.
_SCALED_ON = 2000


@dataclass(frozen=True)
class Smoother(Saved):
    """A kernel and the strength of its ridge, in mean eigenvalues of the kernel."""

    kernel: Kernel
    ridge: float

    def __post_init__(self) -> None:
        if self.kernel not in get_args(Kernel) or not 0 < self.ridge < 1e6:
            raise ModelError(
                f"a smoother is of a kernel among {', '.join(get_args(Kernel))} and a ridge above "
                f"0, got {self.kernel!r} and {self.ridge}"
            )


class Kernels(nn.Module):
    """(B, F) and (L, F) rows -> (B, L) of each kernel.

    Args:
        num_features: F.
        num_bins: of the linear kernel.
    """

    mean_E: Tensor
    linear_scale: Tensor
    ranks_QF: Tensor
    radius: Tensor
    threshold_TK: Tensor
    column_TK: Tensor

    def __init__(self, num_features: int, num_bins: int) -> None:
        super().__init__()
        self.encoding = PiecewiseLinear(num_features, num_bins)
        self.register_buffer("mean_E", torch.zeros(num_features + num_bins))
        self.register_buffer("linear_scale", torch.ones(()))
        ranked = num_features < _MOST_RANKED
        self.register_buffer("ranks_QF", torch.zeros(_RANKS if ranked else 0, num_features))
        self.register_buffer("radius", torch.ones(()))
        self.register_buffer("threshold_TK", torch.zeros(TREES, 2**LEVELS - 1))
        self.register_buffer("column_TK", torch.zeros(TREES, 2**LEVELS - 1, dtype=torch.int64))

    @classmethod
    def fit(cls, x_NF: Tensor, rng: torch.Generator) -> Kernels:
        """The kernels of these rows; no row needs a label."""
        x_NF = x_NF.flatten(1).float()
        encoding = PiecewiseLinear.fit(x_NF)
        self = cls(x_NF.shape[1], len(encoding.column_M))
        self.encoding = encoding
        some = x_NF[torch.randperm(len(x_NF), generator=rng)[:_SCALED_ON]]
        encoded = encoding(some).double()
        self.mean_E = encoded.mean(dim=0).float()
        norm = (encoded - encoded.mean(dim=0)).square().sum(dim=1).mean()
        self.linear_scale = norm.clamp(min=1e-12).float()
        if len(self.ranks_QF):
            at = torch.linspace(0, 1, _RANKS, dtype=torch.float64)
            self.ranks_QF = torch.quantile(some.double(), at, dim=0).float()
        points = self._radial(some[:500])
        squared = torch.cdist(points, points).square()
        positive = squared[squared > 0]
        self.radius = positive.median() if len(positive) else torch.ones(())
        self._grow(some, rng)
        return self

    def _grow(self, x_NF: Tensor, rng: torch.Generator) -> None:
        """Random trees: each node splits a column drawn at random at the value of one of its rows,
        drawn too."""
        num, features = x_NF.shape
        node_NT = torch.zeros(num, TREES, dtype=torch.int64)
        trees = np.arange(TREES)[None]
        for level in range(LEVELS):
            first, count = 2**level - 1, 2**level
            self.column_TK[:, first : first + count] = torch.randint(
                features, (TREES, count), generator=rng
            )
            drawn = np.zeros((TREES, count), dtype=np.int64)
            order = torch.randperm(num, generator=rng).numpy()
            drawn[trees, node_NT[order].numpy() - first] = order[:, None]  # the last one stays
            at = torch.from_numpy(drawn), self.column_TK[:, first : first + count]
            self.threshold_TK[:, first : first + count] = x_NF[at]
            node_NT = self._below(x_NF, node_NT)

    def _below(self, x_NF: Tensor, node_NT: Tensor) -> Tensor:
        trees_T = torch.arange(TREES)
        column_NT = self.column_TK[trees_T, node_NT]
        right_NT = x_NF.gather(1, column_NT) > self.threshold_TK[trees_T, node_NT]
        return 2 * node_NT + 1 + right_NT.long()

    def _leaves(self, x_NF: Tensor) -> np.ndarray:
        """(T, N) uint8, the leaf of each tree that a row falls into; a tree at a time."""
        num = len(x_NF)
        value_FN, row_N = np.ascontiguousarray(x_NF.numpy().T).reshape(-1), np.arange(num)
        leaf_TN = np.empty((TREES, num), dtype=np.uint8)
        trees = zip(self.column_TK.numpy() * num, self.threshold_TK.numpy(), leaf_TN, strict=True)
        for first_K, threshold_K, leaf_N in trees:
            node_N = np.zeros(num, dtype=np.intp)
            for _ in range(LEVELS):
                right_N = value_FN.take(first_K.take(node_N) + row_N) > threshold_K.take(node_N)
                node_N = 2 * node_N + 1 + right_N
            leaf_N[:] = node_N - (2**LEVELS - 1)
        return leaf_TN

    def _radial(self, x_NF: Tensor) -> Tensor:
        """(N, F) ranks in 0 to 1, or the columns as they are."""
        if not len(self.ranks_QF):
            return x_NF.clamp(-FURTHEST, FURTHEST)
        ranks = [
            (torch.searchsorted(edges, values) + torch.searchsorted(edges, values, right=True))
            for edges, values in zip(self.ranks_QF.T.contiguous(), x_NF.T.contiguous(), strict=True)
        ]
        return torch.stack(ranks, dim=1) / (2.0 * _RANKS)

    def _linear(self, x_NF: Tensor) -> Tensor:
        encoded_NE: Tensor = self.encoding(x_NF)
        return (encoded_NE - self.mean_E) / self.linear_scale.sqrt()

    def forward(self, x_BF: Tensor, x_LF: Tensor, kernel: Kernel) -> Tensor:
        """(B, L) of one kernel."""
        if kernel == "linear":
            return self._linear(x_BF) @ self._linear(x_LF).T
        if kernel == "radial":
            distances = torch.cdist(self._radial(x_BF), self._radial(x_LF))
            return distances.square_().div_(-self.radius).exp_()
        if kernel == "trees":
            return _shared(self._leaves(x_BF), self._leaves(x_LF)).div_(TREES)
        mean_BL: Tensor = self(x_BF, x_LF, "linear")
        mean_BL += self(x_BF, x_LF, "radial")
        mean_BL += self(x_BF, x_LF, "trees")
        return mean_BL.div_(3)


def _shared(leaf_TB: np.ndarray, leaf_TL: np.ndarray) -> Tensor:
    """(B, L) in how many trees both rows fall into one leaf.

    Bytes are compared, of few rows at once so that their counts stay in the processor's cache: five
    times as fast as a product of sparse matrices.
    """
    num, labelled = leaf_TB.shape[1], leaf_TL.shape[1]
    shared_BL = np.empty((num, labelled), dtype=np.float32)
    step = max(1, _CACHED // max(1, labelled))
    for start in range(0, num, step):
        part_TB = leaf_TB[:, start : start + step, None]
        counts = np.zeros((part_TB.shape[1], labelled), dtype=np.uint8)  # TREES are below 256
        same = np.empty(counts.shape, dtype=np.bool_)
        for leaf_B1, leaf_L in zip(part_TB, leaf_TL, strict=True):
            np.equal(leaf_B1, leaf_L, out=same)
            counts += same.view(np.uint8)
        shared_BL[start : start + step] = counts
    return torch.from_numpy(shared_BL)


class Smoothing(nn.Module):
    """(B, F) rows -> (B, L) weights of the labelled rows.

    Args:
        kernels: of the party's columns.
        smoother: a kernel and a ridge.
        x_LF: the labelled rows, as the kernels see them.
        folds_L: theirs.
        least_rows: a row of weights is spread over so many labelled rows at the least; see
            ``spread_out``.
        view: how rows become what the kernels see, such as ``Patches`` of pictures.
    """

    x_LF: Tensor
    folds_L: Tensor

    def __init__(
        self,
        kernels: Kernels,
        smoother: Smoother,
        x_LF: Tensor,
        folds_L: Tensor,
        least_rows: float = 1.0,
        view: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.kernels = kernels
        self.view = nn.Identity() if view is None else view
        self.smoother = smoother
        self.least_rows = least_rows
        self.register_buffer("x_LF", x_LF)
        self.register_buffer("folds_L", folds_L)
        self._roots: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x.flatten(1))

    def weights(self, x_BF: Tensor, known_B: Tensor | None = None, party: str = "") -> Tensor:
        """(B, L); of many rows they lie in a file of the party's.

        Args:
            x_BF: the rows.
            known_B: which labelled row each is, -1: none. These are smoothed by other folds' rows.
            party: whose columns these are.

        Raises:
            DataError: a disk that has no room for them.
        """
        every = torch.arange(len(self.x_LF))
        weights_BL = torch.from_numpy(zeros((len(x_BF), len(every)), np.float32, party))
        if known_B is None:
            known_B = torch.full((len(x_BF),), -1)
        known, new = (each.nonzero().flatten() for each in (known_B >= 0, known_B < 0))
        parts = self._among(self.view(x_BF[new]), every)
        for rows_B, part_BL in zip(new.split(_ROWS_AT_ONCE), parts, strict=False):
            weights_BL[rows_B] = part_BL
            let_go()
        if len(known):
            weights_LL = self.left_out()
            for rows_B in known.split(_ROWS_AT_ONCE):
                weights_BL[rows_B] = weights_LL[known_B[rows_B]]
        return weights_BL

    def forget(self) -> None:
        """Let go of what is made again where more rows come."""
        self._roots = None

    def left_out(self) -> Tensor:
        """(L, L) for the labelled rows: those of a row's own fold weigh 0."""
        weights_LL = torch.zeros(len(self.x_LF), len(self.x_LF))
        for fold in self.folds_L.unique().tolist():
            held_out = (self.folds_L == fold).nonzero().flatten()
            others = (self.folds_L != fold).nonzero().flatten()
            parts = self._among(self.x_LF[held_out], others)
            weights_LL[held_out[:, None], others] = torch.cat(list(parts))
        return weights_LL

    def _among(self, x_BF: Tensor, rows: Tensor) -> Iterator[Tensor]:
        """(B, labelled rows) K_BZ B over these, spread out; of so many rows at once.

        B is made in double precision. Its product is in single: what these weights are matters, not
        their last digits.
        """
        root_ZD, features_LD = self._landmarks()
        of_rows = features_LD[rows]
        ridge = self.smoother.ridge * of_rows.square().sum(dim=1).mean()  # in mean eigenvalues
        gram_DD = of_rows.T @ of_rows
        gram_DD.diagonal().add_(ridge)
        solved_DL = torch.cholesky_solve(of_rows.T, torch.linalg.cholesky(gram_DD))
        by_landmark = (root_ZD @ solved_DL).float()
        x_ZF = self.x_LF[self._places()]
        for part in x_BF.split(_ROWS_AT_ONCE):
            between = self.kernels(part, x_ZF, self.smoother.kernel)
            yield spread_out(between @ by_landmark, self.least_rows)

    def _places(self) -> Tensor:
        """(Z,) labelled rows that are landmarks."""
        num = len(self.x_LF)
        return torch.linspace(0, num - 1, min(num, _LANDMARKS)).round().long()

    def _landmarks(self) -> tuple[Tensor, Tensor]:
        """(Z, D) the root of K_ZZ^+, and (L, D) features whose products are K."""
        if self._roots is None:
            x_ZF, kernel = self.x_LF[self._places()], self.smoother.kernel
            values, vectors = torch.linalg.eigh(self.kernels(x_ZF, x_ZF, kernel).double())
            kept = values > 1e-6 * values[-1].clamp(min=1e-12)
            root_ZD = vectors[:, kept] / values[kept].sqrt()
            between = torch.cat(
                [self.kernels(part, x_ZF, kernel) for part in self.x_LF.split(_ROWS_AT_ONCE)]
            )
            self._roots = root_ZD, between.double() @ root_ZD
        return self._roots


def spread_out(weights_BL: Tensor, least_rows: float) -> Tensor:
    """The weights, the largest of each row cut where fewer than ``least_rows`` rows carry it.

    With w = |weights| / sum |weights|, 1 / sum w^2 is how many rows carry a mean. Each weight is
    cut so that no row carries more than 1 / least_rows of the sum.

    >>> spread_out(torch.tensor([[9.0, 1.0, 1.0, 1.0]]), 3.0)
    tensor([[1.5000, 1.0000, 1.0000, 1.0000]])
    """
    if not weights_BL.numel():
        return weights_BL
    largest = torch.maximum(weights_BL.amax(dim=1), -weights_BL.amin(dim=1))
    over = largest * least_rows > torch.linalg.vector_norm(weights_BL, ord=1, dim=1)
    if over.any():
        weights_BL = weights_BL.clone()
        weights_BL[over] = _cut(weights_BL[over], least_rows)
    return weights_BL


def _cut(weights_BL: Tensor, least_rows: float) -> Tensor:
    """The same, of rows that fewer carry."""
    sizes = weights_BL.abs()
    num = sizes.shape[1]
    ordered = sizes.sort(dim=1, descending=True).values
    if num <= least_rows:
        return weights_BL.sign() * ordered[:, -1:]
    rest = ordered.flip(1).cumsum(dim=1).flip(1)  # sum from this place on
    cut = torch.arange(num, dtype=weights_BL.dtype)
    room = least_rows - cut
    # With the ``cut`` largest at a cap c, c = (c cut + rest) / least_rows.
    caps = torch.where(room > 0, rest / room.clamp(min=1e-9), torch.inf)
    fits = ordered <= caps
    first = fits.long().argmax(dim=1, keepdim=True)
    cap = caps.gather(1, first)
    return weights_BL.sign() * sizes.minimum(cap)


#: Labelled rows that stand for all in a kernel.
_LANDMARKS = 500
#: Rows whose kernels are in memory at once.
_ROWS_AT_ONCE = 4096
