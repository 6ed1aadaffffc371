"""LEEF-VFL with augmented rows: what MARS-VFL offers for tables whose partner may be gone.

"MARS-VFL: A Unified Benchmark for Vertical Federated Learning with Realistic Evaluation" (NeurIPS
2025, Datasets and Benchmarks), read from its published code (github.com/shentt67/MARS-VFL). Its
recipes against a missing party are its base model, which then answers at random, LASER-VFL
(``laser``), and LEEF-VFL:

    1  each party has an encoder (140, 70, 16 wide, ReLU) and a linear head of its own
    2  the owner's global model reads both codes side by side: 16 wide, then classes
    3  loss: cross-entropy of each party's head on its rows, and of the global model on shared rows
    4  if a party is missing, MARS-VFL has the answer drawn at random, too; here the owner's head
       answers, which LEEF-VFL trains for it

Of the benchmark's own two recipes, RVFL-Align is for rows in a wrong order and does not apply.
RVFL-Aug is for corrupted columns: ``consistency`` (12) times the Jensen-Shannon divergence of the
outputs of a row and of two augmented ones, each a mixture of three chains of one to three of: mask
columns, scale some by 1.2, by 0.8. Held-out rows choose whether it is added, to both models.

The rest is its setting for UCI-HAR, which is a table of 561 columns: SGD, momentum 0.9, decay
0.00001, 256 rows a step, rate 0.01. A tenfold rate is tried, too, as so few labels make so few
steps (see ``networks``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.rivals.base import Given, Result
from benchmarks.rivals.networks import Pair, Recipe, Rows, fitted

RECIPES = tuple(
    Recipe(
        width=140,
        optimizer="sgd",
        rate=rate,
        decay=1e-5,
        batch=256,
        momentum=0.9,
        consistency=consistency,
    )
    for rate, consistency in ((0.01, 0.0), (0.1, 0.0), (0.01, 12.0))
)
CODE = 16


def augmented(x_NF: Tensor, generator: torch.Generator) -> Tensor:
    """Rows and a mixture of three chains of changes, mixed."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    shares = torch.tensor([uniform(1e-6, 1.0) for _ in range(3)]).log().neg()
    mixture = torch.zeros_like(x_NF)
    for share in shares / shares.sum():  # Dirichlet(1, 1, 1)
        changed = x_NF
        for _ in range(int(torch.randint(1, 4, (), generator=generator))):
            factor = (0.0, 1.2, 0.8)[int(torch.randint(3, (), generator=generator))]
            drawn_NF = torch.rand(x_NF.shape, generator=generator) < uniform(0.105, 0.25)
            changed = torch.where(drawn_NF, factor * changed, changed)
        mixture = mixture + share * changed
    weight = uniform(0.0, 1.0)  # Beta(1, 1)
    return (1 - weight) * x_NF + weight * mixture


def divergence(outputs: list[Tensor]) -> Tensor:
    """Jensen-Shannon divergence of the predictions, mean of rows."""
    said = [each.softmax(dim=1) for each in outputs]
    mixture = torch.stack(said).mean(dim=0).clamp(1e-7, 1).log()
    each = [nn.functional.kl_div(mixture, one, reduction="batchmean") for one in said]
    return torch.stack(each).mean()


class Leef(Pair):
    """Encoders and heads of both, and the owner's global model."""

    def __init__(self, recipe: Recipe, width: int, their_width: int, classes: int) -> None:
        super().__init__()
        half = recipe.width // 2
        self.encoders = nn.ModuleList(
            nn.Sequential(
                nn.Linear(columns, recipe.width),
                nn.ReLU(),
                nn.Linear(recipe.width, half),
                nn.ReLU(),
                nn.Linear(half, CODE),
                nn.ReLU(),
            )
            for columns in (width, their_width)
        )
        self.heads = nn.ModuleList(nn.Linear(CODE, classes) for _ in range(2))
        self.joint = nn.Sequential(nn.Linear(2 * CODE, CODE), nn.Linear(CODE, classes))
        self.consistency = recipe.consistency
        views = 3 if recipe.consistency else 1
        self.sent_per_row, self.sent_per_step = views * CODE, 1

    def alone(self, x_NF: Tensor) -> Tensor:
        outputs: Tensor = self.heads[0](self.encoders[0](x_NF))
        return outputs

    def together(self, x_NF: Tensor, theirs_NG: Tensor) -> Tensor:
        codes = torch.cat([self.encoders[0](x_NF), self.encoders[1](theirs_NG)], dim=1)
        outputs: Tensor = self.joint(codes)
        return outputs

    def loss(self, rows: Rows, generator: torch.Generator) -> Tensor:
        entropy = nn.functional.cross_entropy
        shared = bool(rows.shared_N[0])
        views = [(rows.x_NF, rows.theirs_NG)]
        if self.consistency:
            views += [
                (augmented(rows.x_NF, generator), augmented(rows.theirs_NG, generator))
                for _ in range(2)
            ]
        alone = [self.alone(x_NF) for x_NF, _ in views]
        total: Tensor = entropy(alone[0], rows.y_N)
        outputs = [alone]
        if shared:
            theirs = self.heads[1](self.encoders[1](rows.theirs_NG))
            together = [self.together(*view) for view in views]
            total = total + entropy(theirs, rows.y_N) + entropy(together[0], rows.y_N)
            outputs.append(together)
        if self.consistency:
            for each in outputs:
                total = total + self.consistency * divergence(each)
        return total


def mars_vfl(given: Given, seed: int) -> Result:
    """See ``Rival``."""
    return fitted(
        Leef, RECIPES, given, seed,
        learns="the labels of shared rows; the gradient of its codes at each step",
    )  # fmt: skip
