"""[apfed] of a run file, for the active party; of a party file, for a partner; variants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dovetail.methods import apfed
from dovetail.methods.apfed.sealed_checks import MAX_SMOOTHERS
from dovetail.methods.apfed.stacks import Config as DistilConfig
from dovetail.methods.apfed.stacks import PartnerConfig
from dovetail.methods.baselines import TITLES as BASELINES
from dovetail.methods.section import EncoderField, PartyEncoderField
from dovetail.models.smoothers import Smoother
from dovetail.settings.models import Kernel, LearnerName, Pictures

#: What can be trained, and what a table calls it. "apfed" has passive parties as they are set up;
#: "apfed-r" and "apfed-c" give all of them the reconstruction or the contrastive loss. "alone" is
#: the active party without partners, "pooled" has everybody's columns in one place, "tvfl" is
#: classic vertical learning, scored with partners present and gone. "apfed-d" distils a joint
#: model; what follows it is what a label owner would train instead, which a run of "apfed-d" scores
#: without being asked. "party-dropout" and "laser" are what the literature would pick where a
#: partner may go.
VARIANT_NAMES: Mapping[str, str] = {
    "apfed": "APFed, predicts alone",
    "apfed-r": "APFed-R, predicts alone",
    "apfed-c": "APFed-C, predicts alone",
    "alone": "learned alone",
    "pooled": "pooled (all columns in one place)",
    "tvfl": "classic vertical, partners present",
    "apfed-d": "APFed-D, predicts alone",
    "apfed-s": "APFed-S, predicts alone",
    **BASELINES,
    "party-dropout": "party dropout, partners present",
    "laser": "LASER, partners present",
}


class DistilSection(DistilConfig):
    """[apfed.distil]: the joint teacher, and the student of the active party."""

    # what may learn from the joint model, and what may be chosen
    students: tuple[LearnerName, ...] = Field(default=get_args(LearnerName), min_length=1)
    label_share: float = Field(default=0.5, ge=0, le=1)  # of a labelled row's target
    blend: bool = True  # whether the mean of student and own model is a candidate, too
    # standard errors that distilling must gain; below 0 it may be behind by so many
    gate: float = Field(default=-1.0, ge=-10, allow_inf_nan=False)


class SealedSection(BaseModel):
    """[apfed.sealed]: what partners are asked for, encrypted (APFed-S)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # each is a number a row, and of more than two classes one for each class but the last
    kernels: tuple[Kernel, ...] = Field(default=("mean",), min_length=1, max_length=MAX_SMOOTHERS)
    # of each kernel, all of these strengths of its ridge
    ridges: tuple[Annotated[float, Field(gt=0, lt=1e6)], ...] = Field(default=(1.0,), min_length=1)
    # kernels that are asked for once more where held-out rows say that it pays; () asks once
    more: tuple[Kernel, ...] = Field(default=(), max_length=MAX_SMOOTHERS)
    # where few labelled rows are shared: the others teach, too, own outputs in a number's place
    fill: bool = True
    rows: int = Field(default=8000, ge=1)  # shared rows without label, asked about at most
    timeout_s: float | None = Field(default=None, gt=0)  # how long a partner may take

    @model_validator(mode="after")
    def _not_too_many(self) -> SealedSection:
        num = (len(self.kernels) + len(self.more)) * len(self.ridges)
        if num > MAX_SMOOTHERS:
            raise ValueError(f"{num} kernels and ridges are more than {MAX_SMOOTHERS}")
        return self

    @property
    def second(self) -> tuple[Smoother, ...]:
        """What a partner is asked for once more."""
        return tuple(Smoother(kernel, ridge) for kernel in self.more for ridge in self.ridges)

    @property
    def smoothers(self) -> tuple[Smoother, ...]:
        """What each partner is asked for."""
        return tuple(Smoother(kernel, ridge) for kernel in self.kernels for ridge in self.ridges)


class ApfedSection(apfed.Config):
    """The active party: its settings and networks.

    The defaults are those of a user, not the paper's, which are ``apfed.Config``'s.
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


class PassiveFields(apfed.PassiveConfig):
    """One passive party: its settings and network, by default as the active party's."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"  # what follows the gradients
    learning_rate: float = Field(default=2e-3, gt=0, allow_inf_nan=False)  # alpha
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of weights, in a step
    encoder: PartyEncoderField = (64, 32)  # widths of its layers, a paper's table, or convolutions
    distil: PartnerConfig = PartnerConfig()  # of APFed-D
    # of APFed-S, what kernels see of pictures: patches, learnt without labels, or pixels
    pictures: Pictures = "patches"
