"""What a producer's user reads when a leader refuses records."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import PartitionQueue
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.errors import ClientTimeoutError, RaylogError, RecordError, error_for


def produce_error(answer: Any, queue: PartitionQueue, batch: ProducerBatch) -> RaylogError:
    """The error of a batch that ``answer``, a partition of a Produce response, refuses: why, and
    what would help.
    """
    code: ErrorCode = answer.error_code
    remedy = _REMEDIES.get(code)
    reason = answer.error_message or code.name.upper()
    text = f"{queue.topic}-{queue.partition} refused {batch.record_count} records: {reason}"
    error = error_for(code, f"{text}; {remedy}" if remedy else text)
    named = {int(each.batch_index): each.batch_index_error_message or reason for each in answer.record_errors}
    error.record_errors = tuple(RecordError(index, named[index]) for index in sorted(named))
    return error


def encoding_error(error: Exception) -> RaylogError:
    """The error of a batch that could not be made into bytes."""
    return error if isinstance(error, RaylogError) else RaylogError(f"a batch cannot be encoded: {error}")


def late_error(batch: ProducerBatch, delivery_timeout_ms: float) -> RaylogError:
    """The error of a batch that was not acknowledged in time."""
    may_be_there = (
        "one of the attempts may be in the log" if batch.attempts else "check that the partition has a leader"
    )
    return ClientTimeoutError(
        f"{batch.record_count} records for {batch.topic}-{batch.partition} were not acknowledged within "
        f"delivery.timeout.ms={delivery_timeout_ms:g} ({batch.attempts} attempts); {may_be_there}"
    )


_REMEDIES: dict[ErrorCode, str] = {
    ErrorCode.message_too_large: "raise the topic's max.message.bytes or send smaller records",
    ErrorCode.not_enough_replicas: "fewer replicas are in sync than min.insync.replicas demands: see `raylog topics describe`",
    ErrorCode.not_enough_replicas_after_append: "the in-sync replicas fell below min.insync.replicas while it was written",
    ErrorCode.invalid_record: "the topic does not take such records (a compacted topic needs keys)",
    ErrorCode.invalid_timestamp: "the timestamp lies outside what the topic allows (message.timestamp.before/after.max.ms)",
    ErrorCode.unsupported_compression_type: "choose another compression.type",
}
