"""What APFed's label owner can do beside the paper: its settings, layer by layer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dovetail.methods.epochs import EpochSettings
from dovetail.methods.targets import TargetSettings
from dovetail.settings.models import HeadConfig, OptimizerConfig
from dovetail.settings.privacy import Once, PrivateSteps, Release


class Layers(TargetSettings, EpochSettings, HeadConfig):
    """None of these is the paper's; if all are left out, the page is what runs.

    ``validation`` and ``patience`` are of ``best.py``; ``balance`` of ``unify.py``; ``private`` of
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
    """What a passive party's answers have besides the paper."""

    gradients: Release | None = None  # how dL_p/dh leaves; None: as it is
    codes: Release | None = None  # of classic vertical learning: how its codes leave
    # What its answers know of its rows: one noised release of each. None: at a site Once(), where
    # gradients are not noised either; in simulation its columns.
    release: Once | None = None
    exact: bool = False  # at a site, too, answers are of its columns: whoever asks can read them
