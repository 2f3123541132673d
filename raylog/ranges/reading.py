"""One task's work: the records of one range as Arrow batches, taken out of a replica's files on this machine, or fetched.

Where a replica's files are on this machine they are read (``near_files``), as far as they go. The rest, or all, is fetched from the
leader or a nearer replica, while what came before is decoded.

A range is done when the *next offset* has reached its end, never when "a record was seen": batches that give nothing (control
batches, aborted or compacted ones) move the position like any other, and where compaction has left nothing at all up to the end, the
leader's empty answers say so (``ConsumedPartition.barren_at``). Changes of leader are the fetcher's business.

What stands in the way is told with the range: a corrupt batch with its offsets, offsets that are no longer there as lost data
(OffsetOutOfRangeError, or a call of ``on_loss`` and the rest of the range). A range whose end lies beyond the log after an unclean
election is told after ``PATIENCE_S`` without progress.

Blocks; runs on the caller's thread, but for the fetching, which is on this process's background loop. Holds at most about two fetches,
or a piece of a file, and one Arrow batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.background import background
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumed_partition import EARLIEST, LATEST, Chunk, ConsumedPartition
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.errors import RaylogError, error_for, kafka_error
from raylog.ranges import links, near_files
from raylog.ranges.splitting import OffsetRange
from raylog.records.aborted import AbortedTransactions
from raylog.records.arrow_columns import RecordColumns
from raylog.records.batch import BatchView
from raylog.records.corrupt import CorruptBatch

logger = logging.getLogger("raylog.ranges")

PATIENCE_S = 60.0
FETCH_BYTES = 4 << 20
ARROW_BYTES = 1 << 20
"""Of the batches in one Arrow batch, unless one is larger: little enough to be in a core's cache still when it is written on."""

_OUT_OF_RANGE = kafka_error(ErrorCode.offset_out_of_range)
_CORRUPT = kafka_error(ErrorCode.corrupt_message)
OnLoss = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a task is told besides its range.

    ``columns`` of ``RECORD_SCHEMA``; ``fetch_bytes``: what is fetched ahead, in two fetches; ``arrow_bytes``: of the batches in one Arrow
    batch; ``patience_s``: how long a range may stand still; ``from_files``: whether files of this machine are read where they can be.
    """

    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    read_committed: bool = False
    fetch_bytes: int = FETCH_BYTES
    arrow_bytes: int = ARROW_BYTES
    patience_s: float = PATIENCE_S
    from_files: bool = True

    @property
    def batch_bytes(self) -> int:
        """What a task works on at a time: what is fetched ahead, and an Arrow batch. It holds less than three times that."""
        return self.fetch_bytes + self.arrow_bytes


def report_loss(loss: str) -> None:
    """What is done with a loss unless the caller has something better: a line in the log."""
    logger.warning("%s", loss)


def read_range(
    address: ClusterAddress, wanted: OffsetRange, options: ReadOptions, *, on_loss: OnLoss = report_loss
) -> Generator[Any, None, None]:
    """The records of a range as ``pyarrow.RecordBatch``es of about ``arrow_bytes``, none of them empty.

    OffsetOutOfRangeError for lost records, CorruptMessageError for a broken batch, each with the offsets; RequestTimedOutError where
    nothing came for ``patience_s``.
    """
    reader = RangeReader(address, wanted, options, on_loss)
    try:
        yield from reader.record_batches()
    finally:
        reader.close()


class RangeReader:
    def __init__(self, address: ClusterAddress, wanted: OffsetRange, options: ReadOptions, on_loss: OnLoss) -> None:
        self._wanted = wanted
        self._options = options
        self._on_loss = on_loss
        self._address = address
        self._config = ConsumerConfig.parse(
            {
                "auto.offset.reset": "none",
                "fetch.max.bytes": options.fetch_bytes // 2,
                "max.partition.fetch.bytes": options.fetch_bytes // 2,
            }
        )
        self._fetcher_used: Fetcher | None = None
        self._link: ClusterLink = background().run(links.acquire(address))

    @property
    def _fetcher(self) -> Fetcher:
        assert self._fetcher_used is not None, "nothing is fetched yet"
        return self._fetcher_used

    @property
    def _partition(self) -> ConsumedPartition:
        return self._fetcher.partitions[self._wanted.key]

    def record_batches(self) -> Iterator[Any]:
        """See ``read_range``."""
        columns = RecordColumns(self._options.columns)
        position = self._wanted.start
        if self._options.from_files and not self._options.read_committed:  # files do not tell what was aborted
            position = yield from self._from_files(columns)
        if position < self._wanted.end:
            yield from self._fetched(columns, position)

    # -------------------------------------------------------------- files

    def _from_files(self, columns: RecordColumns) -> Generator[Any, None, int]:
        """What files of this machine give; the offset up to which that is everything."""
        wanted = self._wanted
        position = wanted.start
        while position < wanted.end:
            near = background().run(near_files.located(self._link, wanted.key, position, wanted.end))
            if near is None:
                break
            with near:
                for chunk in near.chunks():
                    for view in chunk.views:
                        if view.base_offset < wanted.end:
                            yield from self._added(columns, view, position)
                    yield from self._taken(columns)  # the next chunk comes into the same buffer
                    position = chunk.next_offset
                position = near.position
                if position < near.offset_end:
                    break
        return position

    # -------------------------------------------------------------- fetching

    def _fetched(self, columns: RecordColumns, start: int) -> Iterator[Any]:
        """What the leader, or a nearer replica, sends from an offset on."""

        async def open() -> Fetcher:
            level = requests.READ_COMMITTED if self._options.read_committed else requests.READ_UNCOMMITTED
            return Fetcher(self._config, self._link, isolation_level=level)

        self._fetcher_used = background().run(open())
        self._fetcher.assign([self._wanted.key], {self._wanted.key: start})
        self._partition.fetch_end = self._wanted.end
        self._fetcher.wake()
        while (chunk := self._next_chunk()) is not None:
            aborted = AbortedTransactions(chunk.aborted)
            for view in chunk.views:
                if view.base_offset >= self._wanted.end:
                    break
                if not view.has_valid_crc():
                    raise self._corrupt(view.base_offset, view.next_offset, CorruptBatch("a wrong CRC", view.position))
                if not aborted.hides(view):
                    yield from self._added(columns, view, chunk.first_offset)
            self._partition.position = chunk.next_offset
        yield from self._taken(columns)

    # -------------------------------------------------------------- records

    def _added(self, columns: RecordColumns, view: BatchView, first_offset: int) -> Iterator[Any]:
        """Collect a batch whose CRC is right; gives what was collected before, if that is enough."""
        if view.is_control:
            return
        if columns and columns.size_bytes + view.size > self._options.arrow_bytes:
            yield from self._taken(columns)
        wanted = self._wanted
        try:
            columns.add(
                view,
                start_offset=first_offset,
                offset_end=wanted.end,
                topic=wanted.topic,
                partition=wanted.partition,
            )
        except CorruptBatch as error:
            raise self._corrupt(view.base_offset, view.next_offset, error) from error

    def _taken(self, columns: RecordColumns) -> Iterator[Any]:
        batch, broken = columns.take()
        if batch.num_rows:
            yield batch
        if broken is not None:
            raise self._corrupt(broken.base_offset, broken.next_offset, broken.error) from broken.error

    def _corrupt(self, base_offset: int, next_offset: int, error: CorruptBatch) -> RaylogError:
        key = self._wanted.key
        return _CORRUPT(
            f"the batch at offsets {base_offset}–{next_offset - 1} of {key.topic}-{key.partition} is broken ({error}): "
            f"read up to {base_offset} and from {next_offset} on to go without it"
        )

    def _next_chunk(self) -> Chunk | None:
        """The next fetch, waited for; None when the next offset has reached the end of the range."""
        deadline = time.monotonic() + self._options.patience_s
        while True:
            partition = self._partition
            chunk = self._fetcher.take_chunk()
            if chunk is not None:
                return chunk
            position = partition.position or 0
            if position >= self._wanted.end or (
                partition.barren_at == position and partition.high_watermark >= self._wanted.end
            ):
                return None
            if partition.error is not None and not self._mended(partition.error, position):
                return None
            if time.monotonic() > deadline:
                raise self._stuck(partition, position)
            news = threading.Event()
            self._fetcher.when_news(news.set)
            news.wait(1.0)

    # -------------------------------------------------------------- trouble

    def _mended(self, error: RaylogError, position: int) -> bool:
        """Whether there is something to be read beyond what is lost. Raises what is no loss, and losses that are not to be."""
        key = self._wanted.key
        if isinstance(error, _CORRUPT):
            raise _CORRUPT(
                f"the batch at offset {position} of {key.topic}-{key.partition} is broken ({error}): read up to {position} and "
                "from behind that batch on to go without it; `raylog dump-log` shows where it ends"
            ) from error
        if not isinstance(error, _OUT_OF_RANGE):
            raise error
        earliest, latest = self._ask(EARLIEST), self._ask(LATEST)
        end = self._wanted.end
        if position < earliest:
            loss = f"the offsets {position} to {min(earliest, end) - 1} of {key.topic}-{key.partition} were deleted before they were read"
        else:
            loss = f"{key.topic}-{key.partition} ends at {latest} now: the offsets {position} to {end - 1} are lost ({error})"
            earliest = end
        if self._options.fail_on_data_loss:
            raise _OUT_OF_RANGE(f"{loss}: read what is left with fail_on_data_loss=False") from error
        self._on_loss(loss)
        if earliest >= end:
            return False
        self._fetcher.seek(self._partition, offset=earliest)
        return True

    def _ask(self, timestamp: int) -> int:
        key = self._wanted.key
        leaders = LeaderRequests(self._link)
        found = background().run(leaders.list_offsets({key: timestamp}, self._config.default_api_timeout_ms))
        return found[key][0]

    def _stuck(self, partition: ConsumedPartition, position: int) -> RaylogError:
        key = self._wanted.key
        name, end = f"{key.topic}-{key.partition}", self._wanted.end
        if 0 <= partition.high_watermark < end:
            return _OUT_OF_RANGE(
                f"{name} ends at {partition.high_watermark} now, and ended at {end} or later when the read was planned: "
                "an unclean election has cut it, or its replicas do not answer"
            )
        return error_for(
            ErrorCode.request_timed_out,
            f"nothing of {name} from offset {position} on within {self._options.patience_s:g} s: has it a leader?",
        )

    def close(self) -> None:
        """Nothing is fetched any more."""

        async def close() -> None:
            if self._fetcher_used is not None:
                self._fetcher_used.stop()
            await links.release(self._address)

        background().run(close())
