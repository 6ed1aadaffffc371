"""Picture of parties' blocks against groups of samples.

Samples that the same parties hold, and the same parties have labelled, form a group. A picture has
one row per block (and one for a party's labels) and one band per group, as wide as its share of
all samples. ``api/picture.py`` draws it in a terminal, ``report/page.py`` for a browser.

Letters: S samples, G groups, P parties.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dovetail import data as dd
from dovetail.data.task import Classification
from dovetail.data.wording import count_text, name_list, share_text
from dovetail.errors import DataError

# --- What is drawn -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """Part of the picture that one party brings.

    Attributes:
        data: its rows.
        columns: block -> the names of its columns; for images, one line that describes the block.
            Columns of one name are the same column at every party; image blocks are the same
            where block and description are, so a description has to separate two strips.
        classes: the label's classes, by index; () where only indices are known.
        read: column -> what becomes of it, where that is known.
    """

    data: dd.PartyData
    columns: Mapping[str, tuple[str, ...]]
    classes: tuple[str | int, ...] = ()
    read: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.data.name

    def columns_of(self, block: str) -> tuple[str, ...]:
        """Names of a block's columns at every party that has them."""
        names = self.columns.get(block, ("all",))
        if self.data.blocks[block].ndim > 2 or block not in self.columns:
            return tuple(f"{block}: {name}" for name in names)
        return names

    def all_columns(self) -> frozenset[str]:
        """The columns of all its blocks."""
        return frozenset(name for block in self.data.blocks for name in self.columns_of(block))

    def width(self, columns: Collection[str]) -> int:
        """About how many numbers a row has for these columns: a category has several."""
        width = 0.0
        for block, x in self.data.blocks.items():
            names = self.columns_of(block)
            share = sum(name in columns for name in names) / max(1, len(names))
            width += share * math.prod(x.shape[1:])
        return math.ceil(width)

    def label_names(self) -> tuple[str, ...] | None:
        """The classes that its labelled rows have; None where labels are numbers."""
        labels = self.data.labels
        assert labels is not None
        if labels.is_floating_point():
            return None
        present = labels[self.data.labelled_rows()].unique().tolist()
        named = self.classes
        return tuple(str(named[index]) if index < len(named) else str(index) for index in present)


def from_partition(partitioned: dd.Partitioned) -> list[Part]:
    """The training rows of a simulation, party by party."""
    if isinstance(partitioned, dd.CommonUnique):
        partitioned = partitioned.encoded()
    task = partitioned.task
    classes = task.classes if isinstance(task, Classification) else ()
    parts = []
    for name, data in partitioned.train.parties.items():
        if isinstance(partitioned, dd.Blocks):
            inputs = {block: partitioned.block_inputs[block] for block in data.blocks}
        else:  # a label owner without columns has no inputs
            inputs = {block: partitioned.inputs[name] for block in data.blocks}
        columns = {block: _columns(encoder) for block, encoder in inputs.items()}
        parts.append(Part(data, columns, classes if data.labels is not None else ()))
    return parts


def _columns(encoder: dd.Input) -> tuple[str, ...]:
    """A block's columns, or one line that describes its part of an image."""
    if not isinstance(encoder, dd.ImageInput):
        return encoder.columns
    shape = " × ".join(str(size) for size in encoder.shape)
    return (f"{shape}, {encoder.axis} {encoder.start} to {encoder.stop}",)


@dataclass(frozen=True, eq=False)
class Groups:
    """Samples by who holds and who labelled them; like holders stand together.

    Attributes:
        parties: their names.
        counts_G: samples in each group.
        held_GP: True where a party holds the group's samples.
        labelled_GP: True where it has their labels.
    """

    parties: tuple[str, ...]
    counts_G: np.ndarray
    held_GP: np.ndarray
    labelled_GP: np.ndarray

    @property
    def num_samples(self) -> int:
        return int(self.counts_G.sum())

    def shared(self) -> np.ndarray:
        """(P, P) samples that two parties share; on the diagonal, those that one holds."""
        held = self.held_GP.astype(np.int64)
        shared_PP: np.ndarray = (held * self.counts_G[:, None]).T @ held
        return shared_PP

    def common(self) -> int:
        """Samples that every party holds."""
        return int(self.counts_G[self.held_GP.all(axis=1)].sum())


#: Parties whose two bits share one integer while samples are grouped.
_AT_ONCE = 15


def group(parts: Sequence[Part]) -> Groups:
    """The groups of all samples; one sort of all ids and one per 15 parties.

    Compares ids in the clear: for tables that one process may read.

    Raises:
        DataError: no party, or two of one name.
    """
    if not parts:
        raise DataError("there is no party to draw; name at least one")
    federation = dd.Federation(part.data for part in parts)
    parties = tuple(federation.parties)
    ids = np.concatenate([federation[name].ids for name in parties])
    samples, index = np.unique(ids, return_inverse=True)
    ends = np.cumsum([part.data.num_rows for part in parts])
    samples_of = np.split(index, ends[:-1])

    code_S = np.zeros(len(samples), dtype=np.int64)  # which group, refined batch by batch
    bits: list[np.ndarray] = []
    for start in range(0, len(parts), _AT_ONCE):
        bits_S = np.zeros(len(samples), dtype=np.int64)
        for slot, part in enumerate(parts[start : start + _AT_ONCE]):
            group_samples = samples_of[start + slot]
            bits_S[group_samples] |= 1 << 2 * slot
            bits_S[group_samples[part.data.labelled_rows().numpy()]] |= 2 << 2 * slot
        bits.append(bits_S)
        code_S = np.unique(code_S << 2 * _AT_ONCE | bits_S, return_inverse=True)[1]
    _, first, counts = np.unique(code_S, return_index=True, return_counts=True)
    held, labelled = (
        np.stack(
            [bits[p // _AT_ONCE][first] >> 2 * (p % _AT_ONCE) + bit & 1 for p in range(len(parts))],
            axis=1,
        ).astype(bool)
        for bit in (0, 1)
    )
    order = _in_order(held, labelled)
    return Groups(parties, counts[order], held[order], labelled[order])


def _in_order(held_GP: np.ndarray, labelled_GP: np.ndarray) -> np.ndarray:
    """(G,) an order in which neighbours differ little: by Gray code of holders, then by labels.

    bank, bank + shop, shop: so each party's samples are as few pieces as its place allows.
    """
    rank_GP = np.bitwise_xor.accumulate(held_GP, axis=1)
    keys = np.concatenate([~rank_GP, ~labelled_GP], axis=1)
    return np.lexsort(keys.T[::-1])


@dataclass(frozen=True, eq=False)
class Band:
    """A group as it is drawn, or all the small ones together.

    Attributes:
        letter: what the picture calls it.
        count: its samples.
        combinations: how many groups it stands for.
        held_P, labelled_P: the share of its samples, in 0..1, that each party holds or labelled.
    """

    letter: str
    count: int
    combinations: int
    held_P: np.ndarray
    labelled_P: np.ndarray


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

#: More groups than this are drawn as the largest and one band for the rest.
MAX_BANDS = 48


def bands(groups: Groups, at_most: int = MAX_BANDS) -> list[Band]:
    """The groups in order; if they are too many, the smallest as one band at the end."""
    at_most = min(max(2, at_most), len(_LETTERS))
    num_groups = len(groups.counts_G)
    kept = np.arange(num_groups)
    if num_groups > at_most:
        kept = np.sort(np.argsort(-groups.counts_G, kind="stable")[: at_most - 1])
    drawn = [
        Band(
            _LETTERS[index],
            int(groups.counts_G[g]),
            1,
            groups.held_GP[g].astype(float),
            groups.labelled_GP[g].astype(float),
        )
        for index, g in enumerate(kept)
    ]
    rest = np.setdiff1d(np.arange(num_groups), kept)
    if len(rest):
        counts = groups.counts_G[rest]
        held, labelled = (
            counts @ mask[rest] / counts.sum() for mask in (groups.held_GP, groups.labelled_GP)
        )
        drawn.append(Band("+", int(counts.sum()), len(rest), held, labelled))
    return drawn


def widths(counts: Sequence[int], total: int, minimum: int = 1) -> list[int]:
    """Widths that add up to ``total``, in proportion to counts but none below ``minimum``.

    >>> widths([980, 19, 1], 60)
    [58, 1, 1]
    """
    if not counts:
        return []
    if minimum * len(counts) > total:
        raise ValueError(f"{len(counts)} widths of at least {minimum} do not fit into {total}")
    small: set[int] = set()
    while True:  # those below the minimum get it, the others share what is left
        room = total - minimum * len(small)
        of = sum(count for index, count in enumerate(counts) if index not in small)
        exact = [
            float(minimum) if index in small else room * count / of
            for index, count in enumerate(counts)
        ]
        too_narrow = {index for index, width in enumerate(exact) if width < minimum}
        if not too_narrow:
            break
        small |= too_narrow
    whole = [int(width) for width in exact]
    by_remainder = sorted(range(len(counts)), key=lambda index: whole[index] - exact[index])
    for index in by_remainder[: total - sum(whole)]:
        whole[index] += 1
    return whole


@dataclass(frozen=True)
class Row:
    """Row of the picture."""

    party: int
    kind: Literal["block", "labels", "ids"]
    what: str

    def share(self, band: Band) -> float:
        return float((band.labelled_P if self.kind == "labels" else band.held_P)[self.party])


def rows_of(parts: Sequence[Part]) -> Iterator[Row]:
    for index, part in enumerate(parts):
        if part.data.labels is not None:
            yield Row(index, "labels", "labels")
        for block in part.data.blocks:
            yield Row(index, "block", f"{block} {block_size(part, block)}")
        if part.data.labels is None and not part.data.blocks:
            yield Row(index, "ids", "ids only")


def block_size(part: Part, block: str) -> str:
    """How much a block has: "(12)" columns, or "(1×14×28)" pixels."""
    x = part.data.blocks[block]
    if x.ndim > 2:
        return f"({'×'.join(str(size) for size in x.shape[1:])})"
    return f"({len(part.columns.get(block, ())) or math.prod(x.shape[1:])})"


def blocks_text(part: Part) -> str:
    """A party's blocks and how large they are."""
    sizes = [f"{block} {block_size(part, block)}" for block in part.data.blocks]
    return ", ".join(sizes) if len(sizes) <= 6 else name_list(sizes, 6)


def classes_text(part: Part, at_most: int = 4) -> str:
    """Which classes a party's labels have, in a few words; "" for a party without labels."""
    if part.data.labels is None:
        return ""
    names = part.label_names()
    if names is None:
        return "numbers"
    if len(names) > at_most + 1:
        return f"{', '.join(names[:at_most])}, … ({len(names)} classes)"
    return ", ".join(names)


@dataclass(frozen=True, eq=False)
class Overlaps:
    """How many samples parties share.

    Attributes:
        centre: the party that others are compared with: the one with labels; the first of
            several; the first party where none has.
        rows: party -> its rows.
        shared: party -> samples that it shares with the centre; only what was counted.
        common: samples at every party; None where that was not counted.
        groups: all combinations; None where ids were not compared in the clear.
        withheld: party -> why it was not counted: "refused".
        least: smaller numbers of shared samples are not shown; 0 shows all.
    """

    centre: str
    rows: Mapping[str, int]
    shared: Mapping[str, int]
    common: int | None
    groups: Groups | None
    withheld: Mapping[str, str] = field(default_factory=dict)
    least: int = 0

    def shown(self, party: str) -> str:
        """How many samples a party shares, as a page may say it."""
        if party in self.withheld:
            return self.withheld[party]
        return shown(self.shared[party], least=self.least)

    def share_shown(self, party: str) -> str:
        """A count as a share of the centre's rows; "" if the number is not shown."""
        count = self.shared.get(party)
        if count is None or party in self.withheld or hides(count, self.least):
            return ""
        return share_text(count, max(1, self.rows[self.centre]))

    def unlabelled(self) -> int | None:
        """The centre's samples that it shares with anybody and has no label of."""
        groups = self.groups
        if groups is None:
            return None
        index = groups.parties.index(self.centre)
        others = np.delete(groups.held_GP, index, axis=1).any(axis=1)
        chosen = groups.held_GP[:, index] & ~groups.labelled_GP[:, index] & others
        return int(groups.counts_G[chosen].sum())


def hides(count: int, least: int) -> bool:
    """Whether a number is too small to be shown; none is no small number.

    >>> hides(3, 10), hides(0, 10), hides(10, 10), hides(3, 0)
    (True, False, False, False)
    """
    return 0 < count < least


def shown(count: int, *, least: int = 0) -> str:
    """A number as a page may say it: one that is hidden is distinguished from none.

    >>> shown(2500), shown(0), shown(3, least=10)
    ('2,500', 'none', 'fewer than 10 (hidden)')
    """
    if hides(count, least):
        return f"fewer than {least:,} (hidden)"
    return f"{count:,}" if count else "none"


def summary(parts: Sequence[Part], overlaps: Overlaps) -> str:
    """How many samples, parties and columns there are, in one line."""
    num_columns = len(frozenset().union(*(part.all_columns() for part in parts)))
    words = [count_text(len(parts), "party", "parties"), count_text(num_columns, "column")]
    if overlaps.groups is None:
        return ", ".join(words) + "; samples were counted without comparing ids in the clear"
    num_groups = len(overlaps.groups.counts_G)
    words.insert(0, count_text(overlaps.groups.num_samples, "sample"))
    return ", ".join(words) + f"; {count_text(num_groups, 'group')} of samples by who holds them"


def wholly(shares_P: np.ndarray, parties: Sequence[str]) -> list[str]:
    """The parties whose share of a band is all of it."""
    return [name for name, share in zip(parties, shares_P, strict=True) if share == 1]


def holders(band: Band, parties: Sequence[str]) -> tuple[str, str]:
    """Parties that hold a band, and parties that labelled it."""
    if band.combinations > 1:
        return count_text(band.combinations, "smaller group"), ""
    held, labelled = wholly(band.held_P, parties), wholly(band.labelled_P, parties)
    return _all_or(held, parties), _all_or(labelled, parties)


def _all_or(names: Sequence[str], parties: Sequence[str]) -> str:
    if len(names) == len(parties) > 2:
        return f"all {len(parties)}"
    return ", ".join(names) if len(names) <= 4 else name_list(names)
