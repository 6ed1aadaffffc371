"""Fingerprint of what a party's saved states depend on besides their bytes: its rows and settings.

A state says which rows and settings it is of, as digests. A party that returns with other values
under the same ids, or another network, so finds out before it goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from dovetail import data as dd
from dovetail import methods
from dovetail.methods.base import Site

#: Keys of ``[party]`` that say where rows are read; what was read is in the table's digest.
_SOURCES = frozenset({"table", "query", "folders", "images"})


def site_digests(site: Site) -> dict[str, dict[str, str]]:
    """Algorithm -> what its party's state depends on, by the name that errors use -> SHA-256.

    Raises:
        DataError: a column that cannot be read.
    """
    shared = {
        "table": table_digest(site.table),
        "[party] section": _of_settings(site.party, but=_SOURCES),
    }
    owners = {
        prefix: name for name, method in methods.every().items() for prefix in method.algorithms
    }
    return {
        prefix: {
            **shared,
            **{
                f"[{name}] section": _of_settings(site.sections[name])
                for name in (owners.get(prefix, ""),)
                if name in site.sections
            },
        }
        for prefix in site.policy.algorithms
    }


def table_digest(table: dd.PartyTable) -> str:
    """SHA-256 over the ids, the columns used and the label: names, types and values."""
    digest = hashlib.sha256()

    def add(name: str, values: np.ndarray) -> None:
        kind = "text" if values.dtype.kind in "OU" else values.dtype.str
        digest.update(json.dumps([name, kind, values.shape]).encode())
        if kind != "text":
            digest.update(values.tobytes())
            return
        texts = [str(value).encode("utf-8", "surrogatepass") for value in values]
        lengths = np.array([len(text) for text in texts], dtype="<i8")
        digest.update(lengths.tobytes())  # so that no text runs into the next unseen
        digest.update(b"".join(texts))

    add("ids", table.ids)
    for name, column in _columns(table):
        add(f"values of {name}", column.values)
        add(f"missing of {name}", column.missing)
    if not isinstance(table.x, dd.Table):
        add("images", table.x.numpy())
    if table.images is not None:
        add("images beside", table.images.numpy())
    return digest.hexdigest()


def _columns(table: dd.PartyTable) -> Iterator[tuple[str, dd.Column]]:
    if isinstance(table.x, dd.Table):
        for block, names in table.blocks.items():
            for name in names:
                yield f"{block}: {name}", table.x.column(name)
    if table.labels is not None:
        yield f"label {table.label}", table.labels


def _of_settings(section: BaseModel, *, but: frozenset[str] = frozenset()) -> str:
    """SHA-256 of the keys that are not at their defaults: a version with more keys changes none."""
    values: Mapping[str, Any] = section.model_dump(mode="json", exclude_defaults=True)
    kept = {key: value for key, value in values.items() if key not in but}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
