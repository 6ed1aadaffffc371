"""Settings that several methods have, and a method's record in files; read without a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from dovetail.settings.models import LEARNER_TITLES, ClassWeights, Kernel
from dovetail.settings.section import Section

#: Mean and scale of a number.
Scale = tuple[float, Annotated[float, Field(gt=0)]]

#: Mean and scale of a label that is a number, as a party file's ``label_scale`` says them; of
#: several by the label's name.
LabelScale = Scale | dict[str, Scale]

#: The most rows that are drawn: distances of all pairs lie in memory, 300 MB an owner at this many.
MAX_ROWS = 5000


class LocalSection(Section):
    """A method's section of a party file, unless it has one of its own."""

    test_share: float = Field(default=0.2, ge=0, lt=1)  # of the labelled rows; they test only
    # whether answers about samples are of the columns themselves; else of what is released once
    exact: bool = False


class EpochSettings(Section):
    """How many epochs and steps there are, and how long a step waits."""

    epochs: int = Field(default=30, ge=1)  # passes over the rows
    batch_size: int = Field(default=64, ge=1)  # rows a step; N' of Eq. (14)
    steps_per_epoch: int | None = Field(default=None, ge=1)  # None: one pass over labelled rows
    timeout_s: float | None = Field(default=None, gt=0)  # how long a step waits for an answer


class TargetSettings(Section):
    """Settings of what is done with labels before and beside the loss."""

    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    label_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # of all labels
    label_stages: int = Field(default=1, ge=1, le=20)  # T of LP-MST; of 1 the prior is even
    spread: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # codes of a class apart


class SelectionConfig(Section):
    """Settings of a selection; the coordinator's."""

    neighbours: int = Field(default=3, ge=1)  # k
    rows: int = Field(default=500, ge=2, le=MAX_ROWS)  # N: drawn from each label owner's shard
    queries: int | None = Field(default=None, ge=1)  # Q; None: every row is one
    group_size: int = Field(default=2, ge=1)  # owners of a group
    groups: int = Field(default=2, ge=0)  # groups of this size that each owner is in
    share: float = Field(default=0.5, gt=0, le=1)  # P: share of the data owners that is kept
    # "forward" adds owners one by one, by what each adds to those before it
    order: Literal["relevance", "forward"] = "relevance"
    secure: bool = False  # sum partial distances under masks (privacy.masks)
    growth: float = Field(default=1.5, gt=1, le=10)  # of the depth t, from one exchange to the next
    timeout_s: float | None = Field(default=None, gt=0)  # how long an exchange waits for an answer


class SealedLimits(Section):
    """Limits on what APFed-S may give one driver about each row."""

    # numbers about one row, over all runs; a run takes one, of C classes C - 1
    numbers_per_row: int = Field(default=1, ge=0)
    # that a number reveals at the most; by default 3 of a single number a row, 8 of several
    bits: int | None = Field(default=None, ge=1, le=12)
    least_rows: float = Field(default=10, ge=2, allow_inf_nan=False)  # labelled rows behind each
    kernel: Kernel = "mean"  # by which rows are near (docs/sealed.md)
    # strength of smoothing, in mean eigenvalues of the kernel
    ridge: float = Field(default=1.0, ge=0.1, le=10)

    def bits_of(self, numbers: int) -> int:
        """Bits that each number reveals at the most, if a question takes so many of a row.

        Fewer cost help where there are many classes; with more, a single number shows who owes
        what of a credit table's rows beyond guessing (docs/sealed.md).
        """
        return self.bits or (3 if numbers == 1 else 8)


#: What a party can train alone beside any method, and what a table calls it (``baselines.py``).
BASELINES: Mapping[str, str] = {
    "best-alone": "best local model (chosen on held-out rows)",
    **LEARNER_TITLES,
    "majority": "majority class, or mean",
}


class FileRecord:
    """Names, settings and variants of a method; ``Method`` has the rest of its record.

    Attributes:
        plugin: "module:class" of the whole method; "": this class is a ``Method`` itself.
        command: what runs it, as ``dovetail COMMAND RUN``.
        name: its section of both files.
        Settings: the section of a run file; every key has a default.
        PartySettings: the section of a party file, likewise; None: it has none.
        variants: what can be trained, the method and its baselines -> what a table calls it.
        driven_by: who drives it over a network: the "active" party, or a "coordinator" without
            data; None: it is trained in one process only.
    """

    name: ClassVar[str]
    plugin: ClassVar[str] = ""
    command: ClassVar[str] = "train"
    Settings: ClassVar[type[BaseModel]] = Section
    PartySettings: ClassVar[type[BaseModel] | None] = None
    variants: ClassVar[Mapping[str, str]]
    driven_by: ClassVar[str | None] = None
