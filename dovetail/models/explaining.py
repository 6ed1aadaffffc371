"""Which raw columns a model relies on: for all rows, for one row, and along one column.

    importance   how much worse the score gets where a column's values are permuted among the
                 rows (Breiman 2001, Sec. 10), with intervals over draws of rows and of deals
    shares       s(x) = s_0 + sum_c phi_c: what each column adds to the output for a row, by
                 TreeSHAP of boosted trees (Lundberg et al. 2020), integrated gradients of networks
                 and linear models (Sundararajan et al. 2017), and drawn orders of columns of
                 anything else (Strumbelj and Kononenko 2014)
    dependence   the mean output where one column has this value in every row
                 (Friedman 2001, Sec. 8.2)

s is the log-odds of the second of two classes, the logarithm of the said class's probability where
there are more, and the value of a regression. A column's features are moved together.

Letters: N rows, F features, C outputs, K raw columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.data import Classification, TableEncoder, Task
from dovetail.data.fitted import CategoryColumn, NumberColumn
from dovetail.data.preprocessing import FittedColumn
from dovetail.data.vectors import VectorColumn
from dovetail.errors import ModelError
from dovetail.lazy import needed
from dovetail.models import lightgbm_core as lightgbm
from dovetail.models.learners.boosting_model import BoostedTrees
from dovetail.models.learners.specs import Ensemble
from dovetail.models.metrics import SCORES, headline, headline_score, score
from dovetail.models.shown import html_table
from dovetail.models.threads import one_thread

How = Literal["trees", "gradients", "orders"]

#: Pieces of a path of integrated gradients at first, and how often one is halved at most, until a
#: row's pieces sum to what is said of it, but for this part of what there is to share.
_PIECES, _MOST_HALVINGS, _LEFT = 4, 12, 0.01
#: Points of paths in one pass of the network.
_AT_ONCE = 4096
#: Orders of columns (each also backwards).
_ORDERS = 8
#: Values of a column along which dependence is told.
_GRID = 12
#: Columns that a notebook shows.
_SHOWN_COLUMNS = 20


class Explained(Protocol):
    """Interface that is needed of a model."""

    @property
    def party(self) -> str: ...
    @property
    def task(self) -> Task: ...
    @property
    def network(self) -> nn.Module: ...
    @property
    def inputs(self) -> Mapping[str, Any]: ...
    @property
    def about(self) -> Mapping[str, Any]: ...

    def outputs(self, x: Mapping[str, Tensor]) -> Tensor: ...


@dataclass(frozen=True)
class Importance:
    """Importance of one column: how much worse the score gets without it, and the middle 95 % over
    draws."""

    column: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanation of what a model relies on.

    Attributes:
        score: the name of the score, and ``base`` what it is on these rows; None without labels.
        importance: of each column, the most important first; () without labels.
        columns: K raw columns, in the order of ``shares``.
        shares: (N, K) what each adds to s of each row; ``start`` is s_0 of each row.
        outputs: (N,) s of each row.
        how: by which method ``shares`` were found.
        dependence: column -> (value, mean of the output) along it.
        along: what that is: "p(yes)" of the second of two classes or of the most frequent of more;
            "value" of a number.
    """

    score: str
    base: float | None
    importance: tuple[Importance, ...]
    columns: tuple[str, ...]
    shares: np.ndarray
    start: np.ndarray
    outputs: np.ndarray
    how: How
    dependence: Mapping[str, list[tuple[str, float]]] = field(default_factory=dict)
    along: str = "value"

    def of_row(self, row: int) -> dict[str, float]:
        """Column -> what it adds to the output for this row, the most first."""
        order = np.argsort(-np.abs(self.shares[row]), kind="stable")
        return {self.columns[each]: float(self.shares[row, each]) for each in order}

    def mean_shares(self) -> dict[str, float]:
        """Column -> the mean size of what it adds, the most first."""
        sizes = np.abs(self.shares).mean(axis=0)
        return {self.columns[each]: float(sizes[each]) for each in np.argsort(-sizes)}

    def to_shap(self, values: np.ndarray) -> Any:
        """A ``shap.Explanation`` of these shares, which shap's plots take.

        Args:
            values: (N, K) of the columns, as numbers or text.

        Raises:
            ConfigError: shap is not installed.
        """
        with needed("a shap.Explanation", "shap"):
            import shap
        return shap.Explanation(
            values=self.shares,
            base_values=self.start,
            data=values,
            feature_names=list(self.columns),
            output_names=self.along,
        )

    def __repr__(self) -> str:
        """How many rows and columns, and the columns that matter most."""
        first = ", ".join(list(self.mean_shares())[:3])
        return (
            f"<explanation of {len(self.outputs)} rows, {len(self.columns)} columns: {first}, ...>"
        )

    def _repr_html_(self) -> str:
        sizes = self.mean_shares()
        most = max(sizes.values(), default=0.0) or 1.0
        known = {each.column: each for each in self.importance}
        rows = []
        for name, size in sizes.items():
            bar = "█" * round(20 * size / most)
            importance = known.get(name)
            text = (
                f"{importance.mean:.4f} ({importance.low:.4f} to {importance.high:.4f})"
                if importance
                else ""
            )
            rows.append((name, f"{size:.4f}", bar, text))
        head = ("column", "mean absolute contribution", "", f"importance ({self.score})")
        base = "" if self.base is None else f"{self.score} of these rows {self.base:.4f}; "
        return html_table(
            rows[:_SHOWN_COLUMNS], head=head, note=f"{base}{len(self.outputs):,} rows, {self.how}"
        )

    def to_json(self, *, row: int | None = None) -> dict[str, Any]:
        report: dict[str, Any] = {
            "score": self.score,
            "base": self.base,
            "importance": [vars(each) for each in self.importance],
            "shares": {"how": self.how, "mean": self.mean_shares()},
            "dependence": {
                name: list(map(list, values)) for name, values in self.dependence.items()
            },
            "along": self.along,
        }
        if row is not None:
            report["row"] = {
                "row": row,
                "said": float(self.outputs[row]),
                "start": float(self.start[row]),
                "adds": self.of_row(row),
            }
        return report


class FeatureGroups:
    """Raw columns and the features that each became, block by block.

    Args:
        model: takes raw columns.
        answers: partner -> the block of a joint model that has its answers, which count as one
            column.

    Raises:
        ModelError: a model without raw columns.
    """

    def __init__(self, model: Explained, answers: Mapping[str, str] | None = None) -> None:
        self.parts: dict[str, list[tuple[str, slice]]] = {}
        self.fitted: dict[str, FittedColumn] = {}
        for block, encoder in model.inputs.items():
            if not isinstance(encoder, TableEncoder):
                continue
            start = 0
            for column in encoder.fitted:
                stop = start + len(column.feature_names)
                self.parts.setdefault(column.name, []).append((block, slice(start, stop)))
                self.fitted[column.name] = column
                start = stop
        if not self.parts:
            raise ModelError(
                f"the model of party {model.party!r} takes no raw columns that could be explained"
            )
        for name, block in (answers or {}).items():
            self.parts[name] = [(block, slice(None))]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.parts)

    def moved(
        self, x: Mapping[str, Tensor], column: str, other: Mapping[str, Tensor] | Tensor
    ) -> dict[str, Tensor]:
        """``x`` with a column's features of ``other``, or with these features in every row."""
        moved = dict(x)
        for block, part in self.parts[column]:
            moved[block] = moved[block].clone()
            moved[block][:, part] = other if isinstance(other, Tensor) else other[block][:, part]
        return moved


@one_thread()
def explain(
    model: Explained,
    x: Mapping[str, Tensor],
    labels_N: Tensor | None = None,
    *,
    shared_rows: int = 200,
    repeats: int = 20,
    depend: int = 3,
    seed: int = 0,
) -> Explanation:
    """Explanation of what the model relies on, for these rows.

    Args:
        model: takes raw columns.
        x: block -> (N, F) features.
        labels_N: class indices or standardised values; None: no importance.
        shared_rows: the first so many rows get shares.
        repeats: deals, each on a draw of the rows.
        depend: so many columns get a curve.
        seed: of the draws.

    Raises:
        ModelError: a model without raw columns.
    """
    groups = FeatureGroups(model)
    rng = np.random.default_rng(seed)
    name = headline(model.task)
    base: float | None = None
    importance: tuple[Importance, ...] = ()
    if labels_N is not None:
        base, importance = importance_of(model, groups, x, labels_N, repeats, rng)
    first = {block: values[:shared_rows] for block, values in x.items()}
    shares, start, outputs, how = _shares(model, groups, first, x, rng)
    sizes = np.abs(shares).mean(axis=0)
    ranked = (
        [each.column for each in importance]
        if importance
        else [groups.names[index] for index in np.argsort(-sizes)]
    )
    which = _class_along(model, x)
    curved = [name for name in ranked if not isinstance(groups.fitted[name], VectorColumn)]
    dependence = {column: _along(model, groups, x, column, which) for column in curved[:depend]}
    along = "value"
    if isinstance(model.task, Classification):
        along = f"p({model.task.classes[which]})"
    return Explanation(
        name, base, tuple(importance), groups.names, shares, start, outputs, how, dependence, along
    )


def importance_of(
    model: Explained,
    groups: FeatureGroups,
    x: Mapping[str, Tensor],
    labels_N: Tensor,
    repeats: int,
    rng: np.random.Generator,
    names: Sequence[str] | None = None,
) -> tuple[float, tuple[Importance, ...]]:
    """The score of these rows, and how much it loses by each column, the most first.

    Args:
        names: of the columns that are permuted; None: all.
    """
    name = headline(model.task)
    sign = 1 if SCORES[name] else -1
    outputs = model.outputs(x)
    scores = score(model.task, outputs, labels_N)
    one_class = name not in scores
    if one_class:
        name = "accuracy"

    def scored(outputs_NC: Tensor, labels: Tensor) -> float | None:
        if not one_class:
            return headline_score(model.task, outputs_NC, labels)
        return score(model.task, outputs_NC, labels)["accuracy"]

    num_rows = len(labels_N)
    names = groups.names if names is None else names
    drops: dict[str, list[float]] = {column: [] for column in names}
    for _ in range(repeats):
        rows = torch.from_numpy(rng.integers(0, num_rows, num_rows))
        drawn = {block: values[rows] for block, values in x.items()}
        order = torch.from_numpy(rng.permutation(num_rows))
        dealt = {block: values[order] for block, values in drawn.items()}
        before = scored(outputs[rows], labels_N[rows])
        for column, outputs_NC in _moved_outputs(model, groups, drawn, dealt, names):
            after = scored(outputs_NC, labels_N[rows])
            if before is not None and after is not None:
                drops[column].append(sign * (before - after))
    importances = []
    for column, values in drops.items():
        low, high = np.quantile(values, [0.025, 0.975]) if values else (0.0, 0.0)
        mean = float(np.mean(values)) if values else 0.0
        importances.append(Importance(column, mean, float(low), float(high)))
    return scores[name], tuple(sorted(importances, key=lambda each: -each.mean))


def _moved_outputs(
    model: Explained,
    groups: FeatureGroups,
    drawn: Mapping[str, Tensor],
    dealt: Mapping[str, Tensor],
    names: Sequence[str],
) -> Iterator[tuple[str, Tensor]]:
    """(N, C) outputs of these rows with each column permuted.

    Several columns share a call, which costs more than its rows.
    """
    num_rows = len(next(iter(drawn.values())))
    at_once = max(1, _AT_ONCE // max(1, num_rows))
    for start in range(0, len(names), at_once):
        some = names[start : start + at_once]
        moved = [groups.moved(drawn, column, dealt) for column in some]
        whole = {block: torch.cat([each[block] for each in moved]) for block in drawn}
        yield from zip(some, model.outputs(whole).split(num_rows), strict=True)


def _explained_outputs(task: Task, outputs_NC: Tensor, outputs_N: Tensor | None = None) -> Tensor:
    """(N,) s, of the predicted class where there are more than two."""
    if not isinstance(task, Classification):
        return outputs_NC[:, 0] * task.scale + task.mean
    if task.num_outputs == 2:
        return outputs_NC[:, 1] - outputs_NC[:, 0]
    assert outputs_N is not None
    return outputs_NC.log_softmax(dim=1).gather(1, outputs_N[:, None])[:, 0]


def _shares(
    model: Explained,
    groups: FeatureGroups,
    x: Mapping[str, Tensor],
    background: Mapping[str, Tensor],
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, How]:
    """(N, K) shares, (N,) starts, (N,) s, and how they were found."""
    outputs = model.outputs(x)
    classes_N = outputs.argmax(dim=1)
    explained = _explained_outputs(model.task, outputs, classes_N).double().numpy()
    trees = _only_trees(model.network, 1.0)
    # What is calibrated other than by one factor is no sum of trees any more.
    plain = not isinstance(model.about.get("calibration"), Mapping)
    num_classes = model.task.num_outputs
    if trees and plain and num_classes <= 2 and len(x) == 1:
        features_NF, start = _tree_shares(model, trees, next(iter(x.values())))
        how: How = "trees"
    elif plain and not any(isinstance(each, BoostedTrees) for each in model.network.modules()):
        features_NF, start = _gradients(model, x, background, classes_N)
        how = "gradients"
    else:
        shares, start = _orders(model, groups, x, background, classes_N, rng)
        return shares, start, explained, "orders"
    offsets, at = {}, 0
    for block, values in x.items():
        offsets[block] = at
        at += values.shape[1] if values.dim() == 2 else values[0].numel()
    shares = np.zeros((len(explained), len(groups.names)))
    for index, column in enumerate(groups.names):
        for block, part in groups.parts[column]:
            at = offsets[block]
            shares[:, index] += features_NF[:, at + part.start : at + part.stop].sum(axis=1)
    return shares, start, explained, how


def _only_trees(network: nn.Module, weight: float) -> list[tuple[BoostedTrees, float]]:
    """Boosted trees whose weighted sum the model is; none where it is no such sum.

    A mean of several members is one of their values, but not of their log-odds.
    """
    if isinstance(network, BoostedTrees):
        return [(network, weight)]
    if not isinstance(network, Ensemble) or not (network.regression or len(network.members) == 1):
        return []
    weight /= 1.0 if network.regression else network.temperature
    num = len(network.members)
    ensembles = [
        _only_trees(member, weight * share)
        for member, share in zip(network.members, network.weights or [1 / num] * num, strict=True)
    ]
    return [each for trees in ensembles for each in trees] if all(ensembles) else []


def _tree_shares(
    model: Explained, trees: list[tuple[BoostedTrees, float]], x_NF: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """TreeSHAP, by LightGBM itself."""
    total_NF = np.zeros((len(x_NF), x_NF.shape[1] + 1))
    for network, weight in trees:
        booster = lightgbm.Booster(model_str=network.checked_text())
        values_NF = np.asarray(booster.predict(x_NF.double().numpy(), pred_contrib=True))
        values_NF[:, -1] += float(network.start_S[0])
        total_NF += values_NF * weight
    if isinstance(model.task, Classification):
        return total_NF[:, :-1], total_NF[:, -1]
    scale = model.task.scale
    return total_NF[:, :-1] * scale, total_NF[:, -1] * scale + model.task.mean


def _gradients(
    model: Explained,
    x: Mapping[str, Tensor],
    background: Mapping[str, Tensor],
    classes_N: Tensor,
) -> tuple[np.ndarray, np.ndarray]:
    """Integrated gradients from the mean row.

    Where a narrow bin makes the path steep, few steps miss it: as Sundararajan et al. (2017, Sec.
    5) advise, the shares' sum is held against the output. Here this is done piece by piece of the
    path, and pieces that do not sum are halved until they do: a step costs where it is steep only.
    """
    mean = {block: values.float().mean(dim=0, keepdim=True) for block, values in background.items()}
    ends = {block: values.float() for block, values in x.items()}
    network = model.network.eval()

    def at(row_P: Tensor, along_P: Tensor) -> dict[str, Tensor]:
        """Points on the paths of these rows."""
        return {
            block: mean[block]
            + along_P.view(-1, *[1] * (values.dim() - 1)) * (values[row_P] - mean[block])
            for block, values in ends.items()
        }

    def outputs_at(points: Mapping[str, Tensor], row_P: Tensor) -> Tensor:
        given = dict(points) if len(points) > 1 else next(iter(points.values()))
        return _explained_outputs(model.task, network(given), classes_N[row_P])

    def values(row_P: Tensor, along_P: Tensor) -> Tensor:
        with torch.no_grad():
            parts = zip(row_P.split(_AT_ONCE), along_P.split(_AT_ONCE), strict=True)
            return torch.cat([outputs_at(at(row, along), row) for row, along in parts])

    def rises(row_P: Tensor, along_P: Tensor) -> Tensor:
        """(P, F) of each feature, by the gradient there, if the whole path were as steep."""
        gradients = []
        for row, along in zip(row_P.split(_AT_ONCE), along_P.split(_AT_ONCE), strict=True):
            points = {block: values.requires_grad_() for block, values in at(row, along).items()}
            grads = torch.autograd.grad(outputs_at(points, row).sum(), list(points.values()))
            parts = [
                (grad * (ends[block][row] - mean[block])).flatten(1)
                for block, grad in zip(points, grads, strict=True)
            ]
            gradients.append(torch.cat(parts, dim=1))
        return torch.cat(gradients)

    num_rows = len(classes_N)
    row_I = torch.arange(num_rows).repeat_interleave(_PIECES)
    low_I = (torch.arange(_PIECES) / _PIECES).repeat(num_rows)
    high_I = low_I + 1 / _PIECES
    grid = torch.arange(_PIECES + 1) / _PIECES
    known = values(torch.arange(num_rows).repeat_interleave(len(grid)), grid.repeat(num_rows))
    known_NG = known.view(num_rows, -1)
    start_N, outputs_N = known_NG[:, 0], known_NG[:, -1]
    at_low_I, at_high_I = known_NG[:, :-1].flatten(), known_NG[:, 1:].flatten()
    allowed = _LEFT * float((outputs_N - start_N).square().mean().sqrt())
    shares: Tensor | None = None
    off_N = torch.zeros(num_rows)  # by how much pieces that are done do not sum
    for halvings in range(_MOST_HALVINGS + 1):
        half_I, middle_I = (high_I - low_I) / 2, (high_I + low_I) / 2
        # Gauss and Legendre's two nodes: exact where the gradient is a cubic of the path.
        nodes = torch.cat([middle_I - half_I / 3**0.5, middle_I + half_I / 3**0.5])
        both = rises(row_I.repeat(2), nodes)
        shares_IF = (both[: len(row_I)] + both[len(row_I) :]) * half_I[:, None]
        off_I = (shares_IF.sum(dim=1) - (at_high_I - at_low_I)).abs()
        pending_N = torch.zeros(num_rows).index_add(0, row_I, off_I)
        pieces_N = torch.bincount(row_I, minlength=num_rows)
        wanting_N = off_N + pending_N > allowed
        split_I = wanting_N[row_I] & (off_I * 2 * pieces_N[row_I] > allowed - off_N[row_I])
        if halvings == _MOST_HALVINGS:
            split_I = torch.zeros_like(split_I)
        if shares is None:
            shares = torch.zeros(num_rows, shares_IF.shape[1])
        shares.index_add_(0, row_I[~split_I], shares_IF[~split_I])
        off_N.index_add_(0, row_I[~split_I], off_I[~split_I])
        if not split_I.any():
            break
        row_I, middle_I = row_I[split_I].repeat(2), middle_I[split_I]
        low_I, high_I = (
            torch.cat([low_I[split_I], middle_I]),
            torch.cat([middle_I, high_I[split_I]]),
        )
        at_middle = values(row_I[: len(middle_I)], middle_I)
        at_low_I = torch.cat([at_low_I[split_I], at_middle])
        at_high_I = torch.cat([at_middle, at_high_I[split_I]])
    assert shares is not None
    return shares.double().numpy(), start_N.double().numpy()


def _orders(
    model: Explained,
    groups: FeatureGroups,
    x: Mapping[str, Tensor],
    background: Mapping[str, Tensor],
    classes_N: Tensor,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Shapley values by drawn orders of the columns, each forwards and backwards."""
    num_rows, num_background = len(classes_N), len(next(iter(background.values())))
    shares = np.zeros((num_rows, len(groups.names)))
    start = np.zeros(num_rows)

    def said(rows: Mapping[str, Tensor]) -> np.ndarray:
        outputs_N = _explained_outputs(model.task, model.outputs(rows), classes_N)
        said_N: np.ndarray = outputs_N.double().numpy()
        return said_N

    for _ in range(_ORDERS):
        drawn = torch.from_numpy(rng.integers(0, num_background, num_rows))
        other = {block: values[drawn] for block, values in background.items()}
        order = rng.permutation(len(groups.names))
        for way in (order, order[::-1]):
            rows: dict[str, Tensor] = dict(other)
            before = said(rows)
            start += before / (2 * _ORDERS)
            for index in way:
                rows = groups.moved(rows, groups.names[index], x)
                after = said(rows)
                shares[:, index] += (after - before) / (2 * _ORDERS)
                before = after
    return shares, start


def _some(x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values[:500] for name, values in x.items()}


def _class_along(model: Explained, x: Mapping[str, Tensor]) -> int:
    """The class whose probability is shown along a column: the second of two, the most frequent of
    more; 0 of a value."""
    if model.task.num_outputs == 2:
        return 1
    return int(model.outputs(_some(x)).argmax(dim=1).mode().values)


def _along(
    model: Explained, groups: FeatureGroups, x: Mapping[str, Tensor], column: str, which: int
) -> list[tuple[str, float]]:
    """Value -> the mean of the output: this class's probability, or the value."""
    fitted = groups.fitted[column]
    block, span = groups.parts[column][0]
    some = _some(x)
    features: list[tuple[str, Tensor]] = []
    width = span.stop - span.start
    if isinstance(fitted, CategoryColumn):
        for at, name in enumerate(fitted.categories[:_GRID]):
            features.append((name, torch.eye(width)[at]))
    else:
        assert isinstance(fitted, NumberColumn)
        standardised = np.unique(
            np.quantile(x[block][:, span.start].numpy(), np.linspace(0.02, 0.98, _GRID))
        )
        for value in standardised:
            row = torch.zeros(width)
            row[0] = float(value)
            raw = value * fitted.scale + fitted.mean
            if fitted.periods:
                fitted.fill(row[None].numpy(), np.array([raw]), column)
            if abs(raw) < 1e-6 * fitted.scale:  # what float32 leaves of 0
                raw = 0.0
            features.append((f"{raw:.4g}", row))
    points = []
    for text, row in features:
        outputs = model.outputs(groups.moved(some, column, row))
        if isinstance(model.task, Classification):
            mean = float(outputs.softmax(dim=1)[:, which].mean())
        else:
            mean = float(outputs[:, 0].mean()) * model.task.scale + model.task.mean
        points.append((text, mean))
    return points
