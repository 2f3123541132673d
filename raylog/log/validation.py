"""What a leader checks in the headers of a producer's batches before they become part of its log.

Checked, in this order, for every batch: format 2, CRC, size, codec, header arithmetic, no control
batch, timestamp type. The records themselves are the business of ``record_validation``. Offsets and
the leader epoch are stamped later, into the 16 bytes that the CRC leaves out. Touches no file and
no state.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.config import LogConfig
from raylog.log.files import Buffer
from raylog.records.batch import BatchView, TimestampType, batches
from raylog.records.compression import Compression
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

InvalidRecord = kafka_error(ErrorCode.invalid_record)
InvalidTimestamp = kafka_error(ErrorCode.invalid_timestamp)
MessageTooLarge = kafka_error(ErrorCode.message_too_large)
UnsupportedCompression = kafka_error(ErrorCode.unsupported_compression_type)


def validated(records: Buffer, *, config: LogConfig, where: str, from_coordinator: bool = False) -> list[BatchView]:
    """The batches, whose headers are all right. Raises the KafkaError that the producer shall see;
    ``where`` names topic and partition.

    ``from_coordinator`` lets control batches through. Whether a transactional batch belongs to a
    transaction is not seen in its header: the producers' states say so (``producers``).
    """
    try:
        views = list(batches(records))
    except UnsupportedMagic as error:
        raise InvalidRecord(f"{where}: {error}") from None  # Kafka's answer, too: old formats are for old folders
    if not views:
        raise InvalidRecord(f"{where}: no record batch in the request.")
    for view in views:
        _validate(view, config, where, from_coordinator)
    return views


def _validate(view: BatchView, config: LogConfig, where: str, from_coordinator: bool) -> None:
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
    if config.timestamp_type == TimestampType.CREATE_TIME and view.timestamp_type != TimestampType.CREATE_TIME:
        raise InvalidTimestamp(f"{where}: a producer's batch says LogAppendTime, which only the server may.")
