"""Settings of APFed-D, of partners and of the label owner."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dovetail.models.learners.vertical import StackedConfig
from dovetail.settings.privacy import Once

# --- Hyper-parameters --------------------------------------------------------------------------

#: What Begin and Encode call a release of columns, where stacks are named.
RELEASED = "released"

StackName = Literal["network", "linear"]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PartnerConfig(BaseModel):
    """A party's own settings of its networks; they never leave it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    widths: tuple[Annotated[int, Field(ge=1)], ...] = (64, 32)  # of "network"; the last is D
    bins: int = Field(default=16, ge=0)  # of a number, in "network"; 0: the number alone
    learning_rate: Rate = 1e-3  # of "network", by AdamW
    weight_decay: Decay = 0.1  # of "network"
    linear_learning_rate: Rate = 1e-2  # of "linear"
    linear_weight_decay: Decay = 0.3  # of "linear"
    release: Once | None = None  # set: this is all that leaves, and no joint model is trained

    def stack(self, name: str) -> StackedConfig:
        """How a stack is built and trained here."""
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


class Config(PartnerConfig):
    """The label owner's settings."""

    # "released": partners' columns come once, noised; no label's gradient leaves the owner
    exchange: Literal["gradients", "released"] = "released"
    # joint models that are trained; one, or their mean, teaches
    teachers: tuple[StackName, ...] = Field(default=("network", "linear"), min_length=1)
    folds: int = Field(default=4, ge=2, le=20)  # of labelled rows: each is held out once
    copies: int | None = Field(default=None, ge=1, le=8)  # members of each fold; None: by the rows
    dropout: float = Field(default=0.0, ge=0, lt=1)  # of codes
    batch_size: int | None = Field(default=None, ge=1)  # None: 64 to 512, by the number of rows
    max_steps: int = Field(default=4000, ge=1)  # of each joint model
    patience: int = Field(default=200, ge=1)  # steps without a better loss, at least five epochs
    timeout_s: float | None = Field(default=None, gt=0)  # how long a step waits for an answer
