"""What rivals have in common: what comes of one, and how it reads a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        alone: (N, C) probabilities of the test rows, of the owner's columns.
        together: the same with the partner's columns there; None: it has no such model.
        num_bytes: of what the partner sent to train it.
        messages: how many of them.
        learns: what the partner learns.
    """

    alone: np.ndarray
    together: np.ndarray | None
    num_bytes: int
    messages: int
    learns: str


@dataclass(frozen=True, eq=False)
class Given:
    """What a rival is trained on, and asked.

    Attributes:
        train: the owner's rows, with the label ``y``, missing where it has none.
        partner: the partner's rows; the index says which of ``train`` they are.
        test: rows to predict, of which ``columns`` are read.
        there: the partner's columns of the test rows.
        columns: the owner's.
    """

    train: pd.DataFrame
    partner: pd.DataFrame
    test: pd.DataFrame
    there: pd.DataFrame
    columns: list[str]

    def owned(self, frame: pd.DataFrame) -> Tensor:
        """(N, F) the owner's columns of rows, as numbers."""
        return encoded(frame[self.columns], self.train[self.columns])


#: Trains a rival whose networks have a seed, and predicts the test rows.
Rival = Callable[[Given, int], Result]


def encoded(frame: pd.DataFrame, like: pd.DataFrame) -> Tensor:
    """(N, F) columns as numbers: scaled, one-hot, missing at the mean."""
    numbers = frame.select_dtypes("number").reindex(columns=like.select_dtypes("number").columns)
    known = like.select_dtypes("number")
    scaled = ((numbers - known.mean()) / known.std().replace(0, 1)).clip(-5, 5)
    blocks = [scaled]
    for name in like.select_dtypes(exclude="number"):
        kinds = sorted(like[name].dropna().astype(str).unique())
        values = frame[name].astype(str)
        blocks.append(pd.DataFrame({kind: values == kind for kind in kinds}, index=frame.index))
    return torch.tensor(pd.concat(blocks, axis=1).fillna(0).to_numpy(np.float32))


def folds_of(truth: np.ndarray, seed: int) -> np.ndarray:
    """(N,) which of four folds each row is of; each has as much of every class."""
    order = np.random.default_rng(seed).permutation(len(truth))
    folds = np.empty(len(truth), dtype=int)
    folds[order[np.argsort(truth[order], kind="stable")]] = np.arange(len(truth)) % 4
    return folds
