"""Reader of FedOptimus' messages, for an audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from dovetail.methods import fedoptimus, selection
from dovetail.methods.facets.audited import Channel, Seen, Weights
from dovetail.network.messages import Message

#: All data owners as one party.
TOGETHER = "the data owners together"


class Reading:
    """Data owners, label owners and a coordinator; an order of samples for each label owner."""

    def __init__(self) -> None:
        self._label_owners: tuple[str, ...] = ()
        self._steps: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        self._batches: dict[tuple[str, int], Tensor] = {}
        self._opened: dict[str, selection.Open] = {}
        self._distances: dict[tuple[str, str], Tensor] = {}

    def __call__(
        self, driver: str, party: str, request: Message, answer: Message
    ) -> Iterable[Seen | Weights]:
        match request, answer:
            case fedoptimus.messages.BeginData(), _:
                self._label_owners = request.label_owners
            case fedoptimus.Step(), fedoptimus.messages.Embeddings():
                yield from self._gradients(party, request.gradient_BE, request.learned)
                self._steps[party] = request.samples_B, request.sizes
                if not len(answer.embedding_BE):  # summed in secret
                    return
                parts = zip(
                    self._label_owners,
                    request.samples_B.split(request.sizes),
                    answer.embedding_BE.split(request.sizes),
                    strict=True,
                )
                for owner, samples, embedding in parts:
                    yield Seen(Channel(driver, party, "codes", owner), samples, embedding)
            case fedoptimus.Average(), _:
                yield from self._gradients(party, request.gradient_BE, request.learned)
                self._steps.pop(party, None)
            case fedoptimus.Draw(), fedoptimus.Batch():
                self._batches[party, answer.batch] = answer.samples_B
            case fedoptimus.Learn(), fedoptimus.Learned():
                samples = self._batches.pop((party, request.batch), None)
                if samples is not None and len(samples) == len(request.mean_BE):
                    together = Channel(party, TOGETHER, "codes", party)
                    yield Seen(together, samples, request.mean_BE)
                    learned = Channel(driver, party, "gradients", party)
                    yield Seen(learned, samples, answer.gradient_BE)
                self._batches[party, answer.batch] = answer.samples_B
            case selection.Open(), _:
                self._opened[party] = request
            case selection.Measure(), selection.Partial() if not request.owners:
                yield from self._measured(driver, party, request, answer)

    def _gradients(
        self, party: str, gradient_BE: Tensor, learned: tuple[int, ...]
    ) -> Iterator[Seen]:
        """Those of the batches before, label owner by label owner."""
        if party not in self._steps or not len(gradient_BE):
            return
        samples_B, sizes = self._steps[party]
        parts = zip(
            self._label_owners,
            samples_B.split(sizes),
            sizes,
            gradient_BE.split(learned),
            strict=True,
        )
        for owner, samples, size, gradient in parts:
            if len(gradient) == size:
                yield Seen(Channel(party, owner, "gradients", owner), samples, gradient)

    def _measured(
        self, driver: str, party: str, request: selection.Measure, answer: selection.Partial
    ) -> Iterator[Seen]:
        """All distances to the queries that this owner told so far, those not told at the mean."""
        opened = self._opened[party]
        key = party, opened.label_owner
        shape = (len(opened.samples_N), len(opened.queries_Q))
        if key not in self._distances or self._distances[key].shape != shape:
            self._distances[key] = torch.full(shape, torch.nan)
        distances = self._distances[key]
        distances[request.rows_M, request.queries_M] = answer.distances_M.float() / 2**request.bits
        mean = distances.nanmean().nan_to_num()
        filled = torch.where(distances.isnan(), mean, distances).sqrt()
        channel = Channel(driver, party, "distances", opened.label_owner)
        yield Seen(channel, opened.samples_N, filled)
