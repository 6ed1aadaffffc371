"""How good a model's outputs are, and the mean and spread of that over seeds.

Letters: N rows, C classes, B draws of the rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dovetail import data as dd
from dovetail.errors import DataError
from dovetail.models import number_scores, several_scores, survival
from dovetail.models.orders import (
    areas,
    average_precision,
    log_losses,
    precision_recall,
    roc,
    roc_auc,
)

#: Times that test rows are drawn anew for an interval: so often of few rows, of many less often,
#: as their scores hardly vary.
DRAWS = 400
_FEWEST_DRAWS = 100
_DRAWN_ROWS = 2_000_000

#: Of the draws; the same for every model, so that intervals on the same rows are of the same draws.
_SEED = 20240911

#: Bins of equal width, of what a model says its probability is.
_BINS = 10

#: Points of a curve that are kept, and classes of which each has a row of the confusion matrix.
_POINTS = 60
_MOST_CLASSES = 40

#: Bytes of draws that are held at a time.
_HELD = 4_000_000

#: Score, in the order of tables; how a sentence and a table's head call it; whether more is better.
_TABLE: tuple[tuple[str, str, bool], ...] = (
    ("accuracy", "accuracy", True),
    ("auc", "AUC", True),
    ("average_precision", "average precision", True),
    ("macro_f1", "macro F1", True),
    ("balanced_accuracy", "balanced accuracy", True),
    ("auc_macro", "AUC, mean of the classes", True),
    ("average_precision_macro", "average precision, mean of the classes", True),
    ("auc_labels", "AUC, mean of the labels", True),
    ("average_precision_labels", "average precision, mean of the labels", True),
    ("lrap", "label ranking average precision", True),
    ("coverage_error", "coverage error", False),
    ("ranking_loss", "label ranking loss", False),
    ("r2_labels", "R², mean of the labels", True),
    ("rmse_labels", "RMSE in standard deviations, mean of the labels", False),
    ("log_loss", "log loss", False),
    ("brier", "Brier score", False),
    ("ece", "calibration error", False),
    ("rmse", "RMSE", False),
    ("mae", "MAE", False),
    ("r2", "R²", True),
    ("c_index", "C (Harrell)", True),
    ("c_uno", "C (Uno)", True),
    ("poisson_deviance", "Poisson deviance", False),
    ("gamma_deviance", "gamma deviance", False),
    ("pinball", "pinball loss", False),
    ("coverage", "coverage, lowest to highest quantile", True),
    ("brier_integrated", "integrated Brier score", False),
    ("calibration_at_times", "calibration error at times", False),
    ("validation", "validation accuracy", True),
)
#: Score, in the order of tables -> whether more is better.
SCORES: Mapping[str, bool] = {name: more for name, _, more in _TABLE}
#: Score -> how a sentence and a table's head call it.
TITLES: Mapping[str, str] = {name: title for name, title, _ in _TABLE}


def _page_of(task: dd.Task) -> Any:
    """The module with the scores of a task that has some of its own; None: classes and values."""
    if isinstance(task, dd.Survival):
        return survival
    if isinstance(task, (dd.MultiLabel, dd.MultiTarget)):
        return several_scores
    return number_scores if isinstance(task, (dd.Counts, dd.Quantiles)) else None


def drawn_headline(
    task: dd.Task, outputs: Tensor, labels: Tensor, weights_BN: np.ndarray
) -> np.ndarray:
    """(B,) the score that tables show first, of rows that count by weights."""
    drawn: np.ndarray = _page_of(task).measure(task, outputs, labels)(weights_BN)[headline(task)]
    return drawn


def score(task: dd.Task, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """The few scores of a model's outputs on labelled rows that are shown as training goes on.

    A row of a class that training rows do not have (``UNSEEN``) counts as wrong, and has no part in
    the scores of probabilities.

    Args:
        task: what was predicted.
        outputs: (N, C) logits or (N, 1) standardised values.
        labels: (N,) class indices or standardised values, none missing.

    Returns:
        accuracy (0..1) and log_loss (nats), and for two classes auc (0..1; absent where the rows
        have one class only); or rmse, mae (in the label's own unit) and r2 for a regression.

    Raises:
        DataError: no row.
    """
    if not len(labels):
        raise DataError("there is no test row to score on")
    if (page := _page_of(task)) is not None:
        few: dict[str, float] = page.score(task, outputs, labels)
        return few
    if isinstance(task, dd.Regression):
        predicted, wanted = _values(task, outputs, labels)
        return {
            "rmse": float(np.sqrt(np.square(wanted - predicted).mean())),
            "mae": float(np.abs(predicted - wanted).mean()),
            "r2": _r2(wanted, predicted),
        }
    probabilities = outputs.double().softmax(dim=1).numpy()
    truth = labels.numpy()
    scores = {"accuracy": float((probabilities.argmax(axis=1) == truth).mean())}
    seen = truth >= 0
    if seen.any():
        of_truth = probabilities[seen, truth[seen]]
        scores["log_loss"] = float(log_losses(of_truth).mean())
    if task.num_outputs == 2 and len(np.unique(truth[seen])) == 2:
        scores["auc"] = roc_auc(probabilities[seen, 1], truth[seen] == 1)
    return scores


def _r2(wanted: np.ndarray, predicted: np.ndarray) -> float:
    """1: as they are; 0: no better than their mean; nan of one row."""
    if len(wanted) < 2:
        return math.nan
    left = float(np.square(wanted - predicted).sum())
    whole = float(np.square(wanted - wanted.mean()).sum())
    if left and whole:
        return 1 - left / whole
    return 0.0 if left else 1.0


def all_scores(
    task: dd.Task, outputs: Tensor, labels: Tensor, *, threshold: float | None = None
) -> dict[str, float]:
    """Scores that ``score`` gives, and every other number that people decide by.

    Args:
        task, outputs, labels: as of ``score``.
        threshold: of two classes, the probability from which the second is predicted; None: a half.

    Returns:
        Beside those of ``score``, of classes: macro_f1, balanced_accuracy (means over the classes
        that the rows have), brier (of two classes the second's squared error, of more the sum over
        all), ece (expected calibration error, ``_BINS`` bins); of two, average_precision, of
        more auc_macro and average_precision_macro (each class against the rest); ``unseen_rows``
        where there are rows of classes that training rows do not have.
    """
    scores = score(task, outputs, labels)
    if (page := _page_of(task)) is not None:
        scores |= page.all_scores(task, outputs, labels)
        return scores
    if isinstance(task, dd.Regression):
        return scores
    probabilities = outputs.double().softmax(dim=1).numpy()
    truth = labels.numpy()
    predicted = _predicted(probabilities, threshold)
    classes = np.unique(truth)
    scores |= {
        "accuracy": float((predicted == truth).mean()),
        "macro_f1": float(np.mean([_f1(truth == c, predicted == c) for c in classes])),
        "balanced_accuracy": float(np.mean([(predicted[truth == c] == c).mean() for c in classes])),
    }
    seen = truth >= 0
    kept, known = probabilities[seen], truth[seen]
    if len(known):
        wrong_NC = np.square((known[:, None] == np.arange(task.num_outputs)) - kept)
        scores["brier"] = float(
            wrong_NC[:, 1].mean() if task.num_outputs == 2 else wrong_NC.sum(axis=1).mean()
        )
        scores["ece"] = calibration_error(kept, known)
    if task.num_outputs == 2 and "auc" in scores:
        scores["average_precision"] = average_precision(kept[:, 1], known == 1)
    elif task.num_outputs > 2:
        both = [c for c in np.unique(known) if (known != c).any()]
        if both:
            each = [(kept[:, c], known == c) for c in both]
            scores["auc_macro"] = float(np.mean([roc_auc(*one) for one in each]))
            precisions = [average_precision(*one) for one in each]
            scores["average_precision_macro"] = float(np.mean(precisions))
    if not seen.all():
        scores["unseen_rows"] = float((~seen).sum())
    return scores


def details(
    task: dd.Task,
    outputs: Tensor,
    labels: Tensor,
    *,
    threshold: float | None = None,
    draws: int = DRAWS,
) -> dict[str, Any]:
    """Details of a model on test rows that a report draws; JSON-ready.

    Returns:
        "rows"; "intervals": score -> the middle 95 % over draws of the rows with replacement;
        of values "mean" (scores of always saying the mean of these rows); of classes "classes",
        "most frequent" (the share of the most frequent class), "confusion" (a row a class as it is,
        a column a class as it is predicted; absent above 40 classes) and "reliability" (of each
        bin: how many rows, the mean that was predicted, the share that was so); of two classes
        "threshold", "roc" (false positives, true positives) and "precision_recall" (recall,
        precision).
    """
    report: dict[str, Any] = {
        "rows": len(labels),
        "intervals": intervals(task, outputs, labels, threshold, draws),
    }
    if (page := _page_of(task)) is not None:
        report |= page.details(task, outputs, labels)
        return report
    if not isinstance(task, dd.Classification):
        assert isinstance(task, dd.Regression)
        report["mean"] = {"rmse": float(_values(task, outputs, labels)[1].std())}
        return report
    probabilities = outputs.double().softmax(dim=1).numpy()
    truth = labels.numpy()
    predicted = _predicted(probabilities, threshold)
    counts = np.unique(truth, return_counts=True)[1]
    report |= {"classes": list(task.classes), "commonest": float(counts.max() / len(truth))}
    seen = truth >= 0
    if task.num_outputs <= _MOST_CLASSES:
        cells = truth[seen] * task.num_outputs + predicted[seen]
        report["confusion"] = (
            np.bincount(cells, minlength=task.num_outputs**2).reshape(task.num_outputs, -1).tolist()
        )
    if seen.any():
        report["reliability"] = reliability(probabilities[seen], truth[seen])
    if task.num_outputs == 2:
        report["threshold"] = 0.5 if threshold is None else threshold
        if len(np.unique(truth[seen])) == 2:
            report |= _curves(probabilities[seen, 1], truth[seen])
    return report


def _f1(is_N: np.ndarray, said_N: np.ndarray) -> float:
    """Of one class, which the rows have."""
    return float(2 * (is_N & said_N).sum() / (is_N.sum() + said_N.sum()))


def reliability(probabilities_NC: np.ndarray, truth_N: np.ndarray) -> list[dict[str, float]]:
    """Bins of what was predicted, as ``details`` has them: of two classes the second's probability,
    of
    more that of the predicted class."""
    if probabilities_NC.shape[1] == 2:
        predicted, is_so = probabilities_NC[:, 1], truth_N == 1
    else:
        predicted, is_so = probabilities_NC.max(axis=1), probabilities_NC.argmax(axis=1) == truth_N
    bins = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
    return [
        {
            "rows": int(inside.sum()),
            "said": float(predicted[inside].mean()),
            "was": float(is_so[inside].mean()),
        }
        for index in range(_BINS)
        if (inside := bins == index).any()
    ]


def calibration_error(probabilities_NC: np.ndarray, truth_N: np.ndarray) -> float:
    """The mean distance of said and was over all rows (Guo et al. 2017, Eq. 3)."""
    bins = reliability(probabilities_NC, truth_N)
    distance = sum(each["rows"] * abs(each["said"] - each["was"]) for each in bins)
    return float(distance / len(truth_N))


def _predicted(probabilities_NC: np.ndarray, threshold: float | None) -> np.ndarray:
    """(N,) the predicted class."""
    if threshold is not None and probabilities_NC.shape[1] == 2:
        return (probabilities_NC[:, 1] >= threshold).astype(np.int64)
    best: np.ndarray = probabilities_NC.argmax(axis=1)
    return best


def _values(task: dd.Regression, outputs: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(N,) predicted and true values in the label's own unit."""
    predicted = outputs[:, 0].double().numpy() * task.scale + task.mean
    return predicted, labels.double().numpy() * task.scale + task.mean


def _curves(second_N: np.ndarray, truth_N: np.ndarray) -> dict[str, list[list[float]]]:
    """Points of both curves, as many as a picture needs."""
    is_second_N = truth_N == 1
    false, true = roc(second_N, is_second_N)
    precision, recall = precision_recall(second_N, is_second_N)
    return {"roc": _thinned(false, true), "precision_recall": _thinned(recall, precision)}


def _thinned(x: np.ndarray, y: np.ndarray) -> list[list[float]]:
    """Points evenly far from each other along the curve; all where they are few."""
    # Along x alone, what rises or falls at one x would be lost.
    far = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    wanted = np.searchsorted(far, np.linspace(0, far[-1], _POINTS))
    indices = np.unique([0, *np.minimum(wanted, len(x) - 1), len(x) - 1])
    indices = np.arange(len(x)) if len(x) <= _POINTS else indices
    return [[round(float(x[index]), 6), round(float(y[index]), 6)] for index in indices]


# --- Intervals ------------------------------------------------------------------------------------

#: Fewer rows, or rows of a class, than this tell of no interval.
_KNOWN_ROWS, KNOWN_OF_CLASS = 10, 5
#: Scores that are means over rows, whatever their classes.
_ROW_BY_ROW = {"accuracy", "brier", "log_loss"}

#: (B, N) how often each row was drawn -> score -> (B,).
_Weighted = Callable[[np.ndarray], dict[str, np.ndarray]]


def intervals(
    task: dd.Task,
    outputs: Tensor,
    labels: Tensor,
    threshold: float | None = None,
    draws: int = DRAWS,
) -> dict[str, list[float]]:
    """Score -> its middle 95 % over draws of the rows with replacement; as of ``details``.

    None of fewer than ``_KNOWN_ROWS`` rows, or of a score that no draw changes: draws of two rows
    that are both right say that all are. What compares classes needs ``KNOWN_OF_CLASS`` of each.
    """
    if len(labels) < _KNOWN_ROWS:
        return {}
    rare = isinstance(task, dd.Classification) and (
        np.unique(labels.numpy(), return_counts=True)[1].min() < KNOWN_OF_CLASS
    )
    ends = {}
    for name, values_B in drawn_scores(task, outputs, labels, threshold, draws=draws).items():
        values = values_B[np.isfinite(values_B)]
        if rare and name not in _ROW_BY_ROW:
            continue
        if len(values) >= len(values_B) / 2 and values.min() < values.max():
            ends[name] = [float(end) for end in np.quantile(values, [0.025, 0.975])]
    return ends


def drawn_scores(
    task: dd.Task,
    outputs: Tensor,
    labels: Tensor,
    threshold: float | None = None,
    *,
    draws: int = DRAWS,
    seed: int = _SEED,
) -> dict[str, np.ndarray]:
    """Score -> (B,) of draws of the rows with replacement, fewer of very many rows.

    Args:
        task, outputs, labels, threshold: as of ``details``.
        draws: at most so many.
        seed: of the draws; of one seed they are of the same rows, whatever the model.
    """
    measure: _Weighted
    if (page := _page_of(task)) is not None:
        measure = page.measure(task, outputs, labels)
    elif isinstance(task, dd.Regression):
        measure = _of_values(*_values(task, outputs, labels))
    else:
        measure = _of_classes(outputs.double().softmax(dim=1).numpy(), labels.numpy(), threshold)
    num_rows = len(labels)
    draws = min(draws, max(_FEWEST_DRAWS, _DRAWN_ROWS // num_rows))
    rng = np.random.default_rng(seed)
    samples: dict[str, list[np.ndarray]] = {}
    step = max(1, _HELD // (8 * num_rows))
    for start in range(0, draws, step):
        weights_BN = np.stack(
            [
                np.bincount(rng.integers(0, num_rows, num_rows), minlength=num_rows)
                for _ in range(min(step, draws - start))
            ]
        ).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            for name, values in measure(weights_BN).items():
                samples.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in samples.items()}


def _of_values(predicted: np.ndarray, wanted: np.ndarray) -> _Weighted:
    squared, centred = (predicted - wanted) ** 2, wanted - wanted.mean()

    def measure(w: np.ndarray) -> dict[str, np.ndarray]:
        error = _mean(w, squared)
        variance = _mean(w, centred**2) - _mean(w, centred) ** 2
        return {
            "rmse": np.sqrt(error),
            "mae": _mean(w, np.abs(predicted - wanted)),
            "r2": 1 - error / variance,
        }

    return measure


def _of_classes(
    probabilities_NC: np.ndarray, truth: np.ndarray, threshold: float | None
) -> _Weighted:
    """Those of ``all_scores`` but the calibration error, and of more classes those of orders."""
    predicted = _predicted(probabilities_NC, threshold)
    is_right = predicted == truth
    classes = np.unique(truth)
    few = len(classes) <= _MOST_CLASSES
    of_class = (truth[:, None] == classes).astype(np.float64)
    called = (predicted[:, None] == classes).astype(np.float64)
    seen = truth >= 0
    kept, known = probabilities_NC[seen], truth[seen]
    of_truth = kept[np.arange(len(known)), known]
    losses = log_losses(of_truth)
    two = probabilities_NC.shape[1] == 2
    errors = (kept[:, 1] - known) ** 2 if two else (kept**2).sum(axis=1) + 1 - 2 * of_truth
    ranked = areas(kept[:, 1], known == 1) if two and len(np.unique(known)) == 2 else None

    def measure(w: np.ndarray) -> dict[str, np.ndarray]:
        measures = {"accuracy": _mean(w, is_right)}
        if few:
            right, true = w @ (of_class * called), w @ of_class
            measures["balanced_accuracy"] = _mean_of_there(right / true)
            measures["macro_f1"] = (2 * right / np.maximum(true + w @ called, 1)).mean(axis=1)
        if len(known):
            of_known = w if len(known) == len(truth) else w[:, seen]
            measures |= {"log_loss": _mean(of_known, losses), "brier": _mean(of_known, errors)}
            measures |= {} if ranked is None else ranked(of_known)
        return measures

    return measure


def _mean(weights_BN: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    mean: np.ndarray = weights_BN @ values_N / weights_BN.sum(axis=1)
    return mean


def _mean_of_there(values_BC: np.ndarray) -> np.ndarray:
    """(B,) over the classes that a draw has."""
    there = ~np.isnan(values_BC)
    mean: np.ndarray = np.where(there, values_BC, 0).sum(axis=1) / there.sum(axis=1)
    return mean


# --- Of tables ------------------------------------------------------------------------------------


def headline(task: dd.Task) -> str:
    """The score that tables show first."""
    if isinstance(task, dd.Classification):
        return "auc" if task.num_outputs == 2 else "accuracy"
    page = _page_of(task)
    return "rmse" if page is None else str(page.headline(task))


def headline_score(task: dd.Task, outputs: Tensor, labels: Tensor) -> float | None:
    """That score alone, as ``score`` gives it; None where the rows have one class only.

    Thousands of draws of few rows ask for it, and scikit-learn takes 10 ms to check each.
    """
    if isinstance(task, (dd.MultiLabel, dd.MultiTarget)):
        mean = float(drawn_headline(task, outputs, labels, np.ones((1, len(labels))))[0])
        return mean if math.isfinite(mean) else None
    if _page_of(task) is not None:
        return score(task, outputs, labels).get(headline(task))
    if not isinstance(task, dd.Classification):
        assert isinstance(task, dd.Regression)
        predicted, wanted = _values(task, outputs, labels)
        return float(np.sqrt(np.square(predicted - wanted).mean()))
    truth = labels.numpy()
    if task.num_outputs != 2:
        return float((outputs.double().argmax(dim=1).numpy() == truth).mean())
    seen = truth >= 0
    second = outputs.double().softmax(dim=1).numpy()[seen, 1]
    is_second = truth[seen] == 1
    if is_second.all() or not is_second.any():
        return None
    return float(areas(second, is_second)(np.ones((1, len(second))))["auc"][0])


def shown_first(names: Collection[str]) -> list[str]:
    """The one or two of these scores that matter most, and "validation" where it is there.

    >>> shown_first(["log_loss", "accuracy", "auc"]), shown_first(["mae", "r2", "rmse"])
    (['auc', 'accuracy'], ['rmse', 'r2'])
    """
    pairs = (
        ("auc", "accuracy"),
        ("rmse", "r2"),
        ("c_index", "c_uno"),
        ("poisson_deviance", "mae"),
        ("gamma_deviance", "mae"),
        ("pinball", "coverage"),
        ("auc_labels", "average_precision_labels"),
        ("r2_labels", "rmse_labels"),
        ("accuracy", "macro_f1"),
    )
    pair = next((pair for pair in pairs if pair[0] in names), ())
    return [name for name in (*pair, "validation") if name in names]


def on_rows(shown: Collection[str]) -> str:
    """Description of the rows of these scores; a coordinator over a network may know no test rows.

    >>> on_rows(["auc", "accuracy"]), on_rows(["validation"])
    ('on the test rows', 'as each party says')
    """
    return "as each party says" if {*shown} == {"validation"} else "on the test rows"


def mean_and_spread(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Score name -> its mean and sample standard deviation ("std", 0 for one seed) over seeds."""
    return {
        name: {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
        for name in scores[0]
        if len(values := [each[name] for each in scores if name in each]) == len(scores)
    }
