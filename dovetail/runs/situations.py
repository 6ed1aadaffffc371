"""Which methods fit a federation, and why; and what they would send.

    method       labels at            samples                         columns
    APFed        exactly one party    others share some with it       others have some it lacks
    FedOptimus   any parties          column owners have some of      at parties without labels;
                                      each label owner's              label owners' are ignored
    CHFL         every party          different at each               some at all, the rest at one
    HyFEM        every party          any                             some at several parties

They stand from the most to the least specific situation: what fits CHFL fits HyFEM as well, and
CHFL then says more about it, so the first that applies is the one to start with. APFed,
FedOptimus and the other two exclude each other by who has labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail import methods
from dovetail.data.coverage import Overlaps, Part, group
from dovetail.errors import DataError
from dovetail.methods.base import Site
from dovetail.methods.facets.fits import Fit, Fits, Situation, Sizes
from dovetail.runs.runfile import RunFile


def every() -> dict[str, Fits]:
    """Method -> what it fits, the most specific first."""
    known = {name: each.fits for name, each in methods.every().items() if each.fits is not None}
    return dict(sorted(known.items(), key=lambda named: named[1].order))


def centre(parts: Sequence[Part]) -> str:
    """The party that others are compared with; see ``Overlaps``."""
    return next((part.name for part in parts if len(part.data.labelled_rows())), parts[0].name)


def overlaps(
    parts: Sequence[Part],
    *,
    by_cardinality: Mapping[str, int] | None = None,
    withheld: Mapping[str, str] | None = None,
    least: int = 0,
) -> Overlaps:
    """Samples that each party shares with the centre, and that all share.

    Args:
        parts: the parties.
        by_cardinality: party -> samples that it shares with the centre, as private set
            intersection counted them. Ids are then not compared here.
        withheld: party -> why there is no such number of it.
        least: smaller numbers are not shown, nor a picture that would reveal them.

    Raises:
        DataError: parties that cannot be compared, or counts of parties that are not there.
    """
    if not parts:
        raise DataError("there is no party to compare; name at least one")
    rows = {part.name: part.data.num_rows for part in parts}
    middle = centre(parts)
    others = [name for name in rows if name != middle]
    if by_cardinality is not None:
        unknown = by_cardinality.keys() - set(others)
        if unknown:
            raise DataError(
                f"overlaps are counted between {middle!r} and each of {others}; "
                f"got one for {min(unknown)!r}"
            )
        common = by_cardinality.get(others[0]) if len(others) == 1 else None
        return Overlaps(middle, rows, dict(by_cardinality), common, None, withheld or {}, least)
    groups = group(parts)
    index = {name: p for p, name in enumerate(groups.parties)}
    shared_PP = groups.shared()
    shared = {name: int(shared_PP[index[middle], index[name]]) for name in others}
    return Overlaps(middle, rows, shared, groups.common(), groups, withheld or {}, least)


def fits(
    parts: Sequence[Part],
    *,
    counted: Overlaps | None = None,
    sizes: Sizes | None = None,
) -> list[Fit]:
    """Whether each method fits these parties, the most specific first.

    Args:
        parts: the parties.
        counted: what ``overlaps(parts)`` gave, so that samples are compared once.
        sizes: of batches and codes; None assumes ``Sizes()``.

    Raises:
        DataError: parties that cannot be compared.
    """
    situation = Situation(parts, counted or overlaps(parts), sizes or Sizes())
    return [replace(each.fit(situation), title=each.title) for each in every().values()]


def recommended(fits: Sequence[Fit]) -> Fit | None:
    """The most specific method that applies, its paper's own setting first; or None."""
    return min((fit for fit in fits if fit.applies), key=lambda fit: fit.departs, default=None)


def sizes_of(
    run: RunFile, parts: Sequence[Part], sites: Mapping[str, Site], *, sealed: bool
) -> Sizes | None:
    """The batches and codes that a run's messages have; None: it does not say.

    Raises:
        ConfigError: an encoder that does not fit a party's rows.
    """
    each = (fits.sizes(run, parts, sites, sealed=sealed) for fits in every().values())
    return next((sizes for sizes in each if sizes is not None), None)
