"""A party's part of an alignment, kept at its site until it trains.

One safetensors file. Tensors: ``rows_S``, and at the initiator ``has.PARTNER`` for each partner.
Metadata: party, run, ids_sha256, and at a responder the driver it was aligned with.

The run is the alignment's own name: all of its parts have the same one. Over a network it is the
run id of the alignment's messages, and whatever is trained on it has a run id that starts with it
(``alignment_of``). So a party whose part is of another alignment notices before it answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from dovetail.alignment.psi import ELSEWHERE
from dovetail.data import Alignment
from dovetail.errors import AlignmentError

#: Follows the alignment in the id of a prediction.
_PREDICT = "predict"

#: In that of a run that tries settings, between its variant and its number.
_TRIAL = "-trial-"

#: What a partner's mask is called in the file.
_HAS = "has."


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of one party by shared sample, and what they were made for.

    Attributes:
        party: whose rows they are.
        run: the alignment's own name; parts of one alignment have the same.
        rows_S: (S,) int64, -1 where the party lacks the sample.
        ids_sha256: of the party's ids in the order of its table then.
        driver: with whom, where the party answered a driver elsewhere; else empty.
        partners: partner -> (S,) bool, which samples it has; of an initiator whose partners keep
            their rows to themselves.
    """

    party: str
    run: str
    rows_S: Tensor
    ids_sha256: str
    driver: str = ""
    partners: Mapping[str, Tensor] = field(default_factory=dict)

    def alignment(self) -> Alignment:
        """Knowledge of this party alone: its rows, and who else has which sample."""
        elsewhere = {
            name: torch.where(has_S, ELSEWHERE, -1) for name, has_S in self.partners.items()
        }
        return Alignment({self.party: self.rows_S, **elsewhere})


def training_run(alignment: str, *parts: str) -> str:
    """The id of a run that trains on this alignment.

    >>> training_run("5f0c", "apfed", "seed-0")
    '5f0c/apfed/seed-0'
    """
    return "/".join((alignment, *parts))


def trial_variant(variant: str, number: int) -> str:
    """Name of a variant in the id of a run that tries settings."""
    return f"{variant}{_TRIAL}{number}"


def is_trial(run: str) -> bool:
    """Whether this is the id of a run that tries settings, whose model nobody keeps.

    >>> is_trial(training_run("5f0c", trial_variant("apfed", 3), "seed-0"))
    True
    """
    return any(_TRIAL in part for part in run.split("/"))


def predicting_run(alignment: str) -> str:
    """The id of an alignment that is made for one prediction, and of that prediction.

    Nobody stores such an alignment, so it takes no other's place.

    >>> predicting_run("77a1")
    '77a1/predict'
    """
    return training_run(alignment, _PREDICT)


def is_predicting(run: str) -> bool:
    """Whether this is the id of a prediction."""
    return run.partition("/")[2] == _PREDICT


def alignment_of(run: str) -> str:
    """The alignment that a run with this id trains on; of an alignment itself, its own name.

    >>> alignment_of("5f0c/apfed/seed-0")
    '5f0c'
    """
    return run.partition("/")[0]


def digest(ids: np.ndarray) -> str:
    """A fingerprint of ids and their order; stays at its site."""
    ids = np.ascontiguousarray(ids)
    return hashlib.sha256(ids.dtype.str.encode() + ids.tobytes()).hexdigest()


def save_rows(path: Path, stored: StoredRows) -> None:
    """Write a party's part, whole or not at all.

    Raises:
        AlignmentError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    metadata = {
        "party": stored.party,
        "run": stored.run,
        "ids_sha256": stored.ids_sha256,
        "driver": stored.driver,
    }
    tensors = {f"{_HAS}{name}": has_S for name, has_S in stored.partners.items()}
    try:
        safetensors.torch.save_file({"rows_S": stored.rows_S, **tensors}, fresh, metadata=metadata)
        fresh.replace(path)
    except (safetensors.SafetensorError, OSError) as error:
        fresh.unlink(missing_ok=True)
        raise AlignmentError(
            f"party {stored.party!r}: cannot write its part of the alignment, {path}: {error}; "
            "allow writing there, or free the disk, and align again"
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
            partners = {
                name.removeprefix(_HAS): file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118  # it is no mapping
                if name.startswith(_HAS)
            }
    except FileNotFoundError:
        raise AlignmentError(
            f"party {party!r} is not aligned yet: there is no {path}; align first"
        ) from None
    except (safetensors.SafetensorError, OSError, KeyError) as error:
        raise _spoilt(path, error) from None
    if rows_S.ndim != 1 or rows_S.dtype != torch.int64:
        raise _spoilt(path, f"rows_S is {rows_S.dtype} {tuple(rows_S.shape)}")
    for name, has_S in partners.items():
        if has_S.shape != rows_S.shape or has_S.dtype != torch.bool:
            raise _spoilt(path, f"{_HAS}{name} is {has_S.dtype} {tuple(has_S.shape)}")
    stored = StoredRows(
        metadata.get("party", ""),
        metadata.get("run", ""),
        rows_S,
        metadata.get("ids_sha256", ""),
        metadata.get("driver", ""),
        partners,
    )
    if stored.party != party:
        raise AlignmentError(
            f"{path} is the alignment of party {stored.party!r}, not {party!r}; "
            "align again (dovetail align)"
        )
    if stored.ids_sha256 != digest(ids):
        raise AlignmentError(
            f"party {party!r}: its table has changed since it was aligned ({path}); "
            "align again (dovetail align; from Python dovetail.align)"
        )
    if len(rows_S) and not -1 <= int(rows_S.min()) <= int(rows_S.max()) < len(ids):
        raise _spoilt(path, f"its rows lie outside -1..{len(ids) - 1}")
    return stored


def _spoilt(path: Path, why: object) -> AlignmentError:
    return AlignmentError(f"{path} is no alignment ({why}); align again (dovetail align)")
