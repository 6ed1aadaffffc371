"""Which federations FedOptimus fits: labels at any parties, columns at others who share samples."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.data.coverage import Groups
from dovetail.data.wording import count_text, name_list
from dovetail.methods.facets.declared import Reported
from dovetail.methods.facets.fits import (
    FLOAT,
    PLACE,
    Fit,
    Fits,
    MessageSize,
    Situation,
    has,
    no,
    parameters,
)

_NAME = "fedoptimus"

#: Label owners' own columns are few if they are at most this much of the column owners'.
_FEW_COLUMNS = 0.1

#: Hidden width of its top model.
_HEAD = 64


#: Of ``dovetail audit FILE --fast`` with seed 0 (docs/privacy.md), and of its own bench.
REPORTED = {
    _NAME: Reported(
        shows=(
            "labels, to coordinator and data owners: high (all of them on Adult)",
            "data owners' columns, to the coordinator: high, from embeddings and from the "
            "selection",
        ),
        gain="-1.7 points beside label owners alone (1 setting)",
        bounds=(
            "fedoptimus.embeddings", "fedoptimus.gradients", "fedoptimus.selection.secure",
        ),
    )
}  # fmt: skip


class OwnersFits(Fits):
    """Labels at any parties; parties without labels have columns of some of each one's samples."""

    title = "FedOptimus"
    order = 1

    def fit(self, situation: Situation) -> Fit:
        return _fit(situation)


def _fit(situation: Situation) -> Fit:
    """Labels in shards at several parties, columns at several others who have no labels."""
    owners = situation.owners
    data_owners = [name for name in situation.without if situation.columns[name]]
    wrong = []
    if not owners:
        wrong.append("no party has labels; FedOptimus needs one that has, or several")
    if not data_owners:
        have = "every party has labels"
        if situation.without:
            verb = has(situation.without)
            have = f"{name_list(situation.without)} {verb} neither labels nor columns"
        wrong.append(f"{have}; FedOptimus needs a party with columns and no labels, or several")
    if mixed := situation.mixed_labels():
        wrong.append(mixed)
    if wrong:
        return no(_NAME, *wrong)
    held = frozenset().union(*(situation.columns[name] for name in data_owners))
    num_columns = {name: len(situation.columns[name]) for name in owners}
    rich = [
        f"{name} {count}" for name, count in num_columns.items() if count > _FEW_COLUMNS * len(held)
    ]
    groups = situation.overlaps.groups
    if groups is None:
        return Fit(
            _NAME,
            False,
            "unknown: all column owners must hold some labelled samples of each party with labels; "
            "counts of overlaps alone do not show that",
        )
    wrong, notes = _shards(groups, owners, data_owners)
    if wrong:
        return no(_NAME, *wrong)
    batch_size, code_width = situation.sizes.batch_size, situation.sizes.code_width
    top = parameters(code_width, (_HEAD,), situation.num_outputs) * FLOAT
    assuming = (
        f"batches of {batch_size} rows, codes of {code_width} float32 values, a top "
        f"model of {code_width}-{_HEAD}-{situation.num_outputs}, every column owner asked"
    )
    codes = batch_size * code_width * FLOAT
    index_bytes = batch_size * PLACE
    # A column owner's codes are of every label owner's batch; a label owner has their mean.
    sizes = [
        *(
            MessageSize(
                name,
                "coordinator",
                "step",
                len(owners) * codes,
                len(owners) * (codes + index_bytes),
                assuming,
            )
            for name in data_owners
        ),
        *(
            MessageSize(owner, "coordinator", "step", codes + index_bytes, codes, assuming)
            for owner in owners
        ),
        *(MessageSize(owner, "coordinator", "round", top, top, assuming) for owner in owners),
    ]
    unused = f" ({count_text(sum(num_columns.values()), 'column')} there would be ignored)"
    if rich:
        unused = f" (it would ignore the columns that they have themselves: {name_list(rich)})"
    whose = (
        f"{count_text(len(owners), 'party', 'parties')} ({name_list(owners)}) have labels"
        if len(owners) > 1
        else f"only {owners[0]} has labels, as in classic vertical learning"
    )
    return Fit(
        _NAME,
        True,
        f"yes: {whose}, {sum(situation.labelled[name] for name in owners):,} in all"
        f"{unused if any(num_columns.values()) else ''}; {len(data_owners)} "
        f"{'other' if len(data_owners) == 1 else 'others'} ({name_list(data_owners)}) "
        f"{'holds' if len(data_owners) == 1 else 'hold'} {count_text(len(held), 'column')} {notes}",
        "dovetail train RUN --set method=fedoptimus",
        tuple(sizes),
    )


def _shards(
    groups: Groups, owners: Sequence[str], data_owners: Sequence[str]
) -> tuple[list[str], str]:
    """Reasons why label owners cannot train with all data owners; text on their samples."""
    index = {name: p for p, name in enumerate(groups.parties)}
    counts_G, labelled_GP = groups.counts_G, groups.labelled_GP
    everywhere_G = groups.held_GP[:, [index[name] for name in data_owners]].all(axis=1)
    wrong = [
        f"no labelled sample of {owner} is at all of {name_list(data_owners)}; leave out who has "
        "the fewest"
        for owner in owners
        if not counts_G[labelled_GP[:, index[owner]] & everywhere_G].sum()
    ]
    labelled_G = labelled_GP.sum(axis=1)
    twice = int(counts_G[labelled_G > 1].sum())
    num_labelled = int(counts_G[labelled_G > 0].sum())
    shared = int(counts_G[(labelled_G > 0) & everywhere_G].sum())
    notes = f"for {'every one' if shared == num_labelled else f'{shared:,}'} of these"
    if shared < num_labelled:
        lacking = [
            f"{name} lacks {lacks:,}"
            for name in data_owners
            if (lacks := int(counts_G[(labelled_G > 0) & ~groups.held_GP[:, index[name]]].sum()))
        ]
        notes += f", and it trains on those ({name_list(lacking)})"
    if twice:
        times = "is labelled twice, and counts" if twice == 1 else "are labelled twice, and count"
        notes += f"; {count_text(twice, 'sample')} {times} at each"
    return wrong, notes
