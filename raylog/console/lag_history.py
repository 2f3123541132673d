"""How far groups are behind, over time: the console asks every few seconds and remembers an hour.

Kafka keeps no history of lag, so the graph begins when the console starts. The first
``GROUPS_MAX`` groups by name are asked for, and those whose page was opened. The pages that show several
groups take what the last sample has, so they ask nothing of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.console.view import ClusterView
from raylog.errors import RaylogError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.admin import TopicDescription

EVERY_S = 5.0
RECENT_S = 2 * EVERY_S
POINTS_MAX = 720
GROUPS_MAX = 50
WATCHED_MAX = 200
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 170, 64, 12, 24


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Of one partition of a group. ``committed`` and ``lag`` None: nothing is committed there;
    ``end`` None: nobody leads the partition, or the topic is gone.
    """

    key: TopicPartition
    committed: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


def lags_of(
    view: ClusterView, groups: Sequence[str], assigned: Mapping[str, Sequence[TopicPartition]] | None = None
) -> dict[str, list[PartitionLag]]:
    """The partitions that each group has committed, or is assigned, with one question for all ends."""
    committed = {group: view.admin.list_group_offsets(group) for group in groups}
    keys = {group: sorted({*committed[group], *(assigned or {}).get(group, ())}) for group in groups}
    asked = _led(view, {key for each in keys.values() for key in each})
    ends = view.admin.list_offsets(dict.fromkeys(asked, "latest")) if asked else {}
    return {
        group: [
            PartitionLag(
                key,
                committed[group][key].offset if key in committed[group] else None,
                ends[key].offset if key in ends else None,
            )
            for key in keys[group]
        ]
        for group in groups
    }


def _led(view: ClusterView, keys: Set[TopicPartition]) -> list[TopicPartition]:
    """Those of the partitions that have a leader. Groups may commit what is newer than the answer
    that the view has kept: where one is missing there, the cluster is asked anew.
    """
    topics = view.topics()
    found = keys & _with_leader(topics, keys)
    if len(found) < len(keys):
        found = keys & _with_leader(view.topics(instead_of=topics), keys)
    return sorted(found)


def _with_leader(topics: Mapping[str, TopicDescription], keys: Set[TopicPartition]) -> set[TopicPartition]:
    """All partitions with a leader, of the topics that the keys name."""
    return {
        TopicPartition(name, part.partition)
        for name in {key.topic for key in keys} & topics.keys()
        for part in topics[name].partitions
        if part.leader >= 0
    }


def total(lags: Sequence[PartitionLag]) -> int:
    return sum(each.lag or 0 for each in lags)


class LagHistory:
    """Lag of groups by time in ms, the last ``POINTS_MAX`` points of each."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def add(self, now_ms: int, lags: Mapping[str, int]) -> None:
        """Groups that are gone are forgotten."""
        with self._lock:
            for group, lag in lags.items():
                self._points.setdefault(group, deque(maxlen=POINTS_MAX)).append((now_ms, lag))
            for group in self._points.keys() - lags.keys():
                del self._points[group]

    def of(self, group: str) -> list[tuple[int, int]]:
        with self._lock:
            return list(self._points.get(group, ()))


class LagSampler:
    """Fills a history from a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, view: ClusterView) -> None:
        self.history = LagHistory()
        self._view = view
        self._last: dict[str, list[PartitionLag]] = {}
        self._last_at_s = float("-inf")
        self._watched: dict[str, None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raylog-console-lag", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def watch(self, group: str) -> None:
        """Ask for this group, too; the ones watched longest ago make room."""
        self._watched.pop(group, None)
        self._watched[group] = None
        while len(self._watched) > WATCHED_MAX:
            self._watched.pop(next(iter(self._watched)), None)

    def sample(self) -> None:
        """Ask once. Raises RaylogError."""
        there = [each.group_id for each in self._view.groups()]
        groups = sorted({*there[:GROUPS_MAX], *(self._watched.keys() & set(there))})
        begun_s = time.monotonic()
        lags = lags_of(self._view, groups)
        self._last, self._last_at_s = lags, begun_s
        self.history.add(round(time.time() * 1000), {group: total(each) for group, each in lags.items()})

    def recent(self) -> Mapping[str, list[PartitionLag]]:
        """The last sample, by group; empty if it is older than ``RECENT_S`` because the next has failed."""
        return self._last if time.monotonic() - self._last_at_s < RECENT_S else {}

    def lags(self, groups: Sequence[str]) -> dict[str, list[PartitionLag]]:
        """Those of the last sample; what it lacks is asked for. Raises RaylogError."""
        known = self.recent()
        missing = [group for group in groups if group not in known]
        found = {group: known[group] for group in groups if group in known}
        return found | (lags_of(self._view, missing) if missing else {})

    def forget(self, group: str) -> None:
        """Its offsets were set anew: the last sample does not count for it."""
        self._last = {name: lags for name, lags in self._last.items() if name != group}

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(RaylogError):  # a gap in the graph; the pages say what is wrong
                self.sample()
            self._stopping.wait(EVERY_S)


@dataclass(frozen=True, slots=True)
class LagChart:
    """A line as the points of an SVG polyline; grid lines as height and label; the times at both
    ends in ms.
    """

    points: str
    grid: list[tuple[float, str]]
    first_ms: int
    last_ms: int


def chart(points: Sequence[tuple[int, int]]) -> LagChart | None:
    """The chart of a group's lag; None while there are fewer than two points."""
    if len(points) < 2:
        return None
    first_ms, last_ms = points[0][0], points[-1][0]
    top = _round_up(max(lag for _, lag in points))
    height = HEIGHT - TOP - BOTTOM

    def y(lag: float) -> float:
        return round(TOP + height * (1 - lag / top), 1)

    across = max(1, last_ms - first_ms)
    line = " ".join(f"{LEFT + (WIDTH - LEFT - 8) * (at - first_ms) / across:.1f},{y(lag)}" for at, lag in points)
    return LagChart(line, [(y(top * part), f"{top * part:,.0f}") for part in (0, 0.5, 1)], first_ms, last_ms)


def _round_up(lag: int) -> int:
    """The next even number whose first digit alone is not 0: 1,734 → 2,000."""
    if lag <= 10:
        return 10
    step = int("1" + "0" * (len(str(lag)) - 1))
    return -(-lag // step) * step
