"""Ids as the bytes that are compared: what counts as the same id is decided here.

    id                            bytes
    integer 42 (any width)        b"42"      its digits
    string " Ａnna "              b"Anna"    NFKC (full-width A becomes A), then trimmed
    string "042"                  b"042"     not the integer 42
    None, NaN, "", "  "           refused: empty
    anything else, bool included  refused: neither integer nor string

NFKC is Unicode's compatibility composition: "é" is one id however it was typed, and so are the
ligature "ﬁ" and "fi". Trimmed is without white space at both ends, of any script. As "lowercase" it
is ``str.lower``, too, which does not make "ß" of "SS"; as "digits" the zeros before other digits
are taken off, and what is not 0 to 9 alone is refused. Normalising twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any
from unicodedata import normalize

import numpy as np

from dovetail.errors import AlignmentError
from dovetail.settings.alignment import IdAs

_ALSO = {"text": "", "lowercase": ", lower case", "digits": ", without zeros before digits"}


@dataclass(frozen=True, eq=False)
class NormalisedIds:
    """Ids as bytes.

    Attributes:
        values: row -> bytes; no two are the same, none is empty.
        id_as: what made strings the same.
    """

    values: list[bytes]
    id_as: IdAs


def normalise(
    ids: Sequence[Any] | np.ndarray, *, party: str, id_as: IdAs = "text"
) -> NormalisedIds:
    """Ids as the bytes that are compared, in row order.

    About 0.3 us an id: ``unicodedata`` recognises text that is normal already, and one list
    comprehension is faster than numpy's string functions.

    Args:
        ids: (N,) integers or strings.
        party: whose they are, for errors.
        id_as: compare them as text, as text without regard to case, or as digits.

    Raises:
        AlignmentError: ids that are empty, repeated after normalisation, or of another type.

    >>> normalise([" Ａnna ", 42, "042"], party="shop").values
    [b'Anna', b'42', b'042']
    """
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise AlignmentError(f"party {party!r}: ids must be one column, got shape {ids.shape}")
    items: list[Any] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    whole = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"
    if whole and not np.ma.isMaskedArray(ids):  # masked items are None
        values = [b"%d" % item for item in items]
    else:
        are_text = [isinstance(item, str) for item in items]
        every = all(are_text)
        values = _strings(items, id_as) if every else _mixed(items, are_text, id_as, party)
    if not all(values):
        _refuse(party, [not value for value in values], "empty", "fill them or drop those rows")
    if id_as == "digits":
        odd = [not (value.isdigit() and value.isascii()) for value in values]
        _refuse(party, odd, 'not digits alone, which id_as = "digits" asks for', "correct them")
        values = [value.lstrip(b"0") or b"0" for value in values]
    refuse_repeated(party, _num_repeated(values), len(values), id_as)
    return NormalisedIds(values, id_as)


def refuse_repeated(party: str, num_repeated: int, num_ids: int, id_as: IdAs) -> None:
    """Refuse ids of which some are not the first of their kind.

    Raises:
        AlignmentError: there are any.
    """
    if num_repeated:
        raise AlignmentError(
            f"party {party!r}: {num_repeated} of {num_ids} ids are repeated after "
            f"normalisation (NFKC, trimmed{_ALSO[id_as]}); "
            "each row must be one sample"
        )


def looks(ids: np.ndarray) -> str:
    """Description of ids for their owner: kind, length, alphabet, zeros, beginning.

    >>> looks(np.array(["C0012", "C0107"], dtype=object))
    "text of 5 characters, capitals and digits, all begin with 'C0'"
    >>> looks(np.array([12, 107]))
    'integers of 2 to 3 digits'
    """
    texts = [str(each).strip() for each in ids.tolist()]
    if not texts:
        return "none"
    sizes = sorted({len(each) for each in texts})
    length = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    if ids.dtype.kind in "iu":
        return f"integers of {length} digits"
    everything = set("".join(texts))
    alphabet = [
        name
        for name, belongs in (
            ("capitals", str.isupper),
            ("small letters", str.islower),
            ("digits", str.isdigit),
        )
        if any(map(belongs, everything))
    ]
    others = "".join(sorted(each for each in everything if not each.isalnum()))
    alphabet += [f"{others[:10]!r}"] if others else []
    text = f"text of {length} characters, {' and '.join(alphabet)}"
    zeros = sum(each.startswith("0") for each in texts)
    first, last = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    begin = first[:same]
    if begin:
        text += f", all begin with {begin!r}"
    elif zeros:
        text += f", {zeros} of {len(texts)} begin with 0"
    return text


def _num_repeated(values: list[bytes]) -> int:
    """How many are not the first of their kind; of most parties, none.

    Python's hashes are compared first, of which a million take 8 MB; a set of them takes 100.
    """
    hashes = np.fromiter(map(hash, values), dtype=np.int64, count=len(values))
    hashes.sort()
    return len(values) - len(set(values)) if (hashes[1:] == hashes[:-1]).any() else 0


def _strings(items: Sequence[str], id_as: IdAs) -> list[bytes]:
    texts = (normalize("NFKC", item) for item in items)
    if id_as == "lowercase":
        texts = (normalize("NFKC", text.lower()) for text in texts)  # lower case can decompose
    # surrogatepass: half a surrogate pair, from a file read wrongly, stays distinct.
    return [text.strip().encode("utf-8", "surrogatepass") for text in texts]


def _mixed(items: list[Any], are_text: list[bool], id_as: IdAs, party: str) -> list[bytes]:
    """Items of several types, as a table column with gaps has them."""
    are_whole = [
        isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items
    ]
    are_empty = [
        item is None or (isinstance(item, float | np.floating) and item != item) for item in items
    ]
    are_other = [not any(known) for known in zip(are_text, are_whole, are_empty, strict=True)]
    types = sorted({type(item).__name__ for item in compress(items, are_other)})
    _refuse(
        party,
        are_other,
        f"neither integers nor strings but {', '.join(types)}",
        "name a column of integers or strings as id",
    )
    values = [b""] * len(items)
    strings = iter(_strings(list(compress(items, are_text)), id_as))
    for row, item in enumerate(items):
        if are_text[row]:
            values[row] = next(strings)
        elif are_whole[row]:
            values[row] = b"%d" % int(item)
    return values


def _refuse(party: str, are_wrong: list[bool], what: str, advice: str) -> None:
    if any(are_wrong):
        raise AlignmentError(
            f"party {party!r}: {sum(are_wrong)} of {len(are_wrong)} ids are {what}, "
            f"the first in row {are_wrong.index(True)}; {advice}"
        )
