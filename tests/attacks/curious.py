"""What a curious partner writes who has read the code: drivers and parties of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from dovetail.alignment import Workers, normalise, psi
from dovetail.network import Engine, Message

R = TypeVar("R", bound=Message)

#: Curve25519's prime.
P = 2**255 - 19

WORKERS = Workers()

REPLIES: dict[type[Message], type[Message]] = {
    psi.Begin: psi.Ready,
    psi.Blinded: psi.Received,
    psi.GetBlinded: psi.Blinded,
    psi.GetDoubled: psi.Doubled,
    psi.Prove: psi.Proofs,
    psi.Places: psi.Received,
    psi.GetProve: psi.Prove,
    psi.Proofs: psi.Received,
}


def points_of(ids: Sequence[Any] | np.ndarray) -> np.ndarray:
    """(N, 32) hashes of ids, which anyone who knows an id can compute."""
    return WORKERS.hash(normalise(ids, party="attacker").values)


def secret(number: int = 1) -> bytes:
    return bytes([number % 256, number // 256]) + bytes(30)


def times(number: int, points_N32: np.ndarray) -> np.ndarray:
    """(N, 32), the secret of this number times each."""
    return WORKERS.multiply(secret(number), points_N32)


def multiples(point_32: np.ndarray, num: int) -> np.ndarray:
    """(num, 32) different points that are all multiples of one."""
    return np.concatenate([times(8 * k, point_32.reshape(1, 32)) for k in range(1, num + 1)])


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).copy())


class Driver:
    """A driver that sends what it likes, one message at a time.

    Args:
        engine: reaches the victim.
        victim: its name.
        batch_size: points in one message.
    """

    def __init__(self, engine: Engine, victim: str = "shop", batch_size: int = 512) -> None:
        self.engine = engine
        self.victim = victim
        self.batch_size = batch_size

    def ask(self, message: Message, reply: type[R] | None = None) -> R:
        """The answer to one message; its type is the protocol's unless it is said."""
        expected: Any = reply or REPLIES[type(message)]
        replies = self.engine.ask({self.victim: message}, expected, timeout_s=120)
        return replies.or_raise()[self.victim]

    def batches(self, num: int) -> range:
        return range(-(-num // self.batch_size))

    def part(self, batch: int) -> slice:
        return slice(batch * self.batch_size, (batch + 1) * self.batch_size)

    def begin(self, num_ids: int, mode: str = "intersection") -> int:
        """Phase 1: how many ids the victim has."""
        message = psi.Begin(self.engine.driver, mode, "text", num_ids, self.batch_size)
        self.num_ids = num_ids
        self.num_theirs = self.ask(message, psi.Ready).num_ids
        return self.num_theirs

    def send(self, points_N32: np.ndarray) -> None:
        """Phase 2."""
        for batch in self.batches(len(points_N32)):
            points = tensor(points_N32[self.part(batch)])
            self.ask(psi.Blinded(batch, points), psi.Received)

    def theirs(self) -> np.ndarray:
        """Phase 3: (M, 32), the victim's points times its secret."""
        replies = [
            self.ask(psi.GetBlinded(batch), psi.Blinded) for batch in self.batches(self.num_theirs)
        ]
        return np.concatenate([reply.points_B32.numpy() for reply in replies])

    def doubled(self) -> np.ndarray:
        """Phase 4: (N, 16), what was sent times the victim's secret."""
        replies = [
            self.ask(psi.GetDoubled(batch), psi.Doubled) for batch in self.batches(self.num_ids)
        ]
        return np.concatenate([reply.values_B16.numpy() for reply in replies])

    def claim(self, indices_K: np.ndarray, local_K: np.ndarray) -> None:
        """Phase 6: these places of the victim's are those of its own."""
        num = len(indices_K)
        for batch in self.batches(num):
            part = self.part(batch)
            samples = torch.arange(num)[part]
            message = psi.Places(
                batch, num, samples, tensor(indices_K[part]), tensor(local_K[part])
            )
            self.ask(message, psi.Received)

    def prove(self, answer: Callable[[np.ndarray], np.ndarray]) -> int:
        """Phase 7 with these answers to questions; how many there were."""
        batch, total = 0, 1
        while batch * self.batch_size < total:
            asked = self.ask(psi.GetProve(batch), psi.Prove)
            total = asked.num_questions
            values = answer(asked.points_B32.numpy())
            self.ask(psi.Proofs(batch, tensor(values[:, :16])), psi.Received)
            batch += 1
        return total

    def compare(self, points_N32: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Phases 1 to 4: (M, 32) the victim's points, (N, 16) the doubled values of these."""
        self.begin(len(points_N32))
        self.send(points_N32)
        return self.theirs(), self.doubled()
