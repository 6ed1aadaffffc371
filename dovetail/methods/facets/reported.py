"""Reported figures of a variant: what was measured, what bounds it, letters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Reported figures of one variant; what nobody has measured is left out.

    Attributes:
        shows: what receivers learn by default settings, and the verdict, as audits found.
        gain: what it gained, in points of AUC or accuracy, the median over settings.
        bounds: keys of a run file that bound what its messages reveal.
        letters: letters to each partner beside those of rounds, and letters a round, where it can
            be trained by letter.
        also: other variants that this holds for.
    """

    shows: tuple[str, ...] = ()
    gain: str = ""
    bounds: tuple[str, ...] = ()
    letters: tuple[int, int] | None = None
    also: tuple[str, ...] = ()
