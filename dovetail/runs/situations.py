"""Which methods fit a federation, and why; and what they would send.

    method       labels at            samples                         columns
    APFed        exactly one party    others share some with it       others have some it lacks
    FedOptimus   any parties          column owners have some of      at parties without labels;
                                      each label owner's              label owners' are ignored
    CHFL         every party          different at each               some at all, the rest at one
    HyFEM        every party          any                             some at several parties

They stand from the most to the least specific situation: what fits CHFL fits HyFEM as well, and
CHFL then says more about it, so the first that applies is the one to start with. APFed,
FedOptimus and the other two exclude each other by who has labels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np

from dovetail.data import spelled_alike
from dovetail.errors import DataError
from dovetail.methods.limits import MAX_LABELLED
from dovetail.privacy import encrypted
from dovetail.runs.coverage import Groups, Overlaps, Part, group, hides, shown
from dovetail.runs.wording import count_text, name_list, share_text

Method = Literal["apfed", "fedoptimus", "chfl", "hyfem"]

#: What people call each method.
TITLES: Mapping[Method, str] = {
    "apfed": "APFed",
    "fedoptimus": "FedOptimus",
    "chfl": "CHFL",
    "hyfem": "HyFEM",
}

#: Parties hold different samples if each pair shares at most this much of the smaller.
_NEARLY_DISJOINT = 0.05

#: Label owners' own columns are few if they are at most this much of the column owners'.
_FEW_COLUMNS = 0.1

#: What CHFL and HyFEM are where all parties hold the same columns.
_SAME = "all hold the same columns, so it is plain federated averaging"

#: Widths of a column of CHFL, and of an extractor of HyFEM.
_COLUMN = (512, 256, 128)

#: Hidden width of a head, of FedOptimus' top model and of HyFEM's classifier.
_HEAD, _CLASSIFIER = 64, 128

#: Shared rows without label that APFed-S asks about at most, by default.
_ASKED = 8000

_FLOAT, _PLACE = 4, 8  # bytes of a float32 value, and of a sample's place in the shared order


@dataclass(frozen=True)
class Sizes:
    """Which batches and codes the messages are told for.

    Attributes:
        batch_size: rows of a minibatch.
        code_width: numbers of a row's code.
        projected: party -> numbers of a row's code, where it is sent projected ones.
        sealed: whether APFed is APFed-S, one encrypted question a run.
    """

    batch_size: int = 64
    code_width: int = 32
    projected: Mapping[str, int] = field(default_factory=dict)
    sealed: bool = True

    def sent_to(self, party: str) -> int:
        """Numbers of a code that this party is sent."""
        return self.projected.get(party, self.code_width)


@dataclass(frozen=True)
class MessageSize:
    """What one party exchanges with another, in bytes of tensors; headers add a few hundred.

    Attributes:
        party, partner: who with whom; "coordinator" runs methods that no party drives.
        per: how often: at each minibatch, each round, or once a run.
        sent_bytes, received_bytes: as ``party`` sees it.
        assuming: of which sizes of batch and networks.
    """

    party: str
    partner: str
    per: Literal["step", "round", "run"]
    sent_bytes: int
    received_bytes: int
    assuming: str


@dataclass(frozen=True)
class Fit:
    """Whether a method fits.

    Attributes:
        method: its name in a run file.
        applies: whether the data allow it.
        reason: a sentence that begins with "yes: ", "no: " or "unknown: ".
        next_command: what to run, with RUN for the run file; "" where the method does not apply.
        messages: what it would send, where it applies.
        blocks: party -> block -> its columns, which are to be named at the parties first.
        departs: whether the paper's own setting is another, as the reason says.
    """

    method: Method
    applies: bool
    reason: str
    next_command: str = ""
    messages: tuple[MessageSize, ...] = ()
    blocks: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    departs: bool = False

    @property
    def title(self) -> str:
        return TITLES[self.method]

    @property
    def available(self) -> bool:
        """Whether ``next_command`` is one that can be run."""
        return self.next_command.startswith(("dovetail ", "dovetail."))


def centre(parts: Sequence[Part]) -> str:
    """The party that others are compared with; see ``Overlaps``."""
    return next((part.name for part in parts if len(part.data.labelled_rows())), parts[0].name)


def overlaps(
    parts: Sequence[Part],
    *,
    by_cardinality: Mapping[str, int] | None = None,
    withheld: Mapping[str, str] | None = None,
    least: int = 0,
) -> Overlaps:
    """Samples that each party shares with the centre, and that all share.

    Args:
        parts: the parties.
        by_cardinality: party -> samples that it shares with the centre, as private set
            intersection counted them. Ids are then not compared here.
        withheld: party -> why there is no such number of it.
        least: smaller numbers are not shown, nor a picture that would tell them.

    Raises:
        DataError: parties that cannot be compared, or counts of parties that are not there.
    """
    if not parts:
        raise DataError("there is no party to compare; name at least one")
    rows = {part.name: part.data.num_rows for part in parts}
    middle = centre(parts)
    others = [name for name in rows if name != middle]
    if by_cardinality is not None:
        unknown = by_cardinality.keys() - set(others)
        if unknown:
            raise DataError(
                f"overlaps are counted between {middle!r} and each of {others}; "
                f"got one for {min(unknown)!r}"
            )
        common = by_cardinality.get(others[0]) if len(others) == 1 else None
        return Overlaps(middle, rows, dict(by_cardinality), common, None, withheld or {}, least)
    groups = group(parts)
    index = {name: p for p, name in enumerate(groups.parties)}
    shared_PP = groups.shared()
    shared = {name: int(shared_PP[index[middle], index[name]]) for name in others}
    return Overlaps(middle, rows, shared, groups.common(), groups, withheld or {}, least)


def fits(
    parts: Sequence[Part],
    *,
    counted: Overlaps | None = None,
    sizes: Sizes | None = None,
) -> list[Fit]:
    """Whether each method fits these parties, the most specific first.

    Args:
        parts: the parties.
        counted: what ``overlaps(parts)`` gave, so that samples are compared once.
        sizes: of batches and codes; None assumes ``Sizes()``.

    Raises:
        DataError: parties that cannot be compared.
    """
    situation = _Situation(parts, counted or overlaps(parts), sizes or Sizes())
    return [_apfed(situation), _fedoptimus(situation), _chfl(situation), _hyfem(situation)]


def recommended(fits: Sequence[Fit]) -> Fit | None:
    """The most specific method that applies, its paper's own setting first; or None."""
    return min((fit for fit in fits if fit.applies), key=lambda fit: fit.departs, default=None)


def _samples(overlaps: Overlaps, count: int) -> str:
    """A number of samples, unless it is too small to be shown."""
    if hides(count, overlaps.least):
        return f"{shown(count, least=overlaps.least)} samples"
    return count_text(count, "sample")


# --- What the methods ask about ----------------------------------------------------------------


class _Situation:
    """The parties, and the answers that more than one method needs."""

    def __init__(self, parts: Sequence[Part], overlaps: Overlaps, sizes: Sizes) -> None:
        self.parts = {part.name: part for part in parts}
        self.overlaps = overlaps
        self.sizes = sizes
        self.names = list(self.parts)
        self.labelled = {part.name: len(part.data.labelled_rows()) for part in parts}
        self.owners = [name for name in self.names if self.labelled[name]]
        self.without = [name for name in self.names if not self.labelled[name]]
        self.columns = {part.name: part.all_columns() for part in parts}
        self.classes = {name: self.parts[name].label_names() for name in self.owners}
        groups = overlaps.groups
        self._shared_PP = None if groups is None else groups.shared()
        holders: dict[str, list[str]] = {}
        for name in self.names:
            for column in self.columns[name]:
                holders.setdefault(column, []).append(name)
        #: parties -> the columns that exactly these parties hold
        self.blocks: dict[tuple[str, ...], set[str]] = {}
        for column in sorted(holders):
            self.blocks.setdefault(tuple(holders[column]), set()).add(column)

    @property
    def num_outputs(self) -> int:
        """One per class that any party labels, or that it says there are; one for a number."""
        present: set[str] = set()
        declared = 0
        for name, classes in self.classes.items():
            present |= set(classes or ())
            declared = max(declared, len(self.parts[name].classes))
        return max(1, len(present), declared)

    def shared(self, one: str, other: str) -> int | None:
        """Samples of both parties; None where that was not counted."""
        if self._shared_PP is not None:
            assert self.overlaps.groups is not None
            index = self.overlaps.groups.parties.index
            return int(self._shared_PP[index(one), index(other)])
        centre = self.overlaps.centre
        if centre not in (one, other):
            return None
        return self.overlaps.shared.get(other if one == centre else one)

    def width(self, columns: Collection[str]) -> int:
        """Numbers a row has for these columns, at the party where they are most."""
        return max(part.width(columns) for part in self.parts.values())

    def declared(self, owner: str) -> tuple[str, ...] | None:
        """The classes a party says there are, else those of its rows; None for numbers."""
        present = self.classes[owner]
        if present is None:
            return None
        return tuple(str(name) for name in self.parts[owner].classes) or present

    def step(self, owner: str, helper: str, code_width: int, assuming: str) -> MessageSize:
        """A step's codes with the samples they are of, and the gradients that come back."""
        code_bytes = self.sizes.batch_size * code_width * _FLOAT
        sent_bytes = code_bytes + self.sizes.batch_size * _PLACE
        return MessageSize(owner, helper, "step", sent_bytes, code_bytes, assuming)

    def question(self, owner: str, helper: str) -> MessageSize:
        """The one question of APFed-S and its answer, of one number a row and class."""
        rows = self.shared(owner, helper)
        rows = self.overlaps.rows[owner] if rows is None else rows
        labelled = max(2, min(self.labelled[owner], rows, MAX_LABELLED))
        asked = min(rows, labelled + _ASKED)
        columns = max(1, self.num_outputs - 1)
        layout = encrypted.Layout.best(labelled, columns, asked)
        sent = layout.num_targets * encrypted.TARGET_WIRE + encrypted.KEY_WIRE + 2 * labelled * 8
        return MessageSize(
            owner,
            helper,
            "run",
            sent + asked * _PLACE,
            layout.num_answers(asked) * encrypted.ANSWER_WIRE,
            "APFed-S: one encrypted question a run, one number a row"
            + (f" and class but the last, {columns}" if columns > 1 else ""),
        )

    def mixed_labels(self) -> str | None:
        """What is wrong if some parties label classes and others numbers."""
        numbers = [name for name, classes in self.classes.items() if classes is None]
        if numbers and len(numbers) < len(self.owners):
            named = [name for name in self.owners if name not in numbers]
            return (
                f"labels are numbers at {name_list(numbers)} and classes at {name_list(named)}; "
                "they must say the same thing"
            )
        return None


def _no(method: Method, *wrong: str) -> Fit:
    return Fit(method, False, "no: " + "; ".join(wrong))


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _range(counts: Sequence[int], one: str) -> str:
    """Counts as "12 columns" or "4 to 6 columns"."""
    low, high = min(counts), max(counts)
    return count_text(high, one) if low == high else f"{low:,} to {count_text(high, one)}"


# --- The four ----------------------------------------------------------------------------------


def _apfed(situation: _Situation) -> Fit:
    """One party has labels; the others help it with columns of samples they share."""
    owners = situation.owners
    if not owners:
        return _no("apfed", "no party has labels; APFed needs exactly one that has")
    if len(owners) > 1:
        return _no(
            "apfed",
            f"{count_text(len(owners), 'party', 'parties')} have labels ({name_list(owners)}); "
            "APFed needs exactly one (to train for one of them, leave the others' labels out)",
        )
    (owner,) = owners
    helpers = situation.without
    if not helpers:
        return _no(
            "apfed", f"{owner} is the only party; APFed needs another with more columns of its rows"
        )
    wrong = []
    if not situation.columns[owner]:
        wrong.append(f"{owner} has labels but no columns to predict from")
    shared = {name: situation.shared(owner, name) for name in helpers}
    added = {name: len(situation.columns[name] - situation.columns[owner]) for name in helpers}
    apart = [name for name in helpers if shared[name] == 0]
    idle = [name for name in helpers if not added[name]]
    if apart:
        verb = "shares" if len(apart) == 1 else "share"
        wrong.append(f"{name_list(apart)} {verb} no sample with {owner} (check the id column)")
    if idle:
        verb = "holds" if len(idle) == 1 else "hold"
        wrong.append(f"{name_list(idle)} {verb} no column that {owner} lacks")
    if wrong:
        if 0 < len({*apart, *idle}) < len(helpers) and situation.columns[owner]:
            wrong.append(
                "without them it would fit"
                if len({*apart, *idle}) > 1
                else f"without {[*apart, *idle][0]} it would fit"
            )
        return _no("apfed", *wrong)
    uncounted = [name for name in helpers if shared[name] is None]
    if uncounted:
        return Fit(
            "apfed",
            False,
            f"unknown: the samples that {name_list(uncounted)} and {owner} share were not counted",
        )
    if len(helpers) <= 3:
        help_ = "; ".join(
            f"{name} shares {_samples(situation.overlaps, shared[name] or 0)} with it and adds "
            f"{count_text(added[name], 'column')}"
            for name in helpers
        )
    else:
        counts = _range([count or 0 for count in shared.values()], "sample")
        help_ = (
            f"each of {len(helpers)} others shares {counts} with it and adds "
            f"{_range(list(added.values()), 'column')}"
        )
    rows = situation.overlaps.rows[owner]
    yes = (
        f"yes: only {owner} has labels ({situation.labelled[owner]:,} of "
        f"{count_text(rows, 'row')}); {help_}"
    )
    command = "dovetail train RUN --set method=apfed-s"
    if situation.sizes.sealed:
        questions = tuple(situation.question(owner, name) for name in helpers)
        return Fit("apfed", True, yes, command, questions)
    batch_size, code_widths = (
        situation.sizes.batch_size,
        [situation.sizes.sent_to(n) for n in helpers],
    )
    steps = math.ceil(situation.labelled[owner] / batch_size)
    assuming = (
        f"batches of {batch_size} rows, codes of "
        f"{' or '.join(f'{width:,}' for width in sorted(set(code_widths)))} float32 values, "
        f"{count_text(steps, 'step')} an epoch"
    )
    return Fit(
        "apfed",
        True,
        yes,
        command,
        tuple(
            situation.step(owner, name, width, assuming)
            for name, width in zip(helpers, code_widths, strict=True)
        ),
    )


def _fedoptimus(situation: _Situation) -> Fit:
    """Labels in shards at several parties, columns at several others who have no labels."""
    owners = situation.owners
    data_owners = [name for name in situation.without if situation.columns[name]]
    wrong = []
    if not owners:
        wrong.append("no party has labels; FedOptimus needs one that has, or several")
    if not data_owners:
        have = "every party has labels"
        if situation.without:
            verb = _has(situation.without)
            have = f"{name_list(situation.without)} {verb} neither labels nor columns"
        wrong.append(f"{have}; FedOptimus needs a party with columns and no labels, or several")
    if mixed := situation.mixed_labels():
        wrong.append(mixed)
    if wrong:
        return _no("fedoptimus", *wrong)
    held = frozenset().union(*(situation.columns[name] for name in data_owners))
    num_columns = {name: len(situation.columns[name]) for name in owners}
    rich = [
        f"{name} {count}" for name, count in num_columns.items() if count > _FEW_COLUMNS * len(held)
    ]
    groups = situation.overlaps.groups
    if groups is None:
        return Fit(
            "fedoptimus",
            False,
            "unknown: all column owners must hold some labelled samples of each party with labels; "
            "counts of overlaps alone do not show that",
        )
    wrong, notes = _shards(groups, owners, data_owners)
    if wrong:
        return _no("fedoptimus", *wrong)
    batch_size, code_width = situation.sizes.batch_size, situation.sizes.code_width
    top = _parameters(code_width, (_HEAD,), situation.num_outputs) * _FLOAT
    assuming = (
        f"batches of {batch_size} rows, codes of {code_width} float32 values, a top "
        f"model of {code_width}-{_HEAD}-{situation.num_outputs}, every column owner asked"
    )
    codes = batch_size * code_width * _FLOAT
    index_bytes = batch_size * _PLACE
    # A column owner's codes are of every label owner's batch; a label owner has their mean.
    sizes = [
        *(
            MessageSize(
                name,
                "coordinator",
                "step",
                len(owners) * codes,
                len(owners) * (codes + index_bytes),
                assuming,
            )
            for name in data_owners
        ),
        *(
            MessageSize(owner, "coordinator", "step", codes + index_bytes, codes, assuming)
            for owner in owners
        ),
        *(MessageSize(owner, "coordinator", "round", top, top, assuming) for owner in owners),
    ]
    unused = f" ({count_text(sum(num_columns.values()), 'column')} there would be ignored)"
    if rich:
        unused = f" (it would ignore the columns that they have themselves: {name_list(rich)})"
    whose = (
        f"{count_text(len(owners), 'party', 'parties')} ({name_list(owners)}) have labels"
        if len(owners) > 1
        else f"only {owners[0]} has labels, as in classic vertical learning"
    )
    return Fit(
        "fedoptimus",
        True,
        f"yes: {whose}, {sum(situation.labelled[name] for name in owners):,} in all"
        f"{unused if any(num_columns.values()) else ''}; {len(data_owners)} "
        f"{'other' if len(data_owners) == 1 else 'others'} ({name_list(data_owners)}) "
        f"{'holds' if len(data_owners) == 1 else 'hold'} {count_text(len(held), 'column')} {notes}",
        "dovetail train RUN --set method=fedoptimus",
        tuple(sizes),
    )


def _shards(
    groups: Groups, owners: Sequence[str], data_owners: Sequence[str]
) -> tuple[list[str], str]:
    """What keeps label owners from training with all data owners; and what of their samples."""
    index = {name: p for p, name in enumerate(groups.parties)}
    counts_G, labelled_GP = groups.counts_G, groups.labelled_GP
    everywhere_G = groups.held_GP[:, [index[name] for name in data_owners]].all(axis=1)
    wrong = [
        f"no labelled sample of {owner} is at all of {name_list(data_owners)}; leave out who has "
        "the fewest"
        for owner in owners
        if not counts_G[labelled_GP[:, index[owner]] & everywhere_G].sum()
    ]
    labelled_G = labelled_GP.sum(axis=1)
    twice = int(counts_G[labelled_G > 1].sum())
    num_labelled = int(counts_G[labelled_G > 0].sum())
    shared = int(counts_G[(labelled_G > 0) & everywhere_G].sum())
    notes = f"for {'every one' if shared == num_labelled else f'{shared:,}'} of these"
    if shared < num_labelled:
        lacking = [
            f"{name} lacks {lacks:,}"
            for name in data_owners
            if (lacks := int(counts_G[(labelled_G > 0) & ~groups.held_GP[:, index[name]]].sum()))
        ]
        notes += f", and it trains on those ({name_list(lacking)})"
    if twice:
        times = "is labelled twice, and counts" if twice == 1 else "are labelled twice, and count"
        notes += f"; {count_text(twice, 'sample')} {times} at each"
    return wrong, notes


def _everyone_labels(situation: _Situation, method: Method) -> list[str]:
    """What keeps a method from working in which every party trains on its own labels."""
    title = TITLES[method]
    if len(situation.names) < 2:
        return [f"{situation.names[0]} is the only party; {title} needs two or more"]
    if not situation.owners:
        return [f"no party has labels; {title} needs them at every party"]
    wrong = []
    if situation.without:
        verb = _has(situation.without)
        wrong.append(
            f"{name_list(situation.without)} {verb} no labels; {title} needs them at every party"
        )
    bare = [name for name in situation.names if not situation.columns[name]]
    if bare:
        wrong.append(f"{name_list(bare)} {_has(bare)} no columns")
    if mixed := situation.mixed_labels():
        wrong.append(mixed)
    return wrong


def _chfl(situation: _Situation) -> Fit:
    """Parties of one kind: different samples, common columns, and columns that one alone has."""
    wrong = _everyone_labels(situation, "chfl")
    if wrong:
        return _no("chfl", *wrong)
    everyone = tuple(situation.names)
    common = situation.blocks.get(everyone, set())
    num_private = {name: len(situation.blocks.get((name,), ())) for name in situation.names}
    partly = {
        column
        for holders, columns in situation.blocks.items()
        if 1 < len(holders) < len(everyone)
        for column in columns
    }
    if not common:
        wrong.append("no column is at every party")
    kinds = {name: frozenset(situation.declared(name) or ()) for name in situation.names}
    if len(set(kinds.values())) > 1:
        first, other = next(
            (a, b) for a, b in combinations(situation.names, 2) if kinds[a] != kinds[b]
        )
        wrong.append(
            f"classes differ ({_classes(situation, first)} at {first}, "
            f"{_classes(situation, other)} at "
            f"{other}); CHFL needs one set of classes"
        )
        wrong += spelled_alike({name: situation.declared(name) or () for name in (first, other)})
    uncounted, overlap = 0, ""
    for one, other in combinations(situation.names, 2):
        shared = situation.shared(one, other)
        smaller = min(situation.overlaps.rows[one], situation.overlaps.rows[other])
        if shared is None:
            uncounted += 1
        elif shared > _NEARLY_DISJOINT * smaller and not overlap:
            overlap = (
                f"; {one} and {other} share {count_text(shared, 'sample')} "
                f"({share_text(shared, smaller)} of the smaller), which count at each"
            )
    if wrong:
        return _no("chfl", *wrong)
    private = {
        name: len(situation.columns[name] - common) if partly else num_private[name]
        for name in situation.names
    }
    local_counts = _range(list(private.values()), "column")
    aside = "" if partly or any(num_private.values()) else f"; {_SAME}"
    if partly:
        verb = "is" if len(partly) == 1 else "are"
        aside = (
            f"; {count_text(len(partly), 'column')} ({name_list(sorted(partly))}) {verb} at some "
            "parties but not at every one, and each learns from these alone"
        )
    size = _parameters(situation.width(common), _COLUMN, situation.num_outputs) * _FLOAT
    assuming = (
        f"a common network of {situation.width(common)}-{'-'.join(map(str, _COLUMN))}-"
        f"{situation.num_outputs} in float32"
    )
    clause = ", as far as overlaps were counted" if uncounted else ""
    return Fit(
        "chfl",
        True,
        f"yes: every party has labels{'' if overlap else ', on different samples'}{clause}; "
        f"{count_text(len(common), 'column')} {'is' if len(common) == 1 else 'are'} at all "
        f"{len(everyone)} parties, and each has {local_counts} of its own{aside}{overlap}",
        "dovetail train RUN --set method=chfl",
        tuple(
            MessageSize(name, "coordinator", "round", size, size, assuming)
            for name in situation.names
        ),
        departs=bool(overlap),
    )


def _classes(situation: _Situation, name: str) -> str:
    return name_list(situation.declared(name) or (), 4)


def _hyfem(situation: _Situation) -> Fit:
    """Every party has labels; some columns are at several parties, whichever samples they have."""
    wrong = _everyone_labels(situation, "hyfem")
    if wrong:
        return _no("hyfem", *wrong)
    several = {holders: names for holders, names in situation.blocks.items() if len(holders) > 1}
    if not several:
        return _no(
            "hyfem", "no two parties have a column in common; HyFEM would share a classifier alone"
        )
    outputs = situation.num_outputs
    extractor = {
        holders: _parameters(situation.width(names), _COLUMN[:-1], _COLUMN[-1])
        for holders, names in situation.blocks.items()
    }
    sizes = []
    for name in situation.names:
        held = [holders for holders in situation.blocks if name in holders]
        classifier = _parameters(_COLUMN[-1] * len(held), (_CLASSIFIER,), outputs)
        size = (sum(extractor[holders] for holders in held) + classifier) * _FLOAT
        sizes.append(
            MessageSize(
                name,
                "coordinator",
                "round",
                size,
                size,
                f"an extractor of {'-'.join(map(str, _COLUMN))} a block and a classifier of "
                f"{_CLASSIFIER}-{outputs}, in float32, no neurons added",
            )
        )
    shared_columns = sum(len(names) for names in several.values())
    lonely = [name for name in situation.names if not any(name in holders for holders in several)]
    kinds = {frozenset(classes or ()) for classes in situation.classes.values()}
    notes = ""
    if len(situation.blocks) == 1:
        notes += f"; {_SAME}"
    if lonely:
        notes += f"; {name_list(lonely)} {_has(lonely)} no column in common with another"
    if len(kinds) > 1:
        notes += "; parties have different classes, which it allows if they are of one label"
        classes_of = {name: situation.declared(name) or () for name in situation.names}
        notes += "".join(f"; {each}" for each in spelled_alike(classes_of))
    named = {
        (block, column)
        for part in situation.parts.values()
        for block, column in part.columns.items()
    }
    blocks: dict[str, dict[str, tuple[str, ...]]] = {}
    if len(named) > len({block for block, _ in named}):
        notes += ". Name these blocks at the parties first, as below"
        for number, (holders, names) in enumerate(situation.blocks.items(), start=1):
            block = "common" if len(holders) == len(situation.names) else f"block-{number}"
            block = holders[0] if len(holders) == 1 else block
            for name in holders:
                blocks.setdefault(name, {})[block] = tuple(sorted(names))
    return Fit(
        "hyfem",
        True,
        f"yes: every party has labels, and {count_text(shared_columns, 'column')} "
        f"{'is' if shared_columns == 1 else 'are'} at two or more of "
        f"{count_text(len(situation.names), 'party', 'parties')} "
        f"({count_text(len(situation.blocks), 'block')} by who holds what){notes}",
        "dovetail train RUN --set method=hyfem",
        tuple(sizes),
        blocks,
    )


def _parameters(num_inputs: int, widths: Sequence[int], num_outputs: int) -> int:
    """Weights and biases of a perceptron.

    >>> _parameters(10, (4,), 2)  # 10 x 4 + 4, 4 x 2 + 2
    54
    """
    sizes = np.array([num_inputs, *widths, num_outputs])
    return int(((sizes[:-1] + 1) * sizes[1:]).sum())
