"""Which columns a trained model relies on, found on the rows that score it; for its report.

Permutation importance, as ``explain`` has it, of few rows and draws: seconds of a wide table, next
to nothing of a narrow one. Of a joint model, what a partner answers counts as one column.

Letters: N rows, F features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.errors import ModelError
from dovetail.models.explaining import Explained, FeatureGroups, importance_of
from dovetail.models.metrics import headline, score
from dovetail.models.threads import one_thread

#: Columns that are told.
SHOWN = 8

#: Rows that are permuted, of two classes or a number, and how often. A row of ten classes costs a
#: model of boosted trees as much as five of two, so fewer are taken.
_ROWS, _LEAST_ROWS, _REPEATS = 150, 50, 3

#: Of more columns, so many are judged after one draw of a third of the rows; of more than that,
#: none: a run is to take little longer for it.
_JUDGED, _MOST = 8, 200


@one_thread()
def relied(
    model: Explained,
    x: Mapping[str, Tensor],
    labels_N: Tensor,
    *,
    partners: Collection[str] = (),
    seed: int,
) -> dict[str, Any] | None:
    """The columns that the model relies on most; JSON-ready.

    Args:
        model: takes raw columns.
        x: block -> (N, F) features of rows that it did not learn from.
        labels_N: class indices, or values.
        partners: blocks that are what partners answer.
        seed: of the draws.

    Returns:
        "score", "rows", "of" (how many columns there are) and "columns": name, mean of what the
        score loses, and the middle 95 % over draws, the most important first. None of a model
        without raw columns, with too many, or of rows that give no score.
    """
    answers = {f"{name}: what it answers": name for name in partners}
    try:
        groups = FeatureGroups(model, answers)
    except ModelError:
        return None
    if not len(labels_N) or len(groups.names) > _MOST:
        return None
    name, rng = headline(model.task), np.random.default_rng(seed)
    num_rows = max(_LEAST_ROWS, 2 * _ROWS // max(2, model.task.num_outputs))
    order = torch.from_numpy(rng.permutation(len(labels_N)))[:num_rows]
    x, labels_N, names = {block: each[order] for block, each in x.items()}, labels_N[order], None
    if name not in score(model.task, model.outputs(x), labels_N):
        return None
    if len(groups.names) > _JUDGED:
        few = {block: each[: num_rows // 3] for block, each in x.items()}
        _, first = importance_of(model, groups, few, labels_N[: num_rows // 3], 1, rng)
        names = [each.column for each in first if each.column not in answers]
        names = [*answers, *names[:_JUDGED]]
    _, each = importance_of(model, groups, x, labels_N, _REPEATS, rng, names)
    columns = [[one.column, one.mean, one.low, one.high] for one in each]
    return {
        "score": name,
        "rows": len(labels_N),
        "of": len(groups.names),
        "columns": columns[:SHOWN],
    }
