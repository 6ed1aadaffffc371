"""Networks of one or several parties' columns, several members trained at once.

    code_p = MLP(PLE(x_p))                                   at party p
    outputs = head(concat_p code_p) + sum_p linear_p(PLE(x_p))

PLE are the piecewise-linear bins of ``encoding``. K members (folds, and copies of each) are one
network with a leading dimension: a step of all costs little more than a step of one. With
one party it is the ``network`` learner; with several, the joint teacher, whose parties exchange
nothing but ``Bottom``'s outputs and their gradients. Without widths it is logistic regression.

Letters: K members, B rows of a batch, F features, D code width, C outputs, V held-out rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dovetail.errors import ModelError
from dovetail.models.learners.encoding import PiecewiseLinear
from dovetail.models.learners.rows import Rows, row_losses
from dovetail.models.randomness import RandomStream, generator


@dataclass(frozen=True, kw_only=True)
class StackedConfig:
    """How members are built and trained.

    Attributes:
        widths: of a bottom's hidden layers, the last one being the code; () for a linear model.
        bins: of one number; 0 for the number alone.
        copies: members of each fold; None for 2 with up to 500 rows, else 1.
        learning_rate, weight_decay: of AdamW.
        dropout: share of the codes that a training step leaves out.
        batch_size: None for one that grows with the rows, 64 to 512.
        max_steps: an upper bound.
        patience: steps without a better held-out loss before it ends, at least five epochs.
    """

    widths: tuple[int, ...] = (64, 32)
    bins: int = 16
    copies: int | None = None
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    dropout: float = 0.0
    batch_size: int | None = None
    max_steps: int = 4000
    patience: int = 200


class _Stack(nn.Module):
    """(B, in) or (K, B, in) -> (K, B, out), each member by its own weights."""

    def __init__(self, members: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(max(num_inputs, 1))
        self.weight = nn.Parameter(
            torch.empty(members, num_inputs, num_outputs).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(members, 1, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Bottom(nn.Module):
    """One party's part: (B, F) or (K, B, F) encoded rows -> (K, B, D + C) code and linear part."""

    def __init__(
        self, members: int, num_features: int, widths: Sequence[int], num_outputs: int
    ) -> None:
        super().__init__()
        sizes = [num_features, *widths]
        self.layers = nn.ModuleList(
            _Stack(members, before, after) for before, after in itertools.pairwise(sizes)
        )
        self.linear = nn.Parameter(torch.zeros(members, num_features, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        linear_KBC = x @ self.linear
        if not len(self.layers):
            return linear_KBC
        code = x
        for layer in self.layers:
            code = layer(code).relu()
        return torch.cat([code, linear_KBC], dim=-1)


class Top(nn.Module):
    """The label owner's part: every party's (K, B, D + C) -> (K, B, C)."""

    def __init__(
        self, members: int, parties: int, code_width: int, num_outputs: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.code_width = code_width
        self.head = _Stack(members, parties * code_width, num_outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        codes = torch.cat([part[..., : self.code_width] for part in parts], dim=-1)
        linear = torch.stack([part[..., self.code_width :] for part in parts]).sum(dim=0)
        outputs: Tensor = self.head(self.dropout(codes)) + linear
        return outputs


class Batches:
    """(K, B) row numbers of every step, each member's from its own rows, epoch after epoch."""

    def __init__(self, train_KN: Tensor, batch_size: int | None, *, seed: int) -> None:
        self._rows = [train.nonzero().flatten() for train in train_KN]
        most = max(len(rows) for rows in self._rows)
        if batch_size is None:
            batch_size = min(512, max(64, 2 ** int(math.log2(max(most / 64, 1)))))
        self.size = min(batch_size, *(len(rows) for rows in self._rows))
        self.epoch = math.ceil(most / self.size)
        self._rng = generator(seed, "batches")
        self._left: list[Tensor] = []

    def draw(self) -> Tensor:
        """(K, B) the next step's rows."""
        if not self._left:
            need = self.epoch * self.size
            orders = []
            for rows in self._rows:
                times = math.ceil(need / len(rows))
                orders.append(
                    torch.cat(
                        [rows[torch.randperm(len(rows), generator=self._rng)] for _ in range(times)]
                    )[:need]
                )
            self._left = list(torch.stack(orders).split(self.size, dim=1))[::-1]
        return self._left.pop()


class Kept:
    """The weights of the best step so far."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._state: dict[str, Tensor] = {}
        self.keep()

    def keep(self) -> None:
        self._state = {
            name: value.detach().clone() for name, value in self._module.state_dict().items()
        }

    def restore(self) -> None:
        self._module.load_state_dict(self._state)


class EarlyStopping:
    """Whether a step is the best so far, and when to end."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best_loss = math.inf
        self.best_step = 0

    def improved(self, step: int, loss: float) -> bool:
        if loss < self.best_loss:
            self.best_loss, self.best_step = loss, step
            return True
        return False

    def ended(self, step: int) -> bool:
        return step - self.best_step >= self.patience


def member_masks(folds_N: Tensor, copies: int) -> tuple[Tensor, Tensor]:
    """(K, N) which rows train and which rows stop each member; ``copies`` of every fold."""
    held_out = torch.stack(
        [folds_N == fold for fold in range(int(folds_N.max()) + 1) for _ in range(copies)]
    )
    return ~held_out, held_out


def held_out_rows(stop_KN: Tensor) -> tuple[Tensor, Tensor]:
    """(K, V) each member's held-out rows, and 0 or 1 where a member with fewer is filled up."""
    rows = [stop.nonzero().flatten() for stop in stop_KN]
    most = max(len(r) for r in rows)
    filled = torch.stack([torch.cat([r, r[:1].expand(most - len(r))]) for r in rows])
    counts = torch.tensor([len(r) for r in rows])
    return filled, (torch.arange(most) < counts[:, None]).float()


@dataclass(frozen=True, eq=False)
class Stacked:
    """Trained members.

    Attributes:
        encodings, bottoms: one a party.
        top: the label owner's.
        folds: of the rows it was trained on.
        copies: members of each fold; None for 2 with up to 500 rows, else 1.
        regression: what it predicts.
        held_out_NC: outputs of each row by the members that did not see it, NaN for a row of no
            fold.
        loss: the mean held-out loss.
        steps: the step that was kept.
    """

    encodings: tuple[PiecewiseLinear, ...]
    bottoms: tuple[Bottom, ...]
    top: Top
    folds: int
    copies: int
    regression: bool
    held_out_NC: Tensor
    loss: float
    steps: int

    def member_outputs(self, xs: Sequence[Tensor]) -> Tensor:
        """(K, N, C) of every member; ``xs`` are the parties' (N, F) features."""
        parts = []
        with torch.inference_mode():
            for start in range(0, len(xs[0]), 2048):
                parts.append(
                    self.top(
                        [
                            bottom(encoding(x[start : start + 2048]))
                            for encoding, bottom, x in zip(
                                self.encodings, self.bottoms, xs, strict=True
                            )
                        ]
                    )
                )
        return torch.cat(parts, dim=1)

    def fold_outputs(self, xs: Sequence[Tensor]) -> Tensor:
        """(folds, N, C) the mean of each fold's copies."""
        return torch.stack(
            [
                mean_outputs(each, regression=self.regression)
                for each in self.member_outputs(xs).split(self.copies)
            ]
        )

    def probabilities(self, xs: Sequence[Tensor]) -> Tensor:
        """(N, C) of all members' mean, or values."""
        outputs = mean_outputs(self.member_outputs(xs), regression=self.regression)
        return outputs if self.regression else outputs.softmax(dim=1)


def fit_stacked(
    xs: Sequence[Tensor],
    rows: Rows,
    config: StackedConfig,
    *,
    seed: int,
    encode_on: Sequence[Tensor] | None = None,
    steps: int | None = None,
) -> Stacked:
    """Members trained in one place, as the parties would train them together.

    Args:
        xs: the parties' (N, F) features of the same rows; ``rows.x_NF`` is not read.
        rows: targets, weights and folds.
        config: how.
        seed: of weights and batches.
        encode_on: the parties' rows to place bins by, if more than ``xs``.
        steps: train on all rows for so many steps, and keep the last; None for early stopping.
    """
    encodings = [PiecewiseLinear.fit(x, bins=config.bins) for x in encode_on or xs]
    encoded = [encoding(x) for encoding, x in zip(encodings, xs, strict=True)]
    copies = config.copies or (2 if len(xs[0]) <= 500 else 1)
    train_KN, stop_KN = member_masks(rows.folds_N, copies)
    if steps is not None:
        train_KN = torch.ones_like(train_KN)
    members = len(train_KN)
    bottoms, width = [], config.widths[-1] if config.widths else 0
    for place, x in enumerate(encoded):
        with RandomStream(seed, "bottom", str(place)):
            bottoms.append(Bottom(members, x.shape[1], config.widths, rows.num_outputs))
    with RandomStream(seed, "top"):
        top = Top(members, len(xs), width, rows.num_outputs, config.dropout)
    targets, weights = rows.targets_NC, rows.weights()
    with torch.no_grad():
        nn.init.zeros_(top.head.bias).add_(_prior(targets, weights, regression=rows.regression))
    modules = [*bottoms, top]
    optimizers = [
        torch.optim.AdamW(
            module.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        for module in modules
    ]
    batches = Batches(train_KN, config.batch_size, seed=seed)
    judged_KV, real_KV = held_out_rows(stop_KN)
    judged_parts = [x[judged_KV] for x in encoded]
    judged_targets, judged_weights = targets[judged_KV], weights[judged_KV] * real_KV

    def judge() -> Tensor:
        for module in modules:
            module.eval()
        with torch.no_grad():
            outputs: Tensor = top([b(x) for b, x in zip(bottoms, judged_parts, strict=True)])
        for module in modules:
            module.train()
        return outputs

    kept = [Kept(module) for module in modules]
    stopping = EarlyStopping(max(config.patience, 5 * batches.epoch))
    every = min(max(5, batches.epoch), 100)
    dropping = RandomStream(seed, "dropout")
    for step in range(1, (config.max_steps if steps is None else steps) + 1):
        drawn_KB = batches.draw()
        with dropping:
            outputs = top([b(x[drawn_KB]) for b, x in zip(bottoms, encoded, strict=True)])
        losses_KB = row_losses(outputs, targets[drawn_KB], regression=rows.regression)
        (losses_KB * weights[drawn_KB]).mean(dim=1).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if steps is None and step % every == 0:
            losses = row_losses(judge(), judged_targets, regression=rows.regression)
            loss = float((losses * judged_weights).sum() / judged_weights.sum())
            if stopping.improved(step, loss):
                for best in kept:
                    best.keep()
            elif stopping.ended(step):
                break
    if steps is None:
        for best in kept:
            best.restore()
    outputs_KVC = judge()
    for module in modules:
        module.eval()
    return Stacked(
        tuple(encodings),
        tuple(bottoms),
        top,
        rows.num_folds,
        copies,
        rows.regression,
        _gathered(outputs_KVC, judged_KV, real_KV, rows, copies),
        stopping.best_loss,
        stopping.best_step if steps is None else steps,
    )


def _prior(targets: Tensor, weights: Tensor, *, regression: bool) -> Tensor:
    """(C,) where the intercept begins: the mean value, or the log of the classes' shares."""
    mean = (targets * weights[:, None]).sum(dim=0) / weights.sum()
    if regression:
        return mean
    logs = (mean + 0.1 / len(targets)).log()
    return logs - logs.mean()


def _gathered(
    outputs_KVC: Tensor, rows_KV: Tensor, real_KV: Tensor, rows: Rows, copies: int
) -> Tensor:
    """(N, C) each row's outputs, the mean of its fold's copies."""
    held_out_NC = torch.full(rows.targets_NC.shape, torch.nan)
    for fold in range(len(outputs_KVC) // copies):
        own = slice(fold * copies, (fold + 1) * copies)
        real = real_KV[own][0] > 0
        held_out_NC[rows_KV[own][0][real]] = mean_outputs(
            outputs_KVC[own][:, real], regression=rows.regression
        )
    return held_out_NC


def mean_outputs(outputs_KBC: Tensor, *, regression: bool) -> Tensor:
    """(B, C): the mean value, or the logarithm of the mean probability, of K members."""
    if regression:
        return outputs_KBC.mean(dim=0)
    if len(outputs_KBC) == 1:
        return outputs_KBC[0]
    logs_BC: Tensor = outputs_KBC.log_softmax(dim=-1).logsumexp(dim=0)
    return logs_BC - math.log(len(outputs_KBC))


class StackedNetwork(nn.Module):
    """(B, F) -> (B, C): one party's encoding, bottom and top, and the mean of their members."""

    def __init__(
        self, encoding: PiecewiseLinear, bottom: Bottom, top: Top, *, regression: bool
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.bottom = bottom
        self.top = top
        self.regression = regression

    def forward(self, x_BF: Tensor) -> Tensor:
        return mean_outputs(
            self.top([self.bottom(self.encoding(x_BF))]), regression=self.regression
        )


@dataclass(frozen=True)
class StackedSpec:
    """The sizes of a ``StackedNetwork``."""

    kind: ClassVar[str] = "stacked"

    members: int
    num_features: int
    num_bins: int
    widths: tuple[int, ...]
    num_outputs: int
    regression: bool

    def __post_init__(self) -> None:
        if min(self.members, self.num_features, self.num_outputs, *self.widths) < 1:
            raise ModelError(f"a network's sizes are 1 or more, got {self}; copy the folder again")

    def build(self) -> StackedNetwork:
        encoding = PiecewiseLinear(self.num_features, self.num_bins)
        bottom = Bottom(self.members, encoding.num_outputs, self.widths, self.num_outputs)
        width = self.widths[-1] if self.widths else 0
        top = Top(self.members, 1, width, self.num_outputs)
        return StackedNetwork(encoding, bottom, top, regression=self.regression)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "members": self.members,
            "num_features": self.num_features,
            "num_bins": self.num_bins,
            "widths": list(self.widths),
            "num_outputs": self.num_outputs,
            "regression": self.regression,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StackedSpec:
        return cls(
            int(stored["members"]),
            int(stored["num_features"]),
            int(stored["num_bins"]),
            tuple(int(width) for width in stored["widths"]),
            int(stored["num_outputs"]),
            bool(stored["regression"]),
        )
