"""Networks of an owner and a partner: recipes, their choice by held-out rows, and training.

What the rivals that train by exchanged codes share. A recipe, and how many steps it takes, are
chosen by four folds of the labelled rows. The answer is the mean of three networks of all of them,
which favours the rival: its paper has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.rivals.base import Given, Result, encoded, folds_of

MOST_STEPS, EVERY, PATIENCE, NETWORKS = 800, 10, 15, 3


@dataclass(frozen=True)
class Recipe:
    """How a network is made and trained.

    Attributes:
        width: of its hidden layers.
        optimizer: "adam" or "sgd".
        rate, momentum, decay: of that.
        batch: rows of a step.
        balanced: rows are drawn so that classes are equally frequent.
        consistency: weight of agreement on augmented rows.
    """

    width: int
    optimizer: str
    rate: float
    decay: float
    batch: int
    momentum: float = 0.0
    balanced: bool = False
    consistency: float = 0.0


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled rows.

    Attributes:
        x_NF: the owner's columns.
        theirs_NG: the partner's; whatever, of rows that it lacks.
        shared_N: whether the partner has a row.
        y_N: index of the class.
    """

    x_NF: Tensor
    theirs_NG: Tensor
    shared_N: Tensor
    y_N: Tensor

    def take(self, rows_M: Tensor) -> Rows:
        """Some of them."""
        return Rows(*(each[rows_M] for each in vars(self).values()))


class Pair(nn.Module):
    """An owner's and a partner's network.

    Attributes:
        sent_per_row: numbers that the partner sends for a row of a step.
        sent_per_step: messages that it sends in a step.
    """

    sent_per_row: int
    sent_per_step: int

    def alone(self, x_NF: Tensor) -> Tensor:
        """(N, C) outputs of the owner's columns."""
        raise NotImplementedError

    def together(self, x_NF: Tensor, theirs_NG: Tensor) -> Tensor:
        """(N, C) outputs of both."""
        raise NotImplementedError

    def loss(self, rows: Rows, generator: torch.Generator) -> Tensor:
        """What a step lessens; either all rows are shared or none is."""
        raise NotImplementedError


#: Makes a pair of a recipe, the widths of both parties' columns and the number of classes.
Make = Callable[[Recipe, int, int, int], Pair]


def batches(rows: Rows, recipe: Recipe, generator: torch.Generator) -> list[Tensor]:
    """Indices of an epoch's steps: a step is of shared rows or of the others, in any order."""
    steps: list[Tensor] = []
    for group in (rows.shared_N, ~rows.shared_N):
        (index_M,) = group.nonzero(as_tuple=True)
        if not len(index_M):
            continue
        if recipe.balanced:
            counts = torch.bincount(rows.y_N[index_M]).clamp(min=1)
            weights = 1 / counts[rows.y_N[index_M]].float()
            drawn = torch.multinomial(weights, len(index_M), replacement=True, generator=generator)
        else:
            drawn = torch.randperm(len(index_M), generator=generator)
        steps += index_M[drawn].split(recipe.batch)
    return [steps[index] for index in torch.randperm(len(steps), generator=generator).tolist()]


@torch.no_grad()
def held_out_loss(pair: Pair, judges: Rows) -> float:
    """Cross-entropy alone, and together of the rows that the partner has: the mean of both."""
    entropy = nn.functional.cross_entropy
    losses = [entropy(pair.alone(judges.x_NF), judges.y_N)]
    if bool(judges.shared_N.any()):
        both = judges.take(judges.shared_N)
        losses.append(entropy(pair.together(both.x_NF, both.theirs_NG), both.y_N))
    return float(torch.stack(losses).mean())


def trained(
    make: Make, recipe: Recipe, rows: Rows, classes: int, steps: int, seed: int, judges: Rows | None
) -> tuple[Pair, list[float], int]:
    """A pair after so many steps; held-out losses on the way; how many rows' codes were sent."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pair = make(recipe, rows.x_NF.shape[1], rows.theirs_NG.shape[1], classes)
    if recipe.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(
            pair.parameters(), lr=recipe.rate, weight_decay=recipe.decay
        )
    else:
        optimizer = torch.optim.SGD(
            pair.parameters(),
            lr=recipe.rate,
            weight_decay=recipe.decay,
            momentum=recipe.momentum,
        )
    losses: list[float] = []
    queue: list[Tensor] = []
    sent = 0
    for step in range(steps):
        queue = queue or batches(rows, recipe, generator)
        batch = rows.take(queue.pop())
        sent += int(batch.shared_N.sum())
        optimizer.zero_grad()
        pair.loss(batch, generator).backward()
        optimizer.step()
        if judges is not None and step % EVERY == EVERY - 1:
            losses.append(held_out_loss(pair, judges))
            if not np.isfinite(losses[-1]) or len(losses) - np.argmin(losses) > PATIENCE:
                break
    return pair.eval(), losses, sent


def chosen(
    make: Make, recipes: Sequence[Recipe], rows: Rows, classes: int, seed: int
) -> tuple[Recipe, int]:
    """The recipe, and its number of steps, of least held-out loss."""
    folds = torch.from_numpy(folds_of(rows.y_N.numpy(), seed))
    tried: list[tuple[float, int, int]] = []
    for at, recipe in enumerate(recipes):
        curves = np.empty((4, MOST_STEPS // EVERY))
        for fold in range(4):
            learnt, judges = rows.take(folds != fold), rows.take(folds == fold)
            _, losses, _ = trained(make, recipe, learnt, classes, MOST_STEPS, seed, judges)
            curves[fold] = losses + losses[-1:] * (curves.shape[1] - len(losses))
        mean = np.nan_to_num(curves.mean(axis=0), nan=np.inf)
        tried.append((float(mean.min()), at, EVERY * (int(mean.argmin()) + 1)))
    _, at, steps = min(tried)
    return recipes[at], steps


def fitted(
    make: Make,
    recipes: Sequence[Recipe],
    given: Given,
    seed: int,
    *,
    learns: str,
) -> Result:
    """Choose, train, and predict."""
    partner, labelled = given.partner, given.train[given.train["y"].notna()]
    names = sorted(labelled["y"].unique())
    index_N = partner.index.get_indexer(labelled.index)
    theirs = encoded(partner, partner)
    rows = Rows(
        given.owned(labelled),
        theirs[torch.from_numpy(index_N).clamp(min=0)],
        torch.from_numpy(index_N >= 0),
        torch.tensor([names.index(each) for each in labelled["y"]]),
    )
    recipe, steps = chosen(make, recipes, rows, len(names), seed)
    x_NF, theirs_NG = given.owned(given.test), encoded(given.there, partner)
    alone, together, sent, pairs = [], [], 0, []
    for member in range(NETWORKS):
        pair, _, num_rows = trained(make, recipe, rows, len(names), steps, 1000 + member, None)
        pairs.append(pair)
        sent += num_rows
        with torch.no_grad():
            alone.append(pair.alone(x_NF).double().softmax(dim=1).numpy())
            together.append(pair.together(x_NF, theirs_NG).double().softmax(dim=1).numpy())
    in_epoch = batches(rows, recipe, torch.Generator().manual_seed(0))
    share = np.mean([bool(rows.shared_N[each[0]]) for each in in_epoch])
    return Result(
        np.mean(alone, axis=0),
        np.mean(together, axis=0),
        4 * sent * pairs[0].sent_per_row,
        round(NETWORKS * steps * float(share)) * pairs[0].sent_per_step,
        learns,
    )
