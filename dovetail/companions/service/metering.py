"""Counts of the service, in Prometheus' format."""

from __future__ import annotations

import logging
from collections import Counter as CounterOf
from collections.abc import Sequence

import scipy.special  # noqa: F401  # what watching needs, before requests are in flight
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dovetail.companions.service.rows import Asked
from dovetail.companions.service.served import Served
from dovetail.models.watching import Watcher

_LOG = logging.getLogger("dovetail.companions.service")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Meters:
    """Counters of one service, and the watchers of its models' columns."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        kept = self._registry
        self._requests = Counter(
            "dovetail_requests", "Requests for predictions.", ["model", "status"], registry=kept
        )
        self._rows = Counter("dovetail_rows", "Rows that were predicted.", ["model"], registry=kept)
        self._said = Counter(
            "dovetail_rows_said",
            "Rows of a joint model by who said them: it with these partners, or the solo model.",
            ["model", "by", "partners"],
            registry=kept,
        )
        self._seconds = Histogram(
            "dovetail_request_seconds",
            "From a request's arrival to its answer.",
            ["model"],
            buckets=_SECONDS,
            registry=kept,
        )
        self._batch = Histogram(
            "dovetail_batch_rows",
            "Rows of one run of the model.",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384),
            registry=kept,
        )
        self._shift = Gauge(
            "dovetail_column_psi",
            "Population stability index of a column's latest rows against training.",
            ["model", "column"],
            registry=kept,
        )
        self._alarm = Gauge(
            "dovetail_column_alarm",
            "1 where a column's latest rows differ from training.",
            ["model", "column"],
            registry=kept,
        )
        self._watchers: dict[str, Watcher] = {}

    def answered(self, model: str, status: int, num_rows: int, seconds: float) -> None:
        self._requests.labels(model, str(status)).inc()
        if num_rows:
            self._rows.labels(model).inc(num_rows)
        self._seconds.labels(model).observe(seconds)

    def said(self, model: str, by: Sequence[Sequence[str]]) -> None:
        """Rows that a joint model said with these partners; () where the solo model did."""
        for partners, num_rows in CounterOf(map(tuple, by)).items():
            who = "joint" if partners else "solo"
            self._said.labels(model, who, ",".join(partners)).inc(num_rows)

    def ran(self, model: Served, num_rows: int) -> None:
        self._batch.labels(model.name).observe(num_rows)

    def watch(self, model: Served, asked: Asked) -> None:
        """Take rows into account that were predicted."""
        watcher = self._watchers.get(model.name)
        if watcher is None or watcher.version != model.version:
            watcher = Watcher(model.name, model.version, [*model.reader.columns.values()])
            self._watchers[model.name] = watcher
        drifts = watcher.add(asked.feeds)
        news = watcher.news(drifts)
        if news is not None:
            _LOG.warning("model %s: %s", model.name, news)
        for drift in drifts:
            self._shift.labels(model.name, drift.column).set(drift.psi)
            self._alarm.labels(model.name, drift.column).set(float(bool(drift.alarms)))

    def text(self) -> bytes:
        return generate_latest(self._registry)
