"""FedOptimus' sections: ``[fedoptimus]`` of a run file and of a party file, and bottoms in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WrapSerializer, WrapValidator, model_validator

from dovetail.methods import fedoptimus, selection
from dovetail.methods.fedoptimus.settings import Smoothing
from dovetail.methods.labels import (
    LabelScale,
)
from dovetail.methods.section import own_installed, own_network, own_written
from dovetail.models import OwnNetwork
from dovetail.models.owners import (
    BottomSpec,
    ColumnsMlp,
    EncodedMlp,
    OwnBottom,
    OwnerResNet,
    StripCnn,
)
from dovetail.settings.privacy import QUORUM, Release
from dovetail.settings.section import Section


class StripCnnSection(Section):
    """One convolution and two fully connected layers."""

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


def bottom(field: BottomField | OwnNetwork | None, shape: tuple[int, ...]) -> BottomSpec:
    """The network that a file names: a kind, its settings, or hidden widths; None: by the rows.

    Raises:
        ConfigError: settings that cannot be.
    """
    match field:
        case None:
            return StripCnn() if len(shape) == 3 else EncodedMlp()
        case OwnNetwork():
            return OwnBottom(field)
        case "strip-cnn":
            return StripCnn()
        case "resnet-18":
            return OwnerResNet()
        case StripCnnSection():
            return StripCnn(field.channels, field.kernel, field.stride, field.hidden)
        case ResNet18Section():
            return OwnerResNet(field.width)
    assert isinstance(field, tuple)
    return ColumnsMlp(field)


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


class SelectionSection(selection.Config):
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

#: What the paper has on: FedAvgM, SlowMo of the text, and the most relevant data owners by current
#: embeddings in every round. It gives no share to keep; three of four is Table 1's here.
_PAPER = {"server": "fedavgm", "slowmo": "interpolate"}

_PAPER_SELECTION = {"share": 0.75, "every": 1}


class FedOptimusSection(fedoptimus.Config):
    """Settings of the method and its baselines.

    The defaults are those of a user, K steps and an average, and not the paper's: ``variant`` and
    ``fedoptimus.Config`` have those.
    """

    # "kstep": K steps between averages alone; "paper": lines 4, 5 and 11 to 13, too, which are
    # selection in every round, FedAvgM and SlowMo, unless a key says otherwise
    variant: Literal["kstep", "paper"] = "kstep"

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
    def _parts_of_the_paper(cls, values: Any) -> Any:
        """The paper's parts are on if its variant is asked for."""
        if not isinstance(values, Mapping) or values.get("variant") != "paper":
            return values
        selection = values.get("selection", {})
        if isinstance(selection, Mapping):
            selection = {**_PAPER_SELECTION, **selection}
        return {**_PAPER, **values, "selection": selection}

    @model_validator(mode="before")
    @classmethod
    def _networks_as_given(cls, values: Any) -> Any:
        """Who describes networks, as the paper's recipes do, gets these and nothing beside them."""
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
