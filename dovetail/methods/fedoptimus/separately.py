"""Each label owner's run by itself: what drives the baseline "alone"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.federated import Federation
from dovetail.methods import separately
from dovetail.methods.fedoptimus.coordinator import RunDriver
from dovetail.methods.fedoptimus.requests import Round, num_bytes


class Separately(separately.Separately[RunDriver]):
    """A coordinator for each label owner, by name."""

    def together(self, done: Mapping[str, Any], network: Federation) -> Round:
        rounds = list(done.values())
        metrics = {
            "loss": sum(each.metrics["loss"] for each in rounds) / len(rounds),
            "steps": max(each.metrics["steps"] for each in rounds),
            "bytes": num_bytes(network),
        }
        missed = {name: num for each in rounds for name, num in each.missed.items()}
        reasons = {name: why for each in rounds for name, why in each.reasons.items()}
        return Round(metrics=metrics, missed=missed, reasons=reasons)

    def participants_of(self, label_owner: str) -> tuple[str, ...]:
        """The data owners whose embeddings this label owner's top knows."""
        return self.runs[label_owner].participants
