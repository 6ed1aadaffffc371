"""What every peer's program shares: data, networks, batches, and the clock.

Imported in the peers' own environments, which have PyTorch and NumPy but not Dovetail.

Letters: B rows of a minibatch, F features, D code width, C classes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_CLASSES = 10
#: Hidden widths of each party's encoder and of the label owner's head, and their training.
ENCODER = (64, 32)
HEAD = (64,)
DROPOUT = 0.5
BATCH_SIZE = 128
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 1e-4
THREADS = 1


class Data:
    """The rows of ``strips.npz``: the label owner's, the partner's, and labels of the first."""

    def __init__(self, path: str | Path) -> None:
        stored = np.load(path)
        self.columns, self.other, self.labels = self._part(stored, "train")
        self.local_test, self.other_test, self.labels_test = self._part(stored, "test")

    @staticmethod
    def _part(stored: Any, name: str) -> tuple[Tensor, Tensor, Tensor]:
        x, other, labels = (torch.from_numpy(stored[f"{what}_{name}"]) for what in "xzy")
        return x, other, labels


@cache
def data(path: str) -> Data:
    """Read once by each process."""
    return Data(path)


def encoder(num_inputs: int) -> nn.Sequential:
    """(B, F) -> (B, D)."""
    layers: list[nn.Module] = []
    for width in ENCODER:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers)


def head(num_inputs: int) -> nn.Sequential:
    """(B, 2 D) -> (B, C)."""
    layers: list[nn.Module] = []
    for width in HEAD:
        layers += [nn.Linear(num_inputs, width), nn.ReLU(), nn.Dropout(DROPOUT)]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, NUM_CLASSES))


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.SGD(parameters, LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)


def batches(num_rows: int, seed: int = 0) -> Callable[[int], np.ndarray]:
    """Step (from 0) -> the rows of its minibatch; all parties draw the same."""
    per_epoch = num_rows // BATCH_SIZE
    orders: dict[int, np.ndarray] = {}

    def rows(step: int) -> np.ndarray:
        epoch, batch = divmod(step, per_epoch)
        if epoch not in orders:
            orders.clear()
            orders[epoch] = np.random.default_rng([seed, epoch]).permutation(num_rows)
        return orders[epoch][batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]

    return rows


class Partner:
    """The partner: an encoder of its strips."""

    def __init__(self, data: Data, seed: int = 0) -> None:
        torch.manual_seed(seed + 1)
        self.data = data
        self.encoder = encoder(data.other.shape[1])
        self.optimizer = sgd(self.encoder)

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """(B, D) codes of these rows, whose gradient ``step`` waits for."""
        self._codes = self.encoder(self.data.other[torch.from_numpy(rows)])
        return self._codes.detach().numpy()

    def step(self, gradient: np.ndarray) -> None:
        self.optimizer.zero_grad()
        self._codes.backward(torch.from_numpy(np.array(gradient)))
        self.optimizer.step()

    def test_codes(self) -> np.ndarray:
        with torch.no_grad():
            codes: np.ndarray = self.encoder(self.data.other_test).numpy()
        return codes


class LabelOwner:
    """The label owner: an encoder of its own strips, and the head on both parties' codes."""

    def __init__(self, data: Data, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.data = data
        self.encoder = encoder(data.columns.shape[1])
        self.head = head(2 * ENCODER[-1])
        self.optimizer = sgd(self.encoder, self.head)

    def step(self, rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """One step; (B, D) gradient of the loss with respect to the partner's codes."""
        at = torch.from_numpy(rows)
        other = torch.from_numpy(np.array(codes)).requires_grad_()
        logits = self.head(torch.cat([self.encoder(self.data.columns[at]), other], dim=1))
        self.optimizer.zero_grad()
        F.cross_entropy(logits, self.data.labels[at]).backward()
        self.optimizer.step()
        assert other.grad is not None
        return other.grad.numpy()

    def accuracy(self, codes: np.ndarray | None) -> float:
        """On the test rows, with the partner's codes, or zeros for a partner who is gone."""
        self.encoder.eval(), self.head.eval()
        with torch.no_grad():
            code = self.encoder(self.data.local_test)
            other = torch.zeros_like(code) if codes is None else torch.from_numpy(np.array(codes))
            predicted = self.head(torch.cat([code, other], dim=1)).argmax(dim=1)
        self.encoder.train(), self.head.train()
        return float((predicted == self.data.labels_test).float().mean())


class Clock:
    """Trains for so many seconds or steps, scores now and then, and tells what it saw.

    Scoring is not counted as training.

    Args:
        seconds, steps: of training at most.
        every: steps from one score to the next.
        warm: steps at the start that are counted neither in samples per second nor in the limit.
    """

    def __init__(self, seconds: float, steps: int, every: int, warm: int) -> None:
        self.limit_s, self.steps, self.every, self.warm = seconds, steps, every, warm
        self.curve: list[tuple[int, float, float]] = []  # steps, seconds, accuracy
        self.done, self.spent, self.warmed = 0, 0.0, 0.0

    def run(self, step: Callable[[int], None], score: Callable[[], float]) -> None:
        while self.done < self.steps and self.spent - self.warmed < self.limit_s:
            began = time.perf_counter()
            step(self.done)
            self.spent += time.perf_counter() - began
            self.done += 1
            if self.done <= self.warm:
                self.warmed = self.spent
            if self.done % self.every == 0:
                self.curve.append((self.done, self.spent, score()))
        if not self.curve or self.curve[-1][0] != self.done:
            self.curve.append((self.done, self.spent, score()))

    def report(self, **more: Any) -> dict[str, Any]:
        counted = max(self.done - self.warm, 0)
        seconds = self.spent - self.warmed
        return {
            "steps": self.done,
            "seconds": self.spent,
            "warm_seconds": self.warmed,
            "samples_per_second": BATCH_SIZE * counted / seconds if counted else None,
            "curve": self.curve,
            "accuracy": self.curve[-1][2],
            **more,
        }


def write(path: str | Path, reported: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(reported))
