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
    z_p        Active.numbers       (R, T)     sent encrypted to the label owner, blurred

    Letters: L labelled shared rows, T columns of targets, N and U samples asked about (of the rows
    that train, and of test rows), R both, P ciphertexts, W bytes.

    label owner                             partner
    Begin(targets, samples)           ---->  weights; products with the ciphertexts
                                      <----  Answered(numbers)

That is all. A partner sees which shared rows are labelled, their folds and how many classes there
are. A labelled row's number comes from targets of other folds. Kernel, ridge and the bits of a
number are the partner's own (``[policy] sealed``). Partners are asked each by itself.
Rows that come later are asked about by ``inference.py``, from what both sides keep.

All that is random in an answer follows from a secret of the partner's site and from the question:
key and targets, the rows and their columns, and the weights. So the same question has the same
answer, and no two others share a blur. Rows are put into ciphertexts in an order that follows from
it, too: an owner that makes targets up does not know whose numbers it mixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dovetail.data import SharedRows
from dovetail.data.preprocessing import Input
from dovetail.errors import ConfigError, MessageError, ModelError, RefusalError, TrainingError
from dovetail.federated import Driver, Epoch, Local, Party, handles
from dovetail.methods.apfed.asked_rows import placed, rows_asked, rows_labelled
from dovetail.methods.apfed.distil import AlignedRows
from dovetail.methods.apfed.numbers import UNLIMITED, NumbersGiven, checked, counted
from dovetail.methods.baselines import features
from dovetail.methods.settings.shared import SealedLimits
from dovetail.models import Bottom, generator
from dovetail.models.kept_smoothing import KeptSmoothing, SealedTargets, SmoothingSpec
from dovetail.models.learners import Fitted
from dovetail.models.learners.assisted import all_columns, targets
from dovetail.models.learners.assisted_joint import Answers
from dovetail.models.learners.distil import Owner
from dovetail.models.patches import Patches, kernels_of
from dovetail.models.smoothers import Smoother, Smoothing
from dovetail.network import Bytes, Draws, Engine, Integers, Message, noted
from dovetail.privacy import encrypted
from dovetail.settings.models import Pictures


def lasting(local: Local, *purpose: str) -> torch.Generator:
    """Random numbers of a site, the same in all of its runs; in simulation of the run's seed."""
    return generator(local.seed, local.name, *purpose, secret=local.lasting or local.key)


def bytes_of(rng: torch.Generator) -> Tensor:
    """(32,) bytes, which nobody else can compute."""
    return torch.randint(256, (encrypted.SEED_BYTES,), generator=rng).byte()


def row_names(ids_R: Sequence[Any], x_RF: Tensor) -> list[bytes]:
    """What tells a row from another: its id, and its columns as they are now."""
    rows = zip(np.asarray(ids_R).tolist(), x_RF.contiguous().numpy(), strict=True)
    return [
        hashlib.blake2b(repr(id).encode() + b"\0" + row.tobytes(), digest_size=16).digest()
        for id, row in rows
    ]


# --- The partner --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows of a question, in the order in which they lie in ciphertexts.

    Attributes:
        digest: of the question.
        order_R: the row at each place.
        place_R: the place of each row.
    """

    digest: bytes
    order_R: Tensor
    place_R: Tensor


class Multiplying:
    """A partner's weights times encrypted targets.

    Args:
        layout: how targets lie in coefficients.
        key_W, targets_PV, nonce: as they were sent, bytes.
        dither: 32 bytes of the partner's own, from which all that is random follows.

    Raises:
        MessageError: ciphertexts of other parameters.
    """

    def __init__(
        self,
        layout: encrypted.Layout,
        key_W: Tensor,
        targets_PV: Tensor,
        nonce: Tensor,
        dither: Tensor,
    ) -> None:
        self.layout = layout
        self._wire = {"key_W": key_W, "targets_PV": targets_PV, "nonce": nonce, "dither": dither}
        self._secret = dither.numpy().tobytes()
        self._encrypted = encrypted.Encrypted(
            layout, key_W.numpy(), targets_PV.numpy(), nonce.numpy().tobytes()
        )

    def placed(self, names_R: Sequence[bytes], smoothing: Smoothing, bits: int) -> Placed:
        """Where rows of these names lie, in whatever order they were asked about."""
        state = b"".join(each.numpy().tobytes() for each in smoothing.state_dict().values())
        settings = repr((smoothing.smoother, smoothing.least_rows, bits)).encode()
        whole = hashlib.blake2b(state).digest() + self._encrypted.digest + settings
        digest = hashlib.blake2b(whole + b"".join(sorted(names_R)), key=self._secret).digest()
        drawn = [hashlib.blake2b(name, key=digest, digest_size=16).digest() for name in names_R]
        order_R = torch.tensor(sorted(range(len(drawn)), key=drawn.__getitem__))
        return Placed(digest, order_R, order_R.argsort())

    def times(self, weights_RL: Tensor, digest: bytes, bits: int) -> np.ndarray:
        """(ciphertexts, W) of weights of rows in the order in which they lie."""

        def whole(rows: slice) -> np.ndarray:
            return encrypted.whole_weights(weights_RL[rows].numpy())

        return self._encrypted.multiply(whole, len(weights_RL), bits, self._secret, digest)

    def answered(
        self, smoothing: Smoothing, x_RF: Tensor, placed: Placed, bits: int,
        known_R: Tensor | None = None, party: str = "",
    ) -> Tensor:  # fmt: skip
        """(ciphertexts, W) of M t of these rows.

        Args:
            smoothing: makes M.
            x_RF: the rows, as they were asked about.
            placed: where they lie.
            bits: that each number tells at the most.
            known_R: which labelled row each is, -1: none; None: none is.
            party: whose rows they are.
        """
        order_R = placed.order_R
        known_R = None if known_R is None else known_R[order_R]
        weights_RL = smoothing.weights(x_RF[order_R], known_R, party)
        return torch.from_numpy(self.times(weights_RL, placed.digest, bits))

    def kept(self, smoothing: Smoothing) -> tuple[KeptSmoothing, SmoothingSpec]:
        """What the partner keeps, to smooth rows that come later."""
        layout, wire = self.layout, self._wire
        sizes = SealedTargets(
            encrypted.PARAMETERS,
            layout.labelled,
            layout.columns,
            layout.block,
            layout.classes,
            ciphertexts=len(wire["targets_PV"]),
            target_bytes=wire["targets_PV"].shape[1],
            key_bytes=len(wire["key_W"]),
        )
        kept = KeptSmoothing(smoothing, sizes)
        for name, values in wire.items():
            getattr(kept, name).copy_(values)
        num_bins = len(smoothing.kernels.encoding.column_M)
        spec = SmoothingSpec(
            smoothing.smoother,
            num_bins,
            smoothing.least_rows,
            sizes,
            smoothing.view.spec if isinstance(smoothing.view, Patches) else None,
        )
        return kept, spec

    @classmethod
    def again(cls, kept: KeptSmoothing, sizes: SealedTargets) -> Multiplying:
        """As it was kept.

        Raises:
            MessageError: ciphertexts of other parameters.
        """
        if sizes.parameters != encrypted.PARAMETERS:
            raise MessageError(f"what it keeps was encrypted by {sizes.parameters[:60]!r}")
        layout = encrypted.Layout(sizes.labelled, sizes.columns, sizes.block, sizes.classes)
        return cls(layout, kept.key_W, kept.targets_PV, kept.nonce, kept.dither)


# --- The label owner ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sealing:
    """Targets that are encrypted under a key of their own.

    Attributes:
        wire: fields of the message that brings them.
        key: decrypts what comes back.
        layout: how they lie in coefficients.
        unit: what one of their whole numbers stands for.
        middle_C: of what is read, in units.
        regression: whether they are values.
    """

    wire: Mapping[str, Any]
    key: encrypted.SecretKey
    layout: encrypted.Layout
    unit: float
    middle_C: np.ndarray
    regression: bool

    @classmethod
    def of(
        cls, targets_LT: Tensor, num_rows: int, *, regression: bool, secret: bytes, asked: bytes
    ) -> Sealing:
        """Under a key that follows from the question, so that the same one is sent twice alike.

        Args:
            targets_LT: what is encrypted.
            num_rows: that are asked about.
            regression: whether they are values.
            secret: 32 bytes of the label owner's own.
            asked: what else the question has.
        """
        whole, unit, middle_C = encrypted.whole_targets(targets_LT.double().numpy())
        layout = encrypted.Layout.best(len(whole), whole.shape[1], num_rows)
        question = f"{layout} {unit} ".encode() + whole.tobytes() + asked
        drawn = hashlib.blake2b(question, key=secret).digest()
        key, nonce = encrypted.SecretKey(drawn[:32]), drawn[32:]
        wire = {
            "parameters": encrypted.PARAMETERS,
            "block": layout.block,
            "classes": layout.classes,
            "columns": layout.columns,
            "nonce_32": torch.tensor(list(nonce), dtype=torch.uint8),
            "key_1W": torch.from_numpy(key.public_key(nonce)[None]),
            "targets_PV": torch.from_numpy(key.encrypt(whole, layout, nonce)),
        }
        return cls(wire, key, layout, unit, middle_C, regression)

    @property
    def reader(self) -> Reader:
        """Reads answers."""
        layout = self.layout
        lie = layout.labelled, layout.columns, layout.block, layout.classes
        answers = Answers(*lie, self.unit, tuple(self.middle_C.tolist()))
        return Reader(self.key, answers, self.regression)


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads a partner's answers.

    Attributes:
        key: decrypts.
        answers: how they lie.
        regression: whether targets are values.
    """

    key: encrypted.SecretKey
    answers: Answers
    regression: bool

    @property
    def layout(self) -> encrypted.Layout:
        """How targets lie in coefficients."""
        answers = self.answers
        return encrypted.Layout(answers.labelled, answers.columns, answers.block, answers.classes)

    def read(self, wire_PW: Tensor, place_R: Tensor, num_rows: int) -> Tensor:
        """(R, C) numbers. Every ciphertext is some number, so whoever sent it learns nothing.

        Args:
            wire_PW: of ``Multiplying``.
            place_R: where each row lies.
            num_rows: R.

        Raises:
            MessageError: no such ciphertexts, or places.
        """
        if not torch.equal(place_R.sort().values, torch.arange(num_rows)):
            raise MessageError(f"an answer about {num_rows} rows has a place for each, once")
        whole = self.key.decrypt(wire_PW.numpy(), self.layout, num_rows)
        if self.answers.middle:
            whole = encrypted.around(whole, np.array(self.answers.middle))
        z_RT = torch.from_numpy(whole * self.answers.unit).float()[place_R]
        return all_columns(z_RT, regression=self.regression)


# --- What crosses the boundary -----------------------------------------------------------------


class Begin(Message):
    """Label owner -> partner: encrypted targets of labelled samples, and whom to smooth."""

    parameters: str  # of the encryption; see ``privacy/encrypted.py``
    block: int
    classes: int
    columns: int
    seed: int
    nonce_32: Bytes
    key_1W: Bytes
    targets_PV: Bytes
    labelled_L: Integers  # samples in the order of the targets
    folds_L: Integers
    samples_N: Draws
    tested_U: Integers  # samples


class Answered(Message):
    """Partner -> label owner: encrypted numbers of the samples, N and then U."""

    bits: int  # that a number tells at the most
    place_R: Integers  # where each sample's numbers lie
    numbers_PW: Bytes


# --- What a partner executes -------------------------------------------------------------------


class Partner(Party):
    """A party that has columns, and answers on ciphertexts, once a run.

    Args:
        shared: its rows by shared sample.
        test: its test rows by shared sample; None if it has none.
        local: its context.
        limits: of its policy; None in simulation, which counts no numbers.
        given: how many numbers of each row it has given before; None: nobody counts.
        input: how raw columns become its rows, to be kept.
        pictures: what kernels see of pictures: "patches" as ``models/patches.py`` describes them,
            or "flat" pixels.
    """

    goes_on, finish_with = False, Begin  # a run is one question

    def __init__(
        self, shared: SharedRows, test: SharedRows | None, local: Local,
        limits: SealedLimits | None = None, *, given: NumbersGiven | None = None,
        input: Input | None = None, pictures: Pictures = "patches",
    ) -> None:  # fmt: skip
        self.shared, self.test, self.input, self.given = shared, test, input, given
        self.limits, self.pictures = limits or UNLIMITED, pictures

    @handles
    def begin(self, message: Begin) -> Answered:
        """Numbers of the samples: sizes are checked and numbers counted before any are made."""
        asked, limits = checked(message, self.shared, self.test, self.limits), self.limits
        dither = bytes_of(lasting(self.local, "dither"))
        wire = message.key_1W[0], message.targets_PV, message.nonce_32, dither
        self.product = Multiplying(asked.layout, *wire)
        x_NF, shape = features(self.shared.x), self.shared.x.shape[1:]
        view, kernels = kernels_of(x_NF, shape, lasting(self.local, "kernels"), self.pictures)
        smoother = Smoother(limits.kernel, limits.ridge)
        rows = view(asked.x_LF), message.folds_L
        self.smoothing = Smoothing(kernels, smoother, *rows, limits.least_rows, view)
        ids: Sequence[Any] = range(len(asked.x_RF))
        if self.given is not None:  # a labelled row's number is another than the same row's as new
            known = zip(asked.known_R.tolist(), self.given.ids_N[asked.cells], strict=True)
            ids = [f"{which} {each}" for which, each in known]
        names = row_names(ids, asked.x_RF)
        bits = limits.bits_of(asked.numbers)
        placed = self.product.placed(names, self.smoothing, bits)
        counted(self.name, limits, self.given, asked.cells, asked.numbers, placed.digest)
        numbers_PW = self.product.answered(
            self.smoothing, asked.x_RF, placed, bits, asked.known_R, self.name
        )
        self.smoothing.forget()
        return noted(Answered(bits, placed.place_R, numbers_PW), {"bits": bits * asked.numbers})

    def bottom_model(self) -> Bottom:
        """What it keeps at its site: its smoother, and the targets that it cannot read."""
        network, spec = self.product.kept(self.smoothing)
        shape, width = tuple(self.shared.x.shape[1:]), spec.sizes.columns
        return Bottom(self.name, network, spec, shape, width, self.input, {"method": "apfed"})


# --- What the label owner executes -------------------------------------------------------------


class Active(Driver):
    """The label owner.

    Args:
        owner: its rows, targets and folds.
        train: the same rows, by shared sample.
        test: test rows by shared sample; None if there are none.
        local: its context.
        seed: of the draw of labelled rows.
        timeout_s: how long a partner may take.
        max_rows: so many shared rows that take no part with a label are asked about at most, and
            so many test rows.
        fill: whether labelled rows that no partner has are learnt from, where these are many.

    Attributes:
        numbers: partner -> (R, C) of its rows, NaN where the partner has none.
        tested: the same of test rows.
        keys: partner -> what decrypts its answers, for the owner's own site.
        answers: partner -> how they are read, JSON-ready.
        lost: partner -> why it has no part.
        bits: partner -> what a number of its tells at the most.
        made: partner -> what it was asked, and what its answer is read with.
        alone: own models, and the best of them, where these are trained already.
    """

    saved: ClassVar[tuple[str, ...]] = ("numbers", "tested", "keys", "answers", "lost", "bits")
    num_rounds = 2

    def __init__(
        self,
        owner: Owner,
        train: AlignedRows,
        test: AlignedRows | None,
        local: Local,
        *,
        seed: int,
        timeout_s: float | None = None,
        max_rows: int = 8000,
        fill: bool = True,
    ) -> None:
        local.begin(seed)
        self.name, self.owner, self.train, self.test = local.name, owner, train, test
        self.local, self.fill = local, fill
        self.timeout_s, self.max_rows = timeout_s, max_rows
        self.numbers: dict[str, Tensor] = {}
        self.tested: dict[str, Tensor] = {}
        self.keys: dict[str, Tensor] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.lost: dict[str, str] = {}
        self.bits: dict[str, int] = {}
        self.made: dict[str, tuple[Begin, Sealing]] = {}
        self.alone: tuple[dict[str, Fitted], Fitted] | None = None

    def ask_all(self, network: Engine) -> Epoch:
        """Ask every partner, once.

        Raises:
            TrainingError: each answers that it does not; who is lost is done without.
        """
        self.made = {party: self.question(party) for party in self.train.samples}
        requests = {party: message for party, (message, _) in self.made.items()}
        replies = network.ask(requests, Answered, timeout_s=self.timeout_s).fitting()
        self.lost |= {party: failure.cause for party, failure in replies.failures.items()}
        refusals = [each for each in replies.failures.values() if isinstance(each, RefusalError)]
        if refusals and len(refusals) == len(requests):
            raise TrainingError(
                f"nobody helps: {refusals[0]}; put that right there and train again, or train "
                'alone: method = "best-alone"'
            )
        for party, reply in replies.items():
            try:
                self.read(party, reply)
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
        rows_N = rows_asked(samples_R, rows_L, self.max_rows, rng)
        test_R = samples_R[:0] if self.test is None else self.test.samples[party]
        rows_U = (test_R >= 0).nonzero().flatten()
        rows_U = rows_U[torch.randperm(len(rows_U), generator=rng)[: self.max_rows]].sort().values
        rows_L, rows_N, rows_U = self.mixed(party, rows_L, rows_N, rows_U)
        folds_L = self.owner.folds_R[rows_L]
        asked = {
            "labelled_L": samples_R[rows_L],
            "folds_L": folds_L,
            "samples_N": samples_R[rows_N],
            "tested_U": test_R[rows_U],
        }
        own = rows_L, folds_L, rows_N, rows_U  # samples may have other numbers when aligned again
        sealing = Sealing.of(
            targets(self.owner, rows_L),
            len(rows_N) + len(rows_U),
            regression=self.owner.regression,
            secret=bytes_of(lasting(self.local, "sealing")).numpy().tobytes(),
            asked=b"".join([party.encode(), *(each.numpy().tobytes() for each in own)]),
        )
        fields: dict[str, Any] = {**sealing.wire, **asked}
        return Begin(seed=self.local.seed, **fields), sealing

    def mixed(self, party: str, rows_L: Tensor, rows_N: Tensor, rows_U: Tensor) -> list[Tensor]:
        """Rows of a question in orders that nobody else can compute: that of a table which is
        sorted by its label gives labels away.

        They follow from the table, so that those of another one are unlike: labels that a partner
        knows tell nothing of the places in a later question. Nor do they depend on the samples'
        numbers, which each alignment draws: the same table and seed have the same answers.
        """
        x_RF = self.owner.x_RF
        tested_RF = x_RF if self.test is None else self.test.x_RF
        about = hashlib.blake2b(targets(self.owner, rows_L).numpy().tobytes())
        for rows, x in ((rows_L, x_RF), (rows_N, x_RF), (rows_U, tested_RF)):
            about.update(x[rows].numpy().tobytes() + rows.numpy().tobytes())
        rng = lasting(self.local, "order", party, about.hexdigest())
        return [rows[torch.randperm(len(rows), generator=rng)] for rows in (rows_L, rows_N, rows_U)]

    def read(self, party: str, reply: Answered) -> None:
        """Keep what a partner answered, by row.

        Raises:
            MessageError: it is not what was asked for.
        """
        asked, sealing = self.made[party]
        reader = sealing.reader
        num = len(asked.samples_N), len(asked.tested_U)
        z_NC, z_UC = reader.read(reply.numbers_PW, reply.place_R, sum(num)).split(num)  # M t
        self.numbers[party] = placed(z_NC, self.train.samples[party], asked.samples_N)
        if self.test is not None:
            self.tested[party] = placed(z_UC, self.test.samples[party], asked.tested_U)
        self.answers[party], self.bits[party] = asdict(reader.answers), reply.bits
        self.keys[party] = torch.tensor(list(reader.key.seed), dtype=torch.uint8)

    @property
    def partners(self) -> tuple[str, ...]:
        """Those that answered."""
        return tuple(self.numbers)

    def aligned(self) -> Tensor:
        """(R,) bool: rows of which a partner said something."""
        held = [~each.isnan().any(dim=1) for each in self.numbers.values()]
        return torch.stack(held).any(dim=0)
