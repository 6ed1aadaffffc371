"""What a run of FedOptimus can be told besides the paper's symbols, and how large it may be."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from dovetail.errors import MessageError
from dovetail.methods.fedoptimus.messages import BeginData, BeginLabels
from dovetail.methods.fedoptimus.server import ServerSettings
from dovetail.models.owners import TopSpec
from dovetail.settings.models import ClassWeights, ThresholdSettings
from dovetail.settings.privacy import QUORUM, Release

#: The widest embedding or layer of a top, and the most layers, that a party counts at all.
MAX_WIDTH, MAX_LAYERS = 2**20, 100

#: Share of a label that is spread over all classes; "classes": 0.1 of more than two of them.
Smoothing = Annotated[float, Field(ge=0, lt=1)] | Literal["classes"]


class Abilities(ServerSettings):
    """Settings beside the paper's, which ``fedoptimus.Config`` adds."""

    # Those of the page, which layers read.
    epochs: int
    batch_size: int
    sync_every: int
    iterate_average: int
    share: float
    embedding: int
    top: tuple[int, ...]
    momentum: float = Field(default=0.0, ge=0, lt=1)  # of the parties' SGD; beta is the server's
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
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
    # Means of embeddings are taken under masks; more than this share of the data owners must answer
    # to the end, and one that is lost costs its own part.
    secure: bool = Field(default=False, exclude_if=lambda value: not value)
    quorum: float = Field(  # with secure: more than this share of the data owners must answer
        default=QUORUM, ge=0.5, lt=1, exclude_if=lambda value: value == QUORUM
    )
    # How embeddings leave data owners, and gradients label owners; None: as they are. A party's own
    # file may say otherwise.
    embeddings: Release | None = None
    gradients: Release | None = None

    @model_validator(mode="after")
    def _members_fit(self) -> Abilities:
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
        values = values and num_outputs > 1 and self.members > 1
        return TopSpec(self.embedding, self.top, num_outputs, self.skip, self.members, values)


A = TypeVar("A", bound=Abilities)


def settings_of(begin: BeginLabels | BeginData, kind: type[A]) -> A:
    """The run's settings.

    Raises:
        MessageError: settings that cannot be, or of a size that is not counted.
    """
    try:
        config = kind.model_validate_json(begin.settings)
    except ValidationError as error:
        raise MessageError(f"{begin.wire_name()}: settings that cannot be ({error})") from None
    if max(config.embedding, *config.top, 1) > MAX_WIDTH or len(config.top) > MAX_LAYERS:
        raise MessageError(f"{begin.wire_name()}: at most {MAX_LAYERS} layers of width {MAX_WIDTH}")
    return config
