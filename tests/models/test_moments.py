"""Classes' features as moments, and what is refitted on draws of them."""

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.models.moments import MIN_ROWS, Moments, moments_of, refitted, together


def drawn(num_rows=60, width=4, classes=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_rows) % classes
    mixed = torch.randn(width, width, generator=rng)
    x = torch.randn(num_rows, width, generator=rng) @ mixed + labels[:, None]
    return x, labels


def test_moments_are_each_classs_mean_and_covariance():
    x, labels = drawn()
    moments = moments_of(x, labels, 3)
    for index in range(2):
        rows = x[labels == index].double().numpy()
        np.testing.assert_allclose(moments.means_CD[index], rows.mean(axis=0))
        np.testing.assert_allclose(moments.covariances_CDD[index], np.cov(rows.T, ddof=0))
    assert moments.counts_C.tolist() == [30, 30, 0]


def test_a_class_of_few_rows_is_not_told_of():
    x, _ = drawn(20)
    labels = torch.tensor([0] * (MIN_ROWS - 1) + [1] * (21 - MIN_ROWS))
    moments = moments_of(x, labels, 2)
    assert moments.counts_C.tolist() == [0, 21 - MIN_ROWS]
    assert not moments.means_CD[0].any()
    assert not moments.covariances_CDD[0].any()


def test_moments_of_parties_with_the_same_features_are_those_of_all_their_rows():
    x, labels = drawn(90)
    cuts = (slice(0, 50), slice(50, 90))
    indices = np.arange(4)
    whole = moments_of(x, labels, 2)
    moments = together([(moments_of(x[cut], labels[cut], 2), indices) for cut in cuts], 4)
    assert moments.counts_C.tolist() == whole.counts_C.tolist()
    np.testing.assert_allclose(moments.means_CD, whole.means_CD)
    np.testing.assert_allclose(moments.covariances_CDD, whole.covariances_CDD, atol=1e-9)


def test_what_two_blocks_have_in_common_is_known_from_those_who_hold_both():
    x, labels = drawn(120)
    held = [np.array([0, 1]), np.array([1, 2]), np.array([0, 3])]
    moments = [(moments_of(x[:, columns], labels, 2), columns) for columns in held]
    joined, whole = together(moments, 4), moments_of(x, labels, 2)
    np.testing.assert_allclose(joined.means_CD, whole.means_CD, atol=1e-6)
    values = np.linalg.eigvalsh(joined.covariances_CDD)
    assert values.min() > -1e-9  # one that can be drawn from
    pair = together([(moments_of(x[:, columns], labels, 2), columns) for columns in held[::2]], 4)
    assert np.abs(pair.covariances_CDD[:, 1, 3]).max() < np.abs(whole.covariances_CDD).max()


def test_a_feature_that_nobody_with_a_class_holds_is_as_in_the_others():
    x, labels = drawn(60)
    first = moments_of(x[labels == 0], labels[labels == 0], 2), np.arange(4)
    second = moments_of(x[labels == 1][:, :2], labels[labels == 1], 2), np.arange(2)
    moments = together([first, second], 4)
    np.testing.assert_allclose(moments.means_CD[1, 2:], moments.means_CD[0, 2:])
    spread = np.diagonal(moments.covariances_CDD, axis1=1, axis2=2)
    np.testing.assert_allclose(spread[1, 2:], spread[0, 2:])


@pytest.mark.slow
@pytest.mark.parametrize("subset", [(), (0,), (1,)])
def test_a_refit_learns_to_tell_the_classes_apart_from_all_and_from_fewer_blocks(subset):
    means = np.array([[2.0, 0, 2, 0], [-2, 0, -2, 0], [0, 2, 0, 2]])
    moments = Moments(np.array([50, 50, 50]), means, np.stack([0.1 * np.eye(4)] * 3))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    blocks = [slice(0, 2), slice(2, 4)]
    refitted(
        network, moments, [[each] for each in blocks], {}, rng=torch.Generator().manual_seed(1)
    )
    x = torch.from_numpy(means).float()
    if subset:
        hidden = blocks[1 - subset[0]]
        x[:, hidden] = 0
    assert network(x).argmax(dim=1).tolist() == [0, 1, 2]
