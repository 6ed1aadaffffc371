"""Logistic regression, or ridge: the penalty is chosen on held-out rows.

    minimise  sum_i w_i loss(x_i W + b, t_i) / sum_i w_i + penalty / 2 ||W||^2

The intercept is not penalised. By L-BFGS (SciPy), from the strongest penalty to the weakest, each
from the last one's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.models.learners.member import MemberSpec
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.specs import EnsembleSpec, Fitted


@dataclass(frozen=True)
class LinearSpec(MemberSpec):
    """Linear model: a weight a feature and output, and an intercept an output."""

    kind: ClassVar[str] = "linear"

    num_features: int
    num_outputs: int

    def build(self) -> nn.Linear:
        return nn.Linear(self.num_features, self.num_outputs)


#: More values than this are not kept in double, but made so many rows at a time.
_MOST_DOUBLES, _ROWS_AT_ONCE = 50_000_000, 50_000

_PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)


@dataclass(frozen=True)
class Linear:
    """The learner.

    Attributes:
        penalties: to choose from, strongest first.
        max_iterations: of L-BFGS, a penalty.
    """

    name: ClassVar[str] = "linear"

    penalties: tuple[float, ...] = _PENALTIES
    max_iterations: int = 200

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """Trains on each fold's rows, and with the best penalty on all rows; nothing is drawn."""
        paths, best, (held_out_NC, temperature, loss) = self._chosen(rows)
        path = paths[-1]
        if refit or rows.num_folds > 1:
            everywhere = torch.ones(len(rows.x_NF), dtype=torch.bool)
            # The path up to the chosen penalty, as the folds' models took it.
            path = self._path(rows, everywhere, self.penalties[: best + 1])
        weights = path[best]
        member = LinearSpec(rows.x_NF.shape[1], rows.num_outputs)
        with torch.random.fork_rng(devices=[]):
            module = member.build()
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(weights[:-1].T))
            module.bias.copy_(torch.from_numpy(weights[-1]))
        spec = EnsembleSpec((member,), rows.num_outputs, rows.regression, temperature)
        return Fitted(
            self.name,
            spec,
            spec.around([module]),
            held_out_NC,
            {"penalty": self.penalties[best], "loss": loss},
            lambda x_NF: (
                torch.stack([_outputs(x_NF, of_fold[best]) for of_fold in paths]) / temperature
            ),
        )

    def held_out(self, rows: Rows) -> Tensor:
        """(N, C) outputs as ``fit`` has them, of rows held out; no model of all rows is trained."""
        *_, (held_out_NC, _, _) = self._chosen(rows)
        return held_out_NC

    def _chosen(
        self, rows: Rows
    ) -> tuple[list[list[np.ndarray]], int, tuple[Tensor, float, float]]:
        """Each fold's path, the index of the best penalty, and what rows held out say of it."""
        outputs_PNC = rows.no_outputs().repeat(len(self.penalties), 1, 1)
        paths = []
        for fold in range(rows.num_folds):
            held_out = rows.folds_N == fold
            path = self._path(rows, ~held_out, self.penalties)
            paths.append(path)
            for index, weights in enumerate(path):
                outputs_PNC[index, held_out] = _outputs(rows.x_NF[held_out], weights)
        judged = [rows.judged(outputs_NC) for outputs_NC in outputs_PNC]
        best = int(np.argmin([loss for *_, loss in judged]))
        return paths, best, judged[best]

    def narrowed(self, fitted: Fitted) -> Linear:
        return replace(self, penalties=(fitted.settings["penalty"],))

    def _path(self, rows: Rows, train: Tensor, penalties: Sequence[float]) -> list[np.ndarray]:
        """(F + 1, C) weights for each penalty; the last row is the intercept."""
        from scipy.optimize import minimize

        # Double throughout: L-BFGS' line search stops early on rounding.
        parts = _parts(rows.x_NF, train)
        targets = rows.targets_NC[train].double().numpy()
        shares = rows.weights()[train].double().numpy()
        shares = shares / shares.sum()
        shape = (rows.x_NF.shape[1] + 1, rows.num_outputs)

        def loss_and_gradient(flat: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
            weights = flat.reshape(shape)
            outputs = np.empty((len(targets), rows.num_outputs))
            for at, x in parts():
                np.matmul(x, weights[:-1], out=outputs[at])
            outputs += weights[-1]
            loss, error = rows.loss.summed(outputs, targets, shares)
            error *= shares[:, None]
            gradient = np.empty(shape)
            gradient[:-1] = sum(x.T @ error[at] for at, x in parts()) + penalty * weights[:-1]
            gradient[-1] = error.sum(axis=0)
            return loss + 0.5 * penalty * float((weights[:-1] ** 2).sum()), gradient.ravel()

        flat = np.zeros(shape[0] * shape[1])
        path = []
        for penalty in penalties:
            flat = minimize(
                loss_and_gradient,
                flat,
                args=(penalty,),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": self.max_iterations, "ftol": 1e-8, "gtol": 1e-6},
            ).x
            path.append(flat.reshape(shape).copy())
        return path


def _parts(x_NF: Tensor, chosen: Tensor) -> Callable[[], Iterable[tuple[slice, np.ndarray]]]:
    """Where the chosen rows are, and they in double: whole, or, of many, each time in parts."""
    rows = chosen.nonzero().flatten()
    if len(rows) * x_NF.shape[1] <= _MOST_DOUBLES:
        whole = [(slice(None), x_NF[rows].double().numpy())]
        return lambda: whole

    def each() -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            at = slice(start, start + _ROWS_AT_ONCE)
            yield at, x_NF[rows[at]].double().numpy()

    return each


def _outputs(x_NF: Tensor, weights: np.ndarray) -> Tensor:
    weights_FC = torch.from_numpy(weights).float()
    return nn.functional.linear(x_NF, weights_FC[:-1].T, weights_FC[-1])
