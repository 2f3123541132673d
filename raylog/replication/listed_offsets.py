"""ListOffsets for one replica: an offset by timestamp, or by one of Kafka's names for the places in
a log.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.events import ListOffsetsPartition, ListOffsetsPartitionResult, ListOffsetsReceived
from raylog.replication.replica import KAFKA_STORAGE_ERROR, OFFSET_NOT_AVAILABLE, READ_COMMITTED, Replica

LATEST, EARLIEST, LARGEST_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
UNKNOWN_SPECIAL = -(1 << 63)  # stands for a negative timestamp that means nothing to the asker's version
UNSUPPORTED_VERSION = ErrorCode.unsupported_version.value


def list_offset(
    replica: Replica, request: ListOffsetsPartition, of: ListOffsetsReceived, *, in_memory: bool
) -> ListOffsetsPartitionResult:
    """One offset by timestamp or by name (Kafka's ``fetchOffsetForTimestamp``); a leader's answer
    only.

    ``in_memory``: raises NotInMemory rather than wait for the disk.
    """
    leader, log = replica.leader, replica.log
    if leader is None or log is None:
        return ListOffsetsPartitionResult(replica.id, replica.refusal())
    error = replica.judge_epoch(request.current_leader_epoch)
    if error:
        return ListOffsetsPartitionResult(replica.id, error)
    is_committed = of.isolation_level == READ_COMMITTED
    end = log.stable_end_offset if is_committed else log.high_watermark
    if of.replica_id >= 0:
        end = log.log_end_offset
    lagging = of.replica_id < 0 and log.high_watermark < leader.epoch_start_offset
    if request.timestamp == LATEST:
        if lagging:
            return ListOffsetsPartitionResult(replica.id, OFFSET_NOT_AVAILABLE)
        return ListOffsetsPartitionResult(replica.id, 0, -1, end, leader.leader_epoch)
    if request.timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return ListOffsetsPartitionResult(replica.id, 0, -1, start, log.leader_epochs.epoch_at(start))
    if request.timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return ListOffsetsPartitionResult(replica.id, 0)
    if request.timestamp < 0 and request.timestamp != LARGEST_TIMESTAMP:
        return ListOffsetsPartitionResult(replica.id, UNSUPPORTED_VERSION)
    try:
        if request.timestamp == LARGEST_TIMESTAMP:
            found = log.largest_timestamp(end, in_memory=in_memory)
        else:
            found = log.offset_for_timestamp(request.timestamp, end, in_memory=in_memory)
    except (CorruptBatch, UnsupportedMagic):
        return ListOffsetsPartitionResult(replica.id, replica.refusal_of_damage(log.log_start_offset))
    except OSError as broken:
        replica.fail(f"list offsets: {broken}")
        return ListOffsetsPartitionResult(replica.id, KAFKA_STORAGE_ERROR)
    if found is None:
        return ListOffsetsPartitionResult(replica.id, OFFSET_NOT_AVAILABLE if lagging else 0)
    timestamp, offset, epoch = found
    return ListOffsetsPartitionResult(replica.id, 0, timestamp, offset, epoch)
