"""Classes' features as means and covariances, and a classifier that is refitted on draws of them.

Luo, Chen, Hu, Zhang, Liang, Feng: "No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data", NeurIPS 2021 (CCVR): each party sends the mean and covariance of each
class's features, rows are drawn from the normal distributions that all of these make, and the
classifier is trained on the draws. Here parties hold some blocks each: what two blocks that nobody
holds together have in common is not known and counts as nothing, and draws are also shown without
the blocks that a party lacks, so that its slice of the classifier is refitted as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.models.optimizers import Optimizer

#: A class of which a party has fewer rows is not told of: a mean of one row is that row.
MIN_ROWS = 10

#: Steps of the refit, rows in each, and its rate.
NUM_STEPS, NUM_ROWS, RATE = 400, 128, 1e-3


@dataclass(frozen=True, eq=False)
class Moments:
    """How many rows each of C classes has, their features' mean and covariance; zeros of none."""

    counts_C: np.ndarray
    means_CD: np.ndarray
    covariances_CDD: np.ndarray


def moments_of(features_ND: Tensor, labels_N: Tensor, num_classes: int) -> Moments:
    """Moments of classes of which there are ``MIN_ROWS`` rows or more."""
    x_ND = features_ND.double().cpu().numpy()
    labels, width = labels_N.cpu().numpy(), x_ND.shape[1]
    counts = np.zeros(num_classes, dtype=np.int64)
    means = np.zeros((num_classes, width))
    covariances = np.zeros((num_classes, width, width))
    for index in range(num_classes):
        rows = x_ND[labels == index]
        if len(rows) >= MIN_ROWS:
            counts[index], means[index] = len(rows), rows.mean(axis=0)
            centred = rows - means[index]
            covariances[index] = centred.T @ centred / len(rows)
    return Moments(counts, means, covariances)


def together(reported: Sequence[tuple[Moments, np.ndarray]], width: int) -> Moments:
    """All parties' as one, over all features.

    Args:
        reported: a party's moments, and the places of its features among all.
        width: how many features there are.
    """
    num_classes = len(reported[0][0].counts_C)
    counts = sum(
        (moments.counts_C for moments, _ in reported), np.zeros(num_classes, dtype=np.int64)
    )
    known = [_one(index, reported, width) for index in range(num_classes)]
    # A feature that no party with the class holds is as it is in all others.
    shares = np.stack([seen for *_, seen in known])
    total = np.maximum(shares.sum(axis=0), 1)
    usual_D = sum(seen * mean for mean, _, seen in known) / total
    spread_D = (
        sum(
            seen * (np.diag(covariance) + np.square(mean - usual_D))
            for mean, covariance, seen in known
        )
        / total
    )
    means, covariances = [], []
    for mean, covariance, seen in known:
        unknown = np.flatnonzero(seen == 0)
        mean[unknown] = usual_D[unknown]
        covariance[unknown, unknown] = spread_D[unknown]
        values, vectors = np.linalg.eigh(covariance)  # pairs that nobody holds may make it no one
        means.append(mean)
        covariances.append((vectors * np.clip(values, 0, None)) @ vectors.T)
    return Moments(counts, np.stack(means), np.stack(covariances))


def _one(
    index: int, reported: Sequence[tuple[Moments, np.ndarray]], width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, covariance and number of rows of each feature, of one class."""
    seen, sums = np.zeros(width), np.zeros(width)
    for moments, indices in reported:
        seen[indices] += moments.counts_C[index]
        sums[indices] += moments.counts_C[index] * moments.means_CD[index]
    mean = np.divide(sums, seen, out=np.zeros(width), where=seen > 0)
    pairs, products = np.zeros((width, width)), np.zeros((width, width))
    for moments, indices in reported:
        apart = moments.means_CD[index] - mean[indices]
        at = np.ix_(indices, indices)
        pairs[at] += moments.counts_C[index]
        products[at] += moments.counts_C[index] * (
            moments.covariances_CDD[index] + np.outer(apart, apart)
        )
    covariance = np.divide(products, pairs, out=np.zeros((width, width)), where=pairs > 0)
    return mean, covariance, seen


def refitted(
    classifier: nn.Module,
    moments: Moments,
    subsets: Sequence[Sequence[slice]],
    scales: Mapping[int, float],
    *,
    rng: torch.Generator,
) -> None:
    """Train a classifier on rows drawn by class, in the classes' shares; where it is.

    Args:
        classifier: of all features.
        moments: of all features; classes without a row are not drawn.
        subsets: what a step shows of the features, the others being zero: all, in half of the
            steps, or one of these.
        scales: number of blocks shown -> what features are multiplied by; 1 where it has none.
        rng: of the draws.
    """
    roots = []
    for covariance in moments.covariances_CDD:
        values, vectors = np.linalg.eigh(covariance)
        roots.append(torch.from_numpy(vectors * np.sqrt(np.clip(values, 0, None))).float())
    roots_CDD = torch.stack(roots)
    means_CD = torch.from_numpy(moments.means_CD).float()
    shares_C = torch.from_numpy(moments.counts_C / moments.counts_C.sum()).float()
    everything = [slice(0, means_CD.shape[1])]
    optimizer = Optimizer(classifier.parameters(), kind="adam", learning_rate=RATE, fused=False)
    for _ in range(NUM_STEPS):
        labels_B = torch.multinomial(shares_C, NUM_ROWS, replacement=True, generator=rng)
        noise_BD = torch.randn(NUM_ROWS, means_CD.shape[1], generator=rng)
        x_BD = means_CD[labels_B]
        for index in labels_B.unique().tolist():
            rows = labels_B == index
            x_BD[rows] += noise_BD[rows] @ roots_CDD[index].T
        drawn = int(torch.randint(2 * len(subsets), (1,), generator=rng)) if subsets else 0
        shown = everything if drawn >= len(subsets) or not subsets else subsets[drawn]
        mask_D = torch.zeros(means_CD.shape[1])
        for span in shown:
            mask_D[span] = 1.0
        scale = 1.0 if shown is everything else scales.get(len(shown), 1.0)
        optimizer.zero_grad()
        F.cross_entropy(classifier(x_BD * mask_D * scale), labels_B).backward()
        optimizer.step()
