"""How many letters a method takes where partners look for them in a mailbox (docs/mailbox.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import methods
from dovetail.data.wording import count_text

#: Of up to 16,384 ids, and what is planned with them: once, and then kept.
ALIGNMENT = 9

#: More letters than this are for a connection.
MANY = 2000


def by_letter(variant: str, settings: Any = None) -> str:
    """A sentence about a variant by letter; "" of one that a run does not name.

    Args:
        variant: what is trained, "chfl".
        settings: its section of a run file, with the number of rounds; None: as by default.
    """
    of_variant = methods.method_of(variant).reported.get(variant)
    if of_variant is None or of_variant.letters is None:
        return "By letter (engine.kind = mailbox): no; it asks at every step, so use a connection."
    once, a_round = of_variant.letters
    if not a_round:
        return (
            f"By letter (engine.kind = mailbox): {ALIGNMENT} to align and {once} to each partner, "
            f"so {ALIGNMENT + once} minutes at one a minute, or as many nights at one a night."
        )
    section: Any = settings or methods.method_of(variant).Settings()
    rounds = section.rounds
    total = once + a_round * rounds
    reported = f"{total:,} minutes" if total < 120 else f"{total / 60:.1f} hours"
    many = "; so many are better on a connection" if total > MANY else ""
    return (
        f"By letter (engine.kind = mailbox): {a_round} a round and {once} beside to each partner, "
        f"{total:,} in {count_text(rounds, 'round')}, so {reported} at one a minute{many}."
    )


def of_run(run: Any) -> Mapping[str, Any]:
    """Method -> its section of a run file."""
    return {name: getattr(run, name) for name in methods.records()}
