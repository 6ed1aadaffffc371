"""FedOptimus' record: what a run, a site and a driver ask of the method."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.federated import Local, Party
from dovetail.methods import fedoptimus, selection
from dovetail.methods.base import (
    SILENT,
    Algorithm,
    Loaded,
    Maker,
    Progress,
    Run,
    Site,
    algorithm,
)
from dovetail.methods.facets.declared import Keys, Proposed
from dovetail.methods.fedoptimus import predicting
from dovetail.methods.fedoptimus.aligning import align_owners, relay_alignment
from dovetail.methods.fedoptimus.audited import OwnersAudited
from dovetail.methods.fedoptimus.fits import REPORTED, OwnersFits
from dovetail.methods.fedoptimus.local_data import (
    OwnerData,
    OwnerHoldings,
    columns_of,
    holdings,
    is_label_owner,
    labels_of,
)
from dovetail.methods.fedoptimus.sections import bottom
from dovetail.methods.fedoptimus.site import members_of
from dovetail.methods.fedoptimus.valued import OwnersValued
from dovetail.methods.fedoptimus.variants import OwnersAlone, OwnersVariant, side_of, variant_config
from dovetail.methods.labels import (
    common_task,
    own_baseline,
)
from dovetail.methods.local_data import DRIVER, check_nobody_is_active, check_variants
from dovetail.methods.method import Method
from dovetail.methods.settings.fedoptimus import VARIANT_NAMES, FedOptimusRecord, FedOptimusSection
from dovetail.methods.settings.shared import BASELINES
from dovetail.methods.training import Variant
from dovetail.settings.section import narrowed


class OwnersProposed(Proposed):
    """Facet of proposals: what an owner does."""

    aligns = True

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """Sentences on the party's part in what its policy agrees to."""
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


class FedOptimus(FedOptimusRecord, Method):
    """FedOptimus."""

    decides = True
    partitions = ("owners",)
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
    ) -> Loaded:
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
        task = common_task(labellers, "fedoptimus", "label owners'", where=where, talk=talk)
        rows = align_owners(labellers, holders, talk=talk)

        def of(party: str, owner: str) -> dict[str, Tensor]:
            return {part: held[party] for part, held in rows[owner].items()}

        labels = {
            name: labels_of(
                site, own_baseline(site, site.sections["fedoptimus"]) or task, of(name, name)
            )
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
        return Loaded(OwnerHoldings(federation, None, task, {}, label, {**columns, **labels}))

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm -> what makes the party's side of its runs, where its policy allows them."""
        if "fedoptimus" not in allowed:
            return {}
        return members_of(site, allowed)

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Loaded:
        """Data of a coordinator, once its parties are here and aligned: their names.

        Raises:
            ConfigError: no owner of a kind.
            AlignmentError: a data owner that has none of a label owner's samples.
        """

        elsewhere = relay_alignment(driver, where=where, print_line=driver.print)
        nobody = dd.Federation([])
        return Loaded(OwnerHoldings(nobody, None, dd.Classification(()), {}, "", {}, elsewhere))

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
        """Variant of this name."""
        return OwnersAlone() if variant in BASELINES else OwnersVariant(variant)

    def party(self, local_data: OwnerData, local: Local) -> Party:
        """An owner's side of a run."""
        return side_of(local_data, local)
