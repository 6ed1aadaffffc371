"""CHFL's network: a column for common features, one for a party's own, and what joins them.

Mori, Teranishi, Furukawa, arXiv:2203.02108, section IV-B.

    z_u^(i+1) = a(W_u^(i+1) z_u^(i) + b_u^(i+1) + mu U^(i+1) z_c^(i))     Eq. (6)
    F(x_c, x_u) = softmax(z_c^(L) + z_u^(L))                              Eq. (7)

A party's own column may be any network of its own, ``OwnColumn``: what it gives stands for
z_u^(L-1), and L - 1 is the last hidden layer of the common column.

A gated network scales z_u^(L) by g in [0, 1] once it is trained, not in the paper: with g = 0 it is
the common column alone, with g = 1 Eq. (7). After Deng et al. 2020, arXiv:2003.13461, who mix a
personal model with the shared one.

Letters: B rows, F features, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.data.saving import Saved
from dovetail.errors import ConfigError
from dovetail.models.networks import OwnNetwork, output_shape

Join = Literal["sum", "input"]


class Column(nn.Module):
    """A multilayer perceptron that shows what each of its layers puts out."""

    def __init__(self, layers: Iterable[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    @classmethod
    def build(cls, num_inputs: int, widths: Sequence[int], num_outputs: int) -> Column:
        """Random weights, drawn from torch's global generator."""
        return cls(_linears(num_inputs, widths, num_outputs))

    def outputs(self, x: Tensor) -> list[Tensor]:
        """z^(1), ..., z^(L): the hidden layers after their activation, then the logits."""
        z = []
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
            z.append(x)
        z.append(self.layers[-1](x))
        return z

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(x)[-1]


class UniqueColumn(nn.Module):
    """A column whose layers also read the common column's layer before, scaled by mu."""

    def __init__(
        self, layers: Iterable[nn.Linear], laterals: Iterable[nn.Linear], mu: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.laterals = nn.ModuleList(laterals)  # U^(2), ..., U^(L)
        self.mu = mu

    @classmethod
    def build(
        cls, num_inputs: int, widths: Sequence[int], num_outputs: int, mu: float
    ) -> UniqueColumn:
        """Random weights; the U are drawn last, so that they change no other weight."""
        layers = _linears(num_inputs, widths, num_outputs)
        sizes = [*widths, num_outputs]
        laterals = [nn.Linear(i, o, bias=False) for i, o in pairwise(sizes)]
        return cls(layers, laterals, mu)

    def start_at_zero(self) -> None:
        """Begin by saying nothing: what is sure of few rows is learned from nothing."""
        with torch.no_grad():
            for parameter in (*self.layers[-1].parameters(), *self.laterals.parameters()):
                parameter.zero_()

    def heads(self) -> list[nn.Module]:
        """The layers that give z_u^(L)."""
        return [self.layers[-1], *self.laterals[-1:]]

    def trained(self) -> list[nn.Parameter]:
        """The parameters that matter: with mu = 0 no U does."""
        return [*self.layers.parameters(), *(self.laterals.parameters() if self.mu else ())]

    def forward(self, x: Tensor, common: Sequence[Tensor]) -> Tensor:
        """z_u^(L), from the own features and z_c^(1), ..., z_c^(L)."""
        for i, layer in enumerate(self.layers):
            x = F.relu(x) if i else x
            x = layer(x)
            if i and self.mu:
                x = torch.add(x, self.laterals[i - 1](common[i - 1]), alpha=self.mu)  # Eq. (6)
        return x


class OwnColumn(nn.Module):
    """A column that is a network of the party's own, and one linear layer with its lateral one.

    Args:
        network: (B, F) -> a code, flattened.
        width: of the code.
        common_width: of the common column's last hidden layer.
        num_outputs: C.
        mu: strength of the lateral connection.
    """

    def __init__(
        self, network: nn.Module, width: int, common_width: int, num_outputs: int, mu: float
    ) -> None:
        super().__init__()
        self.network, self.mu = network, mu
        self.last = nn.Linear(width, num_outputs)
        self.lateral = nn.Linear(common_width, num_outputs, bias=False)

    def start_at_zero(self) -> None:
        """As of ``UniqueColumn``."""
        with torch.no_grad():
            for parameter in (*self.last.parameters(), *self.lateral.parameters()):
                parameter.zero_()

    def heads(self) -> list[nn.Module]:
        """As of ``UniqueColumn``."""
        return [self.last, self.lateral]

    def trained(self) -> list[nn.Parameter]:
        """The parameters that matter: with mu = 0 no U does."""
        own = [*self.network.parameters(), *self.last.parameters()]
        return [*own, *(self.lateral.parameters() if self.mu else ())]

    def forward(self, x: Tensor, common: Sequence[Tensor]) -> Tensor:
        """z_u^(L), from the own features and z_c^(1), ..., z_c^(L)."""
        z: Tensor = self.last(self.network(x).flatten(1))
        return torch.add(z, self.lateral(common[-2]), alpha=self.mu) if self.mu else z


class Columns(nn.Module):
    """A party's whole network: (B, F) of its own features to (B, C) logits.

    Args:
        common: the column that is learned together.
        unique: the party's own column; None: the common column alone.
        common_indices, unique_indices: which of the F features each column reads.
        join: "sum" is Eq. (7); "input" is the simple method of section V-B5: the own column reads
            the common column's class probabilities and its features, and its output counts.
        gated: whether it has a gate.

    Attributes:
        gate: g, how much the own column counts in ``forward``, not in ``joint``; None without one.
    """

    gate: Tensor | None

    def __init__(
        self,
        common: Column,
        unique: UniqueColumn | OwnColumn | None,
        common_indices: Sequence[int],
        unique_indices: Sequence[int],
        join: Join = "sum",
        *,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.common = common
        self.unique = unique
        self.join = join
        self.common_indices = list(common_indices)
        self.unique_indices = list(unique_indices)
        self.register_buffer("gate", torch.ones(()) if gated else None)

    def joint(self, x_unique: Tensor, common: Sequence[Tensor]) -> Tensor:
        """Logits of the whole network, given what the common column's layers put out."""
        if self.unique is None:
            return common[-1]
        if self.join == "input":
            # Of one output, which is a number, a probability would always be 1.
            common_logits = common[-1]
            probabilities = (
                common_logits.softmax(dim=-1) if common_logits.shape[-1] > 1 else common_logits
            )
            joined: Tensor = self.unique(torch.cat([probabilities, x_unique], dim=-1), common)
            return joined
        logits: Tensor = common[-1] + self.unique(x_unique, common)  # Eq. (7), before softmax
        return logits

    def forward(self, x_BF: Tensor) -> Tensor:
        common = self.common.outputs(x_BF[:, self.common_indices])
        logits = self.joint(x_BF[:, self.unique_indices], common)
        if self.gate is None:
            return logits
        return torch.lerp(common[-1], logits, self.gate)


@dataclass(frozen=True)
class ColumnsSpec(Saved):
    """Spec that rebuilds a ``Columns`` without its weights.

    Attributes:
        common, unique: places of the features each column reads; no unique ones: the common
            column alone.
        widths: of the hidden layers of each column.
        num_outputs: C.
        mu: strength of the lateral connections.
        join, gated: see ``Columns``.
        own: the network of the own column; None: a perceptron.
    """

    kind: ClassVar[str] = "columns"
    unsaid: ClassVar[tuple[str, ...]] = ("own",)

    common: tuple[int, ...]
    unique: tuple[int, ...]
    widths: tuple[int, ...]
    num_outputs: int
    mu: float = 1.0
    join: Join = "sum"
    gated: bool = False
    own: OwnNetwork | None = None

    def __post_init__(self) -> None:
        indices = [*self.common, *self.unique]
        if not self.common or min(indices) < 0 or len(set(indices)) < len(indices):
            raise ConfigError(
                "a network of columns reads one or more common features, and each feature once, "
                f"got common {self.common}, unique {self.unique}"
            )
        if not self.widths or min(*self.widths, self.num_outputs) < 1:
            raise ConfigError(
                f"a column needs one or more positive widths, got {self.widths} and "
                f"{self.num_outputs} outputs"
            )
        if not 0 <= self.mu <= 1:  # IV-C
            raise ConfigError(f"mu must lie in [0, 1], got {self.mu}")
        if self.join not in ("sum", "input"):
            raise ConfigError(f"columns are joined by 'sum' or 'input', got {self.join!r}")

    def build_common(self) -> Column:
        """The common column alone, with random weights."""
        return Column.build(len(self.common), self.widths, self.num_outputs)

    def build_unique(self) -> UniqueColumn | OwnColumn | None:
        """The own column and its lateral connections, with random weights."""
        if not self.unique:
            return None
        if self.own is not None:
            shape, device = (len(self.unique),), torch.empty(0).device
            network = self.own.encoder(shape)
            width = math.prod(output_shape(network, shape, device))
            return OwnColumn(network, width, self.widths[-1], self.num_outputs, self.mu)
        if self.join == "input":
            num_inputs = self.num_outputs + len(self.unique)
            return UniqueColumn(_linears(num_inputs, self.widths, self.num_outputs), [], 0.0)
        return UniqueColumn.build(len(self.unique), self.widths, self.num_outputs, self.mu)

    def join_columns(self, common: Column, unique: UniqueColumn | OwnColumn | None) -> Columns:
        indices = self.common, self.unique
        return Columns(common, unique, *indices, self.join, gated=self.gated)

    def build(self) -> Columns:
        """The network with random weights."""
        return self.join_columns(self.build_common(), self.build_unique())


def _linears(num_inputs: int, widths: Sequence[int], num_outputs: int) -> list[nn.Linear]:
    sizes = [num_inputs, *widths, num_outputs]
    return [nn.Linear(i, o) for i, o in pairwise(sizes)]
