"""RepairReplica (private, 20013), at a process that holds replicas: the log of one of them is wrong
from an offset on.

Whoever says so has compared the replicas (``raylog verify --repair``). The answer comes when the
replica has taken it in; what follows is the machine's (``raylog.replication.scrubbing``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kio.schema.errors import ErrorCode

from raylog.errors import error_for
from raylog.replication.events import DamageReported
from raylog.replication.replica import Replica
from raylog.server.apis.entities import TopicNames
from raylog.types import TopicIdPartition
from raylog.wire.private import REPAIR_REPLICA, RepairBegun, RepairReplica
from raylog.wire.request import Handler, Request


class RepairedReplicas(Protocol):
    """What the process that holds the replicas does for this API."""

    def replica(self, id: TopicIdPartition) -> Replica | None: ...


def handlers(
    replicas: RepairedReplicas, names: TopicNames, report: Callable[[DamageReported], None]
) -> dict[int, Handler]:
    """What the server's listener answers."""

    async def repair(request: Request) -> RepairBegun:
        asked: RepairReplica = request.body
        id = TopicIdPartition(names.id_of(asked), asked.partition)
        replica = replicas.replica(id)
        if replica is None or replica.log is None:
            raise error_for(ErrorCode.replica_not_available, f"{asked.topic}-{asked.partition} is not open here")
        if not replica.log.log_start_offset <= asked.offset < replica.log.log_end_offset:
            raise error_for(
                ErrorCode.offset_out_of_range, f"{asked.topic}-{asked.partition} has no offset {asked.offset}"
            )
        report(DamageReported(id, asked.offset, asked.reason))
        return RepairBegun()

    return {REPAIR_REPLICA: repair}
