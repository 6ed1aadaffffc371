"""Randomised response with a prior, of exact transition matrices, and codes pushed apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from dovetail.privacy import in_stages, potential_energy, randomised
from dovetail.privacy.labels import chances, with_prior

PRIORS = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=7).filter(lambda p: sum(p) > 0.1)


def transitions(prior_C: Tensor, epsilon: float) -> Tensor:
    """(C, C) the chance of each answer (column) of each label (row), with one prior."""
    num = len(prior_C)
    return chances(torch.arange(num), prior_C.expand(num, num), epsilon)


@given(PRIORS, st.floats(0.01, 8.0))
@settings(max_examples=150)
def test_no_answer_is_likelier_by_more_than_epsilon_whatever_the_label(
    prior: list[float], epsilon: float
) -> None:
    prior_C = torch.tensor(prior, dtype=torch.float64) / sum(prior)
    chances_CC = transitions(prior_C, epsilon)
    torch.testing.assert_close(chances_CC.sum(dim=1), torch.ones(len(prior), dtype=torch.float64))
    most, least = chances_CC.max(dim=0).values, chances_CC.min(dim=0).values
    assert bool((most <= math.exp(epsilon) * least * (1 + 1e-9)).all())
    # Definition of k*: the largest w_k, sum of the k likeliest times e^eps / (e^eps + k - 1).
    held = np.sort(prior_C.numpy())[::-1].cumsum()
    sizes = np.arange(1, len(prior) + 1)
    w = held * math.exp(epsilon) / (math.exp(epsilon) + sizes - 1)
    right = float((prior_C * chances_CC.diag()).sum())
    assert right == pytest.approx(w.max(), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_no_mechanism_of_that_epsilon_is_right_more_often(epsilon: float) -> None:
    prior = np.array([0.45, 0.3, 0.2, 0.05])
    num, loss = len(prior), math.exp(epsilon)
    # Theorem 3 as a linear program over all matrices q[y, answer].
    bounds, limits = [], []
    for answer in range(num):
        for one in range(num):
            for other in range(num):
                row = np.zeros((num, num))
                row[one, answer], row[other, answer] = 1.0, row[other, answer] - loss
                if one != other:
                    bounds.append(row.ravel())
                    limits.append(0.0)
    sums = np.kron(np.eye(num), np.ones(num))
    best = linprog(-np.diag(prior).ravel(), bounds, limits, sums, np.ones(num), (0, 1))
    ours = float(
        (torch.from_numpy(prior) * transitions(torch.from_numpy(prior), epsilon).diag()).sum()
    )
    assert ours == pytest.approx(-best.fun, rel=1e-6)


def test_answers_are_drawn_as_the_matrix_says() -> None:
    prior_C = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    labels = torch.arange(4).repeat_interleave(20_000)
    rng = torch.Generator().manual_seed(0)
    answers = with_prior(labels, prior_C.expand(len(labels), 4), 1.5, rng)
    drawn = torch.stack(
        [torch.bincount(answers[labels == y], minlength=4) / 20_000 for y in range(4)]
    )
    torch.testing.assert_close(drawn.double(), transitions(prior_C, 1.5), rtol=0, atol=0.012)


def test_a_learned_prior_keeps_more_labels_of_the_same_epsilon_and_missing_ones_stay() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (4000,), generator=rng)
    x = 3 * torch.eye(10)[labels] + torch.randn(4000, 10, generator=rng)
    labels[:100] = -1
    kept = {}
    for stages in (1, 2):
        answers = randomised(labels, x, 10, 1.0, torch.Generator().manual_seed(1), stages=stages)
        assert bool((answers[:100] == -1).all())
        kept[stages] = float((answers == labels)[100:].double().mean())
    assert kept[1] == pytest.approx(math.e / (math.e + 9), abs=0.02)
    assert kept[2] > kept[1] + 0.06
    again = in_stages(labels, x, 10, 1.0, torch.Generator().manual_seed(1), stages=2)
    assert torch.equal(again, answers)


def test_the_energy_of_codes_falls_where_those_of_a_class_are_far_apart() -> None:
    rng = torch.Generator().manual_seed(0)
    code = torch.randn(40, 6, generator=rng)
    labels = torch.arange(40) % 2
    alike = torch.eye(6)[labels] + 0.01 * code
    spread, gathered = potential_energy(code, labels), potential_energy(alike, labels)
    assert gathered > 10 * spread
    expected = [
        1 / (a / a.norm() - b / b.norm()).norm()
        for i, a in enumerate(code)
        for j, b in enumerate(code)
        if i != j and labels[i] == labels[j]
    ]
    assert float(spread) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-4)
    assert float(potential_energy(code[:2], labels[:2])) == 0.0  # no pair
    # Two rows in one place repel each other with a force that is finite.
    one = torch.ones(2, 3, requires_grad=True)
    potential_energy(one, torch.zeros(2)).backward()
    assert one.grad is not None
    assert bool(one.grad.isfinite().all())
