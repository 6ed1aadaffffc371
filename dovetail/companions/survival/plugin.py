"""Curves over parties in a run file: [survival]; and in a party's own file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from dovetail import data as dd
from dovetail.companions.survival import cox, survival
from dovetail.companions.survival.cox_model import cox_model
from dovetail.companions.survival.local_data import Times
from dovetail.companions.survival.section import MemberSection, SurvivalRecord
from dovetail.errors import ConfigError
from dovetail.methods.base import Algorithm, Run, Site, algorithm
from dovetail.methods.facets.declared import Proposed
from dovetail.methods.labels import check_labels
from dovetail.methods.local_data import DRIVER
from dovetail.methods.method import Method
from dovetail.methods.training import Variant, VariantRun
from dovetail.models import Model


class CurvesVariant(Variant):
    """An analysis: nothing is scored; of a Cox regression the coordinator keeps a model."""

    def about(self, variant_run: VariantRun) -> dict[str, Any]:
        """Curves, and what noise has cost."""
        key = "cox" if variant_run.name == "cox" else "survival"
        return {**super().about(variant_run), key: variant_run.driver.result()}

    def kept(self, variant_run: VariantRun) -> dict[str, Model]:
        """The coordinator's; it knows a label's name if all parties here call it so."""
        if variant_run.name != "cox":
            return {}
        labels = {local_data.label for local_data in variant_run.party_data.values()}
        about = {"method": "cox", **({"label": labels.pop()} if len(labels) == 1 else {})}
        return {DRIVER: cox_model(variant_run.driver.result(), party=DRIVER, about=about)}


class CurvesProposed(Proposed):
    """Facet of proposals: what a party lets be counted."""

    def describe(self, site: Site, agreed: Collection[str]) -> Iterator[str]:
        """Sentences on the party's part in what its policy agrees to."""
        if "survival" in agreed and site.party.task == "survival":
            section = site.settings("survival", MemberSection)
            how = "summed in secret" if section.secure else "in the clear, where a run asks so"
            yield (
                f"counts     events and rows at risk, {how}, at most one interval for "
                f"{section.min_events} events"
            )


class Survival(SurvivalRecord, Method):
    """Kaplan and Meier's curves and the log-rank test of several parties' rows."""

    partitions = ()
    Side = cox.Member
    algorithms: ClassVar[Mapping[str, Algorithm]] = {"survival": algorithm("survival", cox.Member)}
    proposed = CurvesProposed()
    models = (
        "No party keeps a model: the coordinator has curves of all parties' rows together, or the "
        "model of a Cox regression."
    )

    def check(self, run: Run, *, where: str) -> None:
        """Refuse times that do not rise."""
        times = run.settings(self.name, survival.Settings).times
        ends = np.array([0.0, *times])
        if not (np.isfinite(ends).all() and (np.diff(ends) > 0).all()):
            raise ConfigError(f"{where}, [survival]: times rise from above 0, got {list(times)}")

    def local_data(self, site: Site) -> Times:
        """A party's rows that have a time."""
        check_labels(site, "a curve")
        if site.party.task != "survival" or not isinstance(site.table.x, dd.Table):
            raise ConfigError(
                f"party {site.name!r}: curves are of times to an event; give label = "
                f"{{ time = ..., event = ... }} of a table in {site.where}"
            )
        rows = site.table.labelled_rows()
        signed = site.table.required_labels.values[rows]
        section = site.settings(self.name, MemberSection)
        min_rows = site.policy.section.min_rows
        x, label = site.table.x.take(rows), str(site.table.label)
        return Times(site.name, signed, x, section, min_rows, label)

    def variant(self, variant: str) -> Variant:
        """The analysis."""
        return CurvesVariant()

    def driver(self, variant: str, settings: Any, seed: int) -> survival.Driver:
        """Driver that asks for the sum."""
        kind = cox.Driver if variant == "cox" else survival.Driver
        return kind(settings, seed=seed)
