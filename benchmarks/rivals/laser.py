"""LASER-VFL: a head at each party for every set of parties, all trained at once.

Valdeira et al. 2025, "Vertical Federated Learning with Missing Features During Training and
Inference" (arXiv:2410.22564). As its published code trains (github.com/Valdeira/LASER-VFL):

    1  each party has an encoder f_k of two hidden layers, and a linear head g_k
    2  a head reads the mean of the codes of the parties that are there
    3  a step's rows are those of one set of parties; of the sets that hold party k, one of each
       size is drawn, weighted by how many there are, and by 1 / size: each set has size heads
    4  at prediction the head reads the codes that are there: alone its party's own

With one partner, rows that it has: L(g_1 f_1) + L(g_2 f_2) + [L(g_1 mean) + L(g_2 mean)] / 2; other
rows: L(g_1 f_1). Rows without a label are not used. Hyper-parameters are those that the published
configurations have for tables: credit (Adam, width 10, decay 0.001, classes drawn equally often) at
ten and a hundred times its rate, as so few labels make so few steps, and HAPT (SGD 0.03, momentum
0.8, width 128); see ``networks`` for how they are chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.rivals.base import Given, Result
from benchmarks.rivals.networks import Pair, Recipe, Rows, fitted

RECIPES = (
    Recipe(width=10, optimizer="adam", rate=1e-3, decay=1e-3, batch=128, balanced=True),
    Recipe(width=10, optimizer="adam", rate=1e-2, decay=1e-3, batch=128, balanced=True),
    Recipe(width=128, optimizer="sgd", rate=0.03, decay=1e-4, batch=128, momentum=0.8),
)


class Laser(Pair):
    """Encoders and heads of an owner (1) and a partner (2)."""

    sent_per_step = 2  # its codes; the gradient of the owner's codes, which its head read

    def __init__(self, recipe: Recipe, width: int, their_width: int, classes: int) -> None:
        super().__init__()
        code = recipe.width
        self.encoders = nn.ModuleList(
            nn.Sequential(
                nn.Linear(columns, code),
                nn.ReLU(),
                nn.Linear(code, code),
                nn.ReLU(),
                nn.Linear(code, code),
            )
            for columns in (width, their_width)
        )
        self.heads = nn.ModuleList(nn.Linear(code, classes) for _ in range(2))
        self.sent_per_row = 2 * code

    def alone(self, x_NF: Tensor) -> Tensor:
        outputs: Tensor = self.heads[0](self.encoders[0](x_NF))
        return outputs

    def together(self, x_NF: Tensor, theirs_NG: Tensor) -> Tensor:
        outputs: Tensor = self.heads[0]((self.encoders[0](x_NF) + self.encoders[1](theirs_NG)) / 2)
        return outputs

    def loss(self, rows: Rows, generator: torch.Generator) -> Tensor:
        entropy = nn.functional.cross_entropy
        own = self.encoders[0](rows.x_NF)
        total: Tensor = entropy(self.heads[0](own), rows.y_N)
        if bool(rows.shared_N[0]):
            theirs = self.encoders[1](rows.theirs_NG)
            total = total + entropy(self.heads[1](theirs), rows.y_N)
            for head in self.heads:
                total = total + entropy(head((own + theirs) / 2), rows.y_N) / 2
        return total


def laser_vfl(given: Given, seed: int) -> Result:
    """See ``Rival``."""
    return fitted(
        Laser, RECIPES, given, seed,
        learns="the labels of shared rows; the owner's codes and gradients at each step",
    )  # fmt: skip
