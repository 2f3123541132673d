"""One task's work: reads one range as Arrow batches, from local files or over the network.

A replica's files are read if they are on this machine (``near_files``), as far as they go. The rest
is fetched from the leader or a nearer replica while earlier records are decoded.

A range is done when the *next offset* has reached its end, never when "a record was seen". Batches
without records for the reader (control, aborted or compacted ones) move the position like any
other. If compaction has left nothing up to the end, the leader's empty answers show it
(``ConsumedPartition.barren_at``). The fetcher follows changes of leader.

Errors name the range: a corrupt batch by its offsets; deleted offsets as lost data
(OffsetOutOfRangeError, or a call of ``on_loss`` and then the rest of the range). If an unclean
election has cut the log below the range's end, the error follows ``PATIENCE_S`` without progress.

Blocks. Runs on the caller's thread, except for fetching, which runs on this process's background
loop. Holds at most about two fetches, or a piece of a file, and one Arrow batch.
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
from raylog.records.arrow_columns import RecordColumns
from raylog.records.batch import BatchView
from raylog.records.corrupt import CorruptBatch

logger = logging.getLogger("raylog.ranges")

PATIENCE_S = 60.0
FETCH_BYTES = 4 << 20
ARROW_BYTES = 1 << 20
"""Bytes of the batches in one Arrow batch, unless one is larger: small enough to stay in a core's
cache.
"""

_OUT_OF_RANGE = kafka_error(ErrorCode.offset_out_of_range)
_CORRUPT = kafka_error(ErrorCode.corrupt_message)
OnLoss = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a task needs besides its range.

    ``columns`` of ``RECORD_SCHEMA``; ``fetch_bytes``: bytes to fetch ahead, in two fetches;
    ``arrow_bytes``: bytes of the batches in one Arrow batch; ``patience_s``: seconds that a range
    may make no progress; ``from_files``: whether to read files of this machine.
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
        """Bytes that a task works on at a time: its fetches and an Arrow batch. It holds less than
        three times that.
        """
        return self.fetch_bytes + self.arrow_bytes


def report_loss(loss: str) -> None:
    """Log a loss: the default if the caller gives no ``on_loss``."""
    logger.warning("%s", loss)


def read_range(
    address: ClusterAddress, wanted: OffsetRange, options: ReadOptions, *, on_loss: OnLoss = report_loss
) -> Generator[Any, None, None]:
    """Yield the records of a range as non-empty ``pyarrow.RecordBatch``es of about ``arrow_bytes``.

    OffsetOutOfRangeError for lost records, CorruptMessageError for a broken batch, each with the
    offsets; RequestTimedOutError after ``patience_s`` without progress.
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
        if (
            self._options.from_files and not self._options.read_committed
        ):  # files do not show which transactions were aborted
            position = yield from self._from_files(columns)
        if position < self._wanted.end:
            yield from self._fetched(columns, position)

    # -------------------------------------------------------------- files

    def _from_files(self, columns: RecordColumns) -> Generator[Any, None, int]:
        """Yield records from files of this machine; return the offset up to which they are
        complete.
        """
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
                    yield from self._taken(columns)  # the next chunk overwrites the buffer
                    position = chunk.next_offset
                position = near.position
                if position < near.offset_end:
                    break
        return position

    # -------------------------------------------------------------- fetching

    def _fetched(self, columns: RecordColumns, start: int) -> Iterator[Any]:
        """Yield the records that the leader, or a nearer replica, sends from an offset on."""

        async def open() -> Fetcher:
            level = requests.READ_COMMITTED if self._options.read_committed else requests.READ_UNCOMMITTED
            return Fetcher(self._config, self._link, isolation_level=level)

        self._fetcher_used = background().run(open())
        self._fetcher.assign([self._wanted.key], {self._wanted.key: start})
        self._partition.fetch_end = self._wanted.end
        self._fetcher.wake()
        while (chunk := self._next_chunk()) is not None:
            for view in chunk.views:
                if view.base_offset >= self._wanted.end:
                    break
                if not view.has_valid_crc():
                    raise self._corrupt(view.base_offset, view.next_offset, CorruptBatch("a wrong CRC", view.position))
                if chunk.gives(view):
                    yield from self._added(columns, view, chunk.first_offset)
            self._partition.position = chunk.next_offset
        yield from self._taken(columns)

    # -------------------------------------------------------------- records

    def _added(self, columns: RecordColumns, view: BatchView, first_offset: int) -> Iterator[Any]:
        """Collect a batch with a valid CRC; yield what was collected before, if that is enough."""
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
            f"to skip it, read up to {base_offset} and from {next_offset} on"
        )

    def _next_chunk(self) -> Chunk | None:
        """Wait for the next fetch and return it; None when the next offset has reached the end of
        the range.
        """
        deadline = time.monotonic() + self._options.patience_s
        while True:
            partition = self._partition
            chunk = self._fetcher.take_chunk()
            if chunk is not None:
                return chunk
            position = partition.position or 0
            if position >= self._wanted.end or (
                partition.barren_at == position and partition.readable_end >= self._wanted.end
            ):
                return None
            if partition.error is not None and not self._mended(partition.error, position):
                return None
            if time.monotonic() > deadline:
                raise self._stuck(partition, position)
            news = threading.Event()
            with self._fetcher.news(news.set):
                news.wait(1.0)

    # -------------------------------------------------------------- trouble

    def _mended(self, error: RaylogError, position: int) -> bool:
        """Return whether anything is left to read after a loss. Raises other errors, and losses
        that are not allowed.
        """
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
            raise _OUT_OF_RANGE(f"{loss}: read the rest with fail_on_data_loss=False") from error
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
        if 0 <= partition.readable_end < end:
            return _OUT_OF_RANGE(
                f"{name} now ends at {partition.readable_end}, but ended at {end} or later when the read was planned: "
                "an unclean election has cut it, or its replicas do not answer"
            )
        return error_for(
            ErrorCode.request_timed_out,
            f"nothing of {name} from offset {position} on within {self._options.patience_s:g} s: check that it has a leader",
        )

    def close(self) -> None:
        """Stop fetching."""

        async def close() -> None:
            if self._fetcher_used is not None:
                self._fetcher_used.stop()
            await links.release(self._address)

        background().run(close())
