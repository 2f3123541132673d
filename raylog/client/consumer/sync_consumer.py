"""``Consumer``: the blocking face of ``ConsumerCore``. See ``sync.py`` for what holds for all
handles.

Polls take from the shared buffer on the caller's thread, without a word to the loop's thread while
there is data; only waiting needs it. One lock per consumer makes it safe (if pointless) to poll
from several threads. A consumer pickles with its assignment and positions, or its subscription.
Rebalance listeners are called by the thread that polls.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from raylog.client import background as background_module
from raylog.client.background import background, notice_fork
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumer import TABLE_BYTES, ConsumerCore, Keys, Place, Topics
from raylog.client.consumer.record_reader import empty_table
from raylog.client.groups.membership import Duty, GroupMembership, RebalanceListener, listener_of
from raylog.client.groups.offset_commits import GroupMetadata, HandedOut, OffsetAndMetadata, OnCommit
from raylog.client.groups.subscriptions import Wanted, wanted
from raylog.client.links.address import ClusterAddress
from raylog.errors import ClosedError
from raylog.records.record import Record
from raylog.types import TopicPartition

T = TypeVar("T")
Key = TopicPartition | tuple[str, int]

_ITERATION_WAIT_S = 1.0


class Consumer:
    """A consumer of assigned partitions, or a member of a group. Options are Kafka's; unknown ones
    are refused.

    ::

        with Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0)])
            table = consumer.poll_batch()          # pyarrow: key, value, topic, partition, offset, timestamp, …
            for record in consumer:                # or one by one, for ever
                print(record.offset, record.value)

        with Consumer(address, group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe("events")           # or several topics, or a pattern
            for record in consumer:
                ...                                # committed every auto.commit.interval.ms and on close
    """

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._address = address
        self._options = {**(config or {}), **options}
        self._config = ConsumerConfig.parse(config, options)
        self._live: ConsumerCore | None = None
        self._start: dict[TopicPartition, int | None] = {}  # assignment and positions to begin with
        self._subscription: tuple[Wanted, RebalanceListener | None] | None = None
        self._generation = background_module.generation
        self._lock = threading.RLock()
        self._opening = threading.Lock()  # not the polls' one: those hold theirs while they wait
        self._closing = False
        self._closed = False
        self._finalizer: Any = None

    def __reduce__(self) -> Any:
        places = (
            self._start
            if self._live is None
            else {key: self._live.positions().get(key) for key in self._live.fetcher.partitions}
        )
        if self._subscription is not None:
            places = {}
        return _restored, (self._address, self._options, places, self._subscription)

    def __repr__(self) -> str:
        return f"<Consumer of cluster {self._address.name!r}>"

    # -------------------------------------------------------------- what to read

    def assign(self, partitions: Keys) -> None:
        """Read exactly these partitions. Those that were read before keep their positions; others
        begin according to ``auto.offset.reset``.
        """
        with self._lock:
            self._core().assign(partitions)

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

        Polls call the listener, or the three functions, on their thread.
        """
        with self._lock:
            group = self._core().membership("subscribe()")
            subscription = (wanted(topics), listener_of(listener, on_assigned, on_revoked, on_lost))
            background().run(_call(lambda: group.subscribe(*subscription)))
            self._subscription = subscription

    def subscription(self) -> list[str]:
        """The subscribed topics. With a pattern, those that match now."""
        return self._core().membership("subscription()").subscription()

    def group_metadata(self) -> GroupMetadata:
        """The group, this member's id in it, and the generation."""
        return self._core().membership("group_metadata()").metadata()

    def handed_out(self) -> HandedOut:
        """How far records were handed out: what ``Transaction.commit_offsets`` commits."""
        with self._lock:
            return self._core().handed_out()

    def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        with self._lock:
            group = self._core().membership("unsubscribe()")
            self._subscription = None
            if (duty := group.last_duty()) is not None:
                self._perform(group, duty)
            background().run(group.leave("the consumer unsubscribed"))

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._core().fetcher.partitions)

    def seek(self, partition: Key, place: Place) -> None:
        """Continue at an offset, at "earliest" or "latest", or at the first record at or after a
        moment (datetime).
        """
        with self._lock:
            self._core().seek(partition, place)

    def seek_to_beginning(self, *partitions: Key) -> None:
        """Continue at the first offset of these partitions, or of all."""
        with self._lock:
            for partition in self._core().chosen(partitions):
                self._core().seek(partition.key, "earliest")

    def seek_to_end(self, *partitions: Key) -> None:
        """Continue at the end of these partitions, or of all."""
        with self._lock:
            for partition in self._core().chosen(partitions):
                self._core().seek(partition.key, "latest")

    def seek_to_committed(self) -> None:
        """Continue where the group has committed, or according to ``auto.offset.reset`` where it has
        not: after a transaction was aborted, to read again what it had read.
        """
        with self._lock:
            background().run(self._core().seek_to_committed())

    def pause(self, *partitions: Key) -> None:
        """Hand out no records of these partitions (default: all) until ``resume``. Positions stay."""
        with self._lock:
            self._core().set_paused(partitions, True)

    def resume(self, *partitions: Key) -> None:
        """Undo ``pause``."""
        with self._lock:
            self._core().set_paused(partitions, False)

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [key for key, partition in self._core().fetcher.partitions.items() if partition.paused]

    # -------------------------------------------------------------- how far the group has come

    def commit(self, offsets: Mapping[Any, Any] | None = None, *, timeout: float | None = None) -> None:
        """Commit the position behind the last record that was handed out, or ``{partition: offset
        or (offset, metadata)}``. Returns when the commit is replicated.

        Raises IllegalGenerationError or UnknownMemberIdError if the partitions belong to another
        member by now, and RebalanceInProgressError if the consumer has to poll first.
        """
        core = self._core()
        background().run(core.commit(core.to_commit(offsets), timeout))

    def commit_async(self, offsets: Mapping[Any, Any] | None = None, on_commit: OnCommit | None = None) -> None:
        """Commit without waiting. The background thread calls ``on_commit(offsets, error)``.
        ``close`` waits for it.
        """
        core = self._core()
        chosen = core.to_commit(offsets)
        background().call_soon(lambda: core.begin_commit(chosen, on_commit))

    def committed(self, partitions: Keys) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for a partition without a commit."""
        return background().run(self._core().committed(partitions))

    # -------------------------------------------------------------- where things are

    def position(self, partition: Key) -> int:
        """The offset of the next record to be handed out."""
        return background().run(self._core().position(partition))

    def beginning_offsets(self, partitions: Keys) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return background().run(self._core().ends(partitions, -2))

    def end_offsets(self, partitions: Keys) -> dict[TopicPartition, int]:
        """The offset after the last committed record of each partition."""
        return background().run(self._core().ends(partitions, -1))

    def offsets_for_times(self, times: Mapping[TopicPartition, int | datetime]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a moment (datetime, or ms since 1970) per partition; None if
        there is none.
        """
        return background().run(self._core().times(times))

    def lag(self) -> dict[TopicPartition, int]:
        """How many committed records each partition has ahead of the position, as of its last
        fetch; −1 before the first.
        """
        return self._core().lag()

    def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has. Raises UnknownTopicOrPartitionError."""
        return background().run(self._core().partitions_for(topic))

    # -------------------------------------------------------------- records

    def poll(self, timeout: float = 1.0) -> Record | None:
        """The next record, or None after ``timeout`` seconds."""
        with self._lock:
            core = self._attended()
            record = core.reader.next_record()
            return record if record is not None else self._wait(core, core.reader.next_record, timeout)

    def consume(self, max_records: int | None = None, timeout: float = 1.0) -> list[Record]:
        """Up to ``max_records`` records (default ``max.poll.records``), as soon as there are any;
        none after ``timeout`` seconds.
        """
        count = self._config.max_poll_records if max_records is None else max_records
        with self._lock:
            core = self._attended()
            records = core.reader.take_records(count)
            return records or self._wait(core, lambda: core.reader.take_records(count) or None, timeout) or []

    def poll_batch(
        self, timeout: float = 1.0, *, max_bytes: int = TABLE_BYTES, columns: Sequence[str] | None = None
    ) -> Any:
        """Whole batches of about ``max_bytes`` in all, as a pyarrow Table, as soon as there are
        any; an empty one after ``timeout`` seconds.

        Columns: key, value, topic, partition, offset, timestamp, timestamp_type, headers, or those
        that ``columns`` names, in its order. Fewer columns are faster. The C kernel makes them
        without a Python object per record, and other threads run meanwhile.
        """
        empty = empty_table(columns)
        with self._lock:
            core = self._attended()
            table = core.reader.take_table(max_bytes, columns)
            if table is None:
                table = self._wait(core, lambda: core.reader.take_table(max_bytes, columns), timeout)
            return empty if table is None else table

    def __iter__(self) -> Iterator[Record]:
        """Every record from the position on, waiting for more for ever (until ``close`` by another
        thread).
        """
        while not self._closing:
            record = self.poll(_ITERATION_WAIT_S)
            if record is not None:
                yield record

    def _wait(self, core: ConsumerCore, take: Callable[[], T | None], timeout: float) -> T | None:
        deadline = time.monotonic() + timeout
        group = core.group
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._closing:
                if group is not None:
                    group.set_polling(True)
                news = threading.Event()
                with core.fetcher.news(news.set):
                    news.wait(left)
                if group is not None and not self._closing:
                    self._attend(group)
                taken = take()
                if taken is not None:
                    return taken
            return None
        finally:
            if group is not None:
                group.set_polling(False)

    def _attended(self) -> ConsumerCore:
        core = self._core()
        if core.group is not None:
            self._attend(core.group)
        return core

    def _attend(self, group: GroupMembership) -> None:
        """What the group wants done at a poll."""
        group.polled()
        while (duty := group.next_duty()) is not None:
            self._perform(group, duty)

    def _perform(self, group: GroupMembership, duty: Duty) -> None:
        try:
            background().run(group.before(duty))
            if (call := group.call_of(duty)) is not None:
                call(list(duty.partitions))
        finally:
            background().run(group.after(duty))

    # -------------------------------------------------------------- the end, and inside

    def close(self) -> None:
        """Close the consumer. A poll that waits in another thread returns. Idempotent.

        A member of a group commits (``enable.auto.commit``), gives up its partitions and leaves.
        """
        is_first, self._closing = not self._closing, True
        core = self._live
        if not is_first or core is None or self._generation != background_module.generation:
            self._closed = True
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        try:
            if core.group is not None:
                background().call_soon(core.fetcher.notify)
                with self._lock:
                    if (duty := core.group.last_duty()) is not None:
                        self._perform(core.group, duty)
        finally:
            self._closed = True
            self._live = None
            background().run(core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _core(self) -> ConsumerCore:
        if self._closed:
            raise ClosedError("this consumer is closed: make another one")
        if self._live is not None and self._generation == background_module.generation:
            return self._live
        if self._live is not None:  # opened before a fork
            notice_fork(repr(self))
            self._start = {key: self._live.positions().get(key) for key in self._live.fetcher.partitions}
            self._lock = threading.RLock()
            self._opening = threading.Lock()
            self._live = None
        with self._opening:
            if self._live is None:
                core = background().run(_make(self._address, self._config))
                known = {key: offset for key, offset in self._start.items() if offset is not None}
                if self._subscription is not None and core.group is not None:
                    wanted_topics, listener = self._subscription
                    group = core.group
                    background().run(_call(lambda: group.subscribe(wanted_topics, listener)))
                else:
                    core.fetcher.assign(self._start, known)
                self._generation = background_module.generation
                self._finalizer = weakref.finalize(self, _abandon, core, self._generation)
                self._finalizer.atexit = False
                self._live = core
        return self._live


def _restored(
    address: ClusterAddress,
    options: Mapping[str, Any],
    places: dict[TopicPartition, int | None],
    subscription: tuple[Wanted, RebalanceListener | None] | None = None,
) -> Consumer:
    consumer = Consumer(address, options)
    consumer._start = places
    consumer._subscription = subscription
    return consumer


async def _call(function: Callable[[], T]) -> T:
    """A call in the loop."""
    return function()


async def _make(address: ClusterAddress, config: ConsumerConfig) -> ConsumerCore:
    return ConsumerCore(address, config)


def _abandon(core: ConsumerCore, generation: int) -> None:
    """A consumer was dropped without close(): close its connections behind its back."""
    import asyncio

    if generation == background_module.generation:
        try:
            asyncio.run_coroutine_threadsafe(core.close(), core.loop)
        except RuntimeError:
            pass  # the loop is gone, at the interpreter's end
