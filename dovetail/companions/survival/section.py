"""Sections of files about survival curves: [survival] of a run file and of a party file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from dovetail.methods.settings.shared import FileRecord
from dovetail.settings.privacy import PrivateSteps
from dovetail.settings.section import PartyName, Section


class Settings(Section):
    """[survival] of a run file."""

    group: str | None = None  # a column of all parties, whose values are compared; None: one curve
    columns: tuple[str, ...] = ()  # of method = "cox": numbers that all parties have
    times: tuple[float, ...] = ()  # where intervals end; none: agreed by quantiles of events
    least: int = Field(default=5, ge=1)  # intervals with fewer events, but some, are joined
    secure: bool = True  # counts are summed in secret, by three parties or more
    private: PrivateSteps | None = None  # noise that each party adds to its counts


class MemberSection(Section):
    """[survival] of a party file: what it lets be counted."""

    min_events: int = Field(default=5, ge=0)  # no finer intervals than one for so many own events
    columns: tuple[str, ...] = ("*",)  # that runs group by or regress on; names take *
    times: tuple[float, ...] = ()  # the only ends of intervals that it counts to; none: any
    secure: bool = True  # count only where counts are summed in secret
    members: tuple[PartyName, ...] | None = None  # whom it sums with; None: whoever is certified
    private: PrivateSteps | None = None  # noise on its counts; None: as the run says


class SurvivalRecord(FileRecord):
    """Kaplan and Meier's curves and the log-rank test of several parties' rows."""

    name = "survival"
    plugin = "dovetail.companions.survival.plugin:Survival"
    command = "survival"
    Settings = Settings
    PartySettings = MemberSection
    variants: ClassVar[Mapping[str, str]] = {
        "kaplan-meier": "Kaplan and Meier's curves",
        "cox": "Cox regression",
    }
    driven_by = "coordinator"
