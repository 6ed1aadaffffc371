"""HyFEM in a run file: [hyfem], for the server and all parties; and in a party's own file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, WrapSerializer, WrapValidator
from torch import Tensor

from dovetail import data as dd
from dovetail.data.common_unique import BLOCK
from dovetail.data.partytables import IMAGES, whole_images
from dovetail.errors import ConfigError
from dovetail.federated import Driver, Party
from dovetail.methods import hyfem
from dovetail.methods.base import SILENT, Loaded, Parts, Progress, Run, deciding, weighed
from dovetail.methods.baselines import TITLES as BASELINES
from dovetail.methods.facets.keys import Keys
from dovetail.methods.facets.proposed import Proposed
from dovetail.methods.hyfem.audited import HyfemAudited
from dovetail.methods.hyfem.fits import REPORTED, HyfemFits
from dovetail.methods.hyfem.inviting import HyfemInvited
from dovetail.methods.hyfem.variant_settings import (
    POOLED,
    SERVER,
    Apart,
    Recipe,
    described_model,
    party_model,
    variant_config,
)
from dovetail.methods.labels import (
    MORE_KINDS,
    LabelScale,
    check_kind,
    check_labels,
    common_task,
    draw_share,
    local_task,
    scaled,
)
from dovetail.methods.local_data import Holdings, check_nobody_is_active, check_variants
from dovetail.methods.method import Method
from dovetail.methods.outcome import Observer, Scores
from dovetail.methods.party import Algorithm, Site, algorithm
from dovetail.methods.section import PartyName, Section, narrowed, own_network, own_written
from dovetail.methods.training import LocalBaseline, Training, Variant, VariantRun
from dovetail.models import Model, OwnNetwork, Perceptron
from dovetail.models.blocks import Extractor, ResNet, SmallCnn, Unchanged
from dovetail.network import Checkpoint, Engine
from dovetail.privacy import PrivateSteps

#: What can be trained, and what a table calls it.
VARIANT_NAMES: Mapping[str, str] = {
    "hyfem": "HyFEM, predicts alone",
    "standalone": "each party alone, all its blocks",
    "pooled": "pooled (all blocks and rows in one place)",
    "fedavg": "common blocks, FedAvg",
    "fedprox": "common blocks, FedProx",
    "fedper": "shared extractors, own classifiers (FedPer)",
}


class SmallCnnSection(Section):
    """A small CNN of one's own."""

    kind: Literal["small-cnn"]  # which network
    channels: tuple[int, ...] = (16, 32)  # of each layer
    kernel: int = 3  # its width
    pool: int = 2  # of each layer's max pooling
    centred: bool = False  # whether pixels are brought from 0..1 to -1..1


class ResNetSection(Section):
    """A ResNet-18 or -34 of one's own."""

    kind: Literal["resnet-18", "resnet-34"]  # which network
    width: int = 64  # channels of the first stage
    stem: Literal["small", "large"] = "small"  # a small first layer for small images


ExtractorField = (
    Literal["small-cnn", "resnet-18", "resnet-34", "unchanged"]
    | tuple[int, ...]
    | SmallCnnSection
    | ResNetSection
)


AnyExtractor = Annotated[ExtractorField, WrapValidator(own_network), WrapSerializer(own_written)]


def extractor(field: ExtractorField | OwnNetwork) -> Extractor:
    """The extractor that a file names: a kind, its settings, or widths.

    Raises:
        ConfigError: settings that cannot be.
    """
    match field:
        case OwnNetwork():
            return field
        case "small-cnn":
            return SmallCnn()
        case "resnet-18" | "resnet-34":
            return ResNet(kind=field)
        case "unchanged":
            return Unchanged()
        case SmallCnnSection():
            return SmallCnn(field.channels, field.kernel, field.pool, field.centred)
        case ResNetSection():
            return ResNet(field.width, field.stem, field.kind)
    assert isinstance(field, tuple)
    return Perceptron(field)


class HyfemSection(hyfem.Settings):
    """Settings of the method and its baselines."""

    # Block (names take *) -> its extractor, by the longest name that matches; else a small CNN for
    # images, and one layer of 32 for columns.
    extractors: dict[str, AnyExtractor] = Field(default_factory=dict)
    # Hidden widths of a party's classifier: of all, or by party, "*" being all others.
    widths: tuple[int, ...] | dict[PartyName | Literal["*"], tuple[int, ...]] = (64,)
    # Of the whole federation, where parties have files of their own; () is all that these have.
    classes: tuple[str | int, ...] = ()
    # Of labels that are numbers, over a network, in the place of classes: as in the parties' files.
    label_scale: LabelScale | None = None
    # Over a network, in the place of classes: labels that are yes or no each, in parties' order.
    labels: tuple[str, ...] = ()
    # Over a network, in the place of classes: labels are times to an event.
    times_to_event: bool = False
    proximal: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of the baseline "fedprox"
    # How the rate goes over the rounds: a constant one makes the server swing.
    schedule: Literal["constant", "cosine"] = "cosine"
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a variant's own settings


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
    by_party = {name: widths.get(name, rest) for name in parties}
    for name, width in by_party.items():
        if width is None:
            raise ConfigError(
                f'{where}: hyfem.widths names no widths for party {name!r}; "*" = [64] is for all '
                "others"
            )
    return {name: width for name, width in by_party.items() if width is not None}


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
    extractors: dict[str, Extractor] = {}
    for block, shape in shapes.items():
        names = [name for name in section.extractors if fnmatchcase(block, name)]
        # Tables of a TOML file have no order: the most exact name counts.
        closest = max(names, key=lambda name: (name == block, len(name), name), default=None)
        if closest is not None:
            extractors[block] = extractor(section.extractors[closest])
        else:
            extractors[block] = SmallCnn() if len(shape) == 3 else Perceptron((32,))
        try:
            with torch.device("meta"):
                extractors[block].encoder(shape)
        except ConfigError as error:
            raise ConfigError(f"{where}: the extractor of block {block!r}: {error}") from None
    return extractors


class MemberSection(Section):
    """[hyfem] of a party file: its classifier, all classes there are, and which rows only test."""

    widths: tuple[int, ...] = (64,)  # hidden widths
    classes: tuple[str | int, ...] = ()  # of the whole federation; () where it has all of them
    # of numbers: mean and scale of all parties' labels, of several by name
    label_scale: LabelScale | None = None
    test_share: float = Field(default=0.2, ge=0, lt=1)  # share of the labelled rows
    private: PrivateSteps | None = None  # how its weights are trained; None: as the run says
    # Whether it tells its features' means and covariances by class, for a run's calibrate.
    moments: bool = False


def data_of_site(site: Site, task: dd.Task | None = None) -> hyfem.HyfemData:
    """A party's labelled rows, split into training and test by its own file.

    Raises:
        ConfigError: no label, or a label of numbers.
        DataError: rows that cannot be split, or a class that is not among those of all.
    """
    table, section, party = site.table, site.settings("hyfem", MemberSection), site.party
    check_labels(site, "HyFEM")
    if task is None or isinstance(task, dd.Survival):  # of times each has a baseline of its own
        task = local_task(site, section, *MORE_KINDS)
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
    return hyfem.HyfemData(
        whole.take(torch.from_numpy(train)),
        task,
        section.widths,
        whole.take(torch.from_numpy(test)),
        categorical,
        private=section.private,
        moments=section.moments,
    )


def data_of_partition(
    data: dd.Blocks, widths: Mapping[str, tuple[int, ...]]
) -> dict[str, hyfem.HyfemData]:
    """Party -> the same, of what a partition splits."""
    return {
        name: hyfem.HyfemData(
            party_data,
            data.task,
            widths[name],
            None if data.test is None else data.test[name],
            moments=True,
        )
        for name, party_data in data.train.parties.items()
    }


def data_by_column(
    data: dd.ByColumn, widths: Mapping[str, tuple[int, ...]]
) -> dict[str, hyfem.HyfemData]:
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
        name: hyfem.HyfemData(
            in_blocks(party_data, *(() if data.validation is None else (data.validation[name],))),
            data.task,
            widths[name],
            None if data.test is None else in_blocks(data.test[name]),
            data.categorical,
            moments=True,
        )
        for name, party_data in data.train.parties.items()
    }


def whole_of(
    data: dd.Partitioned, party_data: Mapping[str, hyfem.HyfemData]
) -> hyfem.HyfemData | None:
    """Everybody's rows with all blocks, at the widest party; None where they are in no one place.

    Its test rows are those that the server's model is scored on.
    """
    if not isinstance(data, dd.Blocks):
        return None
    widest = max(
        (local_data.widths for local_data in party_data.values()),
        key=lambda widths: (len(widths), widths),
    )
    return hyfem.HyfemData(data.pooled, data.task, widest, data.pooled_test)


class HyfemVariant(Variant):
    """HyFEM, or a baseline of it with rounds."""

    def __init__(self, variant: str) -> None:
        self.silent = variant in ("standalone", "pooled")

    def variant_data(self, training: Training, name: str) -> Mapping[str, hyfem.HyfemData]:
        """Everybody's own; of "pooled" one, and of baselines on common blocks only these."""
        party_data = training.party_data
        if name == "pooled":
            whole = whole_of(training.loaded.data, party_data)
            return {} if whole is None else {POOLED: whole}
        if name in ("fedavg", "fedprox"):
            return {
                party: local_data.only(common_blocks(party_data))
                for party, local_data in party_data.items()
            }
        return party_data

    def begin_settings(self, run: Run, name: str) -> Mapping[str, Any]:
        """The settings that ``Begin`` carries."""
        section = run.settings("hyfem", HyfemSection)
        given = section.variants.get(name, {})
        plain = deciding(weighed(narrowed(section, hyfem.Settings), run), run)
        made = variant_config(plain, name, given, proximal=section.proximal)
        return made.model_dump(mode="json")

    def settings(
        self, training: Training, name: str, seed: int, observe: Observer, checkpoint: Checkpoint
    ) -> Recipe:
        """What a variant is trained with."""
        section: HyfemSection = training.settings
        given, data = section.variants.get(name, {}), training.loaded.data
        extractors = run_extractors(section, training.party_data, data)
        party_data = self.variant_data(training, name)
        if name in ("fedavg", "fedprox") and not training.elsewhere:
            common = common_blocks(party_data)
            extractors = {block: given for block, given in extractors.items() if block in common}
        plain = weighed(narrowed(section, hyfem.Settings), training.run)
        if name != "pooled":
            plain = deciding(plain, training.run, judges=training.trying)
        made = variant_config(plain, name, given, proximal=section.proximal)
        return Recipe(made, data.task, extractors, party_data)

    def driver(
        self,
        training: Training,
        name: str,
        party_data: Mapping[str, Any],
        settings: Recipe,
        seed: int,
    ) -> Driver:
        """The server; of parties that each train alone, one for each."""
        if name == "standalone":
            return Apart(settings, seed=seed)
        task, extractors = settings.task, settings.extractors
        return hyfem.Coordinator(task, extractors, settings.config, seed=seed, name=SERVER)

    def in_process(self, training: Training, parties: Mapping[str, Any]) -> Engine:
        """What reaches the parties of this process."""
        return training.in_process(parties, SERVER)

    def model(self, party: Party, local_data: hyfem.HyfemData, name: str = "") -> Model:
        """What a party can use alone, as it is now."""
        assert isinstance(party, hyfem.Member)
        method = name or ("fedper" if party.config.classifier == "own" else "hyfem")
        rate, inputs = party.config.learning_rate, local_data.train.inputs
        return described_model(
            party.model(), inputs, method=method, label=local_data.label, learning_rate=rate
        )

    def validate(self, party: Party, local_data: hyfem.HyfemData) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of rows that were kept out of training."""
        assert isinstance(party, hyfem.Member)
        return party.held_out()

    def tested(self, party: Party, local_data: hyfem.HyfemData) -> tuple[Tensor, Tensor] | None:
        """Outputs and labels of its test rows."""
        assert isinstance(party, hyfem.Member)
        return local_data.tested(party.model())

    def scored(
        self, variant_run: VariantRun, *, last: bool = False
    ) -> dict[str, dict[str, Scores]]:
        """Score name -> party -> scores; the server's too, if all blocks are here."""
        name, driver = variant_run.name, variant_run.driver
        whole = whole_of(variant_run.training.loaded.data, variant_run.training.party_data)
        whole = whole if whole is not None and whole.is_tested else None

        def scored(party: str, model: Model, local_data: hyfem.HyfemData) -> Scores:
            tested = local_data.tested(model)
            assert tested is not None
            return variant_run.score(party, model.task, *tested, last=last)

        if name == "pooled" and whole is None:
            return {}
        if name in ("fedavg", "fedprox") and whole is not None:
            return {name: {SERVER: scored(SERVER, driver.model(), whole)}}
        parties = {
            party: scored(party, party_model(driver, variant_run.parties[party]), local_data)
            for party, local_data in variant_run.party_data.items()
            if local_data.is_tested
        }
        found = {name: parties} if parties else {}
        if name == "hyfem" and whole is not None:
            found[SERVER] = {SERVER: scored(SERVER, driver.model(), whole)}
        return found

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """Party -> its model, and the server's."""
        data, settings = variant_run.training.loaded.data, variant_run.settings
        models = {name: party.model() for name, party in variant_run.parties.items()}
        # Of times to an event each party has a baseline of its own, and the server has none.
        shared = variant_run.name in ("hyfem", "fedavg", "fedprox")
        if shared and not isinstance(data.task, dd.Survival):
            models[SERVER] = variant_run.driver.model()
        inputs = data.block_inputs if isinstance(data, dd.Blocks) else {}
        found = {}
        for name, model in models.items():
            local_data = variant_run.party_data.get(name)
            found[name] = described_model(
                model,
                {**inputs, **({} if local_data is None else local_data.train.inputs)},
                method=variant_run.name,
                label=(local_data.label if local_data else "") or data.label,
                learning_rate=settings.config.learning_rate,
            )
        return found


class HyfemProposed(Proposed):
    """What a party shares."""

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """What the party will do, of what its policy agrees to."""
        if "hyfem" in agreed:
            columns = any(names for names in site.table.blocks.values())
            clause = ", of whose columns it tells mean and spread" if columns else ""
            yield f"shares     weights of its blocks {', '.join(site.table.blocks)}{clause}"


class HyfemKeys(Keys):
    """What of its settings a search tries."""

    of_parties = ("hyfem.widths",)

    def searched(self, run: Run) -> Mapping[str, Sequence[Any]]:
        """Rate and sizes."""
        return {
            "hyfem.learning_rate": (0.01, 0.03, 0.1, 0.3),
            "hyfem.widths": ([32], [64], [128]),
            "hyfem.local_steps": (16, 32, 64),
        }


class Hyfem(Method):
    """HyFEM."""

    decides = True
    name = "hyfem"
    Settings = HyfemSection
    PartySettings = MemberSection
    variants: ClassVar[Mapping[str, str]] = {**VARIANT_NAMES, **BASELINES}
    scores: ClassVar[Mapping[str, str]] = {"server": "HyFEM, the server's model (all blocks)"}
    partitions = ("blocks", "by-column")
    Side = hyfem.Member
    algorithms: ClassVar[Mapping[str, Algorithm]] = {"hyfem": algorithm("hyfem", hyfem.Member)}
    keys = HyfemKeys()
    proposed = HyfemProposed()
    invited = HyfemInvited()
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
        if run.data is not None:
            check_kind(run.data.task, *MORE_KINDS, where=where)
        make = partial(variant_config, narrowed(section, hyfem.Settings), proximal=section.proximal)
        check_variants(run, "hyfem", section.variants, VARIANT_NAMES, make, where=where)
        for block, field in section.extractors.items():
            try:
                extractor(field)
            except ConfigError as error:
                raise ConfigError(f"{where}, [hyfem.extractors] {block!r}: {error}") from None
        if run.engine.elsewhere:
            wrong = []
            said = len(section.classes) >= 2, section.label_scale is not None
            if sum((*said, section.times_to_event, len(section.labels) >= 2)) != 1:
                wrong.append(
                    "hyfem.classes names all classes of the federation, as no party need have "
                    'all, for example classes = ["no", "yes"]; or, of labels that are numbers, '
                    "hyfem.label_scale = [MEAN, SCALE] as in the parties' files; or, of several "
                    "labels, hyfem.labels = [NAME, NAME]; or, of times to an event, "
                    "hyfem.times_to_event = true"
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
        elif section.label_scale is not None or section.labels:
            key = "labels" if section.labels else "label_scale"
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
        task = common_task(sites, "hyfem", "parties'", *MORE_KINDS, where=where, talk=talk)
        classes = run.settings("hyfem", HyfemSection).classes
        if classes and isinstance(task, dd.Classification):
            task = dd.Classification(classes)
        return self._from_sites(sites, task)

    def _from_sites(self, sites: Mapping[str, Site], task: dd.Task) -> Parts:
        """What parties of one process have."""
        party_data = {name: data_of_site(site, task) for name, site in sites.items()}
        label = next(iter(party_data.values())).label
        return Holdings(dd.Federation([]), None, task, {}, label, party_data), None, None

    def local_data(self, site: Site) -> hyfem.HyfemData:
        """What a party has by its own file."""
        return data_of_site(site)

    def variant(self, variant: str) -> Variant:
        """What a variant is."""
        return LocalBaseline() if variant in BASELINES else HyfemVariant(variant)

    def load_driver(self, run: Run, driver: Any, *, where: str) -> Parts:
        """What a coordinator has, once its parties are here: no row, but all classes."""
        driver.wait()
        section = run.settings("hyfem", HyfemSection)
        task: dd.Task = dd.Classification(section.classes)
        if section.label_scale is not None:
            task = scaled(section.label_scale)
        if section.labels:
            task = dd.MultiLabel(section.labels)
        if section.times_to_event:
            task = dd.Survival((), ())
        return Holdings[hyfem.HyfemData].nobody(task), None, None

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


def common_blocks(party_data: Mapping[str, hyfem.HyfemData]) -> list[str]:
    """The blocks that every party has."""
    first, *others = party_data.values()
    return [block for block in first.blocks if all(block in other.blocks for other in others)]


def run_extractors(
    section: HyfemSection, party_data: Mapping[str, hyfem.HyfemData], data: dd.Partitioned
) -> dict[str, Extractor]:
    """Block -> its extractor, of every block of a run.

    Raises:
        ConfigError: a name that no block has, or an extractor that does not fit a block.
    """
    if isinstance(data, dd.Blocks):
        shapes = {block: tuple(x.shape[1:]) for block, x in data.pooled.blocks.items()}
    elif not party_data:  # the parties are elsewhere, and the run file names every block
        return {block: extractor(local) for block, local in section.extractors.items()}
    else:
        # How many features columns give is not known yet; their extractors take any number.
        shapes = {block: (1,) for local in party_data.values() for block in local.train.tables}
        for each in party_data.values():
            shapes |= {block: tuple(x.shape[1:]) for block, x in each.train.blocks.items()}
    return extractors_of(section, shapes, where="the run file")
