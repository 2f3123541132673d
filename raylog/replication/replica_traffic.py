"""What the replicas of one host have read and written since it was last asked: for the report to
the controller.

Only replicas that had traffic are here, so replicas that nobody uses cost nothing. A request that
names several partitions counts for each of them that it brings records to or takes records from.
Fetches that bring nothing are not counted: a consumer that waits at a thousand quiet partitions is
no load of any of them.
"""

from __future__ import annotations

from raylog.control.session import ReplicaLoad
from raylog.types import TopicIdPartition

REPORTED_MAX = 64


class ReplicaTraffic:
    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[TopicIdPartition, list[int]] = {}  # requests, bytes in, bytes out; none of these is empty

    def wrote(self, id: TopicIdPartition, size: int) -> None:
        """Records came in: of a producer, or of the leader that it follows."""
        counts = self._counts.get(id)
        if counts is None:
            self._counts[id] = [1, size, 0]
        else:
            counts[0] += 1
            counts[1] += size

    def read(self, id: TopicIdPartition, size: int) -> None:
        """Records went out: to a consumer, or to a follower."""
        counts = self._counts.get(id)
        if counts is None:
            self._counts[id] = [1, 0, size]
        else:
            counts[0] += 1
            counts[2] += size

    def take(self) -> tuple[ReplicaLoad, ...]:
        """The traffic since the last call, of the replicas that had most of it; counting begins
        anew.
        """
        counted, self._counts = self._counts, {}
        loads = [ReplicaLoad(*id, *counts) for id, counts in counted.items()]
        loads.sort(key=lambda each: (-each.cost, each.topic_id, each.partition))
        return tuple(loads[:REPORTED_MAX])
