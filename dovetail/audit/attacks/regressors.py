"""Regressors that learn columns from a few known rows, and estimate how well they do on the others.

Ridge and kernel regression expect what they miss of each known row when it is left out, a forest
what its trees that did not see a row miss of it. So known rows also say how to weigh the three
(stacking, Wolpert 1992, with weights of 0 or more). A network expects what it misses of a fifth.

Letters: N rows, K known ones, D numbers of a view, F columns.

Before them come the views that attackers make of numbers: one scale, directions, side by side.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dovetail.methods.facets.views import scaled
from dovetail.models.optimizers import Optimizer


def directions(x_NF: np.ndarray) -> np.ndarray:
    """Each row at length 1; rows of zeros stay zeros."""
    return np.asarray(x_NF / np.linalg.norm(x_NF, axis=1, keepdims=True).clip(1e-12))


def message_views(views: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Views of what was seen of each row, whole and as a direction."""
    shown: dict[str, np.ndarray] = {}
    for name, x in views.items():
        if name == "first":  # of networks that were hardly trained; for columns only
            continue
        shown[f"{name} as sent"] = np.asarray(x, dtype=np.float64)
        shown[f"{name}, direction"] = directions(x)
    return shown


def local_views(x_NF: np.ndarray | None) -> dict[str, np.ndarray]:
    """Views of what the attacker has by itself."""
    if x_NF is None:
        return {}
    return {"own columns": scaled(x_NF), "own columns, direction": directions(scaled(x_NF))}


#: Of a forest.
_TREES = 60

_ALPHAS = np.logspace(-8, 5, 27)
_KERNEL_ALPHAS = np.logspace(-3, 1, 9)

#: Of a radial kernel: multiples of one over the median squared distance.
_WIDTHS = (0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class FittedView:
    """Learner fitted on one view.

    Attributes:
        guess_NF: of all rows.
        expected: minus the mean squared error that is expected of rows that are not known.
        unseen_KF: of each known row, as if it were not known; None: not told.
        family: of learners.
    """

    guess_NF: np.ndarray
    expected: float
    unseen_KF: np.ndarray | None = None
    family: str = ""


def fits(
    views: Mapping[str, np.ndarray], target_NF: np.ndarray, rows: np.ndarray, *, network: bool
) -> dict[str, FittedView]:
    """Learner and view -> what it guesses; ridge regression alone unless ``network`` is set."""
    found = {name: ridge(x, target_NF, rows) for name, x in views.items()}
    if not network:
        return found
    for name, x in views.items():
        if "all views" not in name:
            found[f"{name}, network"] = _network(x, target_NF, rows)
        if "direction" not in name:
            found[f"{name}, kernel"] = _kernel(x, target_NF, rows)
            found[f"{name}, forest"] = forest(x, target_NF, rows)
    return found


def best_of(found: Iterable[FittedView], target_NF: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(N, F) guesses of the learner that expects most of itself, or of the best of each family,
    weighted together."""
    found = list(found)
    best: dict[str, FittedView] = {}
    for fit in found:
        if fit.unseen_KF is not None:
            known = best.get(fit.family)
            best[fit.family] = fit if known is None or fit.expected > known.expected else known
    if len(best) > 1:
        found.append(_stacked([*best.values()], target_NF[rows]))
    return max(found, key=lambda fit: fit.expected).guess_NF


def _stacked(members: list[FittedView], known_KF: np.ndarray) -> FittedView:
    from scipy.optimize import nnls

    mean_F = known_KF.mean(axis=0)
    unseen = [fit.unseen_KF for fit in members if fit.unseen_KF is not None]
    columns = np.stack([(each - mean_F).ravel() for each in unseen], axis=1)
    weights, _ = nnls(columns, (known_KF - mean_F).ravel())
    guess = mean_F + sum(
        weight * (fit.guess_NF - mean_F) for weight, fit in zip(weights, members, strict=True)
    )
    left = columns @ weights - (known_KF - mean_F).ravel()
    return FittedView(np.asarray(guess), -float((left**2).mean()))


def ridge(x_ND: np.ndarray, target_NF: np.ndarray, rows: np.ndarray) -> FittedView:
    """Ridge regression, its strength by what is left of known rows that are left out."""
    from sklearn.linear_model import RidgeCV  # slow to import: for who attacks alone

    known = x_ND[rows], target_NF[rows]
    fitted = RidgeCV(_ALPHAS).fit(*known)
    guess = np.asarray(fitted.predict(x_ND)).reshape(target_NF.shape)
    centred = known[0] - known[0].mean(axis=0)
    unseen = _left_out(centred @ centred.T, known[1], float(fitted.alpha_))
    return FittedView(guess, float(fitted.best_score_), unseen, "ridge")


def _left_out(gram_KK: np.ndarray, known_KF: np.ndarray, alpha: float) -> np.ndarray:
    """(K, F) of each known row, fitted by the others: exact, the mean of columns aside."""
    num = len(gram_KK)
    hat = gram_KK @ np.linalg.inv(gram_KK + alpha * np.eye(num)) + 1 / num
    missing = known_KF - (hat @ (known_KF - known_KF.mean(axis=0)) + known_KF.mean(axis=0))
    return np.asarray(known_KF - missing / (1 - np.diag(hat)).clip(1e-3)[:, None])


def _kernel(x_ND: np.ndarray, target_NF: np.ndarray, rows: np.ndarray) -> FittedView:
    """Ridge regression with a radial kernel: near rows have like columns."""
    known = x_ND[rows]
    squared_NK = (x_ND**2).sum(axis=1)[:, None] - 2 * x_ND @ known.T + (known**2).sum(axis=1)
    squared_KK = squared_NK[rows]
    median = float(np.median(squared_KK[squared_KK > 1e-9])) if (squared_KK > 1e-9).any() else 1.0
    mean_F = target_NF[rows].mean(axis=0)
    centred = target_NF[rows] - mean_F
    best = -np.inf, np.zeros_like(centred), centred, 1.0
    for width in _WIDTHS:
        gram = np.exp(-width * squared_KK.clip(0) / median)
        for alpha in _KERNEL_ALPHAS:
            inverse = np.linalg.inv(gram + alpha * np.eye(len(rows)))
            coefficient = inverse @ centred
            missing = coefficient / np.diag(inverse)[:, None]
            expected = -float((missing**2).mean())
            if expected > best[0]:
                best = expected, centred - missing, coefficient, width
    expected, unseen, coefficient, width = best
    guess = np.exp(-width * squared_NK.clip(0) / median) @ coefficient
    return FittedView(mean_F + guess, expected, mean_F + unseen, "kernel")


def forest(x_ND: np.ndarray, target_NF: np.ndarray, rows: np.ndarray) -> FittedView:
    """Trees, for what is no linear function: categories, steps, bins."""
    from sklearn.ensemble import RandomForestRegressor

    trees = RandomForestRegressor(
        _TREES, min_samples_leaf=2, max_features=0.3, oob_score=True, random_state=0
    )
    with warnings.catch_warnings():  # a row that all trees have seen is judged by none
        warnings.simplefilter("ignore", UserWarning)
        trees.fit(x_ND[rows], target_NF[rows])
    guess = np.asarray(trees.predict(x_ND)).reshape(target_NF.shape)
    unseen = np.asarray(trees.oob_prediction_).reshape(len(rows), -1)
    return FittedView(guess, -float(((unseen - target_NF[rows]) ** 2).mean()), unseen, "forest")


def _network(x_ND: np.ndarray, target_NF: np.ndarray, rows: np.ndarray) -> FittedView:
    """A hidden layer; it stops early on a fifth of the known rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(x_ND.shape[1], 128),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, target_NF.shape[1]),
        )
        x = torch.from_numpy(x_ND.astype(np.float32))
        target = torch.from_numpy(target_NF.astype(np.float32))
        held, used = rows[: len(rows) // 5], rows[len(rows) // 5 :]
        optimizer = Optimizer(
            net.parameters(), kind="adamw", learning_rate=3e-3, weight_decay=1e-2, fused=False
        )
        best, kept = -np.inf, net.state_dict()
        for step in range(200):
            net.train()
            loss = nn.functional.mse_loss(net(x[used]), target[used])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                net.eval()
                with torch.no_grad():
                    expected = -float(nn.functional.mse_loss(net(x[held]), target[held]))
                    if expected > best:
                        best = expected
                        kept = {name: each.clone() for name, each in net.state_dict().items()}
        net.load_state_dict(kept)
        with torch.no_grad():
            guess = net.eval()(x).numpy()  # of all rows once: they are many more than those known
    return FittedView(guess, best)
