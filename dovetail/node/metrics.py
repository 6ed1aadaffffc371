"""Figures of a running process as families of Prometheus' metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

#: Value of the label, or values of several; "" where there is no label.
K = TypeVar("K", bound=str | tuple[str, ...])
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


def gauge(name: str, about: str, labels: str, figures: Mapping[K, float]) -> GaugeMetricFamily:
    """A figure that goes up and down, by these labels ("" for none, else with blanks between)."""
    return _filled(GaugeMetricFamily(name, about, labels=labels.split()), figures)


def counter(name: str, about: str, labels: str, figures: Mapping[K, float]) -> CounterMetricFamily:
    """A figure that only grows, by these labels."""
    return _filled(CounterMetricFamily(name, about, labels=labels.split()), figures)


def _filled(family: F, figures: Mapping[K, float]) -> F:
    for key, figure in figures.items():
        labels: tuple[str, ...] = key if isinstance(key, tuple) else (key,) if key else ()
        family.add_metric(labels, figure)
    return family
