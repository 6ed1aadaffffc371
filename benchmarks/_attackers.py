"""Attackers that are held back: no audit uses them, and they judge what an audit says.

Each is a recipe that an engineer would try next: boosted trees, randomised trees, kernel regression
and a network on what was sent; mixtures, label spreading and trees for labels; the label owner's
optimiser followed step by step for APFed-D's gradients; shadow models for members. The best of all
recipes counts, picked by its score: no attacker could pick so well.

Letters: N rows, F columns of the other side, K known rows, S streams, T steps, B rows of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from lightgbm import LGBMRegressor
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import SpectralClustering
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.semi_supervised import LabelSpreading
from torch import Tensor

from dovetail.audit.attacks import factors
from dovetail.methods.facets.views import scaled, whitened

#: Rows that are scored, draws of known ones, and columns that boosted trees look for.
SCORED, DRAWS, BOOSTED_COLUMNS = 1500, 2, 12

KNOWN = 100

#: Pairs of shadow models.
_SHADOWS = 4


def _views(columns: np.ndarray | None, sent: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each thing that was sent and all of it together, with and without own columns."""
    each = {name: whitened(x, width=48) for name, x in sent.items()}
    if len(each) > 1:
        each["all"] = np.hstack(list(each.values()))
    if columns is None:
        return each
    return each | {f"{name} and own": np.hstack([x, scaled(columns)]) for name, x in each.items()}


def r2(guess_NF: np.ndarray, target_NF: np.ndarray) -> float:
    """Mean over columns; a column that hardly varies in these rows counts as in the audit."""
    spread = np.maximum(((target_NF - target_NF.mean(axis=0)) ** 2).mean(axis=0), 0.1)
    return float((1 - ((guess_NF - target_NF) ** 2).mean(axis=0) / spread).mean())


def columns(
    columns: np.ndarray | None, sent: Mapping[str, np.ndarray], target_NF: np.ndarray
) -> dict[str, float]:
    """Recipe -> mean R2 of the other side's columns, from ``KNOWN`` rows."""
    rng = np.random.default_rng(77)
    varying = np.flatnonzero(target_NF.std(axis=0) > 1e-6)
    target = scaled(target_NF[:, varying])
    found: dict[str, list[float]] = {}
    for _ in range(DRAWS):
        order = rng.permutation(len(target))
        known, rest = order[:KNOWN], order[KNOWN : KNOWN + SCORED]
        for view, x in _views(columns, sent).items():
            for name, guess in _regressors(x[known], target[known], x[rest]):
                found.setdefault(f"{name}, {view}", []).append(r2(guess, target[rest]))
    return {name: float(np.mean(each)) for name, each in found.items()}


def _regressors(
    x_KD: np.ndarray, y_KF: np.ndarray, x_ND: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trees = ExtraTreesRegressor(100, min_samples_leaf=2, max_features=0.4, random_state=1)
        rough = trees.fit(x_KD, y_KF).predict(x_ND).reshape(len(x_ND), -1)
        yield "randomised trees", rough
        kernel = GridSearchCV(
            KernelRidge(kernel="rbf"),
            {"alpha": [0.03, 0.3, 3.0], "gamma": np.array([0.1, 1.0]) / x_KD.shape[1]},
            cv=4,
        )
        yield "kernel regression", kernel.fit(x_KD, y_KF).predict(x_ND).reshape(len(x_ND), -1)
        network = MLPRegressor(hidden_layer_sizes=(64,), alpha=1.0, max_iter=200, random_state=1)
        outputs = network.fit(x_KD, y_KF if y_KF.shape[1] > 1 else y_KF[:, 0]).predict(x_ND)
        yield "network", outputs.reshape(len(x_ND), -1)
        if y_KF.shape[1] <= BOOSTED_COLUMNS:
            boosted = np.empty_like(rough)
            for index, y in enumerate(y_KF.T):
                model = LGBMRegressor(
                    n_estimators=60, num_leaves=6, min_child_samples=5, verbose=-1, n_jobs=1
                )
                boosted[:, index] = model.fit(x_KD, y).predict(x_ND)
            yield "boosted trees", boosted


def labels(
    columns: np.ndarray | None, sent: Mapping[str, np.ndarray], labels_N: np.ndarray
) -> dict[str, float]:
    """Recipe -> share of labels right, each class counting the same; ten known of each at most."""
    classes, y = np.unique(labels_N, return_inverse=True)
    num = len(classes)
    rng = np.random.default_rng(77)
    rows = rng.permutation(len(y))[:SCORED]
    y = y[rows]
    views = {name: x[rows] for name, x in _views(columns, sent).items()}
    found: dict[str, list[float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for view, x in views.items():
            parts = x[:, :10]
            mixture = GaussianMixture(num, covariance_type="diag", n_init=2, random_state=1)
            found[f"mixture, {view}"] = [_named(mixture.fit_predict(parts), y, num)]
            spectral = SpectralClustering(
                num, affinity="nearest_neighbors", n_neighbors=15, random_state=1
            )
            found[f"spectral clusters, {view}"] = [_named(spectral.fit_predict(parts), y, num)]
        for _ in range(DRAWS):
            known = np.concatenate(
                [rng.choice(np.flatnonzero(y == each), 10, replace=False) for each in range(num)]
            )
            rest = np.setdiff1d(np.arange(len(y)), known)
            for view, x in views.items():
                for name, guess in _classifiers(x, y, known):
                    score = _balanced(guess[rest], y[rest], num)
                    found.setdefault(f"{name}, {view}", []).append(score)
    return {name: float(np.mean(each)) for name, each in found.items()}


def _classifiers(
    x: np.ndarray, y: np.ndarray, known: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    outputs = np.full(len(y), -1)
    outputs[known] = y[known]
    spreading = LabelSpreading(kernel="knn", n_neighbors=15, max_iter=50).fit(x, outputs)
    yield "label spreading", spreading.transduction_
    trees = ExtraTreesClassifier(200, min_samples_leaf=2, random_state=1)
    yield "randomised trees", trees.fit(x[known], y[known]).predict(x)
    yield (
        "logistic regression",
        LogisticRegression(C=0.1, max_iter=300).fit(x[known], y[known]).predict(x),
    )


def _balanced(guess: np.ndarray, y: np.ndarray, num: int) -> float:
    return float(np.mean([(guess[y == each] == each).mean() for each in range(num)]))


def _named(clusters: np.ndarray, y: np.ndarray, num: int) -> float:
    """The best naming of clusters."""
    table = np.zeros((num, num))
    np.add.at(table, (clusters, y), 1 / np.bincount(y, minlength=num)[y])
    return float(table[linear_sum_assignment(-table)].sum() / num)


# --- APFed-D's gradients --------------------------------------------------------------------------

#: Of the label owner's linear part, by default; an attacker knows the defaults.
_RATE, _DECAY = 0.01, 0.3

#: How far rows move in an iteration, and how many there are.
_MOVE, _ITERATIONS = 0.01, 60

#: Of the known rows, those that teach what a factorisation gets wrong.
_TEACH = 30


@dataclass(frozen=True, eq=False)
class Steps:
    """What a partner keeps of the linear part's gradients.

    Attributes:
        row_TKB: of each step, by member; -1 where there is none.
        error_TKBC: the gradient of outputs, of a mean over the batch.
        logit_TKBD: the owner's part of the logits less the first class's; NaN of fillers.
    """

    row_TKB: Tensor
    error_TKBC: Tensor
    logit_TKBD: Tensor


def rebuilt(
    columns: np.ndarray, seen: factors.Measurements, steps: Steps, target_NF: np.ndarray
) -> dict[str, float]:
    """Recipe -> mean R2 of the owner's columns, from ``KNOWN`` rows and all logits.

    "followed": the gradient of the owner's weights is errors times rows. With rows of its own
    making an attacker computes each step of AdamW from weights of zero, and follows the gradient of
    what the logits miss back to the rows; it begins at a factorisation.
    "corrected": a factorisation from most of the known rows, and trees that learn from the others
    what it gets wrong.
    """
    varying = np.flatnonzero(target_NF.std(axis=0) > 1e-6)
    target = np.clip(target_NF[:, varying], -factors.FURTHEST, factors.FURTHEST).astype(np.float64)
    rng = np.random.default_rng(77)
    order = rng.permutation(len(target))
    known, rest = order[:KNOWN], order[KNOWN:]
    x = scaled(columns)
    scale = target.std(axis=0).clip(1e-9)

    def score(guess: np.ndarray) -> float:
        outputs = guess.clip(target[known].min(axis=0), target[known].max(axis=0))
        return r2((outputs / scale)[rest], (target / scale)[rest])

    def from_local(rows: np.ndarray) -> np.ndarray:
        ridge = RidgeCV(np.logspace(-1, 5, 13)).fit(x[rows], target[rows])
        if ridge.best_score_ > -target[rows].var():
            return np.asarray(ridge.predict(x)).reshape(target.shape)
        return np.repeat(target[rows].mean(axis=0, keepdims=True), len(target), axis=0)

    mean = from_local(known)
    start = factors._factorised(seen, target, known, mean)
    found = {"followed": score(_followed(start, mean, steps, target, known))}
    most, others = known[_TEACH:], known[:_TEACH]
    rough = factors._factorised(seen, target, most, from_local(most))
    trees = ExtraTreesRegressor(200, min_samples_leaf=2, random_state=1)
    wrong = trees.fit(np.hstack([rough, x])[others], (target - rough)[others])
    moved = rough + np.asarray(wrong.predict(np.hstack([rough, x]))).reshape(rough.shape)
    return found | {"factorised": score(start), "corrected": score(moved)}


def _followed(
    start_NF: np.ndarray,
    mean_NF: np.ndarray,
    steps: Steps,
    target_NF: np.ndarray,
    known: np.ndarray,
) -> np.ndarray:
    """Rows by which AdamW, from weights of zero, gives all logits."""
    there = steps.logit_TKBD.isfinite().all(dim=-1) & (steps.row_TKB >= 0)
    row_TKB = steps.row_TKB.clamp(min=0)
    error, logit = steps.error_TKBC.float() * there[..., None], steps.logit_TKBD.nan_to_num()
    left = target_NF[known] - mean_NF[known]
    precision = np.linalg.inv(np.cov(left.T) + 0.03 * np.eye(target_NF.shape[1]))
    mean, shrunk = torch.from_numpy(mean_NF).float(), torch.from_numpy(precision).float()
    fixed, fixed_x = torch.from_numpy(known), torch.from_numpy(target_NF[known]).float()
    made = torch.from_numpy(start_NF).float().requires_grad_()
    optimizer = torch.optim.Adam([made], lr=_MOVE)
    for step in range(_ITERATIONS):
        optimizer.param_groups[0]["lr"] = _MOVE * 0.5 * (1 + np.cos(np.pi * step / _ITERATIONS))
        rows = made.index_copy(0, fixed, fixed_x)
        missing = torch.zeros(())
        for part, weight in enumerate(_trajectory(rows, row_TKB, error)):
            reported = rows[row_TKB[part]] @ weight.transpose(1, 2)
            away = (logit[part].float() - (reported - reported[..., :1])[..., 1:]) * there[part][
                ..., None
            ]
            num = there[part].sum(dim=1).clamp(min=1)[:, None, None]
            bias = away.sum(dim=1, keepdim=True) / num  # of the head, which is not followed
            missing = missing + ((away - bias) * there[part][..., None]).square().sum()
        apart = rows - mean
        prior = ((apart @ shrunk) * apart).mean()
        optimizer.zero_grad()
        (missing / there.sum() + 1e-3 * prior).backward()
        optimizer.step()
    return made.detach().double().numpy()


def _trajectory(rows_NF: Tensor, row_TKB: Tensor, error_TKBC: Tensor) -> Iterator[Tensor]:
    """(K, C, F) weights before each step."""
    num_members, num_classes = row_TKB.shape[1], error_TKBC.shape[-1]
    weight = torch.zeros(num_members, num_classes, rows_NF.shape[1])
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, (rows_KB, error_KBC) in enumerate(zip(row_TKB, error_TKBC, strict=True), start=1):
        yield weight
        gradient = torch.einsum("kbc,kbf->kcf", error_KBC, rows_NF[rows_KB])
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.square()
        length = (square / (1 - 0.999**step) + 1e-16).sqrt() + 1e-8
        weight = weight * (1 - _RATE * _DECAY) - _RATE * mean / (1 - 0.9**step) / length


# --- Members --------------------------------------------------------------------------------------


def members(
    probability: Callable[[Tensor], Tensor],
    inside: tuple[Tensor, Tensor],
    outside: tuple[Tensor, Tensor],
) -> dict[str, float]:
    """Recipe -> AUC of who was trained on.

    Args:
        probability: rows -> (N, C) what the network says of them.
        inside, outside: rows and labels, of those that trained it and of others.
    """
    num = min(len(inside[0]), len(outside[0]), SCORED // 2)
    rng = np.random.default_rng(77)
    drawn = [(x, y, rng.permutation(len(x))[:num]) for x, y in (inside, outside)]
    x = torch.cat([each[rows] for each, _, rows in drawn])
    y = torch.cat([each[rows] for _, each, rows in drawn]).long().numpy()
    is_in = np.arange(2 * num) < num
    outputs = probability(x).double().numpy()
    rows = np.arange(2 * num)
    flat, num_classes = scaled(x.flatten(1).double().numpy()), outputs.shape[1]
    unseen = np.full((2 * _SHADOWS, 2 * num), np.nan)
    for index in range(_SHADOWS):
        order = rng.permutation(2 * num)
        for half, (used, others) in enumerate(
            ((order[:num], order[num:]), (order[num:], order[:num]))
        ):
            trees = ExtraTreesClassifier(100, min_samples_leaf=3, random_state=index)
            trees.fit(flat[used], y[used])
            given = np.zeros((num, num_classes))
            given[:, trees.classes_] = trees.predict_proba(flat[others])
            unseen[2 * index + half, others] = given[np.arange(num), y[others]]
    p, mean = _logit(outputs[rows, y]), _logit(np.nanmean(unseen, axis=0))
    spread = np.nanstd(_logit(unseen), axis=0)
    scores = {
        "confidence": p,
        "certainty": (outputs.clip(1e-9) * np.log(outputs.clip(1e-9))).sum(axis=1),
        "largest probability": outputs.max(axis=1),
        "shadow trees": p - mean,
        "shadow trees, by their spread": (p - mean) / (spread + 0.3),
    }
    return {name: float(roc_auc_score(is_in, each)) for name, each in scores.items()}


def _logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(p / (1 - p)))
