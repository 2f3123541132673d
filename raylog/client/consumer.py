"""The consumer of assigned partitions: ``ConsumerCore`` does everything that needs no waiting; ``AsyncConsumer`` is its
face for coroutines.

Records are fetched ahead in the background, per partition in order; polls take what is there and wait only while
nothing is. There are no groups yet: partitions are assigned by name, positions are the user's to keep. Positions
start by ``auto.offset.reset`` unless sought.

Each record is handed out at least once per assignment of its partition and position; positions never go back by
themselves, except where an unclean election cut the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from raylog.client.address import ClusterAddress
from raylog.client.config import ConsumerConfig
from raylog.client.consumed_partition import EARLIEST, LATEST, ConsumedPartition
from raylog.client.fetcher import Fetcher
from raylog.client.leader_requests import LeaderRequests
from raylog.client.link import ClusterLink
from raylog.client.record_reader import RecordReader, empty_table
from raylog.errors import ClientTimeoutError, ClosedError, ConfigError
from raylog.records.record import Record
from raylog.types import TopicPartition

T = TypeVar("T")

TABLE_BYTES = 8 << 20
Keys = Iterable[TopicPartition | tuple[str, int]]
Place = int | str | datetime
"""An offset, "earliest", "latest", or a moment: the first record at or after it."""


class ConsumerCore:
    """Made in the loop that it will live in; its methods may be called from any thread, one at a time."""

    def __init__(self, address: ClusterAddress, config: ConsumerConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.link = ClusterLink(address, config)
        self.fetcher = Fetcher(config, self.link)
        self.reader = RecordReader(config, self.fetcher)

    def partition(self, key: TopicPartition | tuple[str, int]) -> ConsumedPartition:
        partition = self.fetcher.partitions.get(TopicPartition(*key))
        if partition is None:
            topic, number = key
            raise ConfigError(f"{topic}-{number} is not assigned to this consumer: assign() it first")
        return partition

    def chosen(self, keys: Iterable[TopicPartition | tuple[str, int]]) -> list[ConsumedPartition]:
        """The named partitions, or all assigned ones."""
        return [self.partition(key) for key in keys] or list(self.fetcher.partitions.values())

    def seek(self, key: TopicPartition | tuple[str, int], place: Place) -> None:
        partition = self.partition(key)
        if isinstance(place, datetime):
            self.fetcher.seek(partition, timestamp=round(place.timestamp() * 1000))
        elif place in ("earliest", "latest"):
            self.fetcher.seek(partition, timestamp=EARLIEST if place == "earliest" else LATEST)
        elif isinstance(place, int) and place >= 0:
            self.fetcher.seek(partition, offset=place)
        else:
            raise ConfigError(f"cannot seek to {place!r}: give an offset from 0, 'earliest', 'latest' or a datetime")

    def set_paused(self, keys: Iterable[TopicPartition | tuple[str, int]], paused: bool) -> None:
        for partition in self.chosen(keys):
            partition.paused = paused
        self.fetcher.wake()

    def positions(self) -> dict[TopicPartition, int]:
        """The positions that are known."""
        return {key: p.position for key, p in self.fetcher.partitions.items() if p.position is not None}

    def lag(self) -> dict[TopicPartition, int]:
        """Committed records between position and high watermark, as of the last fetch of each partition; −1 where none was made."""
        return {
            key: max(0, p.high_watermark - p.position) if p.high_watermark >= 0 and p.position is not None else -1
            for key, p in self.fetcher.partitions.items()
        }

    async def position(self, key: TopicPartition | tuple[str, int]) -> int:
        """The next offset to hand out, waited for while it is being looked up."""
        partition = self.partition(key)
        deadline = time.monotonic() + self.config.default_api_timeout_ms / 1000
        while partition.position is None:
            if partition.error is not None:
                raise partition.error
            if time.monotonic() > deadline:
                raise ClientTimeoutError(
                    f"no position of {key[0]}-{key[1]} within default.api.timeout.ms={self.config.default_api_timeout_ms:g}"
                )
            await asyncio.sleep(0.005)
        return partition.position

    async def offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int, int]]:
        asked = {TopicPartition(*key): timestamp for key, timestamp in timestamps.items()}
        return await LeaderRequests(self.link).list_offsets(asked, self.config.default_api_timeout_ms)

    async def ends(self, keys: Keys, timestamp: int) -> dict[TopicPartition, int]:
        found = await self.offsets({TopicPartition(*key): timestamp for key in keys})
        return {key: offset for key, (offset, _, _) in found.items()}

    async def times(self, times: Mapping[TopicPartition, int | datetime]) -> dict[TopicPartition, int | None]:
        asked = {
            TopicPartition(*key): round(time.timestamp() * 1000) if isinstance(time, datetime) else time
            for key, time in times.items()
        }
        return {key: offset if offset >= 0 else None for key, (offset, _, _) in (await self.offsets(asked)).items()}

    async def partitions_for(self, topic: str) -> int:
        return len((await self.link.metadata.topic(topic)).partitions)

    async def close(self) -> None:
        self.fetcher.stop()
        self.reader.interceptors.close()
        await self.link.close()


class AsyncConsumer:
    """A consumer for coroutines, living in the loop in which it is first used.

    ::

        async with AsyncConsumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0)])
            async for record in consumer:
                print(record.offset, record.value)
    """

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._address = address
        self._options = {**(config or {}), **options}
        self._config = ConsumerConfig.parse(config, options)
        self._core: ConsumerCore | None = None
        self._closed = False

    def __reduce__(self) -> Any:
        return AsyncConsumer, (self._address, self._options)

    def _opened(self) -> ConsumerCore:
        if self._closed:
            raise ClosedError("this consumer is closed: make another one")
        if self._core is None or self._core.loop is not asyncio.get_running_loop():
            self._core = ConsumerCore(self._address, self._config)
        return self._core

    def assign(self, partitions: Keys) -> None:
        """Read exactly these partitions; those read before keep their position."""
        self._opened().fetcher.assign(TopicPartition(*key) for key in partitions)

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._opened().fetcher.partitions)

    def seek(self, partition: TopicPartition | tuple[str, int], place: Place) -> None:
        """Go on at an offset, "earliest", "latest" or a moment."""
        self._opened().seek(partition, place)

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on at the first offset of these partitions, or of all."""
        for partition in self._opened().chosen(partitions):
            self._opened().seek(partition.key, "earliest")

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on at the end of these partitions, or of all."""
        for partition in self._opened().chosen(partitions):
            self._opened().seek(partition.key, "latest")

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out nothing of these partitions (or of any) until ``resume``; positions stay."""
        self._opened().set_paused(partitions, True)

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Undo ``pause``."""
        self._opened().set_paused(partitions, False)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [key for key, partition in self._opened().fetcher.partitions.items() if partition.paused]

    def lag(self) -> dict[TopicPartition, int]:
        """See ``ConsumerCore.lag``."""
        return self._opened().lag()

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record to be handed out."""
        return await self._opened().position(partition)

    async def beginning_offsets(self, partitions: Keys) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._opened().ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Keys) -> dict[TopicPartition, int]:
        """The offset after the last committed record of each partition."""
        return await self._opened().ends(partitions, LATEST)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a moment (datetime, or ms since 1970) per partition; None if there is none."""
        return await self._opened().times(times)

    async def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has."""
        return await self._opened().partitions_for(topic)

    async def poll(self, timeout: float = 1.0) -> Record | None:
        """The next record, or None after ``timeout`` seconds."""
        core = self._opened()
        return await self._first(core, core.reader.next_record, timeout)

    async def consume(self, max_records: int | None = None, timeout: float = 1.0) -> list[Record]:
        """Up to ``max_records`` (default ``max.poll.records``): as soon as there are any; none after ``timeout`` seconds."""
        core = self._opened()
        count = core.config.max_poll_records if max_records is None else max_records
        return await self._first(core, lambda: core.reader.take_records(count) or None, timeout) or []

    async def poll_batch(self, timeout: float = 1.0, *, max_bytes: int = TABLE_BYTES) -> Any:
        """Whole batches as a pyarrow Table, as soon as there are any; an empty table after ``timeout`` seconds."""
        core = self._opened()
        table = await self._first(core, lambda: core.reader.take_table(max_bytes), timeout)
        return empty_table() if table is None else table

    async def _first(self, core: ConsumerCore, take: Callable[[], T | None], timeout: float) -> T | None:
        deadline = core.loop.time() + timeout
        while True:
            taken = take()
            if taken is not None:
                return taken
            left = deadline - core.loop.time()
            if left <= 0 or self._closed:
                return None
            news = asyncio.Event()
            core.fetcher.when_news(news.set)
            try:
                async with asyncio.timeout(left):
                    await news.wait()
            except TimeoutError:
                return take()

    async def __aiter__(self) -> AsyncIterator[Record]:
        while not self._closed:
            record = await self.poll(60.0)
            if record is not None:
                yield record

    async def close(self) -> None:
        """End; the positions are forgotten."""
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await core.close()

    async def __aenter__(self) -> AsyncConsumer:
        self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
