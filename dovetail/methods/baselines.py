"""Baselines that a party can train alone on its own columns, beside any method.

"best-alone" is the best of the learners, or the mean of several, by held-out rows; "linear",
"boosting" and "network" are each of them; "majority" says the most frequent class of the labelled
rows, or their mean. Nothing is chosen on test rows, which are scored when all is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dovetail.data import Classification, Task
from dovetail.data.party import labelled_rows
from dovetail.errors import ConfigError
from dovetail.methods.outcome import (
    DecisionSettings,
    Observer,
    Outcome,
    Scores,
    mean_over,
    score_party,
)
from dovetail.models import derive_seed
from dovetail.models.decisions import FittedThreshold
from dovetail.models.learners import (
    LEARNERS,
    Fitted,
    Rows,
    best_of,
    first_fold_only,
    fit_all,
    make_folds,
)
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.networks import network_input

#: More labelled rows than this, and one fold's models are enough to choose by.
MANY_ROWS = 3000

#: Folds of fewer.
_FOLDS = 4

#: All classes count alike, and the likeliest is said.
NOTHING_ELSE = DecisionSettings()


@dataclass(frozen=True, eq=False)
class LocalRows:
    """Rows that a party has for itself.

    Attributes:
        task: what it predicts.
        x: its training rows, validation rows among them; rows of columns or images.
        labels: theirs; where they are missing, rows only help to place bins of numbers.
        tested: rows that are scored, and their labels; None: it has none.
    """

    task: Task
    x: Tensor
    labels: Tensor
    tested: tuple[Tensor, Tensor] | None = None


def features(x: Tensor) -> Tensor:
    """(N, F) float32 of rows of columns or images."""
    return network_input(x).flatten(1)


def judged_rows(rows: Rows) -> Rows:
    """Rows of which all are held out once, or of many one fold."""
    if len(rows.x_NF) <= MANY_ROWS:
        return rows
    return Rows(
        rows.x_NF,
        rows.targets_NC,
        first_fold_only(rows.folds_N),
        weights_N=rows.weights_N,
        loss=rows.loss,
    )


def majority_of(rows: Rows) -> Tensor:
    """(1, C) outputs that say the most frequent class, the mean, or the quantiles."""
    return rows.loss.constant(rows.targets_NC)[None]


#: Baseline that learns nothing -> (1, C) what it says of every row; in ``TITLES``, too.
CONSTANTS: Mapping[str, Callable[[Rows], Tensor]] = {"majority": majority_of}


def held_out_decision(
    decision_settings: DecisionSettings, task: Task, fitted: Fitted, rows: Rows
) -> FittedThreshold | None:
    """Threshold and calibration by what models say of rows that they did not see."""
    if decision_settings == NOTHING_ELSE:
        return None
    judged = ~fitted.held_out_NC.isnan().any(dim=1)
    targets_NC = rows.targets_NC[judged]
    labels_N = targets_NC[:, 0] if rows.regression else targets_NC.argmax(dim=1)
    return decision_settings.decision(task, fitted.held_out_NC[judged], labels_N)


def train_baselines(
    variant: str,
    parties: Mapping[str, LocalRows],
    seed: int,
    observe: Observer,
    decision_settings: DecisionSettings = NOTHING_ELSE,
) -> Outcome:
    """Train and score one of ``TITLES`` at every party that has test rows.

    Raises:
        ConfigError: no party with its columns and test rows, or one with a single labelled
            row.
    """
    tested = {
        name: (tested_rows, tested_rows.tested)
        for name, tested_rows in parties.items()
        if tested_rows.tested is not None
    }
    if not tested:
        raise ConfigError(
            f"the baseline {variant!r} is trained on a party's own columns and scored on its test "
            "rows, and no party of this run has both here; leave it out"
        )
    scores: dict[str, Scores] = {}
    for number, (name, (tested_rows, rows)) in enumerate(tested.items(), start=1):
        started = time.perf_counter()
        scores[name] = _scored(variant, name, tested_rows, rows, seed, decision_settings)
        line = {"round": number, "seconds": time.perf_counter() - started}
        if number == len(tested):
            line |= mean_over(scores)
        observe(variant, len(tested), line)
    return Outcome({variant: scores})


def _scored(
    variant: str,
    name: str,
    party_rows: LocalRows,
    tested: tuple[Tensor, Tensor],
    seed: int,
    decision_settings: DecisionSettings,
) -> dict[str, Any]:
    test, test_labels = tested
    regression = not isinstance(party_rows.task, Classification)
    labelled = labelled_rows(party_rows.labels)
    labels, x_NF = party_rows.labels[labelled], features(party_rows.x)
    if len(labels) < 2:
        raise ConfigError(
            f"the baseline {variant!r}: party {name!r} has {len(labels)} labelled rows; a model "
            "alone needs two or more"
        )
    targets = targets_of(party_rows.task, labels)
    weights_C = decision_settings.weights(party_rows.task, labels)
    rows = Rows(
        x_NF[labelled],
        targets,
        make_folds(
            labels,
            min(_FOLDS, len(labels)),
            seed=derive_seed(seed, name, "folds"),
            regression=regression,
        ),
        None if weights_C is None else targets @ weights_C,
        loss=loss_of(party_rows.task),
    )
    rows = judged_rows(rows)
    decision = None
    if variant in CONSTANTS:
        outputs = CONSTANTS[variant](rows).expand(len(test), -1)
    else:
        names = tuple(LEARNERS) if variant == "best-alone" else (variant,)
        learners = [LEARNERS[learner] for learner in names]
        fitted = fit_all(learners, rows, seed=seed, encode_on=x_NF)
        best = best_of(fitted, rows) if len(fitted) > 1 else fitted[variant]
        outputs = best.outputs(features(test))
        decision = held_out_decision(decision_settings, party_rows.task, best, rows)
    return score_party(
        name,
        variant,
        party_rows.task,
        outputs,
        test_labels,
        last=True,
        decision=decision,
    )
