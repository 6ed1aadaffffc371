"""Shares of a table that is split: names, and shares of blocks and classes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import DataError


@dataclass(frozen=True)
class Share:
    """Share of one party in the federation.

    Attributes:
        party: its name.
        blocks: names, globs, or places from 1.
        classes: places from 1 in the sorted classes.
        rows: share of each class's training rows, in (0, 1].
    """

    party: str
    blocks: tuple[str, ...]
    classes: tuple[int, ...]
    rows: float = 1.0


def names_of(given: int | Iterable[str], kind: str) -> tuple[str, ...]:
    """Names as given, or so many of a kind."""
    if isinstance(given, int):
        return tuple(f"{kind}-{index}" for index in range(1, given + 1))
    return tuple(given)


def read_assignment(path: str | Path) -> list[Share]:
    """The parties' shares in a CSV file; see the top of this file.

    Raises:
        DataError: a file that cannot be read as such a table.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(line for line in file if not line.startswith("#"))
            rows = list(lines)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read the assignment {path}: {error}") from None
    names = set(lines.fieldnames or ())
    if not {"party", "blocks", "classes"} <= names <= {"party", "blocks", "classes", "rows"}:
        raise DataError(
            f"{path}: expected the columns party, blocks, classes and perhaps rows, "
            f"got {list(lines.fieldnames or ())}"
        )
    shares = []
    for number, row in enumerate(rows, start=1):
        try:
            shares.append(
                Share(
                    row["party"].strip(),
                    tuple(row["blocks"].split()),
                    tuple(indices_of(row["classes"])),
                    float(row.get("rows") or 1.0),
                )
            )
        except (AttributeError, TypeError, ValueError):  # None: a row with too few cells
            raise DataError(
                f"{path}, row {number}: expected a party's name, blocks such as '1 3' or names, "
                f"classes such as '1-5', and a share of the rows, got {list(row.values())}"
            ) from None
    return shares


def indices_of(text: str) -> list[int]:
    """'1-3 5' -> [1, 2, 3, 5].

    Raises:
        ValueError: anything else.
    """
    indices: list[int] = []
    for token in text.split():
        token_match = re.fullmatch(r"(\d+)(?:-(\d+))?", token)
        if not token_match:
            raise ValueError(token)
        first, last = int(token_match[1]), int(token_match[2] or token_match[1])
        if last < first:
            raise ValueError(token)
        indices += range(first, last + 1)
    return indices
