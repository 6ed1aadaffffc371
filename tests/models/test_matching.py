"""Matching: what HyFEM's Appendix A asks of an assignment, and what must hold whatever the cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objective import objective
from scipy.optimize import linear_sum_assignment

from dovetail.errors import ConfigError
from dovetail.models import matching
from dovetail.models.matching import Assignment, Classifier
from dovetail.settings.models import Cost, Distance, Pfnm

SIZES = (2, 1, 3)
NUM_OUTPUTS = 3
PFNM = Pfnm()


def selection_matrix(indices: np.ndarray, width: int) -> np.ndarray:
    """(H_m, H) Pi of Eq. (18), written out."""
    matrix = np.zeros((len(indices), width))
    matrix[np.arange(len(indices)), indices] = 1
    return matrix


def classifier(
    rng: np.random.Generator, blocks: tuple[int, ...] = (0, 1, 2), widths: tuple[int, ...] = (4,)
) -> Classifier:
    inputs = [sum(SIZES[b] for b in blocks), *widths]
    layers = (
        rng.normal(size=(after, before + 1))
        for before, after in zip(inputs, [*widths, NUM_OUTPUTS], strict=True)
    )
    return Classifier(blocks, tuple(layers))


def permuted(classifier: Classifier, orders: tuple[np.ndarray, ...]) -> Classifier:
    """A classifier of the same function, its hidden neurons in another order."""
    layers = [layer.copy() for layer in classifier.layers]
    for i, order in enumerate(orders):
        layers[i] = layers[i][order]
        layers[i + 1] = np.concatenate(
            [layers[i + 1][:, :-1][:, order], layers[i + 1][:, -1:]], axis=1
        )
    return replace(classifier, layers=tuple(layers))


def predict(layers: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    for i, layer in enumerate(layers):
        x = x @ layer[:, :-1].T + layer[:, -1]
        x = np.maximum(x, 0) if i < len(layers) - 1 else x
    return x


def match(
    parties: list[Classifier],
    *,
    cost: Cost = PFNM,
    width: tuple[int, ...] | None = (4,),
    weights: list[float] | None = None,
    start: list[Assignment] | None = None,
    sweeps: int = 2,
    seed: int = 0,
) -> list[Assignment]:
    weights = weights or [1 / len(parties)] * len(parties)
    rng = np.random.default_rng(seed)
    return matching.match(
        parties, SIZES, weights, cost=cost, width=width, sweeps=sweeps, rng=rng, start=start
    )


def average(parties: list[Classifier], assignments: list[Assignment]) -> list[np.ndarray]:
    return matching.average(parties, assignments, SIZES, [1 / len(parties)] * len(parties))


def federation(seed: int = 0, widths: tuple[int, ...] = (4,)) -> list[Classifier]:
    rng = np.random.default_rng(seed)
    return [classifier(rng, blocks, widths) for blocks in ((0, 1), (1, 2), (0, 1, 2), (2,))]


COSTS = [Pfnm(), Pfnm(sigma=0.5, sigma_0=2.0, mu_0=0.3, gamma=1.0), Distance()]


@pytest.mark.parametrize("cost", COSTS, ids=["pfnm", "pfnm with a mean", "distance"])
@pytest.mark.parametrize("widths", [(4,), (4, 3)], ids=["one layer", "two layers"])
@pytest.mark.parametrize("kind", ["previous", "scratch"])
def test_permuting_a_partys_neurons_leaves_the_servers_predictions_unchanged(cost, widths, kind):
    parties = federation(widths=widths)
    rng = np.random.default_rng(1)
    orders = [tuple(rng.permutation(width) for width in widths) for _ in parties]
    moved = [permuted(classifier, order) for classifier, order in zip(parties, orders, strict=True)]
    start = moved_start = None
    if kind == "previous":  # who is whom before is told in the party's own order
        start = matching.by_position([widths] * len(parties), widths)
        moved_start = [
            tuple(indices[order] for indices, order in zip(classifier, each, strict=True))
            for classifier, each in zip(start, orders, strict=True)
        ]
    before = average(parties, match(parties, cost=cost, width=widths, start=start))
    after = average(moved, match(moved, cost=cost, width=widths, start=moved_start))
    x = rng.normal(size=(5, sum(SIZES)))
    np.testing.assert_allclose(predict(after, x), predict(before, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cost", COSTS, ids=["pfnm", "pfnm with a mean", "distance"])
@pytest.mark.parametrize("widths", [(5,), (5, 4)], ids=["one layer", "two layers"])
def test_identical_classifiers_are_matched_to_each_other_exactly(cost, widths):
    rng = np.random.default_rng(2)
    one = classifier(rng, widths=widths)
    orders = [tuple(rng.permutation(width) for width in widths) for _ in range(3)]
    copies = [one, *(permuted(one, order) for order in orders)]
    assignments = match(copies, cost=cost, width=widths)
    for order, assignment in zip(orders, assignments[1:], strict=True):
        for indices, first, moved in zip(assignment, assignments[0], order, strict=True):
            assert np.array_equal(indices, first[moved])
    server = average(copies, assignments)
    slices = matching.matched_slice(server, (0, 1, 2), assignments[0], SIZES)
    for layer, back in zip(one.layers, slices, strict=True):
        np.testing.assert_allclose(back, layer, rtol=1e-14)


def plain_gain(sums: np.ndarray, mass: np.ndarray, rows: np.ndarray, omega: float) -> np.ndarray:
    """The formula of the file's first page, neuron by neuron and row by row."""
    gain = np.zeros((len(sums), len(rows)))
    for i in range(len(sums)):
        for j in range(len(rows)):
            for c in range(rows.shape[1]):
                before = sums[i, c] ** 2 / mass[i, c] if mass[i, c] else 0.0
                gain[i, j] += (sums[i, c] + omega * rows[j, c]) ** 2 / (mass[i, c] + omega) - before
    return gain


@given(seed=st.integers(0, 1000), width=st.integers(1, 5), num_local=st.integers(1, 5))
@settings(max_examples=25)
def test_the_assignment_is_the_best_of_all_permutations(seed, width, num_local):
    # In one sweep with this seed the part is matched last, to the whole one and the prior.
    rng = np.random.default_rng(seed)
    width = max(width, num_local)
    whole, part = classifier(rng, widths=(width,)), classifier(rng, (0, 2), (num_local,))
    cost = Pfnm(sigma=0.8, sigma_0=1.2, mu_0=0.1)
    assert np.random.default_rng(0).permutation(2)[-1] == 1
    assignments = match([whole, part], cost=cost, width=(width,), sweeps=1, seed=0)
    first = assignments[0][0]
    columns = [*range(2), *range(3, 6), 6]  # blocks 0 and 2, and the bias
    sums = np.zeros((width, len(columns)))
    sums[first] = whole.layers[0][:, columns] / cost.sigma**2
    sums += cost.mu_0 / cost.sigma_0**2
    mass = np.full_like(sums, cost.sigma**-2 + cost.sigma_0**-2)
    gain = plain_gain(sums, mass, part.layers[0], cost.sigma**-2)
    best = max(
        sum(gain[index, j] for j, index in enumerate(indices))
        for indices in permutations(range(width), num_local)
    )
    gain_found = sum(gain[index, j] for j, index in enumerate(assignments[1][0]))
    assert gain_found == pytest.approx(best, rel=1e-12)


def test_gains_are_the_formula_with_and_without_groups():
    rng = np.random.default_rng(3)
    sums, mass_groups = rng.normal(size=(5, 6)), rng.uniform(0.5, 2, size=(5, 3))
    mass_groups[2, 1] = 0.0  # nobody has that block there yet
    mass = np.repeat(mass_groups, [1, 2, 3], axis=1)
    sums[mass == 0] = 0.0
    rows = rng.normal(size=(4, 6))
    rows[:, 3:] = 0.0  # the party lacks the last block
    squared = np.square(rows)
    groups = np.stack([squared[:, 0], squared[:, 1:3].sum(1), squared[:, 3:].sum(1)], axis=1)
    expected = plain_gain(sums[:, :3], mass[:, :3], rows[:, :3], 0.7)
    held = np.array([1.0, 1.0, 0.0])
    grouped = matching.Rows(rows, groups, held)
    single = matching.Rows(rows, squared, np.repeat(held, [1, 2, 3]))
    starts = np.array([0, 1, 3])
    gain = matching.gains(sums, mass_groups, grouped, starts, 0.7)
    np.testing.assert_allclose(gain, expected, rtol=1e-12)
    gain = matching.gains(sums, mass, single, None, 0.7)
    np.testing.assert_allclose(gain, expected, rtol=1e-12)


@given(seed=st.integers(0, 10_000), omega=st.floats(0.1, 2))
@settings(max_examples=25)
def test_where_each_party_fills_all_neurons_the_short_gain_chooses_the_same(seed, omega):
    rng = np.random.default_rng(seed)
    starts, mass = np.array([0, 1, 3]), rng.uniform(0.5, 2, size=3)
    sums, values = rng.normal(size=(2, 5, 6))
    values[:, 3:] = 0.0  # the party lacks the last block
    squared = np.add.reduceat(np.square(values), starts, axis=1)
    rows = matching.Rows(values, squared, np.array([1.0, 1.0, 0.0]))
    whole = matching.gains(sums, np.tile(mass, (5, 1)), rows, starts, omega)
    short = matching.gains_where_full(sums, mass[[0, 1, 1, 2, 2, 2]], values, omega)
    chosen = linear_sum_assignment(short, maximize=True)
    best = linear_sum_assignment(whole, maximize=True)
    assert np.array_equal(chosen, best)
    # But for constants: the same up to what is in all of a row or of a column.
    rest = whole - 2 * omega * short
    np.testing.assert_allclose(rest, rest[:, :1] + rest[:1] - rest[0, 0], rtol=1e-9, atol=1e-9)


def test_the_distance_gain_is_what_a_row_adds_to_the_objective():
    rng = np.random.default_rng(4)
    rows, weights = rng.normal(size=(3, 2)), np.array([0.2, 0.3, 0.5])

    def spread(members: list[int]) -> float:
        p, v = weights[members], rows[members]
        mean = (p[:, None] * v).sum(0) / p.sum()
        return float((p[:, None] * (v - mean) ** 2).sum())

    sums = (weights[:2, None] * rows[:2]).sum(0, keepdims=True)
    mass = np.full((1, 2), weights[:2].sum())
    row = matching.Rows(rows[2:], np.square(rows[2:]), np.ones(2))
    gain = matching.gains(sums, mass, row, None, weights[2])
    added = weights[2] * np.square(rows[2]).sum() - gain[0, 0]
    assert added == pytest.approx(spread([0, 1, 2]) - spread([0, 1]))


@given(
    seed=st.integers(0, 10_000),
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    depth=st.integers(1, 2),
    extra=st.integers(0, 6),
    cost=st.sampled_from(COSTS),
    free=st.booleans(),
    scratch=st.booleans(),
)
@settings(max_examples=60)
def test_selection_matrices_satisfy_18_and_every_server_neuron_has_a_party(
    seed, widths, depth, extra, cost, free, scratch
):
    rng = np.random.default_rng(seed)
    party_widths = [(width,) * depth for width in widths]
    parties = [
        classifier(rng, tuple(sorted(rng.choice(3, rng.integers(1, 4), replace=False))), each)
        for each in party_widths
    ]
    total = min(max(widths) + extra, sum(widths))
    fixed = (total,) * depth
    start = None if scratch else matching.by_position(party_widths, fixed)
    width = None if free and isinstance(cost, Pfnm) else fixed
    assignments = match(parties, cost=cost, width=width, start=start, seed=seed)
    for i in range(depth):
        server = max(int(a[i].max()) for a in assignments) + 1
        assert server <= sum(widths)
        assert width is None or server == total
        matrices = [selection_matrix(a[i], server) for a in assignments]
        for matrix in matrices:
            assert (matrix >= 0).all()
            assert (matrix.sum(axis=1) == 1).all()  # Pi 1 = 1
            assert (matrix.sum(axis=0) <= 1).all()  # Pi Pi^T = I
        assert (sum(matrix.sum(axis=0) for matrix in matrices) >= 1).all()  # sum_m 1^T Pi_m >= 1


@given(seed=st.integers(0, 10_000), depth=st.integers(1, 3), sweeps=st.integers(1, 3))
@settings(max_examples=40)
def test_matching_by_distance_and_averaging_never_raise_the_classifier_part(seed, depth, sweeps):
    rng = np.random.default_rng(seed)
    widths = [(3,) * depth, (2,) * depth, (4,) * depth]
    parties = [
        classifier(rng, blocks, widths)
        for blocks, widths in zip([(0, 1), (2,), (1, 2)], widths, strict=True)
    ]
    weights = [0.5, 0.2, 0.3]
    server_widths = (5,) * depth
    before = matching.by_position(widths, server_widths)
    server = [rng.normal(size=layer.shape) for layer in average(parties, before)]
    after = match(
        parties, cost=Distance(), width=server_widths, weights=weights, start=before, sweeps=sweeps
    )

    def value(assignments: list[Assignment], w_0: list[np.ndarray]) -> float:
        return objective(parties, assignments, SIZES, weights, w_0)

    averaged = matching.average(parties, before, SIZES, weights)
    assert value(before, averaged) <= value(before, server) + 1e-12
    matched = matching.average(parties, after, SIZES, weights)
    assert value(after, matched) <= value(before, averaged) + 1e-9


def test_a_weight_is_the_mean_over_the_parties_that_hold_it():
    left = Classifier((0,), (np.array([[1.0, 2.0, 3.0]]), np.array([[1.0, 0.0]] * 3)))
    right = Classifier((0, 1), (np.array([[5.0, 6.0, 7.0, 9.0]]), np.array([[3.0, 2.0]] * 3)))
    indices = [(np.array([0]),)] * 2
    first, last = matching.average([left, right], indices, SIZES, [0.25, 0.75])
    np.testing.assert_allclose(first, [[4.0, 5.0, 7.0, 0.0, 0.0, 0.0, 7.5]])
    np.testing.assert_allclose(last, [[2.5, 1.5]] * 3)


def test_class_weights_let_those_that_have_a_class_say_what_it_looks_like():
    ones = Classifier((0,), (np.ones((1, 3)), np.ones((3, 2))))
    fives = Classifier((0,), (np.ones((1, 3)), np.full((3, 2), 5.0)))
    indices = [(np.array([0]),)] * 2
    counts = np.array([[10.0, 30.0, 0.0], [0.0, 10.0, 0.0]])
    *_, last = matching.average([ones, fives], indices, SIZES, [0.5, 0.5], counts)
    np.testing.assert_allclose(last[:, 0], [1.0, 2.0, 3.0])  # a class that nobody has: p_m


def test_a_free_server_grows_for_classifiers_that_have_nothing_in_common():
    rng = np.random.default_rng(5)
    near = classifier(rng)
    copies = [near, replace(near, layers=tuple(layer + 1e-3 for layer in near.layers))]
    strangers = [near, replace(near, layers=tuple(-9 * layer for layer in near.layers))]

    def width(parties: list[Classifier]) -> int:
        assignments = match(parties, cost=Pfnm(gamma=0.1), width=None)
        return int(max(a[0].max() for a in assignments)) + 1

    assert width(copies) == 4
    assert width(strangers) == 8


@pytest.mark.parametrize(
    ("widths", "server", "message"),
    [
        ([(4,), (6,)], (5,), "layer 1 of the server must have at least 6 neurons"),
        ([(4,), (6,)], (11,), "at most 10, as many as all parties together; got 11"),
        ([(4, 2), (4, 3)], (4, 2), "layer 2 of the server must have at least 3"),
    ],
)
def test_a_width_that_cannot_be_is_refused(widths, server, message):
    with pytest.raises(ConfigError, match=message):
        matching.check_widths(widths, Pfnm(), server)


def test_distance_without_a_width_is_refused():
    with pytest.raises(ConfigError, match="by distance alone every neuron would be a new one"):
        matching.check_widths([(4,)], Distance(), None)
