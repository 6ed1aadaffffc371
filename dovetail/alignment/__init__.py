"""Finds which rows are the same sample, and shows no party the others' ids.

The names below are imported when first used: worker processes need the curve and not torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.alignment.curve import Workers
    from dovetail.alignment.ids import normalise
    from dovetail.alignment.matchkeys import (
        Keys,
        MatchKey,
        Reading,
        key_values,
        match_key,
        rate,
    )
    from dovetail.alignment.passes import KeyResponder, align_by_keys, count_by_keys
    from dovetail.alignment.psi import (
        ELSEWHERE,
        Aligned,
        Overlap,
        align,
        count_overlap,
    )
    from dovetail.alignment.responder import Responder, with_rows_of

__all__ = [
    "ELSEWHERE",
    "Aligned",
    "KeyResponder",
    "Keys",
    "MatchKey",
    "Overlap",
    "Reading",
    "Responder",
    "Workers",
    "align",
    "align_by_keys",
    "count_by_keys",
    "count_overlap",
    "key_values",
    "match_key",
    "normalise",
    "rate",
    "with_rows_of",
]

#: Name -> its file; the others are in psi.
_FILES = {
    "Workers": "curve",
    "normalise": "ids",
    **dict.fromkeys(
        ("Keys", "MatchKey", "Reading", "key_values", "match_key", "rate"),
        "matchkeys",
    ),
    "KeyResponder": "passes",
    "align_by_keys": "passes",
    "count_by_keys": "passes",
    "Responder": "responder",
    "with_rows_of": "responder",
}

if not TYPE_CHECKING:  # a type checker sees the imports above and reports any other name

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_FILES.get(name, 'psi')}"), name)
        globals()[name] = value  # the next use finds it without coming here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
