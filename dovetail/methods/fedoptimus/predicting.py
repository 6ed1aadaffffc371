"""Predicting together: a label owner's top and data owners' bottoms, apart or in one place.

While training goes on, owners use the networks as they are: ``score``, ``predict`` and ``joint``.
Afterwards each has its own model at its site. ``models/joined.py`` puts models that were brought to
one place together. Models that stay where they are predict by ``recall``: a label owner, who drives
then, asks data owners for the embeddings of samples that it has agreed on with each. So they may be
new ones, and not every data owner has all of them: a mean is over those that have the sample and
answer.

    label owner                         data owner
    psi, as ``alignment/psi.py``  <-->  its row of each sample
    Recall                        ---->
                                  <---- Embeddings

Letters: B rows of a message, N samples, E embedding width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dovetail.errors import ConfigError
from dovetail.federated import handles
from dovetail.methods.fedoptimus import Coordinator, DataOwner, LabelOwner
from dovetail.methods.fedoptimus.evaluation import asked_sums
from dovetail.methods.fedoptimus.messages import Embeddings, Measure
from dovetail.methods.fedoptimus.requests import checked_embedding
from dovetail.methods.inference import Question, Recaller
from dovetail.models import Model
from dovetail.models.joined import join
from dovetail.models.owners import Bottom, TopSpec
from dovetail.network import Engine, Integers, Message

# --- What crosses the boundary -----------------------------------------------------------------


class Recall(Message):
    """Label owner -> data owner: embed these samples with the network that you kept of a run."""

    trained: str  # the run's id
    samples_B: Integers  # places in the order that the two have agreed on


# --- While training goes on --------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """How good a label owner's model is on its test samples.

    Attributes:
        accuracy: share that is classified rightly; None of other labels than classes.
        loss: mean over the samples, as in training.
        num_rows: how many samples.
        answered: data owners that were in every mean.
        missed: data owner -> why it was left out of some.
    """

    accuracy: float | None
    loss: float
    num_rows: int
    answered: tuple[str, ...]
    missed: Mapping[str, str]
    kind: str = "classification"

    @property
    def of_numbers(self) -> dict[str, float]:
        """The loss by its name: a squared error of numbers, else what the task has."""
        return {"mse" if self.kind == "regression" else "loss": self.loss}


def score(
    coordinator: Coordinator,
    network: Engine,
    *,
    label_owners: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Label owner -> how good its model is now on its test samples, by messages.

    Args:
        label_owners: None: all. With ``average_tops`` all have one model after a round.

    Raises:
        ConfigError: a label owner without test samples.
        PartyError: a label owner does not answer, or not with a score.
        TrainingError: no data owner answers.
    """
    scores = {}
    for owner in coordinator.label_owners if label_owners is None else label_owners:
        num = coordinator.ready[owner].num_test
        if not num:
            raise ConfigError(f"label owner {owner!r} has no test samples to be scored on")
        requests = coordinator.asking(network)
        names, samples_N = coordinator.data_owners, torch.arange(num)
        measured = asked_sums(Measure, owner, samples_N, names, coordinator.config, requests)
        kind = json.loads(coordinator.ready[owner].task)["kind"]
        scores[owner] = Score(
            measured.num_right / num if kind == "classification" else None,
            measured.loss / num,
            num,
            tuple(name for name in names if name not in requests.missed),
            requests.missed.reasons,
            kind,
        )
    return scores


# --- In one place ------------------------------------------------------------------------------


def joint(label_owner: LabelOwner, data_owners: Sequence[DataOwner]) -> Model:
    """This label owner's model with the data owners' networks, in one process.

    It has a block for each data owner, and leaves out of the mean those that it is not given.
    """
    bottoms = [owner.bottom_model() for owner in data_owners]
    return join(label_owner.model(), bottoms)


# --- Afterwards, each at its site -----------------------------------------------------------------


class Inference(Recaller):
    """A data owner after training: embeds with the network that it kept of a run."""

    predicts = True

    @handles
    def infer(self, message: Recall) -> Embeddings:
        """Embeddings of these samples."""
        return Embeddings(self.embed(message.trained, message.samples_B))


@dataclass(frozen=True)
class EmbeddingsOf:
    """The question to data owners: embeddings, whose mean the top reads.

    Attributes:
        embedding: E.
    """

    embedding: int
    reply: ClassVar[type[Message]] = Embeddings

    def width(self, party: str) -> int:
        """E, the same of all."""
        return self.embedding

    def message(self, trained: str, samples_B: Tensor) -> Recall:
        """Asks about these samples."""
        return Recall(trained, samples_B)

    def read(self, party: str, reply: Message, num_rows: int) -> Tensor:
        """(B, E).

        Raises:
            MessageError: not what was asked for.
        """
        assert isinstance(reply, Embeddings)
        return checked_embedding(reply, num_rows, self.embedding)

    def here(self, bottom: Bottom, x: Tensor) -> Tensor:
        """(N, E) of rows of a data owner whose network is in this process."""
        return bottom.embed(x)


def question(spec: Any, keys: Callable[[], Mapping[str, Tensor]]) -> Question | None:
    """Question to data owners of a top; None: it is none."""
    return EmbeddingsOf(spec.embedding) if isinstance(spec, TopSpec) else None
