"""Produce: by topic name up to version 12, by topic id from 13; record batches v2 only.

Version 10 adds KIP-951's leader hints. From version 8 on an answer names the records for which a
batch is refused (KIP-467). With acks 0 the client expects no answer, and gets none.
"""

from __future__ import annotations

from typing import Any

from raylog.kafka.table import PRODUCE
from raylog.replication.events import ProducePartition, ProducePartitionResult, ProduceReceived, ProduceReply
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


def event(request: Any, token: int, names: TopicNames) -> ProduceReceived:
    """The request as the machine's event; records stay as they arrived."""
    partitions = []
    for topic in request.topic_data:
        topic_id = names.id_of(topic)
        for partition in topic.partition_data:
            partitions.append(ProducePartition(TopicIdPartition(topic_id, partition.index), partition.records or b""))
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
