"""APFed-D: the partners' help, kept in the label owner's model by distillation; ours.

Generalised distillation (Lopez-Paz et al. 2016, arXiv:1511.03643): a joint vertical model, the
teacher, is trained on rows that are labelled and shared. What it says of every shared row, labelled
or not, is what the label owner's own model then learns (``models/learners/distil.py``), which
needs nobody. This file is the teacher's training; nothing of the student leaves the label owner.

    code_p = MLP_p(PLE(x_p)),  linear_p = W_p PLE(x_p)           at party p
    outputs = head(concat_p code_p) + sum_p linear_p             at the label owner

    Symbol     Here                   Shape       Lives at
    x_p        Partner.x              (N_p, F)    party p
    code_p     part of code_ND        (K B, D+C)  party p; sent to the label owner
    dL/dcode   part of gradient_ND    (K B, D+C)  label owner; sent back to party p
    y          Active.targets         (R, C)      label owner

    Letters: R the label owner's rows, K members, B rows of a member's batch, D code width, C
    outputs, S stacks. A stack is a teacher's network: ``network`` has a code and a linear part,
    ``linear`` the linear part only. K is folds times copies: a labelled row's soft target comes
    from the members that never saw its label. N of a message: K blocks of B samples, one a member.

A message to a partner makes its step and asks for the next codes at once, so a step is one round
trip, whatever the number of stacks: they learn from the same batches. Both sides are those of
``models/learners/vertical.py``. In one place the partners are those of ``InProcess``.

    label owner                             partner
    Begin                             ---->  its networks are made
                                      <----  Ready
    Encode(gradient, samples)         ---->  step by the gradient; codes of these samples
                                      <----  Codes
    Encode(gradient, held-out rows)   ---->  step; codes, for judging
    Encode(keep = stacks, ...)        ---->  these weights are the best so far
    Finish                            ---->  back to the best weights, which are kept at its site
    Encode(every shared row)          ---->  codes, for soft targets and test rows

A partner that fails is left out. Where the others' policies let the run begin once more
(``policy.max_begins``), the teacher starts again, as if it had never taken part; else it goes on
with the others' networks as they are, from heads without the lost one's codes, and with as many
steps as a new one would have. Without any partner there is no teacher, and the label owner keeps
its own model.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from dovetail.data import Alignment, SharedRows
from dovetail.data.preprocessing import Input
from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Driver, LeftOut, Local, Party, handles
from dovetail.methods.baselines import features
from dovetail.methods.limits import NO_LIMITS, Limits, Uses
from dovetail.methods.released import ReleasedRows
from dovetail.methods.settings.apfed import RELEASED, PartnerConfig
from dovetail.methods.settings.apfed import DistilConfig as Config
from dovetail.models import Bottom, follow_back, generator
from dovetail.models.learners.distil import Owner
from dovetail.models.learners.joint import Bottoms, BottomsSpec, fold_means
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.vertical import OwnerSide, PartySide, StackedConfig, copies_of
from dovetail.network import Draws, Engine, Message, State, Values, check_shape, noted
from dovetail.settings.privacy import Once

# --- What crosses the boundary -----------------------------------------------------------------


class Begin(Message):
    """Label owner -> partner: training starts; the stacks, and how many members and outputs."""

    stacks: tuple[str, ...]
    members: int
    num_outputs: int
    seed: int


class Ready(Message):
    """Partner -> label owner: D of its codes in each stack; 0 where there is only a linear part.

    Beside it what its policy answers, as in ``apfed.Ready``, and how often the run may begin (0:
    any number of times).
    """

    code_widths: tuple[int, ...]
    min_rows: int = NO_LIMITS.min_rows
    max_uses: int = NO_LIMITS.max_uses
    max_begins: int = NO_LIMITS.max_begins


#: (N, D) of codes; looked at with their bound.
Gradients = Annotated[Tensor, Values(torch.float32, "GD", finite=False)]


class Encode(Message):
    """Label owner -> partner: step by this gradient of your last codes, and encode these samples.

    Before the step, weights of ``keep`` are kept as the best so far.
    """

    stacks: tuple[str, ...]  # whose codes are asked for
    keep: tuple[str, ...]
    gradient_ND: Gradients  # of the codes sent last, for training; no row where none is due
    samples_N: Draws  # K blocks of places in the shared order
    training: bool
    test: bool  # samples of the test table, in its own shared order


class Codes(Message):
    """Partner -> label owner: code and linear part of the samples asked for, stack by stack."""

    code_ND: Tensor


class Finish(Message):
    """Label owner -> partner: go back to the best weights; these are kept."""

    keep: tuple[str, ...]


class Finished(Message):
    """Partner -> label owner: it has them."""


#: More members than this no label owner needs: 20 folds of 8 copies.
MAX_MEMBERS = 160
MAX_OUTPUTS = 10_000

#: The most that the networks may take whose number ``Begin`` sets.
MAX_PARAMETER_BYTES = 2**28


# --- What a partner executes -------------------------------------------------------------------


class Partner(Party):
    """A party that has columns and no labels; its networks and rates are its own.

    Args:
        shared: its rows by shared sample.
        test: its test rows by shared sample; None if it has none.
        config: its own settings.
        local: its context.
        input: how raw columns become its rows, to be kept with its networks.
    """

    goes_on = False  # its driver would go on with weights of no run, so it says the step
    saved = ("stacks", "released")

    def __init__(
        self,
        shared: SharedRows,
        test: SharedRows | None,
        config: PartnerConfig,
        local: Local,
        *,
        input: Input | None = None,
    ) -> None:
        self.shared = shared
        self.test = test
        self.config = config
        self.input = input
        self.released: ReleasedRows | None = None

    @handles
    def begin(self, message: Begin) -> Ready:
        """Make its networks, or what it releases once."""
        if message.stacks == (RELEASED,) and message.members == 1:
            return self._release(message)
        if self.config.release is not None:
            raise PartyError(
                self.name,
                "releases its columns once (distil.release) and trains no joint model; set "
                'apfed.distil.exchange = "released"',
            )
        if (
            not message.stacks
            or len(set(message.stacks)) < len(message.stacks)
            or not set(message.stacks) <= {"network", "linear"}
            or not 1 <= message.members <= MAX_MEMBERS
            or not 1 <= message.num_outputs <= MAX_OUTPUTS
        ):
            raise MessageError(
                f"{message.wire_name()}: expected stacks among 'network' and 'linear', 1 to "
                f"{MAX_MEMBERS} members and 1 to {MAX_OUTPUTS} outputs, got {message.stacks}, "
                f"{message.members} and {message.num_outputs}"
            )
        x_NF = features(self.shared.x)
        for name in message.stacks:
            _check_size(message, x_NF.shape[1], self.config.stack(name))
        self.stacks = {
            name: PartySide(
                x_NF,
                self.config.stack(name),
                message.members,
                message.num_outputs,
                self.local.stream("partner", name),
            )
            for name in message.stacks
        }
        self.members = message.members
        self._codes: tuple[tuple[str, ...], Tensor] | None = None
        return Ready(tuple(stack.code_width for stack in self.stacks.values()))

    def _release(self, message: Begin) -> Ready:
        """Codes of each row are drawn once in a run, however often that starts.

        At a site once for all runs, of any driver: the mean of many draws would have no noise. Of
        other rows or settings the noise is another: of two codes the difference would have none.
        """
        if self.released is None:
            x_NF, once = features(self.shared.x), self.config.release or Once()
            seed, purpose = message.seed, [self.name, RELEASED]
            if self.local.lasting is not None:
                seed = 0
                purpose += [repr(once), hashlib.sha256(x_NF.numpy().tobytes()).hexdigest()]
            rng = generator(seed, *purpose, secret=self.local.lasting)
            self.released = ReleasedRows(x_NF, once, rng)
        self.stacks = {}
        self.members, self._codes = 1, None
        return Ready((self.released.width,))

    @handles
    def encode(self, message: Encode) -> Codes:
        """Codes of these samples, after a step by the gradient of the last ones."""
        if self.released is not None and message.stacks == (RELEASED,):
            if message.test or message.training:
                raise MessageError(f"{message.wire_name()}: what is released is of training rows")
            check_shape(message, "samples_N", (message.samples_N.numel(),), torch.int64)
            codes = replace(self.shared, x=self.released.code_ND)
            return noted(Codes(codes[message.samples_N]), self.released.report())
        self._check_stacks(message, message.keep)
        self._check_stacks(message, message.stacks)
        for name in message.keep:
            self.stacks[name].kept.keep()
        self._step(message)
        table = self.test if message.test else self.shared
        if table is None:
            raise MessageError(f"{message.wire_name()}: it has no test table to encode")
        num, members = message.samples_N.numel(), self.members
        check_shape(message, "samples_N", (num,), torch.int64)
        if not message.stacks or not num or num % members:
            raise MessageError(
                f"{message.wire_name()}: expected one stack or more and {members} blocks of "
                f"samples, got {num} samples of {message.stacks}"
            )
        rows_N = table.rows(message.samples_N)
        stacks = [self.stacks[name] for name in message.stacks]
        with torch.set_grad_enabled(message.training):
            if message.test:
                x_NF = features(table.x[rows_N])
                parts = [stack.encode_others(x_NF, members) for stack in stacks]
            else:
                rows_KB = rows_N.unflatten(0, (members, -1))
                parts = [stack.encode(rows_KB) for stack in stacks]
            code_ND = torch.cat(parts, dim=-1).flatten(0, 1)
        if message.training:
            self._codes = message.stacks, code_ND
        return Codes(code_ND.detach())

    @handles
    def finish(self, message: Finish) -> Finished:
        """Back to the best weights."""
        self._check_stacks(message, message.keep)
        for name in message.keep:
            self.stacks[name].kept.keep()
        for stack in self.stacks.values():
            stack.kept.restore()
        return Finished()

    def unsaved(self) -> str:
        return "a gradient is due for its codes" if getattr(self, "_codes", None) else ""

    def _step(self, message: Encode) -> None:
        """Make a step by the gradient of the codes that it sent last."""
        due, self._codes = self._codes, None
        if not message.gradient_ND.numel():
            return
        if due is None:
            raise TrainingError("it was sent a gradient for codes it did not send")
        names, code_ND = due
        check_shape(message, "gradient_ND", tuple(code_ND.shape), torch.float32)
        if not message.gradient_ND.sum().isfinite():
            raise TrainingError("it was sent a gradient that is not finite")
        follow_back([code_ND], [message.gradient_ND])
        for name in names:
            self.stacks[name].step()

    def _check_stacks(self, message: Message, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.stacks]
        if unknown or len(set(names)) < len(names):
            raise MessageError(
                f"{message.wire_name()}: expected stacks among {list(self.stacks)}, each once, "
                f"got {list(names)}"
            )

    def bottom_model(self) -> Bottom:
        """Network that it keeps at its site, to predict together with the label owner."""
        parts = tuple(stack.part() for stack in self.stacks.values())
        return Bottom(
            self.name,
            Bottoms(
                [stack.encoding for stack in self.stacks.values()],
                [stack.bottom for stack in self.stacks.values()],
            ),
            BottomsSpec(parts),
            tuple(self.shared.x.shape[1:]),
            sum(part.embedding for part in parts),
            self.input,
            {"method": "apfed-d"},
        )


def _check_size(message: Begin, num_features: int, config: StackedConfig) -> None:
    """Refuse more members than a machine has room for, before they are made."""
    encoded = num_features * (1 + config.bins)
    sizes = [encoded, *config.widths]
    weights = sum(a * b for a, b in itertools.pairwise(sizes))
    num_bytes = 4 * message.members * (weights + encoded * message.num_outputs)
    if num_bytes > MAX_PARAMETER_BYTES:
        raise MessageError(
            f"{message.wire_name()}: {message.members} members of {message.num_outputs} outputs "
            f"take up to {num_bytes} bytes here, more than {MAX_PARAMETER_BYTES}; ask for fewer "
            "folds or copies, or have this party set fewer bins"
        )


# --- What the label owner executes -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AlignedRows:
    """Rows that the label owner shares with partners.

    Attributes:
        x_RF: its features.
        samples: partner -> (R,) place of each row in the order shared with it, -1 for none.
    """

    x_RF: Tensor
    samples: Mapping[str, Tensor]

    @classmethod
    def of(cls, x: Tensor, name: str, alignment: Alignment) -> AlignedRows:
        """By the alignment of its own rows with every partner's."""
        local_S = alignment.rows[name]
        samples = {}
        for party in alignment.rows:
            if party != name:
                held = alignment.shared(name, party)
                samples[party] = torch.full((len(x),), -1)
                samples[party][local_S[held]] = held
        return cls(features(x), samples)

    def held(self, parties: Sequence[str]) -> Tensor:
        """(parties, R) bool: who has which row."""
        return torch.stack([self.samples[party] >= 0 for party in parties])


class Taught:
    """The label owner's side of one stack: its own networks, and the head."""

    def __init__(self, stack: PartySide, head: OwnerSide) -> None:
        self.stack = stack
        self.head = head
        self.ended = False  # noted where it is judged

    def restore_best(self) -> None:
        self.stack.kept.restore()
        self.head.restore()

    def state(self) -> State:
        return {"stack": self.stack.state(), "head": self.head.state(), "ended": self.ended}

    def restore(self, state: State) -> None:
        self.stack.restore(state["stack"])
        self.head.resume(state["head"])
        self.ended = state["ended"]


@dataclass(frozen=True, eq=False)
class TeacherOutputs:
    """Outputs of the teacher, once it is trained.

    Attributes:
        train: stack -> (K, R, C) of every member; NaN in rows that no partner has.
        test: the same of the test rows; None if there are none.
    """

    train: Mapping[str, Tensor]
    test: Mapping[str, Tensor] | None


class Active(Driver):
    """The label owner while a teacher is trained.

    Args:
        owner: its rows, targets and folds.
        train: the same rows, by shared sample.
        test: test rows by shared sample; None if there are none.
        config: its settings.
        local: its context.
        seed: of everything random here.

    Attributes:
        partners: who takes part; fewer where some failed.
        lost: partner -> why it is left out.
        why_not: why there is no teacher; "" where there is one, or may be yet.
        teacher_outputs: what the teacher says; None until it is trained.
        number: of the round that was done last.
    """

    saved = (
        "number", "lost", "why_not", "begins", "copies", "code_widths", "taught", "step_number",
        "uses", "keep", "teacher_outputs",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        train: AlignedRows,
        test: AlignedRows | None,
        config: Config,
        local: Local,
        *,
        seed: int,
    ) -> None:
        local.begin(seed)
        self.name, self.local = local.name, local
        self.owner = owner
        self.train = train
        self.test = test
        self.config = config
        self.partners: tuple[str, ...] = tuple(train.samples)
        for party, samples_R in train.samples.items():
            if not (samples_R >= 0).any():
                raise ConfigError(
                    f"party {party!r} shares no sample with {self.name!r}; check the id columns, "
                    "or leave the party out"
                )
        self.lost: dict[str, str] = {}
        self.why_not = ""
        self.teacher_outputs: TeacherOutputs | None = None
        self.number = 0
        self.step_number = 0
        self.begins = 0  # of the run so far
        self.copies = 0  # members of each fold
        self.uses: dict[str, Uses] = {}  # partner -> how often it was asked about each sample

    @property
    def members(self) -> int:
        return self.owner.num_folds * self.copies

    @property
    def num_rounds(self) -> int:  # type: ignore[override]
        """The most that there can be yet, and the student."""
        if self.config.exchange == RELEASED:
            return 2
        return self.number + max(0, self.steps_left) // self.head.every + 2

    def leave_out(self, party: str, why: str, network: Engine | None = None) -> None:
        """Go on without this partner, which hears of it where the engine is given."""
        LeftOut().warn(party, f"the joint model from here on: {why}", network)
        self.lost[party] = why
        self.partners = tuple(name for name in self.partners if name != party)
        self.uses.pop(party, None)

    def find_rows(self) -> bool:
        """Whether rows are left to teach on; ``why_not`` says why if none are."""
        if not self.partners:
            self.why_not = "no partner took part to the end"
            return False
        self.aligned_R = self.train.held(self.partners).any(dim=0)
        chosen = self.aligned_R & self.owner.labelled
        self.rows_N = chosen.nonzero().flatten()
        folds_N = self.owner.folds_R[self.rows_N]
        counts = torch.bincount(folds_N, minlength=self.owner.num_folds)
        if int(counts.min()) < 1 or len(self.rows_N) - int(counts.max()) < 1:
            self.why_not = (
                f"only {len(self.rows_N)} rows are both labelled and shared, too few for "
                f"{self.owner.num_folds} folds"
            )
            return False
        return True

    def new_members(self) -> None:
        """How many networks there are, for the rows that teach now."""
        self.copies = self.config.copies or copies_of(len(self.rows_N))

    def allow(self, limits: Mapping[str, Limits]) -> None:
        """Keep to what these partners answer.

        Raises:
            ConfigError: a partner shares too few rows for what it answers.
        """
        for party, limit in limits.items():
            shared = int((self.train.samples[party] >= 0).sum())
            limit.check_run(party, shared, batch_size=shared, passes=1)
            used = self.uses[party].used if party in self.uses else {}
            self.uses[party] = Uses(limit, used)

    def open(self, code_widths: Mapping[str, Sequence[int]]) -> None:
        """Build one's own networks and the heads over every partner's codes."""
        owner = self.owner
        self.code_widths = {party: tuple(widths) for party, widths in code_widths.items()}
        self.taught: dict[str, Taught] = {}
        for index, name in enumerate(self.config.teachers):
            how, stream = self._how(name), self.local.stream("active", name)
            stack = PartySide(owner.x_RF, how, self.members, owner.num_outputs, stream)
            widths = [stack.code_width, *(self.code_widths[p][index] for p in self.partners)]
            self.taught[name] = Taught(stack, self._head(name, widths))
        self.step_number = 0
        self.keep: tuple[str, ...] = ()
        self.owed: dict[str, Tensor] = {}

    def go_on(self) -> None:
        """Train on without the partners that were left out since the heads were made."""
        before = tuple(self.code_widths)
        indices = [0, *(1 + index for index, name in enumerate(before) if name in self.partners)]
        self.code_widths = {party: self.code_widths[party] for party in self.partners}
        for name, taught in self.taught.items():
            head = self._head(name, [taught.head.top.code_widths[index] for index in indices])
            head.take_over(taught.head, indices)
            taught.head, taught.ended = head, False
        self.keep, self.owed = (), {}

    def _how(self, name: str) -> StackedConfig:
        """How a stack is built and trained here."""
        config = self.config
        return replace(
            config.stack(name),
            copies=self.copies,
            dropout=config.dropout,
            batch_size=config.batch_size,
            max_steps=config.max_steps,
            patience=config.patience,
        )

    def _head(self, name: str, widths: Sequence[int]) -> OwnerSide:
        """A stack's head over codes of these widths, and who learns from which of ``rows_N``."""
        owner, chosen = self.owner, self.rows_N
        unread = torch.zeros(len(chosen), 0)
        rows = Rows(unread, owner.targets_RC[chosen], owner.folds_R[chosen], loss=owner.loss)
        seed, key = self.local.seed, self.local.key
        return OwnerSide(
            rows, self._how(name), parties=len(widths), seed=seed, code_widths=widths, key=key
        )

    @property
    def head(self) -> OwnerSide:
        """That of the stack that learned the most: all draw and are judged alike."""
        return max((taught.head for taught in self.taught.values()), key=lambda head: head.taken)

    @property
    def live(self) -> tuple[str, ...]:
        """Stacks that still learn."""
        return tuple(name for name, taught in self.taught.items() if not taught.ended)

    @property
    def steps_left(self) -> int:
        """How many more there may be."""
        return self.config.max_steps - self.head.taken

    def of_folds(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stack -> (folds, R, C) the mean of each fold's members, of (K, R, C)."""
        regression = self.owner.regression
        return {
            stack: fold_means(each, self.copies, regression=regression)
            for stack, each in outputs.items()
        }

    def restore(self, state: State) -> None:
        """Go on from there, with the same partners."""
        for party, why in state["lost"].items():
            self.leave_out(party, why)
        self.find_rows()
        self.copies = state["copies"]
        self.open(state["code_widths"])
        super().restore(state)
        self.uses = {
            party: Uses(Limits(**uses["limits"]), dict(uses["used"]))
            for party, uses in state["uses"].items()
        }
        outputs = state["teacher_outputs"]
        self.teacher_outputs = None if outputs is None else TeacherOutputs(**outputs)
