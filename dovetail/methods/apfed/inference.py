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
from typing import Any, ClassVar

from torch import Tensor

from dovetail.federated import handles
from dovetail.methods.apfed.sealed_inference import Numbers
from dovetail.methods.base import Asked, Maker
from dovetail.methods.inference import Question, Recaller, kept_at
from dovetail.methods.party import Site
from dovetail.models import Bottom
from dovetail.models.learners.assisted_joint import AssistedSpec
from dovetail.models.learners.joint import BottomsSpec, JointSpec
from dovetail.network import Floats, Integers, Message
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
            """Whether a bottom was trained with this driver: it reveals a label owner's labels."""
            driver = bottom.about.get("driver", asked.driver)
            return isinstance(bottom.spec, BottomsSpec) and driver == asked.driver

        kept = kept_at(site, asked, fits)
        return lambda: Inference(rows_S, kept, asked.local())

    return of_run


# --- What the label owner executes -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CodesOf:
    """The question of APFed-D: codes, as the partners' networks give them."""

    spec: JointSpec
    reply: ClassVar[type[Message]] = Recalled

    def width(self, party: str) -> int:
        """E of this partner; 0 of who is none."""
        return self.spec.widths.get(party, 0)

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

    def here(self, bottom: Bottom, x: Tensor) -> Tensor:
        """(N, E) of rows of a partner whose part is in this process."""
        return bottom.embed(x)


def question(spec: Any, keys: Callable[[], Mapping[str, Tensor]]) -> Question | None:
    """Question to partners of a joint model of APFed-D or APFed-S; None: it is none."""
    if isinstance(spec, AssistedSpec):
        return Numbers(spec, keys())
    return CodesOf(spec) if isinstance(spec, JointSpec) else None
