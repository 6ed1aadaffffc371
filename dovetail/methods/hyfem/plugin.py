"""HyFEM in a run file: [hyfem], for the server and all parties; and in a party's own file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dovetail import data as dd
from dovetail.data.common_unique import BLOCK
from dovetail.data.partytables import IMAGES, whole_images
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Local, Party
from dovetail.methods import hyfem
from dovetail.methods.base import SILENT, Loaded, Parts, Progress, Run, deciding, weighed
from dovetail.methods.baselines import TITLES as BASELINES
from dovetail.methods.homes import (
    Homes,
    LabelScale,
    check_labels,
    check_nobody_is_active,
    check_stages,
    common_task,
    draw_share,
    own_task,
)
from dovetail.methods.hyfem.inviting import part_of
from dovetail.methods.hyfem.stages import (
    POOLED,
    SERVER,
    Apart,
    Recipe,
    Stage,
    party_model,
    scores_of,
    stage_config,
    told_model,
)
from dovetail.methods.method import Method
from dovetail.methods.outcome import Observer, Scores, Setup
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.section import PartyName, Section
from dovetail.methods.training import LocalBaseline, Staged, Training, Variant
from dovetail.models import Model, Perceptron
from dovetail.models.blocks import Extractor, ResNet18, SmallCnn, Unchanged
from dovetail.models.decisions import Decided
from dovetail.network import Checkpoint, Engine, InProcess
from dovetail.privacy import PrivateSteps

#: What can be trained, and what a table calls it.
STAGES: Mapping[str, str] = {
    "hyfem": "HyFEM, predicts alone",
    "standalone": "each party alone, all its blocks",
    "pooled": "pooled (all blocks and rows in one place)",
    "fedavg": "common blocks, FedAvg",
    "fedprox": "common blocks, FedProx",
    "fedper": "shared extractors, own classifiers (FedPer)",
}
assert STAGES.keys() == {*get_args(Stage)}


class SmallCnnSection(Section):
    """A small CNN of one's own."""

    kind: Literal["small-cnn"]  # which network
    channels: tuple[int, ...] = (16, 32)  # of each layer
    kernel: int = 3  # its width
    pool: int = 2  # of each layer's max pooling
    centred: bool = False  # whether pixels are brought from 0..1 to -1..1


class ResNet18Section(Section):
    """A ResNet-18 of one's own."""

    kind: Literal["resnet-18"]  # which network
    width: int = 64  # channels of the first stage
    stem: Literal["small", "large"] = "small"  # a small first layer for small images


ExtractorField = (
    Literal["small-cnn", "resnet-18", "unchanged"]
    | tuple[int, ...]
    | SmallCnnSection
    | ResNet18Section
)


def extractor(field: ExtractorField) -> Extractor:
    """The extractor that a file names: a kind, its settings, or widths.

    Raises:
        ConfigError: settings that cannot be.
    """
    match field:
        case "small-cnn":
            return SmallCnn()
        case "resnet-18":
            return ResNet18()
        case "unchanged":
            return Unchanged()
        case SmallCnnSection():
            return SmallCnn(field.channels, field.kernel, field.pool, field.centred)
        case ResNet18Section():
            return ResNet18(field.width, field.stem)
    assert isinstance(field, tuple)
    return Perceptron(field)


class HyfemSection(hyfem.Settings):
    """Settings of the method and its baselines."""

    # Block (names take *) -> its extractor, by the longest name that matches; else a small CNN for
    # images, and one layer of 32 for columns.
    extractors: dict[str, ExtractorField] = Field(default_factory=dict)
    # Hidden widths of a party's classifier: of all, or by party, "*" being all others.
    widths: tuple[int, ...] | dict[PartyName | Literal["*"], tuple[int, ...]] = (64,)
    # Of the whole federation, where parties have files of their own; () is all that these have.
    classes: tuple[str | int, ...] = ()
    # Of labels that are numbers, over a network, in the place of classes: as in the parties' files.
    label_scale: LabelScale | None = None
    proximal: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of the baseline "fedprox"
    # How the rate goes over the rounds: a constant one makes the server swing.
    schedule: Literal["constant", "cosine"] = "cosine"
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a stage's own settings


def config(section: HyfemSection) -> hyfem.Settings:
    """The section's settings for all stages."""
    return hyfem.Settings(**section.model_dump(include=set(hyfem.Settings.model_fields)))


def widths_of(
    section: HyfemSection, parties: Collection[str], *, where: str
) -> dict[str, tuple[int, ...]]:
    """Party -> hidden widths of its classifier.

    Raises:
        ConfigError: widths for a party that is not there, or none for one that is.
    """
    widths = section.widths
    if isinstance(widths, tuple):
        return dict.fromkeys(parties, widths)
    for name in widths:
        if name != "*" and name not in parties:
            raise ConfigError(
                f"{where}: hyfem.widths names {name!r}, which is no party of this run; they are "
                f"{list(parties)}"
            )
    rest = widths.get("*")
    found = {name: widths.get(name, rest) for name in parties}
    for name, own in found.items():
        if own is None:
            raise ConfigError(
                f'{where}: hyfem.widths names no widths for party {name!r}; "*" = [64] is for all '
                "others"
            )
    return {name: own for name, own in found.items() if own is not None}


def extractors_of(
    section: HyfemSection, shapes: Mapping[str, tuple[int, ...]], *, where: str
) -> dict[str, Extractor]:
    """Block -> its extractor.

    Raises:
        ConfigError: a name that no block has, or an extractor that does not fit a block.
    """
    for pattern in section.extractors:
        if not any(fnmatchcase(block, pattern) for block in shapes):
            raise ConfigError(
                f"{where}: hyfem.extractors names {pattern!r}, but the blocks are {list(shapes)}"
            )
    found: dict[str, Extractor] = {}
    for block, shape in shapes.items():
        names = [name for name in section.extractors if fnmatchcase(block, name)]
        # Tables of a TOML file have no order: the most exact name counts.
        closest = max(names, key=lambda name: (name == block, len(name), name), default=None)
        if closest is not None:
            found[block] = extractor(section.extractors[closest])
        else:
            found[block] = SmallCnn() if len(shape) == 3 else Perceptron((32,))
        try:
            with torch.device("meta"):
                found[block].encoder(shape)
        except ConfigError as error:
            raise ConfigError(f"{where}: the extractor of block {block!r}: {error}") from None
    return found


class MemberSection(Section):
    """[hyfem] of a party file: its classifier, all classes there are, and which rows only test."""

    widths: tuple[int, ...] = (64,)  # hidden widths
    classes: tuple[str | int, ...] = ()  # of the whole federation; () where it has all of them
    label_scale: LabelScale | None = None  # of numbers: mean and scale of all parties' labels
    test_share: float = Field(default=0.2, ge=0, lt=1)  # share of the labelled rows
    private: PrivateSteps | None = None  # how its weights are trained; None: as the run says
    # Whether it tells its features' means and covariances by class, for a run's calibrate.
    moments: bool = False


def home_of(site: Site, task: dd.Task | None = None) -> hyfem.Home:
    """A party's labelled rows, split into training and test by its own file.

    Raises:
        ConfigError: no label, or a label of numbers.
        DataError: rows that cannot be split, or a class that is not among those of all.
    """
    table, section, party = site.table, site.settings("hyfem", MemberSection), site.party
    check_labels(site, "HyFEM")
    task = task or own_task(site, section)
    labels, train = table.encoded_labels(task), table.labelled_rows()
    if not len(train):
        raise ConfigError(
            f"party {site.name!r} has no labelled row; every party of HyFEM trains on its own "
            "labels, so leave it out"
        )
    train, test = draw_share(site, train, section.test_share, "test_share")
    whole = dd.PartyData(site.name, table.ids, labels=labels, label=table.label)
    categorical: list[str] = []
    if isinstance(table.x, dd.Table):
        x = table.x
        categorical = x.select(party.categorical)
        tables = {block: x.only(names) for block, names in table.blocks.items()}
        whole = replace(whole, tables=tables)
        if table.images is not None:
            pictures, as_they_are = {IMAGES: table.images}, {IMAGES: whole_images(table.images)}
            whole = replace(whole, blocks=pictures, inputs=as_they_are)
    else:
        blocks, inputs = dict.fromkeys(table.blocks, table.x), site.fit_input()
        whole = replace(whole, blocks=blocks, inputs=dict.fromkeys(table.blocks, inputs))
    return hyfem.Home(
        whole.take(torch.from_numpy(train)),
        task,
        section.widths,
        whole.take(torch.from_numpy(test)),
        categorical,
        private=section.private,
        moments=section.moments,
    )


def homes_of(data: dd.Blocks, widths: Mapping[str, tuple[int, ...]]) -> dict[str, hyfem.Home]:
    """Party -> the same, of what a partition splits."""
    return {
        name: hyfem.Home(
            own,
            data.task,
            widths[name],
            None if data.test is None else data.test[name],
            moments=True,
        )
        for name, own in data.train.parties.items()
    }


def homes_by_column(
    data: dd.ByColumn, widths: Mapping[str, tuple[int, ...]]
) -> dict[str, hyfem.Home]:
    """Party -> the same, of a table's rows by party: a block is what the same parties measured.

    Validation rows train, as this method chooses nothing by them.
    """

    def in_blocks(*parts: dd.PartyData) -> dd.PartyData:
        tables = [part.tables[BLOCK] for part in parts]
        table = dd.stacked(parts[0].name, tables)
        held = {
            block: table.only(names)
            for block, names in data.blocks.items()
            if set(names) <= set(table.names)
        }
        labels = torch.cat([part.labels for part in parts if part.labels is not None])
        ids = np.concatenate([part.ids for part in parts])
        return dd.PartyData(parts[0].name, ids, labels=labels, label=data.label, tables=held)

    return {
        name: hyfem.Home(
            in_blocks(own, *(() if data.validation is None else (data.validation[name],))),
            data.task,
            widths[name],
            None if data.test is None else in_blocks(data.test[name]),
            data.categorical,
            moments=True,
        )
        for name, own in data.train.parties.items()
    }


def whole_of(data: dd.Partitioned, homes: Mapping[str, hyfem.Home]) -> hyfem.Home | None:
    """Everybody's rows with all blocks, at the widest party; None where they are in no one place.

    Its test rows are those that the server's model is scored on.
    """
    if not isinstance(data, dd.Blocks):
        return None
    widest = max((home.widths for home in homes.values()), key=lambda own: (len(own), own))
    return hyfem.Home(data.pooled, data.task, widest, data.pooled_test)


class HyfemVariant(Variant):
    """HyFEM, or a baseline of it with rounds."""

    def __init__(self, stage: str) -> None:
        self.silent = stage in ("standalone", "pooled")

    def homes(self, training: Training, name: str) -> Mapping[str, hyfem.Home]:
        """Everybody's own; of "pooled" one, and of baselines on common blocks only these."""
        homes = training.homes
        if name == "pooled":
            whole = whole_of(training.loaded.data, homes)
            return {} if whole is None else {POOLED: whole}
        if name in ("fedavg", "fedprox"):
            return {party: home.only(common_blocks(homes)) for party, home in homes.items()}
        return homes

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """The settings that ``Begin`` carries."""
        section = run.settings("hyfem", HyfemSection)
        own = section.stages.get(name, {})
        plain = deciding(weighed(config(section), run), run)
        made = stage_config(plain, name, own, proximal=section.proximal)
        return made.model_dump(mode="json")

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> Recipe:
        """What a stage is trained with."""
        section: HyfemSection = training.settings
        own, data = section.stages.get(name, {}), training.loaded.data
        extractors = run_extractors(section, training.homes, data)
        homes = self.homes(training, name)
        if name in ("fedavg", "fedprox") and not training.elsewhere:
            common = common_blocks(homes)
            extractors = {block: own for block, own in extractors.items() if block in common}
        plain = weighed(config(section), training.run)
        if name != "pooled":
            plain = deciding(plain, training.run, judges=training.trying)
        made = stage_config(plain, name, own, proximal=section.proximal)
        return Recipe(made, data.task, extractors, homes)

    def driver(
        self, training: Training, name: str, homes: Mapping[str, Any], settings: Recipe, seed: int
    ) -> Driver:
        """The server; of parties that each train alone, one for each."""
        if name == "standalone":
            return Apart(settings, seed=seed)
        task, extractors = settings.task, settings.extractors
        return hyfem.Coordinator(task, extractors, settings.config, seed=seed, name=SERVER)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """What reaches the parties of this process."""
        return InProcess(parties, driver=SERVER, precision=training.run.engine.precision)

    def model(self, party: Party, home: hyfem.Home, name: str = "") -> Model:
        """What a party can use alone, as it is now."""
        assert isinstance(party, hyfem.Member)
        method = name or ("fedper" if party.config.classifier == "own" else "hyfem")
        rate, inputs = party.config.learning_rate, home.train.inputs
        return told_model(
            party.model(), inputs, method=method, label=home.label, learning_rate=rate
        )

    def validate(self, party: Party, home: hyfem.Home) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of rows that were kept out of training."""
        assert isinstance(party, hyfem.Member)
        return party.held_out()

    def test(
        self,
        party: Party,
        home: hyfem.Home,
        name: str = "",
        *,
        last: bool = False,
        decision: Decided | None = None,
    ) -> Scores:
        """A party's scores on its test rows, as it is now; none without any."""
        assert isinstance(party, hyfem.Member)
        rate = party.config.learning_rate
        return scores_of(
            party.name,
            party.model(),
            home,
            what="hyfem",
            learning_rate=rate,
            last=last,
            decision=decision,
        )

    def scored(self, stage: Staged, *, last: bool = False) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores; the server's too, if all blocks are here."""
        name, driver, settings = stage.name, stage.driver, stage.settings
        whole = whole_of(stage.training.loaded.data, stage.training.homes)
        whole = whole if whole is not None and whole.is_tested else None

        def scored(party: str, model: Model, home: hyfem.Home) -> Scores:
            rate = settings.config.learning_rate
            return scores_of(
                party,
                model,
                home,
                what=name,
                learning_rate=rate,
                last=last,
                decision=stage.decisions.get(party) if last else None,
            )

        if name == "pooled" and whole is None:
            return {}
        if name in ("fedavg", "fedprox") and whole is not None:
            return {name: {SERVER: scored(SERVER, driver.model(), whole)}}
        parties = {
            party: scored(party, party_model(driver, stage.parties[party]), home)
            for party, home in stage.homes.items()
            if home.is_tested
        }
        found = {name: parties} if parties else {}
        if name == "hyfem" and whole is not None:
            found[SERVER] = {SERVER: scored(SERVER, driver.model(), whole)}
        return found

    def kept(self, stage: Staged) -> dict[str, Model]:
        """Party -> its model, and the server's."""
        data, settings = stage.training.loaded.data, stage.settings
        models = {name: party.model() for name, party in stage.parties.items()}
        if stage.name in ("hyfem", "fedavg", "fedprox"):
            models[SERVER] = stage.driver.model()
        inputs = data.block_inputs if isinstance(data, dd.Blocks) else {}
        found = {}
        for name, model in models.items():
            home = stage.homes.get(name)
            found[name] = told_model(
                model,
                {**inputs, **({} if home is None else home.train.inputs)},
                method=stage.name,
                label=(home.label if home else "") or data.label,
                learning_rate=settings.config.learning_rate,
            )
        return found


class Hyfem(Method):
    """HyFEM."""

    decides = True
    at_home = ("hyfem.widths",)
    name = "hyfem"
    Settings = HyfemSection
    HomeSettings = MemberSection
    stages: ClassVar[Mapping[str, str]] = {**STAGES, **BASELINES}
    scores: ClassVar[Mapping[str, str]] = {"server": "HyFEM, the server's model (all blocks)"}
    partitions = ("blocks", "by-column")
    Side = hyfem.Member
    algorithms: ClassVar[Mapping[str, Algorithm]] = {"hyfem": algorithm("hyfem", hyfem.Member)}
    models = (
        "Each party keeps a model that predicts alone from its blocks; the server keeps one for "
        "all blocks."
    )

    def check(self, run: Run, *, where: str) -> None:
        """Refuse settings that cannot be, of any stage.

        Raises:
            ConfigError: naming the file and the section.
        """
        section = run.settings("hyfem", HyfemSection)
        make = partial(stage_config, config(section), proximal=section.proximal)
        check_stages(run, "hyfem", section.stages, STAGES, make, where=where)
        for block, field in section.extractors.items():
            try:
                extractor(field)
            except ConfigError as error:
                raise ConfigError(f"{where}, [hyfem.extractors] {block!r}: {error}") from None
        if run.engine.kind != "inprocess":
            wrong = []
            if (len(section.classes) < 2) == (section.label_scale is None):
                wrong.append(
                    "hyfem.classes names all classes of the federation, as no party need have "
                    'all, for example classes = ["no", "yes"]; or, of labels that are numbers, '
                    "hyfem.label_scale = [MEAN, SCALE] as in the parties' files"
                )
            if not section.extractors or any(set(name) & {*"*?["} for name in section.extractors):
                wrong.append(
                    "[hyfem.extractors] names every block and its extractor, without *; for "
                    "example [hyfem.extractors] blood = [32]"
                )
            apart = [
                each for each in (run.method, *run.baselines) if each not in ("hyfem", "fedper")
            ]
            if apart:
                wrong.append(
                    f"leave out {', '.join(map(repr, apart))}, trained in one process only"
                )
            if wrong:
                raise ConfigError(f"{where}: over a network {'. And '.join(wrong)}")
        elif section.label_scale is not None:
            raise ConfigError(
                f"{where}: hyfem.label_scale is for parties on machines of their own; in one "
                "process the labels themselves say their scale"
            )
        elif section.classes and run.data is not None:
            raise ConfigError(
                f"{where}: hyfem.classes is for parties with files of their own; in simulation the "
                "data say which there are"
            )
        if isinstance(section.widths, dict) and run.data is not None:
            widths_of(section, run.data.partition.party_names(), where=where)

    def load_sites(
        self, run: Run, sites: Mapping[str, Site], *, where: str, talk: Progress = SILENT
    ) -> Parts:
        """Party files, which are not aligned: it does not matter who shares which sample.

        Raises:
            ConfigError: no party, a policy that refuses, or rows that cannot be learned from.
        """
        check_nobody_is_active(run, "hyfem", where=where)
        # A run folder's own file says the default, too.
        if run.settings("hyfem", HyfemSection).widths != HyfemSection().widths:
            raise ConfigError(
                f"{where}: hyfem.widths is for simulation; with parties it stands below [hyfem] in "
                "each party's own file"
            )
        for site in sites.values():
            site.check_policy("hyfem", SERVER)
            check_labels(site, "HyFEM")
        if not sites:
            raise ConfigError(f"{where}: parties names no party file")
        task = common_task(sites, "hyfem", "parties'", where=where, talk=talk)
        classes = run.settings("hyfem", HyfemSection).classes
        if classes and isinstance(task, dd.Classification):
            task = dd.Classification(classes)
        return self._at_home(sites, task)

    def _at_home(self, sites: Mapping[str, Site], task: dd.Task) -> Parts:
        """What parties of one process have."""
        homes = {name: home_of(site, task) for name, site in sites.items()}
        label = next(iter(homes.values())).label
        return Homes(dd.Federation([]), None, task, {}, label, homes), None, None

    def home(self, site: Site) -> hyfem.Home:
        """What a party has by its own file."""
        return home_of(site)

    def variant(self, stage: str) -> Variant:
        """What a stage is."""
        return LocalBaseline() if stage in BASELINES else HyfemVariant(stage)

    def party(self, home: hyfem.Home, local: Local) -> hyfem.Member:
        """A party's side of a run."""
        return hyfem.Member(home, local)

    def part_of(self, model: Model, party: str, blocks: Mapping[str, Sequence[str]]) -> Model:
        """A new party's extractors and classifier, cut out of the server's (Remark 2)."""
        return part_of(model, party, blocks)

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """What the party will do, of what its policy agrees to."""
        if "hyfem" in agreed:
            columns = any(names for names in site.table.blocks.values())
            told = ", of whose columns it tells mean and spread" if columns else ""
            yield f"shares     weights of its blocks {', '.join(site.table.blocks)}{told}"

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a coordinator has, once its parties are here: no row, but all classes."""
        driver.wait()
        section = run.settings("hyfem", HyfemSection)
        task: dd.Task = dd.Classification(section.classes)
        if section.label_scale is not None:
            mean, scale = section.label_scale
            task = dd.Regression(float(mean), float(scale))
        return Homes[hyfem.Home].nobody(task), None, None

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Rate and sizes."""
        return {
            "hyfem.learning_rate": (0.01, 0.03, 0.1, 0.3),
            "hyfem.widths": ([32], [64], [128]),
            "hyfem.local_steps": (16, 32, 64),
        }

    def setup(self, run: Run, loaded: Loaded, device: torch.device) -> Setup:
        """Everything that one seed's run is a function of.

        Raises:
            ConfigError: rows that are in no one place are to be pooled, no block is common to all,
                or an extractor or widths do not fit.
        """
        section, data = run.settings("hyfem", HyfemSection), loaded.data
        if isinstance(data, dd.Blocks):
            widths = widths_of(section, list(data.train.parties), where="the run file")
            homes: Mapping[str, hyfem.Home] = homes_of(data, widths)
        elif isinstance(data, dd.ByColumn):
            widths = widths_of(section, list(data.train.parties), where="the run file")
            homes = homes_by_column(data, widths)
        else:
            assert isinstance(data, Homes)
            homes = data.holdings
        stages = {run.method, *run.baselines}
        if "pooled" in stages and not isinstance(data, dd.Blocks):
            raise ConfigError("'pooled' needs everybody's rows in one place; leave it out")
        if loaded.connect is None and not common_blocks(homes) and {"fedavg", "fedprox"} & stages:
            raise ConfigError(
                "no block is at every party, and FedAvg and FedProx train on nothing else; leave "
                "'fedavg' and 'fedprox' out"
            )
        run_extractors(section, homes, data)
        return Training(
            kind=self, run=run, settings=section, homes=homes, loaded=loaded, device=device
        )


def common_blocks(homes: Mapping[str, hyfem.Home]) -> list[str]:
    """The blocks that every party has."""
    first, *others = homes.values()
    return [block for block in first.blocks if all(block in own.blocks for own in others)]


def run_extractors(
    section: HyfemSection, homes: Mapping[str, hyfem.Home], data: dd.Partitioned
) -> dict[str, Extractor]:
    """Block -> its extractor, of every block of a run.

    Raises:
        ConfigError: a name that no block has, or an extractor that does not fit a block.
    """
    if isinstance(data, dd.Blocks):
        shapes = {block: tuple(x.shape[1:]) for block, x in data.pooled.blocks.items()}
    elif not homes:  # the parties are elsewhere, and the run file names every block
        return {block: extractor(own) for block, own in section.extractors.items()}
    else:
        # How many features columns give is not known yet; their extractors take any number.
        shapes = {block: (1,) for own in homes.values() for block in own.train.tables}
        for each in homes.values():
            shapes |= {block: tuple(x.shape[1:]) for block, x in each.train.blocks.items()}
    return extractors_of(section, shapes, where="the run file")
