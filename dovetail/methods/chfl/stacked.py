"""Members of one process train together: the same steps, as stacked tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.data import Classification
from dovetail.methods.chfl.layers import Finished, Member, Train, Trained
from dovetail.models import StackedColumns, StackedOptimizer, pull
from dovetail.models.columns import OwnColumn
from dovetail.models.optimizers import Optimizer
from dovetail.models.threads import num_threads, one_core_each
from dovetail.network import Checkpointed, Engine, InProcess, Message, Party, Pending
from dovetail.network.engine import R

#: So many networks at once; more do not fit in a processor's cache, and are no faster.
MAX_STACK = 8


class StackedInProcess(Engine):
    """Calls members as ``InProcess`` does, but trains those of one round as stacked tensors.

    There is a stack for each of PyTorch's threads or more, and each is computed on one core: the
    weights do not depend on how many there are.

    Messages, ledger and random batches are the same. Sums within a batched product are taken in
    another order than in a single one, so weights agree to float32 rounding: to about 1e-5 of
    their size after a round (tests hold 1e-4).

    Args:
        parties: name -> member, or a ``Checkpointed`` of one.
        driver: the driver's name, in the ledger.
        options: more for ``InProcess``.
    """

    def __init__(self, parties: Mapping[str, Party], *, driver: str, **options: Any) -> None:
        super().__init__(driver)
        self._inner = InProcess(parties, driver=driver, **options)
        self.ledger = self._inner.ledger
        self._members = {
            name: member
            for name, party in parties.items()
            if isinstance(
                member := party.party if isinstance(party, Checkpointed) else party, Member
            )
        }
        self._stacks: dict[tuple[str, ...], Stack] = {}

    @property
    def parties(self) -> tuple[str, ...]:
        return self._inner.parties

    def send(
        self, requests: Mapping[str, Message], reply: type[R], *, timeout_s: float | None = None
    ) -> Pending[R]:
        if issubclass(reply, Trained):
            self._train_ahead(requests)
        replies = self._inner.send(requests, reply, timeout_s=timeout_s)
        if issubclass(reply, Finished):
            self._keep_stacks({})
        return replies

    def _train_ahead(self, requests: Mapping[str, Message]) -> None:
        """Do the round of all who can be stacked; each finds its losses when it is asked."""
        alike: dict[object, list[Member]] = {}
        for name, request in requests.items():
            member = self._members.get(name)
            if member and isinstance(request, Train) and member.can_train(request):
                alike.setdefault(_stack_key(member), []).append(member)
        groups = [
            group for members in alike.values() if len(members) > 1 for group in _dealt(members)
        ]
        names = {tuple(member.name for member in group): group for group in groups}
        stacks = {
            key: stack
            for key, group in names.items()
            if (stack := self._stacks.get(key)) and stack.fits(group)
        }
        self._keep_stacks(stacks)
        self._stacks |= {key: Stack(group) for key, group in names.items() if key not in stacks}
        learn = [self._stacks[key].learn for key in names]
        for group, losses in zip(groups, one_core_each(learn), strict=True):
            for member, loss in zip(group, losses, strict=True):
                member.ahead = loss

    def _keep_stacks(self, stacks: dict[tuple[str, ...], Stack]) -> None:
        """Drop the others: their members' weights lie apart again, as if never stacked."""
        for key, stack in self._stacks.items():
            if key not in stacks:
                stack.release()
        self._stacks = stacks


def _dealt(members: Sequence[Member]) -> Iterator[list[Member]]:
    """As few stacks of at most ``MAX_STACK`` as keep all threads busy, as even as can be."""
    threads = num_threads()
    num = -(-len(members) // (MAX_STACK * threads)) * threads
    ends = [index * len(members) // num for index in range(num + 1)]
    for start, end in itertools.pairwise(ends):
        if start < end:  # fewer members than threads
            yield list(members[start:end])


def _stack_key(member: Member) -> object:
    """Members of one key can be stacked: like networks, as many batches, optimizers of one age."""
    columns = member.columns
    optimizers = [member.unique_optimizer]
    if member.config.method == "local":
        optimizers.append(member.common_optimizer_kept)
    ages = tuple(
        float(next(iter(optimizer.state.values()))["step"])
        if optimizer is not None and optimizer.state and member.config.optimizer == "adam"
        else bool(optimizer is not None and optimizer.state)
        for optimizer in optimizers
    )
    return (
        member.config.model_dump_json(),
        # Rows' own gradients are not stacked; who has them cut trains by itself.
        member.name if member.local.is_private else "",
        columns.unique is None,
        # A network of a party's own is trained by itself.
        member.name if isinstance(columns.unique, OwnColumn) else "",
        # Stacked losses are of classes; who learns a number trains by itself.
        member.task.num_outputs if isinstance(member.task, Classification) else member.name,
        member.batches.steps_per_pass,
        ages,
        str(member.local.device),
    )


class Stack:
    """Members whose networks and optimizers lie side by side from round to round.

    Their own parameters and optimizer states are views of the stacked ones: each can be asked,
    scored, saved or given weights at any time, and nothing is copied in between.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        config = members[0].config
        self.members = list(members)
        self._networks = [member.columns for member in members]
        self._columns = StackedColumns(self._networks, config.batch_size)
        common = self._columns.common
        self._optimizers: list[StackedOptimizer] = []
        if config.method == "local":
            goes_on = StackedOptimizer(
                common,
                partial(Optimizer.of, config),
                [member.common_optimizer() for member in members],
            )
            self._optimizers.append(goes_on)
            self._common_optimizer = goes_on.optimizer
        else:
            self._common_optimizer = Optimizer.of(config, [common.flat])
        self._unique_optimizer = None
        if self._columns.unique is not None:
            optimizers = [m.unique_optimizer for m in members if m.unique_optimizer is not None]
            decayed = config.of_unique(members[0].batches.steps_per_pass)
            stacked = StackedOptimizer(
                self._columns.unique, partial(Optimizer.of, decayed), optimizers
            )
            self._optimizers.append(stacked)
            self._unique_optimizer = stacked.optimizer
        self._rows = _Rows(members)

    def fits(self, members: Sequence[Member]) -> bool:
        """Whether these are its members, and none began again or was restored since."""
        optimizers = [
            optimizer
            for member in members
            for optimizer in (member.common_optimizer_kept, member.unique_optimizer)
        ]
        return (
            len(members) == len(self.members)
            and all(one is other for one, other in zip(members, self.members, strict=True))
            and all(m.columns is n for m, n in zip(members, self._networks, strict=True))
            and self._columns.common.holds()
            and all(
                stacked.holds()
                and all(any(o is has for has in optimizers) for o in stacked.optimizers)
                for stacked in self._optimizers
            )
        )

    def release(self) -> None:
        """Let what still is a view of the stack lie in memory of its own."""
        for stacked in self._optimizers:
            stacked.release()
        self._columns.common.release()
        if self._columns.unique is not None:
            self._columns.unique.release()

    def learn(self, given_up: Event) -> list[tuple[float, float]]:
        """``Member.learn`` of all members at once; their mean losses. It ends once given up."""
        config, stack = self.members[0].config, self._columns
        if config.method != "local":  # starts anew, as fresh ones would
            for value in self._common_optimizer.state[stack.common.flat].values():
                if isinstance(value, Tensor):
                    value.zero_()
        anchor = stack.common.flat.detach().clone() if config.proximal else None
        losses_K = torch.zeros(len(self.members))
        joint_losses_K = torch.zeros(len(self.members))
        for _ in range(config.local_epochs):
            for x, x_unique, labels_KB, weights_KB in self._rows.next_pass():
                if given_up.is_set():
                    return []
                losses_K += (loss_K := stack.common_gradient(x, labels_KB, weights_KB))
                if anchor is not None:
                    pull([stack.common.flat], [anchor], config.proximal)
                self._common_optimizer.step()  # line 14
                if self._unique_optimizer is None:
                    joint_losses_K += loss_K
                    continue
                joint_losses_K += stack.joint_gradient(x, x_unique, labels_KB, weights_KB)
                self._unique_optimizer.step()  # lines 15 and 16
        for stacked in self._optimizers:
            stacked.share()
        num_steps = config.local_epochs * self.members[0].batches.steps_per_pass
        return [
            (loss / num_steps, joint_loss / num_steps)
            for loss, joint_loss in zip(losses_K.tolist(), joint_losses_K.tolist(), strict=True)
        ]


class _Rows:
    """Rows of several members, side by side; rows and features that one lacks are zeros."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)
        self._batch_size = members[0].config.batch_size
        self._starts = [0, *itertools.accumulate(len(member.labels) for member in members)]
        self._x = _side_by_side([member.x_common for member in members])
        self._x_unique = _side_by_side([member.x_unique for member in members])
        self._labels = torch.cat([*(member.labels for member in members), torch.zeros(1).long()])
        self._weights_KN = torch.empty(0, 0)
        weights = [member.loss.weights_C for member in members]
        weighted = [weights for weights in weights if weights is not None]
        self._class_weights_KC = torch.stack(weighted) if weighted else None

    def next_pass(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Batches of one pass of each: common and own features, labels, weights in the mean."""
        orders = [
            torch.cat([next(member.batches) for _ in range(member.batches.steps_per_pass)])
            for member in self._members
        ]
        size = (len(orders), max(map(len, orders)))
        rows_KN = torch.full(size, self._starts[-1])  # a row of zeros
        for k, order in enumerate(orders):
            torch.add(order, self._starts[k], out=rows_KN[k, : len(order)])
        if self._weights_KN.shape != size:
            self._weights_KN = torch.zeros(size)
            for k, order in enumerate(orders):
                last = (len(order) - 1) // self._batch_size * self._batch_size
                self._weights_KN[k, :last] = 1 / self._batch_size
                self._weights_KN[k, last : len(order)] = 1 / (len(order) - last)
        for batch_KB, weights_KB in zip(
            rows_KN.split(self._batch_size, dim=1),
            self._weights_KN.split(self._batch_size, dim=1),
            strict=True,
        ):
            labels_KB = self._labels[batch_KB]
            if self._class_weights_KC is not None:
                weights_KB = weights_KB * self._class_weights_KC.gather(1, labels_KB)
                tiny = torch.finfo(weights_KB.dtype).tiny
                weights_KB = weights_KB / weights_KB.sum(dim=1, keepdim=True).clamp(min=tiny)
            yield self._x[batch_KB], self._x_unique[batch_KB], labels_KB, weights_KB


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """(sum N + 1, most F) of (N, F) each; the last row is all zeros."""
    width = max(part.shape[1] for part in parts)
    padded = [F.pad(part, (0, width - part.shape[1])) for part in parts]
    return torch.cat([*padded, parts[0].new_zeros(1, width)])
