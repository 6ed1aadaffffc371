"""What was measured of every method's variants, and what can be set against what they tell."""

from __future__ import annotations

from dovetail import methods
from dovetail.methods.facets.told import Told

NOTHING = Told()


def told() -> dict[str, Told]:
    """Variant -> what is told of it, method by method."""
    return {
        variant: each
        for method in methods.every().values()
        for variant, each in method.told.items()
    }


def told_of(variant: str) -> Told:
    """What is told of a variant, or else of its method."""
    known = told()
    return known.get(variant) or known.get(methods.method_of(variant).name, NOTHING)
