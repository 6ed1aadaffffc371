"""A data owner besides Algorithm 1: it checks, bounds what leaves, and keeps its model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dovetail.errors import AlignmentError, ConfigError, MessageError, PartyError
from dovetail.federated import Local, handles
from dovetail.methods.fedoptimus.local_data import TEST, Columns
from dovetail.methods.fedoptimus.masked import Summing
from dovetail.methods.fedoptimus.messages import BeginData, Embed, Embeddings, FinishData, Finished
from dovetail.methods.fedoptimus.requests import check_finite
from dovetail.methods.fedoptimus.server import ServerOptimizer, weighted_mean
from dovetail.methods.fedoptimus.settings import settings_of
from dovetail.methods.settings.fedoptimus import Config
from dovetail.models.networks import rowwise
from dovetail.models.owners import (
    Bottom,
    EncodedMlp,
    MembersNetwork,
    MembersSpec,
)
from dovetail.models.replicas import EnsembleReplicas
from dovetail.models.vectors import write_vector
from dovetail.network import check_shape
from dovetail.privacy import SecretSums

#: Whom embeddings are for, in accounts; of rows that are of another table, too.
COORDINATOR, COORDINATOR_TEST = "the coordinator", "the coordinator, of test rows"


class DataParty(Summing):
    """A party with columns: its rows, checks, mechanism and model; ``DataOwner`` learns.

    Args:
        data: what it has; of a label owner's samples it holds all.
        local: its context.

    Attributes:
        replicas: the bottom's, one for each label owner; None before training starts.
        server: steps on their average.
        open_round: steps were made in it, but no average yet; None: no round is open.
        kept_P: the best average so far; None: the last is what stays.
    """

    replicas: EnsembleReplicas
    server: ServerOptimizer
    config: Config
    label_owners: tuple[str, ...]
    num_rows: tuple[int, ...]

    def __init__(self, data: Columns, local: Local) -> None:
        self.data = data
        self.shared = dict(data.shared)
        self.spec = data.bottom
        self.test = dict(data.scored.get(TEST, {}))
        self.sums = local.sums(data.summing.members) or SecretSums(local.name)
        self.sums.quorum = data.summing.quorum
        self.forget()
        self.has_begun = False
        self.kept_P: Tensor | None = None
        if not self.shared:
            raise ConfigError(f"data owner {local.name!r} shares no rows with any label owner")
        shapes = {tuple(each.x.shape[1:]) for each in [*self.shared.values(), *self.test.values()]}
        if len(shapes) > 1:
            raise ConfigError(
                f"data owner {local.name!r} has rows of different shapes: {sorted(shapes)}"
            )
        (self.shape,) = shapes

    def sizes(self) -> dict[str, int]:
        """E, the width of embeddings."""
        return {"E": self.config.embedding} if self.has_begun else {}

    # --- Training begins ---------------------------------------------------------------------

    def open(self, begin: BeginData) -> Config:
        """The run's settings; it holds every sample, and knows how its embeddings leave.

        Raises:
            MessageError, ConfigError, AlignmentError: a run that cannot be.
        """
        config = settings_of(begin)
        num = len(begin.label_owners)
        if not num == len(begin.num_samples) == len(begin.num_rows) == len(set(begin.label_owners)):
            raise MessageError(f"{begin.wire_name()}: each label owner has one name and two counts")
        if not num or min(begin.num_rows) < 1:
            raise MessageError(f"{begin.wire_name()}: one or more label owners, each with rows")
        for owner, num_samples in zip(begin.label_owners, begin.num_samples, strict=True):
            self._check_shard(owner, num_samples)
        key = "[fedoptimus] embeddings = { clip = ..., noise = ... }"
        self.local.bound_releases(self.data.release, config.embeddings, what="embeddings", key=key)
        if self.data.summing.secure and not config.secure:
            raise ConfigError(
                "refuses to show its embeddings: its file says fedoptimus.secure, so the run must, "
                "too"
            )
        self.forget()
        self.label_owners, self.num_rows = begin.label_owners, begin.num_rows
        self.kept_P = None
        self.open_round: int | None = None
        self._pending: tuple[int, tuple[int, ...]] | None = None  # step, and rows of each replica
        shards = [self.shared[owner] for owner in begin.label_owners]
        self._rows_S: Tensor | None = None  # of all label owners, one after the other
        if all(shared.x is shards[0].x for shared in shards):
            self._rows_S = torch.cat([shared.rows_S for shared in shards])
        limits = torch.tensor(begin.num_samples)
        self._bounds = torch.stack([limits, limits.cumsum(0) - limits])
        return config

    def build(self, config: Config) -> EnsembleReplicas:
        """Replicas of its bottom with random weights, one for each label owner.

        Raises:
            MessageError: weights that would fill its memory.
        """
        encoding = None
        if isinstance(self.spec, EncodedMlp):
            self.spec, encoding = self.spec.fitted(self._trained_rows())

        def member() -> nn.Module:
            width = config.embedding // config.members
            if isinstance(self.spec, EncodedMlp):
                return self.spec.build(self.shape, width, encoding)
            return self.spec.build(self.shape, width)

        def members() -> nn.ModuleList:
            return nn.ModuleList(member() for _ in range(config.members))

        networks = self.local.build(members, "bottom")
        copies = len(self.label_owners) * (config.iterate_average + 1) - 1
        self.local.take(copies * sum(each.nbytes for each in networks.parameters()))
        self.has_begun = True
        return EnsembleReplicas([*networks], len(self.label_owners))

    def _check_shard(self, owner: str, num_samples: int) -> None:
        shared = self.shared.get(owner)
        if shared is None or not len(shared.rows_S):
            raise ConfigError(
                f"it has no rows of the samples of label owner {owner!r} (it shares rows with "
                f"{sorted(self.shared)}); align with it, or leave one of the two out"
            )
        if len(shared.rows_S) != num_samples:
            raise AlignmentError(
                f"it shares {len(shared.rows_S)} samples with label owner {owner!r}, which says "
                f"{num_samples}; align again"
            )
        num_absent = int((shared.rows_S < 0).sum())
        if num_absent:
            raise ConfigError(
                f"it lacks {num_absent} of the {num_samples} samples of label owner {owner!r}; "
                "every data owner needs all of them, so align on those that all have"
            )

    def _trained_rows(self) -> Tensor:
        """(N, ...) rows of all label owners' samples, each once if they are of one table."""
        shards = [self.shared[owner] for owner in self.label_owners]
        if all(shared.x is shards[0].x for shared in shards):
            return shards[0].x[torch.cat([shared.rows_S for shared in shards]).unique()]
        return torch.cat([shared.x[shared.rows_S] for shared in shards])

    # --- Steps -------------------------------------------------------------------------------

    def rows(self, message: Any) -> tuple[Tensor, list[Tensor]]:
        """(B,) rows of its table that a ``Step`` names, and (B, ...) inputs of each replica.

        Raises:
            MessageError, AlignmentError: samples, or a gradient, that cannot be.
        """
        self.check(message)
        samples_B: Tensor = message.samples_B
        parts = list(message.sizes)
        check_shape(message, "samples_B", (sum(parts),), torch.int64)
        if len(parts) != len(self.label_owners) or min(parts) < 0 or not sum(parts):
            raise MessageError(f"{message.wire_name()}: one batch or more, a size for each")
        shards = [self.shared[owner] for owner in self.label_owners]
        for shared, size in zip(shards, parts, strict=True):
            if size > len(shared.rows_S):
                raise MessageError(f"{message.wire_name()}: a batch has each sample once")
        batches = samples_B.split(parts)
        if self._rows_S is None:
            rows = [shared.rows(batch) for shared, batch in zip(shards, batches, strict=True)]
            x = [shared.x[rows_B] for shared, rows_B in zip(shards, rows, strict=True)]
            return torch.cat(rows), x
        # Shards of one table, as usual: one look-up for all.
        limits, starts = self._bounds.repeat_interleave(torch.tensor(parts), dim=1)
        if bool(((samples_B < 0) | (samples_B >= limits)).any()):
            for shared, batch in zip(shards, batches, strict=True):
                shared[batch]  # says whose samples they are
        rows_B = self._rows_S[samples_B + starts]
        return rows_B, list(shards[0].x[rows_B].split(parts))

    def check(self, message: Any) -> None:
        """Refuse a gradient of other rows than were embedded.

        Args:
            message: ``Step`` or ``Average``.

        Raises:
            MessageError: naming the field.
        """
        learned: tuple[int, ...] = message.learned
        check_shape(message, "gradient_BE", (sum(learned), self.config.embedding), torch.float32)
        check_finite(message, "gradient_BE")
        if self._pending is None or not message.previous or self._pending[0] != message.previous:
            return  # there is none, or none that it can follow
        sizes = self._pending[1]
        if len(learned) != len(sizes) or any(
            rows not in (0, size) for rows, size in zip(learned, sizes, strict=True)
        ):
            raise MessageError(
                f"{message.wire_name()}: it embedded {sizes} rows in step {message.previous}, the "
                f"gradient is of {learned}"
            )

    def due(self, message: Any) -> tuple[Tensor, ...]:
        """The gradient of each label owner's batch that was embedded last; () if there is none."""
        pending, self._pending = self._pending, None
        if pending is None or not message.previous or pending[0] != message.previous:
            return ()
        if not sum(message.learned):
            return ()
        gradient_BE: Tensor = message.gradient_BE
        return tuple(torch.split(gradient_BE.to(self.local.device), list(message.learned)))

    def expect(self, message: Any) -> None:
        """The gradient that comes next is of what this ``Step`` embeds."""
        self._asked = message, "step", "samples_B", "sizes"
        self.open_round, self._pending = message.round, (message.step, message.sizes)

    def spread(self, w_P: Tensor) -> None:
        """All replicas are this model, and what their layers keep is averaged; no round is open."""
        self.replicas.weights_NP[:] = w_P
        statistics_NQ = self.replicas.statistics_NQ
        if statistics_NQ.numel():
            statistics_NQ[:] = weighted_mean(statistics_NQ, self.num_rows)
        self._pending = self.open_round = None

    def keep(self, best: bool) -> None:
        """Keep the average that was just made, if it is the best so far."""
        if best:
            self.kept_P = self.server.w_P.clone()

    # --- What leaves -------------------------------------------------------------------------

    def send(self, rows_B: Tensor, embedding_BE: Tensor, receiver: str = COORDINATOR) -> Embeddings:
        """Embeddings of these rows of its table as they may leave, with what that costs."""
        embedding_BE = embedding_BE.detach()
        released = self.local.release("embeddings", receiver, rows_B, embedding_BE, or_zeros=True)
        shown = Embeddings(released.cpu())
        if self.config.secure:
            shown = self.hold(released, *self._asked)
        return self.local.with_cost(shown, "embeddings", receiver)

    @handles
    def embed(self, message: Embed) -> Embeddings:
        """Embeddings of these samples; nothing is learned."""
        embedding_BE = self._embed(message)
        self._asked = message, "label_owner", "samples_B", "test"
        held = (self.test if message.test else self.shared)[message.label_owner]
        trained = {id(each.x) for each in self.shared.values()}
        receiver = COORDINATOR if id(held.x) in trained else COORDINATOR_TEST
        return self.send(held.rows_S[message.samples_B], embedding_BE, receiver)

    def _embed(self, message: Embed) -> Tensor:
        held = self.test if message.test else self.shared
        shared = held.get(message.label_owner)
        if shared is None:
            raise MessageError(
                f"{message.wire_name()}: it shares no {'test ' if message.test else ''}rows with "
                f"{message.label_owner!r}"
            )
        if message.samples_B.numel() > len(shared.rows_S):
            raise MessageError(f"{message.wire_name()}: each sample once")
        index = 0  # of one that takes no part in training
        if message.label_owner in self.label_owners:
            index = self.label_owners.index(message.label_owner)
        x = shared[message.samples_B]
        return rowwise(self._network(index), x, batch_size=1024, width=self.config.embedding)

    @handles
    def finish(self, message: FinishData) -> Finished:
        """Training is over: its bottom model is as it is."""
        return Finished()

    # --- Its model ---------------------------------------------------------------------------

    def _network(self, index: int = 0) -> nn.Module:
        """A label owner's replica as it is, of all members; the best average, if one is kept."""
        networks = self.replicas.networks(index)
        if self.kept_P is not None:
            for network, w_P in zip(networks, self.kept_P.chunk(len(networks)), strict=True):
                write_vector(w_P, network)
        return networks[0] if len(networks) == 1 else MembersNetwork(networks)

    def features(self, label_owner: str, samples_B: Tensor) -> Tensor:
        """(B, E) embeddings by this label owner's replica as it is, for selection."""
        return self._embed(Embed(label_owner, samples_B, test=False))

    def bottom_model(self) -> Bottom:
        """The bottom model as it is, or as it was at its best: after a round replicas are alike."""
        if not self.has_begun:
            raise PartyError(self.name, "has no model before training began")
        members = self.config.members
        return Bottom(
            self.name,
            self._network().eval(),
            self.spec if members == 1 else MembersSpec(self.spec, members),
            self.shape,
            self.config.embedding,
            self.data.input,
            {"method": "fedoptimus", "seed": self.local.seed},
        )
