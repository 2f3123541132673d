"""What a process holds: memory, requests that are not answered, tasks, connections, handles, and every container of raylog's objects.

``Sample.of`` is taken when nothing is under way, so tasks, connections, descriptors and timers must come back to what they were. A
table may grow to what its bound is; one that goes on growing with what was fed is a leak (``growing``). So may the requests that wait
inside: a member that joins a group waits there as long as its rebalance timeout says, though its client has gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fuzz_report import GROWTH_BYTES_MAX, resident_bytes

from raylog.wire.server import Server

SLACK: Final = {"tasks": 16, "connections": 16, "descriptors": 16, "timers": 256}
"""How many more there may be than at first: links between servers that are made when they are needed, timers of what waits there."""
TABLE_SHARE_MAX: Final = 0.02
TABLE_ENTRIES_MIN: Final = 5_000
_CONTAINERS: Final = (dict, list, set, deque)


@dataclass(frozen=True)
class Sample:
    """``tables``: the entries of all containers that are attributes of raylog's objects, by class and attribute."""

    frames: int
    memory_bytes: int
    requests: int
    tasks: int
    connections: int
    descriptors: int
    timers: int
    objects: int
    tables: Mapping[str, int]

    @classmethod
    def of(cls, frames: int, loop: asyncio.AbstractEventLoop, servers: Sequence[Server]) -> Sample:
        gc.collect()
        tables: Counter[str] = Counter()
        objects = gc.get_objects()
        for each in objects:
            kind = type(each)
            if str(kind.__module__).startswith("raylog."):
                for name, value in _attributes(each):
                    if isinstance(value, _CONTAINERS):
                        tables[f"{kind.__name__}.{name}"] += len(value)
        return cls(
            frames,
            resident_bytes(),
            sum(each.in_flight_requests for server in servers for each in server.connections),
            len(asyncio.all_tasks(loop)),
            sum(len(server.connections) for server in servers),
            len(os.listdir("/proc/self/fd")),
            len(getattr(loop, "_scheduled", ())),
            len(objects),
            dict(tables),
        )

    def __str__(self) -> str:
        return (
            f"{self.frames:>11,} frames: {self.memory_bytes / (1 << 20):7.1f} MiB, {self.requests:>3} requests, {self.tasks:>3} tasks, "
            f"{self.connections:>2} connections, {self.descriptors:>3} descriptors, {self.timers:>3} timers, "
            f"{self.objects:>9,} objects"
        )


def growing(samples: Sequence[Sample]) -> list[str]:
    """What has grown, in words. The first sample is what the others are held against."""
    first, last = samples[0], samples[-1]
    found = []
    for name, slack in SLACK.items():
        at_first, at_last = getattr(first, name), getattr(last, name)
        if at_last > at_first + slack:
            found.append(f"{name} have grown from {at_first} to {at_last}")
    if last.memory_bytes - first.memory_bytes > GROWTH_BYTES_MAX:
        found.append(f"memory has grown by {(last.memory_bytes - first.memory_bytes) >> 20} MiB")
    middle = samples[len(samples) // 2]
    before = {**middle.tables, "requests": middle.requests}
    for name, after in {**last.tables, "requests": last.requests}.items():
        half = before.get(name, 0)
        most = max(TABLE_ENTRIES_MIN, int((last.frames - middle.frames) * TABLE_SHARE_MAX))
        if after - half > most:
            found.append(f"{name} has grown from {half} to {after} entries in the second half")
    return found


def _attributes(each: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(each, "__dict__", None)
    if isinstance(own, dict):
        yield from own.items()
    for cls in type(each).__mro__:
        for name in cls.__dict__.get("__slots__", ()):
            if name not in ("__dict__", "__weakref__") and hasattr(each, name):
                yield name, getattr(each, name)
