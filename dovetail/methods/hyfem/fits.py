"""Which federations HyFEM fits: labels everywhere, some columns at several parties."""

from __future__ import annotations

from dovetail.data import spelled_alike
from dovetail.data.wording import count_text, name_list
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
    has,
    no,
    parameters,
)

_NAME = "hyfem"

#: Hidden width of its classifier.
_CLASSIFIER = 128


#: Of ``dovetail audit FILE --fast`` with seed 0 (docs/privacy.md), and of its own bench.
REPORTED = {
    _NAME: Reported(
        shows=(
            "rows, to the server from a party's weights: none on Adult",
            "who was trained on, to the server: low at one party of three on Adult, else none",
        ),
        gain="28.8 points beside networks alone, of pictures, texts and views (6 settings)",
        bounds=("hyfem.private",),
        letters=(6, 2),
    )
}


class HyfemFits(Fits):
    """Labels at every party, and some columns at several; any samples."""

    title = "HyFEM"
    order = 3

    def fit(self, situation: Situation) -> Fit:
        return _fit(situation)


def _fit(situation: Situation) -> Fit:
    """Every party has labels; some columns are at several parties, whichever samples they have."""
    wrong = everyone_labels(situation, "HyFEM")
    if wrong:
        return no(_NAME, *wrong)
    several = {holders: names for holders, names in situation.blocks.items() if len(holders) > 1}
    if not several:
        return no(
            _NAME, "no two parties have a column in common; HyFEM would share a classifier alone"
        )
    outputs = situation.num_outputs
    extractor = {
        holders: parameters(situation.width(names), COLUMN[:-1], COLUMN[-1])
        for holders, names in situation.blocks.items()
    }
    sizes = []
    for name in situation.names:
        held = [holders for holders in situation.blocks if name in holders]
        classifier = parameters(COLUMN[-1] * len(held), (_CLASSIFIER,), outputs)
        size = (sum(extractor[holders] for holders in held) + classifier) * FLOAT
        sizes.append(
            MessageSize(
                name,
                "coordinator",
                "round",
                size,
                size,
                f"an extractor of {'-'.join(map(str, COLUMN))} a block and a classifier of "
                f"{_CLASSIFIER}-{outputs}, in float32, no neurons added",
            )
        )
    shared_columns = sum(len(names) for names in several.values())
    lonely = [name for name in situation.names if not any(name in holders for holders in several)]
    kinds = {frozenset(classes or ()) for classes in situation.classes.values()}
    notes = ""
    if len(situation.blocks) == 1:
        notes += f"; {SAME}"
    if lonely:
        notes += f"; {name_list(lonely)} {has(lonely)} no column in common with another"
    if len(kinds) > 1:
        notes += "; parties have different classes, which it allows if they are of one label"
        classes_of = {name: situation.declared(name) or () for name in situation.names}
        notes += "".join(f"; {each}" for each in spelled_alike(classes_of))
    named = {
        (block, column)
        for part in situation.parts.values()
        for block, column in part.columns.items()
    }
    blocks: dict[str, dict[str, tuple[str, ...]]] = {}
    if len(named) > len({block for block, _ in named}):
        notes += ". Name these blocks at the parties first, as below"
        for number, (holders, names) in enumerate(situation.blocks.items(), start=1):
            block = "common" if len(holders) == len(situation.names) else f"block-{number}"
            block = holders[0] if len(holders) == 1 else block
            for name in holders:
                blocks.setdefault(name, {})[block] = tuple(sorted(names))
    return Fit(
        _NAME,
        True,
        f"yes: every party has labels, and {count_text(shared_columns, 'column')} "
        f"{'is' if shared_columns == 1 else 'are'} at two or more of "
        f"{count_text(len(situation.names), 'party', 'parties')} "
        f"({count_text(len(situation.blocks), 'block')} by who holds what){notes}",
        "dovetail train RUN --set method=hyfem",
        tuple(sizes),
        blocks,
    )
