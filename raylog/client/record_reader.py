"""From fetched chunks to what the user gets: records one by one or in lists, or Arrow tables. Decoding happens here, on
the user's thread.

Batches are decoded one at a time, so that a seek or a pause wastes little. Records below the position are skipped (a
batch is fetched whole), control batches give nothing, a wrong CRC is an error at its offset. The position moves with
what is handed out, and past what gives nothing.

Knows no loop and never waits; it is used by one thread at a time (its faces hold a lock).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from kio.schema.errors import ErrorCode

from raylog.client.columns import RECORD_SCHEMA, header_column
from raylog.client.config import ConsumerConfig
from raylog.client.consumed_partition import Chunk, ConsumedPartition
from raylog.client.fetcher import Fetcher
from raylog.client.interceptors import InterceptorChain
from raylog.client.serializers import FromBytes, deserializer_of
from raylog.errors import ConfigError, kafka_error
from raylog.records.batch import BatchView
from raylog.records.codec import LightRecord, decode, light_records
from raylog.records.record import Record


class RecordReader:
    def __init__(self, config: ConsumerConfig, fetcher: Fetcher) -> None:
        self._config = config
        self._fetcher = fetcher
        self._key_from: FromBytes | None = deserializer_of(config.key_deserializer, "key.deserializer")
        self._value_from: FromBytes | None = deserializer_of(config.value_deserializer, "value.deserializer")
        self.interceptors = InterceptorChain(config.interceptor_classes)
        self._chunk: Chunk | None = None
        self._next_view = 0
        self._records: list[Record] = []  # of the batch in hand; those from _next_record on are still to be given
        self._next_record = 0

    # -------------------------------------------------------------- records

    def next_record(self) -> Record | None:
        """One record, or None if there is none to be had at once. Raises what stands in the way of a partition."""
        while self._in_hand() or self._advance():
            record = self._records[self._next_record]
            self._next_record += 1
            assert self._chunk is not None
            self._chunk.partition.position = record.offset + 1
            if not self._converts:
                return record
            if converted := self._converted([record]):
                return converted[0]
        return None

    def take_records(self, count_max: int) -> list[Record]:
        """Up to so many records, as far as they are to be had at once."""
        taken: list[Record] = []
        while len(taken) < count_max and (self._in_hand() or self._advance(raising=not taken)):
            part = list(islice(self._records, self._next_record, self._next_record + count_max - len(taken)))
            self._next_record += len(part)
            assert self._chunk is not None
            self._chunk.partition.position = part[-1].offset + 1
            taken += part
        return self._converted(taken) if self._converts and taken else taken

    @property
    def _converts(self) -> bool:
        return self._key_from is not None or self._value_from is not None or bool(self.interceptors)

    def _converted(self, records: list[Record]) -> list[Record]:
        key_from, value_from = self._key_from, self._value_from
        if key_from is not None or value_from is not None:
            records = [
                record._replace(
                    key=record.key if key_from is None or record.key is None else key_from(record.topic, record.key),
                    value=record.value
                    if value_from is None or record.value is None
                    else value_from(record.topic, record.value),
                )
                for record in records
            ]
        return self.interceptors.on_consume(records) if self.interceptors else records

    def _in_hand(self) -> bool:
        """Whether the batch in hand has a record to give now. Drops what a seek has voided, puts back what a pause keeps."""
        chunk = self._chunk
        if chunk is None:
            return False
        if chunk.generation != chunk.partition.generation:
            self._drop_hand()
            return False
        if chunk.partition.paused:
            self._put_back(chunk)
            return False
        return self._next_record < len(self._records)

    def _advance(self, *, raising: bool = True) -> bool:
        """Decode the next batch that has a record to give. With ``raising`` the errors of partitions come first."""
        while True:
            if raising:
                self._raise_errors()
            view = self._take_view()
            if view is None:
                return False
            assert self._chunk is not None
            partition = self._chunk.partition
            self._check(view, partition)
            if not view.is_control:
                records = decode(view, topic=partition.key.topic, partition=partition.key.partition)
                floor = partition.position or 0
                self._records = (
                    records if not records or records[0].offset >= floor else [r for r in records if r.offset >= floor]
                )
                self._next_record = 0
                if self._records:
                    return True
            self._pass(partition, view)

    def _take_view(self) -> BatchView | None:
        while True:
            chunk = self._chunk
            if chunk is not None and chunk.generation != chunk.partition.generation:
                self._drop_hand()
                chunk = None
            if chunk is not None and not self._records_left() and self._next_view < len(chunk.views):
                if self._next_view:
                    self._pass(chunk.partition, chunk.views[self._next_view - 1])
                self._next_view += 1
                return chunk.views[self._next_view - 1]
            if chunk is not None and chunk.generation == chunk.partition.generation:
                self._pass(chunk.partition, chunk.views[-1])
            self._drop_hand()
            self._chunk = self._fetcher.take_chunk()
            if self._chunk is None:
                return None
            with self._fetcher.lock:
                if self._chunk.generation == self._chunk.partition.generation:
                    self._chunk.partition.position = max(self._chunk.partition.position or 0, self._chunk.first_offset)

    def _records_left(self) -> bool:
        return self._next_record < len(self._records)

    def _pass(self, partition: ConsumedPartition, view: BatchView) -> None:
        """The position goes beyond a batch, whatever it held."""
        if self._chunk is not None and self._chunk.generation == partition.generation:
            partition.position = max(partition.position or 0, view.next_offset)

    def _check(self, view: BatchView, partition: ConsumedPartition) -> None:
        if self._config.check_crcs and not view.has_valid_crc():
            key = partition.key
            error = kafka_error(ErrorCode.corrupt_message)(
                f"the batch at offsets {view.base_offset}–{view.last_offset} of {key.topic}-{key.partition} has a wrong CRC: "
                f"seek() to {view.next_offset} to go on without it"
            )
            self._drop_hand()
            self._fetcher.halt(partition, error)
            raise error

    def _raise_errors(self) -> None:
        for partition in list(self._fetcher.partitions.values()):
            error = partition.error
            if (
                error is not None
                and not partition.buffered_bytes
                and not (self._chunk and self._chunk.partition is partition)
            ):
                raise error

    def _drop_hand(self) -> None:
        self._chunk = None
        self._next_view = 0
        self._records = []
        self._next_record = 0

    def _put_back(self, chunk: Chunk) -> None:
        """A paused partition's chunk goes back to the front of the buffer, from the position on."""
        fetcher = self._fetcher
        with fetcher.lock:
            if chunk.generation == chunk.partition.generation:
                views = [view for view in chunk.views if view.next_offset > (chunk.partition.position or 0)]
                if views:
                    fetcher.put_back(
                        Chunk(
                            chunk.partition,
                            chunk.generation,
                            chunk.first_offset,
                            views,
                            chunk.size_bytes,
                            chunk.next_offset,
                        )
                    )
        self._drop_hand()

    # -------------------------------------------------------------- tables

    def take_table(self, bytes_max: int) -> Any | None:
        """Batches of together about ``bytes_max`` bytes (at least one) as a table, or None if there are none at once."""
        if self._converts:
            raise ConfigError(
                "poll_batch gives keys and values as they are stored: use poll() or consume() with deserializers and interceptors"
            )
        columns = _Columns()
        taken_bytes = 0
        if self._in_hand():
            assert self._chunk is not None
            left = self._records[self._next_record :]
            columns.add(left, self._chunk.partition)
            self._next_record = len(self._records)
            self._chunk.partition.position = left[-1].offset + 1
        while taken_bytes < bytes_max:
            if not columns.count:
                self._raise_errors()
            view = self._take_view()
            if view is None:
                break
            assert self._chunk is not None
            partition = self._chunk.partition
            self._check(view, partition)
            if not view.is_control:
                records: Sequence[LightRecord] = light_records(view)
                floor = partition.position or 0
                if records and records[0].offset < floor:
                    records = [record for record in records if record.offset >= floor]
                columns.add(records, partition)
                taken_bytes += view.size
            self._pass(partition, view)
        return columns.table() if columns.count else None


class _Columns:
    """A table being put together."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[str, int, int]] = []  # topic, partition, records
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._types: list[int] = []
        self._headers: list[Any] = []

    def add(self, records: Sequence[LightRecord] | Sequence[Record], partition: ConsumedPartition) -> None:
        if not records:
            return
        self.count += len(records)
        self._parts.append((partition.key.topic, partition.key.partition, len(records)))
        self._keys += [record.key for record in records]
        self._values += [record.value for record in records]
        self._offsets += [record.offset for record in records]
        self._timestamps += [record.timestamp for record in records]
        self._types += [records[0].timestamp_type] * len(records)
        self._headers += [record.headers for record in records]

    def table(self) -> Any:
        topics = pa.chunked_array([pa.repeat(pa.scalar(topic, pa.string()), count) for topic, _, count in self._parts])
        partitions = pa.chunked_array(
            [pa.repeat(pa.scalar(number, pa.int32()), count) for _, number, count in self._parts]
        )
        return pa.Table.from_arrays(
            [
                pa.array(self._keys, pa.binary()),
                pa.array(self._values, pa.binary()),
                topics,
                partitions,
                pa.array(self._offsets, pa.int64()),
                pa.array(self._timestamps, pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
                pa.array(self._types, pa.int32()),
                header_column(self._headers),
            ],
            schema=RECORD_SCHEMA,
        )


def empty_table() -> Any:
    """A table of no records."""
    return RECORD_SCHEMA.empty_table()
