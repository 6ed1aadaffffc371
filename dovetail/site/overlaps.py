"""An alignment in numbers, of parties here or elsewhere; each one's part is kept at home."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from dovetail.alignment import Overlap
from dovetail.alignment.stored import StoredRows, digest, save_rows
from dovetail.methods.aligning import align_sites, count_sites, stored_path
from dovetail.methods.base import Talk
from dovetail.methods.party import Site
from dovetail.site.driver import Driver


def with_driver(driver: Driver, *, count: bool, workers: int) -> dict[str, Any]:
    """Align, or count, with partners elsewhere."""
    own, num_rows = driver.site.name, driver.site.table.num_rows
    if count:
        return _counted(own, num_rows, driver.count(workers=workers))
    aligned = driver.align(workers=workers)
    return {
        "mode": "intersection",
        "initiator": own,
        "rows": dict(aligned.num_ids),
        "shared": dict(aligned.overlap),
        "shared_by_all": len(aligned.alignment.shared(own, *driver.partners)),
        "files": {own: str(driver.stored_path)},
    }


def starter_of(sites: dict[str, Site]) -> str:
    """The only party with labels, else the first named."""
    owners = [name for name, site in sites.items() if site.table.labels is not None]
    return owners[0] if len(owners) == 1 else next(iter(sites))


def aligned_here(
    sites: dict[str, Site], starter: str, *, workers: int, talk: Talk
) -> dict[str, Any]:
    """Align parties whose files are here; each one's part beside its file."""
    aligned, alignment = align_sites(sites, starter, workers=workers, talk=talk)
    run = secrets.token_hex(8)
    files = {}
    for name, site in sites.items():
        path = stored_path(site)
        save_rows(path, StoredRows(name, run, alignment.rows[name], digest(site.table.ids)))
        files[name] = str(path)
    return {
        "mode": "intersection",
        "initiator": starter,
        "rows": dict(aligned.num_ids),
        "shared": dict(aligned.overlap),
        "shared_by_all": len(aligned.alignment.shared(*sites)),
        "files": files,
    }


def counted_here(
    sites: dict[str, Site], starter: str, *, workers: int, talk: Talk
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
    }
