"""[hyfem] of a run file, for the server and all parties, and of a party's own file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, WrapSerializer, WrapValidator

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.methods.hyfem.settings import Settings
from dovetail.methods.labels import LabelScale
from dovetail.methods.section import own_network, own_written
from dovetail.models import OwnNetwork, Perceptron
from dovetail.models.blocks import Extractor, ResNet, SmallCnn, Unchanged
from dovetail.settings.privacy import PrivateSteps
from dovetail.settings.section import PartyName, Section


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


class HyfemSection(Settings):
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
    # Over a network, in the place of classes: what labels are; quantiles have a label_scale, too.
    task: Literal["survival", "counts", "amounts", "quantiles"] | None = None
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


def run_extractors(
    section: HyfemSection, party_data: Mapping[str, HyfemData], data: dd.Partitioned
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
