"""Measured figures of every method's variants, and the defences against what they reveal."""

from __future__ import annotations

from dovetail import methods
from dovetail.methods.facets.declared import Reported

NOTHING = Reported()


def reported() -> dict[str, Reported]:
    """Variant -> its reported figures, method by method."""
    return {
        variant: each
        for method in methods.every().values()
        for variant, each in method.reported.items()
    }


def reported_of(variant: str) -> Reported:
    """Reported figures of a variant, or else of its method."""
    known = reported()
    alike = {other: each for each in known.values() for other in each.also}
    known = {**known, **alike}
    return known.get(variant) or known.get(methods.method_of(variant).name, NOTHING)
