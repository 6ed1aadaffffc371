"""Task of the label owner: a class, a number, when an event comes, or several at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, StrictInt, StrictStr
from torch import Tensor

from dovetail.data.party import UNLABELLED, UNSEEN
from dovetail.data.saving import Number, Positive, Saved, of_kind
from dovetail.data.several import MultiLabel as MultiLabel
from dovetail.data.several import MultiTarget as MultiTarget
from dovetail.data.several import fit_several
from dovetail.data.survival import Survival as Survival
from dovetail.data.survival import fit_survival
from dovetail.data.tables import distinct
from dovetail.errors import DataError
from dovetail.settings.labels import Kind, Rate, TimeToEvent, composed

_Share = Annotated[float, Field(strict=True, gt=0, lt=1)]

#: Numbers of so many values or fewer may be classes.
_FEW_VALUES = 20


@dataclass(frozen=True)
class Classification(Saved):
    """Task of predicting one of ``classes``; a network has one output (logit) per class."""

    classes: Annotated[tuple[StrictStr | StrictInt, ...], Field(min_length=1)]
    kind: ClassVar[str] = "classification"

    predicts: ClassVar[str] = "a class"

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is named once")

    @property
    def num_outputs(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class _Standardised(Saved):
    """A number; networks see it as ``(value - mean) / scale``."""

    mean: Number
    scale: Positive

    predicts: ClassVar[str] = "a number"

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """(N,) as networks see them."""
        return (numbers - self.mean) / self.scale


@dataclass(frozen=True)
class Regression(_Standardised):
    """A number; networks see it standardised."""

    kind: ClassVar[str] = "regression"
    num_outputs: ClassVar[int] = 1


@dataclass(frozen=True)
class Counts(Saved):
    """How often: 0 or more. Networks see it over its mean, and say the logarithm of that.

    Attributes:
        unit: the mean; of a rate the mean of one of exposure.
        exposure: the column that a row's rate is multiplied by, as an offset; None: counts of
            rows that are all alike.
        exposed: the mean exposure, so that days or years are learned alike.
    """

    unit: Positive
    exposure: str | None = None
    exposed: Positive = 1.0

    kind: ClassVar[str] = "counts"
    unsaid: ClassVar[tuple[str, ...]] = ("exposure", "exposed")

    predicts: ClassVar[str] = "a number"
    num_outputs: ClassVar[int] = 1
    #: What a network says is explained in logarithms.
    mean: ClassVar[float] = 0.0
    scale: ClassVar[float] = 1.0

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """(N,) as networks see them; of a rate (N, 2), with the exposure over its mean."""
        if self.exposure is None:
            return numbers / self.unit
        encoded: np.ndarray = numbers / np.array([self.unit * self.exposed, self.exposed])
        return encoded

    def values(self, outputs_NS: np.ndarray) -> np.ndarray:
        """(N, S) what outputs say, in the label's own unit; of a rate for one of exposure."""
        said: np.ndarray = np.exp(np.minimum(outputs_NS, 30.0)) * self.unit
        return said


@dataclass(frozen=True)
class Amounts(Counts):
    """How much, above 0, whose spread grows with its size: costs, durations, doses."""

    kind: ClassVar[str] = "amounts"


@dataclass(frozen=True)
class Quantiles(_Standardised):
    """Quantiles of a number, in rising order; networks see it standardised."""

    shares: Annotated[tuple[_Share, ...], Field(min_length=1)] = (0.1, 0.5, 0.9)
    kind: ClassVar[str] = "quantiles"

    def __post_init__(self) -> None:
        if sorted(set(self.shares)) != list(self.shares):
            raise ValueError("shares rise")

    @property
    def num_outputs(self) -> int:
        return len(self.shares)

    def values(self, outputs_NS: np.ndarray) -> np.ndarray:
        """(N, S) what outputs say, in the label's own unit; no quantile is below a lower one."""
        said: np.ndarray = np.maximum.accumulate(outputs_NS * self.scale + self.mean, axis=1)
        return said


Task = (
    Classification | Regression | Survival | Counts | Amounts | Quantiles | MultiLabel | MultiTarget
)


def shared_json(task: Task) -> dict[str, Any]:
    """JSON of what must be the same at all parties that learn it together: of counts and amounts no
    mean, which is each party's own."""
    return {"kind": task.kind} if isinstance(task, Counts) else task.to_json()


def task_from_json(stored: Any) -> Task:
    """The task a model was saved with.

    Raises:
        ModelError: an unknown kind of task, or one that cannot be.
    """
    task: Task = of_kind(Task, stored)
    return task


def fit_task(
    values: np.ndarray,
    missing: np.ndarray,
    *,
    kind: Kind,
    label: str,
    party: str | None = None,
    positive: str | int | None = None,
) -> Task:
    """The task that a training label column poses.

    Args:
        values: (N, ...) raw labels.
        missing: (N,) bool, True where there is none.
        kind: of the task.
        label: the column's name, for errors.
        party: whose column, for errors; None: of nobody in particular.
        positive: see ``in_order``.

    Raises:
        DataError: no label, one class only, or a label that is text or infinite where a number is
            needed.
    """
    try:
        return _task(values[~missing], kind, label=label, positive=positive)
    except DataError as error:
        raise DataError(f"party {party!r}: {error}" if party else str(error)) from None


#: Names, in small letters, of classes that say yes, of which some are before "no" in order.
_YES = frozenset({"yes", "y", "true", "ja", "j", "da", "igen", "evet", "positive", "pos"})


def in_order(
    classes: Iterable[str | int], positive: str | int | None = None
) -> tuple[str | int, ...]:
    """Classes in order; of two the positive one is second: thresholds, precision and recall are of
    it.

    Args:
        classes: in order.
        positive: its name; None: the one that says yes, else the second. By names alone all
            parties agree, and learn nothing of rows.

    Raises:
        DataError: no class of two is called so.

    >>> in_order(["ja", "nein"]), in_order(["no", "yes"]), in_order(["bad", "good"], "bad")
    (('nein', 'ja'), ('no', 'yes'), ('good', 'bad'))
    """
    ordered = tuple(classes)
    are_positive = [str(each).lower() in _YES for each in ordered]
    if positive is not None:
        are_positive = [str(each) == str(positive) for each in ordered]
        if len(ordered) != 2 or not any(are_positive):
            raise DataError(
                f"positive = {positive!r} must be one of two classes; the label has "
                f"{list(ordered[:20])}"
            )
    return ordered[::-1] if are_positive == [True, False] else ordered


def _task(present: np.ndarray, kind: Kind, *, label: str, positive: str | int | None) -> Task:
    if not len(present):
        raise DataError(f"label {label!r} has no value in the training rows")
    if kind == "classification":
        check_classes(present, label=label)
        classes = tuple(distinct(present)[0].tolist())
        if len(classes) < 2:
            raise DataError(
                f"label {label!r} has one class only ({classes[0]!r}) in the training rows; "
                "a classifier needs at least two"
            )
        return Classification(in_order(classes, positive))
    if positive is not None:
        raise DataError(f"positive = {positive!r} is of classes, and label {label!r} is of {kind}")
    several = composed(label)
    if kind in ("multilabel", "multitarget"):
        width = present.shape[1]
        names = [f"label {number}" for number in range(1, width + 1)]
        return fit_several(present, several.columns if several else names, kind=kind)
    present = _numbers(present, label)
    if kind == "survival":
        intervals = several.intervals if isinstance(several, TimeToEvent) else None
        return fit_survival(present, label=label, intervals=intervals)
    if isinstance(several, Rate):
        counts, exposures = present.T
        rate, exposed = float(counts.sum() / exposures.sum()), float(exposures.mean())
        return Counts(rate or 1.0, several.exposure, exposed)
    if kind in ("counts", "amounts"):
        low = present.min()
        if low < 0 or (kind == "amounts" and low == 0):
            raise DataError(
                f"label {label!r} has {low:g}: counts are 0 or more, amounts above 0; give "
                'task = "regression" for other numbers'
            )
        unit = float(present.mean()) or 1.0
        return Counts(unit) if kind == "counts" else Amounts(unit)
    mean, scale = float(present.mean()), float(present.std()) or 1.0
    if kind == "quantiles":
        return Quantiles(mean, scale)
    return Regression(mean, scale)


def check_classes(present: np.ndarray, *, label: str) -> None:
    """Refuse numbers that are no classes: fractions of many values, or nearly as many as rows.

    Raises:
        DataError: saying how to predict numbers.
    """
    if present.dtype.kind not in "iuf" or len(present) <= _FEW_VALUES:
        return
    count = len(np.unique(present))
    fractions = present.dtype.kind == "f" and not np.equal(np.mod(present, 1), 0).all()
    if count > (max(_FEW_VALUES, len(present) // 10) if fractions else len(present) // 2):
        raise DataError(
            f"label {label!r} has {count} different numbers in {len(present)} rows, which are "
            'hardly classes: to predict a number, give task = "regression"'
        )


def spelled_alike(classes: Mapping[str, Collection[str | int]]) -> list[str]:
    """Sentences on classes of several parties that differ in case or blanks alone.

    Those that one party has both are its own affair, if all others have them, too.

    >>> spelled_alike({"north": ["ill", "well"], "south": ["ILL", "well"]})[0][:67]
    "the classes 'ill' (at north) and 'ILL' (at south) differ in case or"
    >>> spelled_alike({"north": ["ill", "well"], "south": ["well"]})
    []
    """
    spellings: dict[str, dict[str, list[str]]] = {}
    for party, names in classes.items():
        for name in names:
            if isinstance(name, str):
                alike = spellings.setdefault(" ".join(name.split()).casefold(), {})
                alike.setdefault(name, []).append(party)
    warnings = []
    for alike in spellings.values():
        if len({tuple(at) for at in alike.values()}) > 1:
            named = " and ".join(f"{name!r} (at {', '.join(at)})" for name, at in alike.items())
            warnings.append(
                f"the classes {named} differ in case or blanks alone and count as different ones; "
                "if they are one, write it alike in all tables"
            )
    return warnings


def encode_labels(
    task: Task, values: np.ndarray, missing: np.ndarray, *, label: str, unseen: bool = False
) -> Tensor:
    """(N,) labels as networks see them: int64 class indices or standardised float32 values.

    Of several labels (N, L), of a rate (N, 2).

    Args:
        unseen: of rows that test: a class that the training rows do not have is ``UNSEEN``.

    Raises:
        DataError: a class that the training rows do not have; a label that is text or infinite
            where a number is needed.
    """
    if not isinstance(task, Classification):
        if values.ndim > 1:
            return torch.from_numpy(task.encode(values)).float()
        numbers = np.full(values.shape, np.nan)
        numbers[~missing] = _numbers(values[~missing], label)
        return torch.from_numpy(task.encode(numbers)).float()
    index = _index(task.classes)
    present, inverse = distinct(values[~missing])
    unknown = [name for name in present.tolist() if name not in index]
    if unknown and not unseen:
        raise DataError(
            f"label {label!r} has the class {unknown[0]!r}, which the training rows do not have; "
            f"known are {list(task.classes)[:20]}"
        )
    encoded = np.full(len(values), UNLABELLED, dtype=np.int64)
    encoded[~missing] = np.array(
        [index.get(name, UNSEEN) for name in present.tolist()], dtype=np.int64
    )[inverse]
    return torch.from_numpy(encoded)


def _index(classes: tuple[str | int, ...]) -> dict[str | int, int]:
    """Class -> its place; false and true are 0 and 1 where a table has them as numbers."""
    index: dict[str | int, int] = {name: position for position, name in enumerate(classes)}
    if set(classes) == {"false", "true"}:
        index |= {0: index["false"], 1: index["true"]}
    elif set(classes) == {0, 1}:
        index |= {"false": index[0], "true": index[1]}
    return index


def _numbers(present: np.ndarray, label: str) -> np.ndarray:
    """(N,) float64 labels.

    Raises:
        DataError: text, or a number that is not finite.
    """
    if present.dtype.kind not in "iufb":
        example = f" ({str(present[0])!r})" if len(present) else ""
        raise DataError(f"label {label!r} is text{example}; a regression needs numbers")
    numbers = present.astype(np.float64)
    num_infinite = int((~np.isfinite(numbers)).sum())
    if num_infinite:
        raise DataError(
            f"label {label!r} is infinite in {num_infinite} of {len(numbers)} rows; "
            "a regression needs finite numbers"
        )
    return numbers
