"""HyFEM's partition: an explicit table says which party has which blocks of which classes.

The table is a CSV file with a row for each party:

    party,blocks,classes,rows
    party-1,top-left top-right bottom-left,1-5,1
    party-2,1-3,6-10,0.5

Blocks are names (``*`` and ``[0-3]`` match several) or places from 1; classes are places from 1 in
sorted order, as in the paper's Table 4. ``rows`` is the share of each class's training rows that
the party has, 1 where left out: in the paper a party has all samples of its classes (25 000 of
CIFAR-10 for 5 classes of 10), so that two parties may share samples, unless ``disjoint``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dovetail.data.agreed import agree, summarise
from dovetail.data.datasets import Dataset
from dovetail.data.images import ImageRegion, quadrants
from dovetail.data.partitions import Partitioned, task_of
from dovetail.data.party import Federation, PartyData
from dovetail.data.preprocessing import Input
from dovetail.data.tables import Table
from dovetail.data.task import Classification
from dovetail.errors import ConfigError, DataError
from dovetail.settings.shares import Share, indices_of, read_assignment


@dataclass(frozen=True, eq=False)
class Blocks(Partitioned):
    """A simulated federation whose parties have some blocks of some classes.

    ``inputs`` is empty: a block is encoded alike at all parties, so ``block_inputs`` says how.

    Attributes:
        blocks: names of all, in the order of the server's features.
        block_inputs: block -> how raw data becomes it.
        common: blocks that every party has; what FedAvg and FedProx can use.
        pooled: all blocks of every training row that any party has; the pooled baseline's.
        pooled_test: all blocks of the test rows; None where there is no test part.
    """

    blocks: tuple[str, ...]
    block_inputs: Mapping[str, Input]
    common: tuple[str, ...]
    pooled: PartyData
    pooled_test: PartyData | None


#: Block name -> globs of its columns, or a region of the image; or a name of a usual cut.
BlockNames = Mapping[str, Sequence[str] | ImageRegion]
Cut = Literal["quadrants", "quadrants-channels"]


def blocks(
    train: Dataset,
    test: Dataset | None,
    *,
    blocks: BlockNames | Cut,
    assignment: Sequence[Share] | str | Path,
    beside: tuple[Dataset, Dataset | None] | None = None,
    disjoint: bool = False,
    seed: int = 0,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
) -> Blocks:
    """Images or a table split by an explicit table of parties.

    Every party has all test rows, with its blocks (section 4, "in the testing phase"). Columns are
    encoded alike at all parties, by what the training rows of those that have them hold.

    Args:
        train, test: images or a table.
        blocks: block name -> globs of its columns, or its region of the image; or "quadrants" (4
            blocks) or "quadrants-channels" (4 times the channels).
        assignment: which party holds what, or a CSV file that says so.
        beside: a second data set about the same samples, a table beside images or the other way
            round; blocks may then be of both kinds.
        disjoint: deal each class's training rows out, in proportion to ``rows``, so that no two
            parties share one; else each party draws its own share.
        seed: 0 or more; who has which rows.
        categorical, max_categories: see ``TableEncoder.fit``.

    Raises:
        ConfigError: an assignment that names no party twice, a block or class that is not there,
            a share outside (0, 1], or blocks or classes that nobody has.
        DataError: blocks that do not fit the data, parties without a row, or labels that cannot
            be learned.
    """
    sources = [(train, test), *([beside] if beside else [])]
    for other, other_test in sources[1:]:
        _check_beside(train, other)
        if test is not None and other_test is not None:
            _check_beside(test, other_test)
    shares = read_assignment(assignment) if isinstance(assignment, str | Path) else assignment
    named = _named(blocks, [source for source, _ in sources])
    task, labels = task_of(train, test)
    assert isinstance(task, Classification)
    held = _held_blocks(shares, list(named))
    classes = _held_classes(shares, task)
    rows = _deal_rows(shares, classes, labels.numpy(), disjoint=disjoint, seed=seed)

    block_inputs: dict[str, Input] = {}
    whole: dict[str, Tensor] = {}
    whole_test: dict[str, Tensor] = {}
    for name, what in named.items():
        source, source_test = _source(what, sources)
        holders = [party for party, contents in held.items() if name in contents]
        if isinstance(what, ImageRegion):
            assert isinstance(source.x, Tensor)
            block_inputs[name] = what
            whole[name] = what.transform(source.x)
            if source_test is not None:
                assert isinstance(source_test.x, Tensor)
                whole_test[name] = what.transform(source_test.x)
            continue
        table = source.x
        assert isinstance(table, Table)
        selected = table.select(what)
        encoder = (
            agree(
                {
                    party: summarise(
                        table.take(rows[party]),
                        selected,
                        categorical=[
                            each for each in table.select(categorical) if each in selected
                        ],
                        party=party,
                    )
                    for party in holders
                },
                max_categories=max_categories,
            )
            .of_a_block()
            .watching(table.take(np.unique(np.concatenate([rows[party] for party in holders]))))
        )
        block_inputs[name] = encoder
        whole[name] = encoder.transform(table, allow_unseen=True)
        if source_test is not None:
            assert isinstance(source_test.x, Table)
            whole_test[name] = encoder.transform(source_test.x, allow_unseen=True)

    parties = [
        PartyData(party, train.ids, {name: whole[name] for name in contents}, labels).take(
            torch.from_numpy(rows[party])
        )
        for party, contents in held.items()
    ]
    used = np.unique(np.concatenate(list(rows.values())))
    pooled = PartyData("pooled", train.ids, whole, labels).take(torch.from_numpy(used))
    test_federation, pooled_test = None, None
    if test is not None:
        test_labels = test.encoded_labels(task, unseen=True)
        test_federation = Federation(
            PartyData(party, test.ids, {name: whole_test[name] for name in contents}, test_labels)
            for party, contents in held.items()
        )
        pooled_test = PartyData("pooled", test.ids, whole_test, test_labels)
    return Blocks(
        Federation(parties),
        test_federation,
        task,
        MappingProxyType({}),
        train.label,
        tuple(named),
        MappingProxyType(block_inputs),
        tuple(name for name in named if all(name in contents for contents in held.values())),
        pooled,
        pooled_test,
    )


def _check_beside(one: Dataset, other: Dataset) -> None:
    if not np.array_equal(one.ids, other.ids):
        raise DataError(
            f"{one.name} and {other.name} must be about the same samples in the same order; "
            "their ids differ"
        )


def _named(
    blocks: BlockNames | Cut, sources: Sequence[Dataset]
) -> dict[str, Sequence[str] | ImageRegion]:
    """Block name -> globs or region, of what there is.

    Raises:
        ConfigError: no block, or two kinds of data of one kind.
        DataError: no such columns or images.
    """
    if len({isinstance(source.x, Table) for source in sources}) < len(sources):
        raise ConfigError("the data set beside must be a table beside images, or images beside it")
    images = next((source.x for source in sources if isinstance(source.x, Tensor)), None)
    table = next((source.x for source in sources if isinstance(source.x, Table)), None)
    if isinstance(blocks, str):
        if images is None:
            raise DataError(
                f"{sources[0].name} is a table, which has no {blocks}; name groups of columns"
            )
        _, channels, height, width = images.shape
        by_channel = blocks == "quadrants-channels"
        return dict(quadrants((channels, height, width), by_channel=by_channel))
    if not blocks:
        raise ConfigError("blocks must name one block or more")
    for name, what in blocks.items():
        if isinstance(what, ImageRegion):
            whole = (what.channels, what.height, what.width)
            if images is None or tuple(images.shape[1:]) != whole:
                raise DataError(f"block {name!r} is cut from images of {whole}; there are none")
        elif table is None:
            raise DataError(f"block {name!r} is a group of columns, but there is no table")
        elif not table.select(what):
            raise DataError(f"block {name!r} has no columns: {list(what)} leaves none")
    return dict(blocks)


def _source(
    what: Sequence[str] | ImageRegion, sources: Sequence[tuple[Dataset, Dataset | None]]
) -> tuple[Dataset, Dataset | None]:
    wants_table = not isinstance(what, ImageRegion)
    return next(pair for pair in sources if isinstance(pair[0].x, Table) == wants_table)


def _held_blocks(shares: Sequence[Share], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Party -> its blocks, in the order of all blocks."""
    parties = [share.party for share in shares]
    if not parties or len(set(parties)) < len(parties) or "" in parties:
        raise ConfigError(f"an assignment names each party once, got {parties}")
    held = {}
    for share in shares:
        chosen: set[str] = set()
        for token in share.blocks:
            matching = [name for name in names if name == token or fnmatchcase(name, token)]
            if not matching and re.fullmatch(r"\d+(-\d+)?", token):
                matching = [names[i - 1] for i in indices_of(token) if 1 <= i <= len(names)]
            if not matching:
                raise ConfigError(
                    f"party {share.party!r} is to have the block {token!r}; there are {names}"
                )
            chosen |= set(matching)
        if not chosen:
            raise ConfigError(f"party {share.party!r} has no block; give it one, or leave it out")
        held[share.party] = tuple(name for name in names if name in chosen)
    for name in names:
        if not any(name in contents for contents in held.values()):
            raise ConfigError(f"no party has the block {name!r}; assign it, or leave it out")
    return held


def _held_classes(shares: Sequence[Share], task: Classification) -> dict[str, list[int]]:
    """Party -> its class indices."""
    held = {}
    for share in shares:
        wrong = [number for number in share.classes if not 1 <= number <= task.num_outputs]
        if wrong or not share.classes:
            raise ConfigError(
                f"party {share.party!r} is to have the classes {list(share.classes)}; give places "
                f"from 1 to {task.num_outputs}"
            )
        if not 0 < share.rows <= 1:
            raise ConfigError(
                f"party {share.party!r}: rows must be a share in (0, 1], got {share.rows}"
            )
        held[share.party] = sorted({number - 1 for number in share.classes})
    for index, name in enumerate(task.classes):
        if not any(index in contents for contents in held.values()):
            raise ConfigError(
                f"no party has the class {name!r} (place {index + 1}); assign it, or leave its "
                "rows out"
            )
    return held


def _deal_rows(
    shares: Sequence[Share],
    classes: Mapping[str, Sequence[int]],
    labels_N: np.ndarray,
    *,
    disjoint: bool,
    seed: int,
) -> dict[str, np.ndarray]:
    """Party -> its training rows, rising."""
    dealt: dict[str, list[np.ndarray]] = {share.party: [] for share in shares}
    for index in sorted({each for contents in classes.values() for each in contents}):
        rng = np.random.default_rng([seed, index])
        rows = rng.permutation((labels_N == index).nonzero()[0])
        holders = [share for share in shares if index in classes[share.party]]
        if disjoint:
            parts = np.cumsum([share.rows for share in holders])
            bounds = np.round(parts / max(parts[-1], 1) * len(rows)).astype(int)
            start = 0
            for share, stop in zip(holders, bounds, strict=True):
                dealt[share.party].append(rows[start:stop])
                start = stop
        else:
            for share in holders:
                order = rows if share.rows == 1 else rng.permutation(rows)
                dealt[share.party].append(order[: round(share.rows * len(rows))])
    for party, parts_of_party in dealt.items():
        if not sum(map(len, parts_of_party)):
            raise DataError(
                f"party {party!r} has no sample: its classes have too few rows; give it more "
                "classes, or a larger share"
            )
    return {party: np.sort(np.concatenate(contents)) for party, contents in dealt.items()}
