"""Predicting with partners after training, whose networks stay at their sites.

A partner keeps its networks of a run. The label owner, who drives, agrees with each on the samples
by private set intersection, for this prediction only, and asks about them. Rows that a partner
lacks, or where it does not answer, are NaN, and the solo model says them.

    label owner                         partner
    psi, as ``alignment/psi.py``  <-->  its row of each sample
    Recall                        ---->
                                  <---- Recalled: codes, after APFed-D
    Smooth                        ---->
                                  <---- Smoothed: encrypted numbers, after APFed-S

Of APFed-S a partner keeps its smoother and the targets that it cannot read, the label owner the
key. The same rows have the same numbers however often they are asked about together, and count
once; among other rows they have other blurs, and count again.

Letters: B rows of a message, N samples, E codes or numbers of a row, P ciphertexts, W bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import MessageError, ModelError
from dovetail.federated import Local, Party, handles
from dovetail.methods.apfed.numbers import NumbersGiven, counted
from dovetail.methods.apfed.sealed import Multiplying, Reader, row_names
from dovetail.methods.base import Asked, Maker, Site
from dovetail.methods.baselines import features
from dovetail.methods.inference import Kept, Question, Recaller, recalling
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models import Bottom
from dovetail.models.kept_smoothing import KeptSmoothing, SmoothingSpec
from dovetail.models.learners.assisted_joint import AssistedSpec
from dovetail.models.learners.joint import BottomsSpec, JointSpec
from dovetail.network import Bytes, Floats, Integers, Message, noted
from dovetail.privacy import encrypted

# --- What crosses the boundary -----------------------------------------------------------------


class Smooth(Message):
    """Label owner -> partner: numbers of these samples, by what you keep of a run."""

    family: ClassVar[str] = "smoothing"  # as policies and parties' sides know it

    trained: str  # the run's id
    samples_B: Integers  # places in the order that the two have agreed on


class Smoothed(Message):
    """Partner -> label owner: encrypted numbers of the samples."""

    family: ClassVar[str] = "smoothing"

    place_B: Integers  # where each sample's numbers lie
    numbers_PW: Bytes


# --- What a partner executes -------------------------------------------------------------------


class Smoother(Party):
    """A partner after training.

    Args:
        rows_S: its row of each sample that it has agreed on with the label owner, -1: it has none.
        kept: what it keeps.
        local: its context.
        limits: of its policy.
        given: how many numbers of each row it has given before.
    """

    goes_on, predicts = False, True

    def __init__(
        self,
        rows_S: Tensor,
        kept: Kept,
        local: Local,
        limits: SealedLimits,
        given: NumbersGiven,
    ) -> None:
        self._rows_S, self._kept_of, self._limits, self._given = rows_S, kept, limits, given
        self._opened: tuple[str, KeptSmoothing, Multiplying, SharedRows] | None = None

    @handles
    def smooth(self, message: Smooth) -> Smoothed:
        """Numbers of these samples; those that were asked for before are not counted again."""
        if len(message.samples_B) > len(self._rows_S):
            raise MessageError("more samples than are shared: each sample once")
        if not len(message.samples_B):
            raise MessageError(f"{message.wire_name()}: expected one sample or more")
        if self._opened is None or self._opened[0] != message.trained:
            self._opened = self._open(message.trained)
        _, network, product, shared = self._opened
        rows_B = shared.rows(message.samples_B)
        if len(rows_B.unique()) < len(rows_B):
            raise MessageError(f"{message.wire_name()}: a sample is asked about twice")
        x_BF = features(shared.x[rows_B])
        columns, names = product.layout.columns, row_names(self._given.ids_N[rows_B], x_BF)
        bits = self._limits.bits_of(columns)
        placed = product.placed(names, network.smoothing, bits)
        counted(self.name, self._limits, self._given, rows_B, columns, placed.digest)
        numbers_PW = product.answered(network.smoothing, x_BF, placed, bits)
        return noted(Smoothed(placed.place_R, numbers_PW), {"bits": bits * columns})

    def _open(self, trained: str) -> tuple[str, KeptSmoothing, Multiplying, SharedRows]:
        bottom, x = self._kept_of(trained)
        network, spec = bottom.network, bottom.spec
        assert isinstance(network, KeptSmoothing)
        assert isinstance(spec, SmoothingSpec)
        network.smoothing.least_rows = max(spec.least_rows, self._limits.least_rows)
        product = Multiplying.again(network, spec.sizes)
        return trained, network, product, SharedRows(self.name, x, self._rows_S)


def numbers_maker(site: Site) -> Maker:
    """Makes a partner's side of a prediction, for the label owner who asks."""

    def fits(bottom: Bottom, asked: Asked) -> bool:
        """Whether it answers this driver: a key of another label owner reads nothing."""
        driver = bottom.about.get("driver")
        return isinstance(bottom.spec, SmoothingSpec) and driver == asked.driver

    def make(asked: Asked) -> Callable[..., Smoother]:
        policy = site.policy.section
        given = NumbersGiven(asked.quota, policy.counted(asked.driver), site.table.ids)
        return lambda rows_S, kept: Smoother(rows_S, kept, asked.local(), policy.sealed, given)

    return recalling(site, fits, make)


# --- What the label owner executes -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Numbers:
    """The question to partners of a joint model, and how their answers are read.

    Args:
        spec: of the joint model.
        keys: partner -> what decrypts its answers.

    Raises:
        ModelError: a key that is missing, or none.
    """

    spec: AssistedSpec
    keys: Mapping[str, Tensor]
    reply: ClassVar[type[Message]] = Smoothed

    def __post_init__(self) -> None:
        lacking = [name for name in self.spec.partners if name not in self.keys]
        if lacking:
            raise ModelError(f"there is no key that reads what {lacking[0]!r} answers")

    def width(self, party: str) -> int:
        """E of this partner; 0 of who is none."""
        return self.spec.widths.get(party, 0)

    def message(self, trained: str, samples_B: Tensor) -> Smooth:
        """Asks about these samples."""
        return Smooth(trained, samples_B)

    def read(self, party: str, reply: Message, num_rows: int) -> Tensor:
        """(B, E) numbers.

        Raises:
            MessageError: not what was asked for.
        """
        assert isinstance(reply, Smoothed)
        return self._readers[party].read(reply.numbers_PW, reply.place_B, num_rows)

    def here(self, bottom: Bottom, x: Tensor) -> Tensor:
        """(N, E) numbers of rows of a partner whose part is in this process."""
        network, spec = bottom.network, bottom.spec
        assert isinstance(network, KeptSmoothing)
        assert isinstance(spec, SmoothingSpec)
        x_NF = features(x)
        product = Multiplying.again(network, spec.sizes)
        bits = SealedLimits().bits_of(product.layout.columns)
        placed = product.placed(row_names(range(len(x_NF)), x_NF), network.smoothing, bits)
        wire_PW = product.answered(network.smoothing, x_NF, placed, bits)
        return self.read(bottom.party, Smoothed(placed.place_R, wire_PW), len(x_NF))

    @cached_property
    def _readers(self) -> dict[str, Reader]:
        spec = self.spec
        return {
            name: Reader(
                encrypted.SecretKey(self.keys[name].numpy().tobytes()), answers, spec.regression
            )
            for name, answers in zip(spec.partners, spec.answers, strict=True)
        }


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


def codes_maker(site: Site) -> Maker:
    """Makes a partner's side of a prediction, for the label owner who asks."""

    def fits(bottom: Bottom, asked: Asked) -> bool:
        """Whether a bottom was trained with this driver: it reveals a label owner's labels."""
        driver = bottom.about.get("driver", asked.driver)
        return isinstance(bottom.spec, BottomsSpec) and driver == asked.driver

    def make(asked: Asked) -> Callable[..., Inference]:
        return lambda rows_S, kept: Inference(rows_S, kept, asked.local())

    return recalling(site, fits, make)


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
