"""A party's part of an alignment, kept at its home until it trains."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from dovetail.errors import AlignmentError


@dataclass(frozen=True, eq=False)
class StoredRows:
    """One party's rows by shared sample, and what they were made for.

    Attributes:
        party: whose rows they are.
        run: the alignment's own name; parts of one alignment have the same.
        rows_S: (S,) int64, -1 where the party lacks the sample.
        ids_sha256: of the party's ids in the order of its table then.
    """

    party: str
    run: str
    rows_S: Tensor
    ids_sha256: str


def digest(ids: np.ndarray) -> str:
    """A fingerprint of ids and their order; stays at home."""
    ids = np.ascontiguousarray(ids)
    return hashlib.sha256(ids.dtype.str.encode() + ids.tobytes()).hexdigest()


def save_rows(path: Path, stored: StoredRows) -> None:
    """Write a party's part, whole or not at all.

    Raises:
        AlignmentError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    metadata = {"party": stored.party, "run": stored.run, "ids_sha256": stored.ids_sha256}
    try:
        safetensors.torch.save_file({"rows_S": stored.rows_S}, fresh, metadata=metadata)
        fresh.replace(path)
    except (safetensors.SafetensorError, OSError) as error:
        fresh.unlink(missing_ok=True)
        raise AlignmentError(
            f"party {stored.party!r}: cannot write its part of the alignment, {path}: {error}"
        ) from None


def load_rows(path: Path, party: str, ids: np.ndarray) -> StoredRows:
    """A party's part, if its table is still the one that was aligned.

    Raises:
        AlignmentError: no file, one that cannot be read or is another party's, or a table that
            changed since.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            rows_S = file.get_tensor("rows_S")
    except FileNotFoundError:
        raise AlignmentError(f"party {party!r} is not aligned yet: there is no {path}") from None
    except (safetensors.SafetensorError, OSError, KeyError) as error:
        raise AlignmentError(
            f"{path} is no alignment ({error}); align again (dovetail align)"
        ) from None
    if rows_S.ndim != 1 or rows_S.dtype != torch.int64:
        raise AlignmentError(
            f"{path} is no alignment (rows_S is {rows_S.dtype} {tuple(rows_S.shape)}); "
            "align again (dovetail align)"
        )
    stored = StoredRows(
        metadata.get("party", ""),
        metadata.get("run", ""),
        rows_S,
        metadata.get("ids_sha256", ""),
    )
    if stored.party != party:
        raise AlignmentError(
            f"{path} is the alignment of party {stored.party!r}, not {party!r}; "
            "align again (dovetail align)"
        )
    if stored.ids_sha256 != digest(ids):
        raise AlignmentError(
            f"party {party!r}: its table has changed since it was aligned ({path}); "
            "align again (dovetail align)"
        )
    if len(rows_S) and not -1 <= int(rows_S.min()) <= int(rows_S.max()) < len(ids):
        raise AlignmentError(
            f"{path} is no alignment (its rows lie outside -1..{len(ids) - 1}); "
            "align again (dovetail align)"
        )
    return stored
