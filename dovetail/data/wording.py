"""Words for numbers and names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any


def name_list(names: Sequence[str], at_most: int = 3) -> str:
    """Names as a sentence has them; many are cut short.

    >>> name_list(["bank"]), name_list(["bank", "shop"]), name_list(["a", "b", "c", "d", "e"])
    ('bank', 'bank and shop', 'a, b, c and 2 more')
    """
    if len(names) > at_most + 1:
        return f"{', '.join(names[:at_most])} and {len(names) - at_most} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun.

    >>> count_text(1, "sample"), count_text(2500, "sample"), count_text(0, "party", "parties")
    ('1 sample', '2,500 samples', '0 parties')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share_text(count: int, of: int) -> str:
    """A share in per cent that is 0 or 100 only where it is exactly so.

    >>> share_text(1, 4), share_text(1, 10**6), share_text(999_999, 10**6), share_text(0, 4)
    ('25.0 %', '< 0.1 %', '> 99.9 %', '0 %')
    """
    if count in (0, of):
        return "100 %" if count else "0 %"
    percent = 100 * count / of
    if percent < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if percent > 99.9 else f"{percent:.1f} %"


#: Fewer labelled rows of a class say little of it: what is chosen on those held out is a coin.
FEW_OF_CLASS = 20


def class_shares(counts: Mapping[str, int], at_most: int = 6) -> str:
    """Shares of classes, the most frequent first, and a word on rare ones; "" of fewer than two.

    >>> class_shares({"yes": 12, "no": 388})
    'no 97.0 %, yes 3.0 % (12 rows: too few to learn or score it well; label more of it)'
    """
    if len(counts) < 2:
        return ""
    total = sum(counts.values())
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    named = ranked if len(ranked) <= at_most else [*ranked[: at_most - 1], ranked[-1]]
    text = ", ".join(f"{name} {share_text(counts[name], total)}" for name in named)
    rare = counts[ranked[-1]]
    if rare >= FEW_OF_CLASS:
        return text
    few = f"{count_text(rare, 'row')}: too few to learn or score it well; label more of it"
    return f"{text} ({few})"


def bytes_text(num_bytes: int) -> str:
    """Bytes in a unit that reads well.

    >>> bytes_text(512), bytes_text(8_192), bytes_text(1_300_000)
    ('512 B', '8.2 kB', '1.3 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes} B"
    if num_bytes < 999_950:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes < 999_950_000 else f"{num_bytes / 1e9:.1f} GB"


def toml_text(value: Any) -> str:
    """A text, or a list of texts, as TOML has it."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


def toml_key(name: str) -> str:
    """A key as TOML has it.

    >>> toml_key("net-income"), toml_key("Süd")
    ('net-income', '"Süd"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)
