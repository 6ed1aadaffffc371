"""Label owners are aligned with all data owners: in one process, or by a coordinator."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from dovetail.alignment import Keys, Workers, align_by_keys, psi, relay, with_rows_of
from dovetail.errors import (
    AlignmentError,
    ConfigError,
)
from dovetail.methods.base import (
    SILENT,
    CarryingDriver,
    Progress,
    Site,
)
from dovetail.methods.fedoptimus.local_data import TRAIN, dealt
from dovetail.network import InProcess
from dovetail.network.retry import write_text


def align_owners(
    labellers: Mapping[str, Site], holders: Mapping[str, Site], *, talk: Progress = SILENT
) -> dict[str, dict[str, dict[str, Tensor]]]:
    """Label owner -> part -> party -> its row of each sample that all data owners have.

    By private set intersection of each label owner with each data owner.

    Raises:
        AlignmentError: a data owner that has none of a label owner's samples.
    """
    rows_of: dict[str, dict[str, dict[str, Tensor]]] = {}
    with Workers(1) as workers:
        responders = {name: site.responder(workers) for name, site in holders.items()}
        for name, site in labellers.items():
            rows_of[name] = {}
            parts = dealt(site)
            for part, ids in site.compared(parts).items():
                rows = parts[part]
                with talk.points(f"aligning {name}, {part}") as bar:
                    engine = InProcess(responders, driver=name)
                    if isinstance(ids, Keys):
                        aligned = align_by_keys(engine, ids, workers=workers, progress=bar)
                    else:
                        aligned = psi.align(
                            engine,
                            ids,
                            id_as=site.party.id_as,
                            workers=workers,
                            progress=bar,
                        )
                whole = with_rows_of(aligned, responders.values())
                common_K = whole.shared(*holders)
                check_overlap(name, part, len(common_K), aligned.overlap, len(rows))
                rows_of[name][part] = {
                    holder: whole.rows[holder][common_K] for holder in holders
                } | {name: torch.from_numpy(rows)[whole.rows[name][common_K]]}
    return rows_of


def check_overlap(
    owner: str, part: str, num_common: int, shared: Mapping[str, int], num_rows: int
) -> None:
    """Refuse a label owner without a training sample that all data owners have.

    Raises:
        AlignmentError: naming a data owner without any of them, if there is one.
    """
    if num_common or part != TRAIN:
        return
    for holder, num_shared in shared.items():
        if not num_shared:
            raise AlignmentError(
                f"data owner {holder!r} has none of the {num_rows} training samples of label "
                f"owner {owner!r}; check that both use the same id column, or leave one out"
            )
    raise AlignmentError(
        f"no training sample of label owner {owner!r} is at all data owners (they have "
        f"{', '.join(f'{name}: {num:,}' for name, num in shared.items())} of its {num_rows}); "
        "leave out who has the fewest"
    )


def relay_alignment(
    driver: CarryingDriver, *, where: str, print_line: Callable[[str], None]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of data owners and of label owners, once all of them are aligned.

    What an earlier run aligned is used again, as long as every party keeps its rows of it.

    Raises:
        ConfigError: no owner of a kind.
        AlignmentError: a label owner without a training sample that all data owners have.
        PartyError: a party does not align.
    """
    driver.wait()
    path = driver.site_folder / "alignment.json"
    name = ""
    with suppress(OSError, ValueError, KeyError):
        name = str(json.loads(path.read_text(encoding="utf-8"))["alignment"])
    engine = driver.carry(name or secrets.token_hex(8))
    replies = engine.ask(
        dict.fromkeys(engine.parties, relay.Describe(name)), relay.Description
    ).or_raise()
    described = {party: replies[party] for party in engine.parties}  # means are taken in this order
    labellers = {party: each.parts for party, each in described.items() if each.parts}
    holders = tuple(party for party in described if party not in labellers)
    for kind, names in (("names a label", labellers), ("names none", holders)):
        if not names:
            raise ConfigError(
                f"{where}: of {', '.join(described)} no party's file {kind}; FedOptimus needs "
                "label owners, whose files name a label, and data owners, whose files do not"
            )
    owned = {party: {party} if party in labellers else {*labellers} for party in described}
    if not name or any({*described[party].aligned} != owned[party] for party in described):
        name = secrets.token_hex(8)
        print_line(f"aligning {', '.join(labellers)} with {', '.join(holders)}")
        overlaps = relay.align(driver.carry(name), labellers, holders)
        for (owner, part), overlap in overlaps.items():
            check_overlap(owner, part, overlap.num_common, overlap.shared, overlap.num_ids)
            print_line(
                f"{overlap.num_common:,} of the {overlap.num_ids:,} {part} samples of {owner} are "
                "at all data owners"
            )
        write_text(path, json.dumps({"alignment": name}) + "\n")
    driver.alignment = name
    return holders, tuple(labellers)
