"""``dovetail align``: which rows are the same sample, found privately, kept at each home."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dovetail.alignment.stored import StoredRows, digest, save_rows
from dovetail.cli.output import console
from dovetail.cli.parties import align_sites, count_sites, stored_path
from dovetail.cli.partyfile import Site, open_sites
from dovetail.errors import ConfigError


def run_align(
    paths: tuple[Path, ...],
    *,
    initiator: str | None,
    count: bool,
    workers: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Align these parties, write each one's part beside its party file, print the overlaps."""
    sites = open_sites(paths)
    if len(sites) < 2:
        raise ConfigError("name two party files or more: dovetail align bank.toml shop.toml")
    starter = initiator or _starter(sites)
    if starter not in sites:
        raise ConfigError(f"--initiator is {starter!r}; parties are {sorted(sites)}")
    show = not (quiet or as_json)
    if count:
        result = _count(sites, starter, workers=workers, show_progress=show)
    else:
        result = _align(sites, starter, workers=workers, show_progress=show)
    if as_json:
        print(json.dumps(result, indent=2))
    elif not quiet:
        console().print(_table(result))
        console().print(_learned(result), highlight=False, markup=False, soft_wrap=True)


def _starter(sites: dict[str, Site]) -> str:
    """The only party with labels, else the first named."""
    owners = [name for name, site in sites.items() if site.table.labels is not None]
    return owners[0] if len(owners) == 1 else next(iter(sites))


def _align(
    sites: dict[str, Site], starter: str, *, workers: int, show_progress: bool
) -> dict[str, Any]:
    aligned, alignment = align_sites(sites, starter, workers=workers, show_progress=show_progress)
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


def _count(
    sites: dict[str, Site], starter: str, *, workers: int, show_progress: bool
) -> dict[str, Any]:
    overlaps = count_sites(sites, starter, workers=workers, show_progress=show_progress)
    return {
        "mode": "cardinality",
        "initiator": starter,
        "rows": {
            starter: sites[starter].table.num_rows,
            **{name: overlap.num_ids for name, overlap in overlaps.items()},
        },
        "shared": {name: overlap.num_shared for name, overlap in overlaps.items()},
    }


def _table(result: dict[str, Any]) -> Table:
    starter = result["initiator"]
    table = Table(title=Text(f"Shared with {starter!r}"), title_justify="left")
    for name, justify in (("party", "left"), ("rows", "right"), ("shared", "right"), ("", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    own = result["rows"][starter]
    table.add_row(Text(starter), f"{own:,}", "", "")
    for name, shared in result["shared"].items():
        table.add_row(Text(name), f"{result['rows'][name]:,}", f"{shared:,}", f"{shared / own:.1%}")
    if "shared_by_all" in result:
        shared = result["shared_by_all"]
        table.add_row("all of them", "", f"{shared:,}", f"{shared / own:.1%}")
    return table


def _learned(result: dict[str, Any]) -> str:
    """What each side knows now that it did not know before."""
    starter = result["initiator"]
    if result["mode"] == "cardinality":
        return (
            f"{starter!r} has learned how many rows each partner has and shares; each partner how "
            f"many rows {starter!r} has. Nobody has learned which."
        )
    return (
        f"{starter!r} has learned which of its rows each partner has; each partner which of its "
        f"rows {starter!r} has. Nothing else (docs/alignment.md).\n"
        f"Each party's part is beside its party file: {', '.join(result['files'].values())}\n"
        "Next: dovetail train RUN"
    )
