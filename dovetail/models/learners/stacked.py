"""Networks of one or several parties' columns, several members at once, as they are kept.

    code_p = MLP(PLE(x_p))                                   at party p
    outputs = head(concat_p code_p) + sum_p linear_p(PLE(x_p))

PLE are piecewise-linear bins (Gorishniy et al. 2022, Sec. 3.2), beside the number itself: a number
x and a bin from b to b' give clip((x - b) / (b' - b), 0, 1), and the bins' edges are quantiles.
Features of two values, such as one-hot categories, stay as they are.

K members (folds, and copies of each) are one network with a leading dimension: a step of all costs
little more than a step of one. ``vertical`` trains them.

Letters: K members, B rows of a batch, F features, D code width, C outputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from dovetail.errors import ModelError
from dovetail.models.learners.member import MemberSpec
from dovetail.models.randomness import generator

#: More encoded features than this, and numbers get fewer bins: a view of a thousand numbers
#: would have seventeen thousand weights a unit.
_MOST_FEATURES = 2048
#: Of more rows so many, drawn, place the bins, as LightGBM's: ten million would take minutes.
_MOST_SORTED = 200_000
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
            x_NF: rows, labelled or not; of more than 200,000 as many are drawn, and
                of so many always the same.
            bins: of one number; 0 for none.
        """
        if len(x_NF) > _MOST_SORTED:
            draws = generator(len(x_NF), "bins")
            x_NF = x_NF[torch.randint(len(x_NF), (_MOST_SORTED,), generator=draws)]
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
    edges: Tensor = torch.quantile(x_N, at).float().unique()
    if len(edges) < len(at):
        edges = torch.quantile(x_N.unique(), at).float().unique()
    return edges


def _is_number(x_N: Tensor) -> bool:
    """Whether it has more than two values."""
    return len(x_N) > 0 and bool(((x_N > x_N.amin()) & (x_N < x_N.amax())).any())


class Stack(nn.Module):
    """(B, in) or (K, B, in) -> (K, B, out), each member by its own weights."""

    def __init__(self, members: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(max(num_inputs, 1))
        self.weight = nn.Parameter(
            torch.empty(members, num_inputs, num_outputs).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(members, 1, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Bottom(nn.Module):
    """Part of one party: (B, F) or (K, B, F) encoded rows -> (K, B, D + C) code and linear part."""

    def __init__(
        self, members: int, num_features: int, widths: Sequence[int], num_outputs: int
    ) -> None:
        super().__init__()
        sizes = [num_features, *widths]
        self.layers = nn.ModuleList(
            Stack(members, before, after) for before, after in itertools.pairwise(sizes)
        )
        self.linear = nn.Parameter(torch.zeros(members, num_features, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        linear_KBC = x @ self.linear
        if not len(self.layers):
            return linear_KBC
        code = x
        for layer in self.layers:
            code = layer(code).relu()
        return torch.cat([code, linear_KBC], dim=-1)


class Top(nn.Module):
    """The label owner's part: every party's (K, B, D + C) -> (K, B, C).

    Args:
        members: K.
        parties: how many.
        code_width: D of all of them, or of each.
        num_outputs: C.
        dropout: share of the codes that a training step leaves out.
    """

    def __init__(
        self,
        members: int,
        parties: int,
        code_width: int | Sequence[int],
        num_outputs: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.code_widths = (
            (code_width,) * parties if isinstance(code_width, int) else tuple(code_width)
        )
        self.head = Stack(members, sum(self.code_widths), num_outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        placed = list(zip(parts, self.code_widths, strict=True))
        codes = torch.cat([part[..., :width] for part, width in placed], dim=-1)
        linear = torch.stack([part[..., width:] for part, width in placed]).sum(dim=0)
        outputs: Tensor = self.head(self.dropout(codes)) + linear
        return outputs


def mean_outputs(outputs_KBC: Tensor, *, regression: bool) -> Tensor:
    """(B, C): the mean value, or the logarithm of the mean probability, of K members."""
    if regression:
        return outputs_KBC.mean(dim=0)
    if len(outputs_KBC) == 1:
        return outputs_KBC[0]
    logs_BC: Tensor = outputs_KBC.log_softmax(dim=-1).logsumexp(dim=0)
    return logs_BC - math.log(len(outputs_KBC))


def frozen(weights: Any) -> Any:
    """Weights as tuples.

    >>> frozen([0.5, 0.5]), frozen([[0, 1], [1, 0]])
    ((0.5, 0.5), ((0.0, 1.0), (1.0, 0.0)))
    """
    if isinstance(weights, Sequence):
        return tuple(map(frozen, weights))
    return float(weights)


#: A number of each member, or of each member numbers of its outputs.
Weights = Annotated[Sequence[Any], AfterValidator(frozen)]


def weighted_outputs(outputs_KBC: Tensor, weights: Weights | None, *, regression: bool) -> Tensor:
    """(B, C): as ``mean_outputs``, where members count by weights that sum to 1; None: alike."""
    if weights is None:
        return mean_outputs(outputs_KBC, regression=regression)
    weights_K11 = outputs_KBC.new_tensor(weights).view(len(outputs_KBC), 1, -1)
    if regression:
        return (weights_K11 * outputs_KBC).sum(dim=0)
    return (outputs_KBC.log_softmax(dim=-1) + weights_K11.log()).logsumexp(dim=0)


class StackedNetwork(nn.Module):
    """(B, F) -> (B, C): one party's encoding, bottom and top, and the mean of their members."""

    def __init__(
        self, encoding: PiecewiseLinear, bottom: Bottom, top: Top, *, regression: bool
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.bottom = bottom
        self.top = top
        self.regression = regression

    def forward(self, x_BF: Tensor) -> Tensor:
        return mean_outputs(
            self.top([self.bottom(self.encoding(x_BF))]), regression=self.regression
        )


@dataclass(frozen=True)
class StackedSpec(MemberSpec):
    """The sizes of a ``StackedNetwork``."""

    kind: ClassVar[str] = "stacked"

    members: int
    num_features: int
    num_bins: int
    widths: tuple[int, ...]
    num_outputs: int
    regression: bool

    def __post_init__(self) -> None:
        if min(self.members, self.num_features, self.num_outputs, *self.widths) < 1:
            raise ModelError(f"a network's sizes are 1 or more, got {self}; copy the folder again")

    def build(self) -> StackedNetwork:
        encoding = PiecewiseLinear(self.num_features, self.num_bins)
        bottom = Bottom(self.members, encoding.num_outputs, self.widths, self.num_outputs)
        width = self.widths[-1] if self.widths else 0
        top = Top(self.members, 1, width, self.num_outputs)
        return StackedNetwork(encoding, bottom, top, regression=self.regression)
