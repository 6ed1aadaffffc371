"""How many numbers of each row a partner of APFed-S has given, over all runs of a driver."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import CheckpointError, ConfigError
from dovetail.network.checkpoint import load_state, save_state


class NumbersGiven:
    """The count, in a file of the party's site.

    Args:
        path: the file; made with the first answer.
        ids_N: of its rows: a row is counted by its id, whatever its index becomes.
    """

    def __init__(self, path: Path, ids_N: np.ndarray) -> None:
        self._path = path
        self._rows_N = ids_N

    @cached_property
    def _digests(self) -> np.ndarray:
        return np.array([_digest(each) for each in self._rows_N.tolist()], dtype=np.int64)

    def most(self, rows_R: Tensor) -> int:
        """Of any of these rows, the most that were given.

        Raises:
            ConfigError: the count cannot be read.
        """
        known = self._read()
        own = self._digests[rows_R.numpy()]
        return max((known.get(each, 0) for each in own.tolist()), default=0)

    def add(self, rows_R: Tensor, numbers: int) -> None:
        """Count an answer, before it leaves.

        Raises:
            ConfigError: it cannot be written down, so the answer is not given.
        """
        known = self._read()
        for each in self._digests[rows_R.numpy()].tolist():
            known[each] = known.get(each, 0) + numbers
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            ids, counts = torch.tensor(list(known)), torch.tensor(list(known.values()))
            save_state(self._path, {"ids": ids, "counts": counts}, {})
        except (CheckpointError, OSError):
            raise ConfigError(
                "cannot write down how many numbers it has given, and gives none"
            ) from None

    def _read(self) -> dict[int, int]:
        if not self._path.exists():
            return {}
        try:
            state = load_state(self._path)[0]
            return dict(zip(state["ids"].tolist(), state["counts"].tolist(), strict=True))
        except (CheckpointError, KeyError, ValueError, AttributeError):
            raise ConfigError(
                "cannot read how many numbers it has given before, and gives none; its owner may "
                "put the file back"
            ) from None


def _digest(id: Any) -> int:
    found = hashlib.blake2b(repr(id).encode(), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True)
