"""Secrets in parts: any ``threshold`` of them give the secret back, and fewer reveal nothing of it.

Shamir: "How to share a secret", Communications of the ACM 22(11), 1979.

    f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}   mod p,  a_i drawn from the system
    part of party number i = f(i)                   i = 1 ... n
    secret = f(0) = sum_i f(i) prod_{j != i} j / (j - i)    over any t parts  (Lagrange)

    p = 2^521 - 1, the smallest Mersenne prime above 2^256: keys and seeds have 256 bits

A part that its holder changed gives another secret. ``joined`` gets how to know the right one,
and finds it as long as ``threshold`` parts are right.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from itertools import combinations, islice

PRIME = 2**521 - 1

#: Bytes of a part.
PART_BYTES = 66

#: Choices of ``threshold`` parts that are tried where some are wrong.
_MOST_TRIED = 5000


def split(secret: int, *, num: int, threshold: int) -> list[int]:
    """``num`` parts, of which ``threshold`` give the secret back; the first is f(1).

    Raises:
        ValueError: a secret outside the field, or a threshold that no number of parts meets.

    >>> parts = split(42, num=5, threshold=3)
    >>> join({2: parts[1], 4: parts[3], 5: parts[4]})
    42
    """
    if not 0 <= secret < PRIME:
        raise ValueError("a secret lies in the field, from 0 to 2^521 - 2")
    if not 1 <= threshold <= num:
        raise ValueError(f"a threshold lies between 1 and the {num} parts, got {threshold}")
    terms = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(terms, x) for x in range(1, num + 1)]


def join(parts: Mapping[int, int]) -> int:
    """f(0) of the polynomial through these parts, number -> part.

    Raises:
        ValueError: no parts, or a number that is none of a party's.
    """
    if not parts or any(not 0 < x < PRIME for x in parts):
        raise ValueError("parts are numbered from 1, and there is at least one")
    total = 0
    for x, part in parts.items():
        above, below = 1, 1
        for other in parts:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        total = (total + part * above * pow(below, -1, PRIME)) % PRIME
    return total


def joined(parts: Mapping[int, int], threshold: int, is_right: Callable[[int], bool]) -> int | None:
    """The secret that ``is_right`` knows, of any ``threshold`` of these parts; None of no choice.

    With all parts right the first choice is it. Some wrong ones cost more choices, and nothing
    else while ``threshold`` right ones are there.
    """
    for chosen in islice(combinations(sorted(parts), threshold), _MOST_TRIED):
        secret = join({x: parts[x] for x in chosen})
        if is_right(secret):
            return secret
    return None


def _value(terms: list[int], x: int) -> int:
    """Horner's rule."""
    value = 0
    for term in reversed(terms):
        value = (value * x + term) % PRIME
    return value
