"""Columns from codes, embeddings and returned gradients, by regression from a few known rows.

Papers: "UIFV" (2024) and Jiang et al., "Comprehensive Analysis of Privacy Leakage in Vertical
Federated Learning During Prediction", PoPETs 2022, for inversion by a network from known rows;
ridge regression is the linear case. Kumar et al., "Is Feature Selection Private?" class of attacks
on distances: they are features here like any other.

Threat: the receiver knows so many rows of the other side whole (customers of both, its own staff)
and learns from them how what it is shown goes with the columns, beside columns of its own.

Baseline: the same from its own columns; who has none knows the columns' means.

Times to an event are looked for in the same way, as two columns: the time's logarithm, and whether
the event came.

R2 is the share of the variance explained, averaged over columns that vary, on the other rows.
Which view and learner is chosen by what each expects of itself on the known rows
(``regressors.py``), own columns alone among them: messages that say nothing are left aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.audit.attacks.regressors import FittedView, best_of, directions, fits
from dovetail.audit.verdict import Measured
from dovetail.methods.facets.audited import KNOWN, Threat
from dovetail.methods.facets.views import scaled, whitened

#: How often the rows that the attacker knows are drawn.
DRAWS = 3

#: Columns that are looked for, drawn at random where there are more.
MAX_COLUMNS = 400

#: Of a column's variance, which is 1 over all rows, the least that its unknown rows count as.
_LEAST_SPREAD = 0.1


def threat(network: bool, known: int) -> Threat:
    """Assumptions of an inversion."""
    return Threat(
        "inversion by stacked learners" if network else "inversion by ridge regression",
        "UIFV 2024; Jiang et al. 2022",
        f"{known} rows of the other side, drawn at random",
        "the same from its own columns",
        "R2, mean over columns",
    )


def inversion(
    columns: np.ndarray | None,
    views: Mapping[str, np.ndarray],
    target_NF: np.ndarray,
    names: Sequence[str],
    *,
    known: int = KNOWN,
    network: bool = False,
) -> Measured | None:
    """How well columns follow from messages; None where there are too few rows."""
    num = len(target_NF)
    known = min(known, num // 2)
    varying = np.flatnonzero(target_NF.std(axis=0) > 1e-6)
    if known < 10 or not len(varying):
        return None
    rng = np.random.default_rng(0)
    if len(varying) > MAX_COLUMNS:
        varying = np.sort(rng.choice(varying, MAX_COLUMNS, replace=False))
    target = scaled(target_NF[:, varying])
    shown = {f"{name} as sent": scaled(x) for name, x in views.items()}
    shown |= {f"{name}, direction": scaled(directions(x)) for name, x in views.items()}
    shown |= {f"{name}, components": whitened(x) for name, x in views.items()}
    if network and len(views) > 1:
        shown["all views"] = np.hstack([whitened(x) for x in views.values()])
    beside: dict[str, np.ndarray] = {}
    if columns is not None:
        beside = {"own columns": scaled(columns)}
        shown |= {
            f"{name}, with own": np.hstack([x, beside["own columns"]]) for name, x in shown.items()
        }
    errors = np.full((2, DRAWS, num, len(varying)), np.nan, dtype=np.float32)
    spread = np.full((DRAWS, num, len(varying)), np.nan, dtype=np.float32)
    tried: dict[str, list[float]] = {}
    for draw in range(DRAWS):
        order = rng.permutation(num)
        rows, rest = order[:known], order[known:]
        mean = target[rows].mean(axis=0)
        spread[draw, rest] = (target[rest] - target[rest].mean(axis=0)) ** 2
        alone = FittedView(np.broadcast_to(mean, target.shape), -float(target[rows].var()))
        guesses = {"means": alone} | fits(beside, target, rows, network=network)
        attacks = guesses | fits(shown, target, rows, network=network)
        for side, candidates in enumerate((attacks, guesses)):
            best = best_of(candidates.values(), target, rows)
            errors[side, draw, rest] = (best[rest] - target[rest]) ** 2
        for name, fit in attacks.items():
            left = ((fit.guess_NF[rest] - target[rest]) ** 2).mean() / spread[draw, rest].mean()
            tried.setdefault(name, []).append(float(1 - left))
    # A category of a few rows that all are known would leave next to none to divide by.
    variance_F = np.maximum(np.nanmean(spread, axis=(0, 1)), _LEAST_SPREAD)
    r2_N = 1 - (errors / variance_F).mean(axis=-1)  # (2, draws, rows): its mean is the mean R2
    r2_F = 1 - np.nanmean(errors, axis=(1, 2)) / variance_F
    gain = r2_F[0] - np.maximum(r2_F[1], 0)
    index = int(gain.argmax())
    worst = names[varying[index]], float(r2_F[1, index]), float(r2_F[0, index])
    variants = {name: float(np.mean(each)) for name, each in tried.items()}
    return Measured(r2_N[0].astype(float), r2_N[1].astype(float), worst, variants)
