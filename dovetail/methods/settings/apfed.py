"""Sections of files about APFed: [apfed] is the active party's in a run file, a partner's in its
own.

The paper's are ``Config`` and ``PassiveConfig``, its layers' ``Layers`` and ``PassiveLayers``,
those of APFed-D ``DistilConfig`` and ``PartnerConfig``; sections have a user's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from dovetail.methods.section import EncoderField, PartyEncoderField
from dovetail.methods.settings.shared import BASELINES, EpochSettings, FileRecord, TargetSettings
from dovetail.settings.models import HeadConfig, LearnerName, OptimizerConfig, Pictures
from dovetail.settings.privacy import Once, PrivateSteps, Release
from dovetail.settings.section import Section

if TYPE_CHECKING:
    from dovetail.models.learners.vertical import StackedConfig

#: What can be trained, and what a table calls it. "apfed" is APFed-S, which everything has by
#: default. The paper's are "apfed-r", "apfed-c", and "apfed-mixed", whose partners have each a loss
#: of its own. "alone" is the active party without partners, "pooled" has everybody's columns in one
#: place, "tvfl" is classic vertical learning, scored with partners present and gone. "apfed-d"
#: distils a joint model; what follows it is what a label owner would train instead, which runs of
#: "apfed" and "apfed-d" score without being asked. "party-dropout" and "laser" are what the
#: literature would pick where a partner may go.
VARIANT_NAMES: Mapping[str, str] = {
    "apfed": "APFed-S, predicts alone",
    "apfed-r": "APFed-R, predicts alone",
    "apfed-c": "APFed-C, predicts alone",
    "apfed-mixed": "APFed with mixed losses, predicts alone",
    "alone": "learned alone",
    "pooled": "pooled (all columns in one place)",
    "tvfl": "classic vertical, partners present",
    "apfed-d": "APFed-D, predicts alone",
    **BASELINES,
    "party-dropout": "party dropout, partners present",
    "laser": "LASER, partners present",
}

#: What Begin and Encode call a release of columns, where stacks are named.
RELEASED = "released"

StackName = Literal["network", "linear"]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Layers(TargetSettings, EpochSettings, HeadConfig):
    """None of these is the paper's; if all are left out, the page is what runs.

    ``validation`` and ``patience`` are of ``owner.py``; ``balance`` of ``unify.py``; ``private`` of
    ``private.py``; ``projection``, ``overlap`` and ``codes`` of ``questions.py``; ``clip`` of
    ``bound.py``; ``decorrelate`` of ``owner.py``; ``gradients`` of ``methods/vertical.py``.
    """

    validation: float = Field(default=0.0, ge=0, lt=1)  # share of labelled rows; they choose when
    patience: int | None = Field(default=None, ge=1)  # stop after so many epochs without a better
    # rho: each partner's part of the encoder's gradient is made rho times as long as the
    # task's own, times trade_off, without what points against it; none: the trade_off alone
    balance: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    # DP-SGD of encoder and head; all labelled rows then train, and the last epoch's
    # model is kept
    private: PrivateSteps | None = None
    projection: int | None = Field(default=None, ge=1)  # width before the contrast; None: none
    overlap: Literal["pairwise", "common"] = "pairwise"  # common: train on the set I only, Eq. (1)
    codes: Release | None = None  # how codes leave; None: as they are
    # The largest row of a dL_p/dh, in multiples of dL_A/dh's median row at its largest so far.
    clip: float | None = Field(default=1e4, gt=0, allow_inf_nan=False)  # None: any
    decorrelate: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # codes from columns
    gradients: Release | None = None  # of classic vertical learning: how dl/dh^p leaves

    @model_validator(mode="after")
    def _rows_are_apart(self) -> Self:
        names = ("decorrelate", "spread", "balance")
        together = [name for name in names if getattr(self, name) is not None]
        if self.private is not None and together:
            raise ValueError(
                f"private cuts each row's own gradient, and {together[0]} makes it depend on the "
                "other rows of a batch; leave one of them out"
            )
        return self


class PassiveLayers(OptimizerConfig):
    """Settings of a passive party that the paper has not."""

    gradients: Release | None = None  # how dL_p/dh leaves; None: as it is
    codes: Release | None = None  # of classic vertical learning: how its codes leave
    # What its answers know of its rows: one noised release of each. None: at a site Once(), where
    # gradients are not noised either; in simulation its columns.
    release: Once | None = None
    exact: bool = False  # at a site, too, answers are of its columns: whoever asks can read them


class Config(Layers):
    """The active party's settings: of the paper, and of layers, which are off."""

    trade_off: Weight | Mapping[str, Weight] = 1.0  # lambda_p, Eq. (8); one for all, or by party


class PassiveConfig(PassiveLayers):
    """A passive party's own settings; they never leave it."""

    # Eq. (16) or Eq. (12); vicreg and clustering (section 6.3 names one) are not the paper's.
    loss: Literal["contrastive", "reconstruction", "vicreg", "clustering"] = "contrastive"
    temperature: float = Field(default=1.0, gt=0)  # tau, Eq. (14)
    # Of zeros (all ReLUs off) there is no cosine. With 0.01, rows of zeros of the demo get up to
    # 600 times the gradient that the task gives a row: far below ``clip``, which accuses; with
    # 1e-12, the cosine as printed, far above.

    # Eq. (15): a shorter code counts as one of this norm; with 1e-12 the cosine is as printed
    min_norm: float = Field(default=1e-2, gt=0, le=1, exclude_if=lambda norm: norm == 1e-2)
    # of Eq. (12): the mean absolute or the mean squared error
    norm: Literal["l1", "l2"] = Field(default="l2", exclude_if=lambda norm: norm == "l2")


class PartnerConfig(Section):
    """A party's own settings of its networks; they never leave it."""

    widths: tuple[Annotated[int, Field(ge=1)], ...] = (64, 32)  # of "network"; the last is D
    bins: int = Field(default=16, ge=0)  # of a number, in "network"; 0: the number alone
    learning_rate: Rate = 1e-3  # of "network", by AdamW
    weight_decay: Decay = 0.1  # of "network"
    linear_learning_rate: Rate = 1e-2  # of "linear"
    linear_weight_decay: Decay = 0.3  # of "linear"
    release: Once | None = None  # set: this is all that leaves, and no joint model is trained

    def stack(self, name: str) -> StackedConfig:
        """How a stack is built and trained here."""
        from dovetail.models.learners.vertical import StackedConfig

        if name == "linear":
            return StackedConfig(
                widths=(),
                bins=0,
                learning_rate=self.linear_learning_rate,
                weight_decay=self.linear_weight_decay,
            )
        return StackedConfig(
            widths=self.widths,
            bins=self.bins,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )


class DistilConfig(PartnerConfig):
    """The label owner's settings."""

    # "released": partners' columns come once, noised; no label's gradient leaves the owner
    exchange: Literal["gradients", "released"] = "released"
    # joint models that are trained; one, or their mean, teaches
    teachers: tuple[StackName, ...] = Field(default=("network", "linear"), min_length=1)
    folds: int = Field(default=4, ge=2, le=20)  # of labelled rows: each is held out once
    # members of each fold; None: 2 with up to 500 rows, else 1
    copies: int | None = Field(default=None, ge=1, le=8)
    dropout: float = Field(default=0.0, ge=0, lt=1)  # of codes
    batch_size: int | None = Field(default=None, ge=1)  # None: 64 to 512, by the number of rows
    max_steps: int = Field(default=4000, ge=1)  # of each joint model
    patience: int = Field(default=200, ge=1)  # steps without a better loss, at least five epochs
    timeout_s: float | None = Field(default=None, gt=0)  # how long a step waits for an answer


class DistilSection(DistilConfig):
    """[apfed.distil]: the joint teacher, and the student of the active party."""

    # what may learn from the joint model, and what may be chosen
    students: tuple[LearnerName, ...] = Field(default=get_args(LearnerName), min_length=1)
    label_share: float = Field(default=0.5, ge=0, le=1)  # of a labelled row's target
    blend: bool = True  # whether the mean of both is kept where held-out rows do not decide
    # standard errors that distilling must gain; below 0 it may be behind by so many
    gate: float = Field(default=-1.0, ge=-10, allow_inf_nan=False)


class SealedSection(Section):
    """[apfed.sealed]: what partners are asked for, encrypted (APFed-S)."""

    # where few labelled rows are shared: the others teach, too, own outputs in a number's place
    fill: bool = True
    rows: int = Field(default=8000, ge=1)  # shared rows without label, asked about at most
    timeout_s: float | None = Field(default=None, gt=0)  # how long a partner may take


class ApfedSection(Config):
    """The active party: its settings and networks.

    The defaults are those of a user, not the paper's, which are ``Config``'s.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"  # what follows the gradients
    learning_rate: float = Field(default=2e-3, gt=0, allow_inf_nan=False)  # alpha
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of weights, in a step
    epochs: int = Field(default=60, ge=1)  # passes over the rows
    validation: float = Field(default=0.15, ge=0, lt=1)  # share of labelled rows that choose when
    patience: int | None = Field(default=10, ge=1)  # epochs without a better, after which it ends
    encoder: EncoderField = (64, 32)  # widths of its layers, a paper's table, or convolutions
    head: tuple[int, ...] = (64,)  # hidden widths
    dropout: float = Field(default=0.2, ge=0, lt=1)  # of the head
    distil: DistilSection = DistilSection()
    sealed: SealedSection = SealedSection()
    # of -d and -s, of party files: once scored, the kept model learns from test rows, too
    refit: bool = True


class PassiveFields(PassiveConfig):
    """Settings and network of one passive party, by default as the active party's."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"  # what follows the gradients
    learning_rate: float = Field(default=2e-3, gt=0, allow_inf_nan=False)  # alpha
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of weights, in a step
    encoder: PartyEncoderField = (64, 32)  # widths of its layers, a paper's table, or convolutions
    distil: PartnerConfig = PartnerConfig()  # of APFed-D
    # of APFed-S, what kernels see of pictures: patches, learnt without labels, or pixels
    pictures: Pictures = "patches"


class ApfedRecord(FileRecord):
    """APFed, and classic vertical learning beside it."""

    name = "apfed"
    plugin = "dovetail.methods.apfed.plugin:Apfed"
    Settings = ApfedSection
    PartySettings = PassiveFields
    variants = VARIANT_NAMES
    driven_by = "active"
