"""Which federations CHFL fits: labels everywhere, other samples, some columns at all parties."""

from __future__ import annotations

from itertools import combinations

from dovetail.data import spelled_alike
from dovetail.data.wording import count_text, name_list, share_text
from dovetail.methods.facets.declared import Reported
from dovetail.methods.facets.fits import (
    COLUMN,
    FLOAT,
    SAME,
    Fit,
    Fits,
    MessageSize,
    Situation,
    everyone_labels,
    no,
    parameters,
    range_text,
)

_NAME = "chfl"

#: Parties hold different samples if each pair shares at most this much of the smaller.
_NEARLY_DISJOINT = 0.05


#: Of ``dovetail audit FILE --fast`` with seed 0 (docs/privacy.md), and of its own bench.
REPORTED = {
    _NAME: Reported(
        shows=(
            "rows, to the coordinator from a member's weights: none on Adult",
            "who was trained on, to the coordinator: low at one member of five on Adult, else none",
        ),
        gain="-1.1 points beside the better of a network and boosted trees alone (6 settings)",
        bounds=("chfl.secure", "chfl.private"),
        letters=(7, 3),
    )
}


class ChflFits(Fits):
    """Labels and some columns at every party, the rest at one; different samples at each."""

    title = "CHFL"
    order = 2

    def fit(self, situation: Situation) -> Fit:
        return _fit(situation)


def _fit(situation: Situation) -> Fit:
    """Parties of one kind: different samples, common columns, and columns that one alone has."""
    wrong = everyone_labels(situation, "CHFL")
    if wrong:
        return no(_NAME, *wrong)
    everyone = tuple(situation.names)
    common = situation.blocks.get(everyone, set())
    num_private = {name: len(situation.blocks.get((name,), ())) for name in situation.names}
    partly = {
        column
        for holders, columns in situation.blocks.items()
        if 1 < len(holders) < len(everyone)
        for column in columns
    }
    if not common:
        wrong.append("no column is at every party")
    kinds = {name: frozenset(situation.declared(name) or ()) for name in situation.names}
    if len(set(kinds.values())) > 1:
        first, other = next(
            (a, b) for a, b in combinations(situation.names, 2) if kinds[a] != kinds[b]
        )
        wrong.append(
            f"classes differ ({_classes(situation, first)} at {first}, "
            f"{_classes(situation, other)} at "
            f"{other}); CHFL needs one set of classes"
        )
        wrong += spelled_alike({name: situation.declared(name) or () for name in (first, other)})
    uncounted, overlap = 0, ""
    for one, other in combinations(situation.names, 2):
        shared = situation.shared(one, other)
        smaller = min(situation.overlaps.rows[one], situation.overlaps.rows[other])
        if shared is None:
            uncounted += 1
        elif shared > _NEARLY_DISJOINT * smaller and not overlap:
            overlap = (
                f"; {one} and {other} share {count_text(shared, 'sample')} "
                f"({share_text(shared, smaller)} of the smaller), which count at each"
            )
    if wrong:
        return no(_NAME, *wrong)
    private = {
        name: len(situation.columns[name] - common) if partly else num_private[name]
        for name in situation.names
    }
    local_counts = range_text(list(private.values()), "column")
    aside = "" if partly or any(num_private.values()) else f"; {SAME}"
    if partly:
        verb = "is" if len(partly) == 1 else "are"
        aside = (
            f"; {count_text(len(partly), 'column')} ({name_list(sorted(partly))}) {verb} at some "
            "parties but not at every one, and each learns from these alone"
        )
    size = parameters(situation.width(common), COLUMN, situation.num_outputs) * FLOAT
    assuming = (
        f"a common network of {situation.width(common)}-{'-'.join(map(str, COLUMN))}-"
        f"{situation.num_outputs} in float32"
    )
    clause = ", as far as overlaps were counted" if uncounted else ""
    return Fit(
        _NAME,
        True,
        f"yes: every party has labels{'' if overlap else ', on different samples'}{clause}; "
        f"{count_text(len(common), 'column')} {'is' if len(common) == 1 else 'are'} at all "
        f"{len(everyone)} parties, and each has {local_counts} of its own{aside}{overlap}",
        "dovetail train RUN --set method=chfl",
        tuple(
            MessageSize(name, "coordinator", "round", size, size, assuming)
            for name in situation.names
        ),
        departs=bool(overlap),
    )


def _classes(situation: Situation, name: str) -> str:
    return name_list(situation.declared(name) or (), 4)
