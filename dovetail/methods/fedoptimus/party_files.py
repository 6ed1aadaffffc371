"""Data from owners' files: a label owner's labels, a data owner's columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from dovetail import data as dd
from dovetail.errors import ConfigError
from dovetail.methods.base import Site
from dovetail.methods.baselines import LocalRows
from dovetail.methods.fedoptimus.local_data import TEST, TRAIN, Columns, Labels
from dovetail.methods.fedoptimus.masked import SummingSettings
from dovetail.methods.fedoptimus.sections import bottom
from dovetail.methods.labels import draw_share
from dovetail.methods.settings.fedoptimus import OwnerSection


def is_label_owner(site: Site) -> bool:
    """A party whose file names a label."""
    return site.table.labels is not None


def dealt(site: Site) -> dict[str, np.ndarray]:
    """Part -> a label owner's rows that train, and those that test, if any.

    Raises:
        ConfigError: no labelled row.
        DataError: rows that cannot be split.
    """
    labelled = site.table.labelled_rows()
    if not len(labelled):
        raise ConfigError(f"party {site.name!r} has no labelled row; leave it out")
    train, test = draw_share(
        site, labelled, site.settings("fedoptimus", OwnerSection).test_share, "test_share"
    )
    return {TRAIN: train, TEST: test} if len(test) else {TRAIN: train}


def labels_of(site: Site, task: dd.Task, rows: Mapping[str, Tensor]) -> Labels:
    """A label owner's labels in the orders that it shares with the data owners.

    It trains on samples in the order of its own rows: so what is drawn does not depend on how an
    alignment numbered them.

    Args:
        rows: part -> its row of each sample.

    Raises:
        DataError: a class that is not among those of all.
    """
    table = site.table
    labels = table.encoded_labels(task)
    scored = {TEST: labels[rows[TEST]]} if TEST in rows else {}
    alone = None
    if TEST in rows and table.blocks:
        parts = {part: table.take(rows[part].numpy()) for part in (TRAIN, TEST)}
        encoder = site.fit_input(parts[TRAIN])
        x = {part: each.encoded(encoder).joined() for part, each in parts.items()}
        alone = LocalRows(task, x[TRAIN], labels[rows[TRAIN]], (x[TEST], scored[TEST]))
    samples, labels_here = rows[TRAIN].argsort(), labels[rows[TRAIN]]
    release = site.settings("fedoptimus", OwnerSection).gradients
    return Labels(
        site.name,
        task,
        labels_here,
        str(table.label),
        samples,
        scored,
        alone,
        release,
        budget=site.policy.section.privacy,
        max_scored=site.policy.section.max_uses,
    )


def columns_of(site: Site, rows: Mapping[str, Mapping[str, Tensor]]) -> Columns:
    """A data owner's rows, encoded by all of them.

    Args:
        rows: label owner -> part -> its row of each sample.
    """
    fitted = site.fit_input()
    x = site.table.encoded(fitted).joined()

    def of(part: str) -> dict[str, dd.SharedRows]:
        return {
            owner: dd.SharedRows(site.name, x, parts[part])
            for owner, parts in rows.items()
            if part in parts
        }

    tested = of(TEST)
    section = site.settings("fedoptimus", OwnerSection)
    spec = bottom(section.bottom, tuple(x.shape[1:]))
    scored = {TEST: tested} if tested else {}
    budget = site.policy.section.privacy
    summing = SummingSettings(section.secure, section.members, section.quorum)
    return Columns(site.name, of(TRAIN), spec, scored, fitted, section.embeddings, budget, summing)
