"""Labels by randomised response before anything is learned from them: epsilon-label-DP.

Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential Privacy", NeurIPS
2021 (arXiv:2102.06062). Of a label with a prior p over C classes, Y_k being the k likeliest:

    RRTop-k       y in Y_k: y with probability e^eps / (e^eps + k - 1), else another of Y_k; y not
                  in Y_k: any of Y_k, evenly                                      Algorithm 1
    w_k           e^eps / (e^eps + k - 1) * sum of p over Y_k: how likely it is right
    RRWithPrior   RRTop-k with the k of the largest w_k                           Algorithm 2
    LP-MST        the rows in T parts; the labels of a part get as prior what a model learned from
                  the randomised labels of the parts before says of their rows    Algorithm 3

An even prior gives k = C, which is Warner's randomised response (1965), of the first part too. Each
label is used once, so that all of them together cost epsilon (parallel composition). No mechanism
of the same epsilon is right more often under its prior (Theorem 3).

Departures: the model of a stage is multinomial logistic regression on the label owner's columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.privacy.release import randomised_response


def chances(labels_N: Tensor, prior_NC: Tensor, epsilon: float) -> Tensor:
    """(N, C) how likely RRWithPrior gives each answer for these labels, Algorithm 2.

    >>> chances(torch.arange(2), torch.full((2, 2), 0.5), 1.0).round(decimals=4).tolist()
    [[0.7311, 0.2689], [0.2689, 0.7311]]
    >>> chances(torch.arange(2), torch.tensor([[0.9, 0.1], [0.9, 0.1]]), 1.0).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    num = prior_NC.shape[1]
    sorted_NC, order_NC = prior_NC.double().sort(dim=1, descending=True, stable=True)
    size_C = torch.arange(1, num + 1, dtype=torch.float64)
    right_C = 1 / (1 + (size_C - 1) * math.exp(-epsilon))  # e^eps / (e^eps + k - 1)
    w_NC = (sorted_NC.cumsum(dim=1) * right_C).round(decimals=12)
    best_N = num - w_NC.flip(1).argmax(dim=1)  # k*; of equally good ones the largest
    rank_NC = order_NC.argsort(dim=1)
    within_NC = rank_NC < best_N.unsqueeze(1)
    right_N1 = right_C[best_N - 1].unsqueeze(1)
    others_N1 = (1 - right_N1) / (best_N - 1).clamp(min=1).unsqueeze(1)
    itself_NC = F.one_hot(labels_N, num).bool()
    outputs_NC = torch.where(itself_NC, right_N1, others_N1)
    held_N1 = (within_NC & itself_NC).any(dim=1, keepdim=True)
    return torch.where(held_N1, outputs_NC, 1 / best_N.unsqueeze(1).double()) * within_NC


def with_prior(labels_N: Tensor, prior_NC: Tensor, epsilon: float, rng: torch.Generator) -> Tensor:
    """RRWithPrior of each label, with the prior of its row."""
    if not len(labels_N):
        return labels_N
    drawn = torch.multinomial(chances(labels_N, prior_NC, epsilon), 1, generator=rng)
    return drawn.flatten().to(labels_N.dtype)


def in_stages(
    labels_N: Tensor,
    x_NF: Tensor,
    num_classes: int,
    epsilon: float,
    rng: torch.Generator,
    *,
    stages: int,
) -> Tensor:
    """LP-MST: labels by randomised response, those of later parts with a learned prior.

    Args:
        labels_N: class indices; -1 where missing, which stays so.
        x_NF: the label owner's columns, which the labels' epsilon does not protect from itself.
        num_classes: C.
        epsilon: of every label.
        rng: draws parts and answers.
        stages: T; of one, the prior is even.
    """
    known = (labels_N >= 0).nonzero().flatten()
    parts = known[torch.randperm(len(known), generator=rng)].tensor_split(stages)
    answers = labels_N.clone()
    even_C = torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
    for stage, part in enumerate(parts):
        before = torch.cat([known[:0], *parts[:stage]])
        prior_NC = even_C.expand(len(part), -1)
        if len(before) and len(answers[before].unique()) > 1 and len(part):
            # Imported where it is used: scikit-learn takes seconds of processor time.
            from sklearn.linear_model import LogisticRegression

            model = LogisticRegression(max_iter=300)
            model.fit(x_NF[before].flatten(1).numpy(), answers[before].numpy())
            probabilities = torch.from_numpy(
                model.predict_proba(x_NF[part].flatten(1).numpy())
            ).double()
            prior_NC = torch.zeros(len(part), num_classes, dtype=torch.float64)
            prior_NC[:, torch.from_numpy(model.classes_)] = probabilities
        answers[part] = with_prior(labels_N[part], prior_NC, epsilon, rng)
    return answers


def randomised(
    labels_N: Tensor,
    x: Tensor,
    num_classes: int,
    epsilon: float,
    rng: torch.Generator,
    *,
    stages: int,
) -> Tensor:
    """Labels that say little of each row's own, missing ones kept: Warner's, or of several stages.

    Args:
        labels_N: class indices, -1 where missing.
        x: the label owner's rows, as its network takes them.
        num_classes: C.
        epsilon: of every label, once for a whole run.
        rng: draws the answers.
        stages: T of LP-MST; of one, the prior is even.
    """
    if stages == 1:
        return randomised_response(labels_N, num_classes, epsilon, rng)
    return in_stages(labels_N, x.flatten(1), num_classes, epsilon, rng, stages=stages)
