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

_FILES = {
    "curve": ("Workers",),
    "ids": ("normalise",),
    "matchkeys": ("Keys", "MatchKey", "Reading", "key_values", "match_key", "rate"),
    "passes": ("KeyResponder", "align_by_keys", "count_by_keys"),
    "psi": ("ELSEWHERE", "Aligned", "Overlap", "align", "count_overlap"),
    "responder": ("Responder", "with_rows_of"),
}

if not TYPE_CHECKING:  # a type checker sees the imports above and reports any other name

    def __getattr__(name):
        for file, names in _FILES.items():
            if name in names:
                value = getattr(import_module(f"{__name__}.{file}"), name)
                globals()[name] = value  # the next use finds it without coming here
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _FILES.values() for name in names)
