"""How what leaves a party is bounded and noised, and how much it may cost."""

from __future__ import annotations

from pydantic import Field, model_validator

from dovetail.settings.section import Section

#: A sum that outlives lost members opens for more than this share of them (``privacy/masks.py``).
QUORUM = 2 / 3


class Release(Section):
    """How rows are clipped, thinned and noised before they leave a party."""

    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # longest row
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # spread of the noise over clip
    keep: float | None = Field(default=None, gt=0, le=1)  # share of numbers kept, the largest
    sign: bool = False  # send signs only
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # most of one row
    delta: float = Field(default=1e-5, gt=0, lt=1)  # of that epsilon

    @model_validator(mode="after")
    def _fits(self) -> Release:
        if self.noise and self.clip is None:
            raise ValueError("noise is in multiples of clip: set clip, too")
        if self.epsilon is not None and not self.noise:
            raise ValueError("epsilon is counted from noise: set clip and noise, too")
        return self


class PrivateSteps(Section):
    """DP-SGD for weights that leave a party."""

    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # longest gradient of a row
    noise: float = Field(gt=0, allow_inf_nan=False)  # spread of the noise over clip
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # most of one row
    delta: float = Field(default=1e-5, gt=0, lt=1)  # of that epsilon


class Once(Section):
    """How a party's columns leave it once, for who asks for no more than that (``released.py``)."""

    width: int = Field(default=2, ge=1)  # principal components; no more than there are columns
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # a row's longest, of the usual one
    noise: float = Field(
        default=0.75, ge=0, allow_inf_nan=False
    )  # its spread, in multiples of clip
    delta: float = Field(default=1e-5, gt=0, lt=1)  # of the epsilon that is counted
