"""One metric, as an entry of the table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricType(Enum):
    """In Prometheus's words. A counter only grows, until its process ends, and so do the counts and the
    sum of a histogram.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


BOUND: Final = "le"
"""Prometheus's label for the upper bound of a count of a histogram."""
SUM: Final = "sum"
"""Stands in its place for the sum."""


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` of a counter ends in ``_total``; of a gauge it does not. ``kafka``: the name of
    Apache Kafka's MBean that means the same; empty: it has none.

    A histogram is of milliseconds. Inside, each of its counts, and its sum, is a series of its own
    with ``BOUND`` as the last label.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    meaning: str
    kafka: str = ""

    def __post_init__(self) -> None:
        assert self.type is not MetricType.HISTOGRAM or "topic" not in self.labels, f"{self.name} would not be bounded"
        assert self.name.endswith("_total") == (self.type is MetricType.COUNTER), self.name

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of what a series is known by."""
        return (*self.labels, BOUND) if self.type is MetricType.HISTOGRAM else self.labels
