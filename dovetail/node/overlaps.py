"""An alignment in numbers, of parties here or elsewhere; each one's part is kept at its site."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from dovetail.alignment import Aligned, Overlap, rate
from dovetail.alignment.psi import PassCount, PassDone
from dovetail.alignment.stored import StoredRows, digest, save_rows
from dovetail.data import Alignment, Column
from dovetail.errors import ConfigError
from dovetail.methods.aligning import align_sites, count_sites, stored_path
from dovetail.methods.base import Progress, Site
from dovetail.network.in_use import in_use
from dovetail.node.driver import Driver


def with_driver(driver: Driver, *, count: bool, workers: int) -> dict[str, Any]:
    """Align, or count, with partners elsewhere."""
    name, num_rows = driver.site.name, driver.site.table.num_rows
    if count:
        return _counted(name, num_rows, driver.count(workers=workers))
    aligned = driver.align(workers=workers)
    return {**_aligned(name, aligned), "files": {name: str(driver.stored_path)}}


def starter_of(sites: dict[str, Site]) -> str:
    """The only party with labels, else the first named."""
    owners = [name for name, site in sites.items() if site.table.labels is not None]
    return owners[0] if len(owners) == 1 else next(iter(sites))


def aligned_here(
    sites: dict[str, Site], starter: str, *, workers: int, talk: Progress
) -> dict[str, Any]:
    """Align parties whose files are here; each one's part beside its file.

    Raises:
        ConfigError: another process aligns one of them.
    """
    paths = {name: stored_path(site) for name, site in sites.items()}
    with ExitStack() as stack:  # two alignments' parts must not mix
        for path in sorted(paths.values()):
            advice = "align other parties"
            stack.enter_context(in_use(path.parent, advice, lock=f".{path.name}.lock"))
        aligned, alignment = align_sites(sites, starter, workers=workers, talk=talk)
        run = secrets.token_hex(8)
        for name, site in sites.items():
            rows = StoredRows(name, run, alignment.rows[name], digest(site.table.ids))
            save_rows(paths[name], rows)
    files = {name: str(path) for name, path in paths.items()}
    truth = _by_truth(sites, starter, aligned, alignment)
    return {**_aligned(starter, aligned), **truth, "files": files}


def _aligned(starter: str, aligned: Aligned) -> dict[str, Any]:
    return {
        "mode": "intersection",
        "initiator": starter,
        "rows": dict(aligned.num_ids),
        "shared": dict(aligned.overlap),
        "shared_by_all": len(aligned.alignment.shared(*aligned.num_ids)),
        **_by_key(aligned.passes),
    }


def _by_key(passes: Mapping[str, Sequence[PassCount]]) -> dict[str, Any]:
    """How many rows each match key has found; nothing where ids were compared."""
    keys = {
        party: [
            {
                "key": each.key,
                "entered": each.usable,
                "ambiguous": each.ambiguous,
                "missing": each.missing,
                **({"entered_there": each.theirs} if isinstance(each, PassDone) else {}),
                "matched": each.num_shared,
            }
            for each in of_party
        ]
        for party, of_party in passes.items()
        if of_party
    }
    return {"keys": keys} if keys else {}


def _by_truth(
    sites: Mapping[str, Site], starter: str, aligned: Aligned, alignment: Alignment
) -> dict[str, Any]:
    """Precision and recall by partner, over all keys and of each, where both know who is who."""
    truth = sites[starter].table.truth
    if truth is None:
        return {}
    counts: dict[str, Any] = {}
    for name in aligned.overlap:
        theirs = sites[name].table.truth
        if theirs is None:
            continue
        samples = alignment.shared(starter, name)
        rows = [alignment.rows[each].numpy() for each in (starter, name)]

        def right(samples: Any, rows: Any = rows, theirs: Column = theirs) -> int:
            mine, other = (
                column.values[each[samples.numpy()]].astype(str)
                for column, each in zip((truth, theirs), rows, strict=True)
            )
            return int((mine == other).sum())

        persons = [
            set(column.values[~column.missing].astype(str).tolist()) for column in (truth, theirs)
        ]
        num_right, num_both = right(samples), len(persons[0] & persons[1])
        counts[name] = {
            "in_both": num_both,
            "matched": len(samples),
            "right": num_right,
            "precision": num_right / len(samples) if len(samples) else None,
            "recall": num_right / num_both if num_both else None,
            "right_by_key": [right(each.samples_K) for each in aligned.passes.get(name, ())],
        }
    return {"truth": counts} if counts else {}


def rated(site: Site) -> list[dict[str, Any]]:
    """Quality of each of a party's match keys at its site; nothing is sent.

    Raises:
        ConfigError: the party has none.
    """
    if not site.party.match:
        raise ConfigError(
            f"party {site.name!r} has no match keys to rate; list them in its file, for example "
            'match = [["surname", "given", "birth_date"]]'
        )
    return [asdict(each) for each in rate(site.match_values())]


def counted_here(
    sites: dict[str, Site], starter: str, *, workers: int, talk: Progress
) -> dict[str, Any]:
    """Count what parties whose files are here share; nobody learns which."""
    overlaps = count_sites(sites, starter, workers=workers, talk=talk)
    return _counted(starter, sites[starter].table.num_rows, overlaps)


def _counted(starter: str, num_rows: int, overlaps: Mapping[str, Overlap]) -> dict[str, Any]:
    return {
        "mode": "cardinality",
        "initiator": starter,
        "rows": {
            starter: num_rows,
            **{name: overlap.num_ids for name, overlap in overlaps.items()},
        },
        "shared": {name: overlap.num_shared for name, overlap in overlaps.items()},
        **_by_key({name: overlap.passes for name, overlap in overlaps.items()}),
    }
