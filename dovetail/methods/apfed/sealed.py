"""APFed-S: partners help without reading anything; ours.

Gradient-assisted learning (Diao et al. 2022, arXiv:2106.01425) with encrypted targets and linear
smoothers. The label owner encrypts labels less class shares under a key of its own. A partner
multiplies them with the weights M that its columns alone give (``models/smoothers.py``), and sends
that back encrypted (``privacy/encrypted.py``). What the owner decrypts are a few numbers a row.

    t = y - mean y                                       at the label owner
    z_p = M_p t,  M_p = K_p (K_p + ridge I)^-1           at partner p, on ciphertexts

    Symbol     Here                 Shape      Lives at
    t          targets              (L, T)     label owner; sent encrypted
    M_p        Smoothing.weights    (R, L)     partner p
    z_p        Active.numbers       (R, J T)   sent encrypted to the label owner

    Letters: L labelled shared rows, T columns of targets, J smoothers, N and U samples asked about
    (of the rows that train, and of test rows), R both, P ciphertexts, W bytes.

    label owner                             partner
    Begin(targets, samples)           ---->  weights; products with the ciphertexts
                                      <----  Answered(numbers)

That is all. A partner sees which shared rows are labelled, their folds and how many classes there
are. A labelled row's number comes from targets of other folds. Partners are asked each by itself.
Rows that come later are asked about by ``sealed_inference.py``, from what both sides keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.data.inputs import Input
from dovetail.errors import ConfigError, MessageError, ModelError
from dovetail.federated import Driver, Epoch, Local, Party, handles
from dovetail.methods.apfed.asked_rows import beside, placed, rows_asked, rows_labelled
from dovetail.methods.apfed.distil import Table
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.apfed.sealed_checks import UNLIMITED, Asked, checked, counted_left
from dovetail.methods.apfed.sealed_numbers import Multiplying, Sealing, row_digests
from dovetail.methods.baselines import features
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models import Bottom
from dovetail.models.learners.assisted import targets
from dovetail.models.learners.distil import Owner
from dovetail.models.patches import kernels_of
from dovetail.models.smoothers import Smoother, Smoothing
from dovetail.network import Bytes, Draws, Engine, Integers, Message
from dovetail.privacy import encrypted
from dovetail.settings.models import Pictures

# --- What crosses the boundary -----------------------------------------------------------------


class Begin(Message):
    """Label owner -> partner: encrypted targets of labelled samples, and whom to smooth."""

    parameters: str  # of the encryption; see ``privacy/encrypted.py``
    kernels: tuple[str, ...]
    ridges: tuple[float, ...]
    block: int
    classes: int
    columns: int
    seed: int
    nonce_32: Bytes
    key_1W: Bytes
    targets_PV: Bytes
    labelled_L: Integers  # samples in the order of training
    folds_L: Integers
    samples_N: Draws
    tested_U: Integers  # samples in the order of test rows


class Answered(Message):
    """Partner -> label owner: each smoother's encrypted numbers of the samples, N and then U.

    A number times 2^-exponent is the weighted mean of targets.
    """

    exponents: tuple[int, ...]
    left: int  # numbers of a row that its policy still gives
    numbers_PW: Bytes


# --- What a partner executes -------------------------------------------------------------------


class Partner(Party):
    """A party that has columns, and answers on ciphertexts.

    Args:
        shared: its rows by shared sample.
        test: its test rows by shared sample; None if it has none.
        local: its context.
        limits: of its policy; None in simulation, which has none.
        given: how many numbers of each row it has given before; None: nobody counts.
        input: how raw columns become its rows, to be kept.
        pictures: what kernels see of pictures: "patches" as ``models/patches.py`` describes them,
            or "flat" pixels.
    """

    goes_on = False  # a run is one question

    def __init__(
        self, shared: SharedRows, test: SharedRows | None, local: Local,
        limits: SealedLimits | None = None, *, given: NumbersGiven | None = None,
        input: Input | None = None, pictures: Pictures = "patches",
    ) -> None:  # fmt: skip
        self.shared, self.test, self.input, self.given = shared, test, input, given
        self.limits, self.pictures = limits or UNLIMITED, pictures

    @handles
    def begin(self, message: Begin) -> Answered:
        """Numbers of the samples, once per run and row; all is checked before any work."""
        self.asked = checked(message, self.shared, self.test, self.limits, self.given)
        dither = torch.randint(256, (32,), generator=self.local.generator("dither")).byte()
        wire = message.key_1W[0], message.targets_PV, message.nonce_32, dither
        self.product = Multiplying(self.asked.layout, *wire)
        x_NF, shape = features(self.shared.x), self.shared.x.shape[1:]
        view, kernels = kernels_of(x_NF, shape, self.local.generator("kernels"), self.pictures)
        rows = self.asked.smoothers, view(self.asked.x_LF), message.folds_L
        self.smoothing = Smoothing(kernels, *rows, self.limits.least_rows, view)
        return self.answered(self.asked)

    def answered(self, asked: Asked) -> Answered:
        """Numbers by the smoothers that have not answered yet."""
        rows_R, first = row_digests(asked.x_RF, asked.known_R), len(self.product.wholes)
        left = counted_left(self.name, self.limits, self.given, asked, rows_R)
        answers = []
        for index in range(first, len(self.smoothing.smoothers)):
            weights_RL = self.smoothing.weights(asked.x_RF, index, asked.known_R, self.name)  # M
            answers.append(self.product.times(weights_RL, rows_R, index))
        self.smoothing.forget()
        exponents = tuple(each.exponent for each in self.product.wholes[first:])
        return Answered(exponents, left, torch.from_numpy(np.concatenate(answers)))

    def bottom_model(self) -> Bottom:
        """What it keeps at its site: its smoothers, and the targets that it cannot read."""
        network, spec = self.product.kept(self.smoothing)
        shape, width = tuple(self.shared.x.shape[1:]), len(spec.smoothers) * spec.sizes.columns
        return Bottom(self.name, network, spec, shape, width, self.input, {"method": "apfed-s"})


# --- What the label owner executes -------------------------------------------------------------


class Active(Driver):
    """The label owner.

    Args:
        owner: its rows, targets and folds.
        train: the same rows, by shared sample.
        test: test rows by shared sample; None if there are none.
        smoothers: what each partner is asked for.
        local: its context.
        seed: of the draw of labelled rows.
        timeout_s: how long a partner may take.
        max_rows: so many shared rows that take no part with a label are asked about at most.

    Attributes:
        numbers: partner -> (R, J C) of its rows, NaN where the partner has none.
        tested: the same of test rows.
        keys: partner -> what decrypts its answers, for the owner's own site.
        answers: partner -> how they are read, JSON-ready.
        lost: partner -> why it has no part.
        left: partner -> numbers of a row that its policy still gives.
        made: partner -> what it was asked, and what its answer is read with.
    """

    saved: ClassVar[tuple[str, ...]] = ("numbers", "tested", "keys", "answers", "lost")
    num_rounds = 2

    def __init__(
        self,
        owner: Owner,
        train: Table,
        test: Table | None,
        smoothers: Sequence[Smoother],
        local: Local,
        *,
        seed: int,
        timeout_s: float | None = None,
        max_rows: int = 8000,
    ) -> None:
        local.begin(seed)
        self.name, self.owner, self.train, self.test = local.name, owner, train, test
        self.local, self.smoothers = local, tuple(smoothers)
        self.timeout_s, self.max_rows = timeout_s, max_rows
        self.numbers: dict[str, Tensor] = {}
        self.tested: dict[str, Tensor] = {}
        self.keys: dict[str, Tensor] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.lost: dict[str, str] = {}
        self.left: dict[str, int] = {}
        self.made: dict[str, tuple[Begin, Sealing]] = {}
        encrypted.check_installed()

    def ask_all(self, network: Engine) -> Epoch:
        """Ask every partner, once."""
        self.made = {party: self.question(party) for party in self.train.samples}
        requests = {party: message for party, (message, _) in self.made.items()}
        replies = network.ask(requests, Answered, timeout_s=self.timeout_s).fitting()
        self.lost |= {party: failure.cause for party, failure in replies.failures.items()}
        for party, reply in replies.items():
            try:
                self.read(party, len(self.smoothers), reply)
            except (MessageError, ModelError) as cause:
                self.lost[party] = str(cause)
        return Epoch(num_steps=1, missed=dict.fromkeys(self.lost, 1), reasons=dict(self.lost))

    def labelled(self, party: str) -> Tensor:
        """(L,) its rows that are labelled and shared with a partner; of many a draw."""
        rng = self.local.generator("labelled")
        return rows_labelled(self.train.samples[party], self.owner.labelled, rng)

    def question(self, party: str) -> tuple[Begin, Sealing]:
        """What a partner is asked, and what its answer is read with."""
        rows_L, samples_R = self.labelled(party), self.train.samples[party]
        if len(rows_L) < 2:
            raise ConfigError(
                f"only {len(rows_L)} labelled rows are shared with {party!r}; align or label more"
            )
        rng = self.local.generator("asked about")
        samples_N = samples_R[rows_asked(samples_R, rows_L, self.max_rows, rng)]
        test_R = samples_N[:0] if self.test is None else self.test.samples[party]
        tested_U = test_R[test_R >= 0]
        t = targets(self.owner, rows_L)
        sealing = Sealing.of(t, len(samples_N) + len(tested_U), regression=self.owner.regression)
        message = Begin(
            **sealing.wire,
            kernels=tuple(each.kernel for each in self.smoothers),
            ridges=tuple(each.ridge for each in self.smoothers),
            seed=self.local.seed,
            labelled_L=samples_R[rows_L],
            folds_L=self.owner.folds_R[rows_L],
            samples_N=samples_N,
            tested_U=tested_U,
        )
        return message, sealing

    def read(self, party: str, num_smoothers: int, reply: Answered) -> None:
        """Keep what a partner answered, by row, beside what it answered before.

        Raises:
            MessageError: it is not what was asked for.
        """
        if len(reply.exponents) != num_smoothers:
            raise MessageError(f"{reply.wire_name()}: not the numbers that were asked for")
        asked, sealing = self.made[party]
        reader = sealing.reader(reply.exponents)
        num = len(asked.samples_N), len(asked.tested_U)
        z_NZ, z_UZ = reader.read(reply.numbers_PW.numpy(), sum(num)).split(num)  # M t
        beside(self.numbers, party, placed(z_NZ, self.train.samples[party], asked.samples_N))
        if self.test is not None:
            beside(self.tested, party, placed(z_UZ, self.test.samples[party], asked.tested_U))
        before = self.answers.get(party, {"exponents": ()})["exponents"]
        exponents = [*before, *reply.exponents]
        self.answers[party] = asdict(reader.answers) | {"exponents": exponents}
        self.keys[party], self.left[party] = torch.from_numpy(reader.key.secret), reply.left

    @property
    def partners(self) -> tuple[str, ...]:
        """Those that answered."""
        return tuple(self.numbers)
