"""Predicting with partners after APFed-D: each answers codes of rows that both have.

After APFed-S it answers encrypted numbers (``sealed_inference.py``), all else alike.

A partner keeps its networks of a run at its site. The label owner, who drives, agrees with each on
the samples by private set intersection, for this prediction only, and asks for their codes. Rows
that a partner lacks, or where it does not answer, are NaN, and the solo model says them.

    label owner                         partner
    psi, as ``alignment/psi.py``  <-->  its row of each sample
    Recall                        ---->
                                  <---- Recalled

Letters: B rows of a message, N samples, E codes of a partner, all members'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.errors import MessageError
from dovetail.federated import handles
from dovetail.methods.apfed.sealed_inference import Numbers, read_here
from dovetail.methods.base import Asked, Maker
from dovetail.methods.inference import Question, Recaller, kept_at
from dovetail.methods.party import Site
from dovetail.models import Bottom
from dovetail.models.learners.assisted_joint import AssistedSpec
from dovetail.models.learners.joint import BottomsSpec, JointSpec
from dovetail.network import Engine, Floats, Integers, Message
from dovetail.network.checkpoint import StatefulParty

# --- What crosses the boundary -----------------------------------------------------------------


class Recall(Message):
    """Label owner -> partner: codes of these samples, by the networks that you kept of a run."""

    family: ClassVar[str] = "recalling"  # as policies and parties' sides know it

    trained: str  # the run's id
    samples_B: Integers  # places in the order that the two have agreed on


class Recalled(Message):
    """Partner -> label owner: codes and linear parts of the samples asked for, all members'."""

    family: ClassVar[str] = "recalling"

    code_BE: Floats


# --- What a partner executes -------------------------------------------------------------------


class Inference(Recaller):
    """A partner after training."""

    goes_on, predicts = False, True

    @handles
    def infer(self, message: Recall) -> Recalled:
        """Codes of these samples."""
        return Recalled(self.embed(message.trained, message.samples_B))


def maker(site: Site) -> Maker:
    """Makes a partner's side of a prediction, for the label owner who asks."""

    def of_run(asked: Asked) -> Callable[[], StatefulParty]:
        rows_S = asked.rows_S()

        def fits(bottom: Bottom) -> bool:
            """What is learned for one label owner's labels tells another about them."""
            driver = bottom.about.get("driver", asked.driver)
            return isinstance(bottom.spec, BottomsSpec) and driver == asked.driver

        kept = kept_at(site, asked, fits)
        return lambda: Inference(rows_S, kept, asked.local())

    return of_run


# --- What the label owner executes -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartnerCodes:
    """Codes of samples.

    Attributes:
        codes: partner -> (N, E), NaN where it did not answer.
        missed: partner -> why it left out some that it has.
    """

    codes: Mapping[str, Tensor]
    missed: Mapping[str, str]

    @property
    def answered(self) -> dict[str, Tensor]:
        """Partner -> (N,) bool."""
        return {name: ~codes.isnan().any(dim=1) for name, codes in self.codes.items()}


@dataclass(frozen=True, eq=False)
class CodesOf:
    """The question of APFed-D: codes, as the partners' networks give them."""

    spec: JointSpec
    reply: ClassVar[type[Message]] = Recalled

    def message(self, trained: str, samples_B: Tensor) -> Recall:
        """Asks about these samples."""
        return Recall(trained, samples_B)

    def read(self, party: str, reply: Message, num_rows: int) -> Tensor:
        """(B, E).

        Raises:
            MessageError: not what was asked for.
        """
        reply.check(B=num_rows, E=self.spec.widths[party])
        assert isinstance(reply, Recalled)
        return reply.code_BE


def question_of(spec: JointSpec, keys: Callable[[], Mapping[str, Tensor]]) -> Question:
    """What partners of a joint model are asked for.

    Args:
        spec: of the model.
        keys: reads what decrypts partners' answers, where they are encrypted.

    Raises:
        ModelError: a key that is missing.
    """
    return Numbers(spec, keys()) if isinstance(spec, AssistedSpec) else CodesOf(spec)


def ask(
    network: Engine,
    trained: str,
    question: Question,
    held: Mapping[str, Tensor],
    *,
    timeout_s: float | None = None,
    batch_size: int = 1024,
) -> PartnerCodes:
    """What every partner says of the samples that it has; one that fails is not asked for further.

    Args:
        network: reaches the partners, each a ``Recalling`` or a ``Smoother``.
        trained: id of the run whose networks are meant.
        question: of the joint model.
        held: partner -> (N,) bool, which samples it has.
        timeout_s: how long a partner may take for a message.
        batch_size: samples a message.
    """
    widths = question.spec.widths
    codes = {
        name: torch.full((len(held_N), widths[name]), torch.nan) for name, held_N in held.items()
    }
    missed: dict[str, str] = {}
    for batch in torch.arange(max(map(len, held.values()), default=0)).split(batch_size):
        asked = {name: batch[held_N[batch]] for name, held_N in held.items() if name not in missed}
        requests = {
            name: question.message(trained, samples)
            for name, samples in asked.items()
            if len(samples)
        }
        replies = network.ask(requests, question.reply, timeout_s=timeout_s)
        missed |= {name: failure.cause for name, failure in replies.failures.items()}
        for name, reply in replies.items():
            try:
                codes[name][asked[name]] = question.read(name, reply, len(asked[name]))
            except MessageError as cause:
                missed[name] = str(cause)
    return PartnerCodes(codes, missed)


def codes_here(bottom: Bottom, x: Tensor, question: Question) -> Tensor:
    """(N, E) of rows of a partner whose part is in this process."""
    if isinstance(question, Numbers):
        return read_here(bottom, x, question)
    return bottom.embed(x)
