"""Columns from gradients of outputs: labels added back, the owner's logits, factors over steps.

A gradient of an output is p - y. Its sign is the label, so that p follows, and the logit of p is
what all parties' parts add up to. Who knows its own part so has the owner's:

    r_nt = x_n w_t + b_t              of row n in step t, where the owner's part is linear

The owner's columns x_n stay the same, its weights w_t move a little in each step, and a row is
visited many times. Known rows say which factorisation it is. Solved in two ways, of which the one
counts that finds known rows best that it is not given:

    smoother   a state-space model by expectation and maximisation: weights by a Kalman smoother (a
               random walk of ``STEP`` a step), rows by their posterior, under the mean and
               covariance of the known rows (and of what the attacker's own columns say)
    spline     alternating least squares: weights are at first what known rows alone say of them, as
               a curve over steps, and then free

Papers: Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022
(arXiv:2102.08504), for the sign; alternating least squares and its posterior form are of matrix
completion (Salakhutdinov and Mnih 2008).

Threat: an honest partner that keeps all that it was sent, and knows so many rows of the other side.
Baseline: ridge regression from its own columns.

Letters: S streams (members x classes), T steps, B rows of a batch, N rows, F columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dovetail.audit.verdict import Measured
from dovetail.methods.facets.audited import Threat
from dovetail.methods.facets.views import scaled

#: Rows that are known, and how often they are drawn.
KNOWN = {100: 2, 20: 1, 50: 1, 300: 1}

#: How often rows and weights are estimated in turn.
ALTERNATIONS = 100

#: How far a weight moves in a step: the label owner's usual learning rate.
STEP = 0.01

#: Columns are read no further from their mean than this (``models/learners/stacked.py``).
FURTHEST = 5.0

#: A category that so many known rows or fewer have is guessed from the attacker's own columns.
RARE = 3

#: Added to the variance of known rows, which are few.
_SHRUNK = 0.03

#: Curves of the spline, strength of its ridge, and how often rows and weights follow in turn.
_CURVES, _RIDGE, _PLAIN = 6, 0.1, 20

_ALPHAS = np.logspace(-1, 5, 13)
_LEAST_SPREAD = 0.1


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements of the owner's logits, as a partner works them out.

    Attributes:
        rows_STB: of which row; -1: of one that is not followed.
        value_STB: the owner's part of its logit.
    """

    rows_STB: Tensor
    value_STB: Tensor


def threat(known: int) -> Threat:
    """Assumptions of the factorisation."""
    return Threat(
        f"logits factorised over steps, {known} known rows",
        "Li et al. 2021 (arXiv:2102.08504), then alternating least squares",
        f"{known} rows of the other side, drawn at random; every gradient of the run",
        "ridge regression from its own columns",
        "R2, mean over columns",
    )


def rebuilt(
    columns: np.ndarray | None,
    seen: Measurements,
    target_NF: np.ndarray,
    names: Sequence[str],
    *,
    known: int,
    draws: int,
) -> Measured | None:
    """How well columns follow; None where there are too few rows."""
    from sklearn.linear_model import RidgeCV  # slow to import: for who attacks alone

    num = len(target_NF)
    varying = np.flatnonzero(target_NF.std(axis=0) > 1e-6)
    if known > num // 2 or not len(varying):
        return None
    target = np.clip(target_NF[:, varying], -FURTHEST, FURTHEST).astype(np.float64)
    deviation = target.std(axis=0).clip(1e-6)
    rng = np.random.default_rng(0)
    errors = np.full((2, draws, num, len(varying)), np.nan)
    spread = np.full((draws, num, len(varying)), np.nan)
    for draw in range(draws):
        order = rng.permutation(num)
        rows, rest = order[:known], order[known:]
        mean_NF = np.repeat(target[rows].mean(axis=0, keepdims=True), num, axis=0)
        if columns is not None:
            x = scaled(columns)
            ridge = RidgeCV(_ALPHAS).fit(x[rows], target[rows])
            if float(ridge.best_score_) > -float(target[rows].var()):
                mean_NF = np.asarray(ridge.predict(x)).reshape(target.shape)
        guess = _better(seen, target, rows, mean_NF)(rows)
        rare = _seldom(target[rows])  # of these the known rows say next to nothing
        guess[:, rare] = mean_NF[:, rare]
        guess = guess.clip(target[rows].min(axis=0), target[rows].max(axis=0))
        spread[draw, rest] = ((target[rest] - target[rest].mean(axis=0)) / deviation) ** 2
        for side, each in enumerate((guess, mean_NF)):
            errors[side, draw, rest] = ((each[rest] - target[rest]) / deviation) ** 2
    variance_F = np.maximum(np.nanmean(spread, axis=(0, 1)), _LEAST_SPREAD)
    r2_N = 1 - (errors / variance_F).mean(axis=-1)
    r2_F = 1 - np.nanmean(errors, axis=(1, 2)) / variance_F
    index = int((r2_F[0] - np.maximum(r2_F[1], 0)).argmax())
    worst = names[varying[index]], float(r2_F[1, index]), float(r2_F[0, index])
    variants = {"mean": float(r2_F[0].mean()), "median column": float(np.median(r2_F[0]))}
    return Measured(r2_N[0], r2_N[1], worst, variants)


def _seldom(x_KF: np.ndarray) -> np.ndarray:
    """(F,) columns that all known rows but ``RARE`` at most have alike."""
    commonest = [np.unique(column, return_counts=True)[1].max() for column in x_KF.T]
    return np.asarray(len(x_KF) - np.asarray(commonest) <= RARE)


#: Takes known rows, and gives (N, F) guesses of all.
_Solve = Callable[[np.ndarray], np.ndarray]


def _better(
    seen: Measurements, target_NF: np.ndarray, known: np.ndarray, mean_NF: np.ndarray
) -> _Solve:
    """The way that finds a fifth of the known rows better from the others."""
    held, used = known[: len(known) // 5], known[len(known) // 5 :]

    def smoother(rows: np.ndarray) -> np.ndarray:
        return _factorised(seen, target_NF, rows, mean_NF)

    def spline(rows: np.ndarray) -> np.ndarray:
        return _alternated(seen, target_NF, rows, mean_NF)

    def error(solve: _Solve) -> float:
        return float(((solve(used)[held] - target_NF[held]) ** 2).mean())

    return min((smoother, spline), key=error)


def _alternated(
    seen: Measurements, target_NF: np.ndarray, known: np.ndarray, mean_NF: np.ndarray
) -> np.ndarray:
    """(N, F) guesses of all rows, by plain alternating least squares from a spline."""
    from scipy import sparse
    from scipy.interpolate import BSpline

    num, width = target_NF.shape
    streams, steps, _ = seen.rows_STB.shape
    rows_TB = seen.rows_STB.reshape(streams * steps, -1).numpy()
    value_TB = seen.value_STB.reshape(streams * steps, -1).numpy()
    there_TB = (rows_TB >= 0) & np.isfinite(value_TB)
    at_T, at_N, value = np.nonzero(there_TB)[0], rows_TB[there_TB], value_TB[there_TB]
    x_NF = mean_NF.copy()
    x_NF[known] = target_NF[known]
    is_known = np.isin(at_N, known)
    basis_TM = BSpline.design_matrix(
        np.linspace(0, 1, steps), _knots(_CURVES), 3, extrapolate=True
    ).toarray()
    weight_TG = np.zeros((streams * steps, width + 1))
    for stream in range(streams):
        mine = is_known & (at_T // steps == stream)
        x_VG = np.hstack([x_NF[at_N[mine]], np.ones((mine.sum(), 1))])
        curve_VM = basis_TM[at_T[mine] % steps]
        design = np.einsum("vm,vg->vmg", curve_VM, x_VG).reshape(mine.sum(), -1)
        gram = design.T @ design + _RIDGE * np.eye(design.shape[1])
        curve_MG = np.linalg.solve(gram, design.T @ value[mine]).reshape(-1, width + 1)
        weight_TG[stream * steps : (stream + 1) * steps] = basis_TM @ curve_MG
    left = target_NF[known] - mean_NF[known]
    covariance = np.cov(left.T).reshape(width, width) + _SHRUNK * np.eye(width)
    precision = np.linalg.inv(covariance)
    visits = sparse.csr_matrix((np.ones(len(at_T)), (at_T, at_N)), (streams * steps, num))
    measured = sparse.csr_matrix((value, (at_T, at_N)), visits.shape)
    visited, measured_T = visits.T.tocsr(), measured.T.tocsr()
    for _ in range(_PLAIN):
        w_TF, bias_T = weight_TG[:, :width], weight_TG[:, width]
        left_V = value - (x_NF[at_N] * w_TF[at_T]).sum(axis=1) - bias_T[at_T]
        noise = max(float((left_V[is_known] ** 2).mean()), 1e-6)
        outer = np.einsum("ti,tj->tij", w_TF, w_TF).reshape(len(w_TF), -1)
        gram_NFF = (visited @ outer).reshape(num, width, width) / noise + precision
        right_NF = (measured_T @ w_TF - visited @ (w_TF * bias_T[:, None])) / noise
        x_NF = np.linalg.solve(gram_NFF, (right_NF + mean_NF @ precision)[:, :, None])[:, :, 0]
        x_NF[known] = target_NF[known]
        x_NG = np.hstack([x_NF, np.ones((num, 1))])
        square = np.einsum("ni,nj->nij", x_NG, x_NG).reshape(num, -1)
        gram_TGG = (visits @ square).reshape(-1, width + 1, width + 1) + np.eye(width + 1)
        right_TG = measured @ x_NG + weight_TG  # drawn to what it was
        weight_TG = np.linalg.solve(gram_TGG, right_TG[:, :, None])[:, :, 0]
    return np.asarray(x_NF)


def _knots(curves: int) -> np.ndarray:
    """Of so many cubic curves over 0 to 1."""
    inner = np.linspace(0, 1, curves - 2)
    return np.concatenate([[0.0] * 3, inner, [1.0] * 3])


def _factorised(
    seen: Measurements, target_NF: np.ndarray, known: np.ndarray, mean_NF: np.ndarray
) -> np.ndarray:
    """(N, F) guesses of all rows; the known ones as they are."""
    from scipy import sparse

    num, width = target_NF.shape
    streams, steps, _ = seen.rows_STB.shape
    rows = seen.rows_STB.reshape(streams * steps, -1).numpy()
    values = seen.value_STB.reshape(streams * steps, -1).numpy()
    there = (rows >= 0) & np.isfinite(values)
    at = np.nonzero(there)[0], rows[there]
    shape = streams * steps, num
    visits = sparse.csr_matrix((np.ones(len(at[0])), at), shape)
    measured = sparse.csr_matrix((values[there], at), shape)
    visited, measured_T = visits.T.tocsr(), measured.T.tocsr()

    left = target_NF[known] - mean_NF[known]
    covariance = np.cov(left.T).reshape(width, width) + _SHRUNK * np.eye(width)
    precision = np.linalg.inv(covariance)
    x = mean_NF.copy()
    x[known] = target_NF[known]
    unsure = np.repeat(covariance[None], num, axis=0)
    unsure[known] = 0
    noise = 0.3 * float(values[there].var())
    count = max(1, int(there.sum()))
    for _ in range(ALTERNATIONS):
        x1 = np.concatenate([x, np.ones((num, 1))], axis=1)
        square = np.einsum("ni,nj->nij", x1, x1)
        square[:, :width, :width] += unsure
        gram = (visits @ square.reshape(num, -1)).reshape(streams, steps, width + 1, width + 1)
        right = (measured @ x1).reshape(streams, steps, width + 1)
        weight = _smoothed(gram / noise, right / noise).reshape(streams * steps, width + 1)
        w, bias = weight[:, :width], weight[:, width]
        outer = np.einsum("si,sj->sij", w, w).reshape(len(w), -1)
        gram_N = (visited @ outer).reshape(num, width, width)
        right_N = measured_T @ w - visited @ (w * bias[:, None])
        unsure = np.linalg.inv(gram_N / noise + precision)
        pull = right_N / noise + mean_NF @ precision
        x = np.einsum("nij,nj->ni", unsure, pull)
        x[known], unsure[known] = target_NF[known], 0
        products = (x[at[1]] * w[at[0]]).sum(axis=1) + bias[at[0]]
        missing = ((values[there] - products) ** 2).sum() + (unsure * gram_N).sum()
        noise = max(float(missing) / count, 1e-8)
    return np.asarray(x)


def _smoothed(gram_STGG: np.ndarray, right_STG: np.ndarray) -> np.ndarray:
    """(S, T, G) weights of each step: a random walk from zero, whose intercept starts anywhere."""
    _, steps, size = right_STG.shape
    tight = 1 / STEP**2
    eye = tight * np.eye(size)
    inverses: list[np.ndarray] = []
    rights: list[np.ndarray] = []
    for step in range(steps):
        held = gram_STGG[:, step] + (2 if step < steps - 1 else 1) * eye
        right = right_STG[:, step]
        if step:
            held = held - tight**2 * inverses[-1]
            right = right + tight * np.einsum("sij,sj->si", inverses[-1], rights[-1])
        else:
            held[:, -1, -1] -= tight
        inverses.append(np.linalg.inv(held))
        rights.append(right)
    weights = [np.einsum("sij,sj->si", inverses[-1], rights[-1])]
    for inverse, right in zip(inverses[-2::-1], rights[-2::-1], strict=True):
        weights.append(np.einsum("sij,sj->si", inverse, right + tight * weights[-1]))
    return np.stack(weights[::-1], axis=1)
