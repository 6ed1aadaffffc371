"""Folds that a partner sees, read by one who knows the run's seed: who is of which class?

Folds are dealt in turn class by class, in an order that a seed gives. Along that order a class's
rows have folds 0, 1, 2, ... in turn, so a row's fold says which class's turn it was, but where two
classes are at the same fold. What a partner's own columns say of a row tells most of these apart.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from dovetail.data import Alignment, Classification, PartyData
from dovetail.methods.apfed.distilling import Distilling
from dovetail.methods.outcome import DecisionSettings
from dovetail.methods.settings.apfed import ApfedSection
from dovetail.models import Secret, derive_seed

ROWS, SEED, RARE = 1000, 3, 0.25


def secret() -> bytes:
    return bytes(range(16))


def bank(site_secret: Secret | None = None, label_epsilon: float | None = None) -> Distilling:
    """A label owner; a quarter of its rows are of class "b"."""
    rng = np.random.default_rng(1)
    labels = torch.from_numpy((rng.random(ROWS) < RARE).astype(np.int64))
    x = torch.from_numpy(rng.standard_normal((ROWS, 2)).astype(np.float32))
    return Distilling(
        train=PartyData("bank", np.arange(ROWS), {"x": x}, labels),
        test=None,
        task=Classification(("a", "b")),
        label="late",
        input=None,
        alignment=Alignment({"bank": torch.arange(ROWS)}),
        test_alignment=None,
        secret=site_secret,
        section=ApfedSection(label_epsilon=label_epsilon),
        seed=SEED,
    )


def likelier(folds: np.ndarray, order: np.ndarray, num_folds: int, prior: np.ndarray) -> np.ndarray:
    """(N,) how likely each row is of the second class: forward and backward over whose turn it is.

    Args:
        folds: (N,) as the partner was told.
        order: (N,) in which they were dealt.
        num_folds: K.
        prior: (N, 2) what it knows of each row's class besides.
    """
    states = list(itertools.product(range(num_folds), repeat=2))  # the fold of each class's next
    position = {state: index for index, state in enumerate(states)}
    due = np.array([[state[which] for state in states] for which in (0, 1)])
    after = np.array(
        [
            [position[(a + 1) % num_folds, b] for a, b in states],
            [position[a, (b + 1) % num_folds] for a, b in states],
        ]
    )
    forward = np.zeros((len(folds) + 1, len(states)))
    forward[0] = [a == 0 for a, _ in states]
    for step, row in enumerate(order):
        for which in (0, 1):
            turn = due[which] == folds[row]
            np.add.at(
                forward[step + 1], after[which][turn], forward[step][turn] * prior[row, which]
            )
        if not forward[step + 1].any():
            return np.full(len(folds), RARE)  # they were not dealt in this order
        forward[step + 1] /= forward[step + 1].sum()
    found, backward = np.zeros((len(folds), 2)), np.ones(len(states))
    for step in range(len(order) - 1, -1, -1):
        row, before = order[step], np.zeros(len(states))
        for which in (0, 1):
            turn = due[which] == folds[row]
            weight = backward[after[which][turn]] * prior[row, which]
            found[row, which] = (forward[step][turn] * weight).sum()
            before[turn] += weight
        backward = before / before.sum()
    return np.asarray(found[:, 1] / found.sum(axis=1))


def read(local_data: Distilling) -> float:
    """AUC of the labels that a partner reads off the folds, which knows how rare a class is."""
    owner = local_data.owner()
    order = np.random.default_rng(derive_seed(SEED, "bank", "folds")).permutation(ROWS)
    prior = np.tile([1 - RARE, RARE], (ROWS, 1))
    reported = likelier(owner.folds_R.numpy(), order, owner.num_folds, prior)
    return float(roc_auc_score(local_data.train.labels, reported))


def test_folds_of_a_known_order_tell_labels():
    """So the attacker is one; a simulation has no secret."""
    assert read(bank()) > 0.9


def test_who_knows_the_seed_reads_no_label_off_the_folds_of_a_site():
    assert read(bank(secret)) == pytest.approx(0.5, abs=0.05)


def test_labels_that_are_randomised_have_no_part_in_the_folds():
    """Even where the order is known, as it is in simulation."""
    assert read(bank(label_epsilon=1.0)) == pytest.approx(0.5, abs=0.05)
    flipped = bank(label_epsilon=1.0)
    flipped.train.labels.copy_(1 - flipped.train.labels)
    assert torch.equal(flipped.owner().folds_R, bank(label_epsilon=1.0).owner().folds_R)


def test_a_site_splits_once_for_all_seeds():
    """Each split gives equations of labels: 15 seeds of four folds gave all of 60."""
    for site_secret in (None, secret):
        one, other = bank(site_secret), replace(bank(site_secret), seed=SEED + 1)
        same = torch.equal(one.owner().folds_R, other.owner().folds_R)
        assert same == (site_secret is not None)


def test_weights_of_classes_follow_from_randomised_labels():
    """Of true ones whoever knows all labels but one would read that."""
    balanced = DecisionSettings(class_weights="balanced")
    made = replace(bank(label_epsilon=0.01), decision_settings=balanced)
    true_C = made.owner().weights_C
    told_C = made.teaching(made.owner()).weights_C
    assert true_C is not None
    assert told_C is not None
    assert true_C[1] > 1.7  # a quarter is of it
    assert told_C[1] == pytest.approx(1.0, abs=0.2)  # of what is told nearly half
