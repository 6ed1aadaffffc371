"""Cells that a spreadsheet would run: text that starts as a formula does.

Names of classes may come from another party, and an id from anybody. A program needs them as they
are, so they are written so, and reported; who opens the file in a spreadsheet asks for it escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

#: How spreadsheets know a formula (OWASP, CSV injection); -3 and +49 151 are numbers.
_FORMULA = re.compile(r"(?![+-][\d\s.,()/-]*\Z)[=+\-@\t\r＝＋－＠]")


def is_formula(text: object) -> bool:
    """Whether a spreadsheet would run a cell with this text.

    >>> [is_formula(each) for each in ("=1+1", "@SUM(A1)", "-3.5", "+49 151", "yes", -3.5)]
    [True, True, False, False, False, False]
    """
    return isinstance(text, str) and _FORMULA.match(text) is not None


def formulas_in(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Headers and cells that are formulas, each once."""
    texts = [each for values in columns.values() if values.dtype.kind in "OU" for each in values]
    return [*dict.fromkeys(str(each) for each in [*columns, *texts] if is_formula(each))]


def without_formulas(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns with an apostrophe before each formula: spreadsheets show it as text.

    >>> without_formulas({"=a": np.array(["=1+1", "b"], dtype=object)})
    {"'=a": array(["'=1+1", 'b'], dtype=object)}
    """
    escaped = {}
    for name, values in columns.items():
        if values.dtype.kind in "OU":
            cells = [f"'{each}" if is_formula(each) else each for each in values.tolist()]
            values = np.array([*cells, None], dtype=object)[:-1]
        escaped[f"'{name}" if is_formula(name) else name] = values
    return escaped
