"""Produce: by topic name up to version 12, by topic id from 13; record batches v2 only.

Version 10 adds KIP-951's leader hints. From version 8 on an answer names the records for which a
batch is refused (KIP-467). With acks 0 the client expects no answer, and gets none. From version 11
on a producer knows TRANSACTION_ABORTABLE, and from 12 on it leaves it to the leader to add the
partition to its transaction (KIP-890).
"""

from __future__ import annotations

from typing import Any, Final

from raylog.kafka.table import PRODUCE
from raylog.replication.events import ProducePartition, ProducePartitionResult, ProduceReceived, ProduceReply
from raylog.replication.transaction_events import TransactionMembership
from raylog.server.apis.entities import (
    CODES,
    NO_DELAY,
    TopicNames,
    endpoints,
    fields_of,
    instant,
    milliseconds,
    module_of,
    response_class,
)
from raylog.types import TopicIdPartition

ABORTABLE_FROM: Final = 11
ADDS_PARTITIONS_FROM: Final = 12


def membership(transactional_id: str | None, version: int) -> TransactionMembership | None:
    """The transaction that a Produce of that version is part of; None if it names none."""
    if not transactional_id:
        return None
    return TransactionMembership(
        transactional_id, adds=version >= ADDS_PARTITIONS_FROM, is_abortable=version >= ABORTABLE_FROM
    )


def event(request: Any, token: int, names: TopicNames, version: int) -> ProduceReceived:
    """The request as the machine's event; records stay as they arrived."""
    partitions = []
    of = membership(request.transactional_id, version)
    for topic in request.topic_data:
        topic_id = names.id_of(topic)
        for partition in topic.partition_data:
            id = TopicIdPartition(topic_id, partition.index)
            partitions.append(ProducePartition(id, partition.records or b"", of))
    return ProduceReceived(token, request.acks, milliseconds(request.timeout), tuple(partitions))


def entity(request: Any, reply: ProduceReply, version: int) -> Any:
    """The machine's reply as this version's answer. Results come in the order of the request."""
    cls = response_class(PRODUCE, version)
    module = module_of(cls)
    has = fields_of(module.PartitionProduceResponse)
    results = iter(reply.partitions)
    topics = tuple(
        module.TopicProduceResponse(
            **({"topic_id": topic.topic_id} if version >= 13 else {"name": topic.name}),
            partition_responses=tuple(_partition(module, has, next(results)) for _ in topic.partition_data),
        )
        for topic in request.topic_data
    )
    if version >= 10:
        hinted = endpoints(module, (result.hint for result in reply.partitions))
        return cls(responses=topics, throttle_time=NO_DELAY, node_endpoints=hinted)
    return cls(responses=topics, throttle_time=NO_DELAY)


def _partition(module: Any, has: frozenset[str], result: ProducePartitionResult) -> Any:
    values: dict[str, Any] = {
        "index": result.id.partition,
        "error_code": CODES[result.error],
        "base_offset": result.base_offset,
        "log_append_time": instant(result.log_append_time_ms),
    }
    if "log_start_offset" in has:
        values["log_start_offset"] = result.log_start_offset
    if "record_errors" in has:
        values["record_errors"] = tuple(
            module.BatchIndexAndErrorMessage(batch_index=error.index, batch_index_error_message=error.message)
            for error in result.record_errors
        )
        values["error_message"] = result.message
    if result.hint is not None and "current_leader" in has:
        values["current_leader"] = module.LeaderIdAndEpoch(
            leader_id=result.hint.leader_node, leader_epoch=result.hint.leader_epoch
        )
    return module.PartitionProduceResponse(**values)
