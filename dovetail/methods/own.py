"""A method that is not part of Dovetail: its two sides are all that its author writes.

From them come a simulation, party files in one process, ``dovetail join`` over gRPC and jobs of
NVFlare, with ``--resume``, ledger and policy. A run file names a method and nothing else: it cannot
make this process import anything that was not installed here, by whoever may install things here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from dovetail import data as dd
from dovetail.errors import ConfigError, DataError
from dovetail.methods.base import SILENT, Asked, Finishing, Loaded, Maker, Method, Parts, Run, Talk
from dovetail.methods.homes import Homes, check_labels, check_nobody_is_active, draw_share
from dovetail.methods.loop import Driver, Party, train
from dovetail.methods.outcome import Observer, Outcome, Scores, is_due, told
from dovetail.methods.party import Algorithm, Site
from dovetail.methods.section import Section
from dovetail.models import Model, NetworkSpec
from dovetail.models.metrics import score
from dovetail.network import Checkpoint, Engine, InProcess, Precision
from dovetail.network.checkpoint import StatefulParty

#: Where a package says in its pyproject.toml that it has methods: name = "module:class".
GROUP = "dovetail.methods"

#: Who drives, in ledgers and policies.
DRIVER = "coordinator"


class HomeSection(Section):
    """A method's section of a party file, unless it has one of its own."""

    test_share: float = Field(default=0.2, ge=0, lt=1)  # of the labelled rows; they test only


@dataclass(frozen=True, eq=False)
class Home:
    """What a party of a method of one's own has: labelled rows, as a network reads them.

    Attributes:
        name: the party's.
        x_NF: its features.
        labels_N: class indices, or values.
        features: (F,) their names.
        common: how many of them, the first, all parties have; of a party file all.
        task: what the labels say.
        label: the label's name.
        input: how raw columns become features.
        block: what the input is called in a model.
        test: features and labels of rows that only test; None: it has none.
        settings: the party's section of its file; None in simulation.
    """

    name: str
    x_NF: Tensor
    labels_N: Tensor
    features: tuple[str, ...]
    common: int
    task: dd.Task
    label: str
    input: dd.Input
    block: str
    test: tuple[Tensor, Tensor] | None = None
    settings: Any = None

    def model(self, network: nn.Module, spec: NetworkSpec) -> Model:
        """A network of (B, F) features as the party uses it alone, from raw columns.

        Args:
            network: gives (B, outputs).
            spec: what such a network is built from.
        """
        shape = tuple(self.x_NF.shape[1:])
        about = {"label": self.label}
        inputs = {self.block: self.input}
        return Model(self.name, self.task, network, spec, {self.block: shape}, inputs, about)

    def scores(self, model: Model) -> Scores:
        """Of a model on the rows that only test; none without any."""
        if self.test is None or not len(self.test[1]):
            return {}
        x_NF, labels_N = self.test
        return score(self.task, model.outputs(x_NF), labels_N)


def home_of_partition(data: dd.Partitioned, name: str) -> Home:
    """What a partition deals to a party.

    Raises:
        ConfigError: a party without labels, or with several blocks.
    """
    own = data.train[name]
    if own.labels is None or len(own.blocks) != 1:
        raise ConfigError(
            f"party {name!r} has {'no labels' if own.labels is None else 'several blocks'}; a "
            "method of one's own is given one block and labels at every party"
        )
    ((block, x),) = own.blocks.items()
    rows = own.labelled_rows()
    encoder = data.inputs[name]
    assert isinstance(encoder, dd.TableEncoder)
    test = None if data.test is None else data.test[name]
    common = len(data.common_features) if isinstance(data, dd.CommonUnique) else x.shape[1]
    return Home(
        name,
        x[rows],
        own.labels[rows],
        tuple(encoder.feature_names),
        common,
        data.task,
        data.label,
        encoder,
        block,
        None if test is None or test.labels is None else (test.joined(), test.labels),
    )


def home_of_site(site: Site, settings: Any) -> Home:
    """What a party file's table gives: its own encoding, and a share of its rows that test.

    Raises:
        ConfigError: no labels, or no table.
        DataError: no labelled row.
    """
    check_labels(site, "the method")
    table = site.table
    assert table.labels is not None
    assert table.label is not None
    if not isinstance(table.x, dd.Table):
        raise ConfigError(f"party {site.name!r} holds images; this method learns from tables")
    regression = site.party.task == "regression"
    task = dd.fit_task(
        table.labels.values, table.labels.missing, regression=regression, label=table.label
    )
    labels = dd.encode_labels(task, table.labels.values, table.labels.missing, label=table.label)
    rows = np.flatnonzero(~table.labels.missing)
    if not len(rows):
        raise DataError(f"party {site.name!r} has no labelled row; leave it out")
    share = getattr(settings, "test_share", 0.0)
    chosen, tested = draw_share(site, rows, share, "test_share")
    encoder = site.fit_input(table.take(chosen))
    assert isinstance(encoder, dd.TableEncoder)

    def part(at: np.ndarray) -> tuple[Tensor, Tensor]:
        assert isinstance(table.x, dd.Table)
        x = encoder.transform(table.x.take(at), allow_unseen=True)
        return x, labels[torch.from_numpy(at)]

    x_NF, labels_N = part(chosen)
    names = tuple(encoder.feature_names)
    test = part(tested) if len(tested) else None
    return Home(
        site.name,
        x_NF,
        labels_N,
        names,
        len(names),
        task,
        table.label,
        encoder,
        "columns",
        test,
        settings,
    )


def pooled(homes: Mapping[str, Home]) -> dict[str, Home]:
    """One home with everybody's rows and the features that all have; for a ruler."""
    first = next(iter(homes.values()))
    x_NF = torch.cat([home.x_NF[:, : home.common] for home in homes.values()])
    labels_N = torch.cat([home.labels_N for home in homes.values()])
    test = None if first.test is None else (first.test[0][:, : first.common], first.test[1])
    home = Home(
        "pooled",
        x_NF,
        labels_N,
        first.features[: first.common],
        first.common,
        first.task,
        first.label,
        first.input,
        first.block,
        test,
    )
    return {"pooled": home}


class OwnMethod(Method):
    """Base of a method of your own, whose parties all have labels.

    A subclass has ``name``, ``stages``, ``partitions``, ``Settings`` if it has any, and

        party(home, settings) -> Party     a party's side; it has ``model`` if it keeps one
        driver(stage, settings, seed) -> Driver

    Attributes:
        Side: the class of ``party``'s, whose messages a policy allows by the method's name.
    """

    Settings: ClassVar[type[BaseModel]] = Section
    HomeSettings: ClassVar[type[BaseModel] | None] = HomeSection
    Side: ClassVar[type[Party]]
    driven_by: ClassVar[str | None] = DRIVER

    def party(self, home: Home) -> Party:
        """A party's side of a run."""
        return self.Side(home)  # type: ignore[call-arg]

    def driver(self, stage: str, settings: Any, seed: int) -> Driver:
        """What drives a stage."""
        raise NotImplementedError(f"{type(self).__name__} has no driver")

    def homes(self, stage: str, homes: Mapping[str, Home]) -> Mapping[str, Home]:
        """The homes that a stage trains with; ``pooled(homes)`` for a ruler with all rows."""
        return homes

    @property
    def algorithms(self) -> Mapping[str, Algorithm]:  # type: ignore[override]
        """The messages' prefix -> the method, as policies know it."""
        names = tuple(message.wire_name() for message in self.Side.accepts)
        return {name.partition(".")[0]: Algorithm(self.name, names) for name in names}

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> OwnSetup:
        """Everything that one seed's run is a function of."""
        if device.type != "cpu":
            raise ConfigError(f"{run.method!r} computes on the cpu only; leave device out")
        data = loaded.data
        if isinstance(data, Homes):
            homes = dict(data.holdings)
        else:
            homes = {name: home_of_partition(data, name) for name in data.train.parties}
        return OwnSetup(
            method=run.method,
            rulers=run.rulers,
            own=self,
            settings=run.settings(self.name, self.Settings),
            homes=homes,
            evaluate_every=run.evaluate_every,
            precision=run.engine.precision,
            connect=loaded.connect,
        )

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Talk = SILENT
    ) -> Parts:
        """Party files, which are not aligned: their samples are different ones."""
        check_nobody_is_active(run, self.name, where=where)
        homes = {}
        for name, site in sites.items():
            site.check_policy(self.name, DRIVER)
            homes[name] = home_of_site(site, self._home_settings(site))
        if not homes:
            raise ConfigError(f"{where}: parties names no party file")
        federation = dd.Federation(
            dd.PartyData(name, np.arange(len(home.labels_N)), labels=home.labels_N)
            for name, home in homes.items()
        )
        first = next(iter(homes.values()))
        return Homes(federation, None, first.task, {}, first.label, homes), None, None

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a coordinator has, once its parties are here: no row."""
        driver.wait()
        return Homes[Home].nobody(), None, None

    def members(self, site: Site, allowed: Collection[str]) -> Mapping[str, Maker]:
        """A party's side of its runs, where its policy allows the method."""
        prefixes = [prefix for prefix in self.algorithms if prefix in allowed]
        if not prefixes:
            return {}
        home = home_of_site(site, self._home_settings(site))  # mistakes are told at once

        def of_run(asked: Asked) -> Callable[[], StatefulParty]:
            def make() -> StatefulParty:
                party = self.party(home)

                def keep() -> None:
                    model = party.model()
                    if model is not None:
                        asked.keep(model, home.scores(model))

                if party.finish_with is None:
                    return party
                return Finishing(party, party.finish_with, keep)

            return make

        return dict.fromkeys(prefixes, of_run)

    def _home_settings(self, site: Site) -> Any:
        return site.sections.get(self.name)


@dataclass(frozen=True, kw_only=True)
class OwnSetup:
    """A ``Setup`` that drives a method of one's own, and scores it at every party.

    Attributes:
        method: what the run is about; its models are kept.
        rulers: what to train beside it.
        own: the method.
        settings: its section of the run file.
        homes: party -> what it has; none of those that are elsewhere.
        evaluate_every: rounds between scores; 0 scores after the last only.
        precision: how float32 tensors travel between parties of this process.
        connect: stage -> what reaches parties that live elsewhere; None: all are in ``homes``.
    """

    method: str
    rulers: tuple[str, ...]
    own: OwnMethod
    settings: Any
    homes: Mapping[str, Home] = field(default_factory=dict)
    evaluate_every: int = 1
    precision: Precision = "float32"
    connect: Callable[[str], Engine] | None = None

    def train(
        self, stage: str, seed: int, observe: Observer, checkpoint: Checkpoint | None = None
    ) -> Outcome:
        """Train one stage, and score it at every party that has a model and test rows."""
        checkpoint = checkpoint or Checkpoint.none()
        homes = self.own.homes(stage, self.homes)
        parties = {name: self.own.party(home) for name, home in homes.items()}
        if self.connect is None:
            engine: Engine = InProcess(
                checkpoint.hosting(parties), driver=DRIVER, precision=self.precision
            )
        else:
            engine = self.connect(stage)
        driver = self.own.driver(stage, self.settings, seed)
        for done in train(driver, engine, checkpoint):
            line = {"round": done.number, "seconds": done.seconds, **done.told}
            if is_due(done.number, driver.num_rounds, self.evaluate_every):
                scores = self._scores(homes, parties)
                line |= told(scores) if scores else {}
            if done.missed:
                line |= {"missed": dict.fromkeys(done.missed, 1), "reasons": dict(done.missed)}
            observe(stage, driver.num_rounds, line)
        scores = self._scores(homes, parties)
        models = {
            name: model for name, party in parties.items() if (model := party.model()) is not None
        }
        kept = models if set(homes) == set(self.homes) else {}
        return Outcome({stage: scores} if scores else {}, models=kept, ledger=engine.ledger)

    def _scores(self, homes: Mapping[str, Home], parties: Mapping[str, Party]) -> dict[str, Scores]:
        made = {name: party.model() for name, party in parties.items()}
        found = {name: homes[name].scores(model) for name, model in made.items() if model}
        return {name: scores for name, scores in found.items() if scores}


def installed() -> dict[str, Method]:
    """The methods that installed packages have; runs their code.

    Raises:
        ConfigError: one that cannot be loaded, naming its package.
    """
    found: dict[str, Method] = {}
    for entry in entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value
        where = f"the method {entry.name!r} of the installed package {package!r}"
        if entry.name in found:
            raise ConfigError(f"{where}: another package has a method of that name; uninstall one")
        try:
            method = entry.load()
        except Exception as error:  # whatever importing somebody's code can raise
            raise ConfigError(
                f"{where} cannot be loaded ({type(error).__name__}: {error}); mend or uninstall it"
            ) from None
        if not (isinstance(method, type) and issubclass(method, OwnMethod)):
            raise ConfigError(f"{where} names {method!r}; it is to name a subclass of OwnMethod")
        found[entry.name] = made = method()
        type(made).name = entry.name
    return found
