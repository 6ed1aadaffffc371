"""Party files' samples: who has labels, and which rows are the same sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dovetail import alignment as psi
from dovetail import data as dd
from dovetail.alignment.ids import looks
from dovetail.alignment.stored import load_rows
from dovetail.errors import AlignmentError, ConfigError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.network import InProcess
from dovetail.settings.mending import changing

#: Ids of larger tables are not compared as texts.
_MOST_ROWS = 1_000_000


def label_owner(sites: Mapping[str, Site], chosen: str | None, *, where: str) -> str:
    """The party that drives: the one with labels, or the one that was chosen.

    Raises:
        ConfigError: no party has labels, several have and none was chosen, or the chosen has none.
    """
    owners = [name for name, site in sites.items() if site.table.labels is not None]
    if chosen is not None:
        if chosen not in sites:
            raise ConfigError(f"{where}: active is {chosen!r}; parties are {sorted(sites)}")
        if chosen not in owners:
            raise ConfigError(f"{where}: active is {chosen!r}, whose party file names no label")
        return chosen
    if len(owners) != 1:
        having = ", ".join(owners) or "none"
        raise ConfigError(
            f"{where}: exactly one party must have labels, or say active = NAME; with labels: "
            f"{having} (a party file names its column with label = ...)"
        )
    return owners[0]


def stored_path(site: Site) -> Path:
    """Where a party keeps its part of an alignment: beside its party file."""
    return site.path.with_name(f"{site.path.stem}.aligned.safetensors")


def responders(
    sites: Mapping[str, Site], initiator: str, workers: psi.Workers | None = None
) -> dict[str, psi.Responder]:
    """Every other party, ready to answer the initiator.

    Raises:
        ConfigError: a party's policy does not allow it.
    """
    for name, site in sites.items():
        if name != initiator:
            site.check_policy("align", initiator)
    return {name: site.responder(workers) for name, site in sites.items() if name != initiator}


def align_sites(
    sites: Mapping[str, Site], initiator: str, *, workers: int, talk: Progress = SILENT
) -> tuple[psi.Aligned, dd.Alignment]:
    """Alignment at the initiator, and every party's rows, by private set intersection."""
    with psi.Workers(workers) as shared, talk.points("aligning") as bar:
        partners = responders(sites, initiator, shared)
        engine = InProcess(partners, driver=initiator)
        aligned = sites[initiator].align(engine, workers=shared, progress=bar)
    return aligned, psi.with_rows_of(aligned, partners.values())


def zeros_apart(sites: Mapping[str, Site]) -> list[str]:
    """A sentence for each party of whose ids more are another's without zeros before them."""
    ordered = sorted(sites.values(), key=lambda site: site.table.labels is None)
    found = (_zeros_of(site, ordered[0]) or _zeros_of(ordered[0], site) for site in ordered[1:])
    return [sentence for sentence in found if sentence]


def _zeros_of(site: Site, other: Site) -> str:
    """That its ids are written with zeros, which the other's are without, and what takes them
    off; "" if not."""
    column, source = site.party.id, site.party.table
    is_large = max(site.table.num_rows, other.table.num_rows) > _MOST_ROWS
    if is_large or site.party.match or site.party.id_as == "digits" or not isinstance(column, str):
        return ""
    if site.table.ids.dtype.kind in "iu":  # numbers have none
        return ""
    ours, theirs = ({*each.table.ids.astype(str).tolist()} for each in (site, other))
    bare = {each.lstrip("0") for each in ours}
    now, then = len(ours & theirs), len(bare & {each.lstrip("0") for each in theirs})
    if then <= now or "" in bare or not len(bare) == len(ours) > len(ours & bare):
        return ""
    how = changing(source, column, "ltrim({}, '0')")
    if source == "a DataFrame":
        how = f'df[{column!r}] = df[{column!r}].str.lstrip("0")'
    filled = min(ours - bare)
    return (
        f"party {site.name!r}: ids such as {filled!r} begin with zeros, and {now:,} of "
        f"{len(ours):,} are ids of {other.name!r}; without the zeros {then:,} are: {how}"
    )


def check_shared(alignment: dd.Alignment, sites: Mapping[str, Site], initiator: str) -> None:
    """Refuse to train with a party that shares no sample with the initiator.

    Raises:
        AlignmentError: saying what the ids of both look like.
    """
    for name in sites.keys() - {initiator}:
        if not len(alignment.shared(initiator, name)) and not sites[name].party.match:
            for sentence in zeros_apart({each: sites[each] for each in (initiator, name)}):
                raise AlignmentError(sentence)
            looks_here, other = (looks(sites[each].table.ids) for each in (initiator, name))
            raise AlignmentError(
                f"party {name!r} shares no sample with {initiator!r}; ids of {initiator!r} are "
                f"{looks_here}; ids of {name!r} are {other}. Check the id columns (case or zeros "
                'before digits: id_as = "lowercase" or "digits" at both; text before the number: '
                "change one table), or leave the party out"
            )


def count_sites(
    sites: Mapping[str, Site], initiator: str, *, workers: int = 1, talk: Progress = SILENT
) -> dict[str, psi.Overlap]:
    """How many rows each partner has and shares with the initiator; nobody learns which."""
    with psi.Workers(workers) as shared, talk.points("counting") as bar:
        engine = InProcess(responders(sites, initiator, shared), driver=initiator)
        return sites[initiator].count(engine, workers=shared, progress=bar)


def stored_alignment(sites: Mapping[str, Site], active: str) -> dd.Alignment | None:
    """The alignment that ``dovetail align`` left beside the party files, or None.

    Raises:
        AlignmentError: parts that are not of one alignment, a table that changed since, or an
            alignment around another party than the active one, where that leaves rows out.
    """
    if not all(stored_path(site).exists() for site in sites.values()):
        return None
    parts = {
        name: load_rows(stored_path(site), name, site.table.ids) for name, site in sites.items()
    }
    files = " ".join(str(site.path) for site in sites.values())
    if len({part.run for part in parts.values()}) > 1:
        raise AlignmentError(
            f"parties {sorted(parts)} were not aligned together; run dovetail align {files}"
        )
    num_rows = sites[active].table.num_rows
    num_aligned = int((parts[active].rows_S >= 0).sum())
    # With two parties what both have is the same, whoever starts.
    if len(parts) > 2 and num_aligned < num_rows:
        raise AlignmentError(
            f"party {active!r}: {num_rows - num_aligned} of its {num_rows} rows are not in the "
            "alignment, which was made around another party; "
            f"run dovetail align --initiator {active} {files}"
        )
    return dd.Alignment({name: part.rows_S for name, part in parts.items()})
