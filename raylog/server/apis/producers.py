"""DescribeProducers at a process that holds replicas: what the leader's log remembers of its
producers.

A partition that is not led here is NOT_LEADER_OR_FOLLOWER, one that is not here
UNKNOWN_TOPIC_OR_PARTITION; both are for the asker to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka.table import DESCRIBE_PRODUCERS
from raylog.log.producers import ProducerState
from raylog.replication.replica import Replica
from raylog.server.apis.entities import CODES, NO_DELAY, TopicNames, module_of, response_class
from raylog.types import TopicIdPartition

_NO_TRANSACTION = -1


def entity(request: Any, version: int, replicas: Mapping[TopicIdPartition, Replica], names: TopicNames) -> Any:
    cls = response_class(DESCRIBE_PRODUCERS, version)
    module = module_of(cls)

    def answer(topic: Any, partition: int) -> Any:
        replica = replicas.get(TopicIdPartition(names.id_of(topic), partition))
        error: int = ErrorCode.unknown_topic_or_partition.value
        found: list[ProducerState] = []
        if replica is not None and replica.leader is not None and replica.log is not None:
            error = 0
            found = [each for each in replica.log.producers if each.batches or each.is_in_transaction]
        elif replica is not None:
            error = replica.refusal()
        return module.PartitionResponse(
            partition_index=partition,
            error_code=CODES[error],
            error_message=None if not error else f"{topic.name}-{partition} is not led here",
            active_producers=tuple(_producer(module, each) for each in found),
        )

    topics = tuple(
        module.TopicResponse(name=topic.name, partitions=tuple(answer(topic, part) for part in topic.partition_indexes))
        for topic in request.topics
    )
    return cls(throttle_time=NO_DELAY, topics=topics)


def _producer(module: Any, state: ProducerState) -> Any:
    return module.ProducerState(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=_NO_TRANSACTION if state.txn_first_offset is None else state.txn_first_offset,
    )
