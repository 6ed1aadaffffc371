"""Pages on parties before they train: what each brings, and the messages to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail import data as dd
from dovetail.data import coverage
from dovetail.data.coverage import Overlaps, Part, hides
from dovetail.data.doubts import LOOKED_AT, doubts, label_doubts
from dovetail.data.partytables import IMAGES
from dovetail.data.preprocessing import read_as
from dovetail.data.survey import texts_in
from dovetail.methods.base import Site
from dovetail.methods.facets.fits import Fit
from dovetail.runs import situations as methods
from dovetail.runs.expected_gain import MAX_ROWS, Expected, expected

#: Of so many columns each is shown with examples.
_SHOWN = 40


def part_of(site: Site) -> Part:
    """Part that a site brings: its ids, its labels, and its columns, whose first rows are read."""
    table = site.table
    labels: Tensor | None = None
    classes: tuple[str | int, ...] = ()
    if table.labels is not None and table.label is not None:
        labels, classes = _labels(table.labels, table.label, site.party.task)
    if isinstance(table.x, dd.Table):
        columns = dict(table.blocks)
        # As wide as the block, and without memory.
        blocks = {
            block: torch.empty(1).expand(table.num_rows, len(names))
            for block, names in columns.items()
        }
        if table.images is not None:
            shape = " × ".join(str(size) for size in table.images.shape[1:])
            columns[IMAGES] = (f"{site.name}: {shape}",)
            blocks[IMAGES] = table.images
    else:
        shape = " × ".join(str(size) for size in table.x.shape[1:])
        columns = dict.fromkeys(table.blocks, (f"{site.name}: {shape}",))
        blocks = dict.fromkeys(table.blocks, table.x)
    data = dd.PartyData(site.name, table.ids, blocks, labels)
    return Part(data, columns, classes, _read_as(site))


def _read_as(site: Site) -> dict[str, str]:
    """Column -> what becomes of it, by the first rows; below, a line each, what is in doubt."""
    whole, party = site.table.x, site.party
    if not isinstance(whole, dd.Table):
        return {}
    table = whole.take(np.arange(min(whole.num_rows, LOOKED_AT)))
    asked = {} if table.asked is None else table.asked.columns
    categorical = set(table.select(party.categorical))
    python = not site.path.is_file()
    said: dict[str, str] = {}
    for name in (name for names in site.table.blocks.values() for name in names):
        reading = table.reading(name, categorical=name in categorical)
        column = table.column(name, reading)
        words = read_as(
            column,
            asked.get(name),
            categorical=name in categorical,
            max_categories=party.max_categories,
        )
        known = texts_in(table, name)
        shown = ", ".join(each[:20] for each in list(known)[:2])
        sentences = [doubt.sentence(name, python=python) for doubt in doubts(reading, known)]
        # Of a wide table, columns that are read alike are one line.
        is_wide = len(table.names) > _SHOWN
        how = [words, *([] if is_wide else [f"{reading.rule} ({shown})"])]
        said[name] = "\n".join(["; ".join(how), *sentences])
    labels, label = site.table.labels, site.table.label
    if labels is not None and label is not None and (found := label_doubts(labels)):
        sentences = [doubt.sentence(label, python=python) for doubt in found]
        said[label] = "\n".join(["the label", *sentences])
    return said


def expected_of_site(site: Site, *, unlabelled: int | None) -> Expected | None:
    """Expected gain by a label owner's own table; reads its columns, of some labelled rows.

    Raises:
        DataError: a column that cannot be used.
    """
    table = site.table
    if table.labels is None or table.label is None or not table.blocks:
        return None
    if table.images is not None:  # helpers help one kind of rows
        return None
    rows = np.flatnonzero(~table.labels.missing)
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:MAX_ROWS])
    if not len(rows):
        return None
    part = table.take(rows)
    task = part.fit_task(kind=site.party.task)
    data = part.encoded(site.fit_input(part), task)
    assert data.labels is not None
    return expected(site.name, data.joined(), data.labels, task, unlabelled=unlabelled)


def expected_of_part(
    data: dd.PartyData, task: dd.Task, *, unlabelled: int | None
) -> Expected | None:
    """Expected gain of a party in a simulation."""
    rows = data.labelled_rows()
    if data.labels is None or not data.blocks or not len(rows):
        return None
    labelled = data.take(rows)
    assert labelled.labels is not None
    return expected(data.name, labelled.joined(), labelled.labels, task, unlabelled=unlabelled)


def _labels(column: dd.Column, label: str, task: str) -> tuple[Tensor, tuple[str | int, ...]]:
    """(N,) labels and their classes; one class, or none, is enough to be inspected.

    Raises:
        DataError: text where numbers are needed.
    """
    values, missing = column.values, column.missing
    if task == "counts" and values.ndim > 1:  # of an exposure, which is no label
        values = values[:, 0]
    if task != "classification":
        labels = dd.encode_labels(dd.Regression(0.0, 1.0), values, missing, label=label)
        return labels, ()
    classes = tuple(np.unique(values[~missing]).tolist())
    labels = dd.encode_labels(dd.Classification(classes), values, missing, label=label)
    return labels, classes


def as_values(
    parts: Sequence[Part],
    fits: Sequence[Fit],
    overlaps: Overlaps,
    *,
    title: str,
    hint: Expected | None = None,
) -> dict[str, Any]:
    """All that is shown, ready for JSON."""
    best = methods.recommended(fits)
    groups = None if overlaps.least else overlaps.groups
    hidden = [name for name, count in overlaps.shared.items() if hides(count, overlaps.least)]
    common = overlaps.common
    return {
        "title": title,
        "samples": None if groups is None else groups.num_samples,
        "parties": [
            {
                "name": part.name,
                "rows": part.data.num_rows,
                "blocks": {block: list(part.columns.get(block, ())) for block in part.data.blocks},
                "labelled": len(part.data.labelled_rows()),
                "classes": _classes(part),
                "read": dict(part.read),
            }
            for part in parts
        ],
        "groups": None
        if groups is None
        else [
            {
                "group": band.letter,
                "samples": band.count,
                "combinations": band.combinations,
                "held_by": coverage.wholly(band.held_P, groups.parties),
                "labelled_at": coverage.wholly(band.labelled_P, groups.parties),
            }
            for band in coverage.bands(groups)
        ],
        "overlaps": {
            "with": overlaps.centre,
            "shared": {
                name: count for name, count in overlaps.shared.items() if name not in hidden
            },
            "common": None if common is not None and hides(common, overlaps.least) else common,
            "ids_compared": overlaps.groups is not None,
            **(
                {
                    "not_shown": {
                        name: overlaps.shown(name) for name in (*hidden, *overlaps.withheld)
                    }
                }
                if hidden or overlaps.withheld
                else {}
            ),
        },
        **({} if hint is None else {"expected": {**asdict(hint), "hint": hint.sentences()[1]}}),
        "methods": [_without_title(fit) for fit in fits],
        "recommended": best.method if best else None,
        "next_command": best.next_command if best and best.available else None,
    }


def _without_title(fit: Fit) -> dict[str, Any]:
    values = asdict(fit)
    del values["title"]
    return values


def _classes(part: Part) -> tuple[str, ...] | str | None:
    """Class names, "numbers", or None for a party without labels."""
    if part.data.labels is None:
        return None
    names = part.label_names()
    return "numbers" if names is None else names
