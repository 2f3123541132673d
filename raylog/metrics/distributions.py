"""The counts of a histogram's series put together, for those who show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raylog.metrics.metric import SUM
from raylog.metrics.registry import BOUND_TEXTS, Labels


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has counted under some labels. ``counts[i]`` values were at most
    ``BOUND_TEXTS[i]`` milliseconds, and more than the bound before. ``sum_ms``: of all values.
    """

    labels: Labels
    counts: tuple[float, ...]
    sum_ms: float

    @property
    def count(self) -> float:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Each bound with how many values were at most that, as Prometheus counts."""
        total = 0.0
        for bound, count in zip(BOUND_TEXTS, self.counts, strict=True):
            total += count
            yield bound, total


def distributions(series: Mapping[Labels, float]) -> Iterator[Distribution]:
    """Of the series of one metric, in the order of their labels."""
    for labels in sorted({each[:-1] for each in series}):
        counts = tuple(series.get((*labels, bound), 0.0) for bound in BOUND_TEXTS)
        yield Distribution(labels, counts, series.get((*labels, SUM), 0.0))
