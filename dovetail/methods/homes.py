"""What methods share whose parties all have labels of their own, and a coordinator has no data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import ValidationError

from dovetail import data as dd
from dovetail.data.datasets import draw_rows
from dovetail.errors import ConfigError
from dovetail.methods.base import Run
from dovetail.methods.party import Site

H = TypeVar("H")


@dataclass(frozen=True, eq=False)
class Homes(dd.Partitioned, Generic[H]):
    """Party files of one process: each encodes its own rows when training begins.

    Attributes:
        holdings: party -> its rows; none of those that are elsewhere.
    """

    holdings: Mapping[str, H]

    @classmethod
    def nobody(cls, classes: tuple[str | int, ...] = ()) -> Homes[H]:
        """What a coordinator has, whose parties are elsewhere: no row."""
        return cls(dd.Federation([]), None, dd.Classification(classes), {}, "", {})


def check_stages(
    run: Run,
    section: str,
    own: Mapping[str, Mapping[str, Any]],
    stages: Collection[str],
    make: Callable[[str, Mapping[str, Any]], object],
    *,
    where: str,
) -> None:
    """Refuse a stage's own settings for a stage that is none, or that cannot be.

    Args:
        section: the method's section of the run file.
        own: stage -> its settings, as the file has them.
        stages: all there are.
        make: the settings of a stage, from its own ones; raises pydantic's error.

    Raises:
        ConfigError: naming the file and the section.
    """
    for stage in own:
        if stage not in stages:
            raise ConfigError(
                f"{where}: [{section}.stages.{stage}] is no stage; there are {', '.join(stages)}"
            )
    for stage in dict.fromkeys((run.method, *run.rulers, *own)):
        check_settings(
            make, stage, own.get(stage, {}), where=f"{where}, [{section}.stages.{stage}]"
        )


def check_settings(
    make: Callable[[str, Mapping[str, Any]], object],
    stage: str,
    own: Mapping[str, Any],
    *,
    where: str,
) -> None:
    """Refuse settings of a stage that cannot be.

    Raises:
        ConfigError: the first of them, in one sentence.
    """
    try:
        make(stage, own)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise ConfigError(
            f"{where}: {name}: {first['msg'].removeprefix('Value error, ')}, "
            f"got {first.get('input')!r}"
        ) from None


def check_nobody_is_active(run: Run, section: str, *, where: str) -> None:
    """Refuse keys of the run file that only an active party gives sense to.

    Raises:
        ConfigError: naming the file.
    """
    if run.active is not None or run.test is not None:
        raise ConfigError(
            f"{where}: active and test are not for {run.method!r}: nobody is the active party, and "
            f"test_share stands below [{section}] in each party's own file"
        )


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
    assert site.table.labels is not None
    whose = f"labelled rows of party {site.name!r} with {what} = {share}"
    left, drawn = draw_rows(site.table.labels.take(rows), share, seed=0, stratify=True, whose=whose)
    return rows[np.sort(left)], rows[np.sort(drawn)]
