"""A network on the party's own columns: ``vertical`` with one party."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from dovetail.models.learners.base import Fitted
from dovetail.models.learners.rows import Rows, fitting_temperature, mean_loss
from dovetail.models.learners.specs import EnsembleSpec
from dovetail.models.learners.stacked import StackedNetwork, StackedSpec
from dovetail.models.learners.vertical import StackedConfig, fit_stacked


@dataclass(frozen=True)
class Network:
    """The learner: a perceptron and a linear part on piecewise-linear bins, several averaged."""

    name: ClassVar[str] = "network"

    config: StackedConfig = field(default_factory=StackedConfig)

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """Members of every fold, and their mean; of one fold, members trained on all rows."""
        extra = None if encode_on is None else [encode_on]
        stacked = fit_stacked([rows.x_NF], rows, self.config, seed=seed, encode_on=extra)
        held_out_NC, temperature = stacked.held_out_NC, 1.0
        if not rows.regression:
            judged = rows.folds_N >= 0
            temperature = fitting_temperature(
                held_out_NC[judged], rows.targets_NC[judged], rows.weights()[judged]
            )
            held_out_NC = held_out_NC / temperature
        settings = {
            "steps": stacked.steps,
            "loss": mean_loss(
                held_out_NC,
                rows.targets_NC,
                regression=rows.regression,
                weights_N=rows.weights(),
            ),
        }
        if rows.num_folds == 1 and refit:
            stacked = fit_stacked(
                [rows.x_NF],
                rows,
                self.config,
                seed=seed,
                encode_on=extra,
                steps=max(stacked.steps, 1),
            )
        (encoding,), (bottom,), top = stacked.encodings, stacked.bottoms, stacked.top
        member = StackedSpec(
            stacked.folds * stacked.copies,
            rows.x_NF.shape[1],
            len(encoding.column_M),
            self.config.widths,
            rows.num_outputs,
            rows.regression,
        )
        network = StackedNetwork(encoding, bottom, top, regression=rows.regression).eval()
        spec = EnsembleSpec((member,), rows.num_outputs, rows.regression, temperature)
        return Fitted(self.name, spec, spec.around([network]), held_out_NC, settings)

    def narrowed(self, fitted: Fitted) -> Network:
        return self
