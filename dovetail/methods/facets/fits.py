"""Whether a method fits a federation, and why; and what it would send."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from dovetail.data.coverage import Overlaps, Part, hides, shown
from dovetail.data.wording import count_text, name_list
from dovetail.methods.base import Run, Site

FLOAT, PLACE = 4, 8  # bytes of a float32 value, and of a sample's place in the shared order

#: What a method of columns at all is where all parties hold the same ones.
SAME = "all hold the same columns, so it is plain federated averaging"

#: Widths of a column of CHFL, and of an extractor of HyFEM.
COLUMN = (512, 256, 128)


@dataclass(frozen=True)
class Sizes:
    """Which batches and codes the messages' sizes are for.

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
    """Size of a message between two parties, in bytes of tensors; headers add a few hundred.

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
        reason: a sentence that starts with "yes: ", "no: " or "unknown: ".
        next_command: what to run, with RUN for the run file; "" where the method does not apply.
        messages: what it would send, where it applies.
        blocks: party -> block -> its columns, which are to be named at the parties first.
        departs: whether the paper's own setting is another, as the reason says.
        title: what people call the method.
    """

    method: str
    applies: bool
    reason: str
    next_command: str = ""
    messages: tuple[MessageSize, ...] = ()
    blocks: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    departs: bool = False
    title: str = ""

    @property
    def available(self) -> bool:
        """Whether ``next_command`` is one that can be run."""
        return self.next_command.startswith(("dovetail ", "dovetail."))


class Situation:
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
        """Number of outputs: one per class that any party labels or names; one for a number, and
        for each of several labels."""
        present: set[str] = set()
        declared = 0
        for name, classes in self.classes.items():
            labels = self.parts[name].data.labels
            if labels is not None and labels.dim() > 1:
                return labels.shape[1]
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

    def mixed_labels(self) -> str | None:
        """Error text if some parties label classes and others numbers."""
        numbers = [name for name, classes in self.classes.items() if classes is None]
        if numbers and len(numbers) < len(self.owners):
            named = [name for name in self.owners if name not in numbers]
            return (
                f"labels are numbers at {name_list(numbers)} and classes at {name_list(named)}; "
                "they must say the same thing"
            )
        return None


class Fits:
    """A method that says what it fits.

    Attributes:
        title: what people call it.
        order: methods are shown in this order, from the most to the least specific situation.
    """

    title: ClassVar[str]
    order: ClassVar[int] = 9

    def fit(self, situation: Situation) -> Fit:
        """Whether it fits these parties, and why."""
        raise NotImplementedError

    def sizes(
        self, run: Run, parts: Sequence[Part], sites: Mapping[str, Site], *, sealed: bool
    ) -> Sizes | None:
        """The run's batches and codes, by which messages' sizes are computed; None: it says nothing
        of them.

        Args:
            run: the run file.
            parts: the parties.
            sites: their own files; none in simulation.
            sealed: whether APFed is APFed-S.
        """
        return None


# --- What methods share --------------------------------------------------------------------------


def no(method: str, *wrong: str) -> Fit:
    return Fit(method, False, "no: " + "; ".join(wrong))


def has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def range_text(counts: Sequence[int], one: str) -> str:
    """Counts as "12 columns" or "4 to 6 columns"."""
    low, high = min(counts), max(counts)
    return count_text(high, one) if low == high else f"{low:,} to {count_text(high, one)}"


def samples_text(overlaps: Overlaps, count: int) -> str:
    """A number of samples, unless it is too small to be shown."""
    if hides(count, overlaps.least):
        return f"{shown(count, least=overlaps.least)} samples"
    return count_text(count, "sample")


def everyone_labels(situation: Situation, title: str) -> list[str]:
    """Reasons why a method does not work in which every party trains on its own labels."""
    if len(situation.names) < 2:
        return [f"{situation.names[0]} is the only party; {title} needs two or more"]
    if not situation.owners:
        return [f"no party has labels; {title} needs them at every party"]
    wrong = []
    if situation.without:
        verb = has(situation.without)
        wrong.append(
            f"{name_list(situation.without)} {verb} no labels; {title} needs them at every party"
        )
    bare = [name for name in situation.names if not situation.columns[name]]
    if bare:
        wrong.append(f"{name_list(bare)} {has(bare)} no columns")
    if mixed := situation.mixed_labels():
        wrong.append(mixed)
    return wrong


def parameters(num_inputs: int, widths: Sequence[int], num_outputs: int) -> int:
    """Weights and biases of a perceptron.

    >>> parameters(10, (4,), 2)  # 10 x 4 + 4, 4 x 2 + 2
    54
    """
    sizes = np.array([num_inputs, *widths, num_outputs])
    return int(((sizes[:-1] + 1) * sizes[1:]).sum())
