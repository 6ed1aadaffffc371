"""Networks' weights as vectors: what is sent, averaged and matched.

Letters: P parameters, Q numbers that layers keep, n both of an extractor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.models.blocks import BlocksNetwork
from dovetail.models.learners.stacked import PiecewiseLinear


def vector_of(network: nn.Module) -> Tensor:
    """(P,) copies of a network's parameters, first layer to last."""
    return _flat(network.parameters())


def write_vector(vector_P: Tensor, network: nn.Module) -> None:
    """The inverse of ``vector_of``, into parameters that are there."""
    _write(vector_P, list(network.parameters()))


def statistics_of(network: nn.Module) -> Tensor:
    """(Q,) copies of what its layers keep of what they saw, such as running means."""
    return _flat(buffer for *_, buffer in float_buffers(network))


def write_statistics(statistics_Q: Tensor, network: nn.Module) -> None:
    """The inverse of ``statistics_of``."""
    _write(statistics_Q, [buffer for *_, buffer in float_buffers(network)])


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """A copy of tensors, one after the other."""
    parts = [tensor.detach().flatten() for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0)


def _write(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write a vector into tensors: the inverse."""
    parts = vector.split([tensor.numel() for tensor in tensors])
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def float_buffers(network: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Layer, name and value of what layers keep of what they saw."""
    return [
        (layer, name, buffer)
        for layer in network.modules()
        if not isinstance(layer, PiecewiseLinear)  # placed once, and the same in all replicas
        for name, buffer in layer.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]


# --- Extractors and classifiers, as HyFEM has them ---------------------------------------------


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Tensors that travel of a network, or of several one after the other: of each its parameters,
    then running statistics; not the counter of batches."""
    modules = list(module) if isinstance(module, nn.ModuleList) else [module]
    return [
        tensor
        for each in modules
        for tensor in (*each.parameters(), *each.buffers())
        if tensor.is_floating_point()
    ]


def extractors_vector(module: nn.Module) -> Tensor:
    """(n,) a copy of an extractor's weights, or of several one after the other."""
    return _flat(tensors_of(module)).cpu()


def load_extractors(module: nn.Module, vector: Tensor) -> None:
    """The inverse of ``extractors_vector``, into modules that are there."""
    _write(vector, tensors_of(module))


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.children() if isinstance(layer, nn.Linear)]


def layers_of(module: nn.Module) -> list[np.ndarray]:
    """A classifier's layers as (outputs, inputs + 1), the bias last."""
    return [
        torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach().cpu().numpy()
        for layer in _linears(module)
    ]


def classifier_vector(module: nn.Module) -> Tensor:
    """(n,) a copy of a classifier's layers, each as ``layers_of`` has it."""
    return torch.cat([torch.from_numpy(rows).flatten() for rows in layers_of(module)])


def load_classifier(module: nn.Module, vector: Tensor) -> None:
    """The inverse of ``classifier_vector``, into a classifier that is there."""
    start = 0
    for layer in _linears(module):
        outputs, inputs = layer.weight.shape
        rows = vector[start : start + outputs * (inputs + 1)].view(outputs, inputs + 1)
        layer.weight.detach().copy_(rows[:, :-1])
        layer.bias.detach().copy_(rows[:, -1])
        start += outputs * (inputs + 1)


def weights_of(network: BlocksNetwork) -> tuple[Tensor, Tensor]:
    """Copies of a network's extractors and of its classifier, as vectors."""
    return extractors_vector(network.extractors), classifier_vector(network.classifier)


def load_weights(network: BlocksNetwork, extractors: Tensor, classifier: Tensor) -> None:
    """The inverse of ``weights_of``, into a network that is there."""
    load_extractors(network.extractors, extractors)
    load_classifier(network.classifier, classifier)
