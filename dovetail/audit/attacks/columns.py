"""Columns from codes, embeddings and returned gradients, by regression from a few known rows.

Papers: "UIFV" (2024) and Jiang et al., "Comprehensive Analysis of Privacy Leakage in Vertical
Federated Learning During Prediction", PoPETs 2022, for inversion by a network from known rows;
ridge regression is the linear case. Kumar et al., "Is Feature Selection Private?" class of attacks
on distances: they are features here like any other.

Threat: the receiver knows so many rows of the other side whole (customers of both, its own staff)
and learns from them how what it is shown goes with the columns, beside columns of its own.

Baseline: the same from its own columns; who has none knows the columns' means.

R2 is the share of the variance explained, averaged over columns that vary, on the other rows.
Which view, and how strongly it is regularised, is chosen by leave-one-out on the known rows (of a
forest by what its trees have not seen), its own columns alone among them: messages that say nothing
are left aside.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from torch import nn

from dovetail.audit.attacks.views import directions, scaled, whitened
from dovetail.audit.verdict import Measured, Threat
from dovetail.models.optimizers import Optimizer

#: Rows the attacker knows, and how often they are drawn.
KNOWN = 100
DRAWS = 3

#: Columns that are looked for, drawn at random where there are more.
MAX_COLUMNS = 400

#: Of a column's variance, which is 1 over all rows, the least that its unknown rows count as.
_LEAST_SPREAD = 0.1

#: Of a forest.
_TREES = 60

_ALPHAS = np.logspace(-8, 5, 27)


def threat(network: bool, known: int) -> Threat:
    """What inversion assumes."""
    return Threat(
        "inversion by a network or a forest" if network else "inversion by ridge regression",
        "UIFV 2024; Jiang et al. 2022",
        f"{known} rows of the other side, drawn at random",
        "the same from its own columns",
        "R2, mean over columns",
    )


def inversion(
    own: np.ndarray | None,
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
    beside: dict[str, np.ndarray] = {}
    if own is not None:
        beside = {"own columns": scaled(own)}
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
        alone = np.broadcast_to(mean, target.shape), -float(target[rows].var())
        guesses = {"means": alone} | _fits(beside, target, rows, network=network)
        attacks = guesses | _fits(shown, target, rows, network=network)
        for side, candidates in enumerate((attacks, guesses)):
            best, _ = max(candidates.values(), key=lambda each: each[1])
            errors[side, draw, rest] = (best[rest] - target[rest]) ** 2
        for name, (guess, _) in attacks.items():
            left = ((guess[rest] - target[rest]) ** 2).mean() / spread[draw, rest].mean()
            tried.setdefault(name, []).append(float(1 - left))
    # A category of a few rows that all are known would leave next to none to divide by.
    variance_F = np.maximum(np.nanmean(spread, axis=(0, 1)), _LEAST_SPREAD)
    r2_N = 1 - (errors / variance_F).mean(axis=-1)  # (2, draws, rows): its mean is the mean R2
    r2_F = 1 - np.nanmean(errors, axis=(1, 2)) / variance_F
    gain = r2_F[0] - np.maximum(r2_F[1], 0)
    place = int(gain.argmax())
    worst = names[varying[place]], float(r2_F[1, place]), float(r2_F[0, place])
    variants = {name: float(np.mean(each)) for name, each in tried.items()}
    return Measured(r2_N[0].astype(float), r2_N[1].astype(float), worst, variants)


def _fits(
    views: Mapping[str, np.ndarray], target: np.ndarray, rows: np.ndarray, *, network: bool
) -> dict[str, tuple[np.ndarray, float]]:
    """Learner and view -> guesses for all rows, and minus the error that the attacker expects."""
    found = {name: _fit(x, target, rows, network=network) for name, x in views.items()}
    if network:
        for name, x in views.items():
            if "direction" not in name:
                found[f"{name}, forest"] = _forest(x, target, rows)
    return found


def _forest(x: np.ndarray, target: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Trees, for what is no linear function: categories, steps, bins."""
    forest = RandomForestRegressor(
        _TREES, min_samples_leaf=2, max_features=0.3, oob_score=True, random_state=0
    )
    with warnings.catch_warnings():  # a row that all trees have seen is judged by none
        warnings.simplefilter("ignore", UserWarning)
        forest.fit(x[rows], target[rows])
    guess = np.asarray(forest.predict(x)).reshape(target.shape)
    unseen = np.asarray(forest.oob_prediction_).reshape(len(rows), -1)
    return guess, -float(((unseen - target[rows]) ** 2).mean())


def _fit(
    x: np.ndarray, target: np.ndarray, rows: np.ndarray, *, network: bool
) -> tuple[np.ndarray, float]:
    """Guesses for all rows, and minus the error that the attacker expects."""
    ridge = RidgeCV(_ALPHAS).fit(x[rows], target[rows])
    linear = np.asarray(ridge.predict(x)).reshape(target.shape), float(ridge.best_score_)
    if not network:
        return linear
    guess, expected = _network(x, target, rows)
    return (guess, expected) if expected > linear[1] else linear


def _network(x: np.ndarray, target: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """A hidden layer; it stops early on a fifth of the known rows, whose error it expects."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, target.shape[1])
        )
        x_NF = torch.from_numpy(x.astype(np.float32))
        t_NF = torch.from_numpy(target.astype(np.float32))
        held, used = rows[: len(rows) // 5], rows[len(rows) // 5 :]
        optimizer = Optimizer(
            net.parameters(), kind="adamw", learning_rate=3e-3, weight_decay=1e-2, fused=False
        )
        best, guess = -np.inf, np.zeros_like(target)
        for step in range(200):
            net.train()
            loss = nn.functional.mse_loss(net(x_NF[used]), t_NF[used])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                net.eval()
                with torch.no_grad():
                    expected = -float(nn.functional.mse_loss(net(x_NF[held]), t_NF[held]))
                    if expected > best:
                        best, guess = expected, net(x_NF).numpy()
    return guess, best
