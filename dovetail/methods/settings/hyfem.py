"""Sections of files about HyFEM: [hyfem] of a run file, for the server and all; and of a party
file.

The paper's is ``Config``; ``Settings`` has its layers', which are off; the section has a user's
defaults.

    layer            settings                                              in the paper
    the page         ``hyfem.Config``                                      its symbols
    layers.py        start, classifier, weights, match_rounds,             Remarks 3.2, 3.4
                     class_weights, scale_blocks, loss_weights,
                     held_classes
                     average_last, decide                                  no
                     none, of a new party                                  Remark 2
    best.py          choose, patience                                      no
    calibration.py   calibrate                                             no: Luo et al. 2021
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, WrapSerializer, WrapValidator, model_validator

from dovetail.methods.section import own_network, own_written
from dovetail.methods.settings.shared import BASELINES, FileRecord, LabelScale
from dovetail.settings.models import (
    ClassWeights,
    MatchingConfig,
    ScheduledConfig,
    ThresholdSettings,
)
from dovetail.settings.privacy import PrivateSteps
from dovetail.settings.section import PartyName, Section

#: What can be trained, and what a table calls it.
VARIANT_NAMES: Mapping[str, str] = {
    "hyfem": "HyFEM, predicts alone",
    "standalone": "each party alone, all its blocks",
    "pooled": "pooled (all blocks and rows in one place)",
    "fedavg": "common blocks, FedAvg",
    "fedprox": "common blocks, FedProx",
    "fedper": "shared extractors, own classifiers (FedPer)",
    "fedma": "classifiers matched on columns as they are (FedMA)",
    "lg-fedavg": "own weights pulled to the mean (LG-FedAvg)",
}


class Config(ScheduledConfig, MatchingConfig):
    """The paper's symbols, one setting for all parties; those of Algorithm 3 are the matching's."""

    learning_rate: float = Field(default=0.05, gt=0, allow_inf_nan=False)  # eta
    momentum: float = Field(default=0.0, ge=0, lt=1)  # the paper: none
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # the paper: none
    rounds: int = Field(default=128, ge=1)  # T
    local_steps: int = Field(default=32, ge=1)  # Q
    batch_size: int = Field(default=64, ge=1)  # rows a step
    mu_1: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # pull of extractors, Eq. (4)
    mu_2: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # of classifiers, Eq. (5)
    # a round starts at the server's weights; False: at the party's, Eq. (22a)
    restart: bool = True
    private: PrivateSteps | None = None  # how weights that are sent are trained (privacy.steps)
    timeout_s: float | None = Field(default=None, gt=0)  # when a round closes


class Settings(Config):
    """Settings that hold for all parties."""

    average_last: int = Field(default=1, ge=1)  # the model is the mean over so many last rounds
    # Which round's model is kept, by rows that parties keep out of training: the least loss, the
    # best mean accuracy, or the last round (the paper).
    choose: Literal["last", "loss", "mean"] = "last"
    patience: int | None = Field(default=None, ge=1)  # stop after so many rounds without a better
    scale_blocks: bool = False  # features count as if a party held all blocks
    calibrate: bool = False  # the classifier is refitted on draws of classes' features (CCVR)
    start: Literal["server", "own"] = "server"  # own: classifiers start apart
    weights: Literal["size", "even"] = "size"  # p_m: |N_m| / |N| by rows, or 1/M
    # own: each party keeps its classifier (FedPer, Remark 3.4); frozen: Remark 3.2
    classifier: Literal["matched", "own", "frozen"] = "matched"
    # rounds with matching, after which the assignment is kept; None: all; 0: never matched
    match_rounds: int | None = Field(default=None, ge=0)
    class_weights: bool = False  # weigh output rows by the samples of their class or label
    held_classes: bool = False  # a party's loss compares only classes that it has rows of
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: ThresholdSettings | None = Field(default=None, exclude_if=lambda value: value is None)

    @property
    def chooses(self) -> bool:
        """Whether a round is chosen: of one model, which no mean over rounds replaces."""
        return self.choose != "last" and self.average_last == 1 and self.classifier == "matched"


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


class HyfemSection(Settings):
    """Settings of the method and its baselines."""

    # Block (names take *) -> its extractor, by the longest name that matches; else a small CNN for
    # images, and one layer of 32 for columns.
    extractors: dict[str, AnyExtractor] = Field(default_factory=dict)
    # Hidden widths of a party's classifier: of all, or by party, "*" being all others.
    widths: tuple[int, ...] | dict[PartyName | Literal["*"], tuple[int, ...]] = (64,)
    # Of the whole federation, where parties have files of their own; () is all that these have.
    classes: tuple[str | int, ...] = ()
    # Of labels that are numbers, over a network, instead of classes: as in the parties' files.
    label_scale: LabelScale | None = None
    # Over a network, instead of classes: labels that are yes or no each, in parties' order.
    labels: tuple[str, ...] = ()
    # Over a network, instead of classes: what labels are; quantiles have a label_scale, too.
    task: Literal["survival", "counts", "amounts", "quantiles"] | None = None
    proximal: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of the baseline "fedprox"
    # How the rate goes over the rounds: a constant one makes the server swing.
    schedule: Literal["constant", "cosine"] = "cosine"
    # Which round's model is kept; parties learn few rows by heart long before the last round.
    choose: Literal["last", "loss", "mean"] = "loss"
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a variant's own settings

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.patience is not None and not self.chooses:
            raise ValueError(
                "patience counts rounds without a better one, and none is chosen: with choose = "
                '"last", average_last above 1, or a classifier that is not "matched"; leave '
                "patience out"
            )
        return self


class MemberSection(Section):
    """[hyfem] of a party file: its classifier, all classes there are, and which rows only test."""

    widths: tuple[int, ...] = (64,)  # hidden widths
    classes: tuple[str | int, ...] = ()  # of the whole federation; () where it has all of them
    # of numbers: mean and scale of all parties' labels, of several by name
    label_scale: LabelScale | None = None
    test_share: float = Field(default=0.2, ge=0, lt=1)  # share of the labelled rows
    private: PrivateSteps | None = None  # how its weights are trained; None: as the run says
    # whether it sends its features' means and covariances by class, for a run's calibrate
    moments: bool = False


class HyfemRecord(FileRecord):
    """HyFEM."""

    name = "hyfem"
    plugin = "dovetail.methods.hyfem.plugin:Hyfem"
    Settings = HyfemSection
    PartySettings = MemberSection
    variants: ClassVar[Mapping[str, str]] = {**VARIANT_NAMES, **BASELINES}
    driven_by = "coordinator"


def alone(config: Settings) -> Settings:
    """For one party and its own coordinator: T Q plain steps."""
    off = {"calibrate": False, "held_classes": False}
    update = {"mu_1": 0.0, "mu_2": 0.0, "match_rounds": 0, **off}
    return config.model_copy(update=update)


def fedprox(config: Settings, mu: float) -> Settings:
    """For parties that hold the same blocks: Li et al.'s method (Remark 3.2, Appendix C.1).

    Calibrated where HyFEM is, so that a comparison is of the methods.
    """
    update = {"mu_1": mu, "mu_2": mu, "match_rounds": 0, "restart": True, "width": "widest"}
    off = {"class_weights": False, "held_classes": False}
    return config.model_copy(update={**update, **off, "classifier": "matched"})


def fedavg(config: Settings) -> Settings:
    """For parties that hold the same blocks: McMahan et al.'s method (Remark 3.3)."""
    return fedprox(config, 0.0)


def fedper(config: Settings) -> Settings:
    """Extractors are shared, each party's classifier is its own (Remark 3.4)."""
    off = {"calibrate": False, "held_classes": False}
    update = {"mu_1": 0.0, "mu_2": 0.0, "classifier": "own", **off}
    return config.model_copy(update=update)


def fedma(config: Settings) -> Settings:
    """Wang et al.'s method (Remark 3.1): columns as they are, classifiers begin apart and match."""
    off = {"calibrate": False, "held_classes": False}
    return config.model_copy(update={"mu_1": 0.0, "mu_2": 0.0, "start": "own", **off})


def lg_fedavg(config: Settings, mu: float) -> Settings:
    """Liang et al.'s method (Remark 3.2, Eq. 7): parties go on from their own, pulled weights."""
    off = {"calibrate": False, "held_classes": False, "match_rounds": 0, "restart": False}
    return config.model_copy(update={"mu_1": mu, "mu_2": mu, "weights": "even", **off})
