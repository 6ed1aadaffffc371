"""A method: what a run file and a party file say of it, and what makes its two sides.

A method's folder has its paper (``methods/chfl/__init__.py``), what its run trains
(``variants.py``), and how both files, the run's and a party's, set it up (``plugin.py``). No other
room names a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods.base import (
    SILENT,
    Algorithm,
    Asked,
    Loaded,
    Maker,
    Progress,
    Run,
    Site,
    algorithm,
)
from dovetail.methods.facets.audited import Audited
from dovetail.methods.facets.declared import Invited, Keys, Proposed, Reported, Together
from dovetail.methods.facets.fits import Fits
from dovetail.methods.facets.valued import Valued
from dovetail.methods.local_data import (
    DRIVER,
    Holdings,
    as_released,
    check_nobody_is_active,
    data_of_partition,
    data_of_site,
)
from dovetail.methods.outcome import about_decision
from dovetail.methods.settings.shared import LocalSection
from dovetail.methods.training import Kind, Training
from dovetail.network.checkpoint import StatefulParty


class Method(Kind):
    """A method's record: its settings, its parties, what drives it, and what others ask of it.

    One whose parties all have labels, while a coordinator has no data, has a ``Side`` and a
    ``driver``. From these come simulation, party files, gRPC and jobs of NVFlare, with
    ``--resume``, ledger and policy: a party's site is the same whoever split the rows, and
    ``party`` serves it.
    Other methods have a ``setup``, ``load_sites``, ``load_driver`` and ``members`` of their own.

    Attributes (beside those of ``Kind``):
        scores: other names under which its variants are scored -> what a table calls them.
        partitions: the kinds of partition that it is simulated on.
        coordinator: what a coordinator is called in policies and ledgers.
        algorithms: the part of its messages' wire names before the dot -> what a policy calls it;
            those of its ``Side`` where it says none.
        models: who keeps which model after a run, in words.
        decides: whether it minds a run's class_weights and threshold.
        keys: what keys of a run file are to a search, and to party files.
        proposed: what a proposal, and a party that joins, say of it.
        invited: what a new party takes of a finished run; None: nothing.
        fits: which federations it fits; None: ``dovetail inspect`` does not report it.
        reported: variant -> what was measured of it, and the bounds on what it reveals.
        audited: what an audit asks of it; None: nobody can attack its messages yet.
        valued: what its partners are worth; None: it has none.
        together: its models that predict together with parties; None: all predict alone.
    """

    decides: ClassVar[bool] = False
    scores: ClassVar[Mapping[str, str]] = {}
    partitions: ClassVar[Collection[str]]
    coordinator: ClassVar[str] = DRIVER
    algorithms: ClassVar[Mapping[str, Algorithm]] = {}
    fits: ClassVar[Fits | None] = None
    reported: ClassVar[Mapping[str, Reported]] = {}
    audited: ClassVar[Audited | None] = None
    keys: ClassVar[Keys] = Keys()
    proposed: ClassVar[Proposed] = Proposed()
    invited: ClassVar[Invited | None] = None
    valued: ClassVar[Valued | None] = None
    together: ClassVar[Together | None] = None
    models: ClassVar[str] = "Each party keeps what the method gives it."

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.Side is not None:
            cls.driven_by = cls.driven_by or DRIVER
            cls.PartySettings = cls.PartySettings or LocalSection

    def check(self, run: Run, *, where: str) -> None:
        """Refuse what the sections' types allow and the method does not.

        Raises:
            ConfigError: naming the file and the section.
        """

    # --- Its two sides --------------------------------------------------------------------------

    def local_data(self, site: Site) -> Any:
        """Data of a party by its own file, as ``party`` takes it; mistakes raise errors now.

        Raises:
            ConfigError: no labels, or another task.
            DataError: rows that cannot be split.
        """
        return data_of_site(site, site.sections.get(self.name))

    def dealt(self, run: Run, loaded: Loaded) -> Mapping[str, Any]:
        """Party -> the same, of what a partition splits, or its files have.

        Raises:
            ConfigError: a variant that such data do not allow.
        """
        data = loaded.data
        return data.holdings if isinstance(data, Holdings) else data_of_partition(data)

    # --- A run ----------------------------------------------------------------------------------

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> Training:
        """Everything that one seed's run is a function of."""
        return Training(
            kind=self,
            run=run,
            settings=run.settings(self.name, self.Settings),
            party_data=self.dealt(run, loaded),
            loaded=loaded,
            device=device,
        )

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress = SILENT
    ) -> Loaded:
        """Party files: training and test data, and how each is aligned, where that matters.

        Raises:
            ConfigError: no party, a policy that refuses, or rows that cannot be learned from.
        """
        if self.Side is None:
            raise ConfigError(
                f"{where}: {run.method!r} is simulated only; give [data], not parties"
            )
        check_nobody_is_active(run, self.name, where=where)
        if not sites:
            raise ConfigError(f"{where}: parties names no party file")
        for site in sites.values():
            site.check_policy(self.name, self.coordinator)
        party_data = self.local_data_together(run, sites, where=where, talk=talk)
        first = next(iter(party_data.values()))
        nobody = dd.Federation([])  # aligned with nobody: each site has its rows
        return Loaded(Holdings(nobody, None, first.task, {}, first.label, party_data))

    def local_data_together(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress
    ) -> dict[str, Any]:
        """Party -> what it has, of parties in one process, which may know each other's labels."""
        return {name: self.local_data(site) for name, site in sites.items()}

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Loaded:
        """Data of a driver whose partners are elsewhere: as of ``load_sites``.

        Args:
            driver: an ``ActiveDriver`` or a ``CarryingDriver``, by ``driven_by``.
        """
        if self.Side is None:
            raise ConfigError(f"{where}: {run.method!r} is simulated only; leave [engine] out")
        driver.wait()
        return Loaded(Holdings[Any].nobody())

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """Algorithm (a message's prefix) -> what makes a party's side of its runs.

        Of its own algorithms, those among ``allowed``. Mistakes in the table are reported now.
        """
        prefixes = [prefix for prefix in protocols(self) if prefix in allowed]
        if not prefixes or self.Side is None:
            return {}
        local_data, accepts = self.local_data(site), self.Side.accepts

        def of_run(asked: Asked) -> Callable[[], StatefulParty]:
            def make() -> StatefulParty:
                local = asked.local()
                party = self.party(as_released(local_data, local, accepts), local)

                def keep(whole: Any) -> None:
                    variant = self.variant(self.name)
                    model = variant.model(whole, local_data)
                    if model is not None:
                        about = about_decision(variant.fitted_threshold(whole, local_data))
                        model = replace(model, about={**model.about, **about})
                        asked.keep(model, variant.test(whole, local_data))

                party.finished = keep
                return party

            return make

        return dict.fromkeys(prefixes, of_run)


def protocols(method: Method) -> Mapping[str, Algorithm]:
    """The part of its messages' wire names before the dot -> the algorithm."""
    if method.algorithms or method.Side is None:
        return method.algorithms
    prefixes = {kind.wire_name().partition(".")[0] for kind in method.Side.accepts}
    return dict.fromkeys(sorted(prefixes), algorithm(method.name, method.Side))


def asks(method: Method, run: Run) -> tuple[str, ...]:
    """Algorithms that policies of a run's parties must agree to, by its name there, for its
    variants."""
    named = dict.fromkeys(each.policy for each in protocols(method).values())
    return method.proposed.asks(run, tuple(named))
