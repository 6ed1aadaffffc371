"""Boosted trees (LightGBM; Ke et al. 2017) from soft targets.

The loss is given to LightGBM by its gradient p - t and second derivative p (1 - p), so a row with
the target t is the same as the row once for each class c with the weight t_c. Trees start from
the targets' mean. Rounds are counted on held-out rows. Folds and settings are grown side by side,
in threads: trees of so few rows gain little from threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Event
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from dovetail.models import lightgbm_core as lightgbm
from dovetail.models.learners.boosting_model import BoostedTrees
from dovetail.models.learners.rows import Rows
from dovetail.models.learners.specs import EnsembleSpec, Fitted
from dovetail.models.losses import Loss
from dovetail.models.threads import side_by_side


@dataclass(frozen=True, kw_only=True)
class Trees:
    """How trees are grown; the names are LightGBM's."""

    num_leaves: int
    min_data_in_leaf: int
    learning_rate: float
    feature_fraction: float
    lambda_l2: float


#: Trees of this size gain little from more.
NUM_THREADS = 1

#: For hundreds of rows, and for thousands.
FEW_ROWS = (
    Trees(num_leaves=4, min_data_in_leaf=5, learning_rate=0.1, feature_fraction=0.4, lambda_l2=1),
    Trees(num_leaves=8, min_data_in_leaf=15, learning_rate=0.1, feature_fraction=0.7, lambda_l2=5),
)
MANY_ROWS = (
    Trees(num_leaves=8, min_data_in_leaf=20, learning_rate=0.1, feature_fraction=0.5, lambda_l2=1),
    Trees(
        num_leaves=24, min_data_in_leaf=30, learning_rate=0.08, feature_fraction=0.5, lambda_l2=5
    ),
)
_MANY = 2000
#: Of larger tables one is grown after another: each has a copy.
_MOST_AT_ONCE = 5_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class Boosting:
    """The learner.

    Attributes:
        trees: settings to choose from; None for ``FEW_ROWS`` or ``MANY_ROWS``.
        max_trees: of one model, all classes together.
        max_rounds: of one model.
        patience: rounds without a better held-out loss before it ends.
    """

    name: ClassVar[str] = "boosting"

    trees: tuple[Trees, ...] | None = None
    max_trees: int = 4000
    max_rounds: int = 600
    patience: int = 30

    def fit(
        self, rows: Rows, *, seed: int, encode_on: Tensor | None = None, refit: bool = True
    ) -> Fitted:
        """Trains on each fold's rows; the mean of the folds' models, or, of one fold, one refit."""
        return self._fit(rows, seed=seed, refit=refit)

    def _fit(self, rows: Rows, given_up: Event | None = None, *, seed: int, refit: bool) -> Fitted:
        """Result of ``fit``; ends early if it is given up."""
        candidates = self.trees or (FEW_ROWS if len(rows.x_NF) < _MANY else MANY_ROWS)
        rounds = max(20, min(self.max_rounds, self.max_trees // max(1, rows.num_outputs)))
        grown_TK = _at_once(
            rows,
            [
                partial(
                    self._grow,
                    rows,
                    rows.folds_N != fold,
                    rows.folds_N == fold,
                    trees,
                    rounds,
                    seed + fold,
                )
                for trees in candidates
                for fold in range(rows.num_folds)
            ],
            given_up,
        )
        best: tuple[float, float, Trees, list[_Grown], Tensor] | None = None
        for index, trees in enumerate(candidates):
            grown_K = grown_TK[index * rows.num_folds :][: rows.num_folds]
            held_out_NC = rows.no_outputs()
            for fold, grown in enumerate(grown_K):
                assert grown.outputs_NC is not None
                held_out_NC[rows.folds_N == fold] = grown.outputs_NC
            held_out_NC, temperature, loss = rows.judged(held_out_NC)
            if best is None or loss < best[0]:
                best = (loss, temperature, trees, grown_K, held_out_NC)
        assert best is not None
        loss, temperature, trees, grown_K, held_out_NC = best
        counts = [grown.rounds for grown in grown_K]
        members = of_folds = [grown.member() for grown in grown_K]
        if len(grown_K) == 1 and refit:
            everywhere = torch.ones(len(rows.x_NF), dtype=torch.bool)
            whole = self._grow(rows, everywhere, None, trees, max(counts[0], 1), seed, given_up)
            members = [whole.member()]
        specs = tuple(member.spec() for member in members)
        spec = EnsembleSpec(specs, rows.num_outputs, rows.regression, temperature)
        settings: dict[str, Any] = {**asdict(trees), "rounds": counts, "loss": loss}
        return Fitted(
            self.name,
            spec,
            spec.around(members),
            held_out_NC,
            settings,
            lambda x_NF: torch.stack([member(x_NF) for member in of_folds]) / temperature,
        )

    def fit_each(self, many: Sequence[Rows], *, seeds: Sequence[int]) -> list[Fitted]:
        """As ``fit`` of each without a refit, side by side."""
        largest = max(many, key=lambda rows: rows.x_NF.numel())
        return _at_once(
            largest,
            [
                partial(self._fit, rows, seed=seed, refit=False)
                for rows, seed in zip(many, seeds, strict=True)
            ],
        )

    def narrowed(self, fitted: Fitted) -> Boosting:
        names = Trees.__dataclass_fields__
        trees = Trees(**{name: fitted.settings[name] for name in names})
        return replace(self, trees=(trees,))

    def _grow(
        self,
        rows: Rows,
        train: Tensor,
        stop: Tensor | None,
        trees: Trees,
        rounds: int,
        seed: int,
        given_up: Event | None = None,
    ) -> _Grown:
        """A booster of the ``train`` rows, its rounds counted on ``stop`` if there are any."""
        scores = rows.loss.num_scores(rows.num_outputs)
        targets_NC = rows.targets_NC[train].double()
        weights_N = rows.weights()[train].double()
        start_S = _start(targets_NC, weights_N, rows.loss)

        def gradients(scores_: np.ndarray, _data: Any) -> tuple[np.ndarray, np.ndarray]:
            if given_up is not None and given_up.is_set():
                raise KeyboardInterrupt
            return _gradients(scores_, targets_NC, weights_N, rows.loss)

        parameters: dict[str, Any] = {
            **asdict(trees),
            "objective": gradients,
            "num_class": scores,
            "metric": "None",
            "min_sum_hessian_in_leaf": 1e-3,
            "bagging_fraction": 0.8 if int(train.sum()) > 1 else 1.0,  # of one row it leaves none
            "bagging_freq": 1,
            "max_bin": 127,
            "use_missing": False,  # features have no missing values
            "feature_pre_filter": False,  # of few rows it would leave no feature, which is an error
            "num_threads": NUM_THREADS,
            "deterministic": True,
            "force_row_wise": True,
            "seed": seed % 2**31,
            "verbosity": -1,
        }
        if scores == 1:
            parameters.pop("num_class")

        def dataset(chosen: Tensor, reference: Any = None, *, ramp: bool = False) -> Any:
            x = rows.x_NF[chosen].numpy()
            if ramp:
                x = np.arange(x.size, dtype=np.float32).reshape(x.shape)
            start = np.tile(start_S.numpy(), (len(x), 1))
            return lightgbm.Dataset(
                x,
                np.zeros(len(x), dtype=np.float32),  # unused: the gradients know the targets
                init_score=start if scores > 1 else start[:, 0],
                reference=reference,
                params={**parameters, "objective": "none"},
                free_raw_data=True,
            )

        data = dataset(train).construct()
        if all(data.feature_num_bin(index) < 2 for index in range(data.num_feature())):
            # LightGBM refuses columns that are constant here: it splits none of others, instead.
            parameters["min_gain_to_split"] = 1e300
            data = dataset(train, ramp=True)
        extra: dict[str, Any] = {}
        if stop is not None:
            stop_targets, stop_weights = rows.targets_NC[stop].double(), rows.weights()[stop]

            def loss(scores_: np.ndarray, _data: Any) -> tuple[str, float, bool]:
                outputs = _outputs(scores_, len(stop_targets), rows.num_outputs)
                losses = rows.loss.rows(outputs, stop_targets)
                return "loss", float((losses * stop_weights).mean()), False

            extra = {
                "valid_sets": [dataset(stop, data)],
                "feval": loss,
                "callbacks": [lightgbm.early_stopping(self.patience, verbose=False)],
            }
        # Kept as it was trained: to write it out and read it again changes nothing of it.
        booster = lightgbm.train(
            parameters, data, num_boost_round=rounds, keep_training_booster=True, **extra
        )
        count = booster.best_iteration if stop is not None else rounds
        outputs_NC = None
        if stop is not None:
            raw = booster.predict(
                rows.x_NF[stop].numpy(),
                raw_score=True,
                num_iteration=count,
                num_threads=NUM_THREADS,
            )
            scores_NS = torch.from_numpy(np.reshape(raw, (-1, scores))).float() + start_S.float()
            outputs_NC = _outputs(scores_NS.numpy(), len(scores_NS), rows.num_outputs)
        booster.free_dataset()
        return _Grown(booster, int(count), rows.num_outputs, start_S.float(), outputs_NC)


@dataclass(frozen=True, eq=False)
class _Grown:
    """Trees in LightGBM's hands: most are only judged, and never written out.

    Attributes:
        booster: LightGBM's.
        rounds: how many of its rounds count.
        num_outputs: C.
        start_S: what its scores start from.
        outputs_NC: its outputs of the rows that stopped it, if there were any.
    """

    booster: Any
    rounds: int
    num_outputs: int
    start_S: Tensor
    outputs_NC: Tensor | None

    def member(self) -> BoostedTrees:
        """As they are kept."""
        text = self.booster.model_to_string(num_iteration=self.rounds).encode()
        member = BoostedTrees(
            self.booster.num_feature(), self.num_outputs, len(text), len(self.start_S)
        )
        member.text_T = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        member.start_S = self.start_S
        return member.eval()


def _at_once(
    rows: Rows, calls: Sequence[Callable[[Event], T]], given_up: Event | None = None
) -> list[T]:
    """Results of the calls: side by side if tables of these rows are small beside a machine."""
    if rows.x_NF.numel() > _MOST_AT_ONCE:
        return [call(given_up or Event()) for call in calls]
    return side_by_side(calls, given_up)


def _start(targets_NC: Tensor, weights_N: Tensor, loss: Loss) -> Tensor:
    """(S,) scores of the mean target, one for two classes."""
    mean_C = (targets_NC * weights_N[:, None]).sum(dim=0) / weights_N.sum()
    if loss.regression:
        return loss.start(mean_C)
    # A class that no row has starts as if a hundredth of a row had it.
    logs_C = (mean_C + 0.01 / len(targets_NC)).log()
    return logs_C[1:] - logs_C[:1] if len(logs_C) == 2 else logs_C


def _outputs(scores: np.ndarray, num_rows: int, num_outputs: int) -> Tensor:
    """(N, C) of LightGBM's raw scores."""
    scores_NS = torch.from_numpy(np.ascontiguousarray(scores)).reshape(num_rows, -1)
    if scores_NS.shape[1] < num_outputs:  # of two classes the first has 0
        return torch.cat([torch.zeros_like(scores_NS), scores_NS], dim=1)
    return scores_NS


def _gradients(
    scores: np.ndarray, targets_NC: Tensor, weights_N: Tensor, loss: Loss
) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives of the rows' losses, shaped as the scores are."""
    if targets_NC.shape[1] == 2 and not loss.regression:
        # As below, of the one score that two classes have: a third of the time.
        score_N = torch.from_numpy(scores)
        total_N = targets_NC.sum(dim=1)
        p_N = score_N.sigmoid()
        first_N = (p_N * total_N - targets_NC[:, 1]) * weights_N
        second_N = p_N * (1 - p_N) * total_N * weights_N
        return first_N.numpy(), second_N.numpy()
    outputs_NC = torch.from_numpy(np.ascontiguousarray(scores)).reshape(len(targets_NC), -1)
    first_NC, second_NC = loss.derivatives(outputs_NC, targets_NC)
    first_NC, second_NC = first_NC * weights_N[:, None], second_NC * weights_N[:, None]
    return first_NC.numpy().reshape(scores.shape), second_NC.numpy().reshape(scores.shape)
