"""Alignment of columns: which all parties have, and how all encode them alike.

    driver                                     party
    Describe                       -------->   what it offers
                                   <--------   Description: names, types, classes, and of each
                                               column what its rows add to mean, spread or counts
    agree_on: the columns of all,
    one encoding of them, as JSON  -------->   encode: those columns first, then its own

As a set intersection aligns rows, this aligns columns; no row leaves a party. What each side
learns: the driver the descriptions; a party the columns that all have, and their encoding.

A method gives the two messages its own names by a subclass of each, in its own file:

    class Describe(columns.Describe): ...
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from dovetail import data as dd
from dovetail.alignment.times import MOST_ENDS, agree_times, rounded_up
from dovetail.data.survival import MOST_INTERVALS
from dovetail.errors import ConfigError, DataError, MessageError, ModelError
from dovetail.network import Doubles, Integers, Message


class Describe(Message):
    """Driver -> party: what do you offer?"""


class Description(Message):
    """Party -> driver: the columns it offers as common, its classes, how many rows it has.

    ``kinds`` are "numbers", "dates", "categories", or JSON: what makes features of a value.
    Category i is one of column ``category_columns[i]``.
    """

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    # As JSON, so that 1 and "1" differ; of labels that are numbers one, with their mean and scale;
    # of quantiles and of several labels one each; of times to an event one, with the ends of
    # intervals that would suit the party (``times.py``).
    classes: tuple[str, ...]
    num_rows: int
    counts_C: Integers  # rows with a value
    missing_C: Integers  # rows without
    means_C: Doubles
    squares_C: Doubles  # sums of squared deviations from the mean
    categories: tuple[str, ...]
    category_columns: tuple[int, ...]
    category_counts: tuple[int, ...]

    @classmethod
    def of(cls, summaries: Mapping[str, dd.Summary], task: dd.Task, num_rows: int) -> Self:
        """The description of these columns and labels.

        Args:
            summaries: column -> what the party's rows add to its encoding.
            task: what its labels say.
            num_rows: how many of its rows have one.
        """
        listed = [
            (index, category, count)
            for index, summary in enumerate(summaries.values())
            if isinstance(summary, dd.CategorySummary)
            for category, count in sorted(summary.counts.items())  # not as the table has them
        ]
        numbers = [s if isinstance(s, dd.NumberSummary) else None for s in summaries.values()]
        return cls(
            tuple(summaries),
            tuple(map(_kind, summaries.values())),
            classes_of(task),
            num_rows,
            torch.tensor([s.count if s else 0 for s in numbers], dtype=torch.int64),
            torch.tensor([s.missing for s in summaries.values()], dtype=torch.int64),
            torch.tensor([s.mean if s else 0.0 for s in numbers], dtype=torch.float64),
            torch.tensor([s.squares if s else 0.0 for s in numbers], dtype=torch.float64),
            tuple(category for _, category, _ in listed),
            tuple(index for index, _, _ in listed),
            tuple(int(count) for _, _, count in listed),
        )

    def check(self, **sizes: int) -> None:
        """Refuse lists that do not belong together."""
        num = len(self.columns)
        if len(self.kinds) != num or len(set(self.columns)) != num:
            raise MessageError(f"{self.wire_name()}: each column has one name and one kind")
        if not len(self.category_columns) == len(self.category_counts) == len(self.categories):
            raise MessageError(f"{self.wire_name()}: each category has one column and one count")
        super().check(**sizes, C=num)
        if (self.squares_C < 0).any():
            raise MessageError(f"{self.wire_name()}.squares_C: a sum of squares is negative")
        counts = [self.num_rows, *self.category_counts]
        if min(counts) < 0 or (self.counts_C < 0).any() or (self.missing_C < 0).any():
            raise MessageError(f"{self.wire_name()}: a number of rows is negative")
        if not all(0 <= index < num for index in self.category_columns):
            raise MessageError(f"{self.wire_name()}: a category is of a column that is none")

    def summaries(self, names: Sequence[str]) -> dict[str, dd.Summary]:
        """Column -> what the party's rows add to its encoding."""
        summaries: dict[str, dd.Summary] = {}
        for name in names:
            index = self.columns.index(name)
            missing = int(self.missing_C[index])
            if self.kinds[index].startswith("{"):
                summaries[name] = dd.FixedSummary(self.kinds[index], missing)
            elif self.kinds[index] == "categories":
                listed = zip(
                    self.categories, self.category_columns, self.category_counts, strict=True
                )
                counts = {category: count for category, column, count in listed if column == index}
                summaries[name] = dd.CategorySummary(counts, missing)
            else:
                mean, squares = float(self.means_C[index]), float(self.squares_C[index])
                count = int(self.counts_C[index])
                summaries[name] = dd.NumberSummary(
                    count, missing, mean, squares, self.kinds[index] == "dates"
                )
        return summaries


def _kind(summary: dd.Summary) -> str:
    return summary.how if isinstance(summary, dd.FixedSummary) else dd.agreed.kind_of(summary)


# --- What the driver executes --------------------------------------------------------------------


def agree_on(
    described: Mapping[str, Description],
    *,
    section: str,
    max_categories: int = 100,
    alone: bool = False,
) -> tuple[tuple[str, ...], str]:
    """The columns that all offer, in the first party's order, and how raw ones are encoded.

    Args:
        described: party -> what it offers.
        section: of a party file, that may say how labels are scaled.
        max_categories: a column with more keeps so many of the most frequent.
        alone: there need be no common column.

    Raises:
        ConfigError: none, types that differ, or label sets that differ.
    """
    if not described:
        raise ConfigError("there is no member to train with; name at least one party")
    check_labels(described, section=section)
    first, *others = described
    shared = set.intersection(*(set(offered.columns) for offered in described.values()))
    common = tuple(name for name in described[first].columns if name in shared)
    if not common and alone:
        return (), ""
    if not common:
        raise ConfigError(
            "the members have no common column (Eq. 4): "
            + "; ".join(
                f"{party!r} offers {list(offered.columns)[:5]}"
                for party, offered in described.items()
            )
            + ". Name the same columns as common at each"
        )
    kinds = {
        party: dict(zip(offered.columns, offered.kinds, strict=True))
        for party, offered in described.items()
    }
    for name in common:
        for party in others:
            if kinds[party][name] != kinds[first][name]:
                raise ConfigError(
                    f"the common column {name!r} holds {kinds[first][name]} at {first!r} but "
                    f"{kinds[party][name]} at {party!r}; make them one type, or leave it out of "
                    "the common columns"
                )
    try:
        summaries = {party: offered.summaries(common) for party, offered in described.items()}
        encoder = dd.agree(summaries, max_categories=max_categories)
    except DataError as error:
        raise ConfigError(str(error)) from None
    encoding = encoder.to_json()
    ends = {party: _ends(offered) for party, offered in described.items()}
    if any(ends.values()):
        encoding["times"] = agree_times(ends, MOST_INTERVALS)
    return common, json.dumps(encoding)


def _ends(offered: Description) -> list[float]:
    """The ends of intervals that a party's times to an event suggest; none of other labels."""
    described = _objects(offered.classes) if len(offered.classes) == 1 else []
    ends = described[0].get("ends") if described else None
    if not (isinstance(ends, list) and len(ends) <= MOST_ENDS):
        return []
    return [float(end) for end in ends if isinstance(end, int | float) and math.isfinite(end)]


def num_outputs(described: Mapping[str, Description]) -> int:
    """How many outputs a network has that learns their labels: one a class, a number or a label."""
    return len(next(iter(described.values())).classes)


def check_labels(described: Mapping[str, Description], *, section: str) -> None:
    """Refuse parties whose labels differ.

    Raises:
        ConfigError: naming two of them.
    """
    if all(_ends(offered) for offered in described.values()):
        return  # of times to an event each has its own
    first, *others = described
    for party in others:
        if set(described[party].classes) != set(described[first].classes):
            odd = set(described[party].classes) ^ set(described[first].classes)
            names = {name: _several(described[name].classes) for name in (first, party)}
            if any(names.values()) and names[first] != names[party]:
                said = (f"{name!r} {', '.join(each) or 'one'}" for name, each in names.items())
                raise ConfigError(
                    f"several labels are the same at all, and have {' and '.join(said)}; name the "
                    "same labels in the same order at both: a column may be empty"
                )
            if any("scale" in each for each in _objects(odd)):
                raise ConfigError(
                    f"labels that are numbers are learned by one mean and scale, but {first!r} and "
                    f"{party!r} have {' and '.join(sorted(odd))}; give both the same "
                    f"label_scale = [MEAN, SCALE] below [{section}] in their files"
                    + (", of each label by its name" if names[first] else "")
                )
            classes_of = {name: described[name].classes for name in (first, party)}
            texts = {
                name: [each.strip('"') for each in names] for name, names in classes_of.items()
            }
            alike = "".join(f"; {each}" for each in dd.spelled_alike(texts))
            if min(odd).lstrip("-")[:1].isdigit():
                alike += '; numbers that are no classes have task = "regression" or "counts"'
            raise ConfigError(
                f"all members need one label set (Eq. 3), but {sorted(odd)[0]} is a class at only "
                f"one of {first!r} and {party!r}; give both the same classes{alike}"
            )
        if described[party].classes != described[first].classes:
            what = "labels" if _several(described[first].classes) else "classes"
            raise ConfigError(
                f"{first!r} and {party!r} number their {what} in different orders; sort both, and "
                "give both the same positive class, where one names it"
            )


# --- What a party executes -----------------------------------------------------------------------


def classes_of(task: dd.Task) -> tuple[str, ...]:
    """Classes that must be the same at all parties, or how a number is standardised; of several
    labels, for each."""
    if isinstance(task, dd.Classification):
        return tuple(json.dumps(name) for name in task.classes)
    if isinstance(task, dd.Survival):
        ends = rounded_up(np.array(task.cuts)).tolist()
        return (json.dumps({"kind": "survival", "ends": ends}),)
    if isinstance(task, dd.MultiLabel):
        return tuple(json.dumps({"label": name}) for name in task.labels)
    if isinstance(task, dd.MultiTarget):
        each = zip(task.labels, task.means, task.scales, strict=True)
        return tuple(json.dumps({"label": n, "mean": m, "scale": s}) for n, m, s in each)
    if isinstance(task, dd.Quantiles):
        scale = {"mean": task.mean, "scale": task.scale}
        return tuple(json.dumps({"quantile": share, **scale}) for share in task.shares)
    return (json.dumps(dd.shared_json(task)),)


def agreed_times(agreed: str) -> tuple[float, ...]:
    """The ends of intervals that ``agree_on`` says; none where there are none.

    Raises:
        MessageError: they do not rise.
    """
    try:
        times = json.loads(agreed).get("times", ()) if agreed else ()
    except (ValueError, AttributeError):
        return ()  # whoever encodes columns by it says so
    ends = tuple(float(end) for end in times if isinstance(end, int | float))
    if len(ends) > MOST_INTERVALS or any(
        not low < high < math.inf for low, high in itertools.pairwise((0.0, *ends))
    ):
        raise MessageError("the agreed intervals of times do not rise from 0 on")
    return ends


def _objects(class_names: Iterable[str]) -> list[dict[str, Any]]:
    """Those that are objects of JSON, which no class is; none where a member's are no JSON."""
    try:
        read = [json.loads(each) for each in class_names if each.startswith("{")]
    except (ValueError, RecursionError):
        return []
    return [each for each in read if isinstance(each, dict)]


def _several(class_names: Iterable[str]) -> list[str]:
    """Names of several labels; none of other tasks."""
    return [str(each["label"]) for each in _objects(class_names) if "label" in each]


def encoder_of(
    table: dd.Table,
    common: Sequence[str],
    agreed: str,
    *,
    categorical: Sequence[str] = (),
    max_categories: int = 100,
    party: str,
) -> tuple[dd.TableEncoder, int]:
    """Encoder of a party's rows, common columns first, and the number of features of these.

    Args:
        table: its training rows; its other columns are encoded by them.
        common: the columns that all have.
        agreed: how all encode these, as ``agree_on`` says it; not read where there are none.

    Raises:
        MessageError: an encoding that is none of these columns.
    """
    shared = dd.TableEncoder("all", ())
    if common:
        try:
            shared = dd.TableEncoder.from_json(json.loads(agreed))
        except (ValueError, DataError, ModelError) as error:
            raise MessageError(f"the agreed encoding cannot be read ({error})") from None
        shared = shared.on_site(table)
    if shared.columns != tuple(common):
        raise MessageError("the agreed encoding is not of the common columns")
    rest = dd.fit_rest(table, common, categorical, max_categories, party=party)
    return dd.common_first(shared, rest, party=party).watching(table), shared.num_features
