"""Settings of the methods that HyFEM contains (Remark 3): its own without what they have not."""

from __future__ import annotations

from dovetail.methods.settings.hyfem import Settings


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
