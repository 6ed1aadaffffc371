"""HyFEM as a run trains it, beside the baselines of the paper's section 4 and Appendix C.1."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dovetail.data import Input, TableEncoder, Task
from dovetail.federated import Driver
from dovetail.methods import hyfem
from dovetail.models import Model
from dovetail.models.blocks import Extractor
from dovetail.network import Engine, Message, Pending, State

R = TypeVar("R", bound=Message)

#: Who drives, in ledgers and among the models.
SERVER = "server"

#: The only party of the baseline "pooled".
POOLED = "pooled"


def variant_config(
    config: hyfem.Settings, variant: str, settings: Mapping[str, Any], *, proximal: float
) -> hyfem.Settings:
    """What a variant is trained with: the settings of all, less what it has none of, and its own.

    Raises:
        ValidationError: settings that cannot be.
    """
    mu = settings.get("proximal", proximal)
    config = hyfem.Settings(
        **{**config.model_dump(), **{key: settings[key] for key in settings if key != "proximal"}}
    )
    match variant:
        case "standalone" | "pooled":
            return hyfem.alone(config)
        case "fedavg":
            return hyfem.fedavg(config)
        case "fedprox":
            return hyfem.fedprox(config, mu)
        case "fedper":
            return hyfem.fedper(config)
    return config


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a variant is trained with.

    Attributes:
        config: its settings.
        task: what all parties' labels say.
        extractors: block -> its extractor, of every block that the variant uses.
        party_data: party -> what it has; none of those that are elsewhere.
    """

    config: hyfem.Settings
    task: Task
    extractors: Mapping[str, Extractor]
    party_data: Mapping[str, hyfem.HyfemData]


class Apart(Driver):
    """Each party with a coordinator of its own, one round of each after the other: "standalone".

    Args:
        recipe: of the variant; a party uses the blocks that it has.
        seed: of each coordinator.
    """

    def __init__(self, recipe: Recipe, *, seed: int) -> None:
        self.config, self.num_rounds = recipe.config, recipe.config.rounds
        self.coordinators = {
            name: hyfem.Coordinator(
                recipe.task,
                {
                    block: extractor
                    for block, extractor in recipe.extractors.items()
                    if block in local_data.blocks
                },
                recipe.config,
                seed=seed,
                name=SERVER,
            )
            for name, local_data in recipe.party_data.items()
        }

    def begin(self, network: Engine) -> None:
        """Open every party's run."""
        for name, coordinator in self.coordinators.items():
            coordinator.begin(coordinator.federation(_OneOf(network, name)))

    def round(self, number: int, network: Engine) -> hyfem.Round:
        """One round of each."""
        losses: dict[str, float] = {}
        for name, coordinator in self.coordinators.items():
            losses |= coordinator.round(
                number, coordinator.federation(_OneOf(network, name))
            ).losses
        return hyfem.Round(metrics={"loss": statistics.fmean(losses.values())}, losses=losses)

    def finish(self, network: Engine) -> None:
        """Each has its model."""
        for name, coordinator in self.coordinators.items():
            coordinator.finish(coordinator.federation(_OneOf(network, name)))

    def state(self) -> State:
        """States of all coordinators."""
        return {name: coordinator.state() for name, coordinator in self.coordinators.items()}

    def restore(self, state: State) -> None:
        """Go on from there."""
        for name, coordinator in self.coordinators.items():
            coordinator.restore(state[name])


class _OneOf(Engine):
    """An engine, as one of its parties has it for itself."""

    def __init__(self, engine: Engine, party: str) -> None:
        super().__init__(engine.driver)
        self._engine = engine
        self._party = party

    @property
    def parties(self) -> tuple[str, ...]:
        return (self._party,)

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Pending[R]:
        return self._engine.send(requests, reply, timeout_s=timeout_s)

    def notify(self, party: str, why: str) -> None:
        self._engine.notify(party, why)


def party_model(driver: Driver, member: hyfem.Member) -> Model:
    """A party's model so far: its slice of the server's, if that has a classifier."""
    if isinstance(driver, hyfem.Coordinator) and driver.config.classifier != "own":
        model, tables = driver.model_of(member.name), member.data.train.tables
        inputs: dict[str, Input] = {
            block: each.on_site(tables[block]) if isinstance(each, TableEncoder) else each
            for block, each in model.inputs.items()
        }
        return replace(model, inputs=inputs, task=member.task)
    return member.model()


def described_model(
    model: Model, inputs: Mapping[str, Input], *, method: str, label: str, learning_rate: float
) -> Model:
    """A model with how it came about, and what ``predict`` needs."""
    known = {**inputs, **model.inputs}
    about = {**model.about, "method": method, "learning_rate": learning_rate}
    return replace(
        model,
        inputs={block: known[block] for block in model.shapes if block in known},
        about={**about, "label": label} if label else about,
    )
