"""Training steps of one party, shared by the processes that ``torchrun`` starts: one a GPU.

    rank 0                                  the others
    drives, scores, writes the run          hold the same rows, and the same party
    a message for a party  -- broadcast ->  handle it, too; no answer of theirs leaves
    Local.step: its part of the batch       theirs
              <------ all-reduce of gradients ------>

Each process computes the gradient of its part of a batch. Gradients are then averaged, weighted by
rows, as ``torch.nn.parallel.DistributedDataParallel`` does after each backward pass (Li et al.,
"PyTorch Distributed", VLDB 2020). So every process makes the same step, and what differs from one
process is the order in which float32 numbers are added. Noise within a network (dropout) is drawn
for each part by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dovetail.errors import ConfigError, DovetailError
from dovetail.network import Message, State, StatefulParty, decode, encode
from dovetail.network.checkpoint import read_state, written_state

#: What is broadcast: nothing more comes, a variant starts, a party handles or goes back.
_END, _BEGIN, _HANDLE, _RESTORE = range(4)

#: Scoring, or a baseline that asks nobody, may take so long between two messages.
_LONGEST = timedelta(days=7)


class Group:
    """The processes of one party.

    Attributes:
        rank: of this process; 0 drives.
        size: how many there are.
    """

    def __init__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_LONGEST)
        else:
            dist.init_process_group("gloo", timeout=_LONGEST)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    # --- A step ----------------------------------------------------------------------------------

    def step(
        self, network: nn.Module, loss: Callable[..., Tensor], num_rows: int, batch: Sequence[Any]
    ) -> Tensor:
        """The mean loss of a batch of so many rows; its gradient is then the parameters' own."""
        start, stop = (num_rows * each // self.size for each in (self.rank, self.rank + 1))
        value = torch.zeros(())
        if stop > start:
            value = loss(network, *_rows(batch, slice(start, stop)), reduction="mean")
            value.backward()
        trained = [each for each in network.parameters() if each.requires_grad]
        share = (stop - start) / num_rows
        parts = [
            torch.zeros_like(each).reshape(-1) if each.grad is None else each.grad.reshape(-1)
            for each in trained
        ]
        moved = torch.tensor([float(each.grad is not None) for each in trained])
        device = trained[0].device
        flat = (
            torch.cat([*parts, value.detach().reshape(1).to(device)]) * share
            if share
            else torch.zeros(sum(map(len, parts)) + 1, device=device)
        )
        dist.all_reduce(flat)
        dist.all_reduce(moved)
        *averaged, mean = flat.split([*map(len, parts), 1])
        for each, gradient, count in zip(trained, averaged, moved.tolist(), strict=True):
            each.grad = gradient.view_as(each).clone() if count else None
        value = mean.squeeze(0)
        assert isinstance(value, Tensor)
        return value

    # --- Messages --------------------------------------------------------------------------------

    def tell(self, kind: int, name: str = "", data: bytes | memoryview = b"") -> None:
        """Rank 0: what the others are to do next."""
        text = name.encode()
        dist.broadcast(torch.tensor([kind, len(text), len(data)]), 0)
        if text or data:
            dist.broadcast(torch.frombuffer(bytearray(text + bytes(data)), dtype=torch.uint8), 0)

    def hear(self) -> tuple[int, str, bytes]:
        """The others: what to do next."""
        head = torch.zeros(3, dtype=torch.int64)
        dist.broadcast(head, 0)
        kind, num_name, num_data = head.tolist()
        content = torch.empty(num_name + num_data, dtype=torch.uint8)
        if len(content):
            dist.broadcast(content, 0)
        whole = content.numpy().tobytes()
        return kind, whole[:num_name].decode(), whole[num_name:]

    def engine(self, kind: Any) -> Any:
        """Engine that asks parties one after another, in the same order in every process."""
        return kind

    def __call__(
        self,
        parties: Mapping[str, Any],
        sides: Mapping[str, StatefulParty],
        variant: str,
        seed: int,
    ) -> tuple[Mapping[str, Any], Mapping[str, StatefulParty]]:
        """Rank 0: the parties of a variant, and what answers for each and passes it on."""
        self.tell(_BEGIN, json.dumps([variant, seed]))
        return parties, {name: _Leading(self, name, side) for name, side in sides.items()}

    def follow(self, made: Callable[[str, int], Mapping[str, StatefulParty]]) -> None:
        """The others: do as rank 0 does, until it ends.

        Args:
            made: variant and seed -> what answers for each party.
        """
        sides: Mapping[str, StatefulParty] = {}
        while True:
            kind, name, data = self.hear()
            if kind == _END:
                return
            if kind == _BEGIN:
                variant, seed = json.loads(name)
                sides = made(variant, seed)
                continue
            side = sides[name]
            with stepping(self):
                if kind == _RESTORE:
                    side.restore(read_state(data))
                    continue
                try:
                    side.handle(decode(data, side.accepts, max_bytes=2**62))
                except DovetailError:  # rank 0 has the same, and answers with it
                    continue

    def close(self, *, failed: bool = False) -> None:
        """Rank 0 lets the others know that nothing more comes; all leave the group.

        Args:
            failed: this process ends with an error, and waits for nobody.
        """
        with suppress(RuntimeError):  # the others are gone
            if not self.rank:
                self.tell(_END)
            if not failed:
                dist.barrier()  # nobody leaves while another still reads from it
        dist.destroy_process_group()


class _Leading:
    """Rank 0's side of a party: whatever it is sent, the other processes get first."""

    def __init__(self, group: Group, name: str, side: StatefulParty) -> None:
        self.accepts = side.accepts
        self._group = group
        self._name = name
        self._side = side

    def handle(self, message: Message) -> Message:
        self._group.tell(_HANDLE, self._name, encode(message))
        with stepping(self._group):
            return self._side.handle(message)

    def state(self) -> State:
        return self._side.state()

    def restore(self, state: State) -> None:
        self._group.tell(_RESTORE, self._name, written_state(state))
        with stepping(self._group):
            self._side.restore(state)


def _rows(batch: Any, rows: slice) -> Any:
    """Rows of every tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch[rows]
    if isinstance(batch, Mapping):
        return {key: _rows(each, rows) for key, each in batch.items()}
    if isinstance(batch, list | tuple):
        return [_rows(each, rows) for each in batch]
    return batch


# --- The group of this process -------------------------------------------------------------------

_stepping: Group | None = None


def current() -> Group | None:
    """The group that shares the steps that are made now; None: this process makes them alone."""
    return _stepping


@contextmanager
def stepping(group: Group) -> Iterator[None]:
    """While open, all processes of the group handle the same message."""
    global _stepping
    _stepping = group
    try:
        yield
    finally:
        _stepping = None


@contextmanager
def joined() -> Iterator[Group | None]:
    """The group that ``torchrun`` started this process in, while the context is open; else None.

    Raises:
        ConfigError: the processes do not find each other.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield None
        return
    try:
        group = Group()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of torchrun do not find each other ({error}); see --nnodes and "
            "--rdzv-endpoint of torchrun"
        ) from None
    try:
        yield group
    except BaseException:
        group.close(failed=True)
        raise
    group.close()
