"""What a leader checks and changes in the records of a producer's batches, whose headers
``validation`` has found right.

Records are walked without making objects of them (``raylog.records.checking``)::

    every uncompressed batch           its records fill it exactly, as its header says, with the offset deltas 0, 1, 2, …
    a compressed one                   the same, where the topic makes it inflate: it is compacted, compression.type names another
                                       codec, message.timestamp.before.max.ms is set, or the header shows that a timestamp is too new
    a compacted topic                  every record has a key
    message.timestamp.*.max.ms         every timestamp lies within them, except of a record that has none
    every batch that is looked into    where its header names a smaller greatest timestamp than a record has, the header is
                                       corrected, as Kafka does: else searches by time would pass the batch over
    compression.type                   names the codec that the batch is stored with

A batch that a coordinator of this process has built is not walked (``own_batch``).

Apache Kafka inflates every batch. Here that would cost several times what the rest of an append
does, so a compressed batch that the topic gives no reason to inflate is stored as it came.

Errors. INVALID_RECORD for what breaks the format, also inside a codec: the CRC was right, so this
is what the producer sent, and sending it again cannot help. INVALID_TIMESTAMP and INVALID_RECORD
name the records that the topic does not take (KIP-467). A batch inflates to ``INFLATED_SHARE``
times ``max.message.bytes`` at most; a larger one is MESSAGE_TOO_LARGE, for which the Java producer
and raylog's own split a batch and send the parts.

All of it depends on the bytes, the configuration and the time alone. ``checked`` can therefore run
in a thread before the append, and ``takes_long`` says when it should: on the loop it takes a few
milliseconds at most. Touches no file and no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raylog.errors import KafkaError, RecordError
from raylog.log.config import NEVER, LogConfig
from raylog.log.files import Buffer
from raylog.log.validation import InvalidRecord, InvalidTimestamp, MessageTooLarge, validated
from raylog.records import kernel
from raylog.records.batch import (
    HEADER_SIZE,
    BatchView,
    TimestampType,
    batches,
    is_plain_batch,
    with_log_append_time,
    with_max_timestamp,
)
from raylog.records.checking import (
    LONG_MAX,
    LONG_MIN,
    RecordFaults,
    RefusedRecord,
    is_sound_batch,
    largest_timestamp,
    record_faults,
)
from raylog.records.codec import recompressed
from raylog.records.compression import INFLATED_BYTES_MAX, Compression, decompress
from raylog.records.corrupt import CorruptBatch, InflatedTooLarge

INFLATED_SHARE: Final = 32
WALKED_BYTES_MAX: Final = 2 << 20  # on the loop, by the kernel: 300,000 records at most, in 2 ms
WALKED_BYTES_MAX_IN_PYTHON: Final = 16 << 10
INFLATED_BYTES_MAX_AT_ONCE: Final = 64 << 10
SMALL_BATCH_BYTES: Final = 4 << 10  # a compressed batch that is worth a try on the loop
COMPRESSED_BYTES_MAX_AT_ONCE: Final = 32 << 10
_NAMED_IN_MESSAGE: Final = 3


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """What ``checked`` found: the batches as they will be stored, or the error that their producer
    shall see.
    """

    views: tuple[BatchView, ...]
    error: KafkaError | None
    config: LogConfig  # by which they were judged


def checked(records: Buffer, *, config: LogConfig, wall_ms: int, where: str) -> CheckedRecords:
    """The verdict on a produce request's batches, headers and records. For a thread: it may take
    seconds.
    """
    try:
        views = validated(records, config=config, where=where)
        return CheckedRecords(tuple(_with_valid_records(views, config, wall_ms, where)), None, config)
    except KafkaError as error:
        return CheckedRecords((), error, config)


def takes_long(records: Buffer, config: LogConfig, wall_ms: int, walked_bytes_max: int = WALKED_BYTES_MAX) -> bool:
    """Whether ``checked`` belongs in a thread. Bytes that are no batches do not take long."""
    size = len(records)
    if size > walked_bytes_max or (size > WALKED_BYTES_MAX_IN_PYTHON and kernel.loaded() is None):
        return True
    if not _looks_inside(config) or (config.compression is None and is_plain_batch(records)):
        return False
    try:
        return any(_takes_long(view, config, wall_ms) for view in batches(records))
    except KafkaError:
        return False


def _looks_inside(config: LogConfig) -> bool:
    """Whether the topic can be a reason to inflate or to compress."""
    return (
        config.compacts
        or config.compression is not None
        or config.timestamp_before_max_ms != NEVER
        or config.timestamp_after_max_ms != NEVER
    )


def _takes_long(view: BatchView, config: LogConfig, wall_ms: int) -> bool:
    if _is_recompressed(view, config) and view.size > COMPRESSED_BYTES_MAX_AT_ONCE:
        return True
    if view.compression == Compression.NONE or not _is_inflated(view, config, wall_ms):
        return False
    if view.size > SMALL_BATCH_BYTES:
        return True
    try:
        decompress(view.compression, view.records, max_bytes=INFLATED_BYTES_MAX_AT_ONCE)
    except InflatedTooLarge:
        return True
    except KafkaError:
        return False
    return False


def _is_recompressed(view: BatchView, config: LogConfig) -> bool:
    return config.compression is not None and config.compression != view.compression and not view.is_control


def _is_inflated(view: BatchView, config: LogConfig, wall_ms: int) -> bool:
    if config.compacts or _is_recompressed(view, config):
        return True
    if config.timestamp_type != TimestampType.CREATE_TIME:
        return False
    newest = config.timestamp_bound("after", wall_ms)
    return config.timestamp_before_max_ms != NEVER or (newest is not None and view.max_timestamp > newest)


def sound_batch(records: Buffer, config: LogConfig, wall_ms: int) -> BatchView | None:
    """The batch, if the bytes are a single one that ``validated`` and ``storable`` would let pass
    as it is. None says nothing.

    Small batches are most of what producers in no hurry send. Judging one step by step costs
    several times what its append does.
    """
    if (
        not isinstance(records, bytes)
        or config.compacts
        or config.compression is not None
        or config.timestamp_type != TimestampType.CREATE_TIME
        or config.timestamp_before_max_ms != NEVER
    ):
        return None
    newest = LONG_MAX if config.timestamp_after_max_ms == NEVER else wall_ms + config.timestamp_after_max_ms
    return BatchView(records) if is_sound_batch(records, bytes_max=config.max_message_bytes, newest=newest) else None


def own_batch(records: Buffer, config: LogConfig) -> BatchView | None:
    """The batch of a coordinator of this process, if the topic stores it as that has built it: its
    checksum and records are right. None says nothing.
    """
    if (
        not isinstance(records, bytes)
        or config.compression is not None
        or config.timestamp_type != TimestampType.CREATE_TIME
        or len(records) > config.max_message_bytes
    ):
        return None
    batch = BatchView(records)
    is_plain = batch.size == len(records) and not batch.attributes and batch.producer_id < 0
    return batch if is_plain else None


def storable(
    views: Sequence[BatchView], checked: CheckedRecords | None, *, config: LogConfig, wall_ms: int, where: str
) -> list[BatchView]:
    """The batches as the topic stores them: in its codec, with its timestamps. Raises the
    KafkaError that the producer shall see.

    ``checked`` is what a thread found, if it was asked; it counts unless the configuration has
    changed since.
    """
    if checked is None or checked.config != config:
        stored = _with_valid_records(views, config, wall_ms, where)
    elif checked.error is not None:
        raise checked.error
    else:
        stored = list(checked.views)
    if config.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return [with_log_append_time(view, wall_ms) for view in stored]
    return stored


def _with_valid_records(views: Sequence[BatchView], config: LogConfig, wall_ms: int, where: str) -> list[BatchView]:
    """The batches in the topic's codec. The ``record_errors`` of what it raises count through all
    batches.
    """
    done: list[BatchView] = []
    first_index = 0
    for view in views:
        done.append(view if view.is_control else _checked(view, config, wall_ms, where, first_index))
        first_index += view.record_count
    return done


def _checked(view: BatchView, config: LogConfig, wall_ms: int, where: str, first_index: int) -> BatchView:
    oldest = newest = None
    if config.timestamp_type == TimestampType.CREATE_TIME:
        oldest, newest = config.timestamp_bound("before", wall_ms), config.timestamp_bound("after", wall_ms)
    is_plain = view.compression == Compression.NONE
    inflated = None if is_plain or not _is_inflated(view, config, wall_ms) else _inflated(view, config, where)
    if is_plain or inflated is not None:
        faults, greatest = _judged(view, inflated, config, oldest, newest)
        if faults is not None:
            raise _refusal(faults, view, config, wall_ms, where, first_index)
        view = view if greatest is None else with_max_timestamp(view, greatest)
    if newest is not None and view.max_timestamp > newest:  # no record has it, but the log would live by it
        raise InvalidTimestamp(f"{where}: the batch's greatest {_too_new(view.max_timestamp, config, wall_ms)}.")
    if config.compression is None or not _is_recompressed(view, config):
        return view
    stored = BatchView(recompressed(view, view.records if inflated is None else inflated, config.compression))
    if stored.size > config.max_message_bytes:
        raise MessageTooLarge(
            f"{where}: a batch of {stored.size} bytes after compression.type={config.compression.name.lower()} where "
            f"max.message.bytes is {config.max_message_bytes}."
        )
    return stored


def _judged(
    view: BatchView, inflated: bytes | None, config: LogConfig, oldest: int | None, newest: int | None
) -> tuple[RecordFaults | None, int | None]:
    """What is wrong with the records; and the greatest of their timestamps where the header names a
    smaller one.
    """
    records, start, end = (
        (view.buffer, view.position + HEADER_SIZE, view.end) if inflated is None else (inflated, 0, len(inflated))
    )
    oldest = LONG_MIN if oldest is None else oldest
    newest = LONG_MAX if newest is None else newest
    count, base, needs_keys = view.record_count, view.base_timestamp, config.compacts
    named = view.max_timestamp if config.timestamp_type == TimestampType.CREATE_TIME else LONG_MAX
    faults = record_faults(records, count, base, start, end, needs_keys, oldest, min(named, newest))
    if faults is None or named >= newest:
        return faults, None
    faults = record_faults(records, count, base, start, end, needs_keys, oldest, newest)
    if faults is not None:
        return faults, None
    return None, largest_timestamp(
        records, view.record_count, base_timestamp=view.base_timestamp, start=start, end=end, above=named
    )


def _inflated(view: BatchView, config: LogConfig, where: str) -> bytes:
    inflated_max = min(INFLATED_SHARE * config.max_message_bytes, INFLATED_BYTES_MAX)
    try:
        return decompress(view.compression, view.records, max_bytes=inflated_max)
    except InflatedTooLarge:
        raise MessageTooLarge(
            f"{where}: a batch of {view.size} bytes inflates to more than {inflated_max}, {INFLATED_SHARE} times max.message.bytes: "
            "send smaller batches."
        ) from None
    except CorruptBatch as error:
        raise InvalidRecord(f"{where}: the records cannot be inflated: {error.reason}.") from None


# ------------------------------------------------------------------ what the producer hears


def _refusal(
    faults: RecordFaults, view: BatchView, config: LogConfig, wall_ms: int, where: str, first_index: int
) -> KafkaError:
    if faults.broken is not None:
        index, reason = faults.broken
        said = f"{where}: record {first_index + index} of the batch is broken: {reason}."
        error = InvalidRecord(said)
        if index < view.record_count:
            error.record_errors = (RecordError(first_index + index, f"broken record: {reason}"),)
        return error
    errors = tuple(
        RecordError(first_index + record.index, _objection(record, config, wall_ms)) for record in faults.refused
    )
    is_late = any(record.timestamp is not None for record in faults.refused)
    listed = "; ".join(f"record {each.index}: {each.message}" for each in errors[:_NAMED_IN_MESSAGE])
    rest = faults.refused_count - _NAMED_IN_MESSAGE
    said = f"{where}: {faults.refused_count} of {view.record_count} records are refused: {listed}"
    error = (InvalidTimestamp if is_late else InvalidRecord)(f"{said} and {rest} more." if rest > 0 else f"{said}.")
    error.record_errors = errors
    return error


def _objection(record: RefusedRecord, config: LogConfig, wall_ms: int) -> str:
    if record.timestamp is None:
        return "a compacted topic takes no record without a key"
    newest = config.timestamp_bound("after", wall_ms)
    if newest is not None and record.timestamp > newest:
        return _too_new(record.timestamp, config, wall_ms)
    return (
        f"timestamp {record.timestamp} is more than message.timestamp.before.max.ms={config.timestamp_before_max_ms} behind "
        f"the server's clock ({wall_ms})"
    )


def _too_new(timestamp: int, config: LogConfig, wall_ms: int) -> str:
    return (
        f"timestamp {timestamp} is more than message.timestamp.after.max.ms={config.timestamp_after_max_ms} ahead of "
        f"the server's clock ({wall_ms})"
    )


__all__ = ["CheckedRecords", "checked", "sound_batch", "storable", "takes_long"]
