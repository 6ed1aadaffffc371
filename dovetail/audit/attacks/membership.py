"""Membership: was this row among those that a model, or weights that were sent, learned from?

Papers: Zarifzadeh, Liu, Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024
(RMIA, arXiv:2312.03262): with gamma = 1 rows are ranked by how much likelier the model finds their
label than reference models do that did not see them. Carlini et al., "Membership Inference Attacks
From First Principles", S&P 2022 (LiRA, arXiv:2112.03570): ``shadows.py``. Steinke, Nasr,
Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv:2305.08846), for the
lower bound on epsilon.

Threat: the attacker has the model's class probabilities (or weights that it was sent), rows with
their labels of which some were trained on, and rows of the same kind to train shadow models on.
Baseline: guessing, an AUC of 0.5.

The bound takes training and test rows for a fair draw, as a random split makes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dovetail.audit.attacks.labels import auc_rows
from dovetail.audit.attacks.shadows import SHADOWS, shadows
from dovetail.audit.verdict import Measured
from dovetail.methods.facets.audited import Threat

#: At most so many rows of each kind.
MAX_ROWS = 1000

#: Of each kind, the share of rows that the bound on epsilon guesses.
GUESSED = 0.1

#: Of that bound.
CONFIDENCE = 0.95


def threat(of: str) -> Threat:
    """Assumptions of a membership attack; ``of`` says what is looked at."""
    return Threat(
        f"membership from {of}",
        "LiRA 2022 (arXiv:2112.03570); RMIA 2024 (arXiv:2312.03262)",
        f"{of}, candidate rows with their labels, and {SHADOWS} shadow models",
        "guessing",
        "AUC of who was trained on",
    )


def membership(
    probability: Callable[[Tensor], Tensor],
    rows_in: tuple[Tensor, Tensor],
    rows_out: tuple[Tensor, Tensor],
) -> tuple[Measured, float] | None:
    """The better of LiRA and RMIA with gamma = 1, and a 95 % lower bound on epsilon.

    None where there are too few rows.

    Args:
        probability: rows -> (N, C) class probabilities.
        rows_in, rows_out: columns and labels of rows that were trained on, and were not.
    """
    num = min(len(rows_in[0]), len(rows_out[0]), MAX_ROWS)
    if num < 20:
        return None
    rng = torch.Generator().manual_seed(0)
    parts = []
    for x, y in (rows_in, rows_out):
        chosen = torch.randperm(len(x), generator=rng)[:num]
        parts.append([x[chosen], y[chosen]])
    x, y = (torch.cat(pair) for pair in zip(*parts, strict=True))
    is_in = np.arange(2 * num) < num
    label_probability = _of_label(probability(x), y)
    flat = x.flatten(1).double() / (255 if x.dtype == torch.uint8 else 1)
    num_classes = int(probability(x[:2]).shape[1])
    others = shadows(flat.numpy(), y.numpy(), num_classes, label_probability)
    ratio = np.log(label_probability.clip(1e-6)) - np.log(others[0].unseen.clip(1e-6))
    tried = {
        "likelihood ratio": ratio,
        "shadow models (LiRA)": others[0].likelihood(label_probability),
    }
    if len(others) > 1:
        tried["difficulty calibrated by trees"] = others[1].surprise(label_probability)
    contributions = {name: auc_rows(each, is_in) for name, each in tried.items()}
    best = max(contributions, key=lambda name: float(contributions[name].mean()))
    false = np.sort(tried[best][~is_in])[::-1]
    at_1 = float((tried[best][is_in] > false[max(0, int(0.01 * num) - 1)]).mean())
    variants = {
        **{name: float(each.mean()) for name, each in contributions.items()},
        "loss alone": float(np.mean(auc_rows(label_probability, is_in))),
        "true positives at 1 % false ones": at_1,
    }
    found = contributions[best]
    measured = Measured(found[None], np.full_like(found, 0.5)[None], None, variants)
    # Of several bounds the largest counts, so each is a surer one.
    sure = 1 - (1 - CONFIDENCE) / len(tried)
    bound = max(epsilon_bound(each, is_in, confidence=sure) for each in tried.values())
    return measured, bound


def epsilon_bound(
    scores_N: np.ndarray,
    is_in_N: np.ndarray,
    *,
    guessed: float = GUESSED,
    confidence: float = CONFIDENCE,
) -> float:
    """A lower bound on epsilon (delta = 0) from one run: Steinke et al. 2023, Theorem 2.1.

    The highest scores are guessed to be in, the lowest to be out. If the run is epsilon-DP, each
    guess is right with a probability of at most e^eps / (1 + e^eps).

    >>> scores = np.arange(1000)
    >>> round(epsilon_bound(scores, scores >= 500), 2), epsilon_bound(scores, scores % 2 == 0)
    (3.49, 0.0)
    """
    from scipy.stats import binom  # slow to import: for who attacks alone

    order = np.argsort(scores_N, kind="stable")
    each = max(1, int(guessed * len(scores_N) / 2))
    right = int((~is_in_N[order[:each]]).sum() + is_in_N[order[-each:]].sum())
    low, high = 0.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        chance = 1 / (1 + np.exp(-middle))
        if binom.sf(right - 1, 2 * each, chance) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _of_label(probability_NC: Tensor, y: Tensor) -> np.ndarray:
    """(N,) what the model gives each row's own label."""
    return np.asarray(probability_NC[torch.arange(len(y)), y].detach().double().numpy())
