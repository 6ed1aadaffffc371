"""FedOptimus in a run file: [fedoptimus], for all owners; and in a party's own file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Local, Party
from dovetail.methods import fedoptimus, selection
from dovetail.methods.base import (
    SILENT,
    Loaded,
    Maker,
    Parts,
    Progress,
    Run,
    deciding,
    weighed,
)
from dovetail.methods.baselines import TITLES as BASELINES
from dovetail.methods.baselines import LocalRows
from dovetail.methods.facets.keys import Keys
from dovetail.methods.facets.proposed import Proposed
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.audited import OwnersAudited
from dovetail.methods.fedoptimus.choosing import Chooser
from dovetail.methods.fedoptimus.coordinator import Choose
from dovetail.methods.fedoptimus.fits import REPORTED, OwnersFits
from dovetail.methods.fedoptimus.owners import (
    SELECTED,
    AnyBottom,
    OwnerHoldings,
    OwnerSection,
    align_owners,
    bottom,
    check_counted,
    columns_of,
    is_label_owner,
    labels_of,
    members_of,
    relay_alignment,
)
from dovetail.methods.fedoptimus.settings import Smoothing
from dovetail.methods.fedoptimus.valued import OwnersValued
from dovetail.methods.fedoptimus.variant_settings import (
    OwnerData,
    asked_scores,
    chooser_of,
    columns_in,
    coordinator_of,
    decisions,
    described_top,
    holdings,
    labels_in,
    local_rows,
    scores_of,
    separate,
    side_by_side,
    side_of,
    together,
    variant_config,
)
from dovetail.methods.labels import MORE_KINDS, common_task, local_times
from dovetail.methods.local_data import DRIVER, check_nobody_is_active, check_variants
from dovetail.methods.method import Method
from dovetail.methods.outcome import Observer, Scores
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.section import narrowed
from dovetail.methods.training import LocalBaseline, Training, Variant, VariantRun
from dovetail.models import Model
from dovetail.models.decisions import FittedThreshold
from dovetail.models.owners import Bottom
from dovetail.network import Checkpoint, Composite, Engine
from dovetail.network.checkpoint import StatefulParty

#: What can be trained, and what a table calls it.
VARIANT_NAMES: Mapping[str, str] = {
    "fedoptimus": "FedOptimus, predicts with data owners",
    "classic": "one label owner with all labels (classic vertical)",
    "alone": "each label owner alone, all data owners",
    "pooled": "pooled (all columns and labels in one place)",
}


class SelectionSection(selection.Config):
    """Which data owners take part: the best share of them, by mutual information."""

    every: int = Field(default=0, ge=0)  # steps, in whole rounds, to the next choice; 0: never
    by: Literal["embeddings", "columns"] = "embeddings"  # what distances are taken between


#: What a run has that describes its networks itself.
_PLAIN = {
    "skip": False,
    "members": 1,
    "embedding": 64,
    "smoothing": 0.0,
    "patience": None,
    "epochs": 35,
}


#: What the paper has on: FedAvgM, SlowMo of the text, and the most relevant data owners by current
#: embeddings in every round. It gives no share to keep; three of four is Table 1's here.
_PAPER = {"server": "fedavgm", "slowmo": "interpolate"}
_PAPER_SELECTION = {"share": 0.75, "every": 1}


class FedOptimusSection(fedoptimus.Config):
    """Settings of the method and its baselines.

    The defaults are those of a user, K steps and an average, and not the paper's: ``variant`` and
    ``fedoptimus.Config`` have those.
    """

    # "kstep": K steps between averages alone; "paper": lines 4, 5 and 11 to 13, too, which are
    # selection in every round, FedAvgM and SlowMo, unless a key says otherwise
    variant: Literal["kstep", "paper"] = "kstep"

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"  # what follows the gradients
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)  # eta
    weight_decay: float = Field(default=0.3, ge=0, allow_inf_nan=False)  # of weights, in a step
    epochs: int = Field(default=200, ge=1)  # passes over the largest shard; with patience the most
    server: Literal["average", "fedavgm"] = "average"  # what the coordinator does with weights
    slowmo: Literal["off", "interpolate", "initial", "momentum"] = "off"  # slow momentum on them
    embedding: int = Field(default=128, ge=1)  # E
    skip: bool = True  # tops read the mean embedding linearly, too
    members: int = Field(default=4, ge=1)  # networks side by side, which share the embedding
    smoothing: Smoothing = "classes"  # of labels; classes: 0.1 of 3 classes or more
    patience: int | None = Field(default=10, ge=1)  # epochs without a better held-out loss
    bottom: AnyBottom | None = None  # of every data owner; None: by what its rows are
    selection: SelectionSection | None = None
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a variant's own settings

    @model_validator(mode="before")
    @classmethod
    def _parts_of_the_paper(cls, values: Any) -> Any:
        """The paper's parts are on if its variant is asked for."""
        if not isinstance(values, Mapping) or values.get("variant") != "paper":
            return values
        selection = values.get("selection", {})
        if isinstance(selection, Mapping):
            selection = {**_PAPER_SELECTION, **selection}
        return {**_PAPER, **values, "selection": selection}

    @model_validator(mode="before")
    @classmethod
    def _networks_as_given(cls, values: Any) -> Any:
        """Who describes networks, as the paper's recipes do, gets these and nothing beside them."""
        if not isinstance(values, Mapping):
            return values
        if not {"bottom", "top"}.isdisjoint(values):
            return {**_PLAIN, **values}
        if values.get("members") == 1 or values.get("average_tops") is False:  # nobody to judge by
            return {"patience": None, "epochs": _PLAIN["epochs"], **values}
        return values

    @model_validator(mode="before")
    @classmethod
    def _decay_of_adamw_alone(cls, values: Any) -> Any:
        """0.3 is for AdamW, which decays weights apart from gradients; others get none unasked."""
        if isinstance(values, Mapping) and values.get("optimizer", "adamw") != "adamw":
            return {"weight_decay": 0.0, **values}
        return values


# --- Parties with files of their own --------------------------------------------------------------


class OwnersVariant(Variant):
    """FedOptimus, or a baseline of it with rounds."""

    def __init__(self, variant: str) -> None:
        self.silent = (
            variant == "alone"
        )  # each label owner's run is by itself, and none is the run's

    def variant_data(self, training: Training, name: str) -> Mapping[str, OwnerData]:
        """Everybody's own; of a baseline with all labels, or all, in one place, as if they were."""
        match name:
            case "alone":
                return separate(training.party_data)
            case "classic":
                return together(training.party_data)
            case "pooled":
                party_data = together(training.party_data)
                axis = axis_of(training) or 1  # setup refuses "pooled" of rows in no one place
                return {**side_by_side(columns_in(party_data), axis), **labels_in(party_data)}
        return training.party_data

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """The settings that ``BeginData`` and ``BeginLabels`` carry."""
        section = run.settings("fedoptimus", FedOptimusSection)
        given = section.variants.get(name, {})
        plain = deciding(weighed(narrowed(section, fedoptimus.Config), run), run)
        return variant_config(plain, name, given).model_dump(mode="json")

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> fedoptimus.Config:
        """A variant's settings."""
        section: FedOptimusSection = training.settings
        plain = weighed(narrowed(section, fedoptimus.Config), training.run)
        if training.run.data is None and name == "fedoptimus":
            plain = deciding(plain, training.run, judges=training.trying)
        return variant_config(plain, name, section.variants.get(name, {}))

    def driver(
        self, training: Training, name: str, party_data: Mapping[str, Any], settings: Any, seed: int
    ) -> Driver:
        """The coordinator of a variant."""
        data, asked = training.loaded.data, training.settings.selection

        def choosing(data_owners: Sequence[str], label_owners: Sequence[str]) -> Choose | None:
            if asked is None:
                return None
            every = math.ceil(asked.every / training.settings.sync_every)
            return Chooser(
                narrowed(asked, selection.Config), data_owners, label_owners, every=every, seed=seed
            )

        return coordinator_of(
            party_data,
            name,
            settings,
            seed,
            elsewhere=data.elsewhere if isinstance(data, OwnerHoldings) else ((), ()),
            secret=training.loaded.secret,
            choosing=choosing,
        )

    def sides(self, variant_run: VariantRun) -> Mapping[str, StatefulParty]:
        """Owners that train, and answer a selection too: in process a name stands for one party."""
        asked = variant_run.training.settings.selection
        if asked is None or variant_run.name != "fedoptimus":
            return variant_run.parties
        found: dict[str, StatefulParty] = {}
        for name, local_data in variant_run.party_data.items():
            check_counted(local_data, SELECTED)
            party = variant_run.parties[name]
            embeds = asked.by == "embeddings" and isinstance(party, fedoptimus.DataOwner)
            chooser = chooser_of(local_data, party.features if embeds else None)
            found[name] = Composite(party, chooser)
        return found

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        """Score name -> label owner -> scores of its model with the data owners' networks."""
        scores = scores_of(variant_run, last=last)
        return {variant_run.name: scores} if scores else {}

    def validated(self, variant_run: VariantRun) -> Mapping[str, Scores]:
        """Label owner -> scores on validation rows; a label owner alone has none."""
        return {} if variant_run.name == "alone" else scores_of(variant_run, "validation")

    def asked_scores(self, variant_run: VariantRun, network: Engine) -> Mapping[str, Scores]:
        """Label owner elsewhere -> scores on its test rows."""
        return asked_scores(variant_run.driver, network)

    def decisions(self, variant_run: VariantRun) -> dict[str, FittedThreshold | None]:
        """Label owner -> its threshold and calibration."""
        return decisions(variant_run, variant_run.training.decision_settings)

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Label owner -> its top, which takes the mean of embeddings."""
        if variant_run.name not in KEPT:
            return {}
        return {
            name: described_top(
                variant_run.parties[name].model(), method=variant_run.name, label=local_data.label
            )
            for name, local_data in labels_in(variant_run.party_data).items()
        }

    def bottoms(self, variant_run: VariantRun) -> dict[str, Bottom]:
        """Data owner -> its bottom, of those whose embeddings the tops know."""
        if variant_run.name not in KEPT or variant_run.training.elsewhere:
            return {}
        return {
            name: variant_run.parties[name].bottom_model()
            for name in variant_run.driver.participants
        }


class OwnersAlone(LocalBaseline):
    """Learners on each label owner's rows."""

    def rows(self, training: Training) -> dict[str, LocalRows]:
        """Label owner -> what it has for a model alone."""
        party_data = training.party_data
        return local_rows(columns_in(party_data), labels_in(party_data), axis_of(training))


class OwnersProposed(Proposed):
    """What an owner does."""

    aligns = True

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


class FedOptimus(Method):
    """FedOptimus."""

    decides = True
    name = "fedoptimus"
    Settings = FedOptimusSection
    PartySettings = OwnerSection
    variants: ClassVar[Mapping[str, str]] = {**VARIANT_NAMES, **BASELINES}
    partitions = ("owners",)
    driven_by = "coordinator"
    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "fedoptimus": algorithm("fedoptimus", fedoptimus.DataOwner, fedoptimus.LabelOwner),
        "predicting": algorithm("fedoptimus", predicting.Inference),
        "selection": algorithm("fedoptimus", selection.DataOwner, selection.LabelOwner),
    }
    keys = Keys(
        {
            "fedoptimus.learning_rate": (5e-4, 1e-3, 2e-3, 5e-3),
            "fedoptimus.embedding": (16, 32, 64),
            "fedoptimus.weight_decay": (0.0, 0.01, 0.1),
            "fedoptimus.sync_every": (1, 5, 20),
        },
        of_parties=("fedoptimus.bottom",),
    )
    proposed = OwnersProposed()
    fits = OwnersFits()
    reported = REPORTED
    audited = OwnersAudited()
    valued = OwnersValued()
    together = staticmethod(predicting.question)
    models = (
        "Each label owner keeps a top network and each data owner a bottom network, which predict "
        "together; the coordinator keeps nothing."
    )

    def check(self, run: Run, *, where: str) -> None:
        """Refuse settings that cannot be, of any variant.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("fedoptimus", FedOptimusSection)
        make = partial(variant_config, narrowed(section, fedoptimus.Config))
        check_variants(run, "fedoptimus", section.variants, VARIANT_NAMES, make, where=where)
        chosen = section.selection
        if section.secure and chosen is not None and not chosen.secure:
            raise ConfigError(
                f"{where}: [fedoptimus] secure = true hides data owners' embeddings, and the "
                "selection shows their distances; set fedoptimus.selection.secure = true, or leave "
                "the selection out"
            )
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
        if run.engine.elsewhere:
            for variant in (run.method, *run.baselines):
                if variant != "fedoptimus":
                    raise ConfigError(
                        f"{where}: {variant!r} is trained in one process only; leave it out"
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
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress = SILENT
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
        for kind, names in (("no party has a label", labellers), ("all have a label", holders)):
            if not names:
                raise ConfigError(
                    f"{where}: {kind}; FedOptimus needs label owners, which name one, and data "
                    "owners, which have columns and name none"
                )
        for site in sites.values():
            site.check_policy("fedoptimus", DRIVER)
            site.check_policy("align", DRIVER)
        whose = "label owners'"
        task = common_task(labellers, "fedoptimus", whose, *MORE_KINDS, where=where, talk=talk)
        rows = align_owners(labellers, holders, talk=talk)

        def of(party: str, owner: str) -> dict[str, Tensor]:
            return {part: held[party] for part, held in rows[owner].items()}

        labels = {
            name: labels_of(site, local_times(site) or task, of(name, name))
            for name, site in labellers.items()
        }
        columns = {
            name: columns_of(site, {owner: of(name, owner) for owner in labellers})
            for name, site in holders.items()
        }
        federation = dd.Federation(
            dd.PartyData(name, site.table.ids) for name, site in {**holders, **labellers}.items()
        )
        label = next(iter(labellers.values())).table.label or ""
        return OwnerHoldings(federation, None, task, {}, label, {**columns, **labels}), None, None

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm -> what makes the party's side of its runs, where its policy allows them."""
        if "fedoptimus" not in allowed:
            return {}
        return members_of(site, allowed)

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a coordinator has, once its parties are here and aligned: their names.

        Raises:
            ConfigError: no owner of a kind.
            AlignmentError: a data owner that has none of a label owner's samples.
        """

        elsewhere = relay_alignment(driver, where=where, print_line=driver.print)
        nobody = dd.Federation([])
        return OwnerHoldings(nobody, None, dd.Classification(()), {}, "", {}, elsewhere), None, None

    # --- A run ----------------------------------------------------------------------------------

    def dealt(self, run: Run, loaded: Loaded) -> Mapping[str, OwnerData]:
        """Owner -> what it has.

        Raises:
            ConfigError: what is in no one place is to be trained as if it were.
        """
        section, data = run.settings("fedoptimus", FedOptimusSection), loaded.data
        if isinstance(data, dd.Owners):
            bottoms = {
                name: bottom(section.bottom, tuple(data.train[name].joined().shape[1:]))
                for name in data.data_owners
            }
            return holdings(data, bottoms)
        assert isinstance(data, OwnerHoldings)
        for variant in ("classic", "pooled"):
            if variant in (run.method, *run.baselines):
                raise ConfigError(
                    f"{variant!r} needs everybody's labels in one place; leave it out"
                )
        return data.holdings

    def variant(self, variant: str) -> Variant:
        """What a variant is."""
        return OwnersAlone() if variant in BASELINES else OwnersVariant(variant)

    def party(self, local_data: OwnerData, local: Local) -> Party:
        """An owner's side of a run."""
        return side_of(local_data, local)


#: Variants whose models are kept.
KEPT = ("fedoptimus", "classic")


def axis_of(training: Training) -> int | None:
    """Along which the parts of a row stand side by side; None: they are in no one place."""
    data = training.loaded.data
    return data.axis if isinstance(data, dd.Owners) else None
