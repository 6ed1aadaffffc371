"""Recording of what one side saw of the other in a run: a bounded sample of messages.

A receiver may keep everything. Kept here are, of at most ``MAX_ROWS`` samples, the first, the last
and the mean of what was sent about each sample; tensors wider than ``MAX_WIDTH`` are projected by
one random matrix (Johnson and Lindenstrauss 1984), which keeps their geometry; of weights the first
and the last two rounds. So an audit's figures are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dovetail.methods.facets.audited import MAX_ROWS, Channel, Logits, Reading, Seen, Weights
from dovetail.network.messages import Message

#: Numbers kept of one sample, each of first, last and mean.
MAX_WIDTH = 512

#: Of logits step by step: so many rows, streams (members times classes) and steps are kept.
FOLLOWED, MAX_STREAMS, MAX_STEPS = 1000, 8, 400


class ChannelSummary:
    """The first, last and mean of what one channel said of each kept sample."""

    def __init__(self, num_samples: int, width: int) -> None:
        rng = torch.Generator().manual_seed(0)
        kept = torch.randperm(num_samples, generator=rng)[:MAX_ROWS].sort().values
        self.samples_K = kept
        self.index_S = torch.full((num_samples,), -1)
        self.index_S[kept] = torch.arange(len(kept))
        self.width = width
        self.projection: Tensor | None = None
        if width > MAX_WIDTH:
            self.projection = torch.randn(width, MAX_WIDTH, generator=rng) / MAX_WIDTH**0.5
        shape = (len(kept), min(width, MAX_WIDTH))
        self.first, self.last, self.total = (torch.zeros(shape) for _ in range(3))
        self.count_K = torch.zeros(len(kept), dtype=torch.int64)

    def add(self, samples_B: Tensor, values_BD: Tensor) -> None:
        indices_B = self.index_S[samples_B]
        held = indices_B >= 0
        indices = indices_B[held]
        values = values_BD.detach().float().flatten(1)[held]
        if self.projection is not None:
            values = values @ self.projection
        new = self.count_K[indices] == 0
        self.first[indices[new]] = values[new]
        self.last[indices] = values
        self.total.index_add_(0, indices, values)
        self.count_K.index_add_(0, indices, torch.ones_like(indices))

    def views(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The samples that were seen, and view -> (K, D) what was sent about them."""
        seen = self.count_K > 0
        mean = self.total[seen] / self.count_K[seen].unsqueeze(1)
        views = {"last": self.last[seen]}
        if int(self.count_K.max()) > 1:
            views |= {"mean": mean, "first": self.first[seen]}
        return self.samples_K[seen], views


class Followed:
    """Logits of the rows that came first, step by step."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._streams: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def add(self, logits: Logits) -> None:
        for sample in logits.samples_B.tolist():
            if len(self._index) < FOLLOWED:
                self._index.setdefault(sample, len(self._index))
        rows_B = torch.tensor([self._index.get(each, -1) for each in logits.samples_B.tolist()])
        held = rows_B >= 0
        for index, value_B in enumerate(logits.value_BC.T):
            key = index, logits.member
            if key in self._streams or len(self._streams) < MAX_STREAMS:
                steps = self._streams.setdefault(key, [])
                if len(steps) < MAX_STEPS:
                    steps.append((rows_B[held], value_B[held]))

    @property
    def samples(self) -> Tensor:
        """(N,) whose the rows are."""
        return torch.tensor(list(self._index))

    def steps(self) -> tuple[Tensor, Tensor]:
        """(S, T, B) rows, -1 where there is none, and the owner's part of their logits."""
        streams = list(self._streams.values())
        num_steps = max(len(steps) for steps in streams)
        most = max(len(rows) for steps in streams for rows, _ in steps)
        rows_STB = torch.full((len(streams), num_steps, most), -1)
        value_STB = torch.full(rows_STB.shape, torch.nan, dtype=torch.float64)
        for stream, steps in enumerate(streams):
            for step, (rows, value) in enumerate(steps):
                rows_STB[stream, step, : len(rows)] = rows
                value_STB[stream, step, : len(rows)] = value
        return rows_STB, value_STB


class Tape:
    """Listens to engines of one process; see ``overheard``.

    Args:
        reading: of the method's messages.
        num_samples: order of samples -> how many it has.

    Attributes:
        tables: channel -> what it said.
        logits: channel -> the owner's logits, step by step.
        weights: (observer, owner) -> weights of the first and of the last two rounds.
        answered: message type -> how many were answered.
    """

    def __init__(self, reading: Reading, num_samples: Mapping[str, int]) -> None:
        self._reading = reading
        self._num_samples = num_samples
        self.tables: dict[Channel, ChannelSummary] = {}
        self.logits: dict[Channel, Followed] = {}
        self.weights: dict[tuple[str, str], list[Weights]] = {}
        self.answered: dict[str, int] = {}

    def __call__(self, driver: str, party: str, request: Message, answer: Message) -> None:
        name = request.wire_name()
        self.answered[name] = self.answered.get(name, 0) + 1
        self.add(self._reading(driver, party, request, answer))

    def add(self, readings: Iterable[Seen | Logits | Weights]) -> None:
        """Keep what was read."""
        for seen in readings:
            if isinstance(seen, Weights):
                kept = self.weights.setdefault((seen.observer, seen.owner), [])
                if len(kept) > 2:
                    del kept[1]
                kept.append(seen)
            elif isinstance(seen, Logits):
                self.logits.setdefault(seen.channel, Followed()).add(seen)
            elif len(seen.samples_B):
                self._add(seen)

    def _add(self, seen: Seen) -> None:
        width = seen.values_BD.flatten(1).shape[1]
        table = self.tables.get(seen.channel)
        if table is None or table.width != width:  # a party that began anew with other codes
            table = ChannelSummary(self._num_samples[seen.channel.order], width)
            self.tables[seen.channel] = table
        table.add(seen.samples_B, seen.values_BD)
