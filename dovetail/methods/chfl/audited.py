"""Facet of CHFL for audits: reader of its messages, scenes, and defences."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from dovetail.methods.chfl import layers as chfl
from dovetail.methods.facets.audited import Audited, Holding, Scene, Seen, Weights, candidates
from dovetail.methods.facets.defences import Grid, WeightsGrid
from dovetail.methods.training import Training
from dovetail.network.messages import Message


class Reading:
    """Members' common columns, seen by the coordinator where they are not summed in secret."""

    def __init__(self) -> None:
        self._averages: dict[str, Tensor] = {}

    def __call__(
        self, driver: str, party: str, request: Message, answer: Message
    ) -> Iterable[Seen | Weights]:
        match request, answer:
            case chfl.Average(), _:
                self._averages[party] = request.common_P.clone()
            case chfl.Train(), chfl.Trained() if answer.common_P.numel():
                before = {"common": self._averages[party]}
                after = {"common": answer.common_P.clone()}
                yield Weights(driver, party, request.number, before, after)


class ChflAudited(Audited):
    """CHFL, and what sends weights of common columns."""

    tried = ("chfl", "chfl-mu0", "chfl-gate", "common")

    def scene(self, training: Training) -> Scene:
        """Scene of the run; columns are encoded when training starts, so the models have how they
        were read."""
        party_data = training.party_data
        parties = {name: Holding(None, (), each.train.labels) for name, each in party_data.items()}
        task = next(iter(party_data.values())).task
        rows = candidates({name: (each.train, each.test) for name, each in party_data.items()})
        return Scene(task, parties, {}, Reading(), rows)

    def grid(self, training: Training) -> Grid:
        """DP-SGD of what is sent."""
        return WeightsGrid(all(each.test is not None for each in training.party_data.values()))
