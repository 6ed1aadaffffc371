"""Labels from codes and from gradients: by clusters, and by completing a few known labels.

Papers: "SimLIA" (label inference by similarity, 2024) for clusters; Fu et al., "Label Inference
Attacks Against Vertical Federated Learning", USENIX Security 2022 (PMC), for completion; Li et al.,
"Label Leakage and Protection in Two-party Split Learning", ICLR 2022 (arXiv:2102.08504), for norm
and direction of gradients.

Threat: honest but curious, of the receiver of codes or gradients. Clusters need no label; the best
naming of clusters counts, which bounds from above what naming them could give. Completion is given
one label or ten of each class. The gradient of an output reveals a label by its sign alone.

Baseline: the same on the attacker's own columns; who has none guesses. Shares are of rows, every
class counting the same, so that guessing gives 1 / C whatever the classes' sizes.

Departure from Fu et al.: completion by regularised logistic regression, and by randomised trees
from ten labels a class, in place of MixMatch. Of several labels each is
looked for by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dovetail.audit.attacks.regressors import local_views, message_views
from dovetail.audit.verdict import Measured
from dovetail.data import Classification, MultiLabel, MultiTarget, Survival, Task
from dovetail.methods.facets.audited import Threat
from dovetail.methods.facets.views import scaled

BALANCED = "share of labels right, each class counting the same"

CLUSTERS = Threat(
    "clusters",
    "SimLIA 2024",
    "no label; the number of classes",
    "k-means on its own columns",
    BALANCED,
)

OUTPUT_SIGN = Threat(
    "sign of the output's gradient",
    "Li et al. 2021 (arXiv:2102.08504)",
    "no label: the class with the most negative gradient",
    "guessing",
    BALANCED,
)

NORM = Threat(
    "norm of gradients",
    "Li et al. 2021 (arXiv:2102.08504)",
    "no label; that one class is rarer",
    "guessing",
    "AUC of the gradient's norm",
)

#: Rows on which k-means is fitted, and draws of known labels.
MAX_FITTED = 2000
DRAWS = {1: 10, 10: 4}

#: Most rows an attack is scored on.
MAX_SCORED = 2000


def completion_threat(known: int) -> Threat:
    """Assumptions of completing from so many labels a class."""
    return Threat(
        f"completion from {known} a class",
        "Fu et al. 2022 (PMC, with logistic regression)",
        f"{known} known label{'s' if known > 1 else ''} of each class, drawn at random",
        "the same from its own columns",
        BALANCED,
    )


def balanced(right_RN: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """(R, N) contributions whose mean over a draw is the mean over classes of the share right.

    A row differs from that mean by how it differs from its class, so that their spread is the
    mean's own, whatever the classes' sizes.
    """
    rights = np.full(right_RN.shape, np.nan)
    for draw, right in enumerate(right_RN):
        scored = np.isfinite(right)
        classes, index, count = np.unique(labels_N[scored], return_inverse=True, return_counts=True)
        share = np.bincount(index, weights=right[scored]) / count
        weight = scored.sum() / (len(classes) * count[index])
        rights[draw, scored] = share.mean() + (right[scored] - share[index]) * weight
    return rights


def clusters(
    columns: np.ndarray | None, views: Mapping[str, np.ndarray], labels_N: np.ndarray
) -> Measured:
    """k-means with a cluster a class; the best naming of clusters counts."""
    from scipy.optimize import linear_sum_assignment  # slow to import: for who attacks alone
    from sklearn.cluster import KMeans

    classes, labels = np.unique(labels_N, return_inverse=True)
    num = len(classes)

    def right(x: np.ndarray) -> np.ndarray:
        model = KMeans(num, n_init=4, random_state=0).fit(x[:MAX_FITTED])
        index = model.predict(x)
        table = np.zeros((num, num))
        np.add.at(table, (index, labels), 1 / np.bincount(labels)[labels])
        rows, named = linear_sum_assignment(-table)
        return np.asarray((named[np.argsort(rows)][index] == labels)[None], dtype=float)

    guess = np.full((1, len(labels)), 1 / num)
    return _best(
        {name: right(x) for name, x in _with_scaled(message_views(views)).items()},
        {name: right(x) for name, x in local_views(columns).items()},
        guess,
        labels,
    )


def completion(
    columns: np.ndarray | None, views: Mapping[str, np.ndarray], labels_N: np.ndarray, known: int
) -> Measured | None:
    """Logistic regression from so many known labels a class; None where there are too few."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    classes, labels = np.unique(labels_N, return_inverse=True)
    if len(classes) < 2 or np.bincount(labels).min() <= known:
        return None
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(DRAWS[known]):
        draws.append(
            np.concatenate(
                [
                    rng.choice(np.flatnonzero(labels == each), known, replace=False)
                    for each in range(len(classes))
                ]
            )
        )

    def right(x: np.ndarray, *, trees: bool = False) -> np.ndarray:
        rights = np.full((len(draws), len(x)), np.nan)
        for draw, rows in enumerate(draws):
            model = LogisticRegression(max_iter=200)
            if trees:
                model = ExtraTreesClassifier(100, min_samples_leaf=2, random_state=0)
            with warnings.catch_warnings():  # codes of large numbers; an attacker takes what it has
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(x[rows], labels[rows])
            rights[draw] = model.predict(x) == labels
            rights[draw, rows] = np.nan
        return rights

    shown = _with_scaled(message_views(views))
    beside = local_views(columns)
    if columns is not None:  # what it has and what it was shown, side by side
        for name in list(shown):
            if name.endswith("direction"):
                shown[f"{name}, with own"] = np.hstack([scaled(shown[name]), scaled(columns)])
    guess = np.full((len(draws), len(labels)), 1 / len(classes))
    attacks = {name: right(x) for name, x in shown.items()}
    others = {name: right(x) for name, x in beside.items()}
    if known > 1:  # of one label a class trees know nothing
        last = scaled(views["last"])
        grown = {"last, trees": last}
        if columns is not None:
            others["own columns, trees"] = right(scaled(columns), trees=True)
            grown = {"last, with own, trees": np.hstack([last, scaled(columns)])}
        attacks |= {name: right(x, trees=True) for name, x in grown.items()}
    return _best(attacks, others, guess, labels)


def output_sign(gradient_NC: np.ndarray, labels_N: np.ndarray) -> Measured:
    """The class whose output the gradient raises; of one output, its sign."""
    labels = labels_N.astype(int)
    if gradient_NC.shape[1] == 1:
        guessed = (gradient_NC[:, 0] < 0).astype(int)
    else:
        guessed = gradient_NC.argmin(axis=1)
    num = len(np.unique(labels))
    right = (guessed == labels)[None].astype(float)
    guess = np.full_like(right, 1 / num)
    return Measured(balanced(right, labels), balanced(guess, labels))


def norm(views: Mapping[str, np.ndarray], labels_N: np.ndarray) -> Measured:
    """Rows of the rarer class have larger gradients: their AUC, of two classes."""
    from sklearn.metrics import roc_auc_score

    classes, labels = np.unique(labels_N, return_inverse=True)
    assert len(classes) == 2
    rare = int(np.bincount(labels).argmin())
    scores = {name: np.linalg.norm(x, axis=1) for name, x in views.items()}
    aucs = {name: float(roc_auc_score(labels == rare, x)) for name, x in scores.items()}
    best = max(aucs, key=lambda name: max(aucs[name], 1 - aucs[name]))
    sign = 1 if aucs[best] >= 0.5 else -1
    contributions = auc_rows(sign * scores[best], labels == rare)
    return Measured(contributions[None], np.full_like(contributions, 0.5)[None], None, aucs)


def auc_rows(scores_N: np.ndarray, positive_N: np.ndarray) -> np.ndarray:
    """(N,) contributions whose mean is the AUC, and whose spread is nearly its own (DeLong)."""
    positives, negatives = np.sort(scores_N[positive_N]), np.sort(scores_N[~positive_N])

    def share_below(values: np.ndarray, x: np.ndarray) -> np.ndarray:
        below = np.searchsorted(values, x, "left") + np.searchsorted(values, x, "right")
        return np.asarray(below / 2 / len(values))

    pairs_won = np.empty(len(scores_N))
    above = share_below(negatives, scores_N[positive_N])
    under = 1 - share_below(positives, scores_N[~positive_N])
    auc = above.mean()
    pairs_won[positive_N] = auc + (above - auc) * len(scores_N) / len(above)
    pairs_won[~positive_N] = auc + (under - auc) * len(scores_N) / len(under)
    return pairs_won


def _with_scaled(shown: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        **shown,
        **{f"{name}, scaled": scaled(x) for name, x in shown.items() if "direction" not in name},
    }


def _best(
    attack: Mapping[str, np.ndarray],
    baseline: Mapping[str, np.ndarray],
    guess_RN: np.ndarray,
    labels: np.ndarray,
) -> Measured:
    """The best of all variants on either side: fixed recipes, none chosen by what is scored."""

    def scored(right_RN: np.ndarray) -> np.ndarray:
        return balanced(right_RN, labels)

    attacks = {name: scored(each) for name, each in attack.items()}
    known = np.isnan(next(iter(attack.values())))
    guess = scored(np.where(known, np.nan, guess_RN))
    others = {name: scored(each) for name, each in baseline.items()} or {"guessing": guess}

    def best(by_method: Mapping[str, np.ndarray]) -> np.ndarray:
        return max(by_method.values(), key=lambda each: float(np.nanmean(each)))

    variants = {name: float(np.nanmean(each)) for name, each in (attacks | others).items()}
    return Measured(best(attacks), best(others), None, variants)


#: What is looked for of a time to an event.
TIMES = ("log of the time", "event")


@dataclass(frozen=True, eq=False)
class Label:
    """Label of samples that is attacked by itself.

    Attributes:
        seen_N: bool, which samples have it.
        classes_N: int64, where it is a class, or yes or no; None of numbers.
        numbers_NF: of the samples that have it, where it is numbers; else None.
        numbers: what these are called.
        name: of one of several; "" of the only one.
        place: of one of several, among outputs; None: all outputs are the label's.
    """

    seen_N: np.ndarray
    classes_N: np.ndarray | None = None
    numbers_NF: np.ndarray | None = None
    numbers: tuple[str, ...] = ()
    name: str = ""
    place: int | None = None

    def named(self, threat: Threat) -> Threat:
        """A threat that says which of several labels it is after."""
        return (
            replace(threat, attack=f"{threat.attack}, label {self.name!r}") if self.name else threat
        )

    def output_of(self, outputs_NC: np.ndarray) -> np.ndarray:
        """Outputs for this label."""
        return outputs_NC if self.place is None else outputs_NC[:, [self.place]]


def each_label(task: Task, truth: Tensor) -> Iterator[Label]:
    """The labels that are attacked: classes, times, each of several; none of other tasks.

    Args:
        truth: (K,) or (K, L) labels, missing ones as they are marked.
    """
    match task:
        case Classification():
            yield Label((truth >= 0).numpy(), truth.numpy())
        case Survival():
            seen = truth.isfinite()
            log_N2 = torch.stack([truth.abs().log(), (~torch.signbit(truth)).double()], dim=1)
            yield Label(seen.numpy(), numbers_NF=log_N2[seen].numpy(), numbers=TIMES)
        case MultiLabel() | MultiTarget():
            for place, name in enumerate(task.labels):
                values, seen = truth[:, place], ~truth[:, place].isnan()
                if isinstance(task, MultiLabel):
                    classes = values.nan_to_num().long().numpy()
                    yield Label(seen.numpy(), classes, name=name, place=place)
                else:
                    numbers = values[seen, None].double().numpy()
                    yield Label(
                        seen.numpy(), numbers_NF=numbers, numbers=(name,), name=name, place=place
                    )
