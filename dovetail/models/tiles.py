"""Sums of losses whose matrix of rows against rows is too large to be made at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Rows of a tile. Of a batch of 4,096 a tile is 8 MB, which the allocator keeps from step to step;
#: matrices of 128 MB are given back and made anew, at more time in the kernel than of arithmetic.
TILE = 512


def in_tiles(loss: Callable[[int, int], Tensor], num_rows: int) -> Tensor:
    """The sum of ``loss(start, stop)`` over parts of the rows.

    Of one tile its graph is kept; of more each is computed again when gradients are asked for.
    """
    if num_rows <= 2 * TILE:
        return loss(0, num_rows)
    starts = range(0, num_rows, TILE)
    parts = [
        checkpoint(loss, start, min(start + TILE, num_rows), use_reentrant=False)
        for start in starts
    ]
    return torch.stack(parts).sum()
