"""The label owner drives: the teacher of APFed-D is trained, round by round (see ``distil``)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dovetail.errors import ConfigError, MessageError, PartyError, TrainingError
from dovetail.federated import Epoch, ending_announced
from dovetail.methods.apfed import releasing
from dovetail.methods.apfed.distil import (
    Active,
    AlignedRows,
    Begin,
    Codes,
    Encode,
    Finish,
    Finished,
    Ready,
    TeacherOutputs,
)
from dovetail.methods.limits import asked_for, limits_of
from dovetail.network import Checkpoint, Engine, check_shape

_log = logging.getLogger(__name__)


def train(active: Active, network: Engine, checkpoint: Checkpoint | None = None) -> Iterator[Epoch]:
    """Trains the teacher; afterwards ``active.teacher_outputs`` is what it says, or ``why_not``
    says why none.

    Args:
        active: the label owner, which drives.
        network: reaches the partners.
        checkpoint: saves each round, and goes on from what it saved; None saves nothing.

    Raises:
        PartyError: a partner cannot begin.
        TrainingError: the loss is no longer finite.
    """
    with ending_announced(network):
        yield from _rounds(active, network, checkpoint or Checkpoint.none())


def _rounds(active: Active, network: Engine, checkpoint: Checkpoint) -> Iterator[Epoch]:
    if active.config.exchange == "released":  # one question a partner: nothing to go on from
        checkpoint.begin_anew(active, network)
        yield from releasing.learn(active, network)
        return
    number = checkpoint.resume(active, network, tolerate_missing=True)
    if active.teacher_outputs is not None or active.why_not:
        return
    if not number:
        if not active.find_rows():
            return
        begin(active, network)
        checkpoint.save(0, active, network)
    else:
        away = {*checkpoint.failures, *checkpoint.behind} & {*active.partners}
        for party in sorted(away & checkpoint.failures.keys()):
            active.leave_out(party, f"epoch {number}: {checkpoint.failures[party].cause}", network)
        if away and not _go_on(active, network, checkpoint.behind):
            return
    while active.teacher_outputs is None:
        started = time.perf_counter()
        losses: list[float] = []
        number += 1
        loss, held_out = None, {}
        try:
            if active.live and active.head.every <= active.steps_left and _answer_a_round(active):
                for _ in range(active.head.every):
                    losses.append(step(active, network))
                held_out = judge(active, network)
                loss = math.fsum(losses) / len(losses)
            else:
                active.teacher_outputs = finish(active, network)
        except PartyError as failure:
            if failure.party not in active.partners:
                raise
            cause = f"epoch {number}, step {len(losses) + 1}: {failure.cause}"
            active.leave_out(failure.party, cause, network)
            goes_on = _go_on(active, network)
            yield _round(active, number, None, {}, started, max(len(losses), 1))
            if not goes_on:
                return
            checkpoint.save(number, active, network)
            continue
        yield _round(active, number, loss, held_out, started, len(losses))
        checkpoint.save(number, active, network)


def _round(
    active: Active,
    number: int,
    loss: float | None,
    held_out: Mapping[str, float],
    started: float,
    num_steps: int,
) -> Epoch:
    """Steps from one judgement to the next."""
    active.number = number
    metrics: dict[str, Any] = {} if loss is None else {"loss": loss}
    return Epoch(
        number=number,
        metrics=metrics | ({"held_out_loss": dict(held_out)} if held_out else {}),
        seconds=time.perf_counter() - started,
        num_steps=num_steps,
        missed=dict.fromkeys(active.lost, num_steps),
        reasons=dict(active.lost),
    )


def begin(active: Active, network: Engine) -> None:
    """Open the run with every partner.

    Raises:
        PartyError: one cannot begin.
        ConfigError: a partner shares fewer rows than it answers about.
    """
    active.new_members()
    active.begins += 1
    seed, num_outputs = active.local.seed, active.owner.num_outputs
    message = Begin(active.config.teachers, active.members, num_outputs, seed)
    ready = network.ask(dict.fromkeys(active.partners, message), Ready).or_raise()
    for party, reply in ready.items():
        if len(reply.code_widths) != len(message.stacks) or not all(
            0 <= width <= 2**16 for width in reply.code_widths
        ):
            raise PartyError(
                party, f"{reply.wire_name()}: no widths of {len(message.stacks)} codes"
            )
    active.allow(limits_of(ready))
    active.open({party: ready[party].code_widths for party in active.partners})


def _go_on(active: Active, network: Engine, behind: Mapping[str, int] | None = None) -> bool:
    """Go on with those that are there; whether somebody is.

    All begin again where all may: who has lost its state (``behind``: the step that it has, 0 for
    none) may. Else those who have theirs go on with it.
    """
    behind = behind or {}

    def may_begin(party: str) -> bool:
        most = active.uses[party].limits.max_begins if party in active.uses else 0
        return not most or active.begins < most or behind.get(party) == 0

    if all(map(may_begin, active.partners)):
        return _begin_again(active, network)
    for party in [name for name in active.partners if name in behind]:
        why = "it has no state of the step that the others go on from"
        active.leave_out(party, why, network)
    if not active.find_rows():
        return False
    active.go_on()
    return True


def _begin_again(active: Active, network: Engine) -> bool:
    """Begin again with those that are there; whether somebody is."""
    while active.find_rows():
        try:
            begin(active, network)
        except PartyError as failure:
            active.leave_out(failure.party, failure.cause, network)
            continue
        return True
    return False


def _answer_a_round(active: Active) -> bool:
    """Whether all partners answer one more round, and then about every row once more.

    A message counts once for each sample in it.
    """
    judging, text = (
        _num_messages(active, num)
        for num in (active.head.judged_KV.shape[1], len(active.train.x_RF))
    )
    needed = active.head.every + judging + text
    tired = [party for party, uses in active.uses.items() if uses.left() < needed]
    for party in tired:
        most = active.uses[party].limits.max_uses
        if active.step_number == 0 and not active.lost:
            raise ConfigError(
                f"party {party!r} answers {most:,} times about one sample in a run (its "
                f"policy.max_uses), too few for a round of APFed-D, {needed}; ask its owner to "
                "raise it"
            )
        _log.warning(
            "the teacher has learned %d steps: party %r answers %d times about one sample in a "
            "run (its policy.max_uses)",
            active.step_number,
            party,
            most,
        )
    return not tired


def step(active: Active, network: Engine) -> float:
    """Train on a minibatch of every member; its mean loss."""
    stacks = active.live
    heads = {name: active.taught[name].head for name in stacks}
    drawn_KB, *_ = [head.draw() for head in heads.values()]  # the same of all
    rows_KB = active.rows_N[drawn_KB]
    codes = _ask(active, network, stacks, rows_KB, active.train, training=True)
    gradients: dict[str, list[Tensor]] = {party: [] for party in codes}
    for name, parts in _split(active, stacks, codes).items():
        stack = active.taught[name].stack
        local, *theirs = heads[name].step([stack.send(rows_KB), *parts])
        stack.follow(local)
        for party, gradient in zip(codes, theirs, strict=True):
            gradients[party].append(gradient)
    active.step_number += 1
    loss = math.fsum(float(head.losses_K.mean()) / len(stacks) for head in heads.values())
    if not math.isfinite(loss):
        raise TrainingError(
            f"party {active.name!r}: the joint model's loss is {loss} in step "
            f"{active.step_number}; lower distil.learning_rate ({active.config.learning_rate})"
        )
    active.owed = {
        party: answer.gradient(torch.cat(gradients[party], dim=-1)).flatten(0, 1)
        for party, answer in codes.items()
        if answer.answered
    }
    return loss


def judge(active: Active, network: Engine) -> dict[str, float]:
    """Stack -> mean loss of held-out rows; who is best so far, and who has ended, is noted."""
    judged_KV = active.head.judged_KV
    order_KV = _order(active, "judged", *judged_KV.shape)
    asked_KV = active.rows_N[judged_KV.gather(1, order_KV)]
    back_KV = order_KV.argsort(dim=1)
    keep = []
    outputs = _outputs(active, network, active.live, asked_KV, active.train)
    for name, mixed_KVC in outputs.items():
        taught, head = active.taught[name], active.taught[name].head
        outputs_KVC = mixed_KVC.take_along_dim(back_KV[..., None], dim=1)
        if head.improved(head.rows.loss.rows(outputs_KVC, head.rows.targets_NC[judged_KV])):
            taught.stack.kept.keep()
            keep.append(name)
        else:
            taught.ended = head.stopped
    active.keep = tuple(keep)
    return {name: active.taught[name].head.judged_loss for name in outputs}


def finish(active: Active, network: Engine) -> TeacherOutputs:
    """Every party back to its best weights, and what the teacher says of all shared rows."""
    network.ask(
        dict.fromkeys(active.partners, Finish(active.keep)),
        Finished,
        timeout_s=active.config.timeout_s,
    ).or_raise()
    active.keep = ()
    for taught in active.taught.values():
        taught.restore_best()
    test = active.test if _may_test(active) else None
    return TeacherOutputs(
        _table_outputs(active, network, active.train, test=False),
        None if test is None else _table_outputs(active, network, test, test=True),
    )


def _may_test(active: Active) -> bool:
    """Whether every partner answers about as few test rows as there are, if there are any."""
    if active.test is None:
        return False
    for party, uses in active.uses.items():
        num = int((active.test.samples[party] >= 0).sum())
        if 0 < num < uses.limits.min_rows:
            _log.warning(
                "the joint model is not tested: party %r has %d of the test rows, and answers "
                "about %d or more (its policy.min_rows)",
                party,
                num,
                uses.limits.min_rows,
            )
            return False
    return True


def _table_outputs(
    active: Active, network: Engine, table: AlignedRows, *, test: bool
) -> dict[str, Tensor]:
    """Stack -> (K, R, C) of a table's rows, NaN where no partner has the row."""
    stacks = active.config.teachers
    shape = active.members, len(table.x_RF), active.owner.num_outputs
    filled: dict[str, Tensor] = {name: torch.full(shape, torch.nan) for name in stacks}
    rows = table.held(active.partners).any(dim=0).nonzero().flatten()
    if len(rows):
        rows = rows[_order(active, "test" if test else "train", 1, len(rows))[0]]
        rows_KV = rows.expand(active.members, -1)
        for name, outputs in _outputs(active, network, stacks, rows_KV, table, test=test).items():
            filled[name][:, rows] = outputs
    return filled


def _order(active: Active, purpose: str, members: int, num_rows: int) -> Tensor:
    """(K, V) places of each member's rows, in an order that nobody else can compute.

    In a table's own order, which is often that of its labels, a message would give these away.
    """
    rng = active.local.generator("order", purpose, str(active.begins))
    return torch.rand(members, num_rows, generator=rng).argsort(dim=1)


#: Rows of a message that is no training step, all members' together.
_ROWS = 16_384


def _num_messages(active: Active, num_rows: int) -> int:
    """For so many rows of every member."""
    return -(-num_rows // max(1, _ROWS // active.members))


def _outputs(
    active: Active,
    network: Engine,
    stacks: Sequence[str],
    rows_KV: Tensor,
    table: AlignedRows,
    *,
    test: bool = False,
) -> dict[str, Tensor]:
    """Stack -> (K, V, C) outputs of each member's rows."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in stacks}
    # Of about the same size: a small last one would be about fewer samples than partners answer.
    for part_KB in rows_KV.tensor_split(_num_messages(active, rows_KV.shape[1]), dim=1):
        codes = _ask(active, network, stacks, part_KB, table, training=False, test=test)
        parts = _split(active, stacks, codes)
        with torch.no_grad():
            for name in stacks:
                taught = active.taught[name]
                top = taught.head.top.eval()
                if table is active.train:
                    code = taught.stack.encode(part_KB)
                else:
                    x_NF = table.x_RF[part_KB.flatten()]
                    code = taught.stack.encode_others(x_NF, active.members)
                outputs[name].append(top([code, *parts[name]]))
                top.train()
    return {name: torch.cat(each, dim=1) for name, each in outputs.items()}


@dataclass(frozen=True, eq=False)
class _Answer:
    """A partner's codes of a message.

    Attributes:
        KBD: as it sent them; of more rows than were asked for, where it answers about no fewer.
        lacks_KB: rows that it does not have; None: none.
        answered: whether it was asked at all.
        num_rows: B, that were asked for.
    """

    KBD: Tensor
    lacks_KB: Tensor | None
    answered: bool
    num_rows: int

    def codes(self) -> Tensor:
        """(K, B, ...) zeros, without a gradient, in rows that it does not have."""
        if self.lacks_KB is None:
            return self.KBD[:, : self.num_rows]
        return self.KBD[:, : self.num_rows].masked_fill(self.lacks_KB[..., None], 0)

    def gradient(self, gradient_KBD: Tensor) -> Tensor:
        """Of what it sent, by that of ``codes``: zeros in rows that moved nothing."""
        if self.lacks_KB is not None:
            gradient_KBD = gradient_KBD.masked_fill(self.lacks_KB[..., None], 0)
        more = self.KBD.shape[1] - self.num_rows
        return torch.nn.functional.pad(gradient_KBD, (0, 0, 0, more))


def _ask(
    active: Active,
    network: Engine,
    stacks: Sequence[str],
    rows_KB: Tensor,
    table: AlignedRows,
    *,
    training: bool,
    test: bool = False,
) -> dict[str, _Answer]:
    """Partner -> codes of these rows.

    It is sent what is due from the last step, too. Instead of a row that a partner lacks
    stands one that it has: all members' blocks are of one size.

    Raises:
        PartyError: one does not answer as asked.
    """
    none = torch.zeros(0, 0)
    requests: dict[str, Encode] = {}
    held: dict[str, Tensor] = {}
    for party in active.partners:
        samples = table.samples[party][rows_KB.flatten()]
        mask = samples >= 0
        if not mask.all():
            held[party] = mask
        if not mask.any():
            if party not in active.owed and not active.keep:
                continue  # nothing to ask it
            samples = _theirs(table, party)[: len(samples)]
            samples = samples.repeat(-(-len(mask) // len(samples)))[: len(mask)]
        elif not mask.all():
            there = samples[mask]
            lacking = len(mask) - len(there)
            samples[~mask] = there.repeat(-(-lacking // len(there)))[:lacking]
        samples_KB = _with_more(active, party, samples.view(active.members, -1), table, test)
        requests[party] = Encode(
            tuple(stacks),
            active.keep,
            active.owed.get(party, none),
            samples_KB.flatten(),
            training,
            test,
        )
    active.owed, active.keep = {}, ()
    replies = network.ask(requests, Codes, timeout_s=active.config.timeout_s).or_raise()
    num_outputs = active.owner.num_outputs
    codes = {}
    for party in active.partners:
        indices = [active.config.teachers.index(name) for name in stacks]
        width = sum(active.code_widths[party][index] + num_outputs for index in indices)
        code_ND = torch.zeros(rows_KB.numel(), width)
        if party in replies:
            asked = requests[party]
            code_ND = _checked(party, replies[party], len(asked.samples_N), width)
            if party in active.uses and (named := asked_for(asked)) is not None:
                active.uses[party].count(named)
        lacks = ~held[party].view(active.members, -1) if party in held else None
        codes[party] = _Answer(
            code_ND.unflatten(0, (active.members, -1)), lacks, party in replies, rows_KB.shape[1]
        )
    return codes


def _with_more(
    active: Active, party: str, samples_KB: Tensor, table: AlignedRows, test: bool
) -> Tensor:
    """(K, B + ...) with as many more of the partner's samples as it answers about at the least.

    What it says of these is not used. The least asked about come first.
    """
    uses = active.uses.get(party)
    different = samples_KB.unique()
    missing = 0 if uses is None else uses.limits.min_rows - len(different)
    if uses is None or missing <= 0:
        return samples_KB
    others = _theirs(table, party)
    others = others[~torch.isin(others, different)]
    used_S = uses.used.get("test" if test else "train", torch.zeros(0))
    counts = torch.zeros(len(others), dtype=torch.int64)
    known = others < len(used_S)
    counts[known] = used_S[others[known]].long()
    more = others[counts.argsort(stable=True)][:missing]
    width = -(-len(more) // len(samples_KB))
    if not width:
        return samples_KB
    more = more.repeat(-(-width * len(samples_KB) // len(more)))[: width * len(samples_KB)]
    return torch.cat([samples_KB, more.view(len(samples_KB), width)], dim=1)


def _theirs(table: AlignedRows, party: str) -> Tensor:
    """Samples that a partner has, by their numbers, which are drawn: not as the table lies."""
    samples_R = table.samples[party]
    return samples_R[samples_R >= 0].sort().values


def _checked(party: str, reply: Codes, num_rows: int, width: int) -> Tensor:
    try:
        check_shape(reply, "code_ND", (num_rows, width), torch.float32)
    except MessageError as cause:
        raise PartyError(party, str(cause)) from None
    if not reply.code_ND.sum().isfinite():
        raise PartyError(party, "its codes are not finite; lower its learning_rate")
    return reply.code_ND.detach()


def _split(
    active: Active, stacks: Sequence[str], answers: Mapping[str, _Answer]
) -> dict[str, list[Tensor]]:
    """Stack -> each partner's (K, B, D + C)."""
    num_outputs = active.owner.num_outputs
    parts: dict[str, list[Tensor]] = {name: [] for name in stacks}
    for party, answer in answers.items():
        indices = [active.config.teachers.index(name) for name in stacks]
        sizes = [active.code_widths[party][index] + num_outputs for index in indices]
        for name, part in zip(stacks, answer.codes().split(sizes, dim=-1), strict=True):
            parts[name].append(part)
    return parts
