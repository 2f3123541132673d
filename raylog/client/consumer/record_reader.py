"""From fetched chunks to what the user gets: records one by one or in lists, or Arrow tables.
Decoding happens here, on the user's thread.

Batches are decoded one at a time, so that a seek or a pause wastes little. Records below the
position are skipped (a batch is fetched whole), control batches give nothing, a wrong CRC or broken
bytes are an error at their offset: what comes before is handed out first. The position moves with
what is handed out, and past what gives nothing.

Knows no loop and never waits; it is used by one thread at a time (its faces hold a lock).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumed_partition import Chunk, ConsumedPartition
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.interceptors import InterceptorChain
from raylog.client.serializers import FromBytes, deserializer_of
from raylog.errors import ConfigError, RaylogError, kafka_error
from raylog.extras import need
from raylog.records.batch import BatchView
from raylog.records.codec import decode
from raylog.records.corrupt import CorruptBatch
from raylog.records.record import Record

if TYPE_CHECKING:
    from raylog.records.arrow_columns import BrokenBatch, RecordColumns


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
        """One record, or None if there is none to be had at once. Raises what stands in the way of
        a partition.
        """
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
        """Whether the batch in hand has a record to give now. Drops what a seek has voided, puts
        back what a pause keeps.
        """
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
        """Decode the next batch that has a record to give. With ``raising`` the errors of
        partitions come first.
        """
        while True:
            if raising:
                self._raise_errors()
            view = self._take_view()
            if view is None:
                return False
            assert self._chunk is not None
            partition = self._chunk.partition
            self._check(view, partition)
            if self._chunk.gives(view):
                try:
                    records = decode(view, topic=partition.key.topic, partition=partition.key.partition)
                except RaylogError as error:
                    raise self._broken(partition, view.base_offset, view.next_offset, error) from None
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
            raise self._halted(partition, view.base_offset, view.next_offset, "has a wrong CRC")

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
                            chunk.hidden,
                        )
                    )
        self._drop_hand()

    # -------------------------------------------------------------- tables

    def take_table(self, bytes_max: int, columns: Sequence[str] | None = None) -> Any | None:
        """Batches of together about ``bytes_max`` bytes (at least one) as a table, or None if there
        are none at once.

        What stands in the way is raised before anything is taken, or by the next call: what was
        taken is handed out first.
        """
        if self._converts:
            raise ConfigError(
                "poll_batch returns keys and values as they are stored: use poll() or consume() with deserializers and interceptors"
            )
        import pyarrow as pa

        from raylog.records.arrow_columns import RUN_BYTES_MAX, RecordColumns

        while True:
            collected = RecordColumns(columns)
            givers: list[_Giver] = []
            self._collect_up_to(min(bytes_max, RUN_BYTES_MAX), collected, givers)
            if not collected:
                return None
            batch, broken = collected.take()
            if broken is not None:
                self._turn_back(broken, givers)
            if batch.num_rows:
                return pa.Table.from_batches([batch])

    def _collect_up_to(self, bytes_max: int, collected: RecordColumns, givers: list[_Giver]) -> None:
        if self._in_hand():
            assert self._chunk is not None
            view, record = self._chunk.views[self._next_view - 1], self._records[self._next_record]
            self._collect(self._chunk.partition, view, record.offset, collected, givers)
            self._next_record = len(self._records)
            self._pass(self._chunk.partition, view)
        while collected.size_bytes < bytes_max:
            if not collected:
                self._raise_errors()
            view_or_none = self._take_view()
            if view_or_none is None:
                return
            assert self._chunk is not None
            partition = self._chunk.partition
            try:
                self._check(view_or_none, partition)
                if self._chunk.gives(view_or_none):
                    self._collect(partition, view_or_none, partition.position or 0, collected, givers)
            except RaylogError:
                if not collected:
                    raise
                return  # the partition has the error: the next call raises it
            self._pass(partition, view_or_none)

    def _collect(
        self,
        partition: ConsumedPartition,
        view: BatchView,
        start_offset: int,
        collected: RecordColumns,
        givers: list[_Giver],
    ) -> None:
        try:
            collected.add(view, start_offset=start_offset, topic=partition.key.topic, partition=partition.key.partition)
        except CorruptBatch as error:
            raise self._broken(partition, view.base_offset, view.next_offset, error) from None
        if not givers or givers[-1].partition is not partition:
            givers.append(_Giver(partition, partition.generation, start_offset))

    def _turn_back(self, broken: BrokenBatch, givers: Sequence[_Giver]) -> None:
        """A batch that was collected is broken. What was collected behind it was not given out:
        whose it is goes back to it.
        """
        own = [index for index, giver in enumerate(givers) if giver.partition.key == (broken.topic, broken.partition)]
        first = max((index for index in own if givers[index].start_offset < broken.next_offset), default=own[0])
        places: dict[ConsumedPartition, _Giver] = {}
        for giver in reversed(givers[first:]):
            places[giver.partition] = giver  # the earliest stretch of each
        for partition, giver in places.items():
            if partition.generation == giver.generation:  # nobody has sought since
                is_broken_one = giver is givers[first]
                self._fetcher.seek(
                    partition, offset=max(giver.start_offset, broken.base_offset if is_broken_one else 0)
                )
        self._broken(givers[first].partition, broken.base_offset, broken.next_offset, broken.error)

    def _broken(
        self, partition: ConsumedPartition, base_offset: int, next_offset: int, error: RaylogError
    ) -> RaylogError:
        reason = error.reason if isinstance(error, CorruptBatch) else str(error)
        return self._halted(partition, base_offset, next_offset, f"is broken ({reason})")

    def _halted(self, partition: ConsumedPartition, base_offset: int, next_offset: int, what: str) -> RaylogError:
        """The error of a broken batch; its partition keeps it until it is sought."""
        key = partition.key
        error = kafka_error(ErrorCode.corrupt_message)(
            f"the batch at offsets {base_offset}–{next_offset - 1} of {key.topic}-{key.partition} {what}: "
            f"seek() to {next_offset} to go on without it"
        )
        if self._chunk is not None and self._chunk.partition is partition:
            self._drop_hand()
        self._fetcher.halt(partition, error)
        return error


@dataclass(slots=True, eq=False)
class _Giver:
    """A partition that gave batches for a table, from which offset on."""

    partition: ConsumedPartition
    generation: int
    start_offset: int


def empty_table(columns: Sequence[str] | None = None) -> Any:
    """A table of no records."""
    need("pyarrow", "poll_batch")
    from raylog.records.arrow_columns import schema_of

    return schema_of(columns).empty_table()
