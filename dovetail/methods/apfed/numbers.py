"""How many numbers of each row a partner of APFed-S has given, over all runs of a driver."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.network.quota import Count, Quota

_ADD = "INSERT INTO numbers VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET times ="
_GIVEN = "INSERT OR IGNORE INTO given VALUES (?, ?)"
_THESE = "(SELECT value FROM json_each(?))"


@dataclass(frozen=True, eq=False)
class NumbersGiven:
    """The count, in the party's site.

    Attributes:
        quota: of the site.
        driver: who is given them; "" of all drivers together.
        ids_N: of its rows: a row is counted by its id, whatever its index becomes.
        run: that it answers in.
    """

    quota: Quota
    driver: str
    ids_N: np.ndarray
    run: str = ""

    @cached_property
    def _digests(self) -> np.ndarray:
        return np.array([_digest(each) for each in self.ids_N.tolist()], dtype=np.int64)

    def most(self, rows_R: Tensor) -> int:
        """The most numbers that were given of any of these rows.

        Raises:
            QuotaError: the count cannot be read.
        """
        ((most,),) = self.quota.read(
            f"SELECT ifnull(max(times), 0) FROM numbers WHERE driver = ? AND id IN {_THESE}",
            *(self.driver, json.dumps(self._ids(rows_R))),
        )
        return int(most)

    def is_new(self, run: str, rows_R: Tensor, contents_R: Sequence[bytes]) -> Tensor:
        """(R,) bool: rows whose numbers of this run, by these columns, were not given before.

        Raises:
            QuotaError: the count cannot be read.
        """
        asked = self._of(run, rows_R, contents_R)
        found = self.quota.read(
            f"SELECT number FROM given WHERE driver = ? AND number IN {_THESE}",
            *(self.driver, json.dumps(asked)),
        )
        given = {number for (number,) in found}
        return torch.tensor([each not in given for each in asked])

    def add(
        self,
        rows_R: Tensor,
        numbers: int,
        contents_R: Sequence[bytes],
        *,
        check: Callable[[], None] = lambda: None,
        run: str | None = None,
    ) -> None:
        """Count an answer, before it is computed; given back where that fails (``Quota.work``).

        Args:
            rows_R: whose.
            numbers: of each.
            contents_R: what distinguishes a row's columns from others.
            check: raises where these are too many; nobody else is given any meanwhile.
            run: whose numbers; None: the one that it answers in.

        Raises:
            QuotaError: it cannot be written down, so the answer is not given.
        """
        run = self.run if run is None else run

        def decide() -> Count:
            check()
            new = self.is_new(run, rows_R, contents_R).tolist()
            given = [
                (self.driver, each)
                for each, is_new in zip(self._of(run, rows_R, contents_R), new, strict=True)
                if is_new
            ]
            counted = [(self.driver, id, numbers) for id in self._ids(rows_R)]
            return Count(
                [(f"{_ADD} times + excluded.times", counted), (_GIVEN, given)],
                [
                    (f"{_ADD} times - excluded.times", counted),
                    ("DELETE FROM given WHERE driver = ? AND number = ?", given),
                ],
            )

        self.quota.decide(decide, for_good=True)

    def _ids(self, rows_R: Tensor) -> list[int]:
        ids: list[int] = self._digests[rows_R.numpy()].tolist()
        return ids

    def _of(self, run: str, rows_R: Tensor, contents_R: Sequence[bytes]) -> list[int]:
        return [_digest((run, *each)) for each in zip(self._ids(rows_R), contents_R, strict=True)]


def _digest(value: Any) -> int:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
