"""How many numbers of each row a partner of APFed-S has given, over all runs of a driver."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
        run: that it answers in.
    """

    def __init__(self, path: Path, ids_N: np.ndarray, run: str = "") -> None:
        self._path = path
        self._rows_N = ids_N
        self._run = run

    @cached_property
    def _digests(self) -> np.ndarray:
        return np.array([_digest(each) for each in self._rows_N.tolist()], dtype=np.int64)

    def most(self, rows_R: Tensor) -> int:
        """The most numbers that were given of any of these rows.

        Raises:
            ConfigError: the count cannot be read.
        """
        known = self._read()[0]
        digests = self._digests[rows_R.numpy()]
        return max((known.get(each, 0) for each in digests.tolist()), default=0)

    def is_new(self, run: str, rows_R: Tensor, contents_R: Sequence[bytes]) -> Tensor:
        """(R,) bool: rows whose numbers of this run, by these columns, were not given before.

        Raises:
            ConfigError: the count cannot be read.
        """
        given = self._read()[1]
        return torch.tensor([each not in given for each in self._of(run, rows_R, contents_R)])

    def add(
        self, rows_R: Tensor, numbers: int, contents_R: Sequence[bytes], *, run: str | None = None
    ) -> None:
        """Count an answer, before it leaves.

        Args:
            rows_R: whose.
            numbers: of each.
            contents_R: what tells a row's columns from others.
            run: whose numbers; None: the one that it answers in.

        Raises:
            ConfigError: it cannot be written down, so the answer is not given.
        """
        known, given = self._read()
        for each in self._digests[rows_R.numpy()].tolist():
            known[each] = known.get(each, 0) + numbers
        given.update(self._of(self._run if run is None else run, rows_R, contents_R))
        state = {
            "ids": torch.tensor(list(known)),
            "counts": torch.tensor(list(known.values())),
            "given": torch.tensor(sorted(given), dtype=torch.int64),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_state(self._path, state, {})
        except (CheckpointError, OSError):
            raise ConfigError(
                "cannot write down how many numbers it has given, and gives none"
            ) from None

    def _of(self, run: str, rows_R: Tensor, contents_R: Sequence[bytes]) -> list[int]:
        ids = self._digests[rows_R.numpy()].tolist()
        return [_digest((run, *each)) for each in zip(ids, contents_R, strict=True)]

    def _read(self) -> tuple[dict[int, int], set[int]]:
        """Row -> how many, and which numbers of which run."""
        if not self._path.exists():
            return {}, set()
        try:
            state = load_state(self._path)[0]
            counts = dict(zip(state["ids"].tolist(), state["counts"].tolist(), strict=True))
            return counts, set(state["given"].tolist())
        except (CheckpointError, KeyError, ValueError, AttributeError):
            raise ConfigError(
                "cannot read how many numbers it has given before, and gives none; its owner may "
                "put the file back"
            ) from None


def _digest(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
