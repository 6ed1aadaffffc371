"""Many parties' small networks computed together: one batched product for all, one optimizer step.

For simulation, where one process plays all parties. A small network keeps a processor waiting on
Python; K of them side by side do not. Forward and backward are written out here and every large
result goes into a buffer made once: ``Columns`` with autograd is the same mathematics, and a test
holds the two together. ``torch.func`` takes 1.1 to 1.5 times the time: ``benchmarks/stacked.py``.

Networks may differ in how many features they read: that layer is then computed one by one.
Batches may differ in their number of rows: absent ones have weight zero.

Letters: K networks, B rows, I and O a layer's inputs and outputs, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.models.columns import Columns
from dovetail.models.optimizers import Optimizer

#: Values of one place in all networks: (K, I, O), or one (I, O) for each where I differs.
_Stacked = Tensor | list[Tensor]
#: A layer's weights and (K, 1, O) biases, and where their gradients go.
_Layer = tuple[_Stacked, Tensor, _Stacked, Tensor]

#: Floats; each network's tensor starts at a multiple, as one that torch made alone would.
_ALIGNED = 16


class StackedParameters:
    """K lists of parameters of like networks, in one piece of memory.

    The parameters themselves become views of it, so that a step for all is seen at each network,
    and whatever a network is given is seen here, without a copy. ``nn.Linear``'s (O, I) weights
    are kept as (I, O): fewer products are transposed.

    Attributes:
        flat: all values, with ``flat.grad``: what an optimizer steps.
    """

    def __init__(self, parameters: Sequence[Sequence[nn.Parameter]]) -> None:
        self.parameters = [list(weights) for weights in parameters]
        self._slots: list[list[tuple[int, int, int]]] = []  # place -> network -> start, I, O
        end = 0
        for same_place in zip(*self.parameters, strict=True):
            slots = []
            for parameter in same_place:
                inputs = 1 if parameter.dim() == 1 else parameter.shape[1]
                slots.append((end, inputs, parameter.shape[0]))
                end += -(-parameter.numel() // _ALIGNED) * _ALIGNED
            self._slots.append(slots)
        self.flat = nn.Parameter(torch.zeros(end))
        self.flat.grad = torch.zeros(end)
        self._views = self.shaped(self.flat.detach())
        for weights, views in zip(self.parameters, self._views, strict=True):
            for parameter, view in zip(weights, views, strict=True):
                view.copy_(parameter.detach())
                parameter.data = view
                parameter.grad = None
        self.values = self._stacked(self.flat.detach())
        self.gradients = self._stacked(self.flat.grad)

    def shaped(self, flat: Tensor) -> list[list[Tensor]]:
        """Network -> views of ``flat`` shaped like its parameters."""
        shaped: list[list[Tensor]] = [[] for _ in self.parameters]
        for index, slots in enumerate(self._slots):
            for k, (start, inputs, outputs) in enumerate(slots):
                part = flat[start : start + inputs * outputs]
                is_bias = self.parameters[k][index].dim() == 1
                shaped[k].append(part if is_bias else part.view(inputs, outputs).T)
        return shaped

    def _stacked(self, flat: Tensor) -> list[_Stacked]:
        """Place -> views of ``flat`` for products over all networks."""
        stacked: list[_Stacked] = []
        for slots in self._slots:
            (start, inputs, outputs), *_ = slots
            if any(slot[1:] != (inputs, outputs) for slot in slots):
                stacked.append([flat[s : s + i * o].view(i, o) for s, i, o in slots])
            else:
                apart = slots[1][0] - start if len(slots) > 1 else inputs * outputs
                size = (len(slots), inputs, outputs)
                stacked.append(
                    flat.as_strided(size, (apart, outputs, 1), flat.storage_offset() + start)
                )
        return stacked

    def pack(self, tensors: Sequence[Sequence[Tensor]]) -> Tensor:
        """Vector of K lists of tensors shaped like the parameters."""
        flat = torch.zeros_like(self.flat)
        for weights, views in zip(tensors, self.shaped(flat), strict=True):
            for tensor, view in zip(weights, views, strict=True):
                view.copy_(tensor.detach())
        return flat

    def holds(self) -> bool:
        """Whether the parameters still are views of this memory."""
        return all(
            parameter.data_ptr() == view.data_ptr()
            for weights, views in zip(self.parameters, self._views, strict=True)
            for parameter, view in zip(weights, views, strict=True)
        )

    def release(self) -> None:
        """Give every parameter that is still a view memory of its own again."""
        for weights, views in zip(self.parameters, self._views, strict=True):
            for parameter, view in zip(weights, views, strict=True):
                if parameter.data_ptr() == view.data_ptr():
                    parameter.data = view.clone(memory_format=torch.contiguous_format)
                    parameter.grad = None


class StackedOptimizer:
    """Optimizer of ``flat`` whose step is that of the networks' own optimizers.

    Args:
        stacked: parameters of all networks.
        build: makes an optimizer of them, of the same kind and settings as the own ones.
        optimizers: each network's optimizer, all after the same number of steps. Their states
            become views of the stacked one's too.
    """

    def __init__(
        self,
        stacked: StackedParameters,
        build: Callable[[list[nn.Parameter]], Optimizer],
        optimizers: Sequence[Optimizer],
    ) -> None:
        self.stacked = stacked
        self.optimizers = list(optimizers)
        self.optimizer = build([stacked.flat])
        self._shared: list[tuple[Optimizer, nn.Parameter, str, Tensor]] = []
        state = self.optimizer.state[stacked.flat]
        for key, value in self.optimizers[0].state.get(stacked.parameters[0][0], {}).items():
            if isinstance(value, Tensor) and value.dim():
                state[key] = stacked.pack(
                    [
                        [each.state[parameter][key] for parameter in held]
                        for each, held in zip(self.optimizers, stacked.parameters, strict=True)
                    ]
                )
            else:  # Adam's number of steps
                state[key] = value.clone() if isinstance(value, Tensor) else value
        self.share()

    def share(self) -> None:
        """Let the own optimizers stand where this one is now."""
        state = self.optimizer.state[self.stacked.flat]
        if not self._shared:
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim():
                    shaped = self.stacked.shaped(value)
                    for each, held, views in zip(
                        self.optimizers, self.stacked.parameters, shaped, strict=True
                    ):
                        for parameter, view in zip(held, views, strict=True):
                            each.state[parameter][key] = view
                            self._shared.append((each, parameter, key, view))
        for key, value in state.items():
            if not isinstance(value, Tensor) or not value.dim():
                for each, held in zip(self.optimizers, self.stacked.parameters, strict=True):
                    for parameter in held:
                        copied = value.clone() if isinstance(value, Tensor) else value
                        each.state[parameter][key] = copied

    def holds(self) -> bool:
        """Whether the own optimizers' states still are views of this one's."""
        return self.stacked.holds() and all(
            optimizer.state[parameter].get(key) is view
            for optimizer, parameter, key, view in self._shared
        )

    def release(self) -> None:
        """Give every state that is still a view memory of its own again."""
        for optimizer, parameter, key, view in self._shared:
            if optimizer.state[parameter].get(key) is view:
                optimizer.state[parameter][key] = view.clone(memory_format=torch.contiguous_format)


class StackedColumns:
    """K networks of like widths, with the gradients of their own losses.

    Args:
        networks: whose weights become views of the stacked ones.
        batch_size: the most rows of a batch.
    """

    def __init__(self, networks: Sequence[Columns], batch_size: int) -> None:
        self.networks = list(networks)
        first = self.networks[0]
        self.join = first.join
        self.common = StackedParameters([list(n.common.parameters()) for n in networks])
        self.unique: StackedParameters | None = None
        self.mu = 0.0
        if first.unique is not None:
            own = [network.unique.trained() for network in networks if network.unique is not None]
            self.unique = StackedParameters(own)
            self.mu = first.unique.mu
        self._num_layers = len(first.common.layers)
        sizes = [layer[1].shape[2] for layer in _layers(self.common, self._num_layers)]
        num = len(self.networks)

        def buffers(width_of: Callable[[int], int]) -> list[Tensor]:
            return [torch.empty(num, batch_size, width_of(i)) for i in range(len(sizes))]

        self._z_common = buffers(lambda i: sizes[i])
        self._z_unique = buffers(lambda i: sizes[i])
        self._back = buffers(lambda i: sizes[i])

    def common_gradient(self, x: Tensor, labels_KB: Tensor, weights_KB: Tensor) -> Tensor:
        """(K,) losses of the common columns; their gradients are in ``common.flat.grad``.

        Args:
            x: (K, B, I) common features.
            labels_KB: class indices, any class where there is no row.
            weights_KB: of each row in its network's mean, 0 where there is no row.
        """
        z = self._common_outputs(x)
        losses_K, gradient = _cross_entropy(z[-1], labels_KB, weights_KB)
        self._backward(_layers(self.common, self._num_layers), [x, *z[:-1]], gradient)
        return losses_K

    def joint_gradient(
        self, x: Tensor, x_unique: Tensor, labels_KB: Tensor, weights_KB: Tensor
    ) -> Tensor:
        """(K,) losses of the whole networks; the own columns' gradients are in ``unique``."""
        assert self.unique is not None
        common = self._common_outputs(x)
        if self.join == "input":
            x_unique = torch.cat([common[-1].softmax(dim=-1), x_unique], dim=-1)
        num_rows = x.shape[1]
        z = [buffer[:, :num_rows] for buffer in self._z_unique]
        layers = _layers(self.unique, self._num_layers)
        laterals = list(
            zip(
                map(_tensor, self.unique.values[2 * self._num_layers :]),
                map(_tensor, self.unique.gradients[2 * self._num_layers :]),
                strict=True,
            )
        )
        below = x_unique
        for i, (weight, bias, *_) in enumerate(layers):
            _linear(below, weight, bias, z[i])
            if i and self.mu:
                z[i].baddbmm_(common[i - 1], laterals[i - 1][0], alpha=self.mu)  # Eq. (6)
            if i < self._num_layers - 1:
                z[i].relu_()
            below = z[i]
        logits = z[-1] if self.join == "input" else common[-1] + z[-1]  # Eq. (7)
        losses_K, gradient = _cross_entropy(logits, labels_KB, weights_KB)
        above = self._backward(layers, [x_unique, *z[:-1]], gradient)
        if self.mu:
            for i, (_, lateral_gradient) in enumerate(laterals):
                torch.bmm(common[i].mT, above[i + 1], out=lateral_gradient)
                lateral_gradient *= self.mu
        return losses_K

    def _common_outputs(self, x: Tensor) -> list[Tensor]:
        z = [buffer[:, : x.shape[1]] for buffer in self._z_common]
        for i, (weight, bias, *_) in enumerate(_layers(self.common, self._num_layers)):
            _linear(x, weight, bias, z[i])
            if i < self._num_layers - 1:
                z[i].relu_()
            x = z[i]
        return z

    def _backward(
        self, layers: Sequence[_Layer], inputs: Sequence[Tensor], gradient: Tensor
    ) -> list[Tensor]:
        """Each layer's gradient by its output; those by its weights go where they belong."""
        above = [gradient]
        for i in reversed(range(len(layers))):
            weight, _, weight_gradient, bias_gradient = layers[i]
            _weight_gradient(inputs[i], gradient, weight_gradient)
            torch.sum(gradient, 1, keepdim=True, out=bias_gradient)
            if i:
                back = self._back[i - 1][:, : gradient.shape[1]]
                torch.bmm(gradient, _tensor(weight).mT, out=back)
                torch.ops.aten.threshold_backward.grad_input(back, inputs[i], 0, grad_input=back)
                gradient = back
                above.append(gradient)
        return above[::-1]


def _linear(x: Tensor, weight: _Stacked, bias: Tensor, out: Tensor) -> None:
    """x W + b of each network; features beyond those that it has weights for are not read."""
    if isinstance(weight, Tensor):
        torch.baddbmm(bias, x, weight, out=out)
        return
    for k, layer in enumerate(weight):
        torch.addmm(bias[k], x[k, :, : len(layer)], layer, out=out[k])


def _weight_gradient(x: Tensor, gradient: Tensor, out: _Stacked) -> None:
    if isinstance(out, Tensor):
        torch.bmm(x.mT, gradient, out=out)
        return
    for k, part in enumerate(out):
        torch.mm(x[k, :, : len(part)].T, gradient[k], out=part)


def _tensor(stacked: _Stacked) -> Tensor:
    """The stacked tensor of one layer that is alike in all networks."""
    assert isinstance(stacked, Tensor)
    return stacked


def _layers(parameters: StackedParameters, num_layers: int) -> list[_Layer]:
    """Weights and biases alternate, first layer to last; laterals come after them."""
    values, gradients = parameters.values, parameters.gradients
    return [
        (values[2 * i], _tensor(values[2 * i + 1]), gradients[2 * i], _tensor(gradients[2 * i + 1]))
        for i in range(num_layers)
    ]


def _cross_entropy(logits: Tensor, labels_KB: Tensor, weights_KB: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) weighted losses, and (K, B, C) their gradient by the logits."""
    log_probabilities = F.log_softmax(logits, dim=-1)
    indices = labels_KB[..., None]
    losses_K = -(log_probabilities.gather(-1, indices)[..., 0] * weights_KB).sum(dim=1)
    gradient = log_probabilities.exp_()
    gradient.scatter_add_(-1, indices, gradient.new_full(indices.shape, -1.0))
    return losses_K, gradient.mul_(weights_KB[..., None])
