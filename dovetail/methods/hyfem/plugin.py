"""HyFEM in a run file: [hyfem], for the server and all parties; and in a party's own file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods import hyfem
from dovetail.methods.base import Algorithm, Loaded, Progress, Run, Site, algorithm
from dovetail.methods.facets.declared import Keys, Proposed
from dovetail.methods.hyfem.audited import HyfemAudited
from dovetail.methods.hyfem.fits import REPORTED, HyfemFits
from dovetail.methods.hyfem.local_data import data_by_column, data_of_partition, data_of_site
from dovetail.methods.hyfem.models import part_of
from dovetail.methods.hyfem.sections import extractor, run_extractors, widths_of
from dovetail.methods.hyfem.variant_settings import (
    SERVER,
    HyfemVariant,
    common_blocks,
    variant_config,
)
from dovetail.methods.labels import check_labels, common_task, scaled
from dovetail.methods.local_data import Holdings, check_variants
from dovetail.methods.method import Method
from dovetail.methods.settings.hyfem import VARIANT_NAMES, HyfemRecord, HyfemSection
from dovetail.methods.settings.shared import BASELINES
from dovetail.methods.training import LocalBaseline, Variant
from dovetail.settings.section import narrowed

#: Variants that parties on machines of their own can train: what all their blocks take part in.
OVER_A_NETWORK = ("hyfem", "fedper", "fedma", "lg-fedavg")


class HyfemProposed(Proposed):
    """Facet of proposals: what a party shares."""

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """Sentences on the party's part in what its policy agrees to."""
        if "hyfem" in agreed:
            columns = any(names for names in site.table.blocks.values())
            clause = ", of whose columns it tells mean and spread" if columns else ""
            yield f"shares     weights of its blocks {', '.join(site.table.blocks)}{clause}"


class Hyfem(HyfemRecord, Method):
    """HyFEM."""

    decides = True
    scores: ClassVar[Mapping[str, str]] = {"server": "HyFEM, the server's model (all blocks)"}
    partitions = ("blocks", "by-column")
    Side = hyfem.Member
    coordinator = SERVER
    algorithms: ClassVar[Mapping[str, Algorithm]] = {"hyfem": algorithm("hyfem", hyfem.Member)}
    keys = Keys(
        {
            "hyfem.learning_rate": (0.01, 0.03, 0.1, 0.3),
            "hyfem.widths": ([32], [64], [128]),
            "hyfem.local_steps": (16, 32, 64),
        },
        of_parties=("hyfem.widths",),
    )
    proposed = HyfemProposed()
    invited = staticmethod(part_of)
    fits = HyfemFits()
    reported = REPORTED
    audited = HyfemAudited()
    models = (
        "Each party keeps a model that predicts alone from its blocks; the server keeps one for "
        "all blocks."
    )

    def check(self, run: Run, *, where: str) -> None:
        """Refuse settings that cannot be, of any variant.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("hyfem", HyfemSection)
        make = partial(variant_config, narrowed(section, hyfem.Settings), proximal=section.proximal)
        check_variants(run, "hyfem", section.variants, VARIANT_NAMES, make, where=where)
        for block, field in section.extractors.items():
            try:
                extractor(field)
            except ConfigError as error:
                raise ConfigError(f"{where}, [hyfem.extractors] {block!r}: {error}") from None
        if run.engine.elsewhere:
            wrong = []
            said = len(section.classes) >= 2, len(section.labels) >= 2
            quantiles, has_scale = section.task == "quantiles", section.label_scale is not None
            own = section.task is not None and not quantiles
            if sum((*said, has_scale, own)) != 1 or (quantiles and not has_scale):
                wrong.append(
                    "hyfem.classes names all classes of the federation, as no party need have "
                    'all, for example classes = ["no", "yes"]; or, of labels that are numbers, '
                    "hyfem.label_scale = [MEAN, SCALE] as in the parties' files; or, of several "
                    "labels, hyfem.labels = [NAME, NAME]; or, of times to an event, counts or "
                    'amounts, hyfem.task = "survival", "counts" or "amounts"; or, of quantiles, '
                    'hyfem.task = "quantiles" beside hyfem.label_scale'
                )
            if not section.extractors or any(set(name) & {*"*?["} for name in section.extractors):
                wrong.append(
                    "[hyfem.extractors] names every block and its extractor, without *; for "
                    "example [hyfem.extractors] blood = [32]"
                )
            apart = [each for each in (run.method, *run.baselines) if each not in OVER_A_NETWORK]
            if apart:
                wrong.append(
                    f"leave out {', '.join(map(repr, apart))}, trained in one process only"
                )
            if wrong:
                raise ConfigError(f"{where}: over a network {'. And '.join(wrong)}")
        elif section.label_scale is not None or section.labels or section.task:
            keys = ("labels", "label_scale", "task")
            key = next(each for each in keys if getattr(section, each))
            raise ConfigError(
                f"{where}: hyfem.{key} is for parties on machines of their own; in one process "
                "their tables say it"
            )
        elif section.classes and run.data is not None:
            raise ConfigError(
                f"{where}: hyfem.classes is for parties with files of their own; in simulation the "
                "data say which there are"
            )
        if isinstance(section.widths, dict) and run.data is not None:
            widths_of(section, run.data.partition.party_names(), where=where)
        # A run folder's own file says the default, too.
        here = run.data is None and not run.engine.elsewhere
        if here and section.widths != HyfemSection().widths:
            raise ConfigError(
                f"{where}: hyfem.widths is for simulation; with parties it stands below [hyfem] in "
                "each party's own file"
            )

    def local_data_together(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress
    ) -> dict[str, Any]:
        """Party -> what it has, of all classes that the run file or their tables have."""
        for site in sites.values():
            check_labels(site, "HyFEM")
        task = common_task(sites, "hyfem", "parties'", where=where, talk=talk)
        classes = run.settings("hyfem", HyfemSection).classes
        if classes and isinstance(task, dd.Classification):
            positive, *_ = (site.table.positive for site in sites.values())
            task = dd.Classification(dd.in_order(classes, positive))
        return {name: data_of_site(site, task) for name, site in sites.items()}

    def local_data(self, site: Site) -> hyfem.HyfemData:
        """Data of a party by its own file."""
        return data_of_site(site)

    def variant(self, variant: str) -> Variant:
        """Variant of this name."""
        return LocalBaseline() if variant in BASELINES else HyfemVariant(variant)

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Loaded:
        """Data of a coordinator, once its parties are here: no row, but all classes."""
        driver.wait()
        section = run.settings("hyfem", HyfemSection)
        task: dd.Task = dd.Classification(dd.in_order(section.classes))
        if section.label_scale is not None:
            task = scaled(section.label_scale, quantiles=section.task == "quantiles")
        if section.labels:
            task = dd.MultiLabel(section.labels)
        if section.label_scale is None and section.task is not None:  # each has a mean of its own
            kinds: dict[str, dd.Task] = {"survival": dd.Survival((), ()), "counts": dd.Counts(1.0)}
            task = kinds.get(section.task, dd.Amounts(1.0))
        return Loaded(Holdings[hyfem.HyfemData].nobody(task))

    def dealt(self, run: Run, loaded: Loaded) -> Mapping[str, hyfem.HyfemData]:
        """Party -> what it has.

        Raises:
            ConfigError: rows that are in no one place are to be pooled, no block is common to all,
                or an extractor or widths do not fit.
        """
        section, data = run.settings("hyfem", HyfemSection), loaded.data
        if isinstance(data, dd.Blocks):
            widths = widths_of(section, list(data.train.parties), where="the run file")
            party_data: Mapping[str, hyfem.HyfemData] = data_of_partition(data, widths)
        elif isinstance(data, dd.ByColumn):
            widths = widths_of(section, list(data.train.parties), where="the run file")
            party_data = data_by_column(data, widths)
        else:
            assert isinstance(data, Holdings)
            party_data = data.holdings
        variants = {run.method, *run.baselines}
        if "pooled" in variants and not isinstance(data, dd.Blocks):
            raise ConfigError("'pooled' needs everybody's rows in one place; leave it out")
        if (
            loaded.connect is None
            and not common_blocks(party_data)
            and {"fedavg", "fedprox"} & variants
        ):
            raise ConfigError(
                "no block is at every party, and FedAvg and FedProx train on nothing else; leave "
                "'fedavg' and 'fedprox' out"
            )
        run_extractors(section, party_data, data)
        return party_data
