"""Tasks that fit the labels of parties that all have some: classes, numbers, times, or several at
once.

A party in one process with the others learns what all their labels say; over a network its own
file says what must be alike, and whoever drives compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail import data as dd
from dovetail.data.datasets import draw_rows
from dovetail.data.several import check_yes_or_no
from dovetail.data.tables import distinct
from dovetail.errors import ConfigError, DataError
from dovetail.methods.base import SILENT, Progress, Site
from dovetail.methods.settings.shared import LabelScale
from dovetail.settings.labels import label_columns

_NUMBERS = ("regression", "quantiles", "multitarget")

#: Labels of which each party has a baseline, or a mean, of its own; no other gets to know it.
OWN_BASELINE = dd.Survival | dd.Counts


def check_labels(site: Site, method: str) -> None:
    """Refuse a party without labels.

    Raises:
        ConfigError: naming the party and its file.
    """
    if site.table.labels is None:
        raise ConfigError(
            f"party {site.name!r} has no labels, which {method} needs at every party; name its "
            f"column with label = ... in {site.where}"
        )


def draw_share(
    site: Site, rows: np.ndarray, share: float, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """The labelled rows that are left and those that are drawn, each in the table's order."""
    if not share:
        return rows, rows[:0]
    whose = f"labelled rows of party {site.name!r} with {what} = {share}"
    left, drawn = draw_rows(
        site.table.required_labels.take(rows),
        share,
        seed=site.split_seed(what),
        stratify=site.party.task == "classification",
        whose=whose,
    )
    return rows[np.sort(left)], rows[np.sort(drawn)]


# --- Of one party --------------------------------------------------------------------------------


def local_task(site: Site, section: Any) -> dd.Task:
    """Task of a party with labels, by its own file.

    Raises:
        ConfigError: a ``label_scale`` that is not of its labels, or of labels that have none.
        DataError: labels that cannot be learned.
    """
    kind = site.party.task
    if section.label_scale is not None:
        if kind not in _NUMBERS:
            raise ConfigError(
                f"party {site.name!r}: label_scale is for numbers that all parties standardise "
                f"alike, and its label is of {kind}; leave it out"
            )
        return scaled(section.label_scale, site)
    if kind == "multilabel":
        return _labels_of(site)
    if kind == "classification":
        return dd.Classification(local_classes(site, section))
    return _fit([site], [section], kind)


def own_baseline(site: Site, section: Any) -> dd.Task | None:
    """Times to an event, counts or amounts, by a party's own rows; None of other labels."""
    if site.party.task not in ("survival", "counts", "amounts"):
        return None
    return local_task(site, section)


def local_classes(site: Site, section: Any) -> tuple[str | int, ...]:
    """All classes that a party's file names, or else its table has.

    Args:
        site: the party, which has labels.
        section: its own of the method.
    """
    labels = site.table.required_labels
    present = labels.values[~labels.missing]
    if section.classes:
        return dd.in_order(section.classes, site.table.positive)
    dd.check_classes(present, label=str(site.table.label))
    return dd.in_order(distinct(present)[0].tolist(), site.table.positive)


def scaled(
    scale: LabelScale, site: Site | None = None, *, quantiles: bool = False
) -> dd.Regression | dd.Quantiles | dd.MultiTarget:
    """Task of labels that are standardised so; of several in the site's order, or in this one.

    Args:
        quantiles: of a number these are learned, where no site says so.

    Raises:
        ConfigError: it is not of the site's labels.
    """
    one = not isinstance(scale, dict) if site is None else site.party.task != "multitarget"
    if isinstance(scale, tuple) and one:
        mean, deviation = map(float, scale)
        quantiles = quantiles or (site is not None and site.party.task == "quantiles")
        return dd.Quantiles(mean, deviation) if quantiles else dd.Regression(mean, deviation)
    names = tuple(scale) if isinstance(scale, dict) else ()
    own = names if site is None else label_columns(str(site.table.label))
    if site is not None and (one or set(own) != set(names)):
        raise ConfigError(
            f"party {site.name!r}: label_scale is "
            + ("[MEAN, SCALE]" if one else "{ LABEL = [MEAN, SCALE], ... }")
            + f" of {' and '.join(own)}, got {scale!r}"
        )
    assert isinstance(scale, dict)
    means, scales = zip(*(map(float, scale[name]) for name in own), strict=True)
    return dd.MultiTarget(own, means, scales)


# --- Of parties in one process -------------------------------------------------------------------


def common_task(
    sites: Mapping[str, Site],
    name: str,
    whose: str,
    *,
    where: str,
    talk: Progress = SILENT,
) -> dd.Task:
    """All classes that parties of one process have between them, or what else their labels are:
    of times, counts and amounts the first party's.

    Args:
        sites: the parties with labels.
        name: the section that each of their files has of the method.
        whose: "parties'", for the error.
        talk: warned of classes that differ in case alone.

    Raises:
        ConfigError: labels of several kinds, or classes of several.
        DataError: labels that cannot be learned.
    """
    task = common_labels(sites, name, where=where)
    if task is not None:
        return task
    first, *_ = sites.values()
    if first.party.task != "classification":
        return first.table.fit_task(kind=first.party.task)
    classes_of = {each: local_classes(site, site.sections[name]) for each, site in sites.items()}
    for sentence in dd.spelled_alike(classes_of):
        talk.warn(f"{where}: {sentence}")
    classes = set[str | int]().union(*classes_of.values())
    if len({isinstance(each, str) for each in classes}) > 1:
        raise ConfigError(
            f"{where}: the {whose} classes are numbers and texts: {sorted(map(str, classes))}"
        )
    positive = {site.table.positive for site in sites.values()}
    if len(positive) > 1:
        raise ConfigError(
            f"{where}: positive is not the same class at all: {sorted(map(str, positive))}; give "
            "all the same below [party.encode]"
        )
    return dd.Classification(dd.in_order(np.unique(list(classes)).tolist(), *positive))


def common_labels(sites: Mapping[str, Site], name: str, *, where: str) -> dd.Task | None:
    """Task of the labels of parties in one process, if they are numbers or several: numbers are
    standardised by the training rows of all; None of classes, and if each party has its own
    baseline.

    Args:
        sites: the parties with labels.
        name: the section that each of their files has of the method.

    Raises:
        ConfigError: labels of several kinds or names, or files that say different scales.
        DataError: a value that cannot be learned, or a label that no party has.
    """
    kinds = {each: site.party.task for each, site in sites.items()}
    first = next(iter(sites), "")
    if odd := next((each for each in kinds if kinds[each] != kinds[first]), None):
        raise ConfigError(
            f"{where}: the label of {first!r} is of {kinds[first]}, that of {odd!r} of "
            f"{kinds[odd]}; give all the same task"
        )
    kind = kinds.get(first)
    if kind not in (*_NUMBERS, "multilabel"):
        return None
    if kind.startswith("multi"):
        labels = {each: label_columns(str(site.table.label)) for each, site in sites.items()}
        if odd := next((each for each in labels if labels[each] != labels[first]), None):
            raise ConfigError(
                f"{where}: the labels of {first!r} are {', '.join(labels[first])}, those of "
                f"{odd!r} {', '.join(labels[odd])}; name the same in the same order at all: a "
                "column may be empty"
            )
    sections: dict[str, Any] = {each: site.sections[name] for each, site in sites.items()}
    if kind == "multilabel":
        for site in sites.values():
            _labels_of(site)
        return _fit(list(sites.values()), list(sections.values()), kind)
    scales = [s.label_scale for s in sections.values() if s.label_scale is not None]
    if any(scale != scales[0] for scale in scales):
        said = " and ".join(dict.fromkeys(_text(scale) for scale in scales))
        raise ConfigError(
            f"{where}: the parties' files say different scales of the label, {said}; give all the "
            "same"
        )
    if scales:
        return scaled(scales[0], sites[first])
    return _fit(list(sites.values()), list(sections.values()), kind)


def _text(scale: LabelScale) -> str:
    if isinstance(scale, dict):
        return "{ " + ", ".join(f"{name} = {list(each)}" for name, each in scale.items()) + " }"
    return str(list(scale))


def _labels_of(site: Site) -> dd.MultiLabel:
    """A party's labels, of which its rows need have none that is yes, or none at all.

    Raises:
        DataError: a value that is neither yes nor no.
    """
    names = label_columns(str(site.table.label))
    try:
        for name, values in zip(names, site.table.required_labels.values.T, strict=True):
            check_yes_or_no(name, values[~np.isnan(values)])
    except DataError as error:
        raise DataError(f"party {site.name!r}: {error}") from None
    return dd.MultiLabel(names)


def _fit(sites: Sequence[Site], sections: Sequence[Any], kind: dd.Kind) -> dd.Task:
    """Task that fits the training rows of these parties together."""
    parts = []
    for site, section in zip(sites, sections, strict=True):
        rest, _ = draw_share(site, site.table.labelled_rows(), section.test_share, "test_share")
        parts.append(site.table.required_labels.take(rest))
    values = np.concatenate([part.values for part in parts])
    missing = np.concatenate([part.missing for part in parts])
    party, label = (sites[0].name if len(sites) == 1 else None), str(sites[0].table.label)
    return dd.fit_task(values, missing, kind=kind, label=label, party=party)
