"""Sections of files about CHFL: [chfl] of a run file, for the coordinator and all; and of a party
file.

The paper's is ``Config``; ``RunConfig`` has its layers', which are off; the section has a user's
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dovetail.methods.section import GivenNetwork, InstalledNetwork
from dovetail.methods.settings.shared import BASELINES, FileRecord, LabelScale
from dovetail.settings.models import Choose, ClassWeights, OptimizerConfig, ThresholdSettings
from dovetail.settings.privacy import QUORUM, PrivateSteps
from dovetail.settings.section import PartyName, Section

#: What can be trained, and what a table calls it. "chfl" has lateral connections, "chfl-mu0" only
#: the sum of both columns' outputs; "chfl-gate" is CHFL with what users have and the paper has not;
#: "common" is FedAvg on the common columns, "fedprox" the same with FedProx's term; "local" is each
#: party alone with all its columns; "simple" is section V-B5; "pooled" has everybody's rows in one
#: place, common columns only.
VARIANT_NAMES: Mapping[str, str] = {
    "chfl": "CHFL, predicts alone",
    "chfl-mu0": "CHFL without lateral connections",
    "chfl-gate": "CHFL, gated, own column from zero",
    "common": "common columns, FedAvg",
    "local": "each party alone",
    "fedprox": "common columns, FedProx",
    "simple": "simple method of V-B5",
    "pooled": "pooled rows, common columns",
}

#: What ``by_party`` may set.
LOCAL_SETTINGS = frozenset({"learning_rate", "mu"})

#: The same with ``secure``, of which the sum that the coordinator sees does not depend.
LOCAL_IN_SECRET = frozenset({"mu"})

#: Training rows up to which the private tower's weight decay is what is set; whole batches of them.
DECAY_ROWS = 256

#: What users have: chosen on held-out rows, see the documentation.
UNIQUE_WEIGHT_DECAY = 1e-2


class Config(OptimizerConfig):
    """The paper's settings; the coordinator's, sent to every member."""

    optimizer: Literal["sgd", "adam"] = "adam"  # V-A3
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    widths: tuple[int, ...] = Field(default=(512, 256, 128), min_length=1)  # V-A2
    mu: float = Field(default=1.0, ge=0, le=1)  # mu, IV-C
    rounds: int = Field(default=30, ge=1)  # T
    local_epochs: int = Field(default=5, ge=1)  # E, V-A3
    batch_size: int = Field(default=64, ge=1)  # V-A3


class RunConfig(Config):
    """Settings of a run; the coordinator's, sent to every member."""

    method: Literal["chfl", "common", "local", "simple"] = "chfl"  # V-A2, V-B5
    # Of the private tower, of DECAY_ROWS rows or fewer; None: as of the common one.
    unique_weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    zero_start: bool = False  # the private tower's last layer and U begin at zero
    gate: bool = False  # how much the private tower counts is chosen on validation rows
    weights: Literal["even", "samples"] = "even"  # line 7: 1/K; or N_k / sum N
    participation: float = Field(default=1.0, gt=0, le=1)  # share of the parties in a round
    proximal: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # FedProx's mu
    secure: bool = False  # sum the common towers under masks
    # With secure, more than this share of the parties must answer, and a lost one costs its own
    # part; none: it costs the round.
    quorum: float | None = Field(default=None, ge=0.5, lt=1, exclude_if=lambda value: value is None)
    private: PrivateSteps | None = None  # how common towers are trained (privacy.steps)
    choose: Choose = "mean"  # which round's parameters are kept
    patience: int | None = Field(default=None, ge=1)  # stop after so many rounds without a better
    max_categories: int = Field(default=100, ge=1)  # of a common column that all encode alike
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: ThresholdSettings | None = Field(default=None, exclude_if=lambda value: value is None)
    timeout_s: float | None = Field(default=None, gt=0)  # how long a round waits for an answer
    # party -> its learning_rate and mu; V-A3 has each tune them
    by_party: dict[str, dict[str, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if min(self.widths) < 1:
            raise ValueError(f"widths must be positive, got {self.widths}")
        if self.method == "local" and (self.secure or self.proximal or self.participation < 1):
            raise ValueError(
                "method 'local' sends nothing: secure, proximal, participation are off"
            )
        for name, settings in self.by_party.items():
            if wrong := settings.keys() - LOCAL_SETTINGS:
                raise ValueError(f"by_party sets {sorted(LOCAL_SETTINGS)}, not {wrong} ({name})")
            if self.secure and not settings.keys() <= LOCAL_IN_SECRET:
                raise ValueError(
                    f"by_party sets a learning_rate of {name}, and with secure all have one: who "
                    "hardly learns has weights that the coordinator knows, and the sum tells "
                    "another's"
                )
            self.of(name)
        return self

    @property
    def sends(self) -> bool:
        """Whether common towers leave their members as they are."""
        return self.method != "local" and not self.secure

    def of(self, member: str) -> RunConfig:
        """Settings for this member: no other's are in them."""
        values = self.model_dump(exclude={"by_party"})
        return RunConfig(**{**values, **self.by_party.get(member, {})})

    def of_unique(self, num_batches: int) -> RunConfig:
        """With which the private tower's optimizer is built, of so many batches a pass.

        Its decay is a belief held before any row was seen, and means of losses are over rows: of
        more than ``DECAY_ROWS`` it counts in proportion less.
        """
        if self.unique_weight_decay is None:
            return self
        share = min(1.0, DECAY_ROWS / (num_batches * self.batch_size))
        return self.model_copy(update={"weight_decay": self.unique_weight_decay * share})


class SearchSection(Section):
    """Values to choose from on validation rows; nothing is chosen where there are none."""

    learning_rate: tuple[float, ...] = ()  # of both towers
    mu: tuple[float, ...] = ()  # of the lateral connections
    proximal: tuple[float, ...] = ()  # the pull to the server's weights
    rounds: int = Field(default=10, ge=1)  # of each trial
    seed: int | None = Field(default=None, ge=0)  # choose once, for all seeds of the run
    each: bool = False  # each party takes what is best on its own rows; else all the best mean

    def grid(self) -> dict[str, tuple[float, ...]]:
        """Field -> values."""
        return {
            name: values
            for name in ("learning_rate", "mu", "proximal")
            if (values := getattr(self, name))
        }


class ChflSection(RunConfig):
    """Settings of the method and its baselines.

    Widths, weight decay, gate, start and the round's choice are for a user's tables; the paper's
    are ``Config``'s.
    """

    widths: tuple[int, ...] = Field(default=(64, 32), min_length=1)  # hidden layers of each tower
    weight_decay: float = Field(default=1e-3, ge=0, allow_inf_nan=False)  # of weights, in a step
    proximal: float = Field(default=0.01, ge=0, allow_inf_nan=False)  # of the baseline "fedprox"
    # of the private tower's weights, for up to 256 rows; for more in proportion less
    unique_weight_decay: float | None = Field(
        default=UNIQUE_WEIGHT_DECAY, ge=0, allow_inf_nan=False
    )
    zero_start: bool = True  # the private tower's last layer and lateral connections start at zero
    gate: bool = True  # how much the private tower counts is chosen on validation rows
    choose: Literal["mean", "loss", "each", "last"] = "loss"  # which round's parameters are kept
    # from Python: the network of every party's private tower in this process; None: widths
    encoder: GivenNetwork | None = None
    search: SearchSection = SearchSection()
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a variant's own settings


class MemberSection(Section):
    """[chfl] of a party file: what it offers, and which of its rows only test."""

    common: tuple[str, ...] = ("*",)  # columns that others may have too; names take *
    validation_share: float = Field(default=0.25, ge=0, lt=1)  # of the rows that do not test
    test_share: float = Field(default=0.2, ge=0, lt=1)  # of the labelled rows
    # of numbers: mean and scale of all parties' labels, of several by name
    label_scale: LabelScale | None = None
    secure: bool = False  # take part only where common columns are summed in secret
    members: tuple[PartyName, ...] | None = None  # whom it sums with; None: whoever is certified
    # with a run's quorum: a sum opens if more than this share of the parties answer
    quorum: float = Field(default=QUORUM, ge=0.5, lt=1)
    private: PrivateSteps | None = None  # how its common column is trained; None: as the run says
    # the network of its private tower: an import path; None: widths of the run
    encoder: InstalledNetwork | None = None


class ChflRecord(FileRecord):
    """CHFL."""

    name = "chfl"
    plugin = "dovetail.methods.chfl.plugin:Chfl"
    Settings = ChflSection
    PartySettings = MemberSection
    variants: ClassVar[Mapping[str, str]] = {**VARIANT_NAMES, **BASELINES}
    driven_by = "coordinator"
