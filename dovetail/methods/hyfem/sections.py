"""Objects that HyFEM's sections name: extractors of blocks, and widths of classifiers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

import torch

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.methods.settings.hyfem import (
    ExtractorField,
    HyfemSection,
    ResNetSection,
    SmallCnnSection,
)
from dovetail.models import OwnNetwork, Perceptron
from dovetail.models.blocks import Extractor, ResNet, SmallCnn, Unchanged


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
