"""APFed in a run file: [apfed] for the active party, [passive] for the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import torch

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.federated import Local, Party
from dovetail.files import did_you_mean
from dovetail.methods import apfed, vertical
from dovetail.methods.aligning import align_sites, check_shared, label_owner, stored_alignment
from dovetail.methods.apfed import distil, inference, sealed
from dovetail.methods.apfed.audited import ApfedAudited
from dovetail.methods.apfed.fits import REPORTED, ApfedFits
from dovetail.methods.apfed.local_data import (
    LabelOwnerData,
    PartnerData,
    Side,
    learners_of,
)
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.apfed.partners import (
    party_fields,
    passive_fields,
    passive_names,
    passives,
)
from dovetail.methods.apfed.private import check_variant
from dovetail.methods.apfed.valued import ApfedValued
from dovetail.methods.apfed.variants import ASK_NOBODY, MISSING_PARTY, TOGETHER, VARIANTS
from dovetail.methods.base import (
    SILENT,
    ActiveDriver,
    Algorithm,
    Asked,
    Loaded,
    Maker,
    Progress,
    Run,
    Site,
    algorithm,
)
from dovetail.methods.facets.declared import Keys, Proposed
from dovetail.methods.limits import NO_LIMITS, Limits
from dovetail.methods.method import Method
from dovetail.methods.settings.apfed import ApfedRecord, ApfedSection, PassiveFields
from dovetail.methods.training import Training, Variant
from dovetail.models import Head, OwnNetwork
from dovetail.models.learners import LEARNERS
from dovetail.models.learners.in_context import InContext
from dovetail.models.model_folders import JOINT
from dovetail.network.checkpoint import StatefulParty
from dovetail.network.quota import Quota


def _check_trade_off(run: Run, passives: Collection[str], *, where: str) -> None:
    """Refuse a weight for a party that is not there."""
    trade_off = run.settings("apfed", ApfedSection).trade_off
    for name in trade_off if isinstance(trade_off, Mapping) else ():
        if name not in passives:
            raise ConfigError(
                f"{where}: apfed.trade_off names {name!r}, which is no passive party of this run; "
                f"they are {sorted(passives)}{did_you_mean(name, passives)}"
            )


def _check_releases(run: Run, *, where: str) -> None:
    """Refuse a defence of messages that no variant of the run sends.

    Raises:
        ConfigError: which, and whose they are.
    """
    variants = {run.method, *run.baselines}
    named: list[tuple[str, Iterable[Any], str]] = [
        ("[passive] codes", passive_fields(run, where=where).values(), "codes"),
        ("apfed.gradients", [run.settings("apfed", ApfedSection)], "gradients"),
    ]
    for name, sections, key in named:
        if any(getattr(each, key) is not None for each in sections) and "tvfl" not in variants:
            raise ConfigError(
                f"{where}: {name} is how messages of classic vertical learning (tvfl) leave, and "
                f"{run.method!r} sends none of them; of APFed it is apfed.codes and "
                "[passive] gradients"
            )


def _check_names(run: Run, names: Collection[str], *, where: str) -> None:
    """Refuse a party called as the folder of the joint model is."""
    if JOINT in names and "apfed-d" in (run.method, *run.baselines):
        raise ConfigError(
            f"{where}: a party is called {JOINT!r}, as the folder of the joint model is; give it "
            "another name"
        )


def _variants(run: Run, *, where: str) -> tuple[str, ...]:
    """The method and its baselines.

    Raises:
        ConfigError: one that party files do not allow.
    """
    variants = tuple(dict.fromkeys((run.method, *run.baselines)))
    for variant in variants:
        if variant in ("pooled", *MISSING_PARTY):
            raise ConfigError(
                f"{where}: the baseline {variant!r} puts everybody's columns in one place, which "
                "parties with files of their own do not agree to; leave it out"
            )
    return variants


def _split(run: Run, sites: Mapping[str, Site], active: str, alignment: dd.Alignment) -> Loaded:
    """Training and test data of these parties, and how all are aligned."""
    data, aligned, test_aligned = dd.split_sites(
        {name: site.table for name, site in sites.items()},
        active,
        alignment,
        fit=lambda table: sites[table.name].fit_input(table),
        kind=sites[active].party.task,
        test=run.test,
        seed=sites[active].split_seed("test"),
        by_class=run.settings("apfed", ApfedSection).label_epsilon is None,
    )
    return Loaded(data, alignment=aligned, test_alignment=test_aligned)


def _alignment(sites: Mapping[str, Site], active: str, *, talk: Progress = SILENT) -> dd.Alignment:
    """Alignment that ``dovetail align`` left, or one made now."""
    if len(sites) == 1:
        return dd.Alignment({active: torch.arange(sites[active].table.num_rows)})
    alignment = stored_alignment(sites, active)
    if alignment is None:
        alignment = align_sites(sites, active, workers=1, talk=talk)[1]
    check_shared(alignment, sites, active)
    return alignment


def _policy(variant: str) -> str:
    """Name in a policy of a variant that asks partners."""
    return variant if variant in ("tvfl", "apfed", "apfed-d") else "apfed-mixed"


class ApfedProposed(Proposed):
    """Which of APFed's variants a policy must agree to."""

    aligns = True

    def asks(self, run: Run, policies: Sequence[str]) -> tuple[str, ...]:
        """Algorithms that partners' policies must agree to for these variants."""
        asked = [name for name in (run.method, *run.baselines) if name not in ASK_NOBODY]
        return ("align", *dict.fromkeys(map(_policy, asked)))

    def numbers(self, run: Run) -> int:
        """Those of APFed-S, of two classes; of more there are more."""
        return int("apfed" in (run.method, *run.baselines))

    def check_numbers(self, site: Site, numbers: int) -> None:
        """Refuse what the policy never gives; what was given may be asked for again.

        Raises:
            ConfigError: naming the policy's key.
        """
        most = site.policy.section.sealed.numbers_per_row
        if numbers > most:
            raise ConfigError(
                f"refuses {numbers} number{'s' * (numbers > 1)} a row: its "
                f"policy.sealed.numbers_per_row is {most}; ask its owner to raise it"
            )

    def use_up(self, site: Site, quota: Quota, driver: str, answered: Mapping[str, int]) -> None:
        """No row has numbers left for a driver that APFed-S has answered."""
        policy = site.policy.section
        if any(name.partition(".")[0] in ("sealed", "smoothing") for name in answered):
            given = NumbersGiven(quota, policy.counted(driver), site.table.ids)
            every = torch.arange(site.table.num_rows)
            given.add(every, policy.sealed.numbers_per_row, [b""] * len(every))

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """Sentences on the party's part in what its policy agrees to."""
        section = site.settings("apfed", PassiveFields)
        if "apfed-mixed" in agreed or "tvfl" in agreed:
            yield f"trains     its own network, {section.loss} loss, rate {section.learning_rate:g}"
        if "apfed" in agreed:
            yield "multiplies encrypted targets; a few numbers a row leave it, encrypted (APFed-S)"
        if "apfed-d" in agreed:
            yield "encodes    its rows; codes leave it, in training and in predictions (APFed-D)"


class ApfedKeys(Keys):
    """Facet of keys: which settings of APFed a search tries."""

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Rate, width and trade-off; of APFed-D the student and what it learns from."""
        if run.method == "apfed-d":
            return {
                "apfed.distil.students": tuple([name] for name in LEARNERS),
                "apfed.distil.label_share": (0.25, 0.5, 0.75),
                "apfed.distil.weight_decay": (0.03, 0.1, 0.3),
            }
        section = run.settings("apfed", ApfedSection)
        keys: dict[str, Sequence[Any]] = {
            "apfed.learning_rate": (5e-4, 1e-3, 2e-3, 5e-3),
            "apfed.dropout": (0.0, 0.25, 0.5),
        }
        if isinstance(section.encoder, tuple):  # the code's width is the partners', too
            keys["apfed.encoder"] = tuple([width, section.encoder[-1]] for width in (64, 128, 256))
        if run.method in ("apfed-mixed", "apfed-r", "apfed-c"):
            keys["apfed.trade_off"] = (0.1, 0.3, 1.0, 3.0)
            keys["passive.learning_rate"] = (5e-4, 2e-3, 5e-3)
        if run.method == "apfed-c":
            keys["passive.temperature"] = (0.2, 0.5, 1.0)
        return keys

    def party_sections(self, run: Run, *, where: str) -> Mapping[str, PassiveFields]:
        """Passive party -> its settings."""
        return passive_fields(run, where=where)


class Apfed(ApfedRecord, Method):
    """APFed, and classic vertical learning beside it."""

    decides = True
    scores: ClassVar[Mapping[str, str]] = {
        "tvfl-0": "classic vertical, partners gone: zeros",
        "tvfl-a": "classic vertical, partners gone: average",
        "tvfl-r": "classic vertical, partners gone: random",
        "joint": "joint model, partners present",
        InContext.name: InContext.title,
        "party-dropout-gone": "party dropout, partners gone",
        "laser-gone": "LASER, partners gone",
    }
    partitions = ("strips", "columns")
    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "apfed": algorithm("apfed-mixed", apfed.Passive),
        "vertical": algorithm("tvfl", vertical.Member),
        "distil": algorithm("apfed-d", distil.Partner),
        "sealed": algorithm("apfed", sealed.Partner),
        "recalling": algorithm("apfed-d", inference.Inference),
        "smoothing": algorithm("apfed", inference.Smoother),
    }
    keys = ApfedKeys()
    proposed = ApfedProposed()
    fits = ApfedFits()
    reported = REPORTED
    audited = ApfedAudited()
    valued = ApfedValued()
    together = staticmethod(inference.question)
    models = (
        "The driver keeps a model that predicts from its own columns alone. Of apfed, apfed-d and "
        "tvfl it also keeps its part of a joint model, and each partner its own part, which "
        "answer together; of the paper's a partner keeps nothing."
    )

    def check(self, run: Run, *, where: str) -> None:
        """Refuse networks that cannot be, and settings for parties that are not in the run.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("apfed", ApfedSection)
        try:
            Head(section.head, section.dropout)
        except ConfigError as error:
            raise ConfigError(f"{where}, [apfed]: {error}") from None
        if section.private is not None:
            check_variant(run.method, where=where)
        _check_releases(run, where=where)
        if run.data is not None:
            _check_trade_off(run, passive_names(run), where=where)
            _check_names(run, run.data.partition.party_names(), where=where)

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress = SILENT
    ) -> Loaded:
        """Party files: aligned before, or now; training and test data, and how they are aligned.

        Raises:
            ConfigError: no party or several with labels, a policy that refuses, or a variant that
                party files do not allow.
        """
        active = label_owner(sites, run.active, where=where)
        _check_trade_off(run, sites.keys() - {active}, where=where)
        _check_names(run, sites, where=where)
        variants = _variants(run, where=where)
        if set(variants) <= ASK_NOBODY:
            sites = {active: sites[active]}  # nobody else is asked
        for variant in variants:
            algorithm = _policy(variant)
            for name, site in sites.items():
                if name != active and variant not in ASK_NOBODY:
                    site.check_policy(algorithm, active)
        if len(sites) == 1 and not set(variants) <= ASK_NOBODY:
            raise ConfigError(
                f"{where}: {active!r} is the only party; name its partners' files in parties, or "
                'write method = "alone"'
            )
        return _split(run, sites, active, _alignment(sites, active, talk=talk))

    def local_data(self, site: Site) -> PartnerData:
        """Data of a partner by its own file.

        Raises:
            ConfigError: a budget, and gradients that are not noised.
        """
        return PartnerData(party_fields(site), sealed_limits=site.policy.section.sealed)

    def members(self, site: Site, allowed: Collection[str]) -> dict[str, Maker]:
        """Algorithm -> what makes the party's side of its runs, of those that its policy allows.

        The table is encoded now: its mistakes are reported at once.
        """
        allowed = [name for name in self.algorithms if name in allowed]
        if not allowed:
            return {}
        input = site.fit_input()
        x, local_data = site.table.encoded(input).joined(), self.local_data(site)

        def maker(side: Side) -> Maker:
            def of_run(asked: Asked) -> Callable[[], StatefulParty]:
                shared = dd.SharedRows(site.name, x, asked.rows_S())
                # test rows are asked for by the same numbers
                data = replace(local_data, shared=shared, test=shared, input=input, side=side)
                if side == "sealed":
                    counted = site.policy.section.counted(asked.driver)
                    given = NumbersGiven(asked.quota, counted, site.table.ids, asked.run)
                    data = replace(data, given=given)

                def make() -> StatefulParty:
                    party = data.party(asked.local())

                    def keep(whole: distil.Partner | sealed.Partner) -> None:
                        asked.keep(whole.bottom_model(), {})

                    party.finished = keep
                    return party

                return make

            return of_run

        sides = [side for side in get_args(Side) if side in allowed]
        makers: dict[str, Maker] = {side: maker(side) for side in sides}
        later = {"recalling": inference.codes_maker, "smoothing": inference.numbers_maker}
        return makers | {side: of(site) for side, of in later.items() if side in allowed}

    def load_driver(self, run: Run, driver: ActiveDriver, *, where: str) -> Loaded:
        """The driver's own file, whose partners are elsewhere: as of ``load_sites``.

        Raises:
            ConfigError: it has no labels, or a variant that party files do not allow.
        """

        site = driver.site
        active = label_owner({site.name: site}, run.active, where=where)
        _check_trade_off(run, driver.partners, where=where)
        _check_names(run, (site.name, *driver.partners), where=where)
        if set(_variants(run, where=where)) <= ASK_NOBODY:
            raise ConfigError(
                f"{where}: nobody else is asked where the method is {run.method!r}; leave [engine] "
                "out"
            )
        return _split(run, {active: site}, active, driver.alignment())

    # --- A run ----------------------------------------------------------------------------------

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> Training:
        """Everything that one seed's run is a function of; the driver's file may name its network.

        Raises:
            ConfigError: partners are elsewhere, and their columns or ids are needed here.
        """
        training = super().setup(run, loaded, device)
        if loaded.active is None or loaded.active not in loaded.sites:
            return training
        encoder: Any = loaded.sites[loaded.active].settings("apfed", PassiveFields).encoder
        if not isinstance(encoder, OwnNetwork):
            return training
        return replace(training, settings=training.settings.model_copy(update={"encoder": encoder}))

    def dealt(self, run: Run, loaded: Loaded) -> dict[str, LabelOwnerData | PartnerData]:
        """Party -> what it has, as it is aligned.

        Raises:
            ConfigError: partners are elsewhere, and their columns or ids are needed here.
        """
        data = loaded.data
        variants = {run.method, *run.baselines}
        if loaded.connect is not None:
            _check_elsewhere(variants, loaded)
        active = str(loaded.active)
        alignment = loaded.alignment or data.train.align(active)
        tested = loaded.test_alignment
        if tested is None and data.test is not None and variants & TOGETHER:
            tested = data.test.align(active)
        data_by_party: dict[str, LabelOwnerData | PartnerData] = {}
        fields = passives(run, loaded)
        for name, party_data in data.train.parties.items():
            test = None if data.test is None else data.test[name]
            if name == loaded.active:
                data_by_party[name] = LabelOwnerData(
                    train=party_data,
                    test=test,
                    task=data.task,
                    label=data.label,
                    input=data.inputs.get(name),
                    alignment=alignment,
                    test_alignment=tested,
                    secret=loaded.secret,
                    learners=learners_of(loaded.sites.get(name)),
                )
                continue
            shared = dd.SharedRows(name, party_data.joined(), alignment.rows[name])
            tests = None
            if test is not None and tested is not None:
                tests = dd.SharedRows(name, test.joined(), tested.rows[name])
            data_by_party[name] = PartnerData(
                fields[name],
                shared=shared,
                test=tests,
                input=data.inputs.get(name),
                limits=NO_LIMITS if run.data else Limits.of(loaded.sites[name].policy.section),
                sealed_limits=None if run.data else loaded.sites[name].policy.section.sealed,
                from_file=run.data is None,
            )
        owner = data_by_party[active]
        assert isinstance(owner, LabelOwnerData)
        if variants != {"tvfl"} and not owner.has_columns:
            raise ConfigError(
                f"party {active!r} has labels and no columns, so it has nothing to predict from "
                'alone: write method = "tvfl" and baselines = [], which asks its partners at each '
                "prediction, or give it a column"
            )
        return data_by_party

    def variant(self, variant: str) -> Variant:
        """Variant of this name."""
        return VARIANTS[variant]

    def party(self, local_data: PartnerData, local: Local) -> Party:
        """A partner's side of a run."""
        return local_data.party(local)


def _check_elsewhere(variants: Collection[str], loaded: Loaded) -> None:
    """Refuse what partners who live elsewhere cannot do."""
    tested = loaded.data.test is None or loaded.test_alignment is not None
    if loaded.alignment is None or not tested:
        raise ConfigError(
            "partners live elsewhere, so their ids are not here to compare: give alignment, "
            "and test_alignment where there are test rows"
        )
    for variant in ("pooled", *MISSING_PARTY):
        if variant in variants:
            raise ConfigError(f"{variant!r} needs everybody's columns here; leave it out")
