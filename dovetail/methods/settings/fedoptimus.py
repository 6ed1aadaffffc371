"""Sections of files about FedOptimus: [fedoptimus] of a run file and of a party file; bottoms in
both.

``Config`` has the paper's symbols, and the other settings of a run, which are off; the section has
a user's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, WrapSerializer, WrapValidator, model_validator

from dovetail.methods.section import own_installed, own_network, own_written
from dovetail.methods.settings.shared import BASELINES, FileRecord, LabelScale, SelectionConfig
from dovetail.settings.models import ClassWeights, OptimizerConfig, ThresholdSettings
from dovetail.settings.privacy import QUORUM, Release
from dovetail.settings.section import Section

if TYPE_CHECKING:
    from dovetail.models.owners import TopSpec

#: What can be trained, and what a table calls it.
VARIANT_NAMES: Mapping[str, str] = {
    "fedoptimus": "FedOptimus, predicts with data owners",
    "classic": "one label owner with all labels (classic vertical)",
    "alone": "each label owner alone, all data owners",
    "pooled": "pooled (all columns and labels in one place)",
}

#: Share of a label that is spread over all classes; "classes": 0.1 of more than two of them.
Smoothing = Annotated[float, Field(ge=0, lt=1)] | Literal["classes"]


class Config(OptimizerConfig):
    """The paper's symbols, and the other settings of a run, which are off."""

    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)  # eta, section 3.2
    momentum: float = Field(default=0.0, ge=0, lt=1)  # of the parties' SGD; beta is the server's
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    beta: float = Field(default=0.9, ge=0, lt=1)  # beta, section 3.2; mu in Algorithm 1
    server_learning_rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # eta^g
    # of FedAvgM: the text's, its source's (Hsu et al. 2019), or the text's without its slow start
    server_momentum: Literal["damped", "undamped", "corrected"] = Field(
        default="damped", exclude_if=lambda value: value == "damped"
    )
    # parties' optimizers start again at each average
    reset: bool = Field(default=False, exclude_if=lambda value: not value)
    alpha: float = Field(default=0.99, gt=0, le=1)  # 1 - gamma, section 3.2
    server: Literal["average", "fedavgm"] = "fedavgm"  # lines 11 and 12
    slowmo: Literal["off", "interpolate", "initial", "momentum"] = "interpolate"  # line 13
    slow_momentum: float = Field(default=0.5, ge=0, lt=1)  # beta of Wang et al. 2019, Alg. 1
    slow_learning_rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # alpha, ibid.
    epochs: int = Field(default=100, ge=1)  # section 3.2
    batch_size: int = Field(default=128, ge=1)  # section 3.2
    sync_every: int = Field(default=5, ge=1)  # K: local steps between averages, section 3.2
    iterate_average: int = Field(default=1, ge=1)  # K of line 8; 1 averages nothing
    share: float = Field(default=1.0, gt=0, le=1)  # P_t: share of the data owners in a round
    embedding: int = Field(default=64, ge=1)  # E
    top: tuple[int, ...] = (64,)  # hidden widths: two fully connected layers, section 3.2
    rounds: int | None = Field(default=None, ge=1)  # so many rounds instead of epochs
    average_tops: bool = True  # the paper's w_t is one global model
    skip: bool = False  # tops read the mean embedding linearly, too
    members: int = Field(default=1, ge=1)  # networks side by side, which share the embedding
    smoothing: Smoothing = 0.0  # share of a label that is spread over all classes
    # Epochs without a better held-out loss, after which training ends and the best is what stays:
    # each member leaves out a part of the rows of its own. None: the last epoch stays.
    patience: int | None = Field(default=None, ge=1)
    loss_weights: ClassWeights | None = None  # of classes; a run's class_weights
    # what parties decide on validation rows; a run's threshold and calibrate
    decide: ThresholdSettings | None = Field(default=None, exclude_if=lambda value: value is None)
    timeout_s: float | None = Field(default=None, gt=0)  # how long a step waits for an answer
    # means of embeddings are taken under masks; a data owner that is lost costs its own part
    secure: bool = Field(default=False, exclude_if=lambda value: not value)
    quorum: float = Field(  # with secure: more than this share of the data owners must answer
        default=QUORUM, ge=0.5, lt=1, exclude_if=lambda value: value == QUORUM
    )
    # How embeddings leave data owners, and gradients label owners; None: as they are. A party's own
    # file may say otherwise.
    embeddings: Release | None = None
    gradients: Release | None = None

    @model_validator(mode="after")
    def _members_fit(self) -> Config:
        if self.embedding % self.members:
            raise ValueError(
                f"{self.members} members share an embedding of width {self.embedding}; choose a "
                "multiple of members"
            )
        if self.patience is not None and (self.members < 2 or not self.average_tops):
            raise ValueError(
                "patience needs members of 2 or more, each of which is judged on rows that it "
                "leaves out, and average_tops"
            )
        return self

    def top_of(self, num_outputs: int, *, values: bool = False) -> TopSpec:
        """The top that every label owner has; ``values`` changes none of its weights."""
        from dovetail.models.owners import TopSpec

        values = values and num_outputs > 1 and self.members > 1
        return TopSpec(self.embedding, self.top, num_outputs, self.skip, self.members, values)


class StripCnnSection(Section):
    """A convolution and two fully connected layers."""

    kind: Literal["strip-cnn"]  # which network
    channels: int = 16  # of the convolution
    kernel: int = 3  # its width
    stride: tuple[int, int] = (1, 1)  # of the convolution
    hidden: int = 64  # width of the first fully connected layer


class ResNet18Section(Section):
    """A ResNet-18 of one's own."""

    kind: Literal["resnet-18"]  # which network
    width: int = 64  # channels of the first stage


BottomField = (
    Literal["strip-cnn", "resnet-18"] | tuple[int, ...] | StripCnnSection | ResNet18Section
)

#: Also a network that Python gives.
AnyBottom = Annotated[BottomField, WrapValidator(own_network), WrapSerializer(own_written)]

#: Also one of an installed package, in a party's own file.
PartyBottom = Annotated[BottomField, WrapValidator(own_installed), WrapSerializer(own_written)]


class OwnerSection(Section):
    """[fedoptimus] of a party file.

    A party whose file names a label is a label owner, any other a data owner.
    """

    # of a data owner: its network, also an import path; None: by what its rows are
    bottom: PartyBottom | None = None
    classes: tuple[str | int, ...] = ()  # of a label owner: of all, where it has not all of them
    label_scale: LabelScale | None = (
        None  # of a label owner's numbers: mean and scale of all's, of several by name
    )
    test_share: float = Field(default=0.2, ge=0, lt=1)  # of a label owner: of its labelled rows
    embeddings: Release | None = None  # how a data owner's leave; None: as the run says
    gradients: Release | None = None  # how a label owner's leave; None: as the run says
    secure: bool = False  # of a data owner: take part only where embeddings are summed in secret
    members: tuple[str, ...] | None = None  # whom it sums with; None: anybody who is certified
    quorum: float = Field(default=QUORUM, ge=0.5, lt=1)  # sums open if more data owners answer


class SelectionSection(SelectionConfig):
    """Which data owners take part: the best share of them, by mutual information."""

    every: int = Field(default=0, ge=0)  # steps, in whole rounds, to the next choice; 0: never
    by: Literal["embeddings", "columns"] = "embeddings"  # what distances are taken between


#: What a run has that describes its networks itself.
_PLAIN = {
    "skip": False,
    "members": 1,
    "embedding": 64,
    "smoothing": 0.0,
    "patience": None,
    "epochs": 35,
}

#: Table 1's rows, by the names that a user can choose, and K steps and an average alone, the
#: default: what each averages, when and how. The paper gives no share of data owners to keep; three
#: of four is Table 1's here. Undamped momentum adds ten averages up: too much for steps of Adam.
_SELECTED: Mapping[str, Any] = {"selection": {"share": 0.75, "every": 1}}
_SLOWMO: Mapping[str, Any] = {"sync_every": 1, "slowmo": "interpolate"}
_PAPER: Mapping[str, Any] = {
    "server": "fedavgm",
    "server_momentum": "undamped",
    "slowmo": "interpolate",
    "optimizer": "sgd",
    **_SELECTED,
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "kstep": {},
    "fedavg": {"sync_every": 1},
    "slowmo": _SLOWMO,
    "cs-kstep": _SELECTED,
    "cs-fedavg": {"sync_every": 1, **_SELECTED},
    "cs-slowmo": {**_SLOWMO, **_SELECTED},
    "paper": _PAPER,
}


class FedOptimusSection(Config):
    """Settings of the method and its baselines.

    The defaults are those of a user, K steps and an average, and not the paper's: ``variant`` and
    ``Config`` have those.
    """

    # Table 1's rows: what is averaged, when and how; "cs-" selects data owners in every round;
    # "paper": lines 4, 5 and 11 to 13, with SGD; unless a key says otherwise
    variant: Literal["kstep", "fedavg", "slowmo", "cs-kstep", "cs-fedavg", "cs-slowmo", "paper"] = (
        "kstep"
    )

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"  # what follows the gradients
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)  # eta
    weight_decay: float = Field(default=0.3, ge=0, allow_inf_nan=False)  # of weights, in a step
    epochs: int = Field(default=200, ge=1)  # passes over the largest shard; with patience the most
    server: Literal["average", "fedavgm"] = "average"  # what the coordinator does with weights
    slowmo: Literal["off", "interpolate", "initial", "momentum"] = "off"  # slow momentum on them
    embedding: int = Field(default=128, ge=1)  # E
    skip: bool = True  # tops read the mean embedding linearly, too
    members: int = Field(default=4, ge=1)  # networks side by side, which share the embedding
    smoothing: Smoothing = "classes"  # of labels; classes: 0.1 of 3 classes or more
    patience: int | None = Field(default=10, ge=1)  # epochs without a better held-out loss
    bottom: AnyBottom | None = None  # of every data owner; None: by what its rows are
    selection: SelectionSection | None = None
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)  # a variant's own settings

    @model_validator(mode="before")
    @classmethod
    def _networks_as_given(cls, values: Any) -> Any:
        """Settings with networks as the paper's recipes describe them, and nothing beside them, if
        a file names any."""
        if not isinstance(values, Mapping):
            return values
        if not {"bottom", "top"}.isdisjoint(values):
            return {**_PLAIN, **values}
        if values.get("members") == 1 or values.get("average_tops") is False:  # nobody to judge by
            return {"patience": None, "epochs": _PLAIN["epochs"], **values}
        return values

    @model_validator(mode="before")
    @classmethod
    def _decay_of_adamw_alone(cls, values: Any) -> Any:
        """0.3 is for AdamW, which decays weights apart from gradients; others get none unasked."""
        if isinstance(values, Mapping) and values.get("optimizer", "adamw") != "adamw":
            return {"weight_decay": 0.0, **values}
        return values

    # The last "before" is the first to run: what the variant has, the others see.
    @model_validator(mode="before")
    @classmethod
    def _parts_of_the_variant(cls, values: Any) -> Any:
        """Settings that the variant has on, unless a key says otherwise."""
        parts = VARIANTS.get(str(values.get("variant"))) if isinstance(values, Mapping) else None
        if not parts:
            return values
        selection = values.get("selection", {})
        if "selection" in parts and isinstance(selection, Mapping):
            values = {**values, "selection": {**parts["selection"], **selection}}
        return {**parts, **values}


class FedOptimusRecord(FileRecord):
    """FedOptimus."""

    name = "fedoptimus"
    plugin = "dovetail.methods.fedoptimus.plugin:FedOptimus"
    Settings = FedOptimusSection
    PartySettings = OwnerSection
    variants: ClassVar[Mapping[str, str]] = {**VARIANT_NAMES, **BASELINES}
    driven_by = "coordinator"
