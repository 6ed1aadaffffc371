"""Which hidden neurons of the parties' classifiers are the same neuron of the server's.

Zhang, Yin, Chen, Hong: "Hybrid Federated Learning for Feature & Sample Heterogeneity", TMLR 2024,
Appendix A and Algorithm 3; the cost is that of PFNM (Yurochkin et al., ICML 2019). Pure functions
of arrays.

    min over Pi, w_0 of
        sum_m p_m/2 sum_l |w_{m,l} - Pi_{m,l+1} w_{0,l} Pi_{m,l}^T|^2   Eq. (11), A.1

A selection matrix Pi (H_m, H) is kept as the (H_m,) places of its ones: party neuron j is server
neuron ``places[j]``, no two of a party are the same one, and every server neuron has a party:
Eq. (18).

    Paper        Here                       Shape
    w_{m,l}      Classifier.layers[l]       (outputs, inputs + 1); the bias is the last coordinate
    Pi_{m,1}     P_m, from Classifier.blocks
    Pi_{m,l+1}   Assignment[l]              (H_m,)
    C_l(i, j)    -gains                     (H, J); Eq. (20)
    p_m          weights                    (M,)

    Letters: H server neurons of a layer, J neurons of one party, D coordinates of a row, G groups
    of coordinates that a party has or lacks together, M parties.

One gain serves both costs. Let server neuron i have total precision S_c and precision-weighted sum
W_c in coordinate c, and let row v be added to it with precision omega:

    gain_ij = sum_c (W_ic + omega v_jc)^2 / (S_ic + omega) - W_ic^2 / S_ic

over the coordinates that the party has. ``Pfnm`` has omega = 1/sigma^2 and a Gaussian prior in W
and S, and adds log(n_i / (M - n_i)), or 2 log(gamma/M) - 2 log(rank) for a new neuron. ``Distance``
has omega = p_m and no prior. Then omega |v_j|^2 - gain_ij is twice what row j, matched to neuron i,
adds to (11): a squared distance to the mean of what is there. It weighs the whole of (11), so its
rows are what comes into a neuron and what goes out of it; PFNM's are what comes in, as in Eq. (20).

Where each party fills all of the server's neurons, S is the same for all i, and what only i or only
j is in changes no assignment: what is left of the gain is one product of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dovetail.errors import ConfigError
from dovetail.settings.models import Cost, Distance, MatchingConfig, Pfnm

#: For each hidden layer, the server's neuron of each of a party's.
Assignment = tuple[np.ndarray, ...]

#: Of each party.
Assignments = Sequence[Assignment]


@dataclass(frozen=True)
class Classifier:
    """Multilayer perceptron of one party.

    Attributes:
        blocks: places of its blocks among the server's, rising; what P_m selects.
        layers: weights with the bias as last column, first layer to last.
    """

    blocks: tuple[int, ...]
    layers: tuple[np.ndarray, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""
        return tuple(len(layer) for layer in self.layers[:-1])


def by_position(widths: Sequence[tuple[int, ...]], server: tuple[int, ...]) -> list[Assignment]:
    """Pi^0: neuron j is server neuron j; of a wider server, each party takes the next ones."""
    starts = [0] * len(server)
    assignments = []
    for party_widths in widths:
        assignments.append(
            tuple(
                (start + np.arange(width)) % total
                for start, width, total in zip(starts, party_widths, server, strict=True)
            )
        )
        if any(width < total for width, total in zip(party_widths, server, strict=True)):
            starts = [start + width for start, width in zip(starts, party_widths, strict=True)]
    return assignments


def match(
    classifiers: Sequence[Classifier],
    sizes: Sequence[int],
    weights: Sequence[float],
    *,
    cost: Cost,
    width: tuple[int, ...] | None,
    sweeps: int,
    rng: np.random.Generator,
    start: Assignments | None = None,
) -> list[Assignment]:
    """Alg. 3 lines 3-8: each party in turn is matched again to what the others make.

    Args:
        classifiers: of all parties; they differ in blocks and widths, not in depth.
        sizes: features of each of the server's blocks.
        weights: p_m.
        cost: Eq. (20).
        width: the server's hidden widths; None lets them grow, to sum_m H_m at most.
        sweeps: how often each party is matched (P is ``sweeps`` times M).
        rng: the parties' order in each sweep.
        start: the assignments so far; None first matches each party to those before it.

    Raises:
        ConfigError: widths that cannot hold the parties' neurons, or that they cannot fill.
    """
    num_parties = len(classifiers)
    check_widths([classifier.widths for classifier in classifiers], cost, width)
    tables = _Tables(classifiers, sizes, weights, cost, width, start)
    placed: list[Assignment | None] = [None] * num_parties
    if start is not None:
        for m, assignment in enumerate(start):
            _add(tables, m, assignment)
            placed[m] = assignment
    else:  # what ``Distance`` has not seen of the layer above yet, it does not weigh
        waiting = np.sum([classifier.widths for classifier in classifiers], axis=0).tolist()
        for m in range(num_parties):
            waiting = [n - width for n, width in zip(waiting, classifiers[m].widths, strict=True)]
            assignment = _match_party(tables, m, None, waiting)
            _add(tables, m, assignment)
            placed[m] = assignment
    for _ in range(sweeps):
        for m in rng.permutation(num_parties):
            before = placed[m]
            assert before is not None
            _add(tables, m, before, remove=True)  # line 5: the server without m
            after = _match_party(tables, m, before, [0] * len(tables))
            _add(tables, m, after)
            placed[m] = after
    assignments = [assignment for assignment in placed if assignment is not None]
    return _compact(assignments) if width is None else assignments


def match_by(
    config: MatchingConfig,
    classifiers: Sequence[Classifier],
    sizes: Sequence[int],
    weights: Sequence[float],
    *,
    rng: np.random.Generator,
    start: Assignments | None,
) -> list[Assignment]:
    """``match`` with its cost, width and sweeps by these settings."""
    return match(
        classifiers,
        sizes,
        weights,
        cost=config.matching_cost(),
        width=config.server_widths([each.widths for each in classifiers]),
        sweeps=config.sweeps,
        rng=rng,
        start=start,
    )


def average(
    classifiers: Sequence[Classifier],
    assignments: Sequence[Assignment],
    sizes: Sequence[int],
    weights: Sequence[float],
    class_weights: np.ndarray | None = None,
) -> list[np.ndarray]:
    """w_0, Alg. 3 line 9: each weight's mean over the parties that hold it; 0 where none does.

    Args:
        class_weights: (M, C) the parties' weights in each row of the output layer, instead of p_m;
            where all that hold a weight have 0, p_m.
    """
    depth = len(classifiers[0].layers)
    widths = [max(int(a[i].max()) for a in assignments) + 1 for i in range(depth - 1)]
    num_outputs = len(classifiers[0].layers[-1])
    inputs = [sum(sizes), *widths]
    server = []
    for i, (num_in, num_out) in enumerate(zip(inputs, [*widths, num_outputs], strict=True)):
        total = np.zeros((num_out, num_in + 1))
        mass = np.zeros((num_out, num_in + 1))
        spare_total, spare_mass = np.zeros_like(total), np.zeros_like(mass)
        for m, (classifier, assignment) in enumerate(zip(classifiers, assignments, strict=True)):
            held = _held(classifier, assignment, i, sizes, num_in, num_outputs)
            rows = classifier.layers[i].astype(np.float64)
            total[held] += weights[m] * rows
            mass[held] += weights[m]
            if class_weights is not None and i == depth - 1:
                spare_total[held] += class_weights[m][:, None] * rows
                spare_mass[held] += class_weights[m][:, None]
        known = spare_mass > 0
        total[known], mass[known] = spare_total[known], spare_mass[known]
        server.append(np.divide(total, mass, out=total, where=mass > 0))
    return server


def matched_slice(
    server: Sequence[np.ndarray],
    blocks: tuple[int, ...],
    assignment: Assignment,
    sizes: Sequence[int],
) -> list[np.ndarray]:
    """Pi_m w_0: the party's part of the server's classifier."""
    num_outputs = len(server[-1])
    like = Classifier(blocks, tuple(server))
    return [
        layer[_held(like, assignment, i, sizes, layer.shape[1] - 1, num_outputs)]
        for i, layer in enumerate(server)
    ]


# --- Layer by layer ----------------------------------------------------------------------------


@dataclass
class _Table:
    """Table of what is matched to each server neuron of one layer.

    Attributes:
        sums: (H, D) sum of omega v over what is matched, the prior's part included.
        mass: (H, G) sum of omega, the prior's included; (1, G) where each party fills all neurons.
        members: (H,) n_i, how many parties.
    """

    sums: np.ndarray
    mass: np.ndarray
    members: np.ndarray


@dataclass(frozen=True)
class Rows:
    """Rows of one party.

    Attributes:
        values: (J, D), zero where it lacks the coordinate.
        squared: (J, G) sums of squares; empty where each party fills all neurons.
        held: (G,) 1 where it holds the group, 0 where it does not.
    """

    values: np.ndarray
    squared: np.ndarray
    held: np.ndarray


class _Tables:
    """The hidden layers' tables, and how a party's rows lie in them."""

    def __init__(
        self,
        classifiers: Sequence[Classifier],
        sizes: Sequence[int],
        weights: Sequence[float],
        cost: Cost,
        width: tuple[int, ...] | None,
        start: Assignments | None,
    ) -> None:
        if width is not None:
            server = width
        elif start is not None:
            depth = len(classifiers[0].layers) - 1
            server = tuple(max(int(a[i].max()) for a in start) + 1 for i in range(depth))
        else:
            server = classifiers[0].widths
        self.classifiers = classifiers
        self.sizes = list(sizes)
        self._begins = np.cumsum([0, 1, *sizes])  # of the first layer's groups, and their end
        self.cost = cost
        self.fixed = width is not None
        self.full = all(party.widths == width for party in classifiers)
        self.num_outputs = len(classifiers[0].layers[-1])
        if isinstance(cost, Pfnm):
            self.omega = [cost.sigma**-2] * len(classifiers)
            self.prior = cost.sigma_0**-2
        else:
            self.omega = list(weights)
            self.prior = 0.0
        self._groups: dict[int, np.ndarray | slice] = {}  # where no layer grows
        self._first: dict[int, Rows] = {}  # of the first layer, which no assignment changes
        self.layers: list[_Table] = []
        self.capacity = list(server)
        for i in range(len(server)):
            num_groups, num_coordinates = self._layout(i)
            dtype = classifiers[0].layers[i].dtype
            self.layers.append(
                _Table(
                    np.full((server[i], num_coordinates), self._prior_sum(), dtype),
                    np.full((1 if self.full else server[i], num_groups), self.prior, dtype),
                    np.zeros(server[i], dtype=np.int64),
                )
            )

    def __len__(self) -> int:
        return len(self.layers)

    def _prior_sum(self) -> float:
        return self.cost.mu_0 * self.prior if isinstance(self.cost, Pfnm) else 0.0

    def _layout(self, i: int) -> tuple[int, int]:
        """(G, D) of a layer: bias, incoming, and for ``Distance`` outgoing coordinates."""
        if i == 0:  # the bias, then each block's features
            groups, coordinates = 1 + len(self.sizes), 1 + sum(self.sizes)
        else:
            groups = coordinates = 1 + self.capacity[i - 1]
        if isinstance(self.cost, Distance):
            above = self._num_above(i)
            groups, coordinates = groups + above, coordinates + above
        return groups, coordinates

    def _num_above(self, i: int) -> int:
        return self.capacity[i + 1] if i + 1 < len(self.capacity) else self.num_outputs

    def rows(self, m: int, i: int, below: np.ndarray | None, above: np.ndarray | None) -> Rows:
        """A party's rows, over all coordinates: what it lacks is zero, and not held.

        Args:
            below: its assignment of the layer before; None for the first.
            above: its assignment of the layer after, for ``Distance``; None: not known yet.
        """
        lasting = i == 0 and (isinstance(self.cost, Pfnm) or len(self.capacity) == 1)
        if lasting and m in self._first:
            return self._first[m]
        classifier = self.classifiers[m]
        layer = classifier.layers[i]
        num_groups, num_coordinates = self._layout(i)
        rows_JD = np.zeros((len(layer), num_coordinates), layer.dtype)
        held_G = np.zeros(num_groups, layer.dtype)
        rows_JD[:, 0], held_G[0] = layer[:, -1], 1
        if i == 0:
            begins, start = self._begins[1:], 0
            for first, last in _runs(classifier.blocks):
                size = begins[last + 1] - begins[first]
                rows_JD[:, begins[first] : begins[last + 1]] = layer[:, start : start + size]
                held_G[1 + first : 2 + last] = 1
                start += size
        else:
            assert below is not None
            rows_JD[:, 1 + below] = layer[:, :-1]
            held_G[1 + below] = 1
        if isinstance(self.cost, Distance):
            last = i + 1 == len(self.capacity)
            outgoing = np.arange(self.num_outputs) if last else above
            if outgoing is not None:
                num_above = self._num_above(i)
                rows_JD[:, num_coordinates - num_above + outgoing] = classifier.layers[i + 1][
                    :, :-1
                ].T
                held_G[num_groups - num_above + outgoing] = 1
        squared_JG = np.empty((0, num_groups), layer.dtype)
        if not self.full:
            squared_JG = _by_group(np.square(rows_JD), self.starts(i))
        rows = Rows(rows_JD, squared_JG, held_G)
        if lasting:
            self._first[m] = rows
        return rows

    def starts(self, i: int) -> np.ndarray | None:
        """The first coordinate of each group; None where each coordinate is one."""
        num_groups, num_coordinates = self._layout(i)
        if num_groups == num_coordinates:
            return None
        return np.concatenate([self._begins[:-1], np.arange(self._begins[-1], num_coordinates)])

    def groups(self, i: int) -> np.ndarray | slice:
        """(D,) the group of each coordinate."""
        if i not in self._groups:
            starts, (num_groups, num_coordinates) = self.starts(i), self._layout(i)
            self._groups[i] = slice(None)
            if starts is not None:
                lengths = np.diff(starts, append=num_coordinates)
                self._groups[i] = np.repeat(np.arange(num_groups), lengths)
        return self._groups[i]

    def grow(self, i: int, num_new: int) -> None:
        """Room for that many new neurons in a layer, where it is free to grow."""
        if self.fixed:
            return
        empty = int((self.layers[i].members == 0).sum())
        if empty >= num_new:
            return
        num_added = num_new - empty
        table = self.layers[i]
        fill = ((0, num_added), (0, 0))
        table.sums = np.pad(table.sums, fill, constant_values=self._prior_sum())
        table.mass = np.pad(table.mass, fill, constant_values=self.prior)
        table.members = np.pad(table.members, (0, num_added))
        self.capacity[i] += num_added
        if i + 1 < len(self.layers):  # what comes into the next layer
            above = self.layers[i + 1]
            fill = ((0, 0), (0, num_added))
            above.sums = np.pad(above.sums, fill, constant_values=self._prior_sum())
            above.mass = np.pad(above.mass, fill, constant_values=self.prior)


def _add(tables: _Tables, m: int, assignment: Assignment, *, remove: bool = False) -> None:
    """Add a party's rows to the neurons it is matched to, or take them away."""
    sign = -1 if remove else 1
    omega = tables.omega[m]
    for i, table in enumerate(tables.layers):
        below = assignment[i - 1] if i else None
        above = assignment[i + 1] if i + 1 < len(assignment) else None
        rows = tables.rows(m, i, below, above)
        values = rows.values if sign * omega == 1 else rows.values * (sign * omega)
        indices: np.ndarray | slice = assignment[i]
        if tables.full:  # as the server's neurons lie: far faster than one by one
            values, indices = values.take(_inverse(assignment[i]), axis=0), slice(None)
        table.sums[indices] += values
        table.mass[indices] += rows.held * (sign * omega)
        table.members[indices] += sign
        if remove:  # what rounding leaves of neurons that nobody holds any more
            lonely = table.members == 0
            table.sums[lonely] = tables._prior_sum()
            table.mass[lonely[: len(table.mass)]] = tables.prior


def _match_party(
    tables: _Tables, m: int, before: Assignment | None, waiting: Sequence[int]
) -> Assignment:
    """Alg. 3 lines 6-8: its neurons' places, first layer to last, given the other parties.

    Args:
        before: where it was; None: nowhere.
        waiting: neurons of each layer that parties not yet placed will bring.
    """
    # Imported where it is used, as is all of SciPy: it takes half a second.
    from scipy.optimize import linear_sum_assignment

    assignment: list[np.ndarray] = []
    omega = tables.omega[m]
    for i, table in enumerate(tables.layers):
        num_local = tables.classifiers[m].widths[i]
        tables.grow(i, num_local)
        below = assignment[i - 1] if i else None
        above = before[i + 1] if before is not None and i + 1 < len(tables) else None
        rows = tables.rows(m, i, below, above)
        if tables.full:  # a bonus of a server neuron changes no assignment that takes them all
            mass_D = table.mass[0][tables.groups(i)]
            gain_HJ = gains_where_full(table.sums, mass_D, rows.values, omega)
            indices, columns_here = linear_sum_assignment(gain_HJ.astype(np.float64), maximize=True)
            assignment.append(_inverse(columns_here))
            continue
        gain_HJ = gains(table.sums, table.mass, rows, tables.starts(i), omega).astype(np.float64)
        empty = (table.members == 0).nonzero()[0]
        if isinstance(tables.cost, Pfnm):
            num_parties = len(tables.classifiers)
            popular = np.maximum(table.members, 1)
            bonus_H = np.zeros(len(popular))
            if num_parties > 1:
                bonus_H = np.log(popular / (num_parties - popular))
            if len(empty):
                ranks = 1 + np.arange(len(empty))
                bonus_H[empty] = 2 * np.log(tables.cost.gamma / num_parties / ranks)
            gain_HJ += bonus_H[:, None]
        if tables.fixed:  # Eq. (18): a neuron that nobody else can fill is taken
            needed = empty[: max(0, len(empty) - waiting[i])]
            if len(needed):
                gain_HJ[needed] += 1 + num_local * (gain_HJ.max() - gain_HJ.min())
        indices, columns_here = linear_sum_assignment(
            gain_HJ, maximize=True
        )  # the Hungarian algorithm
        chosen = np.empty(num_local, dtype=np.int64)
        chosen[columns_here] = indices
        assignment.append(chosen)
    return tuple(assignment)


def gains(
    sums_HD: np.ndarray,
    mass_HG: np.ndarray,
    rows: Rows,
    starts_G: np.ndarray | None,
    omega: float,
) -> np.ndarray:
    """(H, J) what each server neuron gains by each row; see the top of this file.

    The coordinates of a group have one precision, so that one large product is enough.

    Args:
        starts_G: the first coordinate of each group; None where each coordinate is one.
    """
    new_HG = 1 / (mass_HG + omega)
    old_HG = np.divide(1, mass_HG, out=np.zeros_like(mass_HG), where=mass_HG > 0)
    new_HD = new_HG
    if starts_G is not None:
        lengths = np.diff(starts_G, append=sums_HD.shape[1])
        new_HD = np.repeat(new_HG, lengths, axis=1)
    gain_HJ: np.ndarray = (sums_HD * new_HD) @ rows.values.T
    gain_HJ *= 2 * omega
    gain_HJ += new_HG @ rows.squared.T * (omega * omega)
    before_HG = (new_HG - old_HG) * _by_group(np.square(sums_HD), starts_G)
    gain_HJ += (before_HG @ rows.held)[:, None]
    return gain_HJ


def gains_where_full(
    sums_HD: np.ndarray, mass_D: np.ndarray, rows_HD: np.ndarray, omega: float
) -> np.ndarray:
    """(H, H) ``gains`` for a party that fills all neurons, but for constants.

    Other parties fill them all too, so that a coordinate has one mass. Left out is a factor of
    2 omega, and what is in all of a row or of a column: every assignment has one of each.
    """
    gain_HJ: np.ndarray = sums_HD @ (rows_HD / (mass_D + omega)).T
    return gain_HJ


def _inverse(indices: np.ndarray) -> np.ndarray:
    """Which of the party's neurons is at each place, or back again."""
    inverse = np.empty_like(indices)
    inverse[indices] = np.arange(len(indices))
    return inverse


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours: (0, 1, 4) -> (0, 1), (4, 4)."""
    first = last = blocks[0]
    for block in blocks[1:]:
        if block != last + 1:
            yield first, last
            first = block
        last = block
    yield first, last


def _by_group(values_ND: np.ndarray, starts_G: np.ndarray | None) -> np.ndarray:
    """(N, G) sums over each group of coordinates."""
    if starts_G is None:
        return values_ND
    sums: np.ndarray = np.add.reduceat(values_ND, starts_G, axis=1)
    return sums


def _held(
    classifier: Classifier,
    assignment: Assignment,
    i: int,
    sizes: Sequence[int],
    num_in: int,
    num_outputs: int,
) -> tuple[np.ndarray, ...]:
    """Index of a party's weights in the server's layer."""
    if i == 0:
        begins = np.cumsum([0, *sizes])
        below = np.concatenate([np.arange(begins[b], begins[b + 1]) for b in classifier.blocks])
    else:
        below = assignment[i - 1]
    indices = assignment[i] if i < len(assignment) else np.arange(num_outputs)
    return np.ix_(indices, np.append(below, num_in))


def _compact(assignments: Sequence[Assignment]) -> list[Assignment]:
    """Assignments without the neurons that nobody holds."""
    depth = len(assignments[0])
    renamed = []
    for i in range(depth):
        _, inverse = np.unique(np.concatenate([a[i] for a in assignments]), return_inverse=True)
        bounds = np.cumsum([0, *(len(a[i]) for a in assignments)])
        renamed.append([inverse[i:j].astype(np.int64) for i, j in pairwise(bounds)])
    return [tuple(layer[m] for layer in renamed) for m in range(len(assignments))]


def check_widths(
    widths: Sequence[tuple[int, ...]], cost: Cost, server: tuple[int, ...] | None
) -> None:
    """Refuse a server that cannot hold the parties' neurons, or that they cannot fill.

    Raises:
        ConfigError: saying which hidden layer.
    """
    if server is None:
        if isinstance(cost, Distance):
            raise ConfigError(
                "by distance alone every neuron would be a new one; give the server a width, or "
                'take the cost "pfnm"'
            )
        return
    for i, wanted in enumerate(server):
        widths_here = [each[i] for each in widths]
        if not max(widths_here) <= wanted <= sum(widths_here):  # Eq. (18)
            raise ConfigError(
                f"hidden layer {i + 1} of the server must have at least {max(widths_here)} "
                "neurons, as "
                f"many as the widest party, and at most {sum(widths_here)}, as many as all parties "
                f"together; got {wanted}"
            )
