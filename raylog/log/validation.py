"""What a leader checks and changes in the batches of a producer before they become part of its log.

Checked, in this order, for every batch: format 2, CRC, size, codec, header arithmetic, no control batch, keys on compacted topics,
timestamps. Changed: the codec where ``compression.type`` names one, the timestamps with LogAppendTime; otherwise the bytes stay as
they are. Records are decoded only where the topic's configuration demands it (a compacted topic, a bound on how old a timestamp may
be). Offsets and the leader epoch are stamped later, into the 16 bytes that the CRC leaves out. Touches no file and no state.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.config import LogConfig
from raylog.log.files import Buffer
from raylog.records.batch import BatchView, TimestampType, batches, set_log_append_time
from raylog.records.codec import has_keyless_record, light_records, recompress
from raylog.records.compression import Compression
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

InvalidRecord = kafka_error(ErrorCode.invalid_record)
InvalidTimestamp = kafka_error(ErrorCode.invalid_timestamp)
MessageTooLarge = kafka_error(ErrorCode.message_too_large)
UnsupportedCompression = kafka_error(ErrorCode.unsupported_compression_type)


def validated(
    records: Buffer, *, config: LogConfig, wall_ms: int, where: str, from_coordinator: bool = False
) -> list[BatchView]:
    """The batches, ready to be stamped. Raises the KafkaError that the producer shall see; ``where`` names topic and partition.

    ``from_coordinator`` lets control batches through.
    """
    try:
        views = list(batches(records))
    except UnsupportedMagic as error:
        raise InvalidRecord(f"{where}: {error}") from None  # Kafka's answer, too: old formats are for old folders
    if not views:
        raise InvalidRecord(f"{where}: no record batch in the request.")
    return [_validated(view, config, wall_ms, where, from_coordinator) for view in views]


def _validated(view: BatchView, config: LogConfig, wall_ms: int, where: str, from_coordinator: bool) -> BatchView:
    if not view.has_valid_crc():
        raise CorruptBatch(f"{where}: the CRC does not fit the bytes", view.position)
    if view.batch_length + 12 > config.max_message_bytes:
        raise MessageTooLarge(
            f"{where}: a batch of {view.size} bytes where max.message.bytes is {config.max_message_bytes}."
        )
    codec = view.compression
    if codec > Compression.ZSTD:
        raise UnsupportedCompression(f"{where}: codec {codec} is unknown.")
    if view.record_count <= 0 or view.last_offset_delta != view.record_count - 1:
        raise InvalidRecord(
            f"{where}: {view.record_count} records do not fit a last offset delta of {view.last_offset_delta}."
        )
    if view.is_control and not from_coordinator:
        raise InvalidRecord(f"{where}: clients may not write control batches.")
    if view.producer_id >= 0 and not view.is_control and (view.base_sequence < 0 or view.producer_epoch < 0):
        raise InvalidRecord(
            f"{where}: producer {view.producer_id} without epoch or sequence ({view.producer_epoch}, {view.base_sequence})."
        )
    if view.is_transactional and view.producer_id < 0:
        raise InvalidRecord(f"{where}: a transactional batch without a producer id.")
    if config.compacts and not view.is_control and has_keyless_record(view):
        raise InvalidRecord(f"{where}: a compacted topic takes no record without a key.")
    if config.timestamp_type == TimestampType.CREATE_TIME:
        _check_timestamps(view, config, wall_ms, where)
    if config.compression is not None and codec != config.compression and not view.is_control:
        view = BatchView(recompress(view, config.compression))
        if view.size > config.max_message_bytes:
            raise MessageTooLarge(
                f"{where}: a batch of {view.size} bytes after compression.type={config.compression.name.lower()} where "
                f"max.message.bytes is {config.max_message_bytes}."
            )
    if config.timestamp_type == TimestampType.LOG_APPEND_TIME:
        stamped = bytearray(view.data)
        set_log_append_time(stamped, wall_ms)
        view = BatchView(stamped)
    return view


def _check_timestamps(view: BatchView, config: LogConfig, wall_ms: int, where: str) -> None:
    if view.timestamp_type != TimestampType.CREATE_TIME:
        raise InvalidTimestamp(f"{where}: a producer's batch says LogAppendTime, which only the server may.")
    newest = config.timestamp_bound("after", wall_ms)
    if newest is not None and view.max_timestamp > newest:
        raise InvalidTimestamp(
            f"{where}: timestamp {view.max_timestamp} is more than message.timestamp.after.max.ms={config.timestamp_after_max_ms} "
            f"ahead of the server's clock ({wall_ms})."
        )
    oldest = config.timestamp_bound("before", wall_ms)
    if oldest is not None:
        first = min(record.timestamp for record in light_records(view))
        if first < oldest:
            raise InvalidTimestamp(
                f"{where}: timestamp {first} is more than message.timestamp.before.max.ms={config.timestamp_before_max_ms} "
                f"behind the server's clock ({wall_ms})."
            )
