"""Requests that create, grow and delete topics, carried out: what is decided, and when it is
answered.

What the records are is ``topic_decisions``' matter, how long a reply waits for the leaders of what
is created is ``creation_waits``'. This module gives the first what it needs to know of the cluster,
and hands its decision to the ledger.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from raylog.metadata.actors.disk_health import DiskHealth
from raylog.metadata.actors.registrations import places
from raylog.metadata.configuration import creation_defaults
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.events import SendControllerReply
from raylog.metadata.ledger import Created, Ledger
from raylog.metadata.partitions.creation_waits import CreationWaits
from raylog.metadata.partitions.topic_decisions import Planner, TopicDecisions, decide_delete_topics
from raylog.metadata.records import PartitionChanged, Record
from raylog.metadata.requests import CreatePartitions, CreateTopics, DeleteTopics, PartitionsCreated, TopicsCreated


class TopicChanges:
    """Every method answers the request of ``token``, at the earliest when its decision is
    committed.
    """

    __slots__ = ("_disks", "_ledger", "_new_uuid", "_plan", "_settings", "_waits")

    def __init__(
        self,
        ledger: Ledger,
        settings: ControllerSettings,
        disks: DiskHealth,
        waits: CreationWaits,
        *,
        plan: Planner,
        new_uuid: Callable[[], uuid.UUID],
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._disks = disks
        self._waits = waits
        self._plan = plan
        self._new_uuid = new_uuid

    def create(self, token: int, request: CreateTopics, now_ms: int) -> None:
        self._decided(token, *self._decisions().create(request), request.timeout_ms, now_ms)

    def grow(self, token: int, request: CreatePartitions, now_ms: int) -> None:
        self._decided(token, *self._decisions().grow(request), request.timeout_ms, now_ms)

    def delete(self, token: int, request: DeleteTopics) -> None:
        enabled = self._settings.now.delete_topic_enable
        records, reply = decide_delete_topics(self._ledger.latest, request, enabled=enabled)
        self._ledger.add(*records)
        self._ledger.hold(SendControllerReply(token, reply))

    def _decided(
        self,
        token: int,
        records: Sequence[Record],
        reply: TopicsCreated | PartitionsCreated,
        timeout_ms: int | None,
        now_ms: int,
    ) -> None:
        """The reply waits for the leaders of what is created, if there is anything and the asker
        has the time.
        """
        self._ledger.add(*records)
        if timeout_ms is None or not records:
            self._ledger.hold(SendControllerReply(token, reply))
            return
        created = [record.id for record in records if isinstance(record, PartitionChanged)]
        names = {id: self._ledger.latest.topics[id.topic_id].name for id in created}
        self._waits.begin(token, reply, names, timeout_ms=timeout_ms, now_ms=now_ms)
        self._ledger.hold(Created(token))

    def _decisions(self) -> TopicDecisions:
        latest = self._ledger.latest
        failed = self._disks.reasons().keys()
        up, down = places(latest, failed)
        return TopicDecisions(
            latest,
            brokers=up,
            brokers_down=down,
            plan=self._plan,
            new_uuid=self._new_uuid,
            defaults=creation_defaults.in_force(latest, self._settings),
            failed_disks=failed,
        )
