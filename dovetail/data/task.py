"""What the label owner predicts: one of several classes, or a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.data.party import UNLABELLED
from dovetail.errors import DataError, ModelError


@dataclass(frozen=True)
class Classification:
    """One of ``classes``; a network for it has one output (logit) per class."""

    classes: tuple[str | int, ...]

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "classification", "classes": list(self.classes)}


@dataclass(frozen=True)
class Regression:
    """A number; networks see it standardised, ``(value - mean) / scale``."""

    mean: float = 0.0
    scale: float = 1.0

    @property
    def num_outputs(self) -> int:
        return 1

    def to_json(self) -> dict[str, Any]:
        return {"kind": "regression", "mean": self.mean, "scale": self.scale}


Task = Classification | Regression


def task_from_json(stored: dict[str, Any]) -> Task:
    """The task a model was saved with.

    Raises:
        ModelError: an unknown kind of task.
    """
    if stored.get("kind") == "classification":
        return Classification(tuple(stored["classes"]))
    if stored.get("kind") == "regression":
        return Regression(float(stored["mean"]), float(stored["scale"]))
    raise ModelError(f"a task is a 'classification' or a 'regression', got {stored.get('kind')!r}")


def fit_task(values: np.ndarray, missing: np.ndarray, *, regression: bool, label: str) -> Task:
    """The task that a training label column poses.

    Args:
        values: (N,) raw labels.
        missing: (N,) bool, True where there is none.
        regression: predict a number rather than a class.
        label: the column's name, for errors.

    Raises:
        DataError: no label, one class only, or text where numbers are needed.
    """
    present = values[~missing]
    if not len(present):
        raise DataError(f"label {label!r} has no value in the training rows")
    if not regression:
        classes = tuple(np.unique(present).tolist())
        if len(classes) < 2:
            raise DataError(
                f"label {label!r} has one class only ({classes[0]!r}) in the training rows; "
                "a classifier needs at least two"
            )
        return Classification(classes)
    if present.dtype.kind not in "iufb":
        raise DataError(f"label {label!r} is text; a regression needs numbers")
    present = present.astype(np.float64)
    return Regression(float(present.mean()), float(present.std()) or 1.0)


def encode_labels(task: Task, values: np.ndarray, missing: np.ndarray, *, label: str) -> Tensor:
    """(N,) labels as networks see them: int64 class indices or standardised float32 values.

    Raises:
        DataError: a class that the training rows do not have.
    """
    if isinstance(task, Regression):
        numbers = np.full(len(values), np.nan)
        numbers[~missing] = values[~missing].astype(np.float64)
        return torch.from_numpy((numbers - task.mean) / task.scale).float()
    index = {name: place for place, name in enumerate(task.classes)}
    present, inverse = np.unique(values[~missing], return_inverse=True)
    unknown = [name for name in present.tolist() if name not in index]
    if unknown:
        raise DataError(
            f"label {label!r} has the class {unknown[0]!r}, which the training rows do not have; "
            f"known are {list(task.classes)[:20]}"
        )
    encoded = np.full(len(values), UNLABELLED, dtype=np.int64)
    encoded[~missing] = np.array([index[name] for name in present.tolist()], dtype=np.int64)[
        inverse
    ]
    return torch.from_numpy(encoded)
