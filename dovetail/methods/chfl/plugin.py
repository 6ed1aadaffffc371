"""CHFL in a run file: [chfl], for the coordinator and all parties; and in a party's own file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data.by_column import BLOCK
from dovetail.errors import ConfigError
from dovetail.federated import Party
from dovetail.methods.base import (
    Algorithm,
    Loaded,
    Progress,
    Run,
    Site,
    algorithm,
    deciding,
    weighed,
)
from dovetail.methods.chfl import layers as chfl
from dovetail.methods.chfl.audited import ChflAudited
from dovetail.methods.chfl.fits import REPORTED, ChflFits
from dovetail.methods.chfl.stacked import StackedInProcess
from dovetail.methods.chfl.variant_settings import (
    POOLED,
    chosen,
    pool,
    trained_model,
    variant_config,
)
from dovetail.methods.facets.declared import Keys, Proposed
from dovetail.methods.labels import (
    check_labels,
    common_labels,
    draw_share,
    local_task,
)
from dovetail.methods.local_data import DRIVER, Holdings, check_settings, check_variants
from dovetail.methods.method import Method
from dovetail.methods.outcome import Observer
from dovetail.methods.settings.chfl import (
    LOCAL_SETTINGS,
    VARIANT_NAMES,
    ChflRecord,
    ChflSection,
    MemberSection,
)
from dovetail.methods.settings.shared import BASELINES
from dovetail.methods.training import LocalBaseline, Training, Variant
from dovetail.models import Model
from dovetail.network import Checkpoint, Engine
from dovetail.settings.section import narrowed


def data_of_site(site: Site, task: dd.Task | None = None) -> chfl.ChflData:
    """A party's labelled rows, split into training, validation and test by its own file.

    Args:
        site: the party.
        task: what the labels of all say; None: by its own file or rows.

    Raises:
        ConfigError: no table, or no label.
        DataError: rows that cannot be split, or columns that are not there.
    """
    table, section, party = site.table, site.settings("chfl", MemberSection), site.party
    check_labels(site, "CHFL")
    x, own = table.x, cast(Any, section.encoder)  # a network, once it is read
    if not isinstance(x, dd.Table):
        raise ConfigError(f"party {site.name!r} holds images; CHFL learns from tables")
    table.check_one_kind("CHFL")
    if task is None and party.task == "classification":
        task = table.fit_task(kind="classification")
    task = task or local_task(site, section)
    labels = table.encoded_labels(task)
    x = x.only(table.named())
    whole = dd.PartyData(site.name, table.ids, labels=labels, label=table.label, tables={BLOCK: x})
    rest, tested = draw_share(site, table.labelled_rows(), section.test_share, "test_share")
    train, validation = draw_share(site, rest, section.validation_share, "validation_share")
    return chfl.ChflData(
        whole.take(torch.from_numpy(train)),
        task,
        table.named(section.common),
        whole.take(torch.from_numpy(validation)) if len(validation) else None,
        test=whole.take(torch.from_numpy(tested)) if len(tested) else None,
        categorical=table.named(party.categorical),
        max_categories=party.max_categories,
        secure=section.secure,
        members=section.members,
        quorum=section.quorum,
        private=section.private,
        own=own,
    )


def data_of_partition(data: dd.CommonUnique) -> dict[str, chfl.ChflData]:
    """Party -> the same, of what a partition splits."""
    return {
        name: chfl.ChflData(
            party_data,
            data.task,
            data.common,
            None if data.validation is None else data.validation[name],
            test=None if data.test is None else data.test[name],
            categorical=data.categorical,
            max_categories=data.max_categories,
        )
        for name, party_data in data.train.parties.items()
    }


#: Data -> variant -> what was chosen on them, for the seeds that come after.
_FOUND: WeakKeyDictionary[dd.Partitioned, dict[str, dict[str, Any]]] = WeakKeyDictionary()


class ChflVariant(Variant):
    """CHFL, or a baseline of it with rounds."""

    def variant_data(self, training: Training, name: str) -> Mapping[str, chfl.ChflData]:
        """Everybody's own; of "pooled" one."""
        if name == "pooled":
            return {POOLED: pool(training.party_data)}
        given = training.settings.encoder
        return {
            party: replace(data, own=data.own or given)
            for party, data in training.party_data.items()
        }

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """The settings that ``Begin`` carries; a searched one may be any that is tried."""
        section = run.settings("chfl", ChflSection)
        given = section.variants.get(name, {})
        plain = deciding(weighed(narrowed(section, chfl.Config), run), run)
        made = variant_config(plain, name, given)
        values = {**made.model_dump(mode="json"), "by_party": {}}
        for key in LOCAL_SETTINGS:
            set_apart = [settings[key] for settings in made.by_party.values() if key in settings]
            if set_apart:
                values[key] = {"one_of": [values[key], *set_apart]}
        grid = {key: tried for key, tried in section.search.grid().items() if key not in given}
        for key, tried in grid.items():
            value = values[key]
            before = value["one_of"] if isinstance(value, dict) else [value]
            values[key] = {"one_of": [*before, *tried]}
        if grid:
            values["rounds"] = {"one_of": [values["rounds"], section.search.rounds]}
        return values

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> chfl.Config:
        """A variant's settings, once a search has chosen."""
        section: ChflSection = training.settings
        given = section.variants.get(name, {})
        plain = deciding(weighed(narrowed(section, chfl.Config), training.run), training.run)
        if training.run.data is not None:  # one place says it for all columns of one table
            plain = plain.model_copy(update={"max_categories": training.run.data.max_categories})
        best = chosen(
            training,
            section.search,
            variant_config(plain, name, given),
            name,
            seed,
            observe,
            checkpoint,
            given,
            _FOUND.setdefault(training.loaded.data, {}),
        )
        return variant_config(plain, name, {**given, **best})

    def driver(
        self,
        training: Training,
        name: str,
        party_data: Mapping[str, Any],
        settings: chfl.Config,
        seed: int,
    ) -> chfl.Coordinator:
        """The coordinator."""
        return chfl.Coordinator(settings, seed=seed)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """Engine that trains the parties of this process side by side."""
        return training.in_process(parties, DRIVER, StackedInProcess)

    def model(self, party: Party, local_data: chfl.ChflData, name: str = "") -> Model:
        """Model that a party can use alone, as it is now."""
        assert isinstance(party, chfl.Member)
        return trained_model(party, name)

    def tested(self, party: Party, local_data: chfl.ChflData) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of its test rows."""
        assert isinstance(party, chfl.Member)
        x, rows = party.prepared.test, party.data.test
        if x is None or rows is None or rows.labels is None or not len(rows.labels):
            return None
        return party.model().outputs(x), rows.labels

    def tested_rows(
        self, party: Party, local_data: chfl.ChflData
    ) -> tuple[Model, dict[str, Tensor]] | None:
        """Model of the party, and its test rows."""
        assert isinstance(party, chfl.Member)
        x, model = party.prepared.test, party.model()
        return None if x is None else (model, dict.fromkeys(model.shapes, x))

    def validate(self, party: Party, local_data: chfl.ChflData) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of its validation rows."""
        assert isinstance(party, chfl.Member)
        if party.prepared.validation is None:
            return None
        x, labels = party.prepared.validation
        return party.model().outputs(x.cpu()), labels.cpu()


class ChflProposed(Proposed):
    """Facet of proposals: what a member does."""

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """Sentences on the party's part in what its policy agrees to."""
        if "chfl" in agreed and isinstance(site.table.x, dd.Table):
            section = site.settings("chfl", MemberSection)
            num_offered = len(site.table.named(section.common))
            clause = "of which it tells mean and spread"
            yield f"offers     {num_offered} columns to be common, {clause}"
            if section.secure:
                whom = ", ".join(section.members or ()) or "whoever is certified"
                yield f"sums       its common column in secret only, with {whom}"


class Chfl(ChflRecord, Method):
    """CHFL."""

    decides = True
    partitions = ("common-unique", "by-column")
    Side = chfl.Member
    algorithms: ClassVar[Mapping[str, Algorithm]] = {"chfl": algorithm("chfl", chfl.Member)}
    keys = Keys(
        {
            "chfl.learning_rate": (3e-4, 1e-3, 3e-3),
            "chfl.mu": (0.0, 0.3, 1.0),
            "chfl.widths": ([64, 32], [128, 64], [512, 256, 128]),
            "chfl.weight_decay": (0.0, 1e-3),
        },
    )
    proposed = ChflProposed()
    fits = ChflFits()
    reported = REPORTED
    audited = ChflAudited()
    models = (
        "Each party keeps a model that predicts alone: the columns learned together and its own. "
        "The coordinator keeps the columns learned together."
    )

    def check(self, run: Run, *, where: str) -> None:
        """Refuse settings that cannot be, of any variant.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("chfl", ChflSection)
        if section.method != "chfl":
            raise ConfigError(
                f"{where}, [chfl]: what is trained is the run file's method; leave method out here"
            )
        if section.encoder is not None and run.engine.kind != "inprocess":
            raise ConfigError(
                f"{where}, [chfl]: over a network the network of a party's own column is its own; "
                "give encoder below [chfl] in its party file"
            )
        make = partial(variant_config, narrowed(section, chfl.Config))
        check_variants(run, "chfl", section.variants, VARIANT_NAMES, make, where=where)
        for name, values in section.search.grid().items():
            for value in values:
                check_settings(make, "fedprox", {name: value}, where=f"{where}, [chfl.search]")

    def local_data_together(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress
    ) -> dict[str, Any]:
        """Party -> what it has; numbers that all predict are standardised alike."""
        labelled = {name: site for name, site in sites.items() if site.table.labels is not None}
        task = common_labels(labelled, "chfl", where=where)
        return {name: data_of_site(site, task) for name, site in sites.items()}

    def local_data(self, site: Site) -> chfl.ChflData:
        """Data of a party by its own file."""
        return data_of_site(site)

    def variant(self, variant: str) -> Variant:
        """Variant of this name."""
        return LocalBaseline() if variant in BASELINES else ChflVariant()

    def dealt(self, run: Run, loaded: Loaded) -> Mapping[str, chfl.ChflData]:
        """Party -> what it has.

        Raises:
            ConfigError: rows that are in no one place are to be pooled.
        """
        data = loaded.data
        if isinstance(data, dd.CommonUnique):
            return data_of_partition(data)
        if "pooled" in (run.method, *run.baselines):
            raise ConfigError("'pooled' needs everybody's rows in one place; leave it out")
        assert isinstance(data, Holdings)
        return data.holdings
