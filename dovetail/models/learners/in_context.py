"""A network trained beforehand on made-up tables (TabICL) that teaches a student, and leaves.

TabICL (Qu et al. 2025, arXiv:2502.05564) predicts from labelled rows that it is shown as context.
It is large, and its weights may not be everybody's to pass on: so a small network learns what it
says, of labelled rows and of rows without a label, and only that network is kept.

    target_r = label_share y_r + (1 - label_share) taught_r    a labelled row
    target_r = taught_r                                        a row without label

Fold k's student sees no label of fold k, and neither does its teacher.

The file of weights is one that the user has: nothing is downloaded, and it is read as tensors.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.lazy import needed
from dovetail.models.learners.choice import fit_each
from dovetail.models.learners.network import Network
from dovetail.models.learners.rows import NO_FOLD, Rows
from dovetail.models.learners.specs import EnsembleSpec, Fitted
from dovetail.models.losses import Classes, SquaredError
from dovetail.models.randomness import derive_seed, generator

#: Rows that are shown as context, and rows that a student learns from without a label, at most.
MOST_SHOWN, MOST_UNLABELLED = 10_000, 6000


@dataclass(frozen=True)
class InContext:
    """The learner: a student of TabICL.

    Attributes:
        weights: the file.
        licence: of that file, in its own words; kept with what was chosen.
        label_share: of a labelled row's target.
        stop_share: of a student's rows, which end its training.
    """

    name: ClassVar[str] = "tabicl"
    title: ClassVar[str] = "student of TabICL, local"

    weights: Path
    licence: str
    label_share: float = 0.5
    stop_share: float = 0.15

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """A student of each fold, and their mean; of one fold, one that learnt from all rows.

        Raises:
            ConfigError: tabicl is not installed, the file is none of its weights, or the label is
                neither a class nor a number.
        """
        extra = rows.x_NF[:0] if encode_on is None else encode_on
        drawn = torch.randperm(len(extra), generator=generator(seed, "in context"))
        extra = extra[drawn[:MOST_UNLABELLED].sort().values]
        folds = range(rows.num_folds)
        many = [self._taught(rows, rows.folds_N != fold, extra, seed) for fold in folds]
        seeds = [derive_seed(seed, "student", str(fold)) for fold in folds]
        students = fit_each(Network(), many, seeds=seeds, encode_on=encode_on)
        held_out_NC = rows.no_outputs()
        for fold, student in enumerate(students):
            here = rows.folds_N == fold
            held_out_NC[here] = student.outputs(rows.x_NF[here])
        held_out_NC, temperature, loss = rows.judged(held_out_NC)
        kept = students
        if len(students) == 1 and refit:
            everywhere = torch.ones(len(rows.x_NF), dtype=torch.bool)
            whole = self._taught(rows, everywhere, extra, seed)
            kept = fit_each(Network(), [whole], seeds=seeds, encode_on=encode_on)
        members = tuple(student.spec for student in kept)
        spec = EnsembleSpec(members, rows.num_outputs, rows.regression, temperature)
        with self.weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Fitted(
            self.name,
            spec,
            spec.around([student.network for student in kept]),
            held_out_NC,
            {"loss": loss, "weights": digest, "licence": self.licence},
            lambda x_NF: torch.stack([each.outputs(x_NF) for each in students]) / temperature,
        )

    def narrowed(self, fitted: Fitted) -> InContext:
        return self

    def _taught(self, rows: Rows, known_N: Tensor, extra_MF: Tensor, seed: int) -> Rows:
        """Rows that a student learns from that may see these labelled rows."""
        context = rows.x_NF[known_N], rows.targets_NC[known_N]
        x_NF = torch.cat([context[0], extra_MF])
        targets_NC = self._said(rows, *context, x_NF, seed)
        num = len(context[0])
        mixed = self.label_share * context[1] + (1 - self.label_share) * targets_NC[:num]
        targets_NC = torch.cat([mixed, targets_NC[num:]])
        weights_N = None
        if rows.weights_N is not None:
            mean = rows.weights_N[known_N].mean()
            weights_N = torch.cat([rows.weights_N[known_N], mean.expand(len(extra_MF))])
        order = torch.randperm(len(x_NF), generator=generator(seed, "student rows"))
        folds = torch.full((len(x_NF),), NO_FOLD)
        folds[: max(1, round(self.stop_share * len(x_NF)))] = 0
        weights_N = None if weights_N is None else weights_N[order]
        return Rows(x_NF[order], targets_NC[order], folds, weights_N, loss=rows.loss)

    def _said(self, rows: Rows, x: Tensor, targets: Tensor, x_NF: Tensor, seed: int) -> Tensor:
        """(N, C) what TabICL says of rows, shown these others with labels."""
        several = rows.regression and targets.shape[1] > 1
        if several or not isinstance(rows.loss, Classes | SquaredError):
            raise ConfigError(
                f"{self.name} teaches a class or a number, and the label is neither; leave it out"
            )
        with needed(f"party.{self.name}", f"'dovetail-fl[{self.name}]'; or leave it out"):
            import tabicl
        kind = tabicl.TabICLRegressor if rows.regression else tabicl.TabICLClassifier
        drawn = torch.randperm(len(x), generator=generator(seed, "shown"))
        shown = drawn[:MOST_SHOWN].sort().values
        y = targets[shown, 0] if rows.regression else targets[shown].argmax(dim=1)
        teacher: Any = kind(
            model_path=str(self.weights), allow_auto_download=False, device=str(x.device),
            random_state=seed % 2**32,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                teacher.fit(x[shown].numpy(), y.numpy())
            except (
                Exception
            ) as error:  # whatever its authors raise of a file that is none of theirs
                raise self._refused(str(error) or type(error).__name__) from None
            if (teacher.model_.max_classes == 0) != rows.regression:
                raise self._refused(f"they are of {'classes' if rows.regression else 'numbers'}")
            said = teacher.predict if rows.regression else teacher.predict_proba
            outputs = np.asarray(said(x_NF.numpy()), dtype=np.float32)
        if rows.regression:
            return torch.from_numpy(outputs)[:, None]
        shares = torch.zeros(len(x_NF), targets.shape[1])
        shares[:, torch.from_numpy(teacher.classes_)] = torch.from_numpy(outputs)
        return shares

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.weights} has no weights that {self.name} can use here ({why}); name a "
            "checkpoint of TabICL for classes, or of a number its regressor's, or leave "
            f"party.{self.name} out"
        )
