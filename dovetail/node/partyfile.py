"""A party file is opened: its table is read, and its policy knows all messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from dovetail import data as dd
from dovetail import methods
from dovetail.alignment import Responder, relay
from dovetail.data.stored import keep_in
from dovetail.errors import ConfigError, DataError, MissingColumnError
from dovetail.files import read_toml
from dovetail.methods.base import Algorithm, Policy, Site, algorithm
from dovetail.methods.method import protocols
from dovetail.methods.settings.party import PolicySection
from dovetail.methods.validation import validate
from dovetail.node.partysections import party_file, party_values
from dovetail.node.site_folder import site_folder_of
from dovetail.settings.encode import is_file


def algorithms() -> Mapping[str, Algorithm]:
    """The part of a message's wire name before the dot -> the algorithm."""
    return {
        "psi": algorithm("align", Responder),
        **{
            prefix: each
            for method in methods.every().values()
            for prefix, each in protocols(method).items()
        },
        "relay": algorithm("align", relay.Responder, also=relay.Initiator.accepts[1:]),
    }


def _check_words(policy: PolicySection, known: Mapping[str, Algorithm], *, where: str) -> None:
    """Refuse a policy that names what there is not.

    Raises:
        ConfigError: naming the word and those that there are.
    """
    named = list(dict.fromkeys(each.policy for each in known.values()))
    messages = [name for each in known.values() for name in each.messages]
    for key, what, words, there in (
        ("algorithms", "algorithm", policy.algorithms, named),
        ("messages", "message", policy.messages or (), messages),
    ):
        for word in words:
            if word not in there:
                raise ConfigError(
                    f"{where}: policy.{key}: {word!r} is no {what}; there are {', '.join(there)}"
                    f"{methods.did_you_mean_variant(word, there)}"
                )


def open_sites(
    paths: tuple[Path, ...], *, lacking: dict[str, str] | None = None
) -> dict[str, Site]:
    """Party name -> site, of these party files; tables are read.

    Args:
        paths: the files.
        lacking: where given, gets party name -> the sentence, of those whose table lacks a column
            that its file names; these are left out, unless nobody else is there.

    Raises:
        ConfigError: a file that cannot be read, or two parties of one name.
        DataError: a table that cannot be used, naming the party.
    """
    sites: dict[str, Site] = {}
    for path in paths:
        try:
            site = open_site(path)
        except MissingColumnError as error:
            if lacking is None or (path is paths[-1] and not sites):
                raise
            lacking[str(read_toml(path)["party"]["name"])] = str(error)
            continue
        add_site(sites, site)
    return sites


def add_site(sites: dict[str, Site], site: Site) -> None:
    """Put it beside the others.

    Raises:
        ConfigError: one of them has its name.
    """
    if site.name in sites:
        raise ConfigError(
            f"{sites[site.name].where} and {site.where} are both party {site.name!r}; "
            "names must differ"
        )
    sites[site.name] = site


def open_site(path: Path) -> Site:
    """Site of one party file, with its table.

    Raises:
        ConfigError: a file that cannot be read, or does not fit.
        DataError: a table that cannot be used, naming the party.
    """
    return make_site(party_values(path), path=path, where=str(path), folder=path.parent)


def make_site(
    values: Mapping[str, Any],
    *,
    path: Path,
    where: str,
    folder: Path | None = None,
    table: dd.Table | None = None,
) -> Site:
    """Site from a party file's values: from a file, or from Python.

    Args:
        values: the tables of a party file.
        path: the file; from Python, where it would be: the party's site is beside it.
        where: what errors call it.
        folder: what the paths in it are relative to; None: the working directory.
        table: rows that are here already, whatever ``party.table`` says.

    Raises:
        ConfigError: keys or values that do not fit.
        DataError: a table that cannot be used, naming the party.
    """
    file: Any = validate(party_file(), values, where=where)
    known = algorithms()
    _check_words(file.policy, known, where=where)
    sections = {
        name: getattr(file, name)
        for name, method in methods.records().items()
        if method.PartySettings is not None
    }
    party = file.party
    keep_in(party.name, site_folder_of(path))
    if party.tabicl is not None:
        weights = (folder or Path()) / party.tabicl.weights
        if not weights.is_file():
            raise ConfigError(
                f"{where}: party.tabicl names the weights {weights}, which is no file; nothing is "
                "downloaded: get the file from TabICL's authors, or leave party.tabicl out"
            )
        named = party.tabicl.model_copy(update={"weights": str(weights.absolute())})
        party = party.model_copy(update={"tabicl": named})
    rows = dd.read_party_table(
        party.name,
        party.table if table is None else table,
        id=party.id,
        label=party.label,
        columns=party.columns,
        blocks=party.blocks,
        query=party.query,
        folder=folder,
        folders=party.folders,
        matching=party.matching(),
        truth=party.match_truth,
        index_date=party.index_date,
        events=party.events,
        images=party.images,
        encode=party.encode,
        store=path.with_name(f"{path.stem}.site") / "encoded.sqlite",
    )
    if party.id_as == "digits":
        _check_digits(party.name, party.table, rows.ids)
    return Site(path, party, Policy(file.policy, known), sections, rows, where)


def _check_digits(name: str, source: str, ids: np.ndarray) -> None:
    """Refuse ids that are not digits alone, here, where only their party reads it.

    Raises:
        DataError: with the first such row.
    """
    for row, each in enumerate(ids.astype(np.str_).tolist()):
        text = normalize("NFKC", each).strip()
        if not (text.isascii() and text.isdigit()):
            raise DataError(
                f'party {name!r}: id_as = "digits" takes ids of the digits 0 to 9 alone, and row '
                f"{row} of {source} has {each!r}; correct it, or leave id_as out at all parties"
            )


def fingerprints(paths: tuple[Path, ...]) -> dict[str, str]:
    """File -> SHA-256, of party files and of those tables that are files.

    Kept with a run's settings, so that a run is resumed only on what it began with.
    """
    digests = {}
    for path in paths:
        party = read_toml(path).get("party", {})
        named = [str(party[key]) for key in ("table", "images") if key in party]
        models = (str(each.get("model", "")) for each in party.get("encode", {}).values())
        named += [model for model in models if is_file(model)]
        named += [str(each["weights"]) for each in [party.get("tabicl", {})] if "weights" in each]
        for file in (path, *(path.parent / each for each in named)):
            try:
                with file.open("rb") as opened:
                    digests[str(file)] = hashlib.file_digest(opened, "sha256").hexdigest()
            except OSError:  # a folder, a query or a URL
                continue
    return digests
