"""A network's weights as HyFEM sends, averages and matches them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, then running statistics; not the counter of batches."""
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    return [*(parameter.detach() for parameter in module.parameters()), *buffers]


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Of a network, or of several one after the other: what travels of it."""
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
    place = 0
    for tensor in tensors_of(module):
        part = vector[place : place + tensor.numel()]
        tensor.copy_(part.view(tensor.shape))
        place += tensor.numel()


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
    place = 0
    for layer in _linears(module):
        outputs, inputs = layer.weight.shape
        rows = vector[place : place + outputs * (inputs + 1)].view(outputs, inputs + 1)
        layer.weight.detach().copy_(rows[:, :-1])
        layer.bias.detach().copy_(rows[:, -1])
        place += outputs * (inputs + 1)
