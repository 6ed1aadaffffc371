"""Outputs of a network with the same bits for a row, whichever rows are computed beside it.

Libraries round a float32 product by how many rows there are and where a row stands, if there are
fewer rows or outputs than their kernels take at a time, and sums by whether a value fills a vector.
So rows are filled up to ``_ROWS`` and a product's outputs to ``_WIDTH``: seen to be enough on
processors with AVX2 and AVX-512 (``tests/models/test_rowwise.py``), not promised of a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dovetail.models.networks import network_input
from dovetail.models.threads import one_thread

_ROWS, _WIDTH = 32, 16


def rowwise(
    network: nn.Module, x: Tensor | Mapping[str, Tensor], *, batch_size: int, width: int
) -> Tensor:
    """(N, width) outputs without gradient; layers that keep statistics use them as they are.

    Args:
        network: (B, ...), or a dict block -> (B, ...), to (B, width).
        x: (N, ...), or block -> (N, ...); of pictures 0..255 or 0..1.
        batch_size: rows at a time.
        width: of a row's output.
    """
    blocks = x if isinstance(x, Mapping) else {"": x}
    parameter = next(network.parameters(), None)
    device = None if parameter is None else parameter.device
    num_rows = len(next(iter(blocks.values())))
    images = any(block.dim() > 2 for block in blocks.values())
    trained = [module for module in network.modules() if module.training]
    for module in trained:
        module.training = False
    parts = []
    with torch.inference_mode(), nullcontext() if images else one_thread(blas=False), _Rowwise():
        for start in range(0, num_rows, batch_size):
            batch = {
                name: _filled(network_input(block[start : start + batch_size], device))
                for name, block in blocks.items()
            }
            given = batch if isinstance(x, Mapping) else batch[""]
            parts.append(network(given)[: min(batch_size, num_rows - start)].cpu())
    for module in trained:
        module.training = True
    return torch.cat(parts) if parts else torch.empty(0, width)


def _filled(x: Tensor) -> Tensor:
    """Rows with copies of the last behind them, up to a multiple of ``_ROWS``."""
    lacking = -len(x) % _ROWS
    return torch.cat([x, x[-1:].expand(lacking, *x.shape[1:])]) if lacking else x


class _Rowwise(TorchFunctionMode):
    """Gives the second factor of a product as many outputs as a kernel takes at a time."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        make = _PRODUCTS.get(func, func)
        return make(*args, **kwargs) if kwargs else make(*args)


def _matmul(first: Tensor, second: Tensor) -> Tensor:
    lacking = -second.shape[-1] % _WIDTH
    if not lacking or second.dim() < 2:
        return torch.matmul(first, second)
    return torch.matmul(first, F.pad(second, (0, lacking)))[..., :-lacking].contiguous()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    lacking = -len(weight) % _WIDTH
    if not lacking:
        return F.linear(x, weight, bias)
    bias = None if bias is None else F.pad(bias, (0, lacking))
    return F.linear(x, F.pad(weight, (0, 0, 0, lacking)), bias)[..., :-lacking].contiguous()


_PRODUCTS: dict[Any, Any] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__), _matmul),
}
