"""The metrics that clients have pushed to one Broker (KIP-714), as series that are shown beside its
own.

A metric ``org.apache.kafka.producer.record.send.total`` of a client becomes
``kafka_client_producer_record_send_total``, with the labels ``client_id``, ``client_instance_id``
and the attributes that the client gave. What only grows is a counter, whose deltas are added up here;
everything else is a gauge.

Clients say names and labels themselves, so all of it is bounded: series of one client instance, of
all together, labels of a series and their lengths. A client instance's series are forgotten when it
has not pushed for a while. Every name begins with ``PREFIX``, as no metric of a broker does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from raylog.metrics.metric import MetricType
from raylog.metrics.otlp import Attributes, Point

PREFIX: Final = "kafka_client_"
SERIES_OF_INSTANCE_MAX: Final = 2_000
SERIES_MAX: Final = 50_000
NAME_CHARACTERS_MAX: Final = 200
LABELS_MAX: Final = 16
LABEL_CHARACTERS_MAX: Final = 256
_KAFKA: Final = "org.apache.kafka."
_TOTAL: Final = "_total"
_FOREIGN = re.compile(r"[^a-zA-Z0-9_]")

PairedLabels = tuple[tuple[str, str], ...]
"""Names and values."""
_Series = tuple[str, MetricType, PairedLabels]


@dataclass(frozen=True, slots=True)
class PushedMetric:
    """One metric of clients. ``series``: values by labels."""

    name: str
    type: MetricType
    series: Mapping[PairedLabels, float]


@dataclass(slots=True)
class _Pushes:
    """What one client instance has pushed."""

    expires_ms: int
    values: dict[_Series, float] = field(default_factory=dict)


class ClientSeries:
    """``dropped_points``: for which there was no room. Invariant: ``series_count`` is the number of
    all series.
    """

    def __init__(self) -> None:
        self._instances: dict[str, _Pushes] = {}
        self.series_count = 0
        self.dropped_points = 0

    def take(self, instance_id: str, client_id: str, points: Iterable[Point], *, now_ms: int, expires_ms: int) -> None:
        """One push of a client instance; if it pushes no more, its series end at ``expires_ms``."""
        self.expire(now_ms)
        pushes = self._instances.setdefault(instance_id, _Pushes(expires_ms))
        pushes.expires_ms = expires_ms
        for point in points:
            series = _series_of(point, instance_id, client_id)
            before = pushes.values.get(series)
            if before is None and (len(pushes.values) >= SERIES_OF_INSTANCE_MAX or self.series_count >= SERIES_MAX):
                self.dropped_points += 1
                continue
            self.series_count += before is None
            pushes.values[series] = point.value + (before or 0 if point.is_delta else 0)

    def expire(self, now_ms: int) -> None:
        """Forget the instances that have not pushed for too long."""
        for instance_id in [each for each, pushes in self._instances.items() if pushes.expires_ms <= now_ms]:
            self.series_count -= len(self._instances.pop(instance_id).values)

    def pushed(self, series_max: int, now_ms: int) -> tuple[tuple[PushedMetric, ...], int]:
        """All metrics by name, each with at most ``series_max`` series; and how many series are left
        out.
        """
        self.expire(now_ms)
        found: dict[str, tuple[MetricType, dict[PairedLabels, float]]] = {}
        left_out = 0
        for pushes in self._instances.values():
            for (name, type, labels), value in pushes.values.items():
                series = found.setdefault(name, (type, {}))[1]
                if len(series) < series_max:
                    series[labels] = value
                else:
                    left_out += 1
        for name in [name for name in found if f"{name}{_TOTAL}" in found]:  # OpenMetrics gives both one name
            left_out += len(found.pop(name)[1])
        return tuple(PushedMetric(name, *found[name]) for name in sorted(found)), left_out

    def check(self) -> None:
        """The invariant of the class."""
        assert self.series_count == sum(len(each.values) for each in self._instances.values()), self.series_count


def _series_of(point: Point, instance_id: str, client_id: str) -> _Series:
    name = _FOREIGN.sub("_", point.name.removeprefix(_KAFKA)[:NAME_CHARACTERS_MAX]).removesuffix(_TOTAL)
    type = MetricType.COUNTER if point.is_counter else MetricType.GAUGE
    labels = _labels(point.attributes)
    labels |= {"client_id": client_id[:LABEL_CHARACTERS_MAX], "client_instance_id": instance_id}
    return f"{PREFIX}{name}{_TOTAL if point.is_counter else ''}", type, tuple(sorted(labels.items()))


def _labels(attributes: Attributes) -> dict[str, str]:
    """What names a label in Prometheus begins with a letter; two underscores are its own."""
    labels: dict[str, str] = {}
    for key, value in attributes[:LABELS_MAX]:
        name = _FOREIGN.sub("_", key[:LABEL_CHARACTERS_MAX]).lstrip("_0123456789")
        if name:
            labels[name] = value[:LABEL_CHARACTERS_MAX]
    return labels
