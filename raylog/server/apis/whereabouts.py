"""LocateRecords (private, 20012), at a process that holds replicas: in which of its files a range
of offsets lies.

Asked by readers of ranges who may be on the same machine. It is judged as a consumer's fetch from
that offset, and refused with the same errors; so a follower answers as it would give records. Where
the index of a segment is not in memory a thread loads it first. ``boot_id`` says which kernel the
files belong to: a reader under another one, whose path of that name is another file, knows it by
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import astuple
from typing import Protocol

from kio.schema.errors import ErrorCode

from raylog.errors import error_for
from raylog.log.files import NotInMemory
from raylog.log.whereabouts import Whereabouts, whereabouts
from raylog.replication.events import FetchPartition
from raylog.replication.replica import Replica
from raylog.server.apis.entities import TopicNames
from raylog.types import TopicIdPartition
from raylog.wire.private import LOCATE_RECORDS, LocateRecords, RecordsLocated
from raylog.wire.request import Handler, Request

_LOADS_MAX = 8  # then the reader had better fetch


class LocatedReplicas(Protocol):
    """What the process that holds the replicas does for this API."""

    def replica(self, id: TopicIdPartition) -> Replica | None: ...

    def load(self, missing: NotInMemory, then: Callable[[], None]) -> None: ...

    def log_failed(self, id: TopicIdPartition, reason: str) -> None: ...


def handlers(replicas: LocatedReplicas, names: TopicNames, boot_id: str) -> dict[int, Handler]:
    """What the server's listener answers."""

    async def locate(request: Request) -> RecordsLocated:
        asked: LocateRecords = request.body
        id = TopicIdPartition(names.id_of(asked), asked.partition)
        for _ in range(_LOADS_MAX):
            try:
                found = _found(replicas, id, asked)
            except NotInMemory as missing:
                await _loaded(replicas, missing)
                continue
            return RecordsLocated(boot_id, found.offset_end, tuple(astuple(piece) for piece in found.pieces))
        return RecordsLocated(boot_id, asked.offset)

    return {LOCATE_RECORDS: locate}


def _found(replicas: LocatedReplicas, id: TopicIdPartition, asked: LocateRecords) -> Whereabouts:
    replica = replicas.replica(id)
    if replica is None:
        raise error_for(ErrorCode.unknown_topic_or_partition, f"{asked.topic}-{asked.partition} is not here")
    fetch = FetchPartition(id, asked.offset, 0, asked.leader_epoch)
    if (refused := replica.validate_fetch(fetch, follower=False)) is not None:
        raise error_for(refused.error, f"{asked.topic}-{asked.partition} from {asked.offset} on")
    try:
        return whereabouts(replica.open_log(), asked.offset, asked.offset_end, in_memory=True)
    except OSError as error:
        replicas.log_failed(id, f"read: {error}")
        raise error_for(ErrorCode.kafka_storage_error, str(error)) from error


async def _loaded(replicas: LocatedReplicas, missing: NotInMemory) -> None:
    done = asyncio.Event()
    replicas.load(missing, done.set)
    await done.wait()
