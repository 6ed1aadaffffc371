"""Rows and cells read exactly: from equal or near numbers of rows that are known.

R2 says how near a guess comes on average. Who knows rows whose numbers equal another's knows that
row whole, in all likelihood, and R2 hardly moves. So rows and cells that are read exactly are
counted, each beside what the same guesses do without messages:

    frequent   what most known rows have
    nearest    the known row whose numbers are nearest; of equal ones by the attacker's own columns
    ranks      a line through ranks of each column, then the level whose known rows are nearest:
               logarithms of a kernel are such lines
    trees      a forest's guess, moved to the nearest level that a known row has

The guess is the one that reads most of the known rows when each is left out.

Letters: N rows, K known ones, D numbers of a view, F columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dovetail.audit.attacks.columns import DRAWS
from dovetail.audit.attacks.regressors import forest, ridge
from dovetail.audit.verdict import Measured
from dovetail.methods.facets.audited import KNOWN, Threat
from dovetail.methods.facets.views import scaled, whitened

#: A cell is read where the guess is as near as this, of the column's deviation.
NEAR = 1e-3

#: Wider tables are no rows of levels: pictures, words.
MAX_COLUMNS = 100

#: A column has levels where so many of its cells are those of a known row.
_LEVELS = 0.5

#: How little own columns count beside numbers that are equal or not.
_BESIDE = 1e-3

THREAT = Threat(
    "",
    "ours",
    "",
    "the same from its own columns, and what most known rows have",
    "",
)


def threat(what: str, known: int) -> Threat:
    """Assumptions of the exact attack; ``what`` is "rows" or "cells"."""
    return replace(
        THREAT,
        attack=f"exact {what}",
        given=f"{known} rows of the other side, drawn at random",
        metric=f"share of {what} read exactly",
    )


@dataclass(frozen=True, eq=False)
class _Guess:
    """Guesses of all rows, and of each known row as if it were not known."""

    guess_NF: np.ndarray
    unseen_KF: np.ndarray


def exact(
    columns: np.ndarray | None,
    views: Mapping[str, np.ndarray],
    target_NF: np.ndarray,
    *,
    known: int = KNOWN,
    trees: bool = False,
) -> dict[str, Measured]:
    """How many are read exactly: of "rows", and of "cells".

    Nothing where there are too few rows, or where no column has levels that known rows have, too.
    """
    num = len(target_NF)
    known = min(known, num // 2)
    varying = np.flatnonzero(target_NF.std(axis=0) > 1e-6)
    if known < 10 or not 0 < len(varying) <= MAX_COLUMNS:
        return {}
    target = scaled(target_NF[:, varying])
    some = np.random.default_rng(1).permutation(num)[:known]
    found_F = [np.isin(column, column[some]).mean() for column in target.T]
    if max(found_F) < _LEVELS:
        return {}
    beside = {} if columns is None else {"own columns": scaled(columns)}
    shown = {name: scaled(x) for name, x in views.items()}
    shown |= {f"{name}, components": whitened(x) for name, x in views.items() if x.shape[1] > 1}
    for own in beside.values():
        narrow = {f"{name}, then own": np.hstack([x, _BESIDE * own]) for name, x in shown.items()}
        shown |= narrow | {f"{name}, with own": np.hstack([x, own]) for name, x in shown.items()}
    found: dict[str, list[np.ndarray]] = {"rows": [], "cells": []}
    tried: dict[str, dict[str, list[float]]] = {"rows": {}, "cells": {}}
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        order = rng.permutation(num)
        rows, rest = order[:known], order[known:]
        guesses = {"most frequent": _frequent(target, rows)}
        guesses |= dict(_guesses(beside, target, rows, trees=trees))
        attacks = guesses | dict(_guesses(shown, target, rows, trees=trees))
        for what, scores in found.items():
            both = np.full((2, num), np.nan)
            for side, candidates in enumerate((attacks, guesses)):
                best = max(
                    candidates.values(),
                    key=lambda each: _read(each.unseen_KF, target[rows], what).mean(),
                )
                both[side, rest] = _read(best.guess_NF, target, what)[rest]
            scores.append(both)
            for name, each in attacks.items():
                share = float(_read(each.guess_NF, target, what)[rest].mean())
                tried[what].setdefault(name, []).append(share)
    measured = {}
    for what, scores in found.items():
        attack_RN, baseline_RN = np.stack(scores, axis=1)
        variants = {name: float(np.mean(each)) for name, each in tried[what].items()}
        measured[what] = Measured(attack_RN, baseline_RN, variants=variants)
    return measured


def _read(guess_NF: np.ndarray, target_NF: np.ndarray, what: str) -> np.ndarray:
    """(N,) whether a row is read whole, or the share of its cells that are."""
    hit_NF = np.abs(guess_NF - target_NF) < NEAR
    return np.asarray(hit_NF.all(axis=1) if what == "rows" else hit_NF.mean(axis=1), dtype=float)


def _guesses(
    views: Mapping[str, np.ndarray], target_NF: np.ndarray, rows: np.ndarray, *, trees: bool
) -> Iterator[tuple[str, _Guess]]:
    """By learner and view; trees, which take longest, of what was sent and own columns alone."""
    sent = [name for name in views if "components" not in name and "then own" not in name]
    whole = [name for name in sent if "with own" in name] or sent
    for name, x in views.items():
        yield f"{name}, nearest", _nearest(x, target_NF, rows)
        if "then own" not in name:
            yield f"{name}, ranks", _ranks(x, target_NF, rows)
        if trees and name in whole:
            fit = forest(x, target_NF, rows)
            assert fit.unseen_KF is not None
            levels = target_NF[rows]
            yield (
                f"{name}, trees",
                _Guess(_to_levels(fit.guess_NF, levels), _to_levels(fit.unseen_KF, levels)),
            )


def _frequent(target_NF: np.ndarray, rows: np.ndarray) -> _Guess:
    """The row that most known rows are, where one is, or else each column's."""
    wholes, counts = np.unique(target_NF[rows], axis=0, return_counts=True)
    guess_F = wholes[counts.argmax()]
    if counts.max() == 1:
        levels = [np.unique(column, return_counts=True) for column in target_NF[rows].T]
        guess_F = np.array([values[counts.argmax()] for values, counts in levels])
    return _Guess(
        np.broadcast_to(guess_F, target_NF.shape),
        np.broadcast_to(guess_F, (len(rows), len(guess_F))),
    )


def _nearest(x_ND: np.ndarray, target_NF: np.ndarray, rows: np.ndarray) -> _Guess:
    known = x_ND[rows]
    squared_NK = (x_ND**2).sum(axis=1)[:, None] - 2 * x_ND @ known.T + (known**2).sum(axis=1)
    others_KK = squared_NK[rows] + np.diag(np.full(len(rows), np.inf))
    return _Guess(
        target_NF[rows][squared_NK.argmin(axis=1)], target_NF[rows][others_KK.argmin(axis=1)]
    )


def _ranks(x_ND: np.ndarray, target_NF: np.ndarray, rows: np.ndarray) -> _Guess:
    """Lines through the ranks of known rows, then the level whose known rows are nearest."""
    from scipy.stats import rankdata  # slow to import: for who attacks alone

    known_KF = target_NF[rows]
    rank_NF = np.zeros(target_NF.shape)
    rank_NF[rows] = rankdata(known_KF, axis=0) / len(rows)
    fit = ridge(x_ND, rank_NF, rows)
    assert fit.unseen_KF is not None
    guess, unseen = np.empty(target_NF.shape), np.empty(known_KF.shape)
    for column in range(known_KF.shape[1]):
        levels, which_K = np.unique(known_KF[:, column], return_inverse=True)
        of_level = np.bincount(which_K, fit.guess_NF[rows, column]) / np.bincount(which_K)
        order = of_level.argsort()
        for into, given in ((guess, fit.guess_NF), (unseen, fit.unseen_KF)):
            into[:, column] = levels[order][_place(of_level[order], given[:, column])]
    return _Guess(guess, unseen)


def _to_levels(guess_NF: np.ndarray, known_KF: np.ndarray) -> np.ndarray:
    """Each cell moved to the nearest value that a known row has."""
    moved = np.empty(guess_NF.shape)
    for column, known_K in enumerate(known_KF.T):
        levels = np.unique(known_K)
        moved[:, column] = levels[_place(levels, guess_NF[:, column])]
    return moved


def _place(sorted_L: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    """(N,) index of the nearest of these numbers, which ascend."""
    right_N = np.searchsorted(sorted_L, values_N).clip(1, max(1, len(sorted_L) - 1))
    right_N = np.minimum(right_N, len(sorted_L) - 1)
    left_N = np.maximum(right_N - 1, 0)
    nearer = values_N - sorted_L[left_N] <= sorted_L[right_N] - values_N
    return np.asarray(np.where(nearer, left_N, right_N))
