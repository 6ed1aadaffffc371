"""N replicas of one network, each with its own batch: one stack, one optimizer step for all.

A data owner of FedOptimus has a replica for each label owner. Their parameters are the rows of
one matrix, so that an optimizer steps all at once and their mean is a sum of rows.
``StackedReplicas`` also computes them side by side, forward and backward written out as batched
products: the convolution is a copy of its patches and one product. ``LoopedReplicas`` runs any
network by autograd, one replica after the other. A test holds the two together. ``torch.func``
takes 1.4 to 2 times the time of ``StackedReplicas``: ``benchmarks/stacked.py``.

Letters: N replicas, B rows of a batch (the most of any replica), P parameters, I and O a layer's
inputs and outputs, K values of a patch, L positions of a map, C channels, E embedding width.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.models import vectors
from dovetail.models.learners.stacked import PiecewiseLinear
from dovetail.models.networks import network_input
from dovetail.models.optimizers import Optimizer, follow_back
from dovetail.models.owners import DenseNetwork, EncodedNetwork


class Replicas(ABC):
    """N copies of ``network``; each remembers its last forward pass for ``backward``.

    Attributes:
        values: (N, P) parameters, with ``values.grad``: what an optimizer steps.
        statistics_NQ: what layers such as batch normalisation keep, Q numbers each.
    """

    def __init__(self, network: nn.Module, num: int) -> None:
        self._network = network
        start = vectors.vector_of(network)
        self.values = nn.Parameter(start.repeat(num, 1))
        self.values.grad = torch.zeros_like(self.values)
        self.statistics_NQ = vectors.statistics_of(network).repeat(num, 1)

    def __len__(self) -> int:
        return len(self.values)

    def state(self) -> dict[str, Any]:
        """State that its next step depends on."""
        return {"values": self.values.detach(), "statistics": self.statistics_NQ}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.values.detach().copy_(state["values"])
        self.statistics_NQ.copy_(state["statistics"])

    @abstractmethod
    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """(sum of B, E) embeddings of each replica's rows, one replica's after the other's.

        Args:
            x: network inputs, or bytes 0..255, of each replica; (0, ...) where it has no batch.
        """

    @abstractmethod
    def backward(self, gradients: Sequence[Tensor]) -> None:
        """``values.grad`` of the last batches, from (B, E) gradients of each replica.

        A replica that is given (0, E) has a gradient of zero.
        """

    def network(self, index: int) -> nn.Module:
        """A copy of one replica."""
        replica = copy.deepcopy(self._network)
        vectors.write_vector(self.values.detach()[index], replica)
        vectors.write_statistics(self.statistics_NQ[index], replica)
        return replica


def replicas_of(network: nn.Module, num: int) -> Replicas:
    """The fastest kind for this network."""
    if isinstance(network, DenseNetwork | EncodedNetwork):
        return StackedReplicas(network, num)
    return LoopedReplicas(network, num)


class EnsembleReplicas:
    """N replicas of an ensemble of K networks, whose embeddings stand side by side.

    Args:
        networks: the K members.
        num: N.

    Attributes:
        values: (N K, P) parameters, with their gradients: what an optimizer steps.
        weights_NP: (N, K P) a view of each replica's, its members' one after the other.
        statistics_NQ: (N, K Q) a view of what layers such as batch normalisation keep.
    """

    def __init__(self, networks: Sequence[nn.Module], num: int) -> None:
        self.num, self.members = num, len(networks)
        self._replicas = replicas_of(networks[0], num * self.members)
        self.values = self._replicas.values
        self.weights_NP = self._rows(self.values)
        self.statistics_NQ = self._rows(self._replicas.statistics_NQ)
        if self.members > 1:
            local_P = torch.cat([vectors.vector_of(network) for network in networks])
            self.weights_NP[:] = local_P.to(self.values.device)

    def __len__(self) -> int:
        return self.num

    def _rows(self, values: Tensor) -> Tensor:
        return values.detach().view(self.num, values.numel() // self.num)

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        """(sum of B, E) embeddings of each replica's (B, ...) rows; see ``Replicas.forward``."""
        members = self.members
        if members == 1:
            return self._replicas.forward(x)
        embedding = self._replicas.forward([rows for rows in x for _ in range(members)])
        parts = embedding.split([len(rows) * members for rows in x])
        return torch.cat(
            [
                part.unflatten(0, (members, -1)).transpose(0, 1).flatten(1)
                for part in parts
                if len(part)
            ]
        )

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """``values.grad`` of the last batches, from (B, E) gradients of each replica."""
        if self.members > 1:
            gradients = [part for each in gradients for part in each.chunk(self.members, dim=1)]
        self._replicas.backward(gradients)

    def step(self, optimizer: Optimizer, rows: Sequence[int]) -> None:
        """Make a step of the replicas that had rows; the others, and their memory, stay as they
        are.

        Args:
            optimizer: of ``values``.
            rows: of each replica's batch.
        """
        still = [index for index, num in enumerate(rows) if not num]
        before = (
            {name: buffer[still] for name, buffer in self._stepped(optimizer).items()}
            if still
            else {}
        )
        optimizer.step()
        if still:  # an optimizer's memory starts at zero
            for name, buffer in self._stepped(optimizer).items():
                buffer[still] = before.get(name, torch.zeros_like(buffer[still]))

    def _stepped(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """(N, ...) views of what a step changes: weights, and the optimizer's memory of each."""
        buffers = optimizer.state[self.values].items()
        memory = {
            name: kept for name, kept in buffers if isinstance(kept, Tensor) and kept.dim() == 2
        }
        return {name: self._rows(each) for name, each in {"values": self.values, **memory}.items()}

    def networks(self, index: int) -> list[nn.Module]:
        """Copies of one replica's members."""
        first = index * self.members
        return [self._replicas.network(first + member) for member in range(self.members)]

    def state(self) -> dict[str, Any]:
        """State that its next step depends on."""
        return self._replicas.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._replicas.restore(state)


# --- Any network, by autograd ------------------------------------------------------------------


class LoopedReplicas(Replicas):
    """Replicas as one module each; their parameters and gradients are views of the rows."""

    def __init__(self, network: nn.Module, num: int) -> None:
        super().__init__(network, num)
        self.modules = [copy.deepcopy(network).train() for _ in range(num)]
        assert self.values.grad is not None
        for index, module in enumerate(self.modules):
            row, row_grad = self.values.detach()[index], self.values.grad[index]
            statistics = self.statistics_NQ[index]
            start = 0
            for parameter in module.parameters():
                stop = start + parameter.numel()
                parameter.data = row[start:stop].view_as(parameter)
                parameter.grad = row_grad[start:stop].view_as(parameter)
                start = stop
            start = 0
            for layer, name, buffer in vectors.float_buffers(module):
                stop = start + buffer.numel()
                setattr(layer, name, statistics[start:stop].view_as(buffer))
                start = stop
        self._outputs: list[Tensor] = []

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        device = self.values.device
        self._outputs = [
            module(network_input(rows, device)) if len(rows) else torch.empty(0)
            for module, rows in zip(self.modules, x, strict=True)
        ]
        return torch.cat([output.detach() for output in self._outputs if len(output)])

    def backward(self, gradients: Sequence[Tensor]) -> None:
        assert self.values.grad is not None
        self.values.grad.zero_()
        for output, gradient in zip(self._outputs, gradients, strict=True):
            if len(gradient):
                follow_back([output], [gradient])
        self._outputs = []


# --- Dense networks, side by side --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Layer:
    """Views of a layer's parameters and their gradients in all replicas."""

    weight: Tensor  # (N, O, I)
    bias: Tensor  # (N, 1, O)
    weight_grad: Tensor
    bias_grad: Tensor


class _Conv:
    """A convolution of all replicas as products with the patches of their rows."""

    def __init__(self, conv: nn.Conv2d, layer: _Layer, input_shape: Sequence[int]) -> None:
        inputs, height, width = input_shape
        down, right = (int(pad) for pad in conv.padding)
        self.inside = (slice(down, down + height), slice(right, right + width))
        self.kernel = (int(conv.kernel_size[0]), int(conv.kernel_size[1]))
        self.stride = (int(conv.stride[0]), int(conv.stride[1]))
        self.padded = (inputs, height + 2 * down, width + 2 * right)
        self.map = (
            (self.padded[1] - self.kernel[0]) // self.stride[0] + 1,
            (self.padded[2] - self.kernel[1]) // self.stride[1] + 1,
        )
        self.positions = self.map[0] * self.map[1]
        self.patch = inputs * self.kernel[0] * self.kernel[1]
        self.channels = conv.out_channels
        self.layer = layer


class _Patches:
    """A convolution's memory for batches of B rows, with every view of it that a step needs.

    To make a view takes as long as some of the products: they are made once.

    Args:
        conv: which convolution.
        inputs: (N, B, C L) what the first linear layer reads.
    """

    def __init__(self, conv: _Conv, inputs: Tensor) -> None:
        num, size, _ = inputs.shape
        channels, positions = conv.channels, conv.positions
        self.padded = inputs.new_zeros(num, size, *conv.padded)
        self.inside = self.padded[(..., *conv.inside)]
        patches = inputs.new_empty(num, conv.patch, size * positions)
        _, of_b, of_c, of_h, of_w = self.padded.stride()
        windows = (conv.padded[0], *conv.kernel, size, *conv.map)
        strides = (of_c, of_h, of_w, of_b, of_h * conv.stride[0], of_w * conv.stride[1])
        # Maps and gradients of one replica after the other: they stay in the cache.
        self.maps = inputs.new_empty(channels, size * positions)
        self.back = inputs.new_empty(size, channels * positions)
        self.maps_by_row = self.maps.view(channels, size, positions).transpose(0, 1)
        self.back_by_row = self.back.view(size, channels, positions)
        self.windows = [
            patch.as_strided(windows, strides, patch.storage_offset()) for patch in self.padded
        ]
        self.windows_to = [patch.view(windows) for patch in patches]
        self.patches = list(patches)
        self.patches_T = [patch.T for patch in patches]
        self.inputs: list[Tensor] = list(inputs)
        self.inputs_by_row = [patch.view(size, channels, positions) for patch in inputs]
        self.weight = list(conv.layer.weight)
        self.bias = [patch.T for patch in conv.layer.bias]
        self.weight_grad = list(conv.layer.weight_grad)
        self.bias_grad = [patch[0] for patch in conv.layer.bias_grad]

    def forward(self) -> None:
        """Each replica's maps after ReLU into (N, B, C L), row by row."""
        for index, inputs in enumerate(self.inputs_by_row):
            self.windows_to[index].copy_(self.windows[index])  # long runs of a row at once
            # Map after map: a product with a long last side is many times faster than its
            # transpose.
            torch.addmm(self.bias[index], self.weight[index], self.patches[index], out=self.maps)
            torch.clamp_min(self.maps_by_row, 0, out=inputs)

    def backward(self, gradient: Tensor, weight: Tensor) -> None:
        """Add its gradients, given those by the outputs of the linear layer of this weight.

        Replica after replica, while its maps are in the cache.
        """
        back = self.back
        for index, part in enumerate(gradient):
            torch.mm(part, weight[index], out=back)
            torch.ops.aten.threshold_backward.grad_input(
                back, self.inputs[index], 0, grad_input=back
            )
            self.maps_by_row.copy_(self.back_by_row)
            torch.mm(self.maps, self.patches_T[index], out=self.weight_grad[index])
            torch.sum(self.maps, 1, out=self.bias_grad[index])


class _Buffers:
    """Memory for batches of B rows, made once."""

    def __init__(self, num: int, size: int, conv: _Conv | None, linears: Sequence[_Layer]) -> None:
        first = linears[0]
        self.inputs = first.weight.new_zeros(num, size, first.weight.shape[2])
        widths = [layer.weight.shape[1] for layer in linears]
        self.outputs = [self.inputs.new_empty(num, size, width) for width in widths]
        self.back = [torch.empty_like(output) for output in self.outputs[:-1]]
        self.conv: _Patches | None = None
        if conv is not None:
            self.conv = _Patches(conv, self.inputs)


class StackedReplicas(Replicas):
    """Replicas of a ``DenseNetwork``, of encoded rows or as they are, as batched products."""

    def __init__(self, network: DenseNetwork | EncodedNetwork, num: int) -> None:
        super().__init__(network, num)
        self._encoding: PiecewiseLinear | None = None
        if isinstance(network, EncodedNetwork):
            self._encoding, network = network.encoding, network.dense
        gradients = self.values.grad
        assert gradients is not None
        self._conv_layer = network.conv
        self._layers: list[_Layer] = []
        start = 0
        pairs = [network.conv] if network.conv is not None else []
        for layer in (*pairs, *network.linears):
            outputs = layer.weight.shape[0]
            inputs = layer.weight.numel() // outputs
            middle, stop = start + inputs * outputs, start + (inputs + 1) * outputs
            values = self.values.detach()
            self._layers.append(
                _Layer(
                    values[:, start:middle].view(num, outputs, inputs),
                    values[:, middle:stop].view(num, 1, outputs),
                    gradients[:, start:middle].view(num, outputs, inputs),
                    gradients[:, middle:stop].view(num, 1, outputs),
                )
            )
            start = stop
        self._linears = self._layers[len(pairs) :]
        self._skip: tuple[Tensor, Tensor] | None = None  # (N, E, I) weights and their gradients
        if network.skip is not None:
            shape = (num, *network.skip.weight.shape)
            values = self.values.detach()
            self._skip = (values[:, start:].view(shape), gradients[:, start:].view(shape))
        self._conv: _Conv | None = None
        self._by_size: dict[int, _Buffers] = {}
        self._buffers: _Buffers | None = None

    def forward(self, x: Sequence[Tensor]) -> Tensor:
        sizes = [len(rows) for rows in x]
        if self._encoding is not None:
            rows = network_input(torch.cat(list(x)), self.values.device)
            x = self._encoding(rows.flatten(1)).split(sizes)
        buffers = self._buffers_for(max(sizes), x)
        self._buffers = buffers
        self._read(buffers, x)
        linears, below = self._linears, buffers.inputs
        if buffers.conv is not None:
            buffers.conv.forward()
        for index, layer in enumerate(linears):
            out = buffers.outputs[index]
            torch.baddbmm(layer.bias, below, layer.weight.mT, out=out)
            below = out.relu_() if index < len(linears) - 1 else out
        if self._skip is not None:
            below.baddbmm_(buffers.inputs, self._skip[0].mT)
        if min(sizes) == max(sizes):
            return below.flatten(0, 1).clone()
        return torch.cat([rows[:size] for rows, size in zip(below, sizes, strict=True)])

    def backward(self, gradients: Sequence[Tensor]) -> None:
        buffers = self._buffers
        assert buffers is not None
        size = buffers.inputs.shape[1]
        if all(len(gradient) == size for gradient in gradients):
            gradient = torch.stack(list(gradients))
        else:  # rows that are not there have a gradient of zero
            gradient = torch.zeros_like(buffers.outputs[-1])
            for index, part in enumerate(gradients):
                gradient[index, : len(part)] = part
        linears = self._linears
        if self._skip is not None:
            torch.bmm(gradient.mT, buffers.inputs, out=self._skip[1])
        for index in reversed(range(1, len(linears))):
            layer, below, back = linears[index], buffers.outputs[index - 1], buffers.back[index - 1]
            _parameter_gradients(layer, below, gradient)
            torch.bmm(gradient, layer.weight, out=back)
            torch.ops.aten.threshold_backward.grad_input(back, below, 0, grad_input=back)
            gradient = back
        _parameter_gradients(linears[0], buffers.inputs, gradient)
        if buffers.conv is not None:
            buffers.conv.backward(gradient, linears[0].weight)

    def _buffers_for(self, size: int, x: Sequence[Tensor]) -> _Buffers:
        if self._conv_layer is not None and self._conv is None:
            self._conv = _Conv(self._conv_layer, self._layers[0], x[0].shape[1:])
        if size not in self._by_size:
            if len(self._by_size) >= 4:  # shards of many sizes end their passes differently
                self._by_size.pop(next(iter(self._by_size)))
            self._by_size[size] = _Buffers(len(self), size, self._conv, self._linears)
        return self._by_size[size]

    def _read(self, buffers: _Buffers, x: Sequence[Tensor]) -> None:
        """Each replica's rows into the buffers."""
        into = buffers.inputs if buffers.conv is None else buffers.conv.inside
        if all(len(rows) == into.shape[1] for rows in x):
            into.copy_(torch.cat(list(x)).view_as(into))
        else:
            for target, rows in zip(into, x, strict=True):
                target[: len(rows)] = rows.view(len(rows), *target.shape[1:])
        if x[0].dtype == torch.uint8:  # as ``network_input`` does
            into.div_(255)


def _parameter_gradients(layer: _Layer, below: Tensor, gradient: Tensor) -> None:
    torch.bmm(gradient.mT, below, out=layer.weight_grad)
    torch.sum(gradient, 1, keepdim=True, out=layer.bias_grad)
