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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.errors import ConfigError, MessageError, PartyError
from dovetail.federated import Driver, Epoch, Local, Party, handles
from dovetail.methods.apfed.distil import Table
from dovetail.methods.apfed.numbers import NumbersGiven
from dovetail.methods.baselines import features
from dovetail.methods.limits import SealedLimits
from dovetail.models import Secret, generator, key_of
from dovetail.models.learners.assisted import all_columns, targets
from dovetail.models.learners.distil import Owner
from dovetail.models.smoothers import Kernels, Smoother, Smoothing, smoother_of
from dovetail.network import Bytes, Draws, Engine, Integers, Message
from dovetail.privacy import encrypted

#: Labelled rows that take part at most, and smoothers of one run.
MAX_LABELLED, MAX_SMOOTHERS = 3000, 12

#: Of a partner that is simulated; labels of each class may be few there, too.
UNLIMITED = SealedLimits(numbers_per_row=10**6)

# --- What crosses the boundary -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class Answered(Message):
    """Partner -> label owner: each smoother's encrypted numbers of the samples, N and then U.

    A number times 2^-exponent is the weighted mean of targets.
    """

    exponents: tuple[int, ...]
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
    """

    goes_on = False  # a run is one question

    def __init__(
        self,
        shared: SharedRows,
        test: SharedRows | None,
        local: Local,
        limits: SealedLimits | None = None,
        *,
        given: NumbersGiven | None = None,
    ) -> None:
        self.local, self.shared, self.test = local, shared, test
        self.limits, self.given = limits or UNLIMITED, given

    @handles
    def begin(self, message: Begin) -> Answered:
        """Numbers of the samples, once per run and row; all is checked before any work."""
        smoothers, layout, cells = self._checked(message)
        rows_L = self.shared.rows(message.labelled_L)
        x_NF = features(self.shared.x)
        own_R = torch.cat([x_NF[self.shared.rows(message.samples_N)], self._tested(message)])
        held = encrypted.Encrypted(
            layout,
            message.key_1W.numpy()[0],
            message.targets_PV.numpy(),
            message.nonce_32.numpy().tobytes(),
        )
        kernels = Kernels.fit(x_NF, self.local.generator("kernels"))
        folds_L = message.folds_L
        self.smoothing = Smoothing(
            kernels, smoothers, x_NF[rows_L], folds_L, self.limits.least_rows
        )
        places = {int(sample): place for place, sample in enumerate(message.labelled_L)}
        known = torch.tensor([places.get(int(sample), -1) for sample in message.samples_N])
        known_R = torch.cat([known, torch.full((len(message.tested_U),), -1)]).long()
        exponents, answers = [], []
        for place in range(len(smoothers)):
            weights_RL = self.smoothing.weights(own_R, place)
            weights_RL[known_R >= 0] = self.smoothing.left_out(place)[known_R[known_R >= 0]]
            exponent, numbers = answer(held, weights_RL, self.local.generator("dither", str(place)))
            exponents.append(exponent)
            answers += numbers
        if self.given is not None:
            self.given.add(cells, len(smoothers) * message.columns)
        return Answered(tuple(exponents), torch.from_numpy(np.stack(answers)))

    def _tested(self, message: Begin) -> Tensor:
        if not len(message.tested_U):
            return features(self.shared.x)[:0]
        if self.test is None:
            raise MessageError(f"{message.wire_name()}: it has no test table")
        return features(self.test[message.tested_U])

    def _checked(self, message: Begin) -> tuple[tuple[Smoother, ...], encrypted.Layout, Tensor]:
        """What is asked for, and which of its rows it is about."""
        if message.parameters != encrypted.PARAMETERS:
            raise MessageError(
                f"{message.wire_name()}: encrypted by {message.parameters[:60]!r}, and this party "
                f"takes {encrypted.PARAMETERS}; use the same version on both sides"
            )
        labelled, num = message.labelled_L, len(message.labelled_L)
        if not self.limits.least_rows <= num <= MAX_LABELLED:
            raise MessageError(
                f"{message.wire_name()}: {num} labelled rows, and this party takes "
                f"{self.limits.least_rows:g} (its policy.sealed.least_rows) to {MAX_LABELLED}"
            )
        if not 0 < len(message.kernels) == len(message.ridges) <= MAX_SMOOTHERS:
            raise MessageError(
                f"{message.wire_name()}: expected 1 to {MAX_SMOOTHERS} smoothers, got "
                f"{len(message.kernels)} kernels and {len(message.ridges)} ridges"
            )
        smoothers = tuple(
            smoother_of(kernel, ridge)
            for kernel, ridge in zip(message.kernels, message.ridges, strict=True)
        )
        layout = encrypted.Layout(num, message.columns, message.block, message.classes)
        folds = message.folds_L.unique(return_counts=True)
        asked = self.shared.rows(message.samples_N)
        tested = asked[:0] if self.test is None else self.test.rows(message.tested_U)
        same = self.test is not None and self.test.x is self.shared.x
        for what, each in (
            ("labelled", self.shared.rows(labelled)),
            ("asked about", torch.cat([asked, tested]) if same else asked),
            ("asked about", tested),
        ):
            if len(each.unique()) < len(each):
                raise MessageError(f"{message.wire_name()}: a sample is {what} twice")
        if len(folds[0]) < 2 or num - int(folds[1].max()) < self.limits.least_rows:
            raise MessageError(
                f"{message.wire_name()}: without its own fold a row is smoothed by fewer than "
                f"{self.limits.least_rows:g} others (its policy.sealed.least_rows)"
            )
        cells = torch.cat([asked, tested]) if same else asked
        more = len(smoothers) * message.columns
        before = 0 if self.given is None else self.given.most(cells)
        if before + more > self.limits.numbers_per_row:
            raise PartyError(
                self.name,
                f"refuses {more} numbers a row: it has given {before} of a row before, and its "
                f"policy.sealed.numbers_per_row is {self.limits.numbers_per_row}; ask its owner to "
                "raise it",
            )
        return smoothers, layout, cells


def answer(
    held: encrypted.Encrypted, weights_RL: Tensor, rng: torch.Generator
) -> tuple[int, list[np.ndarray]]:
    """The exponent, and the ciphertexts of the weights' product with the targets.

    Each number is blurred by 2^-19 of what a row of weights of that spread gives, so that it has
    no room for a second one.
    """
    weights = weights_RL.double().numpy()
    exponent = encrypted.exponent_of(float(np.abs(weights).sum(axis=1).max(initial=0.0)))
    whole = np.rint(np.ldexp(weights, exponent)).astype(np.int64)
    norm = float(np.sqrt((whole.astype(np.float64) ** 2).sum(axis=1).mean()))
    blur = max(1, int(norm * 2 ** (encrypted.TARGET_BITS - 19)))

    def dither(shape: tuple[int, int]) -> np.ndarray:
        return torch.randint(-blur, blur + 1, shape, generator=rng).numpy()

    return exponent, list(held.multiply(lambda rows: whole[rows], len(whole), dither))


# --- What the label owner executes -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Question:
    """What a partner is asked, and what its answer is read with."""

    message: Begin
    layout: encrypted.Layout
    owner: encrypted.Owner
    unit: float


class Active(Driver):
    """The label owner.

    Args:
        name: the party.
        owner: its rows, targets and folds.
        train: the same rows, by shared sample.
        test: test rows by shared sample; None if there are none.
        smoothers: what each partner is asked for.
        seed: of the draw of labelled rows.
        secret: of its home.
        timeout_s: how long a partner may take.
        max_rows: so many shared rows that take no part with a label are asked about at most.

    Attributes:
        numbers: partner -> (R, J C) of its rows, NaN where the partner has none.
        tested: the same of test rows.
        lost: partner -> why it has no part.
    """

    saved = ("numbers", "tested", "lost")
    num_rounds = 2

    def __init__(
        self,
        name: str,
        owner: Owner,
        train: Table,
        test: Table | None,
        smoothers: Sequence[Smoother],
        *,
        seed: int,
        secret: Secret | None = None,
        timeout_s: float | None = None,
        max_rows: int = 8000,
    ) -> None:
        self.max_rows = max_rows
        self.name, self.owner, self.train, self.test = name, owner, train, test
        self.smoothers, self.seed, self.timeout_s = tuple(smoothers), seed, timeout_s
        self._key = key_of(secret)
        self.numbers: dict[str, Tensor] = {}
        self.tested: dict[str, Tensor] = {}
        self.lost: dict[str, str] = {}
        encrypted.check_installed()

    def labelled(self, party: str) -> Tensor:
        """(L,) its rows that are labelled and shared with a partner; of many a draw."""
        rows = ((self.train.samples[party] >= 0) & self.owner.labelled).nonzero().flatten()
        if len(rows) > MAX_LABELLED:
            rng = generator(self.seed, self.name, "labelled", secret=self._key)
            rows = rows[torch.randperm(len(rows), generator=rng)[:MAX_LABELLED]].sort().values
        return rows

    def asked(self, party: str, rows_L: Tensor) -> Tensor:
        """(N,) its rows that a partner is asked about: the labelled ones, and a draw of others."""
        shared = self.train.samples[party] >= 0
        others = shared.clone()
        others[rows_L] = False
        rows = others.nonzero().flatten()
        rng = generator(self.seed, self.name, "asked about", secret=self._key)
        drawn = rows[torch.randperm(len(rows), generator=rng)[: self.max_rows]]
        return torch.cat([rows_L, drawn]).sort().values

    def ask_all(self, network: Engine) -> Epoch:
        """Ask every partner, once."""
        made = {party: self._question(party) for party in self.train.samples}
        requests = {party: each.message for party, each in made.items()}
        replies = network.ask(requests, Answered, timeout_s=self.timeout_s).fitting()
        self.lost |= {party: failure.cause for party, failure in replies.failures.items()}
        for party, reply in replies.items():
            try:
                self._read(party, made[party], reply)
            except MessageError as cause:
                self.lost[party] = str(cause)
        missed = dict.fromkeys(self.lost, 1)
        return Epoch(num_steps=1, missed=missed, reasons=dict(self.lost))

    def _question(self, party: str) -> _Question:
        rows_L = self.labelled(party)
        samples_R = self.train.samples[party]
        samples_N = samples_R[self.asked(party, rows_L)]
        tested_U = samples_N[:0]
        if self.test is not None:
            tested_U = self.test.samples[party][self.test.samples[party] >= 0]
        if len(rows_L) < 2:
            raise ConfigError(
                f"only {len(rows_L)} labelled rows are shared with {party!r}; align or label more"
            )
        whole, unit = encrypted.whole_targets(targets(self.owner, rows_L).double().numpy())
        layout = encrypted.Layout.best(len(whole), whole.shape[1], len(samples_N) + len(tested_U))
        owner, nonce = encrypted.Owner(), encrypted.new_nonce()
        message = Begin(
            parameters=encrypted.PARAMETERS,
            kernels=tuple(each.kernel for each in self.smoothers),
            ridges=tuple(each.ridge for each in self.smoothers),
            block=layout.block,
            classes=layout.classes,
            columns=layout.columns,
            seed=self.seed,
            nonce_32=_tensor(np.frombuffer(nonce, np.uint8)),
            key_1W=_tensor(owner.public_key(nonce)[None]),
            targets_PV=_tensor(owner.encrypt(whole, layout, nonce)),
            labelled_L=samples_R[rows_L],
            folds_L=self.owner.folds_R[rows_L],
            samples_N=samples_N,
            tested_U=tested_U,
        )
        return _Question(message, layout, owner, unit)

    def _read(self, party: str, asked: _Question, reply: Answered) -> None:
        """Keep what a partner answered, by row.

        Raises:
            MessageError: it is not what was asked for.
        """
        message, owner = asked.message, asked.owner
        num = len(message.samples_N) + len(message.tested_U)
        wire = reply.numbers_PW.numpy()
        each = asked.layout.num_answers(num)
        if len(reply.exponents) != len(self.smoothers) or len(wire) != each * len(self.smoothers):
            raise MessageError(f"{reply.wire_name()}: not the numbers that were asked for")
        num_outputs, parts = self.owner.targets_RC.shape[1], []
        for place, exponent in enumerate(reply.exponents):
            if not -1000 < exponent < 1000:
                raise MessageError(f"{reply.wire_name()}: an exponent of {exponent}")
            whole = owner.decrypt(wire[place * each : (place + 1) * each], asked.layout, num)
            z = torch.from_numpy(np.ldexp(whole * asked.unit, -exponent)).float()
            parts.append(all_columns(z, num_outputs, regression=self.owner.regression))
        z_NZ = torch.cat(parts, dim=1)
        train_NZ, tested_UZ = z_NZ.split([len(message.samples_N), len(message.tested_U)])
        self.numbers[party] = _placed(train_NZ, self.train.samples[party], message.samples_N)
        if self.test is not None:
            self.tested[party] = _placed(tested_UZ, self.test.samples[party], message.tested_U)

    @property
    def partners(self) -> tuple[str, ...]:
        """Those that answered."""
        return tuple(self.numbers)

    def aligned(self) -> Tensor:
        """(R,) bool: rows of which a partner said something."""
        held = [~each.isnan().any(dim=1) for each in self.numbers.values()]
        return torch.stack(held).any(dim=0)


def _placed(z_NZ: Tensor, samples_R: Tensor, asked_N: Tensor) -> Tensor:
    """(R, Z) NaN of rows that were not asked about."""
    row_of = torch.full((int(samples_R.max()) + 1,), -1)
    held = samples_R >= 0
    row_of[samples_R[held]] = held.nonzero().flatten()
    placed = torch.full((len(samples_R), z_NZ.shape[1]), torch.nan)
    placed[row_of[asked_N]] = z_NZ
    return placed


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))
