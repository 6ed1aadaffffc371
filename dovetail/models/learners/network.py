"""A network on the party's own columns: ``vertical`` with one party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from dovetail.models.learners.rows import NO_FOLD, Rows
from dovetail.models.learners.specs import EnsembleSpec, Fitted
from dovetail.models.learners.stacked import StackedNetwork, StackedSpec
from dovetail.models.learners.vertical import Stacked, StackedConfig, copies_of, fit_stacked


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
        held_out_NC, temperature, loss = rows.judged(stacked.held_out_NC)
        settings = {"steps": stacked.steps, "loss": loss}
        of_folds = stacked
        if rows.num_folds == 1 and refit:
            steps = max(stacked.steps, 1)
            stacked = fit_stacked(
                [rows.x_NF], rows, self.config, seed=seed, encode_on=extra, steps=steps
            )
        (encoding,), (bottom,), top = stacked.encodings, stacked.bottoms, stacked.top
        member = self._member(stacked, rows, stacked.folds * stacked.copies)
        network = StackedNetwork(encoding, bottom, top, regression=rows.regression).eval()
        spec = EnsembleSpec((member,), rows.num_outputs, rows.regression, temperature)
        return Fitted(
            self.name,
            spec,
            spec.around([network]),
            held_out_NC,
            settings,
            lambda x_NF: of_folds.fold_outputs([x_NF]) / temperature,
        )

    def fit_each(
        self, many: Sequence[Rows], *, seed: int, encode_on: Tensor | None = None
    ) -> list[Fitted]:
        """As ``fit`` of each without a refit, all at once: each is a member of one network.

        A step of all costs little more than a step of one. They end together, at the step that is
        best for all.

        Args:
            many: alike in features and outputs, of one fold each.
            seed, encode_on: as of ``fit``.
        """
        counts = [len(rows.x_NF) for rows in many]
        fold_of_N = torch.arange(len(many)).repeat_interleave(torch.tensor(counts))
        weighted = any(rows.weights_N is not None for rows in many)
        together = Rows(
            torch.cat([rows.x_NF for rows in many]),
            torch.cat([rows.targets_NC for rows in many]),
            torch.where(torch.cat([rows.folds_N for rows in many]) >= 0, fold_of_N, NO_FOLD),
            torch.cat([rows.weights() for rows in many]) if weighted else None,
            loss=many[0].loss,
        )
        copies = self.config.copies or copies_of(min(counts))
        stacked = fit_stacked(
            [together.x_NF],
            together,
            replace(self.config, copies=copies),
            seed=seed,
            encode_on=None if encode_on is None else [encode_on],
            fold_of_N=fold_of_N,
        )
        (encoding,), (bottom,), top = stacked.encodings, stacked.bottoms, stacked.top
        fitted = []
        for fold, (rows, held_out_NC) in enumerate(
            zip(many, stacked.held_out_NC.split(counts), strict=True)
        ):
            held_out_NC, temperature, loss = rows.judged(held_out_NC)
            settings = {"steps": stacked.steps, "loss": loss}
            member = self._member(stacked, rows, copies)
            with torch.random.fork_rng(devices=[]):
                network = member.build()
            network.encoding = encoding
            copies_here = slice(fold * copies, (fold + 1) * copies)
            for part, whole in ((network.bottom, bottom), (network.top, top)):
                part.load_state_dict(
                    {name: w[copies_here] for name, w in whole.state_dict().items()}
                )
            spec = EnsembleSpec((member,), rows.num_outputs, rows.regression, temperature)
            fitted.append(
                Fitted(self.name, spec, spec.around([network.eval()]), held_out_NC, settings)
            )
        return fitted

    def _member(self, stacked: Stacked, rows: Rows, members: int) -> StackedSpec:
        """The sizes of so many members of a network of one party."""
        return StackedSpec(
            members,
            rows.x_NF.shape[1],
            len(stacked.encodings[0].column_M),
            self.config.widths,
            rows.num_outputs,
            rows.regression,
        )

    def narrowed(self, fitted: Fitted) -> Network:
        return self
