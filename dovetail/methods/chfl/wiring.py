"""CHFL in a run file: [chfl], for the coordinator and all parties; and in a party's own file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import Field

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods import chfl
from dovetail.methods.base import SILENT, Asked, Finishing, Loaded, Maker, Method, Parts, Run, Talk
from dovetail.methods.chfl.stages import (
    DRIVER,
    ChflSetup,
    Holding,
    Search,
    Stage,
    holdings,
    scores_of,
    stage_config,
    trained_model,
)
from dovetail.methods.homes import (
    Homes,
    check_labels,
    check_nobody_is_active,
    check_settings,
    check_stages,
    draw_share,
)
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.section import PartyName, Section
from dovetail.network.checkpoint import StatefulParty

#: What can be trained, and what a table calls it.
STAGES: Mapping[str, str] = {
    "chfl": "CHFL, predicts alone",
    "chfl-mu0": "CHFL without lateral connections",
    "common": "common columns, FedAvg",
    "local": "each party alone",
    "fedprox": "common columns, FedProx",
    "simple": "simple method of V-B5",
    "pooled": "pooled rows, common columns",
}
assert STAGES.keys() == {*get_args(Stage)}


class SearchSection(Section):
    """Values to choose from on validation rows; nothing is chosen where there are none."""

    learning_rate: tuple[float, ...] = ()
    mu: tuple[float, ...] = ()
    proximal: tuple[float, ...] = ()
    rounds: int = Field(default=10, ge=1)  # of each trial
    seed: int | None = Field(default=None, ge=0)  # choose once, for all seeds of the run

    def grid(self) -> dict[str, tuple[float, ...]]:
        """Field -> values."""
        return {
            name: values
            for name in ("learning_rate", "mu", "proximal")
            if (values := getattr(self, name))
        }


class ChflSection(chfl.Config):
    """Settings of the method and its rulers."""

    proximal: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of the ruler "fedprox"
    search: SearchSection = SearchSection()
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a stage's own settings


def config(section: ChflSection) -> chfl.Config:
    """The section's settings for all stages."""
    return chfl.Config(**section.model_dump(include=set(chfl.Config.model_fields)))


class MemberSection(Section):
    """[chfl] of a party file: what it offers, and which of its rows only test."""

    common: tuple[str, ...] = ("*",)  # columns that others may have too; names take *
    validation_share: float = Field(default=0.25, ge=0, lt=1)  # of the rows that do not test
    test_share: float = Field(default=0.2, ge=0, lt=1)  # of the labelled rows
    secure: bool = False  # take part only where common columns are summed in secret
    members: tuple[PartyName, ...] | None = None  # whom it sums with; None: whoever is certified


def holding(site: Site) -> Holding:
    """A party's labelled rows, dealt out to training, validation and test by its own file.

    Raises:
        ConfigError: no table, no label, or a label of numbers.
        DataError: rows that cannot be dealt out, or columns that are not there.
    """
    table, section, party = site.table, site.settings("chfl", MemberSection), site.party
    check_labels(site, "CHFL")
    assert table.labels is not None
    assert table.label is not None
    if not isinstance(table.x, dd.Table):
        raise ConfigError(f"party {site.name!r} holds images; CHFL learns from tables")
    if party.task == "regression":
        raise ConfigError(f"party {site.name!r} predicts numbers; CHFL predicts classes")
    task = dd.fit_task(
        table.labels.values, table.labels.missing, regression=False, label=table.label
    )
    labels = dd.encode_labels(task, table.labels.values, table.labels.missing, label=table.label)
    assert isinstance(task, dd.Classification)
    rows = np.flatnonzero(~table.labels.missing)
    rest, tested = draw_share(site, rows, section.test_share, "test_share")
    train, validation = draw_share(site, rest, section.validation_share, "validation_share")
    x = table.x

    def part(chosen: np.ndarray) -> tuple[dd.Table | None, torch.Tensor | None]:
        if not len(chosen):
            return None, None
        return x.take(chosen), labels[torch.from_numpy(chosen)]

    return Holding(
        chfl.TableRows(
            site.name,
            x.take(train),
            labels[torch.from_numpy(train)],
            task,
            x.select(section.common),
            *part(validation),
            categorical=party.categorical,
            max_categories=party.max_categories,
        ),
        table.label,
        *part(tested),
    )


#: Data -> stage -> what was chosen on them, for the seeds that come after.
_FOUND: WeakKeyDictionary[dd.Partitioned, dict[str, dict[str, float]]] = WeakKeyDictionary()


class Chfl(Method):
    """CHFL."""

    name = "chfl"
    Settings = ChflSection
    HomeSettings = MemberSection
    stages = STAGES
    partitions = ("common-unique",)
    driven_by = "coordinator"
    algorithms: ClassVar[Mapping[str, Algorithm]] = {
        "chfl": algorithm("chfl", chfl.Member.accepts, weights=True, begins=(chfl.Begin,))
    }

    def check(self, run: Run, *, where: str) -> None:
        """Refuse settings that cannot be, of any stage.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("chfl", ChflSection)
        if section.method != "chfl":
            raise ConfigError(
                f"{where}, [chfl]: what is trained is the run file's method; leave method out here"
            )
        make = partial(stage_config, config(section))
        check_stages(run, "chfl", section.stages, STAGES, make, where=where)
        for name, values in section.search.grid().items():
            for value in values:
                check_settings(make, "fedprox", {name: value}, where=f"{where}, [chfl.search]")

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Talk = SILENT
    ) -> Parts:
        """Party files, which are not aligned: their samples are different ones.

        Raises:
            ConfigError: no party, a policy that refuses, or rows that cannot be learned from.
        """
        check_nobody_is_active(run, "chfl", where=where)
        held = {}
        for name, site in sites.items():
            site.check_policy("chfl", DRIVER)
            held[name] = holding(site)
        if not held:
            raise ConfigError(f"{where}: parties names no party file")
        federation = dd.Federation(
            dd.PartyData(name, np.arange(len(own.rows.row_labels)), labels=own.rows.row_labels)
            for name, own in held.items()
            if isinstance(own.rows, chfl.TableRows)
        )
        first = next(iter(held.values()))
        return Homes(federation, None, first.rows.task, {}, first.label, held), None, None

    def members(self, site: Site, allowed: Collection[str]) -> dict[str, Maker]:
        """Algorithm -> what makes the party's side of its runs, where its policy allows them."""
        if "chfl" not in allowed:
            return {}
        held = holding(site)  # now: mistakes in the table are told at once
        section = site.settings("chfl", MemberSection)

        def of_run(asked: Asked) -> Callable[[], StatefulParty]:
            def make() -> StatefulParty:
                sums = asked.sums(section.members)
                own = chfl.Member(
                    held.rows,
                    device=asked.device,
                    sums=sums,
                    secret_only=section.secure,
                    secret=asked.secret,
                )
                keep = lambda: asked.keep(trained_model(own, held), scores_of(own, held))  # noqa: E731
                return Finishing(own, chfl.Finish, keep)

            return make

        return {"chfl": of_run}

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """What the party will do, of what its policy agrees to."""
        if "chfl" in agreed and isinstance(site.table.x, dd.Table):
            section = site.settings("chfl", MemberSection)
            num_offered = len(site.table.x.select(section.common))
            told = "of which it tells mean and spread"
            yield f"offers     {num_offered} columns to be common, {told}"
            if section.secure:
                whom = ", ".join(section.members or ()) or "whoever is certified"
                yield f"sums       its common column in secret only, with {whom}"

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a coordinator has, once its parties are here: no row."""
        driver.wait()
        return Homes[Holding].nobody(), None, None

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> ChflSetup:
        """Everything that one seed's run is a function of."""
        section = run.settings("chfl", ChflSection)
        data = loaded.data
        assert isinstance(data, dd.CommonUnique | Homes)
        return ChflSetup(
            method=run.method,  # type: ignore[arg-type]  # one of STAGES
            parties=data.holdings if isinstance(data, Homes) else holdings(data),
            config=config(section),
            stages=section.stages,
            search=Search(section.search.grid(), section.search.rounds, section.search.seed),
            rulers=run.rulers,  # type: ignore[arg-type]  # each one of STAGES
            evaluate_every=run.evaluate_every,
            device=device,
            precision=run.engine.precision,
            connect=loaded.connect,
            found=_FOUND.setdefault(data, {}),
        )
