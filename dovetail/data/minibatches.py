"""Batches of rows, shuffled again in each pass; resumes at the exact next batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.stored import put_tensor_away, zeros
from dovetail.errors import ConfigError

#: Rows that are shuffled among themselves.
BLOCK = 1 << 20


def _shuffled(num_rows: int, rng: torch.Generator, party: str) -> Tensor:
    """(N,) int64 a permutation."""
    if num_rows <= BLOCK:
        return torch.randperm(num_rows, generator=rng)
    order = torch.from_numpy(zeros((num_rows,), np.int64, party))
    filled = 0
    for block in torch.randperm(-(-num_rows // BLOCK), generator=rng).tolist():
        start = block * BLOCK
        size = min(BLOCK, num_rows - start)
        part = order[filled : filled + size]
        torch.randperm(size, generator=rng, out=part)
        part += start
        filled += size
    return order


class Minibatches:
    """An endless iterator of (B,) int64 batches of ``rows``.

    Each pass is a fresh permutation drawn from ``rng``; the last batch of a pass may be smaller. Of
    more rows than ``BLOCK``, blocks of so many come in a drawn order, each in a drawn order of its
    own, so that batches of a table that lies on disk are read from one part of it after another.

    Args:
        rows: (N,) int64 rows to draw from.
        batch_size: rows per batch.
        rng: where the permutations come from; drawn from once per pass, at its first batch.
        least: a last batch of fewer rows joins the one before.
        party: whose rows they are: in its folder large orders lie.

    Raises:
        ConfigError: no rows, or a batch size below 1.

    >>> batches = Minibatches(torch.arange(5), 2, torch.Generator().manual_seed(0))
    >>> [len(next(batches)) for _ in range(batches.steps_per_pass)]
    [2, 2, 1]
    """

    def __init__(
        self,
        rows: Tensor,
        batch_size: int,
        rng: torch.Generator,
        *,
        least: int = 1,
        party: str = "",
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        if not len(rows):
            raise ConfigError("no rows to draw minibatches from: give at least one training row")
        self._rows = put_tensor_away(rows.to(torch.int64), party)
        self._party = party
        self._batch_size = batch_size
        self._rng = rng
        self._least = least
        # Empty before the first pass, so that making an iterator does not draw from rng.
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0

    @property
    def steps_per_pass(self) -> int:
        """Batches in one pass over the rows."""
        whole, rest = divmod(len(self._rows), self._batch_size)
        return max(1, whole + (rest >= self._least if rest else 0))

    def __iter__(self) -> Minibatches:
        return self

    def __next__(self) -> Tensor:
        if self._position >= len(self._order):
            self._order = _shuffled(len(self._rows), self._rng, self._party)
            self._position = 0
        start, self._position = self._position, self._position + self._batch_size
        if len(self._order) - self._position < self._least:
            self._position = len(self._order)
        return self._rows[self._order[start : self._position]]

    def state(self) -> dict[str, Any]:
        """State that ``restore`` needs: the generator's state, this pass's permutation, the
        position."""
        return {
            "rng": self._rng.get_state(),
            "order": self._order.clone(),
            "position": self._position,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken, over the same rows.

        Raises:
            ConfigError: the state was taken over another number of rows.
        """
        order = state["order"]
        if len(order) not in (0, len(self._rows)):
            raise ConfigError(
                f"the saved minibatches went over {len(order)} rows, there are "
                f"{len(self._rows)} now; resume with the same data or start anew"
            )
        self._rng.set_state(state["rng"])
        self._order = put_tensor_away(order.clone(), self._party)
        self._position = int(state["position"])
