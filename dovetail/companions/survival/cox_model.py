"""A Cox regression as a model: survival at times and the median of new rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dovetail.data.fitted import NumberColumn
from dovetail.data.kinds import NUMBERS
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.survival import Survival
from dovetail.models.learners.linear import LinearSpec
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.saved import Model

#: Of an interval without events, as its logarithm must be finite.
_LEAST_HAZARD = 1e-30


def cox_model(found: Mapping[str, Any], *, party: str, about: Mapping[str, Any]) -> Model:
    """The model of a regression's coefficients and baseline; S(t) = exp(-H(t) e^((x - mean) b)).

    A row that lacks a value counts as one with the mean.

    Args:
        found: as of ``Driver.result`` of ``cox.py``.
        party: who keeps it.
        about: more to keep with it.
    """
    baseline = found["baseline"]
    hazards_K = np.diff(baseline["hazards"], prepend=0.0)
    odds = np.log(np.maximum(hazards_K, _LEAST_HAZARD)).tolist()
    task = Survival(tuple(baseline["times"]), tuple(odds), link="log")
    columns = [
        NumberColumn(name, mean, mean, baseline["spread"][name], flag=False)
        for name, mean in baseline["at"].items()
    ]
    encoder = TableEncoder(party, columns, schema={each.name: NUMBERS for each in columns})
    member = LinearSpec(len(columns), 1)
    with torch.random.fork_rng(devices=[]):
        module = member.build()
    coefficients = {each["column"]: each["coefficient"] for each in found["coefficients"]}
    weights = [coefficients[each.name] * each.scale for each in columns]
    with torch.no_grad():
        module.weight.copy_(torch.tensor([weights], dtype=torch.float64))
        module.bias.zero_()
    spec = EnsembleSpec((member,), 1, regression=True)
    shapes, inputs = {"x": (len(columns),)}, {"x": encoder}
    return Model(party, task, spec.around([module]), spec, shapes, inputs, about)
