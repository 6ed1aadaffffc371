"""Networks' weights as vectors: what is sent, averaged and matched.

Letters: P parameters, Q numbers that layers keep, n both of an extractor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.models.blocks import BlocksNetwork
from dovetail.models.learners.encoding import PiecewiseLinear


def vector_of(network: nn.Module) -> Tensor:
    """(P,) copies of a network's parameters, first layer to last."""
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def write_vector(vector_P: Tensor, network: nn.Module) -> None:
    """The inverse of ``vector_of``, into parameters that are there."""
    parameters = list(network.parameters())
    parts = vector_P.split([parameter.numel() for parameter in parameters])
    with torch.no_grad():
        for part, parameter in zip(parts, parameters, strict=True):
            parameter.copy_(part.view_as(parameter))


def statistics_of(network: nn.Module) -> Tensor:
    """(Q,) copies of what its layers keep of what they saw, such as running means."""
    parts = [buffer.detach().flatten() for *_, buffer in float_buffers(network)]
    return torch.cat(parts) if parts else torch.empty(0)


def write_statistics(statistics_Q: Tensor, network: nn.Module) -> None:
    """The inverse of ``statistics_of``."""
    start = 0
    for *_, buffer in float_buffers(network):
        stop = start + buffer.numel()
        buffer.copy_(statistics_Q[start:stop].view_as(buffer))
        start = stop


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


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, then running statistics; not the counter of batches."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return [*(parameter.detach() for parameter in module.parameters()), *buffers]


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Tensors that travel of a network, or of several one after the other."""
    modules = list(module) if isinstance(module, nn.ModuleList) else [module]
    return [tensor for each in modules for tensor in _tensors(each)]


def extractors_vector(module: nn.Module) -> Tensor:
    """(n,) a copy of an extractor's weights, or of several one after the other."""
    tensors = tensors_of(module)
    if not tensors:
        return torch.empty(0)
    return torch.cat([tensor.flatten() for tensor in tensors]).cpu()


def load_extractors(module: nn.Module, vector: Tensor) -> None:
    """The inverse of ``extractors_vector``, into modules that are there."""
    start = 0
    for tensor in tensors_of(module):
        part = vector[start : start + tensor.numel()]
        tensor.copy_(part.view(tensor.shape))
        start += tensor.numel()


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
