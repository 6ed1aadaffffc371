"""Settings of HyFEM and its layers, and what the methods are that it contains (Remark 3).

    layer            settings                                              in the paper
    the page         ``hyfem.Config``                                      its symbols
    variants.py      start, classifier, weights, match_rounds,             Remarks 3.2, 3.4
                     class_weights, scale_blocks, loss_weights,
                     held_classes
    last_rounds.py   average_last                                          no
    judging.py       decide                                                no
    several.py       class_weights, of several labels                      no
    calibration.py   calibrate                                             no: Luo et al. 2021
    inviting.py      none                                                  Remark 2

The defaults leave out what is not in the paper.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dovetail.methods.hyfem.hyfem import Config
from dovetail.settings.models import ClassWeights, ThresholdSettings


class Settings(Config):
    """One setting for all parties."""

    average_last: int = Field(default=1, ge=1)  # the model is the mean over so many last rounds
    scale_blocks: bool = False  # features count as if a party held all blocks
    calibrate: bool = False  # the classifier is refitted on draws of classes' features (CCVR)
    start: Literal["server", "own"] = "server"  # own: classifiers begin apart at each party
    weights: Literal["size", "even"] = "size"  # p_m = |N_m| / |N|, or 1/M
    classifier: Literal["matched", "own", "frozen"] = "matched"  # own: Remark 3.4; frozen: 3.2
    match_rounds: int | None = Field(default=None, ge=0)  # rounds with matching; None: all
    class_weights: bool = False  # weigh output rows by the samples of their class or label
    held_classes: bool = False  # a party's loss compares only classes that it has rows of
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: ThresholdSettings | None = Field(default=None, exclude_if=lambda value: value is None)


def alone(config: Settings) -> Settings:
    """For one party and its own coordinator: T Q plain steps."""
    off = {"calibrate": False, "held_classes": False}
    update = {"mu_1": 0.0, "mu_2": 0.0, "match_rounds": 0, **off}
    return config.model_copy(update=update)


def fedprox(config: Settings, mu: float) -> Settings:
    """For parties that hold the same blocks: Li et al.'s method (Remark 3.2, Appendix C.1)."""
    update = {"mu_1": mu, "mu_2": mu, "match_rounds": 0, "restart": True, "width": "widest"}
    off = {"class_weights": False, "calibrate": False, "held_classes": False}
    return config.model_copy(update={**update, **off, "classifier": "matched"})


def fedavg(config: Settings) -> Settings:
    """For parties that hold the same blocks: McMahan et al.'s method (Remark 3.3)."""
    return fedprox(config, 0.0)


def fedper(config: Settings) -> Settings:
    """Extractors are shared, each party's classifier is its own (Remark 3.4)."""
    off = {"calibrate": False, "held_classes": False}
    update = {"mu_1": 0.0, "mu_2": 0.0, "classifier": "own", **off}
    return config.model_copy(update=update)
