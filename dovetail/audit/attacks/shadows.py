"""Shadow models: what models of the same kind say of rows that they saw, and of rows they did not.

Carlini, Chien, Nasr, Song, Terzis, Tramèr, "Membership Inference Attacks From First Principles",
IEEE S&P 2022 (LiRA, arXiv:2112.03570). Each row is in half of the shadow models and out of the
others. With phi = log(p / (1 - p)) of its label, its score is how much likelier phi of the model
that is attacked is among those that saw the row than among those that did not:

    log N(phi; mean_in, spread_in) - log N(phi; mean_out, spread_out)

Departure: spreads are of all rows together, as the paper has it for few shadow models.

Which kind of model the shadows are is chosen by how well two of each kind agree with the model
about rows that they did not see, which says nothing of members. Randomised trees are asked besides:
they show best how hard a row is, which a score is compared with (Watson et al., "On the Importance
of Difficulty Calibration in Membership Inference Attacks", ICLR 2022).

Letters: M shadow models, N rows, F columns, C classes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dovetail.models.optimizers import Optimizer

#: Shadow models of a model.
SHADOWS = 16

#: Of more columns or classes only networks are tried: trees of each class would take minutes.
_MOST_COLUMNS, _MOST_CLASSES = 300, 10

#: Probabilities are no nearer to 0 and 1 than this where a row's difficulty is taken off.
_LEAST_CALIBRATED = 1e-3


@dataclass(frozen=True, eq=False)
class Shadows:
    """Outputs of shadow models.

    Attributes:
        kind: of model.
        label_MN: what each gives each row's own label.
        saw_MN: which rows each learned from.
    """

    kind: str
    label_MN: np.ndarray
    saw_MN: np.ndarray

    @property
    def unseen(self) -> np.ndarray:
        """(N,) what those that did not see a row give its label, on the mean."""
        return np.asarray((self.label_MN * ~self.saw_MN).sum(axis=0) / (~self.saw_MN).sum(axis=0))

    def likelihood(self, label_N: np.ndarray) -> np.ndarray:
        """(N,) LiRA's score of what the model gives each row's own label."""
        phi_MN, phi_N = _logit(self.label_MN), _logit(label_N)
        score_N = np.zeros(len(phi_N))
        for sign, mask_MN in ((1, self.saw_MN), (-1, ~self.saw_MN)):
            mean_N = (phi_MN * mask_MN).sum(axis=0) / mask_MN.sum(axis=0)
            away_MN = (phi_MN - mean_N)[mask_MN]
            variance = max(float((away_MN**2).sum() / max(1, mask_MN.sum() - len(phi_N))), 1e-6)
            score_N += sign * -0.5 * ((phi_N - mean_N) ** 2 / variance + np.log(variance))
        return np.asarray(score_N)

    def surprise(self, label_N: np.ndarray) -> np.ndarray:
        """(N,) phi of the model, less what those that did not see a row would have."""
        least = _LEAST_CALIBRATED  # how sure it is beyond this says nothing of members
        known, unseen = (each.clip(least, 1 - least) for each in (label_N, self.unseen))
        return np.asarray(_logit(known) - _logit(unseen))


def shadows(
    x_NF: np.ndarray,
    y_N: np.ndarray,
    num_classes: int,
    label_N: np.ndarray,
) -> list[Shadows]:
    """``SHADOWS`` models of one kind, and as many randomised trees, each of a random half.

    Args:
        label_N: what the model that is attacked gives each row's own label.
    """
    x_NF = (x_NF - x_NF.mean(axis=0)) / np.maximum(x_NF.std(axis=0), 1e-6)
    kinds = ["network", "boosting", "linear", "trees"]
    if x_NF.shape[1] > _MOST_COLUMNS or num_classes > _MOST_CLASSES:
        kinds = ["network"]
    rng = np.random.default_rng(0)
    saw_MN = np.zeros((SHADOWS, len(y_N)), dtype=bool)
    for pair in range(SHADOWS // 2):
        half = rng.permutation(len(y_N))[: len(y_N) // 2]
        saw_MN[2 * pair, half] = True
        saw_MN[2 * pair + 1] = ~saw_MN[2 * pair]
    outputs: dict[str, list[np.ndarray]] = {}

    def add(kind: str, index: int) -> None:
        used = saw_MN[index]
        outputs_NC = _outputs(kind, x_NF[used], y_N[used], num_classes, index, x_NF)
        outputs.setdefault(kind, []).append(outputs_NC[np.arange(len(y_N)), y_N])

    for kind in kinds:
        add(kind, 0)
        add(kind, 1)
    alike = {
        kind: _agreement(np.stack(each), saw_MN[:2], label_N) for kind, each in outputs.items()
    }
    kind = max(alike, key=lambda each: alike[each])
    for index in range(2, SHADOWS):
        add(kind, index)
    found = [Shadows(kind, np.stack(outputs[kind]), saw_MN)]
    if "trees" in kinds and kind != "trees":
        for index in range(2, SHADOWS):
            add("trees", index)
        found.append(Shadows("trees", np.stack(outputs["trees"]), saw_MN))
    return found


def _agreement(label_MN: np.ndarray, saw_MN: np.ndarray, label_N: np.ndarray) -> float:
    """Correlation with the model on rows that they did not see."""
    unseen = _logit((label_MN * ~saw_MN).sum(axis=0))
    model = _logit(label_N)
    if unseen.std() < 1e-9 or model.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(unseen, model)[0, 1])


def _logit(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, 1e-5, 1 - 1e-5)
    return np.asarray(np.log(p / (1 - p)))


def _estimator(kind: str, num_classes: int, seed: int) -> Any:
    """Estimator of other kinds than networks."""
    # Slow to import: for who attacks alone.
    from lightgbm import LGBMClassifier
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression

    match kind:
        case "boosting":
            trees = 60 if num_classes == 2 else 20
            return LGBMClassifier(
                n_estimators=trees, num_leaves=15, verbose=-1, n_jobs=1, random_state=0
            )
        case "linear":
            return LogisticRegression(C=0.1, max_iter=200)
    # They hardly learn by heart what they did not see: how hard a row is, they tell best.
    return ExtraTreesClassifier(60, min_samples_leaf=3, random_state=seed)


def _outputs(
    kind: str, x: np.ndarray, y: np.ndarray, num_classes: int, seed: int, rows: np.ndarray
) -> np.ndarray:
    """Class probabilities of rows, of a model that learned x and y."""
    if kind == "network":
        return _network(x, y, num_classes, seed, rows)
    model = _estimator(kind, num_classes, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
        whole = np.zeros((len(rows), num_classes))  # a half may have had no row of a class
        whole[:, model.classes_] = model.predict_proba(rows)
    return whole


def _network(
    x: np.ndarray, y: np.ndarray, num_classes: int, seed: int, rows: np.ndarray
) -> np.ndarray:
    x_NF, y_N = torch.from_numpy(x).float(), torch.from_numpy(y).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, num_classes))
        optimizer = Optimizer(net.parameters(), kind="adam", learning_rate=3e-3, fused=False)
        for _ in range(15):
            for batch in torch.randperm(len(y_N)).split(64):
                loss = nn.functional.cross_entropy(net(x_NF[batch]), y_N[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        return np.asarray(net(torch.from_numpy(rows).float()).softmax(dim=1).double())
