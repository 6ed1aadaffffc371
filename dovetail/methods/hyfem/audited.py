"""Facet of HyFEM for audits: reader of its messages, scenes, and defences."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dovetail.data import Blocks
from dovetail.methods import hyfem
from dovetail.methods.facets.audited import (
    Audited,
    Holding,
    Scene,
    Seen,
    Weights,
    candidates,
    flat,
    names_of,
)
from dovetail.methods.facets.defences import Grid, WeightsGrid
from dovetail.methods.training import Training
from dovetail.network.messages import Message


class Reading:
    """Parties' extractors and classifiers, seen by the server."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}

    def __call__(
        self, driver: str, party: str, request: Message, answer: Message
    ) -> Iterable[Seen | Weights]:
        if isinstance(request, hyfem.Train) and isinstance(answer, hyfem.Trained):
            self._rounds[party] = number = self._rounds.get(party, 0) + 1
            before = {"extractors": request.extractors, "classifier": request.classifier}
            after = {"extractors": answer.extractors, "classifier": answer.classifier}
            yield Weights(
                driver,
                party,
                number,
                {name: each.clone() for name, each in before.items()},
                {name: each.clone() for name, each in after.items()},
            )


class HyfemAudited(Audited):
    """HyFEM, and FedAvg of its common blocks."""

    tried = ("hyfem", "fedavg")

    def scene(self, training: Training) -> Scene:
        """Each party's blocks side by side."""
        data = training.loaded.data
        inputs = data.block_inputs if isinstance(data, Blocks) else {}
        parties: dict[str, Holding] = {}
        encoded = {}
        for name, local in training.party_data.items():
            if local.train.tables:
                parties[name] = Holding(None)
                continue
            columns: list[str] = []
            for block, x in local.train.blocks.items():
                given = names_of(inputs.get(block), x)
                columns += [f"{block}: {column}" for column in given]
            blocks = [flat(each) for each in local.train.blocks.values()]
            x = torch.cat(blocks, dim=1).nan_to_num(0.0)
            parties[name] = Holding(x, tuple(columns), local.train.labels)
            encoded[name] = local.train, local.test
        return Scene(data.task, parties, {}, Reading(), candidates(encoded))

    def grid(self, training: Training) -> Grid:
        """DP-SGD of what is sent."""
        return WeightsGrid(all(each.test is not None for each in training.party_data.values()))
