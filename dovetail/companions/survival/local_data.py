"""Data of a party for curves of all parties: times and events, and what its file lets leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np

from dovetail.alignment.times import offered_ends
from dovetail.companions.survival.section import MemberSection
from dovetail.data import Survival, Table
from dovetail.errors import PartyError

#: Values of a column that names groups.
MOST_GROUPS = 8


@dataclass(frozen=True, eq=False)
class Times:
    """A party's rows that have a time.

    Attributes:
        name: the party's.
        signed_N: times, below zero of rows that were censored.
        table: their columns.
        section: what its file says.
        min_rows: of a group.
        label: what its times are called.
    """

    task: ClassVar[Survival] = Survival((), ())
    name: str
    signed_N: np.ndarray
    table: Table
    section: MemberSection
    min_rows: int
    label: str

    def ends(self) -> np.ndarray:
        """(Q,) where intervals of ``min_events`` of its events would end.

        Raises:
            PartyError: it has fewer events.
        """
        if self.section.times:
            raise PartyError(self.name, f"counts to times of its own file only; {self._times}")
        ends = offered_ends(self.signed_N, self.section.min_events)
        if not len(ends):
            raise PartyError(
                self.name,
                f"has {self._events} events, and tells of {max(1, self.section.min_events)} or "
                "more ([survival] min_events of its file); leave it out",
            )
        return ends

    @property
    def _times(self) -> str:
        ends = ", ".join(f"{each:g}" for each in self.section.times)
        return f"give times among {ends} in [survival] of the run"

    @property
    def _events(self) -> int:
        return int((~np.signbit(self.signed_N)).sum())

    def check(self, times_K: np.ndarray, *, secure: bool) -> None:
        """Refuse intervals that are none or too fine for its events, and counts in the clear.

        Raises:
            PartyError: what was asked, and what it allows.
        """
        self.check_clear(secure=secure)
        if not (len(times_K) and (np.diff(times_K, prepend=0) > 0).all()):
            raise PartyError(self.name, "was given times of intervals that do not rise from 0 on")
        if self.section.times and not np.isin(times_K, self.section.times).all():
            raise PartyError(self.name, f"counts to times of its own file only; {self._times}")
        least, events = self.section.min_events, self._events
        most = len(times_K) if not least else events // least
        if len(times_K) > most:
            raise PartyError(
                self.name,
                f"has {events} events, and counts in at most {most} intervals ([survival] "
                f"min_events = {least} of its file), not in {len(times_K)}; give fewer times",
            )

    def check_clear(self, *, secure: bool) -> None:
        """Refuse counts in the clear, unless its own file allows them.

        Raises:
            PartyError: it counts in secret sums only.
        """
        if self.section.secure and not secure:
            raise PartyError(
                self.name,
                "has its counts summed in secret only; give secure = true in the run, or "
                "secure = false in [survival] of its own file",
            )

    def groups(self, column: str) -> tuple[str, ...]:
        """The values of this column, or "all" where it is "".

        Raises:
            PartyError: no such column, too many values, or fewer rows of one than its policy
                answers about.
        """
        names = self._names(column)
        present, sizes = np.unique(names[names != ""].astype(str), return_counts=True)
        if not 0 < len(present) <= MOST_GROUPS:
            raise PartyError(
                self.name,
                f"has {len(present)} different values in {column!r}; a group is one of at most "
                f"{MOST_GROUPS}",
            )
        if sizes.min() < self.min_rows:
            of_group = f" of a value of {column}" if column else ""  # neither which nor how many
            raise PartyError(
                self.name,
                f"has fewer rows{of_group} with a time than the {self.min_rows} that its policy "
                "answers about (policy.min_rows); leave it out",
            )
        return tuple(present.tolist())

    def indices(self, column: str, groups: Sequence[str]) -> np.ndarray:
        """(N,) index of each row's group; -1 of rows without a value.

        Raises:
            PartyError: as of ``groups``; or a group that is not named.
        """
        if not set(self.groups(column)) <= set(groups):
            raise PartyError(self.name, "has a group that it was not asked for")
        names = self._names(column)
        found = np.full(len(names), -1)
        for index, name in enumerate(groups):
            found[names == name] = index
        return found

    def numbers(self, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(N,) times as ``signed_N`` and (N, F) columns, of rows that have a value of each.

        Raises:
            PartyError: a column that it lacks or that is no number, or too few rows.
        """
        parts = []
        for name in columns:
            self._check_allowed(name)
            if name not in self.table.names or (column := self.table.column(name)).is_text:
                raise PartyError(
                    self.name,
                    f"has no column {name!r} of numbers; give a category as columns of 0 and 1",
                )
            parts.append(np.where(column.missing, np.nan, column.values.astype(np.float64)))
        x_NF = np.stack(parts, axis=1)
        whole = np.isfinite(x_NF).all(axis=1)
        if whole.sum() < self.min_rows:
            raise PartyError(
                self.name,
                f"has fewer rows with a value of each column than the {self.min_rows} that its "
                "policy answers about (policy.min_rows); leave it out",
            )
        return self.signed_N[whole], x_NF[whole]

    def _check_allowed(self, column: str) -> None:
        if not any(fnmatchcase(column, each) for each in self.section.columns):
            raise PartyError(
                self.name,
                f"does not let runs ask for column {column!r} ([survival] columns of its file: "
                f"{', '.join(self.section.columns) or 'none'})",
            )

    def _names(self, column: str) -> np.ndarray:
        """(N,) text; "" where it is missing."""
        if not column:
            return np.full(len(self.signed_N), "all", dtype=object)
        self._check_allowed(column)
        if column not in self.table.names:
            raise PartyError(self.name, f"has no column {column!r} to group by")
        values = self.table.column(column)
        texts = values.values if values.is_text else [f"{each:g}" for each in values.values]
        return np.where(values.missing, "", np.array(texts, dtype=object))
