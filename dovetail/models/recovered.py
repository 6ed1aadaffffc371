"""How much of a partner's help stays when it leaves, and what is plainly wrong with a model.

    share of the gain kept = (solo - local) / (joint - local)

of the score that tables show first: 1 where the model that needs nobody is as good as the one with
the partner, 0 where it is no better than what its owner could have trained alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dovetail.data import Classification, Task
from dovetail.models.metrics import SCORES, drawn_scores, headline, headline_score

#: Scores shown first of counts, amounts, quantiles and several labels.
_OTHER_SCORES = ("poisson_deviance", "gamma_deviance", "pinball", "auc_labels", "r2_labels")

#: Times that test rows are drawn anew.
_DRAWS = 400


def recovered_share(
    task: Task, labels: Tensor, *, solo: Tensor, alone: Tensor, joint: Tensor, seed: int
) -> dict[str, Any]:
    """The share on these test rows, and its 95 % interval over draws of the rows.

    Args:
        task: what was predicted.
        labels: (N,) of the test rows.
        solo, alone, joint: (N, C) outputs of the three models on the same rows.
        seed: of the draws.

    Returns:
        "score", "solo", "alone", "joint", "rows", "gain" (solo over alone) with "gain_interval",
        "help" (joint over alone) with "help_interval", and "share" with "interval"; these two are
        None where the interval of the help has 0 in it, as a share of nothing says nothing.
    """
    name = headline(task)
    models = solo, alone, joint
    if isinstance(task, Classification) and task.num_outputs == 2:
        seen = labels >= 0  # rows of other classes have no part in an order of two
        labels, models = labels[seen], (solo[seen], alone[seen], joint[seen])
    scores = [headline_score(task, outputs, labels) for outputs in models]
    values = [math.nan if each is None else each for each in scores]
    draws = []
    if np.isfinite(values).all():
        drawn = [drawn_scores(task, o, labels, draws=_DRAWS, seed=seed)[name] for o in models]
        draws_BM = np.stack(drawn, axis=1)
        draws = draws_BM[np.isfinite(draws_BM).all(axis=1)].tolist()
    return {
        "score": name,
        **dict(zip(("solo", "alone", "joint"), values, strict=True)),
        "rows": len(labels),
        **_shares(name, values, draws),
    }


def over_seeds(each: Sequence[Mapping[str, Any]], *, seed: int = 0) -> dict[str, Any]:
    """The share of several seeds' mean scores, and its 95 % interval over draws of the seeds."""
    rng = np.random.default_rng(seed)
    name = str(each[0]["score"])
    values = np.array([[one[what] for what in ("solo", "alone", "joint")] for one in each])
    draws = [values[rng.integers(0, len(each), len(each))].mean(axis=0) for _ in range(_DRAWS)]
    mean = values.mean(axis=0)
    return {
        "score": name,
        **dict(zip(("solo", "alone", "joint"), mean.tolist(), strict=True)),
        "rows": statistics.fmean(one["rows"] for one in each),
        "seeds": len(each),
        **_shares(name, mean.tolist(), [draw.tolist() for draw in draws]),
    }


def recovered_text(gain: Mapping[str, Any]) -> str:
    """Sentence on the share of the gain kept; another if the joint model is too good to be true.

    >>> told = {"score": "auc", "solo": 0.75, "alone": 0.7, "joint": 0.8, "share": 0.5}
    >>> recovered_text({**told, "interval": [0.25, 0.75]})
    'Share of the gain kept: 50 % (95 % interval 25 to 75 %): auc of the best local model 0.700, \
solo 0.750, joint 0.800.'
    >>> recovered_text({**told, "share": None, "rows": 161.0})
    "Share of the gain kept: cannot be estimated, because the partners' gain is within noise: auc \
of the best local model 0.700, solo 0.750, joint 0.800, on the 161 test rows that the partners \
have."
    >>> recovered_text({**told, "joint": 1.0, "interval": None, "rows": 161.0})[-145:]
    ' Few joint models are perfect: ask the partners whether a column of theirs is known only once \
the label is, and leave it out of columns if it is.'
    """
    return _share_text(gain) + (_PERFECT if _too_good(gain) else "")


def _too_good(gain: Mapping[str, Any]) -> bool:
    """Whether no row of many is predicted wrongly with partners, and some are without."""
    rows, bounded = gain.get("rows", 0), gain["score"] in ("auc", "accuracy", "c_index", "r2")
    return bool(bounded and rows >= 100 and gain["joint"] > 0.9995 > gain["alone"])


#: Of a partner's column that gives the label away, such as the cause of a death.
_PERFECT = (
    " Few joint models are perfect: ask the partners whether a column of theirs is known only once "
    "the label is, and leave it out of columns if it is."
)


def _share_text(gain: Mapping[str, Any]) -> str:
    values = (
        f"{gain['score']} of the best local model {gain['alone']:.3f}, solo {gain['solo']:.3f}, "
        f"joint {gain['joint']:.3f}"
    )
    if "rows" in gain:
        values += f", on the {gain['rows']:,.0f} test rows that the partners have"
    if gain["share"] is None:
        return (
            "Share of the gain kept: cannot be estimated, because the partners' gain is within "
            f"noise: {values}."
        )
    interval = gain["interval"]
    spread = (
        f" (95 % interval {100 * interval[0]:z.0f} to {100 * interval[1]:z.0f} %)"
        if interval
        else ""
    )
    return f"Share of the gain kept: {100 * gain['share']:z.0f} %{spread}: {values}."


def _shares(name: str, values: Sequence[float], draws: Sequence[Sequence[float]]) -> dict[str, Any]:
    sign = 1 if SCORES[name] else -1
    solo, alone, joint = values
    gain: dict[str, Any] = {"gain": sign * (solo - alone), "help": sign * (joint - alone)}
    gains = [sign * (draw[0] - draw[1]) for draw in draws]
    helps = [sign * (draw[2] - draw[1]) for draw in draws]
    gain["gain_interval"], gain["help_interval"] = _interval(gains), _interval(helps)
    gain["share"] = gain["interval"] = None
    if gain["help"] > 0 and gain["help_interval"] and gain["help_interval"][0] > 0:
        gain["share"] = gain["gain"] / gain["help"]
        shares = [gain / help_ for gain, help_ in zip(gains, helps, strict=True) if help_ > 0]
        gain["interval"] = _interval(shares)
    return gain


def _interval(values: Sequence[float]) -> list[float] | None:
    """The middle 95 %; None for too few."""
    if len(values) < 20:
        return None
    low, high = np.quantile(values, [0.025, 0.975])
    return [float(low), float(high)]


def warnings_of(
    name: str,
    scores: Mapping[str, float],
    *,
    alone: Mapping[str, float] | None,
    majority: Mapping[str, float] | None,
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> list[str]:
    """Plain sentences on a model that nobody should use.

    Args:
        name: what the model is called.
        scores: its own.
        alone: those of the best model that its owner can train alone.
        majority: those of always saying the most frequent class, or the mean.
        intervals: of its own scores over draws of the test rows, as far as they are known.
    """
    sentences = []
    for what, called in (("c_index", "a C"), ("auc", "an AUC")):
        if scores.get(what, 1.0) < 0.5:
            sentences.append(
                f"{name} has {called} of {scores[what]:.3f}, worse than a coin: do not use it"
            )
    for what, called in (("accuracy", "always saying the commonest class"), ("rmse", "the mean")):
        if majority is None or what not in scores or what not in majority:
            continue
        score, other = scores[what], majority[what]
        if (score >= other) if not SCORES[what] else (score <= other):
            sentences.append(
                f"{name} has {what} {score:.3f}, no better than {called} ({other:.3f}): look at "
                "another score before you use it"
            )
    for what in ("auc", "accuracy", "rmse", "c_index", *_OTHER_SCORES):
        if alone is None or what not in scores or what not in alone:
            continue
        score, other = scores[what], alone[what]
        worse = (score < other) if SCORES[what] else (score > other)
        if worse and f"{score:.3f}" != f"{other:.3f}":
            low, high = (intervals or {}).get(what, (score, score))
            within = f", by less than these test rows can tell ({low:.3f} to {high:.3f})"
            sentences.append(
                f"{name} has {what} {score:.3f}, worse than the best local model ({other:.3f})"
                + (within if low <= other <= high else "")
            )
        break  # the first of them is the one that tables show first
    return sentences
