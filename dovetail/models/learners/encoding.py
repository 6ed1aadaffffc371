"""Numbers as piecewise-linear bins (Gorishniy et al. 2022, Sec. 3.2), beside the number itself.

A number x and a bin from b to b' give clip((x - b) / (b' - b), 0, 1); the bins' edges are
quantiles. Features of two values, such as one-hot categories, stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

#: More encoded features than this, and numbers get fewer bins: a view of a thousand numbers
#: would have seventeen thousand weights a unit.
_MOST_FEATURES = 2048
#: ``torch.quantile`` takes no more values.
_MOST_SORTED = 2**24
#: Standardised numbers are cut here; beyond, a network would follow one outlier.
FURTHEST = 5.0


class PiecewiseLinear(nn.Module):
    """(B, F) features -> (B, F + M), the features and the M bins of the numbers among them."""

    column_M: Tensor
    low_M: Tensor
    width_M: Tensor

    def __init__(self, num_features: int, num_bins: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.register_buffer("column_M", torch.zeros(num_bins, dtype=torch.int64))
        self.register_buffer("low_M", torch.zeros(num_bins))
        self.register_buffer("width_M", torch.ones(num_bins))

    @property
    def num_outputs(self) -> int:
        return self.num_features + len(self.column_M)

    @classmethod
    def fit(cls, x_NF: Tensor, *, bins: int = 16) -> PiecewiseLinear:
        """An encoding whose bins hold about even numbers of these rows.

        Args:
            x_NF: rows, labelled or not.
            bins: of one number; 0 for none.
        """
        columns: list[int] = []
        edges_of: list[Tensor] = []
        numbers = [f for f in range(x_NF.shape[1]) if _is_number(x_NF[:, f])]
        bins = min(bins, _MOST_FEATURES // max(len(numbers), 1))
        if bins >= 2:
            at = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
            for f in numbers:
                edges = _edges(x_NF[:, f].double(), at)
                if len(edges) > 1:
                    columns.append(f)
                    edges_of.append(edges)
        encoding = cls(x_NF.shape[1], sum(len(edges) - 1 for edges in edges_of))
        if edges_of:
            counts = torch.tensor([len(edges) - 1 for edges in edges_of])
            encoding.column_M = torch.tensor(columns).repeat_interleave(counts)
            encoding.low_M = torch.cat([edges[:-1] for edges in edges_of])
            encoding.width_M = torch.cat([edges.diff() for edges in edges_of])
        return encoding

    def forward(self, x_BF: Tensor) -> Tensor:
        bins_BM = ((x_BF[:, self.column_M] - self.low_M) / self.width_M).clamp(0, 1)
        return torch.cat([x_BF.clamp(-FURTHEST, FURTHEST), bins_BM], dim=1)


def _edges(x_N: Tensor, at: Tensor) -> Tensor:
    """Quantiles; of the distinct values where some quantiles are equal.

    A gain that nine in ten people do not have would else have one bin.
    """
    edges: Tensor = _quantiles(x_N, at).float().unique()
    if len(edges) < len(at):
        edges = _quantiles(x_N.unique(), at).float().unique()
    return edges


def _quantiles(x_N: Tensor, at: Tensor) -> Tensor:
    if len(x_N) > _MOST_SORTED:
        return torch.from_numpy(np.quantile(x_N.numpy(), at.numpy()))
    quantiles: Tensor = torch.quantile(x_N, at)
    return quantiles


def _is_number(x_N: Tensor) -> bool:
    return len(x_N.unique()) > 2
