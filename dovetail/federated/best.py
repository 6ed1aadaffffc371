"""Which round was the best so far, and whether rounds still improve."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class BestRound:
    """The round of the largest figure.

    Attributes:
        patience: stop after so many rounds without a better; None: never.
        number: the best round; 0: none yet.
        figure: its figure.
        improved: the last round in which something got better.
        figures: party -> the best figure of its own.
    """

    patience: int | None = None
    number: int = 0
    figure: float = -math.inf
    improved: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def note(self, number: int, figure: float) -> bool:
        """Whether this round is the best so far; if so it is remembered."""
        if not figure > self.figure:
            return False
        self.number = self.improved = number
        self.figure = figure
        return True

    def ended(self, number: int) -> bool:
        """Whether to stop before this round."""
        return self.patience is not None and number - self.improved > self.patience
