"""VF-PS: which data owners reveal something about the labels, found before anything is trained.

Jiang, Burkhalter, Fu, Ding, Du, Hithnawi, Li, Zhang: "VF-PS: How to Select Important Participants
in Vertical Federated Learning, Efficiently and Securely?", NeurIPS 2022; FedOptimus (Shrivastava,
Uniyal, Chatterjee) calls it ESTIMATE_MI in lines 4-5 of its Algorithm 1. The estimator is Ross:
"Mutual Information between Discrete and Continuous Data Sets", PLoS ONE 9(2), 2014; the search for
neighbours is Fagin, Lotem, Naor: "Optimal Aggregation Algorithms for Middleware", PODS 2001.

A group S of data owners is worth the mutual information of its columns with the labels, estimated
from nearest neighbours. The squared distance of two rows is the sum of what each owner's columns
contribute; rows that are far away at every owner are never asked about.

    d_S(i, j) = sum_{p in S} |x_i^p - x_j^p|^2
    I(S) = psi(N) - <psi(N_y)> + <psi(k)> - <psi(m)>                  Ross, Eq. (2)
    score_p: least squares of I(S) = sum_{p in S} score_p over random groups S

    Symbol   Here                  Shape    Lives at
    x^p      DataOwner.features    (N, F)   data owner p
    d_p      DataOwner distances   (Q, N)   data owner p; candidates' go to the coordinator
    y        LabelOwner.labels     (N,)     label owner
    N_y      rows of a row's class          label owner
    k        Config.neighbours              rows of one's class up to the k-th nearest of them
    m        rows of any class that are no further than it; label owner

    Letters: N rows drawn from a label owner's shard, Q of them queries, B queries of a message,
    D places of a ranking, L rows of a list, M pairs of a query and a row, K keys.

The search, for each query and group, with P owners at depth t:

    1. Each owner names the t rows nearest to the query in its own columns (sorted access).
    2. Of rows not named before, each owner gives its partial distance (random access).
    3. A row that nobody named is at least as far as T = sum_p d_p(its t-th row). So all rows with
       d_S < T are known, and in order: the label owner gets that order, and says whether the
       k-th row of the query's class is among them. If not, t grows.

Who learns what. Rows are places in an order that the parties agreed on when they aligned; the
coordinator has no ids to go with them. Nobody's columns and no label leave their owner.

    The coordinator: for each query and owner the order of the nearest rows by that owner's columns,
        as deep as the search went, and the partial distances of all rows that any owner of the
        group named (masked: only their sums over the group, but the orders all the same, and from
        an order alone much of a geometry can be rebuilt; and where several groups measured a pair,
        their sums can be solved for each owner's part); how deep each query had to go, which
        shows how pure its neighbourhood is in its class; I(S); how many rows a shard has; and a
        power of two above each owner's largest distance.
    A data owner: which rows are drawn, and which of them others in the group named near a query.
        How deep a query went shows it what it shows the coordinator, and no class.
    A label owner: for each query and group the order of the nearest rows by the sum, and which are
        equally far. No distance.

Masks (privacy.masks) protect against a coordinator that follows the protocol; in a group of two
owners, each can subtract its own share if it gets the sum, which it does not.

Departures:
    - VF-PS uses Fagin's first algorithm, which goes on until k rows were named by all owners; the
      threshold T of his later one never goes deeper, and its sums can be masked alike.
    - VF-PS sends distances under homomorphic encryption; here in the clear, or under masks.
    - VF-PS scores an owner by the mean over its groups, which credits it with its companions; here
      by least squares. Groups of one come first, as they cost next to nothing; not under masks.
    - Ross leaves equal distances open: here k and m count all rows that are as far as the k-th
      (as Gao et al. 2017 do at distance 0), so that columns of few values are not undervalued;
      scikit-learn adds noise instead. A constant column has psi(N) - psi(N-1) - <1/(N_y - 1)>, just
      below 0. Without equal distances the estimate is scikit-learn's to the last digit, but
      not cut off at 0. As there, rows alone in their class are left out, and a class with fewer
      than k other rows uses all of these.
    - psi(N_y), psi(k) and psi(m) are means over the queries, where these are not all rows.
    - Several label owners: I(S) is the mean of theirs, weighted by the rows of their shards.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import ConfigError, DataError, MessageError, PartyError
from dovetail.federated import Party, handles
from dovetail.methods.settings.shared import MAX_ROWS
from dovetail.methods.settings.shared import SelectionConfig as Config
from dovetail.models import generator
from dovetail.network import Engine, Integers, Message, Values
from dovetail.network.engine import R
from dovetail.privacy import KEY_BYTES, MaskKeys, total

_log = logging.getLogger(__name__)

# --- Hyper-parameters --------------------------------------------------------------------------

#: The fewest data owners that can be told apart by sums over groups of two or more.
MASKED_OWNERS = 3

#: Sums of distances stay below 2^61: as exact as float64 makes each, and far from overflow.
_SUM_BITS = 61


# --- What crosses the boundary -----------------------------------------------------------------

#: Places in samples_N, or -1.
Places = Annotated[Tensor, Values(torch.int32)]
Flags = Annotated[Tensor, Values(torch.bool)]
Keys = Annotated[Tensor, Values(torch.uint8)]


class Choose(Message):
    """Coordinator -> label owner: draw so many labelled rows, and queries among them (0: all)."""

    neighbours: int
    rows: int
    queries: int
    seed: int


class Chosen(Message):
    """Label owner -> coordinator: the rows it drew, and how many its shard has."""

    samples_N: Integers  # places in the shared order
    queries_Q: Integers  # places in samples_N
    num_labelled: int


class Open(Message):
    """Coordinator -> data owner: measure these rows; replaces what was opened before."""

    label_owner: str
    samples_N: Integers
    queries_Q: Integers


class Opened(Message):
    """Data owner -> coordinator: all its distances are below 2^exponent."""

    exponent: int


class Rank(Message):
    """Coordinator -> data owner: name the rows nearest to these queries, of these places."""

    queries_B: Integers  # places in queries_Q
    start: int
    stop: int


class Ranked(Message):
    """Data owner -> coordinator: rows by rising distance in its own columns, the query left out."""

    rows_BD: Places


class GiveKey(Message):
    """Coordinator -> data owner: a new public key, for one sum."""


class PublicKey(Message):
    """Data owner -> coordinator, which hands it to the others of the group."""

    key: Annotated[Tensor, Values(torch.uint8, "32")]


class Measure(Message):
    """Coordinator -> data owner: distances of these pairs, in units of 2^-bits.

    With ``owners``, under masks that cancel in the sum over these, and behind the pairs' the
    distance of place ``depth`` (from 1) of the ranking of each of ``queries_B``.
    """

    queries_M: Integers  # places in queries_Q
    rows_M: Integers  # places in samples_N
    bits: int
    owners: tuple[str, ...]
    keys_K32: Keys  # in the order of owners
    queries_B: Integers
    depth: int


class Partial(Message):
    """Data owner -> coordinator: what was asked, in fixed point."""

    distances_M: Integers  # masked: (M + B,)


class Nearest(Message):
    """Coordinator -> label owner: the rows nearest to these queries by the sum, in order."""

    group: int
    queries_B: Integers  # places in queries_Q
    rows_BL: Places  # -1 behind the last
    tied_BL: Flags  # as far as the row before it


class Decided(Message):
    """Label owner -> coordinator: the queries that need a longer list."""

    open_B: Flags


class Finish(Message):
    """Coordinator -> label owner: what is the group worth?"""

    group: int


class Estimate(Message):
    """Label owner -> coordinator: I(S) in nats; below 0 where nothing is found."""

    nats: float


# --- What a data owner executes ----------------------------------------------------------------

#: (label owner, (B,) int64 samples) -> (B, ...) features of these rows: columns or embeddings.
Features = Callable[[str, Tensor], Tensor]


class DataOwner(Party):
    """Ranks rows by distance in its own columns, and measures the pairs it is asked for.

    Args:
        name: the party's.
        features: its rows; asked once for each label owner and selection.
        masked_only: refuse to send a distance that is not masked.
    """

    has_local = False

    def __init__(self, name: str, features: Features, *, masked_only: bool = False) -> None:
        self.name = name
        self.features = features
        self.masked_only = masked_only
        self._distances_QN: np.ndarray | None = None
        self._keys: MaskKeys | None = None

    @handles
    def open(self, message: Open) -> Opened:
        """Distances of these rows."""
        num_rows = message.samples_N.numel()
        if not 2 <= num_rows <= MAX_ROWS:
            raise MessageError(
                f"{message.wire_name()}: expected 2 to {MAX_ROWS} rows, got {num_rows}"
            )
        queries_Q = _indices(message, "queries_Q", num_rows)
        if not 1 <= len(queries_Q) <= num_rows:
            raise MessageError(f"{message.wire_name()}: no query, or more than rows")
        # Imported where it is used, as is all of SciPy: it takes half a second.
        from scipy.spatial.distance import cdist

        with torch.no_grad():
            features = self.features(message.label_owner, message.samples_N)
        if len(features) != num_rows:
            raise DataError(
                f"party {self.name!r}: {num_rows} rows were asked of its features, "
                f"{len(features)} came"
            )
        x_NF = features.detach().cpu().double().reshape(num_rows, -1).numpy()
        # Differences first, not |a|^2 + |b|^2 - 2ab: equal rows are at distance 0, exactly.
        distances_QN = cdist(x_NF[queries_Q], x_NF, "sqeuclidean")
        if not np.isfinite(distances_QN).all():
            raise DataError(
                f"party {self.name!r}: distances of its rows are not finite; its columns (or "
                "embeddings) must be finite and below 1e150"
            )
        self._distances_QN = distances_QN
        ranking = distances_QN.copy()
        ranking[np.arange(len(queries_Q)), queries_Q] = np.inf  # the query itself comes last
        order = np.argsort(ranking, axis=1, kind="stable")[:, :-1]
        self._order_QN = order.astype(np.int32)
        return Opened(math.frexp(float(distances_QN.max()))[1])

    def _opened(self, message: Message) -> np.ndarray:
        if self._distances_QN is None:
            raise PartyError(
                self.name, f"was sent {message.wire_name()} before {Open.wire_name()}, or restarted"
            )
        return self._distances_QN

    @handles
    def rank(self, message: Rank) -> Ranked:
        """The rows nearest to these queries."""
        num_queries, num_rows = self._opened(message).shape
        queries_B = _indices(message, "queries_B", num_queries)
        if not 0 <= message.start < message.stop <= num_rows - 1:
            raise MessageError(
                f"{message.wire_name()}: no places {message.start} to {message.stop} of "
                f"{num_rows - 1}"
            )
        rows_BD = self._order_QN[queries_B, message.start : message.stop]
        return Ranked(torch.from_numpy(rows_BD))

    @handles
    def give_key(self, message: GiveKey) -> PublicKey:
        """A new one, for one sum."""
        self._keys = MaskKeys()
        return PublicKey(torch.frombuffer(bytearray(self._keys.public), dtype=torch.uint8))

    @handles
    def measure(self, message: Measure) -> Partial:
        """Distances of these pairs."""
        distances_QN = self._opened(message)
        num_queries, num_rows = distances_QN.shape
        queries_M = _indices(message, "queries_M", num_queries)
        rows_M = _indices(message, "rows_M", num_rows)
        if len(rows_M) > num_queries * num_rows:
            raise MessageError(f"{message.wire_name()}: too many pairs")
        if message.bits + math.frexp(float(distances_QN.max()))[1] > _SUM_BITS:
            raise MessageError(f"{message.wire_name()}: its distances overflow at {message.bits}")
        distances_M = distances_QN[queries_M, rows_M]
        if not message.owners:
            if self.masked_only:
                raise ConfigError("it gives no distance without masks; set secure = true")
            return Partial(_fixed(distances_M, message.bits))
        queries_B = _indices(message, "queries_B", num_queries)
        if not 1 <= message.depth <= num_rows - 1:
            raise MessageError(f"{message.wire_name()}: no place {message.depth} of {num_rows - 1}")
        if self._keys is None:
            raise MessageError(f"{message.wire_name()}: no key was asked for before")
        message.check(K=len(message.owners))
        edge_B = distances_QN[queries_B, self._order_QN[queries_B, message.depth - 1]]
        fixed = _fixed(np.concatenate([distances_M, edge_B]), message.bits)
        publics = {
            name: bytes(key.tolist())
            for name, key in zip(message.owners, message.keys_K32, strict=True)
        }
        return Partial(self._keys.mask(self.name, publics, fixed))


def _fixed(distances: np.ndarray, bits: int) -> Tensor:
    """int64 in units of 2^-bits: sums of them are exact, in any order."""
    return torch.from_numpy(np.rint(np.ldexp(distances, bits)).astype(np.int64))


def _indices(message: Message, name: str, below: int) -> np.ndarray:
    """A field of places, which are 0 .. below - 1.

    Raises:
        MessageError: others.
    """
    indices: np.ndarray = getattr(message, name).numpy()
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < below:
        raise MessageError(f"{message.wire_name()}.{name}: places outside 0 to {below - 1}")
    return indices


# --- What a label owner executes ---------------------------------------------------------------


class LabelOwner(Party):
    """Has the labels; says how far a search must go, and what a group is worth.

    Args:
        name: the party's.
        samples_N: (N,) int64 labelled samples that all data owners hold, in the shared order.
        labels_N: (N,) int64 their classes; numbers become classes by ``binned``.
        key: mixed into what is drawn; in simulation None, and rows are named as they lie.

    Raises:
        DataError: lengths that differ, labels that are no classes, or a label missing.
    """

    has_local = False

    def __init__(
        self, name: str, samples_N: Tensor, labels_N: Tensor, key: bytes | None = None
    ) -> None:
        if len(samples_N) != len(labels_N):
            raise DataError(
                f"party {name!r}: {len(samples_N)} samples and {len(labels_N)} labels; each needs "
                "one of the other"
            )
        if labels_N.is_floating_point() or (len(labels_N) and int(labels_N.min()) < 0):
            raise DataError(
                f"party {name!r}: selection needs labels that are classes, none missing; make "
                "numbers classes with selection.binned"
            )
        self.name, self.key = name, key
        self.samples = samples_N
        self.labels = labels_N.numpy()
        self._labels_N: np.ndarray | None = None

    @handles
    def choose(self, message: Choose) -> Chosen:
        """Rows that are drawn, and queries among them."""
        rng = generator(message.seed, self.name, "selection", secret=self.key)
        drawn = torch.randperm(len(self.labels), generator=rng)[: max(0, message.rows)].numpy()
        _, index, counts = np.unique(self.labels[drawn], return_inverse=True, return_counts=True)
        drawn = drawn[counts[index] > 1]  # one alone in its class has no neighbour
        if self.key is None:  # else data owners would see the table's order, which may tell labels
            drawn = np.sort(drawn)
        labels_N = self.labels[drawn]
        counts_y = np.bincount(labels_N) if len(drawn) else np.zeros(0, dtype=np.int64)
        if (num_classes := int((counts_y > 0).sum())) < 2:
            raise DataError(
                f"it has {num_classes} class with two or more rows among the {len(self.labels)} "
                "that all data owners share with it; mutual information needs two"
            )
        if not 1 <= message.neighbours < len(drawn):
            raise DataError(
                f"neighbours = {message.neighbours} needs more than so many rows; it has "
                f"{len(drawn)}"
            )
        num_queries = min(message.queries or len(drawn), len(drawn))
        queries = torch.randperm(len(drawn), generator=rng)[:num_queries].sort().values
        self._labels_N = labels_N
        self._queries_Q = queries.numpy()
        self._counts_Q = counts_y[labels_N[self._queries_Q]]
        self._wanted_Q = np.minimum(message.neighbours, self._counts_Q - 1)
        self._begin(0)
        return Chosen(self.samples[torch.from_numpy(drawn)], queries, len(self.labels))

    def _begin(self, group: int) -> None:
        self._group = group
        self._nearer_Q = np.zeros(len(self._queries_Q), dtype=np.int64)  # m; 0: not known yet
        self._same_Q = np.zeros(len(self._queries_Q), dtype=np.int64)  # k, equally far ones too

    @handles
    def decide(self, message: Nearest) -> Decided:
        """Which queries need a longer list."""
        if self._labels_N is None:
            raise PartyError(
                self.name, f"was sent {message.wire_name()} before {Choose.wire_name()}"
            )
        num_rows = len(self._labels_N)
        queries_B = _indices(message, "queries_B", len(self._queries_Q))
        rows_BL = message.rows_BL.numpy()
        if not rows_BL.size or int(rows_BL.min()) < -1 or int(rows_BL.max()) >= num_rows:
            raise MessageError(f"{message.wire_name()}.rows_BL: places outside 0 to {num_rows - 1}")
        if message.group != self._group:
            self._begin(message.group)
        local_B = self._labels_N[self._queries_Q[queries_B]]
        same_BL = (self._labels_N[rows_BL] == local_B[:, None]) & (rows_BL >= 0)
        num_same_BL = same_BL.cumsum(axis=1)
        wanted_B = self._wanted_Q[queries_B]
        right_B = num_same_BL[:, -1] >= wanted_B
        # The k-th row of the query's class, and behind it those that are as far.
        ends_BL = np.ones(rows_BL.shape, dtype=bool)
        ends_BL[:, :-1] = ~message.tied_BL.numpy()[:, 1:]
        last_B = (ends_BL & (num_same_BL >= wanted_B[:, None])).argmax(axis=1)
        self._nearer_Q[queries_B[right_B]] = last_B[right_B] + 1
        self._same_Q[queries_B[right_B]] = num_same_BL[right_B, last_B[right_B]]
        return Decided(torch.from_numpy(~right_B))

    @handles
    def estimate(self, message: Finish) -> Estimate:
        """I(S) of the group."""
        if self._labels_N is None or message.group != self._group or not self._nearer_Q.all():
            raise MessageError(f"{message.wire_name()}: group {message.group} is not all known")
        return Estimate(ross(len(self._labels_N), self._counts_Q, self._same_Q, self._nearer_Q))


def ross(num_rows: int, counts: np.ndarray, same: np.ndarray, nearer: np.ndarray) -> float:
    """I in nats from N, and per query N_y, k and m; Ross 2014, Eq. (2)."""
    from scipy.special import digamma

    return float(
        digamma(num_rows)
        + np.mean(digamma(same))
        - np.mean(digamma(counts))
        - np.mean(digamma(nearer))
    )


def binned(labels_N: Tensor, bins: int = 10) -> Tensor:
    """(N,) int64 classes of numbers: equally many rows each, but for ties.

    >>> binned(torch.tensor([0.1, 7.0, 3.0, 0.2]), 2).tolist()
    [0, 1, 1, 0]
    """
    values = labels_N.double().numpy()
    edges = np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1])
    return torch.from_numpy(np.searchsorted(np.unique(edges), values, side="right"))


# --- What the coordinator executes -------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Result of a selection.

    Attributes:
        values: data owner -> nats that it adds to a group.
        groups: each group and its I(S).
        distances: how many partial distances were sent.
        brute_force: how many it had been had every owner sent each of its distances once; under
            masks, once for each group, as a masked distance serves one sum.
        missed: owner of data or labels that was left out -> why.
        order: data owners, the first chosen first; (): by their values.
    """

    values: Mapping[str, float]
    groups: tuple[tuple[tuple[str, ...], float], ...]
    distances: int
    brute_force: int
    missed: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @property
    def ranked(self) -> tuple[str, ...]:
        """Data owners, the most worth first; by name where they are worth the same."""
        if self.order:
            return self.order
        return tuple(sorted(self.values, key=lambda name: (-self.values[name], name)))

    def best(self, share: float) -> tuple[str, ...]:
        """The best share of the data owners, one at least, in the order they were given."""
        kept = set(self.ranked[: max(1, round(share * len(self.values)))])
        return tuple(name for name in self.values if name in kept)


def score(
    network: Engine,
    data_owners: Sequence[str],
    label_owners: Sequence[str],
    config: Config,
    *,
    seed: int,
) -> Scores:
    """Score of each data owner: what it reveals about the labels.

    A data owner that fails is left out and its label owner's search started again; so is a label
    owner.

    Args:
        network: reaches both.
        data_owners: parties that answer as ``DataOwner``.
        label_owners: parties that answer as ``LabelOwner``.
        config: settings.
        seed: of the rows, queries and groups.

    Raises:
        ConfigError: nobody to ask, or masks over fewer than three data owners.
        PartyError: too few data owners, or no label owner, are left; the last failure.
    """
    check_asked(data_owners, label_owners)
    failures: dict[str, PartyError] = {}
    sent = brute = 0
    by_owner: list[tuple[int, list[float]]] = []  # a label owner's rows, and its I(S)
    owners = list(data_owners)
    pending = list(label_owners)
    while pending:
        groups = group(owners, config, seed=seed)
        session = Session(network, pending[0], owners, config, seed)
        try:
            estimates = [
                session.estimate(index, each) for index, each in enumerate(groups, start=1)
            ]
            by_owner.append((session.num_labelled, estimates))
            brute += session.brute_force(groups)
            pending.pop(0)
        except PartyError as failure:
            failures[failure.party] = failure
            _log.warning("selection goes on without it: %s", failure)
            if failure.party in owners:  # groups change, so all label owners begin again
                owners.remove(failure.party)
                pending = [name for name in label_owners if name not in failures]
                by_owner.clear()
                brute = 0
            else:
                pending.remove(failure.party)
            fewest = MASKED_OWNERS if config.secure else 1
            if len(owners) < fewest or not (by_owner or pending):
                raise
        finally:
            sent += session.distances
    num_rows = sum(rows for rows, _ in by_owner)
    nats = np.sum([rows / num_rows * np.array(each) for rows, each in by_owner], axis=0)
    member = np.array([[name in members for name in owners] for members in groups], dtype=float)
    values = np.linalg.lstsq(member, nats)[0]
    return Scores(
        dict(zip(owners, values.tolist(), strict=True)),
        tuple(zip(groups, nats.tolist(), strict=True)),
        sent,
        brute,
        {name: failure.cause for name, failure in failures.items()},
    )


def check_asked(data_owners: Sequence[str], label_owners: Sequence[str]) -> None:
    """Refuse to select where there is nobody to ask.

    Raises:
        ConfigError: no data owner, or no label owner.
    """
    if not data_owners or not label_owners:
        raise ConfigError("selection needs one data owner and one label owner or more")


def group(owners: Sequence[str], config: Config, *, seed: int) -> list[tuple[str, ...]]:
    """Groups to test: each owner alone, then so many random groups of each owner.

    Under masks no owner is alone; two more random groups of each stand in for that, of one owner
    more every second time: pairs alone can leave open which of two is worth what.

    Raises:
        ConfigError: masks over fewer than three owners.
    """
    if config.secure and len(owners) < MASKED_OWNERS:
        raise ConfigError(
            f"secure = true sums over groups of data owners, and {len(owners)} make only one "
            f"group; it takes {MASKED_OWNERS} or more to tell which is worth what"
        )
    groups = [] if config.secure else [(name,) for name in owners]
    rng = generator(seed, "selection groups")
    for repeat in range(config.groups + 2 * config.secure):
        size = config.group_size
        if config.secure:
            size = max(2, size) + repeat % 2
        order = torch.randperm(len(owners), generator=rng).tolist()
        cuts = [order[at : at + size] for at in range(0, len(order), size)]
        if config.secure and len(cuts[-1]) == 1:  # nobody is left over alone
            cuts[-1].append(order[0])
        groups += [tuple(owners[index] for index in sorted(cut)) for cut in cuts]
    return list(dict.fromkeys(groups))


class Session:
    """The search of one label owner's rows, and what is known of them already."""

    def __init__(
        self, network: Engine, label_owner: str, owners: Sequence[str], config: Config, seed: int
    ) -> None:
        self.network = network
        self.label_owner = label_owner
        self.config = config
        self.distances = 0
        self.num_labelled = 0
        self._owners = tuple(owners)
        self._seed = seed
        self._bits = 0  # of a distance, once all have opened
        self._request: Open | None = None

    def open(self) -> None:
        """Begin, or go on after another label owner's session: data owners measure one at a time,
        and what they reported of this one stays known."""
        if self._request is None:
            self._open()
        else:
            self._ask(dict.fromkeys(self._owners, self._request), Opened)

    def _ask(self, requests: Mapping[str, Message], reply: type[R]) -> dict[str, R]:
        timeout_s = self.config.timeout_s
        return self.network.ask(requests, reply, timeout_s=timeout_s).or_raise()

    def _open(self) -> None:
        config = self.config
        choose = Choose(config.neighbours, config.rows, config.queries or 0, self._seed)
        chosen = self._ask({self.label_owner: choose}, Chosen)[self.label_owner]
        self.num_rows = len(chosen.samples_N)
        self.num_labelled = chosen.num_labelled
        with _checking(self.label_owner):
            chosen.check()
            queries_Q = _indices(chosen, "queries_Q", self.num_rows)
            if not (2 <= self.num_rows <= min(config.rows, self.num_labelled) and len(queries_Q)):
                raise MessageError(f"{chosen.wire_name()}: {self.num_rows} rows")
        self._queries_Q = queries_Q
        self.num_queries = len(queries_Q)
        self._request = Open(self.label_owner, chosen.samples_N, chosen.queries_Q)
        opened = self._ask(dict.fromkeys(self._owners, self._request), Opened)
        largest = max(reply.exponent for reply in opened.values())
        self._bits = _SUM_BITS - largest - math.ceil(math.log2(len(self._owners)))
        shape = (self.num_queries, self.num_rows)
        # What owners told is not asked again; only sums of masked distances are known.
        self._order = {name: np.zeros(shape, dtype=np.int32) for name in self._owners}
        self._depth = {name: np.zeros(shape[0], dtype=np.int64) for name in self._owners}
        self._known: dict[str, np.ndarray] = {}

    def brute_force(self, groups: Iterable[Sequence[str]]) -> int:
        """How many distances there are to send."""
        times = sum(map(len, groups)) if self.config.secure else len(self._owners)
        return times * self.num_queries * (self.num_rows - 1)

    def estimate(self, number: int, members: tuple[str, ...]) -> float:
        """I(S) of a group."""
        if self._request is None:
            self._open()
        deepest = self.num_rows - 1
        open_Q = np.arange(self.num_queries)
        seen_QN = np.zeros((self.num_queries, self.num_rows), dtype=bool)
        sums_QN = np.zeros((self.num_queries, self.num_rows), dtype=np.int64)
        start, stop = 0, min(self.config.neighbours + 1, deepest)
        while len(open_Q):
            self._rank(members, open_Q, start, stop)
            new_BN = np.zeros((len(open_Q), self.num_rows), dtype=bool)
            for name in members:
                np.put_along_axis(new_BN, self._order[name][open_Q, start:stop], True, axis=1)
            new_BN &= ~seen_QN[open_Q]
            at, rows_M = new_BN.nonzero()
            queries_M = open_Q[at]
            measure = self._measure_masked if self.config.secure else self._measure
            sums_QN[queries_M, rows_M], edge_B = measure(members, queries_M, rows_M, open_Q, stop)
            seen_QN[queries_M, rows_M] = True
            whole = stop == deepest
            # All rows nearer than the edge are known; of those as far, some may not be.
            sure_BN = seen_QN[open_Q]
            if not whole:
                sure_BN &= sums_QN[open_Q] < edge_B[:, None]
            known = np.logical_or.reduce(sure_BN, axis=1)
            if known.any():
                kept = self._send_order(
                    number, open_Q[known], sums_QN[open_Q[known]], sure_BN[known]
                )
                known[known] = ~kept
            open_Q = open_Q[~known]
            if whole and len(open_Q):
                raise PartyError(self.label_owner, "it wants a list longer than there are rows")
            start, stop = stop, min(deepest, math.ceil(stop * self.config.growth))
        reply = self._ask({self.label_owner: Finish(number)}, Estimate)[self.label_owner]
        if not math.isfinite(reply.nats):
            raise PartyError(self.label_owner, f"its estimate is {reply.nats}")
        return reply.nats

    def _rank(self, members: Sequence[str], open_Q: np.ndarray, start: int, stop: int) -> None:
        """Have the owners name their nearest rows up to this depth, where they have not."""
        wanted = {name: open_Q[self._depth[name][open_Q] < stop] for name in members}
        requests = {
            name: Rank(torch.from_numpy(queries_B), start, stop)
            for name, queries_B in wanted.items()
            if len(queries_B)
        }
        for name, reply in self._ask(requests, Ranked).items():
            queries_B = wanted[name]
            with _checking(name):
                reply.check(B=len(queries_B), D=stop - start)
                rows_BD = reply.rows_BD.numpy()
                self._order[name][queries_B, start:stop] = rows_BD
                ranked = np.sort(self._order[name][queries_B, :stop], axis=1)
                if (
                    int(rows_BD.min()) < 0
                    or int(rows_BD.max()) >= self.num_rows
                    or not (np.diff(ranked, axis=1) > 0).all()
                    or (rows_BD == self._queries_Q[queries_B, None]).any()
                ):
                    raise MessageError(
                        f"{reply.wire_name()}.rows_BD: a row twice, the query itself, or no row"
                    )
            self._depth[name][queries_B] = stop

    def _measure(
        self,
        members: Sequence[str],
        queries_M: np.ndarray,
        rows_M: np.ndarray,
        open_Q: np.ndarray,
        depth: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sums of these pairs, and of the owners' distances at this depth."""
        shape = (self.num_queries, self.num_rows)
        unknown = {}
        requests = {}
        for name in members:
            if name not in self._known:
                self._known[name] = np.full(shape, -1, dtype=np.int64)
            unknown[name] = self._known[name][queries_M, rows_M] < 0
            requests[name] = Measure(
                torch.from_numpy(queries_M[unknown[name]]),
                torch.from_numpy(rows_M[unknown[name]]),
                self._bits,
                (),
                torch.empty((0, KEY_BYTES), dtype=torch.uint8),
                torch.empty(0, dtype=torch.int64),
                0,
            )
        requests = {name: each for name, each in requests.items() if len(each.rows_M)}
        for name, reply in self._ask(requests, Partial).items():
            with _checking(name):
                reply.check(M=int(unknown[name].sum()))
                distances = reply.distances_M.numpy()
                if int(distances.min()) < 0 or int(distances.max()) > 2**_SUM_BITS // len(members):
                    raise MessageError(f"{reply.wire_name()}: a distance below 0, or too large")
            self._known[name][queries_M[unknown[name]], rows_M[unknown[name]]] = distances
            self.distances += len(distances)
        sums_M = np.sum([self._known[name][queries_M, rows_M] for name in members], axis=0)
        # The last row that each named is among the pairs, or was before.
        edges = [self._known[n][open_Q, self._order[n][open_Q, depth - 1]] for n in members]
        return sums_M, np.sum(edges, axis=0)

    def _measure_masked(
        self,
        members: Sequence[str],
        queries_M: np.ndarray,
        rows_M: np.ndarray,
        open_Q: np.ndarray,
        depth: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances from sums that are all that can be read."""
        keys = self._ask(dict.fromkeys(members, GiveKey()), PublicKey)
        for name, reply in keys.items():
            with _checking(name):
                reply.check()
        request = Measure(
            torch.from_numpy(queries_M),
            torch.from_numpy(rows_M),
            self._bits,
            tuple(members),
            torch.stack([keys[name].key for name in members]),
            torch.from_numpy(open_Q),
            depth,
        )
        replies = self._ask(dict.fromkeys(members, request), Partial)
        size = len(rows_M) + len(open_Q)
        for name, share in replies.items():
            with _checking(name):
                share.check(M=size)
        self.distances += size * len(members)
        sums = total(share.distances_M for share in replies.values()).numpy()
        if int(sums.min()) < 0 or int(sums.max()) > 2**_SUM_BITS:
            raise PartyError(members[0], "or another of its group sent a masked share of no use")
        return sums[: len(rows_M)], sums[len(rows_M) :]

    def _send_order(
        self, number: int, queries_B: np.ndarray, sums_BN: np.ndarray, sure_BN: np.ndarray
    ) -> np.ndarray:
        """Send the label owner the order of the sure rows; which queries need more."""
        length = int(sure_BN.sum(axis=1).max())
        key_BN = np.where(sure_BN, sums_BN, np.iinfo(np.int64).max)
        near_BL = np.argpartition(key_BN, length - 1, axis=1)[:, :length]
        far_BL = np.take_along_axis(key_BN, near_BL, axis=1)
        order = np.argsort(far_BL, axis=1)
        far_BL = np.take_along_axis(far_BL, order, axis=1)
        rows_BL = np.take_along_axis(near_BL, order, axis=1).astype(np.int32)
        rows_BL[far_BL == np.iinfo(np.int64).max] = -1
        tied_BL = np.zeros(rows_BL.shape, dtype=bool)
        tied_BL[:, 1:] = far_BL[:, 1:] == far_BL[:, :-1]
        message = Nearest(
            number,
            torch.from_numpy(queries_B),
            torch.from_numpy(rows_BL),
            torch.from_numpy(tied_BL),
        )
        reply = self._ask({self.label_owner: message}, Decided)[self.label_owner]
        with _checking(self.label_owner):
            reply.check(B=len(queries_B))
        return reply.open_B.numpy()


@contextmanager
def _checking(party: str) -> Iterator[None]:
    """A reply that is not as it must be is its sender's failure."""
    try:
        yield
    except MessageError as cause:
        raise PartyError(party, str(cause)) from None
