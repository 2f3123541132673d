"""One metric, as an entry of the table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricType(Enum):
    """In Prometheus's words. A counter only grows, until its process ends."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` of a counter ends in ``_total``; of a gauge it does not. ``kafka``: the name of
    Apache Kafka's MBean that means the same; empty: it has none.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    meaning: str
    kafka: str = ""

    def __post_init__(self) -> None:
        assert self.name.endswith("_total") == (self.type is MetricType.COUNTER), self.name
