"""Joint teachers trained in one place, as the federated ones would be.

Both are vertical (see ``vertical``): ``network``, and ``linear``, which is logistic regression on
all parties' columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dovetail.models.learners.distil import Owner
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.vertical import Stacked, StackedConfig, fit_stacked

TEACHERS: Mapping[str, StackedConfig] = {
    "network": StackedConfig(),
    "linear": StackedConfig(widths=(), bins=0, learning_rate=1e-2, weight_decay=0.3),
}


def fit_teachers(
    xs: Sequence[Tensor],
    owner: Owner,
    *,
    seed: int,
    aligned: Tensor | None = None,
    configs: Mapping[str, StackedConfig] = TEACHERS,
) -> dict[str, Stacked]:
    """Name -> the joint model of the labelled rows that every party has.

    Args:
        xs: each party's (R, F) features in the owner's order of rows; what stands in rows that are
            not aligned is not read.
        owner: labels and folds.
        seed: of weights and batches.
        aligned: (R,) bool, all rows if None.
        configs: name -> how.
    """
    everyone = torch.ones(len(owner.x_RF), dtype=torch.bool) if aligned is None else aligned
    chosen = everyone & owner.labelled
    rows = Rows(xs[0][chosen], owner.targets_RC[chosen], owner.folds_R[chosen], loss=owner.loss)
    return {
        name: fit_stacked(
            [x[chosen] for x in xs],
            rows,
            config,
            seed=seed,
            encode_on=[x[everyone] for x in xs],
        )
        for name, config in configs.items()
    }
