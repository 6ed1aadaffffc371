"""Values of players, of any game: leave-one-out and Shapley's value.

    leave-one-out_p = v(all) - v(all without p)
    Shapley_p = sum over S without p of |S|! (P - |S| - 1)! / P! (v(S + p) - v(S))

Shapley's values add up to v(all) - v(none), and equal players are worth the same. The mean over
random orders in which players join can stand for the sum; it adds up alike (Castro, Gomez, Tejada:
"Polynomial calculation of the Shapley value based on sampling", Computers & Operations Research,
2009).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from dovetail.models import generator

#: What can be told of a partner, the cheapest first; each needs what those before it need.
Measure = Literal["mi", "loo", "shapley"]
MEASURES: tuple[Measure, ...] = ("mi", "loo", "shapley")

#: The same of the joint model, while the partner is there.
JOINT_MEASURES = ("joint_loo", "joint_shapley")

Coalition = frozenset[str]


def leave_one_out(players: Sequence[str], worth: Callable[[Coalition], float]) -> dict[str, float]:
    """Player -> what all are worth more than all others."""
    every = frozenset(players)
    return {player: worth(every) - worth(every - {player}) for player in players}


def shapley(players: Sequence[str], worth: Callable[[Coalition], float]) -> dict[str, float]:
    """Player -> its Shapley value, exactly; asks for all 2^P coalitions.

    >>> worth = {"": 0.0, "a": 1.0, "b": 2.0, "ab": 5.0}
    >>> shapley("ab", lambda coalition: worth["".join(sorted(coalition))])
    {'a': 2.0, 'b': 3.0}
    """
    values = {}
    for player in players:
        others = [other for other in players if other != player]
        terms = []
        for size in range(len(players)):
            # |S|! (P - |S| - 1)! / P! is one over P times the number of such S.
            weight = 1 / (len(players) * math.comb(len(others), size))
            for chosen in itertools.combinations(others, size):
                coalition = frozenset(chosen)
                terms.append(weight * (worth(coalition | {player}) - worth(coalition)))
        values[player] = math.fsum(terms)
    return values


def orders(players: Sequence[str], count: int, *, seed: int) -> list[tuple[str, ...]]:
    """Random orders in which players join."""
    rng = generator(seed, "value", "orders")
    drawn = (torch.randperm(len(players), generator=rng).tolist() for _ in range(count))
    return [tuple(players[index] for index in order) for order in drawn]


def shapley_sampled(
    joined: Sequence[Sequence[str]], worth: Callable[[Coalition], float]
) -> dict[str, tuple[float, float]]:
    """Player -> its mean gain over these orders, and the standard error of that (0 for one)."""
    gains: dict[str, list[float]] = {player: [] for player in joined[0]}
    for order in joined:
        for index, player in enumerate(order):
            before = frozenset(order[:index])
            gains[player].append(worth(before | {player}) - worth(before))
    return {
        player: (
            math.fsum(each) / len(each),
            statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0,
        )
        for player, each in gains.items()
    }


def coalitions(
    players: Sequence[str], by: Measure, joined: Sequence[Sequence[str]] | None
) -> list[Coalition]:
    """Those to train, the most telling first: all, none, all but one, then the others.

    Args:
        players: the partners.
        by: the most expensive of the measures.
        joined: orders for sampled Shapley values; None: exact.
    """
    if by == "mi":
        return []
    every = frozenset(players)
    wanted = [every, frozenset(), *(every - {player} for player in players)]
    if by == "shapley" and joined is None:
        wanted += [
            frozenset(chosen)
            for size in range(len(players) + 1)
            for chosen in itertools.combinations(players, size)
        ]
    elif by == "shapley" and joined is not None:
        wanted += [frozenset(order[:index]) for order in joined for index in range(len(order))]
    return list(dict.fromkeys(wanted))
