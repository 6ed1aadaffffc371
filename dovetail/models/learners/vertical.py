"""How the label owner and partners train a joint network, each with its own columns.

A step: the owner draws rows, every party sends its bottom's outputs for them, the owner steps the
head and sends each its gradient back, with which it steps its bottom. Now and then the parties send
the held-out rows, and keep their weights where the owner finds them the best so far. With one party
it is the ``network`` learner; without hidden layers it is logistic regression.

Letters: K members, N rows, B rows of a batch, V held-out rows, F features, D code width, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.models.learners.joint import Part, fold_means
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.stacked import Bottom, PiecewiseLinear, Top, mean_outputs
from dovetail.models.losses import Loss
from dovetail.models.optimizers import Optimizer, follow_back
from dovetail.models.randomness import RandomStream, generator

#: What parties' bottoms say, None of one that is gone -> (K, B, C).
Combine = Callable[[list[Tensor | None]], Tensor]

#: More encoded values than this are not kept, nor judged at once: batches are encoded when drawn.
_MOST_ENCODED = 50_000_000


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

    def optimizer(self, module: nn.Module) -> Optimizer:
        """Elementwise, so that each party steps its own part as one place would all."""
        return Optimizer(
            module.parameters(),
            kind="adamw",
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )


class Batches:
    """(K, B) row numbers of every step, each member's from its own rows, epoch after epoch."""

    def __init__(
        self, train_KN: Tensor, batch_size: int | None, *, seed: int, key: bytes | None = None
    ) -> None:
        self._rows = [train.nonzero().flatten() for train in train_KN]
        most = max(len(rows) for rows in self._rows)
        if batch_size is None:
            batch_size = min(512, max(64, 2 ** int(math.log2(max(most / 64, 1)))))
        self.size = min(batch_size, *(len(rows) for rows in self._rows))
        self.epoch = math.ceil(most / self.size)
        self._rng = generator(seed, "batches", secret=key)
        self._left: list[Tensor] = []

    def state(self) -> dict[str, Any]:
        """For ``resume``."""
        return {"rng": self._rng.get_state(), "left": list(self._left)}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._rng.set_state(state["rng"])
        self._left = list(state["left"])

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


class BestWeights:
    """The weights of the best step so far."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.weights: dict[str, Tensor] = {}
        self.keep()

    def keep(self) -> None:
        self.weights = {
            name: value.detach().clone() for name, value in self._module.state_dict().items()
        }

    def restore(self) -> None:
        self._module.load_state_dict(self.weights)


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


def copies_of(num_rows: int) -> int:
    """How many members each fold has unless somebody says."""
    return 2 if num_rows <= 500 else 1


def member_masks(
    folds_N: Tensor, copies: int, fold_of_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(K, N) which rows train and which rows stop each member; ``copies`` of every fold.

    With ``fold_of_N`` a row trains the members of that fold only; else those of all others.
    """
    folds = [fold for fold in range(int(folds_N.max()) + 1) for _ in range(copies)]
    held_out = torch.stack([folds_N == fold for fold in folds])
    if fold_of_N is None:
        return ~held_out, held_out
    return torch.stack([fold_of_N == fold for fold in folds]) & ~held_out, held_out


def held_out_rows(stop_KN: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(K, V) each member's held-out rows, and 0 or 1 where a member with fewer is filled up."""
    rows = [stop.nonzero().flatten() for stop in stop_KN]
    most = max(len(r) for r in rows)
    drawn = [torch.randint(max(len(r), 1), (most - len(r),), generator=rng) for r in rows]
    filled = torch.stack([torch.cat([r, r[more]]) for r, more in zip(rows, drawn, strict=True)])
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

    def member_outputs(self, xs: Sequence[Tensor | None], top: Combine | None = None) -> Tensor:
        """(K, N, C) of every member.

        Args:
            xs: the parties' (N, F) features, the label owner's first; None: it is gone.
            top: takes what each party's bottom says, None of one that is gone; else ``self.top``.
        """
        combine, parties = top or self.top, (self.encodings, self.bottoms, xs)
        assert xs[0] is not None
        outputs = []
        with torch.inference_mode():
            for start in range(0, len(xs[0]), 2048):
                parts = [
                    None if x is None else bottom(encoding(x[start : start + 2048]))
                    for encoding, bottom, x in zip(*parties, strict=True)
                ]
                outputs.append(combine(parts))
        return torch.cat(outputs, dim=1)

    def fold_outputs(self, xs: Sequence[Tensor]) -> Tensor:
        """(folds, N, C) the mean of each fold's copies."""
        return fold_means(self.member_outputs(xs), self.copies, regression=self.regression)


class EncodedTable:
    """Rows as their encoding gives them: of all once where that is not too much, else when asked.

    Args:
        encoding: of each row by itself, so that it does not matter when.
        x_NF: the rows.
    """

    def __init__(self, encoding: PiecewiseLinear, x_NF: Tensor) -> None:
        self._encoding, self._x_NF = encoding, x_NF
        self._encoded: Tensor | None = None
        if len(x_NF) * encoding.num_outputs <= _MOST_ENCODED:
            self._encoded = encoding(x_NF)

    def rows(self, rows_B: Tensor) -> Tensor:
        """(B, F) encoded; whole rows are copied in half the time of an index's."""
        if self._encoded is not None:
            return self._encoded.index_select(0, rows_B)
        encoded: Tensor = self._encoding(self._x_NF.index_select(0, rows_B))
        return encoded


class PartySide:
    """Networks of all members at one party, and their optimizer.

    Args:
        x_NF: features of its rows.
        config: how.
        members, num_outputs: K and C, as the label owner says.
        stream: draws the first weights.
        encode_on: rows to place bins by, if more than ``x_NF``.
    """

    def __init__(
        self,
        x_NF: Tensor,
        config: StackedConfig,
        members: int,
        num_outputs: int,
        stream: RandomStream,
        *,
        encode_on: Tensor | None = None,
    ) -> None:
        self.config = config
        bins_on = x_NF if encode_on is None else encode_on
        self.encoding = PiecewiseLinear.fit(bins_on, bins=config.bins)
        self._table = EncodedTable(self.encoding, x_NF)
        with stream:
            self.bottom = Bottom(members, self.encoding.num_outputs, config.widths, num_outputs)
        self._optimizer = config.optimizer(self.bottom)
        self.kept = BestWeights(self.bottom)
        self._sent: Tensor | None = None

    @property
    def code_width(self) -> int:
        """D; 0 where there is only a linear part."""
        return self.config.widths[-1] if self.config.widths else 0

    def encode(self, rows_KB: Tensor) -> Tensor:
        """(K, B, D + C) of its rows, a block for each member."""
        parts: Tensor = self.bottom(self._table.rows(rows_KB.flatten()).view(*rows_KB.shape, -1))
        return parts

    def encode_others(self, x_NF: Tensor, members: int) -> Tensor:
        """(K, B, D + C) of K blocks of rows that it was not made with."""
        parts: Tensor = self.bottom(self.encoding(x_NF).unflatten(0, (members, -1)))
        return parts

    def send(self, rows_KB: Tensor) -> Tensor:
        """(K, B, D + C) to the label owner, who answers with their gradient."""
        self._sent = self.encode(rows_KB)
        return self._sent.detach()

    def follow(self, gradient: Tensor) -> None:
        """Step by the gradient of what was sent last."""
        assert self._sent is not None
        follow_back([self._sent], [gradient])
        self.step()
        self._sent = None

    def step(self) -> None:
        """Move by the gradients that are there."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def judge(self, rows_KV: Tensor) -> Tensor:
        """(K, V, D + C) of held-out rows; nothing is learnt from them."""
        at_once = max(1, _MOST_ENCODED // (len(rows_KV) * self.encoding.num_outputs))
        with torch.no_grad():
            parts = [self.encode(rows) for rows in rows_KV.split(at_once, dim=1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def part(self) -> Part:
        """The sizes of its networks, to be kept with them."""
        return Part.of(self.encoding, self.bottom, self.config.widths)

    def state(self) -> dict[str, Any]:
        """Between two steps, to go on from."""
        return {
            "bottom": self.bottom.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "kept": self.kept.weights,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there, bit for bit; made with the same arguments."""
        self.bottom.load_state_dict(state["bottom"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.kept.weights = dict(state["kept"])


class OwnerSide:
    """The label owner's half: the head, which rows come next, and when to end.

    Args:
        rows: targets, weights and folds of the shared labelled rows; ``x_NF`` is not read.
        config: how.
        parties: how many send, the owner included.
        seed: of the first weights, batches and dropout.
        steps: train on all rows for so many steps and keep the last; None for early stopping.
        fold_of_N: the fold whose members a row trains; None: those of all folds but its own.
        code_widths: D of each party; None: the config's of all.
        key: of the owner's site, mixed into first weights and dropout; None in one place.
    """

    def __init__(
        self,
        rows: Rows,
        config: StackedConfig,
        *,
        parties: int,
        seed: int,
        steps: int | None = None,
        fold_of_N: Tensor | None = None,
        code_widths: Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> None:
        self.rows = rows
        self._weights_N = rows.weights()
        self.copies = config.copies or copies_of(len(rows.targets_NC))
        train_KN, stop_KN = member_masks(rows.folds_N, self.copies, fold_of_N)
        self.members = len(train_KN)
        if steps is not None:
            train_KN = torch.ones_like(train_KN)
        if code_widths is None:
            code_widths = [config.widths[-1] if config.widths else 0] * parties
        with RandomStream(seed, "top", secret=key):
            self.top = Top(self.members, parties, code_widths, rows.num_outputs, config.dropout)
        prior_C = prior(rows.targets_NC, rows.weights(), rows.loss)
        with torch.no_grad():
            self.top.head.bias.add_(prior_C)
        self._optimizer = config.optimizer(self.top)
        self._kept = BestWeights(self.top)
        self._dropout = RandomStream(seed, "dropout", secret=key)
        self._batches = Batches(train_KN, config.batch_size, seed=seed, key=key)
        self._steps = steps
        self._max_steps = config.max_steps if steps is None else steps
        self._stopping = EarlyStopping(max(config.patience, 5 * self._batches.epoch))
        #: Steps from one judgement to the next.
        self.every = min(max(5, self._batches.epoch), 100, config.max_steps)
        #: (K, V) the rows that judge each member; 0 where a member with fewer is filled up.
        self.judged_KV, self._real_KV = held_out_rows(
            stop_KN, generator(seed, "filled", secret=key)
        )
        self.taken = 0
        self.judged_loss = math.inf  # at the last judgement
        self.losses_K = torch.zeros(self.members)  # of the last step

    @property
    def ended(self) -> bool:
        """Whether no step follows."""
        return self.taken >= self._max_steps or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether it has waited long enough for a better held-out loss."""
        return self._steps is None and self._stopping.ended(self.taken)

    @property
    def judging(self) -> bool:
        """Whether the parties are to send their held-out rows now."""
        return self._steps is None and self.taken % self.every == 0

    @property
    def best_step(self) -> int:
        return self.taken if self._steps is not None else self._stopping.best_step

    @property
    def best_loss(self) -> float:
        return self._stopping.best_loss

    def draw(self) -> Tensor:
        """(K, B) the rows that every party is to send."""
        self._drawn_KB = self._batches.draw()
        return self._drawn_KB

    def step(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Each party's gradient; takes what they sent of the rows drawn last."""
        received = [part.detach().requires_grad_() for part in parts]
        with self._dropout:
            losses_KB = self.losses(received, self._drawn_KB)
        losses_K = (losses_KB * self._weights_N[self._drawn_KB]).mean(dim=1)
        self.losses_K = losses_K.detach()
        losses_K.sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.taken += 1
        gradients = [part.grad for part in received]
        return [gradient for gradient in gradients if gradient is not None]

    def losses(self, parts: Sequence[Tensor], rows_KB: Tensor) -> Tensor:
        """(K, B) of what the parties sent of these rows."""
        outputs = self.outputs(parts, rows_KB)
        return self.rows.loss.rows(outputs, self.rows.targets_NC[rows_KB])

    def outputs(self, parts: Sequence[Tensor], rows_KB: Tensor) -> Tensor:
        """(K, B, C) of what the parties sent of these rows."""
        outputs: Tensor = self.top(list(parts))
        return outputs

    def judged(self, parts: Sequence[Tensor], rows_KV: Tensor) -> Tensor:
        """(K, V) the losses that say which weights are the best."""
        return self.losses(parts, rows_KV)

    def judge(self, parts: Sequence[Tensor]) -> bool:
        """Whether these are the best weights so far, which every party is to keep.

        Args:
            parts: what the parties sent of ``judged_KV``.
        """
        self.top.eval()
        with torch.no_grad():
            losses_KV = self.judged(parts, self.judged_KV)
        self.top.train()
        return self.improved(losses_KV)

    def improved(self, losses_KV: Tensor) -> bool:
        """Whether (K, V) losses of ``judged_KV`` are the least so far: its weights are kept."""
        weights = self._weights_N[self.judged_KV] * self._real_KV
        self.judged_loss = float((losses_KV * weights).sum() / weights.sum())
        if self._stopping.improved(self.taken, self.judged_loss):
            self._kept.keep()
            return True
        return False

    def take_over(self, other: OwnerSide, indices: Sequence[int]) -> None:
        """Begin with another's head, of its parties in these places alone."""
        parts = torch.arange(sum(other.top.code_widths)).split(list(other.top.code_widths))
        columns = torch.cat([parts[index] for index in indices])
        with torch.no_grad():
            self.top.head.weight.copy_(other.top.head.weight[:, columns])
            self.top.head.bias.copy_(other.top.head.bias)
        self._kept.keep()
        self._dropout = other._dropout

    def state(self) -> dict[str, Any]:
        """Between two steps, to go on from."""
        return {
            "top": self.top.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "kept": self._kept.weights,
            "best_loss": self._stopping.best_loss,
            "best_step": self._stopping.best_step,
            "dropout": self._dropout.state(),
            "batches": self._batches.state(),
            "taken": self.taken,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from there, bit for bit; made with the same arguments."""
        self.top.load_state_dict(state["top"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._kept.weights = dict(state["kept"])
        self._stopping.best_loss = state["best_loss"]
        self._stopping.best_step = state["best_step"]
        self._dropout.restore(state["dropout"])
        self._batches.resume(state["batches"])
        self.taken = state["taken"]

    def restore(self) -> None:
        """Training is over: back to the best weights; not after a fixed number of steps."""
        if self._steps is None:
            self._kept.restore()

    def held_out(self, parts: Sequence[Tensor]) -> Tensor:
        """(N, C) outputs of each row by the members that did not see it, NaN for one of no fold."""
        self.top.eval()
        with torch.no_grad():
            outputs_KVC = self.outputs(parts, self.judged_KV)
        self.top.train()
        return _gathered(outputs_KVC, self.judged_KV, self._real_KV, self.rows, self.copies)


def fit_stacked(
    xs: Sequence[Tensor],
    rows: Rows,
    config: StackedConfig,
    *,
    seed: int,
    encode_on: Sequence[Tensor] | None = None,
    steps: int | None = None,
    streams: Sequence[RandomStream] | None = None,
    fold_of_N: Tensor | None = None,
) -> Stacked:
    """Members trained in one place, by the very sides that parties on several machines have.

    Args:
        xs: the parties' (N, F) features of the same rows; ``rows.x_NF`` is not read.
        rows: targets, weights and folds.
        config: how.
        seed: of weights and batches.
        encode_on: the parties' rows to place bins by, if more than ``xs``.
        steps: train on all rows for so many steps, and keep the last; None for early stopping.
        streams: what each party draws its first weights from; None: by ``seed``.
        fold_of_N: the fold whose members a row trains; None: those of all folds but its own.
    """
    owner = OwnerSide(rows, config, parties=len(xs), seed=seed, steps=steps, fold_of_N=fold_of_N)
    return train_together(
        owner, xs, config, seed=seed, encode_on=encode_on, streams=streams, early=steps is None
    )


def train_together(
    owner: OwnerSide,
    xs: Sequence[Tensor],
    config: StackedConfig,
    *,
    seed: int,
    encode_on: Sequence[Tensor] | None = None,
    streams: Sequence[RandomStream] | None = None,
    early: bool = True,
) -> Stacked:
    """Both sides' steps until the label owner ends them.

    Args:
        owner: not started.
        xs, config, seed, encode_on, streams: the parties', as of ``fit_stacked``.
        early: go back to the best weights.
    """
    rows = owner.rows
    parties = [
        PartySide(
            x,
            config,
            owner.members,
            rows.num_outputs,
            RandomStream(seed, "bottom", str(index)) if streams is None else streams[index],
            encode_on=None if encode_on is None else encode_on[index],
        )
        for index, x in enumerate(xs)
    ]
    while not owner.ended:
        drawn_KB = owner.draw()
        gradients = owner.step([party.send(drawn_KB) for party in parties])
        for party, gradient in zip(parties, gradients, strict=True):
            party.follow(gradient)
        if owner.judging and owner.judge([party.judge(owner.judged_KV) for party in parties]):
            for party in parties:
                party.kept.keep()
    owner.restore()
    if early:
        for party in parties:
            party.kept.restore()
    held_out_NC = owner.held_out([party.judge(owner.judged_KV) for party in parties])
    return Stacked(
        tuple(party.encoding for party in parties),
        tuple(party.bottom.eval() for party in parties),
        owner.top.eval(),
        rows.num_folds,
        owner.copies,
        rows.regression,
        held_out_NC,
        owner.best_loss,
        owner.best_step,
    )


def prior(targets: Tensor, weights: Tensor, loss: Loss) -> Tensor:
    """(C,) where the intercept starts: the mean value, or the log of the classes' shares."""
    mean = (targets * weights[:, None]).sum(dim=0) / weights.sum()
    if loss.regression:
        return loss.start(mean)
    logs = (mean + 0.1 / len(targets)).log()
    return logs - logs.mean()


def _gathered(
    outputs_KVC: Tensor, rows_KV: Tensor, real_KV: Tensor, rows: Rows, copies: int
) -> Tensor:
    """(N, C) each row's outputs, the mean of its fold's copies."""
    held_out_NC = rows.no_outputs()
    for fold in range(len(outputs_KVC) // copies):
        copies_here = slice(fold * copies, (fold + 1) * copies)
        real = real_KV[copies_here][0] > 0
        held_out_NC[rows_KV[copies_here][0][real]] = mean_outputs(
            outputs_KVC[copies_here][:, real], regression=rows.regression
        )
    return held_out_NC
