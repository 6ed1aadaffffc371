"""HyFEM as a run trains it, beside the baselines of the paper's section 4 and Appendix C.1."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dovetail.data import Input, TableEncoder, Task
from dovetail.federated import Driver, Federation
from dovetail.methods import hyfem
from dovetail.methods.separately import Separately
from dovetail.models import Model
from dovetail.models.blocks import Extractor

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


class Apart(Separately[hyfem.Coordinator]):
    """Each party with a coordinator of its own: "standalone".

    Args:
        recipe: of the variant; a party uses the blocks that it has.
        seed: of each coordinator.
    """

    def __init__(self, recipe: Recipe, *, seed: int) -> None:
        self.config, runs = recipe.config, {}
        for name, local_data in recipe.party_data.items():
            held = {
                block: recipe.extractors[block]
                for block in recipe.extractors
                if block in local_data.blocks
            }
            runs[name] = hyfem.Coordinator(recipe.task, held, self.config, seed=seed, name=SERVER)
        super().__init__(runs)

    def reach(self, name: str, network: Federation) -> Federation:
        federation = self.runs[name].federation(network)
        federation.only = (name,)
        return federation

    def together(self, done: Mapping[str, Any], network: Federation) -> hyfem.Round:
        losses = {party: loss for each in done.values() for party, loss in each.losses.items()}
        return hyfem.Round(metrics={"loss": statistics.fmean(losses.values())}, losses=losses)


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
