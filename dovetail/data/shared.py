"""Rows of one party by shared sample."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dovetail.data.stored import put_tensor_away
from dovetail.errors import AlignmentError


@dataclass(frozen=True, eq=False)
class SharedRows:
    """A block that is asked for by sample, in the order the parties agreed on.

    Attributes:
        party: whose block it is, for errors.
        x: (N, ...) the block.
        rows_S: (S,) int64, the row of each shared sample, -1 where this party has none.
    """

    party: str
    x: Tensor
    rows_S: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_S", put_tensor_away(self.rows_S, self.party))
        if len(self.rows_S) and int(self.rows_S.max()) >= len(self.x):
            raise AlignmentError(
                f"party {self.party!r} has {len(self.x)} rows but its alignment names row "
                f"{int(self.rows_S.max())}; align again after changing the table"
            )

    def __getitem__(self, samples_B: Tensor) -> Tensor:
        """(B, ...) rows of these samples; raises as ``rows`` does."""
        return self.x[self.rows(samples_B)]

    def rows(self, samples_B: Tensor) -> Tensor:
        """(B,) which of its rows these samples are.

        Raises:
            AlignmentError: a sample outside the shared order, or that this party has no row of.
        """
        if len(samples_B) and not 0 <= int(samples_B.min()) <= int(samples_B.max()) < len(
            self.rows_S
        ):
            raise AlignmentError(
                f"party {self.party!r} was asked for samples outside the {len(self.rows_S)} it "
                "agreed on; align again"
            )
        rows_B = self.rows_S[samples_B]
        num_absent = int((rows_B < 0).sum())
        if num_absent:
            raise AlignmentError(
                f"party {self.party!r} was asked for {num_absent} samples it does not have; "
                "align again"
            )
        return rows_B
