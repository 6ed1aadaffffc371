"""FedOptimus in a run file: [fedoptimus], for all owners; and in a party's own file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Literal, get_args

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods import fedoptimus
from dovetail.methods.base import SILENT, Loaded, Maker, Parts, Run, Talk, weighed
from dovetail.methods.fedoptimus import predicting, selection
from dovetail.methods.fedoptimus.owners import (
    BottomField,
    OwnerHomes,
    OwnerSection,
    align_owners,
    bottom,
    columns_of,
    is_label_owner,
    labels_of,
    members_of,
    relay_alignment,
    task_of,
)
from dovetail.methods.fedoptimus.stages import (
    DRIVER,
    FedOptimusSetup,
    Stage,
    holdings,
    stage_config,
)
from dovetail.methods.homes import check_nobody_is_active, check_stages
from dovetail.methods.method import Method
from dovetail.methods.outcome import Deciding
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.rulers import TITLES as RULERS
from dovetail.network import Message

#: What can be trained, and what a table calls it.
STAGES: Mapping[str, str] = {
    "fedoptimus": "FedOptimus, predicts with data owners",
    "classic": "one label owner with all labels (classic vertical)",
    "alone": "each label owner alone, all data owners",
    "pooled": "pooled (all columns and labels in one place)",
}
assert STAGES.keys() == {*get_args(Stage)}


class SelectionSection(selection.Config):
    """Which data owners take part: the best share of them, by mutual information."""

    every: int = Field(default=0, ge=0)  # steps, in whole rounds, to the next choice; 0: never
    by: Literal["embeddings", "columns"] = "embeddings"  # what distances are taken between


class FedOptimusSection(fedoptimus.Config):
    """Settings of the method and its rulers.

    The defaults are those of a user, not the paper's, which are ``fedoptimus.Config``'s.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"  # what follows the gradients
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)  # eta
    weight_decay: float = Field(default=0.3, ge=0, allow_inf_nan=False)  # of weights, in a step
    epochs: int = Field(default=35, ge=1)  # passes over the largest shard
    server: Literal["average", "fedavgm"] = "average"  # what the coordinator does with weights
    slowmo: Literal["off", "interpolate", "initial", "momentum"] = "off"  # slow momentum on them
    bottom: BottomField | None = None  # of every data owner; None: by what its rows are
    selection: SelectionSection | None = None
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a stage's own settings

    @model_validator(mode="before")
    @classmethod
    def _decay_of_adamw_alone(cls, values: Any) -> Any:
        """0.3 is for AdamW, which decays weights apart from gradients; others get none unasked."""
        if isinstance(values, Mapping) and values.get("optimizer", "adamw") != "adamw":
            return {"weight_decay": 0.0, **values}
        return values


def config(section: FedOptimusSection) -> fedoptimus.Config:
    """The section's settings for all stages."""
    return fedoptimus.Config(**section.model_dump(include=set(fedoptimus.Config.model_fields)))


# --- Parties with files of their own --------------------------------------------------------------


def _both(algorithm: ModuleType) -> tuple[type[Message], ...]:
    """What data owners and label owners answer."""
    return (*algorithm.DataOwner.accepts, *algorithm.LabelOwner.accepts)


class FedOptimus(Method):
    """FedOptimus."""

    decides = True
    name = "fedoptimus"
    Settings = FedOptimusSection
    HomeSettings = OwnerSection
    stages: ClassVar[Mapping[str, str]] = {**STAGES, **RULERS}
    partitions = ("owners",)
    driven_by = "coordinator"
    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "fedoptimus": algorithm(
            "fedoptimus",
            _both(fedoptimus),
            begins=(fedoptimus.BeginData, fedoptimus.BeginLabels),
        ),
        "predicting": algorithm("fedoptimus", predicting.Recalling.accepts),
        "selection": algorithm("fedoptimus", _both(selection)),
    }
    models = (
        "Each label owner keeps a top network and each data owner a bottom network, which predict "
        "together; the coordinator keeps nothing."
    )

    def asks(self, run: Run) -> tuple[str, ...]:
        """Data owners and label owners align, and train."""
        return ("align", "fedoptimus")

    def stage_settings(self, run: Run, stage: str) -> Mapping[str, Any]:
        """The settings that ``BeginData`` and ``BeginLabels`` carry."""
        section = run.settings("fedoptimus", FedOptimusSection)
        own = section.stages.get(stage, {})
        return stage_config(config(section), stage, own).model_dump(mode="json")

    def check(self, run: Run, *, where: str) -> None:
        """Refuse settings that cannot be, of any stage.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("fedoptimus", FedOptimusSection)
        make = partial(stage_config, config(section))
        check_stages(run, "fedoptimus", section.stages, STAGES, make, where=where)
        if section.selection is not None and section.share < 1:
            raise ConfigError(
                f"{where}, [fedoptimus]: share draws data owners at random and "
                "[fedoptimus.selection] chooses them; give one of them (the share that selection "
                "keeps is selection.share)"
            )
        chosen = section.selection
        if chosen is not None and chosen.secure and chosen.order == "forward":
            raise ConfigError(
                f'{where}, [fedoptimus.selection]: order = "forward" compares groups that differ '
                "by one owner, whose part their sums give away, so that masks protect nobody; "
                'choose order = "relevance" or secure = false'
            )
        if run.engine.kind != "inprocess":
            for stage in (run.method, *run.rulers):
                if stage != "fedoptimus":
                    raise ConfigError(
                        f"{where}: {stage!r} is trained in one process only; leave it out"
                    )
            if section.selection is not None and section.selection.by == "columns":
                raise ConfigError(
                    f"{where}: over a network data owners are chosen by their embeddings; leave "
                    "selection.by out"
                )
            if section.bottom is not None:
                raise ConfigError(
                    f"{where}: over a network a data owner's network is its own; give bottom below "
                    "[fedoptimus] in its party file"
                )

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Talk = SILENT
    ) -> Parts:
        """Party files: each label owner is aligned with all data owners.

        Raises:
            ConfigError: no owner of a kind, a policy that refuses, or labels that cannot be
                learned.
            AlignmentError: a data owner that has none of a label owner's samples.
        """
        check_nobody_is_active(run, "fedoptimus", where=where)
        if run.settings("fedoptimus", FedOptimusSection).bottom is not None:
            raise ConfigError(
                f"{where}: with parties a data owner's network is its own; give bottom below "
                "[fedoptimus] in its party file"
            )
        labellers = {name: site for name, site in sites.items() if is_label_owner(site)}
        holders = {name: site for name, site in sites.items() if name not in labellers}
        for kind, found in (("names a label", labellers), ("names none", holders)):
            if not found:
                raise ConfigError(
                    f"{where}: no party file {kind}; FedOptimus needs label owners, whose files "
                    "name a label, and data owners, whose files do not"
                )
        for site in sites.values():
            site.check_policy("fedoptimus", DRIVER)
            site.check_policy("align", DRIVER)
        task = task_of(labellers, where=where)
        rows = align_owners(labellers, holders, talk=talk)

        def of(party: str, owner: str) -> dict[str, Tensor]:
            return {part: held[party] for part, held in rows[owner].items()}

        labels = {name: labels_of(site, task, of(name, name)) for name, site in labellers.items()}
        columns = {
            name: columns_of(site, {owner: of(name, owner) for owner in labellers})
            for name, site in holders.items()
        }
        federation = dd.Federation(
            dd.PartyData(name, site.table.ids) for name, site in {**holders, **labellers}.items()
        )
        label = next(iter(labellers.values())).table.label or ""
        return OwnerHomes(federation, None, task, {}, label, columns, labels), None, None

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm -> what makes the party's side of its runs, where its policy allows them."""
        if "fedoptimus" not in allowed:
            return {}
        return members_of(site, allowed)

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """What the party will do, of what its policy agrees to."""
        if "fedoptimus" not in agreed:
            return
        if is_label_owner(site):
            yield "labels     as a label owner: gradients of its loss, and its top model's weights"
            if any(site.table.blocks.values()):
                yield "           its own columns are not used"
        else:
            yield "embeds     as a data owner: embeddings of its rows, for every label owner"
            if "align" in agreed:
                yield "           and for one that drives a prediction, of the rows that it names"

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a coordinator has, once its parties are here and aligned: their names.

        Raises:
            ConfigError: no owner of a kind.
            AlignmentError: a data owner that has none of a label owner's samples.
        """

        elsewhere = relay_alignment(driver, where=where, say=driver.say)
        nobody = dd.Federation([])
        return (
            OwnerHomes(nobody, None, dd.Classification(()), {}, "", {}, {}, elsewhere),
            None,
            None,
        )

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Rate and sizes."""
        return {
            "fedoptimus.learning_rate": (5e-4, 1e-3, 2e-3, 5e-3),
            "fedoptimus.embedding": (16, 32, 64),
            "fedoptimus.weight_decay": (0.0, 0.01, 0.1),
            "fedoptimus.sync_every": (1, 5, 20),
        }

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> FedOptimusSetup:
        """Everything that one seed's run is a function of."""
        section, data = run.settings("fedoptimus", FedOptimusSection), loaded.data
        axis = None
        if isinstance(data, dd.Owners):
            bottoms = {
                name: bottom(section.bottom, tuple(data.train[name].joined().shape[1:]))
                for name in data.data_owners
            }
            columns, labels = holdings(data, bottoms)
            axis = data.axis
            elsewhere: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        else:
            assert isinstance(data, OwnerHomes)
            columns, labels, elsewhere = dict(data.columns), dict(data.labels), data.elsewhere
        chosen = section.selection
        return FedOptimusSetup(
            method=run.method,  # type: ignore[arg-type]  # one of STAGES
            task=data.task,
            label=data.label,
            columns=columns,
            labels=labels,
            config=weighed(config(section), run),
            stages=section.stages,
            selection=None
            if chosen is None
            else selection.Config(**chosen.model_dump(include=set(selection.Config.model_fields))),
            select_every=0 if chosen is None else math.ceil(chosen.every / section.sync_every),
            select_by="embeddings" if chosen is None else chosen.by,
            rulers=run.rulers,  # type: ignore[arg-type]  # each one of STAGES
            axis=axis,
            deciding=Deciding(run.class_weights, run.threshold, run.calibrate),
            evaluate_every=run.evaluate_every,
            device=device,
            precision=run.engine.precision,
            connect=loaded.connect,
            elsewhere=elsewhere,
            secret=loaded.secret,
        )
