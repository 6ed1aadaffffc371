"""A table of events, of which a sample has several rows: ``[party.events]`` of a party file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dovetail.settings.section import Section


class EventsSection(Section):
    """How events (visits, payments, calls) become one row a sample."""

    per: str  # the column that says whose event it is; the party's id
    time: str  # the column with the day of the event
    # the day before which events count: a column with one day a sample, or YYYY-MM-DD; none: the
    # day after the table's last event
    before: str | None = None
    # so many days back, each; counts, sums, means and shares are of each
    windows: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(30, 365), min_length=1)
    most: int = Field(default=5, ge=0, le=50)  # categories of a column that have a share
