"""What ``send_batch`` and ``send_arrow`` take, turned into encoded batches per partition.

Plain values without keys, headers and timestamps of their own take the fast way
(``encode_values``). Everything else becomes a list of raw records per partition. Either way a batch
has at most ``bytes_max`` bytes before compression, the order of the input is kept within each
partition, and a record that cannot fit into any batch is refused before anything is sent.

Runs on the caller's thread and yields one encoded batch at a time, so that memory can be waited for
between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links.metadata import TopicPartitions
from raylog.client.partitioners import DefaultPartitioner, Partitioner
from raylog.client.producer.producer_batch import RawRecord
from raylog.client.serializers import ToBytes, checked_bytes
from raylog.errors import ConfigError, kafka_error
from raylog.records.batch import HEADER_SIZE
from raylog.records.codec import RECORD_OVERHEAD_MAX, cut_values, encode, encode_values
from raylog.records.record import Header

NO_HEADERS: Sequence[Header] = ()


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """One batch to be. ``order`` holds the input index of each record where they are not simply the
    next ones.
    """

    partition: int
    data: bytes | bytearray
    record_count: int
    order: Sequence[int] | None


@dataclass(slots=True)
class BatchInput:
    """Columns of equal length, None where a column is absent; keys and values are bytes by now."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    timestamps_ms: Sequence[int | None] | None = None
    headers: Sequence[Sequence[Header]] | None = None
    partitions: Sequence[int] | None = None

    @property
    def is_plain(self) -> bool:
        return self.keys is None and self.timestamps_ms is None and self.headers is None and self.partitions is None


@dataclass(frozen=True, slots=True)
class ColumnNames:
    key: str = "key"
    value: str = "value"
    timestamp: str = "timestamp"
    headers: str = "headers"
    partition: str = "partition"


def is_arrow(values: Any) -> bool:
    """Whether these are a pyarrow Table or RecordBatch. Does not import pyarrow: who has one has
    done so.
    """
    if not hasattr(values, "num_rows"):
        return False
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(values, (pyarrow.Table, pyarrow.RecordBatch))


def columns_from(
    topic: str,
    values: Sequence[Any],
    *,
    key: Any,
    keys: Sequence[Any] | None,
    timestamps_ms: Sequence[int | None] | None,
    key_serializer: ToBytes | None,
    value_serializer: ToBytes | None,
) -> BatchInput:
    """The columns of a sequence of values, or of objects with ``value`` (and ``key``, ``timestamp``
    or ``timestamp_ms``, ``headers``).
    """
    first = values[0]
    if not isinstance(first, (bytes, bytearray, memoryview)) and hasattr(first, "value"):
        if keys is not None or timestamps_ms is not None:
            raise ConfigError("records have their own keys and timestamps: leave out keys= and timestamps_ms=")
        return _columns_of_records(topic, values, key, key_serializer, value_serializer)
    for name, column in (("keys", keys), ("timestamps_ms", timestamps_ms)):
        if column is not None and len(column) != len(values):
            raise ConfigError(f"{name} has {len(column)} entries for {len(values)} values")
    if key is not None:
        if keys is not None:
            raise ConfigError("give key= for all values or keys= for each, not both")
        one = _bytes_of(topic, key, key_serializer, "key")
        keys = [one] * len(values)
    elif keys is not None:
        keys = _all_bytes(topic, keys, key_serializer, "key")
    return BatchInput(_all_bytes(topic, values, value_serializer, "value"), keys, timestamps_ms)


def _columns_of_records(
    topic: str, records: Sequence[Any], key: Any, key_serializer: ToBytes | None, value_serializer: ToBytes | None
) -> BatchInput:
    keys = [getattr(record, "key", None) if key is None else key for record in records]
    times = [getattr(record, "timestamp_ms", getattr(record, "timestamp", None)) for record in records]
    headers = [getattr(record, "headers", None) or NO_HEADERS for record in records]
    return BatchInput(
        _all_bytes(topic, [record.value for record in records], value_serializer, "value"),
        _all_bytes(topic, keys, key_serializer, "key") if any(key is not None for key in keys) else None,
        [None if time is None or time < 0 else time for time in times],
        headers if any(headers) else None,
    )


def _all_bytes(topic: str, values: Sequence[Any], serializer: ToBytes | None, what: str) -> Sequence[bytes | None]:
    if serializer is None and set(map(type, values)) <= {bytes, type(None)}:
        return values
    return [_bytes_of(topic, value, serializer, what) for value in values]


def _bytes_of(topic: str, value: Any, serializer: ToBytes | None, what: str) -> bytes | None:
    return checked_bytes(value if serializer is None or value is None else serializer(topic, value), what)


def encoded_parts(
    columns: BatchInput,
    cluster: TopicPartitions,
    partitioner: Partitioner,
    *,
    partition: int | None,
    now_ms: int,
    bytes_max: int,
    request_bytes_max: int,
    compression: int,
    will_be_stamped: bool,
) -> Iterator[EncodedPart]:
    """The batches that carry these columns, at most ``bytes_max`` bytes each (one larger record
    alone: up to ``request_bytes_max``).

    ``will_be_stamped``: each gets a producer's stamp, and with it its CRC, when it is sent.
    """
    lengths = _lengths_of(columns.values)
    refuse_large(columns, lengths, request_bytes_max)
    default = isinstance(partitioner, DefaultPartitioner)
    if columns.is_plain and (default or partition is not None) and lengths is not None:
        length = next(iter(lengths)) if len(lengths) == 1 else None
        for values in cut_values(columns.values, bytes_max, length=length):  # type: ignore[arg-type]
            batch = encode_values(
                values, timestamp_ms=now_ms, compression=compression, length=length, with_crc=not will_be_stamped
            )
            target = partition if partition is not None else partitioner.sticky(cluster, len(batch))  # type: ignore[attr-defined]
            yield EncodedPart(target, batch, len(values), None)
        return
    records = _raw_records(columns, now_ms)
    for target, indexes in _scattered(columns, cluster, partitioner, partition, bytes_max):
        for run in _runs(records, indexes, bytes_max):
            data = encode([records[index] for index in run], compression=compression)
            yield EncodedPart(target, data, len(run), run)


def _lengths_of(values: Sequence[bytes | None]) -> set[int] | None:
    """The lengths that occur; None where a value is None."""
    try:
        return set(map(len, values))  # type: ignore[arg-type]
    except TypeError:
        return None


def refuse_large(columns: BatchInput, lengths: set[int] | None, request_bytes_max: int) -> None:
    """Raise MessageTooLargeError if some record is larger than any batch may be. ``lengths`` of the
    values, as ``_lengths_of`` them.
    """
    has_values_only = columns.keys is None and columns.headers is None and lengths is not None
    if has_values_only and max(lengths) + HEADER_SIZE + RECORD_OVERHEAD_MAX <= request_bytes_max:  # type: ignore[arg-type]
        return
    for index, value in enumerate(columns.values):
        key = columns.keys[index] if columns.keys is not None else None
        headers = columns.headers[index] if columns.headers is not None else NO_HEADERS
        refuse_large_record(record_size(key, value, headers), request_bytes_max)


def refuse_large_record(size_bytes: int, request_bytes_max: int) -> None:
    """Raise MessageTooLargeError for a record that no request may carry."""
    if size_bytes + HEADER_SIZE > request_bytes_max:
        raise kafka_error(ErrorCode.message_too_large)(
            f"a record of {size_bytes} bytes exceeds max.request.size={request_bytes_max}: raise it (and the topic's max.message.bytes)"
        )


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Bytes that a record takes in a batch, at most."""
    size = RECORD_OVERHEAD_MAX
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += 10 + 3 * len(name) + len(content or b"")
    return size


def _raw_records(columns: BatchInput, now_ms: int) -> list[RawRecord]:
    values, keys, times, headers = columns.values, columns.keys, columns.timestamps_ms, columns.headers
    count = len(values)
    return list(
        zip(
            [now_ms if time is None else time for time in times] if times is not None else [now_ms] * count,
            keys if keys is not None else [None] * count,
            values,
            headers if headers is not None else [NO_HEADERS] * count,
            strict=True,
        )
    )


def _scattered(
    columns: BatchInput, cluster: TopicPartitions, partitioner: Partitioner, partition: int | None, bytes_max: int
) -> Iterator[tuple[int, Sequence[int]]]:
    """The input indexes per partition, ascending."""
    count = len(columns.values)
    if partition is not None:
        yield partition, range(count)
        return
    targets: dict[int, list[int]] = {}
    for index, target in enumerate(_targets(columns, cluster, partitioner)):
        targets.setdefault(target, []).append(index)
    yield from targets.items()


def _targets(columns: BatchInput, cluster: TopicPartitions, partitioner: Partitioner) -> Iterator[int]:
    if columns.partitions is not None:
        yield from columns.partitions
        return
    keys = columns.keys if columns.keys is not None else [None] * len(columns.values)
    choose: Callable[..., int] = partitioner.partition
    for key, value in zip(keys, columns.values, strict=True):
        yield choose(cluster.topic, key, key, value, value, cluster)


def _runs(records: Sequence[RawRecord], indexes: Sequence[int], bytes_max: int) -> Iterator[Sequence[int]]:
    start, used = 0, HEADER_SIZE
    for place, index in enumerate(indexes):
        _, key, value, headers = records[index]
        size = record_size(key, value, headers)
        if used + size > bytes_max and place > start:
            yield indexes[start:place]
            start, used = place, HEADER_SIZE
        used += size
    if start < len(indexes):
        yield indexes[start:]
