"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

The three requests that ask a leader about positions in its log, by topic name. ListOffsets'
timestamps: −1 latest, −2 earliest, −3 the record with the largest timestamp (from version 7), −4
the earliest on the disk (from 8: the same as −2), −5 the last and −6 the next that remote storage
would have (from 9 and 11; there is none: −1). Another one, or one that its version does not know,
is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from raylog.kafka.table import DELETE_RECORDS, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from raylog.replication.events import (
    DeleteRecordsPartition,
    DeleteRecordsReceived,
    DeleteRecordsReply,
    EpochEndPartition,
    ListOffsetsPartition,
    ListOffsetsReceived,
    ListOffsetsReply,
    OffsetForLeaderEpochReceived,
    OffsetForLeaderEpochReply,
)
from raylog.replication.listed_offsets import UNKNOWN_SPECIAL
from raylog.server.apis.entities import CODES, NO_DELAY, TopicNames, milliseconds, module_of, response_class
from raylog.types import TopicIdPartition

_SPECIAL_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}  # version


def list_offsets_event(request: Any, token: int, names: TopicNames, version: int) -> ListOffsetsReceived:
    partitions = []
    for topic in request.topics:
        topic_id = names.id_of(topic)
        for partition in topic.partitions:
            epoch = partition.current_leader_epoch if version >= 4 else -1
            timestamp = partition.timestamp
            if timestamp < 0 and _SPECIAL_SINCE.get(timestamp, version + 1) > version:
                timestamp = UNKNOWN_SPECIAL
            partitions.append(
                ListOffsetsPartition(TopicIdPartition(topic_id, partition.partition_index), timestamp, epoch)
            )
    isolation_level = request.isolation_level if version >= 2 else 0
    return ListOffsetsReceived(token, request.replica_id, isolation_level, tuple(partitions))


def list_offsets_entity(request: Any, reply: ListOffsetsReply, version: int) -> Any:
    cls = response_class(LIST_OFFSETS, version)
    module = module_of(cls)
    results = iter(reply.partitions)
    topics = []
    for topic in request.topics:
        partitions = []
        for _ in topic.partitions:
            result = next(results)
            values: dict[str, Any] = {
                "partition_index": result.id.partition,
                "error_code": CODES[result.error],
                "timestamp": result.timestamp,
                "offset": result.offset,
            }
            if version >= 4:
                values["leader_epoch"] = result.leader_epoch
            partitions.append(module.ListOffsetsPartitionResponse(**values))
        topics.append(module.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    throttle = {"throttle_time": NO_DELAY} if version >= 2 else {}
    return cls(**throttle, topics=tuple(topics))


def epoch_event(request: Any, token: int, names: TopicNames, version: int) -> OffsetForLeaderEpochReceived:
    partitions = []
    for topic in request.topics:
        topic_id = names.id_of(topic)
        for partition in topic.partitions:
            partitions.append(
                EpochEndPartition(
                    TopicIdPartition(topic_id, partition.partition),
                    partition.leader_epoch,
                    partition.current_leader_epoch,
                )
            )
    replica_id = request.replica_id if version >= 3 else -2
    return OffsetForLeaderEpochReceived(token, replica_id, tuple(partitions))


def epoch_entity(request: Any, reply: OffsetForLeaderEpochReply, version: int) -> Any:
    cls = response_class(OFFSET_FOR_LEADER_EPOCH, version)
    module = module_of(cls)
    results = iter(reply.partitions)
    topics = tuple(
        module.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=tuple(
                module.EpochEndOffset(
                    error_code=CODES[result.error],
                    partition=result.id.partition,
                    leader_epoch=result.leader_epoch,
                    end_offset=result.end_offset,
                )
                for result in (next(results) for _ in topic.partitions)
            ),
        )
        for topic in request.topics
    )
    return cls(throttle_time=NO_DELAY, topics=topics)


def delete_records_event(request: Any, token: int, names: TopicNames, _: int) -> DeleteRecordsReceived:
    partitions = []
    for topic in request.topics:
        topic_id = names.id_of(topic)
        for partition in topic.partitions:
            partitions.append(
                DeleteRecordsPartition(TopicIdPartition(topic_id, partition.partition_index), partition.offset)
            )
    return DeleteRecordsReceived(token, milliseconds(request.timeout), tuple(partitions))


def delete_records_entity(request: Any, reply: DeleteRecordsReply, version: int) -> Any:
    cls = response_class(DELETE_RECORDS, version)
    module = module_of(cls)
    results = iter(reply.partitions)
    topics = tuple(
        module.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=tuple(
                module.DeleteRecordsPartitionResult(
                    partition_index=result.id.partition,
                    low_watermark=result.low_watermark,
                    error_code=CODES[result.error],
                )
                for result in (next(results) for _ in topic.partitions)
            ),
        )
        for topic in request.topics
    )
    return cls(throttle_time=NO_DELAY, topics=topics)
