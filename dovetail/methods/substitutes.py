"""Predicting by classic vertical learning when its partners are gone: TVFL-0, -A and -R.

Liu et al., arXiv:2409.04111v2, Section 5.1: partners' codes are replaced by zeros (TVFL-0), by the
average of the label owner's own codes (TVFL-A), or by random values (TVFL-R).

The paper leaves open over what -A averages and what -R draws: the mean runs over the label owner's
training rows, and values are standard normal. If code widths differ, -A repeats the mean's own
average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from dovetail.methods.vertical import Owner
from dovetail.models import generator

#: What stands in for the code of a partner that is gone.
Substitute = Literal["zeros", "average", "random"]


def predict_alone(owner: Owner, x: Tensor) -> dict[Substitute, Tensor]:
    """Substitute -> (N, C) outputs for the label owner's (N, ...) rows; asks nobody."""
    random = generator(owner.local.seed, owner.name, "substitute")
    owner.encoder.eval()
    owner.head.eval()
    with torch.no_grad():
        average_D = _average_code(owner)
        substitutes: dict[Substitute, Callable[[int, int], Tensor]] = {
            "zeros": torch.zeros,
            "average": lambda num_rows, width: (
                average_D if len(average_D) == width else average_D.mean().expand(width)
            ).expand(num_rows, width),
            "random": lambda num_rows, width: torch.randn(num_rows, width, generator=random),
        }
        outputs: dict[Substitute, list[Tensor]] = {name: [] for name in substitutes}
        for x_B in x.split(512):
            local_BD = owner.encode(x_B)
            for name, make in substitutes.items():
                codes = [
                    make(len(x_B), each.code_width).to(local_BD.device)
                    for each in owner.opened.values()
                ]
                outputs[name].append(owner.head(torch.cat([local_BD, *codes], dim=1)).cpu())
    return {name: torch.cat(each) for name, each in outputs.items()}


def _average_code(owner: Owner) -> Tensor:
    """(D,) mean of the label owner's codes over its training rows."""
    rows = owner.rows.rows_S[owner.rows.samples]
    sums = [owner.encode(owner.x[part]).sum(dim=0) for part in rows.split(512)]
    return sum(sums[1:], sums[0]) / len(rows)
