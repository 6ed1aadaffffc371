"""How ids are compared, and how much an alignment may find out."""

from typing import Literal

#: As they are written; without regard to case; or decimal digits without the zeros before them.
IdAs = Literal["text", "lowercase", "digits"]

#: The most alignments that a party takes part in with a driver in a day.
MAX_ALIGNMENTS = 20

#: So many claims are checked, or all: of 10,000 shared ids they cost less than a twentieth of the
#: alignment (``python -m benchmarks.psi``).
CHECKED = 400
