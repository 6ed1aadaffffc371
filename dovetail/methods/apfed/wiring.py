"""APFed in a run file: [apfed] for the active party, [passive] for the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods import apfed, vertical
from dovetail.methods.aligning import align_sites, label_owner, stored_alignment
from dovetail.methods.apfed import distil, recalling
from dovetail.methods.apfed.distilling import ALONE
from dovetail.methods.apfed.gone import GONE
from dovetail.methods.apfed.home import PartnerHome
from dovetail.methods.apfed.private import check_stage
from dovetail.methods.apfed.sections import STAGES, ApfedSection, DistilSection, PassiveFields
from dovetail.methods.apfed.stacks import Config as DistilConfig
from dovetail.methods.apfed.stages import ApfedSetup
from dovetail.methods.base import (
    SILENT,
    ActiveDriver,
    Asked,
    Finishing,
    Loaded,
    Maker,
    Parts,
    Run,
    Talk,
    weighed,
)
from dovetail.methods.limits import NO_LIMITS, Limits
from dovetail.methods.method import Method
from dovetail.methods.outcome import JOINT, Deciding
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.section import encoder_spec
from dovetail.methods.validation import validate
from dovetail.models import Head
from dovetail.models.learners.distil import DistilConfig as Students
from dovetail.network.checkpoint import StatefulParty

#: Stages that ask nobody.
_ASK_NOBODY = {"alone", *ALONE, *GONE}


def _check_trade_off(run: Run, passives: Collection[str], *, where: str) -> None:
    """Refuse a weight for a party that is not there."""
    trade_off = run.settings("apfed", ApfedSection).trade_off
    for name in trade_off if isinstance(trade_off, Mapping) else ():
        if name not in passives:
            raise ConfigError(
                f"{where}: apfed.trade_off names {name!r}, which is no passive party of this run; "
                f"they are {sorted(passives)}"
            )


def _check_releases(run: Run, *, where: str) -> None:
    """Refuse a defence of messages that no stage of the run sends.

    Raises:
        ConfigError: which, and whose they are.
    """
    stages = {run.method, *run.rulers}
    named: list[tuple[str, Iterable[Any], str]] = [
        ("[passive] codes", passive_fields(run, where=where).values(), "codes"),
        ("apfed.gradients", [run.settings("apfed", ApfedSection)], "gradients"),
    ]
    for name, sections, key in named:
        if any(getattr(each, key) is not None for each in sections) and "tvfl" not in stages:
            raise ConfigError(
                f"{where}: {name} is how messages of classic vertical learning (tvfl) leave, and "
                f"{run.method!r} sends none of them; of APFed it is apfed.codes and "
                "[passive] gradients"
            )


def _check_names(run: Run, names: Collection[str], *, where: str) -> None:
    """Refuse a party called as the folder of the joint model is."""
    if JOINT in names and "apfed-d" in (run.method, *run.rulers):
        raise ConfigError(
            f"{where}: a party is called {JOINT!r}, as the folder of the joint model is; give it "
            "another name"
        )


def passive_fields(run: Run, *, where: str = "run file") -> dict[str, PassiveFields]:
    """Party -> settings: those for all under [passive], then its own under [passive.NAME]."""
    for_all = {key: value for key, value in run.passive.items() if not isinstance(value, Mapping)}
    by_party = {key: value for key, value in run.passive.items() if isinstance(value, Mapping)}
    names = _passive_names(run)
    for key in (
        "encoder",
        "distil",
        "gradients",
        "codes",
    ):  # tables too, but of layers and settings
        if key in by_party:
            for_all[key] = by_party.pop(key)
    for name in by_party:
        if name not in names:
            raise ConfigError(
                f"{where}: [passive.{name}] is no party of this run; passive parties are "
                f"{sorted(names)}"
            )
    return {
        name: validate(
            PassiveFields,
            {**for_all, **by_party.get(name, {})},
            where=f"{where}, [passive{'.' + name if name in by_party else ''}]",
        )
        for name in names
    }


def _rulers(run: Run) -> tuple[str, ...]:
    """What is trained beside the method; APFed-D scores the models alone by itself."""
    return tuple(ruler for ruler in run.rulers if run.method != "apfed-d" or ruler not in ALONE)


def _students(section: DistilSection) -> Students:
    return Students(
        students=section.students,
        label_share=section.label_share,
        blend=section.blend,
        gate=section.gate,
    )


def _passive_names(run: Run) -> list[str]:
    if run.data is None:
        return []  # the party files say
    partition = run.data.partition
    return [name for name in partition.party_names() if name != partition.active_party()]


def _stages(run: Run, *, where: str) -> tuple[str, ...]:
    """The method and its rulers.

    Raises:
        ConfigError: one that party files do not allow.
    """
    stages = tuple(dict.fromkeys((run.method, *run.rulers)))
    for stage in stages:
        if stage in ("apfed-r", "apfed-c"):
            raise ConfigError(
                f"{where}: {stage!r} sets every passive party's loss, which with party files is "
                'each party\'s own; write method = "apfed"'
            )
        if stage in ("pooled", *GONE):
            raise ConfigError(
                f"{where}: the ruler {stage!r} puts everybody's columns in one place, which "
                "parties with files of their own do not agree to; leave it out"
            )
    return stages


def _split(run: Run, sites: Mapping[str, Site], active: str, alignment: dd.Alignment) -> Parts:
    """Training and test data of these parties, and how all are aligned."""
    return dd.split_homes(
        {name: site.table for name, site in sites.items()},
        active,
        alignment,
        fit=lambda table: sites[table.name].fit_input(table),
        regression=sites[active].party.task == "regression",
        test=run.test,
        seed=0,
    )


def _alignment(sites: Mapping[str, Site], active: str, *, talk: Talk = SILENT) -> dd.Alignment:
    """What ``dovetail align`` left, or an alignment made now."""
    if len(sites) == 1:
        return dd.Alignment({active: torch.arange(sites[active].table.num_rows)})
    stored = stored_alignment(sites, active)
    if stored is not None:
        return stored
    return align_sites(sites, active, workers=1, talk=talk)[1]


def passives(run: Run, loaded: Loaded) -> dict[str, PassiveFields]:
    """Passive party -> settings: of its own file, or in simulation of the run file."""
    if run.data is not None:
        return passive_fields(run)
    return {
        name: home_fields(loaded.sites[name])
        for name in loaded.data.train.parties
        if name != loaded.active
    }


_OPTIMIZED = set(apfed.PassiveConfig.model_fields)


def home_fields(site: Site) -> PassiveFields:
    """[apfed] of a party's file, its gradients within the budget of its policy.

    Raises:
        ConfigError: a budget, and gradients that are not noised.
    """
    section = site.settings("apfed", PassiveFields)
    budget = site.policy.section.privacy
    if budget is None:
        return section
    release = section.gradients
    if release is None or not release.noise:
        raise ConfigError(
            f"party {site.name!r}: policy.privacy sets a budget of epsilon = {budget.epsilon:g}, "
            "and its gradients are not noised; set gradients = { clip = ..., noise = ... } below "
            "[apfed]"
        )
    epsilon = budget.epsilon if release.epsilon is None else min(budget.epsilon, release.epsilon)
    capped = release.model_copy(update={"epsilon": epsilon, "delta": budget.delta})
    return section.model_copy(update={"gradients": capped})


def partner_home(fields: PassiveFields, limits: Limits = NO_LIMITS) -> PartnerHome:
    """What a partner has, of its own file's section or of the run file's."""
    return PartnerHome(
        apfed.PassiveConfig(**fields.model_dump(include=_OPTIMIZED)),
        encoder_spec(fields.encoder),
        fields.distil,
        limits,
    )


def _finishing(home: PartnerHome, site: Site, shared: dd.SharedRows, asked: Asked) -> StatefulParty:
    """A partner of APFed-D whose networks are kept as soon as the teacher is trained."""
    partner = home.partner(shared, shared, input=site.fit_input(), secret=asked.secret)
    return Finishing(partner, distil.Finish, lambda: asked.keep(partner.bottom_model(), {}))


def _policy(stage: str) -> str:
    """What a policy calls a stage that asks partners."""
    return stage if stage in ("tvfl", "apfed-d") else "apfed"


class Apfed(Method):
    """APFed, and classic vertical learning beside it."""

    decides = True
    name = "apfed"
    Settings = ApfedSection
    HomeSettings = PassiveFields
    stages = STAGES
    scores: ClassVar[Mapping[str, str]] = {
        "tvfl-0": "classic vertical, partners gone: zeros",
        "tvfl-a": "classic vertical, partners gone: average",
        "tvfl-r": "classic vertical, partners gone: random",
        "joint": "joint model, partners present",
        "party-dropout-gone": "party dropout, partners gone",
        "laser-gone": "LASER, partners gone",
    }
    partitions = ("strips", "columns")
    driven_by = "active"
    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "apfed": algorithm("apfed", apfed.Passive.accepts, begins=(apfed.Begin,), samples=True),
        "vertical": algorithm(
            "tvfl",
            vertical.Member.accepts,
            goes_on=False,
            begins=(vertical.Open,),
            samples=True,
        ),
        "distil": algorithm(
            "apfed-d",
            distil.Partner.accepts,
            goes_on=False,
            begins=(distil.Begin,),
            samples=True,
        ),
        "recalling": algorithm("apfed-d", recalling.Recalling.accepts, goes_on=False),
    }
    models = (
        "The driver keeps a model that predicts from its own columns alone. Of apfed-d and tvfl it "
        "also keeps its part of a joint model, and each partner its own part, which answer "
        "together; of apfed-r and apfed-c a partner keeps nothing."
    )

    def asks(self, run: Run) -> tuple[str, ...]:
        """What partners' policies must agree to for these stages."""
        asking = [name for name in (run.method, *run.rulers) if name not in _ASK_NOBODY]
        return ("align", *dict.fromkeys(map(_policy, asking)))

    def check(self, run: Run, *, where: str) -> None:
        """Refuse networks that cannot be, and settings for parties that are not in the run.

        Raises:
            ConfigError: naming the file and the section.
        """
        sections: dict[str, ApfedSection | PassiveFields] = {
            "[apfed]": run.settings("apfed", ApfedSection)
        }
        for name, fields in passive_fields(run, where=where).items():
            sections[f"[passive], party {name!r}"] = fields
        for section, settings in sections.items():
            try:
                encoder_spec(settings.encoder)
                if isinstance(settings, ApfedSection):
                    Head(settings.head, settings.dropout)
            except ConfigError as error:
                raise ConfigError(f"{where}, {section}: {error}") from None
        if run.settings("apfed", ApfedSection).private is not None:
            check_stage(run.method, where=where)
        _check_releases(run, where=where)
        if run.data is not None:
            _check_trade_off(run, _passive_names(run), where=where)
            _check_names(run, run.data.partition.party_names(), where=where)

    def check_home(self, section: PassiveFields) -> None:
        """Refuse a network that cannot be."""
        encoder_spec(section.encoder)

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Talk = SILENT
    ) -> Parts:
        """Party files: aligned before, or now; training and test data, and how they are aligned.

        Raises:
            ConfigError: no party or several with labels, a policy that refuses, or a stage that
                party files do not allow.
        """
        active = label_owner(sites, run.active, where=where)
        _check_trade_off(run, sites.keys() - {active}, where=where)
        _check_names(run, sites, where=where)
        stages = _stages(run, where=where)
        if set(stages) <= _ASK_NOBODY:
            sites = {active: sites[active]}  # nobody else is asked
        for stage in stages:
            algorithm = _policy(stage)
            for name, site in sites.items():
                if name != active and stage not in _ASK_NOBODY:
                    site.check_policy(algorithm, active)
        if len(sites) == 1 and not set(stages) <= _ASK_NOBODY:
            raise ConfigError(
                f"{where}: {active!r} is the only party; name its partners' files in parties, or "
                'write method = "alone"'
            )
        return _split(run, sites, active, _alignment(sites, active, talk=talk))

    def home(self, site: Site) -> PartnerHome:
        """What a partner has by its own file.

        Raises:
            ConfigError: a budget, and gradients that are not noised.
        """
        return partner_home(home_fields(site))

    def members(self, site: Site, allowed: Collection[str]) -> dict[str, Maker]:
        """Algorithm -> what makes the party's side of its runs, of those that its policy allows.

        The table is encoded now: its mistakes are told at once.
        """
        allowed = [name for name in self.algorithms if name in allowed]
        if not allowed:
            return {}
        x = site.table.encoded(site.fit_input()).joined()

        def maker(make: Callable[[dd.SharedRows, Asked], StatefulParty]) -> Maker:
            def of_run(asked: Asked) -> Callable[[], StatefulParty]:
                shared = dd.SharedRows(site.name, x, asked.rows_S())
                return lambda: make(shared, asked)

            return of_run

        home = self.home(site)
        makers = {
            "apfed": maker(
                lambda shared, asked: home.passive(shared, device=asked.device, secret=asked.secret)
            ),
            # test rows are asked for by the same numbers
            "vertical": maker(
                lambda shared, asked: home.member(
                    shared, shared, device=asked.device, secret=asked.secret
                )
            ),
            "distil": maker(partial(_finishing, home, site)),
            "recalling": recalling.maker(site),
        }
        return {name: makers[name] for name in allowed}

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """What the party will do, of what its policy agrees to."""
        section = site.settings("apfed", PassiveFields)
        if "apfed" in agreed or "tvfl" in agreed:
            yield f"trains     its own network, {section.loss} loss, rate {section.learning_rate:g}"
        if "apfed-d" in agreed:
            yield "encodes    its rows; codes leave it, in training and in predictions (APFed-D)"

    def load_driver(self, run: Run, driver: ActiveDriver, *, where: str) -> Parts:
        """The driver's own file, whose partners are elsewhere: as of ``load_sites``.

        Raises:
            ConfigError: it has no labels, or a stage that party files do not allow.
        """

        site = driver.site
        active = label_owner({site.name: site}, run.active, where=where)
        _check_trade_off(run, driver.partners, where=where)
        _check_names(run, (site.name, *driver.partners), where=where)
        if set(_stages(run, where=where)) <= _ASK_NOBODY:
            raise ConfigError(
                f"{where}: nobody else is asked where the method is {run.method!r}; leave [engine] "
                "out"
            )
        return _split(run, {active: site}, active, driver.alignment())

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Rate, width and trade-off; of APFed-D the student and what it learns from."""
        if run.method == "apfed-d":
            return {
                "apfed.distil.students": (["linear"], ["boosting"], ["network"]),
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
        if run.method in ("apfed", "apfed-r", "apfed-c"):
            keys["apfed.trade_off"] = (0.1, 0.3, 1.0, 3.0)
            keys["passive.learning_rate"] = (5e-4, 2e-3, 5e-3)
        if run.method == "apfed-c":
            keys["passive.temperature"] = (0.2, 0.5, 1.0)
        return keys

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> ApfedSetup:
        """Everything that one seed's run is a function of."""
        section = run.settings("apfed", ApfedSection)
        assert loaded.active is not None
        return ApfedSetup(
            method=run.method,  # type: ignore[arg-type]  # one of STAGES
            data=loaded.data,
            active=loaded.active,
            config=weighed(
                apfed.Config(**section.model_dump(include=set(apfed.Config.model_fields))), run
            ),
            encoder=encoder_spec(section.encoder),
            head=Head(section.head, section.dropout),
            passives={
                name: partner_home(
                    fields,
                    loaded.sites[name].policy.section.limits if run.data is None else NO_LIMITS,
                )
                for name, fields in passives(run, loaded).items()
            },
            own_networks=run.data is None,
            alignment=loaded.alignment,
            test_alignment=loaded.test_alignment,
            rulers=_rulers(run),  # type: ignore[arg-type]  # each one of STAGES
            deciding=Deciding(run.class_weights, run.threshold, run.calibrate),
            evaluate_every=run.evaluate_every,
            device=device,
            connect=loaded.connect,
            secret=loaded.secret,
            precision=run.engine.precision,
            teacher=DistilConfig(
                **section.distil.model_dump(include=set(DistilConfig.model_fields))
            ),
            students=_students(section.distil),
        )
