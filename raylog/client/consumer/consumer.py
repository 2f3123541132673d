"""The consumer: ``ConsumerCore`` does everything that needs no waiting; ``AsyncConsumer`` is its
face for coroutines.

Records are fetched ahead in the background, per partition in order; polls take what is there and
wait only while nothing is. Partitions are assigned by name, or shared with the other members of a
group (``subscribe``). Positions start where the group (``group.id``) has come to, else by
``auto.offset.reset``, unless sought. The first thing that a poll does is what the group wants done
on the user's thread (``client.groups.membership``).

Each record is handed out at least once per assignment of its partition and position; positions
never go back by themselves, except where an unclean election cut the log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumed_partition import EARLIEST, LATEST, ConsumedPartition
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.consumer.record_reader import RecordReader, empty_table
from raylog.client.groups.membership import Duty, GroupMembership, RebalanceListener, listener_of
from raylog.client.groups.offset_commits import (
    GroupMetadata,
    HandedOut,
    OffsetAndMetadata,
    OnCommit,
    explained,
    to_commit,
)
from raylog.client.groups.subscriptions import wanted
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.clock import clock_of
from raylog.errors import ClientTimeoutError, ClosedError, ConfigError, RaylogError, error_for
from raylog.groups.requests import NO_GENERATION
from raylog.records.record import Record
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.client")

T = TypeVar("T")

TABLE_BYTES = 8 << 20
Keys = Iterable[TopicPartition | tuple[str, int]]
Place = int | str | datetime
"""An offset, "earliest", "latest", or a moment: the first record at or after it."""
Topics = str | re.Pattern[str] | Iterable[str]
"""Topics by name, or a pattern: compiled, or as text that begins with ``^``."""


class ConsumerCore:
    """Made in the loop that it will live in; its methods may be called from any thread, one at a
    time.
    """

    def __init__(self, address: ClusterAddress, config: ConsumerConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.link = ClusterLink(address, config)
        self._isolation = requests.READ_COMMITTED if config.reads_committed else requests.READ_UNCOMMITTED
        self.fetcher = Fetcher(config, self.link, isolation_level=self._isolation)
        self.reader = RecordReader(config, self.fetcher)
        self.group = GroupMembership(config, self.link, self.fetcher) if config.group_id is not None else None
        self._commits: set[asyncio.Task[None]] = set()

    def membership(self, doing: str) -> GroupMembership:
        if self.group is None:
            raise ConfigError(
                f"{doing} needs a group: set group.id, or assign() partitions and keep positions yourself"
            )
        return self.group

    def assign(self, keys: Keys) -> None:
        if self.group is not None and self.group.is_subscribed:
            raise ConfigError("this consumer has subscribed, so its group assigns its partitions: unsubscribe() first")
        self.fetcher.assign(TopicPartition(*key) for key in keys)

    def to_commit(self, offsets: Mapping[Any, Any] | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit; without ``offsets`` everything that was handed out."""
        group = self.membership("a commit")
        return group.positions() if offsets is None else to_commit(offsets)

    def handed_out(self) -> HandedOut:
        """What a transaction commits for this consumer. Raises UnknownMemberIdError for a member that
        has lost its partitions.
        """
        group = self.membership("committing in a transaction")
        if self.config.auto_commits:
            raise ConfigError(
                "this consumer commits on its own, in the transaction or not: give it enable_auto_commit=False"
            )
        offsets, metadata = group.positions(), group.metadata()
        if group.is_subscribed and metadata.generation == NO_GENERATION and offsets:
            raise explained(
                error_for(ErrorCode.unknown_member_id, f"committing offsets of group {metadata.group_id!r}")
            )
        return HandedOut(offsets, metadata)

    async def seek_to_committed(self) -> None:
        """Continue where the group has committed, or according to ``auto.offset.reset``."""
        group = self.membership("seek_to_committed()")
        keys = list(self.fetcher.partitions)
        found = await group.commits.committed(keys, self.config.default_api_timeout_ms)
        for key in keys:
            reset = self.config.auto_offset_reset
            if key in found:
                self.seek(key, found[key].offset)
            elif reset == "none":
                raise error_for(ErrorCode.offset_out_of_range, f"nothing is committed of {key.topic}-{key.partition}")
            else:
                self.seek(key, reset)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float | None) -> None:
        limit_ms = self.config.default_api_timeout_ms if timeout is None else timeout * 1000
        await self.membership("a commit").commits.commit(offsets, limit_ms)

    def begin_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], on_commit: OnCommit | None) -> None:
        """In the loop. ``on_commit`` is called there."""
        task = self.loop.create_task(self._commit_and_tell(offsets, on_commit))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit_and_tell(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], on_commit: OnCommit | None
    ) -> None:
        failure: RaylogError | None = None
        try:
            await self.commit(offsets, None)
        except RaylogError as error:
            failure = error
        if on_commit is not None:
            try:
                on_commit(offsets, failure)
            except Exception:
                logger.exception("the callback of a commit failed")
        elif failure is not None:
            logger.warning("%s", failure)

    async def committed(self, keys: Keys) -> dict[TopicPartition, OffsetAndMetadata | None]:
        asked = [TopicPartition(*key) for key in keys]
        commits = self.membership("committed()").commits
        found = await commits.committed(asked, self.config.default_api_timeout_ms)
        return {key: found.get(key) for key in asked}

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
        """Committed records between position and high watermark, as of the last fetch of each
        partition; −1 where none was made.
        """
        return {
            key: max(0, p.readable_end - p.position) if p.readable_end >= 0 and p.position is not None else -1
            for key, p in self.fetcher.partitions.items()
        }

    async def position(self, key: TopicPartition | tuple[str, int]) -> int:
        """The next offset to hand out, waited for while it is being looked up."""
        partition = self.partition(key)
        clock = clock_of(self.loop)
        deadline = clock.monotonic_s() + self.config.default_api_timeout_ms / 1000
        while partition.position is None:
            if partition.error is not None:
                raise partition.error
            if clock.monotonic_s() > deadline:
                raise ClientTimeoutError(
                    f"found no position for {key[0]}-{key[1]} within default.api.timeout.ms={self.config.default_api_timeout_ms:g}"
                )
            await asyncio.sleep(0.005)
        return partition.position

    async def offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int, int]]:
        asked = {TopicPartition(*key): timestamp for key, timestamp in timestamps.items()}
        leaders, limit_ms = LeaderRequests(self.link), self.config.default_api_timeout_ms
        return await leaders.list_offsets(asked, limit_ms, isolation_level=self._isolation)

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
        """After the group's last duty is done."""
        if self.group is not None:
            if self._commits:
                await asyncio.wait(self._commits, timeout=self.config.default_api_timeout_ms / 1000)
            await self.group.close()
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
        self._closing = False
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
        """Read exactly these partitions. Those that were read before keep their positions."""
        self._opened().assign(partitions)

    def subscribe(
        self,
        topics: Topics,
        listener: RebalanceListener | None = None,
        *,
        on_assigned: Any = None,
        on_revoked: Any = None,
        on_lost: Any = None,
    ) -> None:
        """Share these topics with the other members of the group (``group.id``). A new subscription
        replaces the last one.

        Polls call the listener or the three functions, which may be coroutine functions.
        """
        group = self._opened().membership("subscribe()")
        group.subscribe(wanted(topics), listener_of(listener, on_assigned, on_revoked, on_lost))

    def subscription(self) -> list[str]:
        """The subscribed topics. With a pattern, those that match now."""
        return self._opened().membership("subscription()").subscription()

    def group_metadata(self) -> GroupMetadata:
        """The group, this member's id in it, and the generation."""
        return self._opened().membership("group_metadata()").metadata()

    def handed_out(self) -> HandedOut:
        """How far records were handed out: what ``Transaction.commit_offsets`` commits."""
        return self._opened().handed_out()

    async def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        core = self._opened()
        group = core.membership("unsubscribe()")
        if (duty := group.last_duty()) is not None:
            await self._perform(group, duty)
        await group.leave("the consumer unsubscribed")

    async def commit(self, offsets: Mapping[Any, Any] | None = None, *, timeout: float | None = None) -> None:
        """Commit the position behind the last record that was handed out, or ``{partition: offset
        or (offset, metadata)}``. Returns when the commit is replicated.
        """
        core = self._opened()
        await core.commit(core.to_commit(offsets), timeout)

    def commit_async(self, offsets: Mapping[Any, Any] | None = None, on_commit: OnCommit | None = None) -> None:
        """Commit without waiting. ``on_commit(offsets, error)`` is called in the loop."""
        core = self._opened()
        core.begin_commit(core.to_commit(offsets), on_commit)

    async def committed(self, partitions: Keys) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for a partition without a commit."""
        return await self._opened().committed(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._opened().fetcher.partitions)

    def seek(self, partition: TopicPartition | tuple[str, int], place: Place) -> None:
        """Continue at an offset, "earliest", "latest" or a moment."""
        self._opened().seek(partition, place)

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the first offset of these partitions, or of all."""
        for partition in self._opened().chosen(partitions):
            self._opened().seek(partition.key, "earliest")

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the end of these partitions, or of all."""
        for partition in self._opened().chosen(partitions):
            self._opened().seek(partition.key, "latest")

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out no records of these partitions (default: all) until ``resume``. Positions stay."""
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
        """The first offset at or after a moment (datetime, or ms since 1970) per partition; None if
        there is none.
        """
        return await self._opened().times(times)

    async def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has."""
        return await self._opened().partitions_for(topic)

    async def seek_to_committed(self) -> None:
        """Continue where the group has committed; see ``Consumer.seek_to_committed``."""
        await self._opened().seek_to_committed()

    async def poll(self, timeout: float = 1.0) -> Record | None:
        """The next record, or None after ``timeout`` seconds."""
        core = self._opened()
        return await self._first(core, core.reader.next_record, timeout)

    async def consume(self, max_records: int | None = None, timeout: float = 1.0) -> list[Record]:
        """Up to ``max_records`` records (default ``max.poll.records``), as soon as there are any;
        none after ``timeout`` seconds.
        """
        core = self._opened()
        count = core.config.max_poll_records if max_records is None else max_records
        return await self._first(core, lambda: core.reader.take_records(count) or None, timeout) or []

    async def poll_batch(
        self, timeout: float = 1.0, *, max_bytes: int = TABLE_BYTES, columns: Sequence[str] | None = None
    ) -> Any:
        """Whole batches as a pyarrow Table, as soon as there are any; an empty one after
        ``timeout`` seconds. See ``Consumer.poll_batch``.
        """
        empty = empty_table(columns)
        core = self._opened()
        table = await self._first(core, lambda: core.reader.take_table(max_bytes, columns), timeout)
        return empty if table is None else table

    async def _attend(self, group: GroupMembership) -> None:
        """What the group wants done at a poll."""
        group.polled()
        while (duty := group.next_duty()) is not None:
            await self._perform(group, duty)

    async def _perform(self, group: GroupMembership, duty: Duty) -> None:
        try:
            await group.before(duty)
            if (call := group.call_of(duty)) is not None:
                called = call(list(duty.partitions))
                if inspect.isawaitable(called):
                    await called
        finally:
            await group.after(duty)

    async def _first(self, core: ConsumerCore, take: Callable[[], T | None], timeout: float) -> T | None:
        if core.group is None:
            return await self._wait(core, take, timeout)
        try:
            return await self._wait(core, take, timeout)
        finally:
            core.group.set_polling(False)

    async def _wait(self, core: ConsumerCore, take: Callable[[], T | None], timeout: float) -> T | None:
        deadline = core.loop.time() + timeout
        while True:
            if core.group is not None:
                await self._attend(core.group)
            taken = take()
            if taken is not None:
                return taken
            left = deadline - core.loop.time()
            if left <= 0 or self._closing:
                return None
            if core.group is not None:
                core.group.set_polling(True)
            news = asyncio.Event()
            try:
                with core.fetcher.news(news.set):
                    async with asyncio.timeout(left):
                        await news.wait()
            except TimeoutError:
                return take()

    async def __aiter__(self) -> AsyncIterator[Record]:
        while not self._closing:
            record = await self.poll(60.0)
            if record is not None:
                yield record

    async def close(self) -> None:
        """Close the consumer and forget its positions. A member of a group commits
        (``enable.auto.commit``), gives up its partitions and leaves.
        """
        is_first, self._closing = not self._closing, True
        core = self._core
        if not is_first or core is None:
            self._closed = True
            return
        try:
            if core.group is not None and (duty := core.group.last_duty()) is not None:
                await self._perform(core.group, duty)
        finally:
            self._closed = True
            self._core = None
            await core.close()

    async def __aenter__(self) -> AsyncConsumer:
        self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
