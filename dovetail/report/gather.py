"""Data of a page beside the run folders: their names, titles, and which party held what."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail import data as dd
from dovetail import methods
from dovetail.data import coverage
from dovetail.errors import DovetailError
from dovetail.models import generator
from dovetail.node.partyfile import fingerprints, open_sites
from dovetail.report.folder import Run
from dovetail.report.page import Coverage
from dovetail.report.tables import Names
from dovetail.runs.inspecting import part_of
from dovetail.runs.runfile import RunFile, check_run
from dovetail.runs.setup import load_data


def names_of(paths: Sequence[Path]) -> list[str]:
    """The folders' names; with those above them where names alone are not different."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        above = os.path.commonpath(paths)
        names = [str(path.relative_to(above)) for path in paths]
    return names


def known_names() -> Names:
    """Which method a section is of, and what each score is called."""
    sections: dict[str, str] = {}
    for name, method in methods.every().items():
        sections = {**dict.fromkeys(method.variants, name), **sections}
    titles = {
        name: {**method.scores, **method.variants} for name, method in methods.every().items()
    }
    return Names(sections, titles)


def coverage_of(run: Run, read_tables: bool, *, least: int = 0) -> Coverage | None:
    """Coverage of the parties, from the data that the run names; None if it names none.

    A folder may come from somebody else: files, queries and addresses that it names are read only
    when asked for, and data sets by their plain names always. Numbers of shared samples below
    ``least`` are hidden.
    """
    settings = dict(run.settings)
    section, files = settings.get("data"), settings.get("parties")
    if not section and not files:
        return None
    if not read_tables and not _is_plain(section):
        note = "Not drawn: this takes the tables that run.toml names. With --data they are read."
        return Coverage(note=note, least=least)
    try:
        drawn = _drawn(check_run(settings, where=f"{run.path}: run.toml"), run)
        return replace(drawn, least=least)
    except (DovetailError, OSError) as error:
        return Coverage(note=f"Not drawn, as the data cannot be read: {error}", least=least)


def _is_plain(section: Any) -> bool:
    """Whether [data] names nothing but data sets: no path, no query, no address."""
    if not isinstance(section, Mapping):
        return False
    sources = [section.get(key) for key in ("source", "test_source") if key in section]
    return all(isinstance(each, str) and re.fullmatch(r"[\w-]+", each) for each in sources)


def _drawn(known: RunFile, run: Run) -> Coverage:
    """The parties' training rows, with the labels that the first seed kept.

    Raises:
        DovetailError: data that cannot be read.
    """
    if known.engine.joined:
        return Coverage(note="Not drawn: the partners' tables are at their sites.")
    if known.data is None:
        files = tuple(Path(file) for file in known.parties or ())
        changed = fingerprints(files) != known.sha256
        lacking: dict[str, str] = {}
        parts = [part_of(site) for site in open_sites(files, lacking=lacking).values()]
        note = "All rows of each party's table, test rows included."
        if changed:
            note += " The tables or party files have changed since this run."
        return Coverage(parts, note, withheld=dict.fromkeys(lacking, "column missing"))
    data = load_data(known).data
    if known.data.labels is not None:
        for name, party in data.train.parties.items():
            if party.labels is not None:
                rng = generator(run.seeds[0].seed, name, "kept labels")
                data = dd.keep_labels(data, name, known.data.labels, rng)
    return Coverage(coverage.from_partition(data))
