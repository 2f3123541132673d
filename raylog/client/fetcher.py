"""The part of a consumer that talks: keeps a buffer of fetched batches filled, ahead of what the user has read.

One round (``_run``) looks up start offsets, checks positions after a change of leader, and sends one Fetch per leader
for every partition that may be fetched: assigned, not paused, position known, no fetch in flight, and less than two
fetches' worth of bytes in the buffer. Fetches park at the leader for up to ``fetch.max.wait.ms``; several may be in
flight to one leader, each for other partitions. So the next fetch travels while the user works on the last one.

- An error that concerns the leader starts a search at once; the partition goes on with what it finds (as in
  ``sender.py``).
- When the leader epoch has changed, OffsetForLeaderEpoch tells whether the log was cut below the position (KIP-320).
  If so the position moves to the cut, or with ``auto.offset.reset=none`` the user is told.
- OFFSET_OUT_OF_RANGE moves the position by ``auto.offset.reset``, or is told.
- A consumer of a group (``committed``) begins where the group has come to, others by ``auto.offset.reset``.
- What cannot be mended stays on its partition as ``error``: each poll raises it until a seek or another assignment.

Runs in one event loop. The state of partitions and the buffer are shared with the reader's thread, under ``lock``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client import requests
from raylog.client.config import ConsumerConfig
from raylog.client.consumed_partition import COMMITTED, EARLIEST, LATEST, Chunk, ConsumedPartition
from raylog.client.leader_requests import LEADER_CODES, LeaderRequests
from raylog.client.link import ClusterLink
from raylog.client.metadata import Leader
from raylog.client.silent_leaders import SilentLeaders
from raylog.errors import ClientTimeoutError, RaylogError, error_for, kafka_error
from raylog.records.batch import batches
from raylog.types import Endpoint, TopicPartition
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer

logger = logging.getLogger("raylog.client")

_FIRST_RETRY_S = 0.02

Fetching = list[tuple[ConsumedPartition, int, Leader]]
"""The partitions of one Fetch, each with its generation and the leader it was sent to."""

Committed = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, tuple[int, int]]]]
"""Asks for the committed offsets of partitions, each with its leader epoch; those that have none are left out."""


class Fetcher:
    def __init__(self, config: ConsumerConfig, link: ClusterLink) -> None:
        self._config = config
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.lock = threading.Lock()
        self.partitions: dict[TopicPartition, ConsumedPartition] = {}
        self.buffer: deque[Chunk] = deque()
        self._buffered_bytes = 0
        self._waiters: list[Callable[[], None]] = []
        self._wake_scheduled = False
        self._opening: set[Endpoint] = set()
        self._searching: set[TopicPartition] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._silent = SilentLeaders(link.metadata)
        self._stopped = False
        self.has_duty: Callable[[], bool] = lambda: False  # whether a poll has something else to do; from any thread
        self.committed: Committed | None = None
        self._refresher = self._loop.create_task(self._refresh_metadata())

    # -------------------------------------------------------------- from any thread

    def wake(self) -> None:
        """Cause a round."""
        if self._wake_scheduled or self._stopped:
            return
        self._wake_scheduled = True
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(self._woken)
            else:
                self._loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the loop is closed, at the interpreter's end
            self._stopped = True

    @property
    def default_start(self) -> int:
        return EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST

    def assign(self, keys: Iterable[TopicPartition], positions: dict[TopicPartition, int] | None = None) -> None:
        """Follow exactly these partitions; those that were followed before keep their place."""
        with self.lock:
            wanted = {TopicPartition(*key): None for key in keys}
            for key in [key for key in self.partitions if key not in wanted]:
                gone = self.partitions.pop(key)
                gone.generation += 1  # what is in flight for it is nobody's
                self._discard(gone)
            for key in wanted:
                if key not in self.partitions:
                    start_at = self.default_start if self.committed is None else COMMITTED
                    partition = self.partitions[key] = ConsumedPartition(key, start_at)
                    if positions is not None and key in positions:
                        partition.jump(positions[key])
                    elif self.committed is None:
                        self._start_by_default(partition)
        self.notify()
        self.wake()

    def _start_by_default(self, partition: ConsumedPartition) -> None:
        """Under the lock."""
        if self._config.auto_offset_reset == "none":
            key = partition.key
            partition.start_at = None
            partition.error = error_for(
                ErrorCode.offset_out_of_range,
                f"{key.topic}-{key.partition} has no {'position' if self.committed is None else 'committed offset'} and "
                "auto.offset.reset=none: seek() first",
            )
        else:
            partition.start_at = self.default_start

    def take_chunk(self) -> Chunk | None:
        """The next chunk of a partition that is not paused; its bytes leave the buffer."""
        with self.lock:
            taken = next((chunk for chunk in self.buffer if not chunk.partition.paused), None)
            if taken is not None:
                self.buffer.remove(taken)
                self._buffered_bytes -= taken.size_bytes
                taken.partition.buffered_bytes -= taken.size_bytes
        if taken is not None:
            self.wake()
        return taken

    def halt(self, partition: ConsumedPartition, error: RaylogError) -> None:
        """Let a partition raise this error until it is sought or assigned anew."""
        with self.lock:
            self._discard(partition)
            partition.error = error

    def put_back(self, chunk: Chunk) -> None:
        """Return a chunk of the present generation to the front. Under the lock."""
        self.buffer.appendleft(chunk)
        self._buffered_bytes += chunk.size_bytes
        chunk.partition.buffered_bytes += chunk.size_bytes

    def seek(self, partition: ConsumedPartition, *, offset: int | None = None, timestamp: int | None = None) -> None:
        """Read from an offset on, or from that of a timestamp (−2 earliest, −1 latest)."""
        with self.lock:
            self._discard(partition)
            if offset is not None:
                partition.jump(offset)
            else:
                assert timestamp is not None, "a seek to nowhere"
                partition.look_up(timestamp)
        self.wake()

    def has_news(self) -> bool:
        """Whether there is a chunk to take, an error to raise or something else to do. Under the lock."""
        if self.has_duty() or any(partition.error is not None for partition in self.partitions.values()):
            return True
        return any(not chunk.partition.paused for chunk in self.buffer)

    def when_news(self, callback: Callable[[], None]) -> None:
        """Call back once when there is (or may be) something new, at once if there is now. Any thread calls it."""
        with self.lock:
            if not self.has_news() and not self._stopped:
                self._waiters.append(callback)
                return
        callback()

    def notify(self) -> None:
        """Wake who waits for news, in the loop."""
        with self.lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def _discard(self, partition: ConsumedPartition) -> None:
        kept = [chunk for chunk in self.buffer if chunk.partition is not partition]
        if len(kept) < len(self.buffer):
            self.buffer = deque(kept)
            self._buffered_bytes = sum(chunk.size_bytes for chunk in kept)
        partition.buffered_bytes = 0

    def stop(self) -> None:
        """End; whoever waits is woken."""
        self._stopped = True
        self._refresher.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._silent.close()
        for task in self._tasks:
            task.cancel()
        self.notify()

    # -------------------------------------------------------------- a round

    def _woken(self) -> None:
        self._wake_scheduled = False
        self._run()

    def _run(self) -> None:
        if self._stopped:
            return
        now = self._loop.time()
        later = float("inf")
        to_look_up: list[tuple[ConsumedPartition, int, int]] = []
        to_resume: list[tuple[ConsumedPartition, int]] = []
        to_fetch: dict[tuple[Endpoint, Connection], Fetching] = {}
        with self.lock:
            room = self._buffered_bytes < self._config.fetch_max_bytes
            for key, partition in self.partitions.items():
                if partition.error is not None or partition.fetching or partition.resolving:
                    continue
                if now < partition.not_before:
                    later = min(later, partition.not_before)
                    continue
                if partition.start_at is not None:
                    partition.resolving = True
                    if partition.start_at == COMMITTED:
                        to_resume.append((partition, partition.generation))
                        continue
                    to_look_up.append((partition, partition.generation, partition.start_at))
                    continue
                if (
                    partition.paused
                    or not room
                    or partition.buffered_bytes >= 2 * self._config.max_partition_fetch_bytes
                ):
                    continue
                if partition.position is None:
                    continue
                leader = self._link.metadata.leader(key)
                if leader is None or leader.endpoint is None:
                    self._search(partition, leader, None)
                    continue
                if partition.last_epoch >= 0 and leader.epoch > partition.validated_epoch:
                    partition.resolving = True
                    self._spawn(self._validate(partition, partition.generation, leader))
                    continue
                connection = self._link.connections.peek(leader.endpoint)
                if connection is None:
                    self._connect(leader.endpoint)
                else:
                    partition.fetching = True
                    to_fetch.setdefault((leader.endpoint, connection), []).append(
                        (partition, partition.generation, leader)
                    )
        if to_resume:
            self._spawn(self._resume(to_resume))
        if to_look_up:
            self._spawn(self._look_up(to_look_up))
        for (_, connection), fetching in to_fetch.items():
            self._fetch(connection, fetching)
        self._look_again_at(later)

    def _fetch(self, connection: Connection, fetching: Fetching) -> None:
        config = self._config
        request = requests.fetch(
            {partition.key: (partition.fetch_offset, leader.epoch) for partition, _, leader in fetching},
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            partition_max_bytes=config.max_partition_fetch_bytes,
        )
        timeout_ms = config.request_timeout_ms + config.fetch_max_wait_ms
        leaders = [(partition.key, leader) for partition, _, leader in fetching]
        asked = self._silent.sent(connection, leaders, held_back_ms=config.fetch_max_wait_ms)
        connection.call(request, partial(self._answered, connection, fetching, asked), timeout_ms=timeout_ms)

    def _answered(
        self, connection: Connection, fetching: Fetching, asked: int, reply: Any, error: Exception | None
    ) -> None:
        self._silent.ended(asked)
        if self._stopped:
            return
        if error is None and reply.error_code is not ErrorCode.none:
            error = error_for(reply.error_code, "fetch")
        if error is not None:
            if isinstance(error, ClientTimeoutError):
                connection.abort(error)
            for partition, generation, leader in fetching:
                self._failed(partition, generation, leader, ErrorCode.network_exception, connection.peer)
        else:
            answers = {
                (topic.topic, int(answer.partition_index)): answer
                for topic in reply.responses
                for answer in topic.partitions
            }
            news = False
            for partition, generation, leader in fetching:
                answer = answers.get(partition.key)
                code = ErrorCode.network_exception if answer is None else answer.error_code
                if code is ErrorCode.none:
                    news |= self._take(partition, generation, leader, answer)
                else:
                    if answer is not None:
                        self._link.metadata.learn_hint(partition.key, answer)
                    self._failed(partition, generation, leader, code, None)
            if news:
                self.notify()
        self._run()

    def _take(self, partition: ConsumedPartition, generation: int, leader: Leader, answer: Any) -> bool:
        """Put what a fetch brought into the buffer."""
        records = answer.records
        with self.lock:
            if partition.generation != generation:
                return False
            partition.fetching = False
            partition.failures = 0
            partition.validated_epoch = max(partition.validated_epoch, leader.epoch)
            partition.high_watermark = int(answer.high_watermark)
            partition.log_start_offset = int(answer.log_start_offset)
            if not records:
                return False
            first = partition.fetch_offset
            try:
                views = [view for view in batches(records, allow_partial_tail=True) if view.next_offset > first]
            except RaylogError as error:
                partition.error = self._corrupt(partition, first, error)
                return True
            if not views:
                return False
            chunk = Chunk(partition, generation, first, views, len(records), views[-1].next_offset)
            partition.fetch_offset = chunk.next_offset
            partition.last_epoch = views[-1].partition_leader_epoch
            partition.buffered_bytes += chunk.size_bytes
            self._buffered_bytes += chunk.size_bytes
            self.buffer.append(chunk)
            return True

    def _corrupt(self, partition: ConsumedPartition, offset: int, error: RaylogError) -> RaylogError:
        key = partition.key
        return kafka_error(ErrorCode.corrupt_message)(
            f"{key.topic}-{key.partition} holds a broken batch at or behind offset {offset} ({error}): seek() beyond it to go on without it"
        )

    # -------------------------------------------------------------- trouble

    def _failed(
        self, partition: ConsumedPartition, generation: int, leader: Leader, code: ErrorCode, peer: Peer | None
    ) -> None:
        if partition.generation != generation:
            return
        partition.fetching = False
        key = partition.key
        if code is ErrorCode.offset_out_of_range:
            self._out_of_range(partition)
        elif code in LEADER_CODES:
            partition.failures += 1
            partition.not_before = self._loop.time() + self._pause_s(partition.failures)
            self._search(partition, leader, peer)
        elif ErrorCode(code).retriable:
            partition.failures += 1
            partition.not_before = self._loop.time() + self._pause_s(partition.failures + 1)
        else:
            partition.error = error_for(code, f"fetching {key.topic}-{key.partition}: {ErrorCode(code).name.upper()}")
            self.notify()

    def _pause_s(self, failures: int) -> float:
        if failures <= 1:
            return _FIRST_RETRY_S
        backoff = self._config.retry_backoff_ms * 2 ** min(failures - 2, 16)
        return float(min(backoff, max(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)) / 1000)

    def _out_of_range(self, partition: ConsumedPartition) -> None:
        key = partition.key
        if self._config.auto_offset_reset == "none":
            partition.error = error_for(
                ErrorCode.offset_out_of_range,
                f"offset {partition.fetch_offset} of {key.topic}-{key.partition} is not in the log (any more) and "
                "auto.offset.reset=none: seek() to another one",
            )
            self.notify()
            return
        logger.warning(
            "offset %d of %s-%d is not in the log (any more): going on at the %s one",
            partition.fetch_offset, key.topic, key.partition, self._config.auto_offset_reset,
        )  # fmt: skip
        partition.start_at = self.default_start

    def _search(self, partition: ConsumedPartition, failed: Leader | None, peer: Peer | None) -> None:
        key, generation = partition.key, partition.generation
        if key in self._searching:
            return
        self._searching.add(key)

        def on_end(found: Leader | None, refusal: RaylogError | None) -> None:
            self._searching.discard(key)
            self.wake()
            if self._stopped or partition.generation != generation:
                return
            if refusal is not None:
                partition.error = refusal
                self.notify()
            elif found is not None and found.endpoint is not None:
                if failed is None or found.epoch > failed.epoch:
                    partition.failures = 0
                    partition.not_before = 0.0
                elif partition.failures <= 1:
                    partition.not_before = 0.0
            else:
                partition.failures += 1
                partition.not_before = max(
                    partition.not_before, self._loop.time() + self._config.retry_backoff_ms / 1000
                )

        self._link.metadata.search_leader(key, failed, peer=peer, on_end=on_end)

    def _connect(self, endpoint: Endpoint) -> None:
        if endpoint in self._opening:
            return
        self._opening.add(endpoint)

        async def connect() -> None:
            try:
                await self._link.connections.get(endpoint)
            except RaylogError as error:
                logger.debug("cannot connect to %s: %s", endpoint, error)
                self._unreachable(endpoint)
            finally:
                self._opening.discard(endpoint)
            self.wake()

        self._spawn(connect())

    def _unreachable(self, endpoint: Endpoint) -> None:
        for key, partition in list(self.partitions.items()):
            leader = self._link.metadata.leader(key)
            if (
                leader is not None
                and leader.endpoint == endpoint
                and not partition.fetching
                and partition.error is None
            ):
                self._failed(partition, partition.generation, leader, ErrorCode.network_exception, None)

    # -------------------------------------------------------------- offsets

    async def _resume(self, wanted: list[tuple[ConsumedPartition, int]]) -> None:
        """Go on where the group has come to."""
        assert self.committed is not None, "a partition of no group has no committed offset"
        found: dict[TopicPartition, tuple[int, int]] = {}
        failure: RaylogError | None = None
        try:
            found = await self.committed([partition.key for partition, _ in wanted])
        except RaylogError as error:
            failure = error
        with self.lock:
            for partition, generation in wanted:
                if partition.generation != generation:
                    continue
                if partition.key in found:
                    offset, epoch = found[partition.key]
                    partition.jump(offset)
                    partition.last_epoch = epoch
                    continue
                partition.resolving = False
                if failure is None:
                    self._start_by_default(partition)
                elif failure.retriable:  # the coordinator is away: where to begin stays unknown until it is back
                    partition.failures += 1
                    partition.not_before = self._loop.time() + self._pause_s(partition.failures)
                else:
                    partition.error = failure
        self.notify()
        self.wake()

    async def _look_up(self, wanted: list[tuple[ConsumedPartition, int, int]]) -> None:
        """Find the start offsets of partitions, together; each that fails gets its error."""
        asked = {partition.key: start_at for partition, _, start_at in wanted}
        try:
            found = await self.offsets_at(asked)
        except RaylogError as error:
            if len(wanted) > 1:
                for one in wanted:
                    await self._look_up([one])
                return
            self._looked_up(*wanted[0], offset=None, error=error)
        else:
            for partition, generation, start_at in wanted:
                self._looked_up(partition, generation, start_at, offset=found[partition.key], error=None)
        self.notify()
        self.wake()

    async def offsets_at(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets of timestamps; where nothing is that late, the end."""
        leaders = LeaderRequests(self._link)
        limit_ms = self._config.default_api_timeout_ms
        found = {key: offset for key, (offset, _, _) in (await leaders.list_offsets(asked, limit_ms)).items()}
        missing = {key: LATEST for key, offset in found.items() if offset < 0}
        if missing:
            found |= {key: offset for key, (offset, _, _) in (await leaders.list_offsets(missing, limit_ms)).items()}
        return found

    def _looked_up(
        self,
        partition: ConsumedPartition,
        generation: int,
        start_at: int,
        *,
        offset: int | None,
        error: RaylogError | None,
    ) -> None:
        with self.lock:
            if partition.generation != generation:
                return
            partition.resolving = False
            if offset is None:
                partition.error = error
                return
            partition.start_at = None
            partition.fetch_offset = offset
            partition.last_epoch = -1
            if not partition.buffered_bytes:
                partition.position = offset

    async def _validate(self, partition: ConsumedPartition, generation: int, leader: Leader) -> None:
        """Ask a new leader whether the log still reaches the fetch offset under the epoch that was read last."""
        key, epoch = partition.key, partition.last_epoch
        try:
            ends = await LeaderRequests(self._link).epoch_ends({key: epoch}, self._config.default_api_timeout_ms)
        except RaylogError as error:
            logger.warning("cannot check the position in %s-%d: %s", key.topic, key.partition, error)
            partition.not_before = self._loop.time() + self._config.retry_backoff_ms / 1000
            partition.resolving = False
            self.wake()
            return
        _, end_offset = ends[key]
        with self.lock:
            if partition.generation != generation:
                return
            partition.resolving = False
            partition.validated_epoch = max(leader.epoch, partition.validated_epoch)
            if 0 <= end_offset < partition.fetch_offset:
                self._truncated(partition, end_offset, epoch)
        self.notify()
        self.wake()

    def _truncated(self, partition: ConsumedPartition, end_offset: int, epoch: int) -> None:
        key = partition.key
        text = (
            f"{key.topic}-{key.partition} was cut at offset {end_offset} by an unclean election; records up to "
            f"{partition.fetch_offset} of leader epoch {epoch} were read or fetched and are gone"
        )
        if self._config.auto_offset_reset == "none":
            partition.error = error_for(ErrorCode.offset_out_of_range, f"{text}: seek() to go on")
            return
        logger.warning("%s: going on at %d", text, end_offset)
        position = end_offset if partition.position is None else min(partition.position, end_offset)
        self._discard(partition)
        validated = partition.validated_epoch
        partition.jump(position)
        partition.validated_epoch = validated

    # -------------------------------------------------------------- time

    async def _refresh_metadata(self) -> None:
        period_s = max(self._config.metadata_max_age_ms / 1000, 0.1)
        while True:
            await asyncio.sleep(period_s)
            topics = sorted({key.topic for key in list(self.partitions)})
            try:
                if topics:
                    await self._link.metadata.refresh(topics)
            except RaylogError as error:
                logger.debug("metadata were not refreshed: %s", error)

    def _look_again_at(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at != float("inf"):
            self._timer = self._loop.call_at(at + 0.0005, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self._run()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
