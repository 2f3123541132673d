"""The part of a consumer that talks: keeps a buffer of fetched batches filled, ahead of what the
user has read.

One round (``_run``) looks up start offsets, checks positions after a change of leader, and sends
one Fetch per process for every partition that may be fetched: assigned, not paused, position known,
no fetch in flight, and less than two fetches' worth of bytes in the buffer. Fetches park at the
leader for up to ``fetch.max.wait.ms``; several may be in flight to one leader, each for other
partitions. So the next fetch travels while the user works on the last one.

- An error that concerns the leader starts a search at once; the partition goes on with what it
  finds (as in ``sender.py``).
- Where a partition begins, and whether its position still holds after a change of leader, is found
  out by ``positions``.
- A partition of which a follower is nearer than the leader is fetched there (``nearest_replicas``);
  whatever goes wrong with that, the leader is asked next. It is also asked while the connection to
  the follower is being opened.
- With ``isolation_level`` READ_COMMITTED nothing of an undecided transaction is fetched, and chunks
  say which batches are of aborted ones.
- What cannot be mended stays on its partition as ``error``: each poll raises it until a seek or
  another assignment.

Runs in one event loop; what it shares with the reader's thread is ``consumed_partitions``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumed_partition import COMMITTED, Chunk, ConsumedPartition
from raylog.client.consumer.consumed_partitions import ConsumedPartitions
from raylog.client.consumer.nearest_replicas import AVOID_S, RETRY_S, NearestReplicas
from raylog.client.consumer.positions import Positions, pause_s
from raylog.client.links import requests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import LEADER_ERRORS, PartitionLeader
from raylog.client.links.silent_leaders import SilentLeaders
from raylog.errors import ClientTimeoutError, RaylogError, error_for, kafka_error
from raylog.records.aborted import AbortedTransactions
from raylog.records.batch import BatchView, batches
from raylog.types import Endpoint, TopicPartition
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer

logger = logging.getLogger("raylog.client")

Fetching = list[tuple[ConsumedPartition, int, PartitionLeader]]
"""The partitions of one Fetch, each with its generation and its leader, as it was known then."""

_EPOCH_CODES = (ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch)
_CORRUPT_ANSWERS_MAX = 3  # in a row; another replica may take over meanwhile
_NO_OTHER_COPY = RaylogError("its leader's copy is damaged, and no other replica is in sync")
_LEADER = -1  # whoever leads, in place of a follower's node id
_FOLLOWER_PATIENCE_MS = 2_000  # how much longer than it may wait for records a follower may take to answer


class Fetcher(ConsumedPartitions):
    def __init__(
        self, config: ConsumerConfig, link: ClusterLink, *, isolation_level: int = requests.READ_UNCOMMITTED
    ) -> None:
        super().__init__(config)
        self._isolation_level = isolation_level
        self._link = link
        self._positions = Positions(config, link, self, isolation_level)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._wake_scheduled = False
        self._opening: set[Endpoint] = set()
        self._searching: set[TopicPartition] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._silent = SilentLeaders(link.metadata)
        self._nearest = NearestReplicas(config, link.metadata, self._loop.time)
        self._refresher = self._loop.create_task(self._refresh_metadata())

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
        to_fetch: dict[tuple[Connection, int], Fetching] = {}
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
                if partition.fetch_end is not None and partition.fetch_offset >= partition.fetch_end:
                    continue
                leader = self._link.metadata.leader(key)
                if leader is None or leader.endpoint is None:
                    self._search(partition, leader, None)
                    continue
                if partition.last_epoch >= 0 and leader.epoch > partition.validated_epoch:
                    partition.resolving = True
                    self._spawn(self._positions.validate(partition, partition.generation, leader))
                    continue
                connection, asked = None, _LEADER
                if (follower := self._nearest.follower(key, leader)) is not None:
                    connection, asked = self._connected(follower.endpoint), follower.node
                if connection is None:
                    connection, asked = self._connected(leader.endpoint), _LEADER
                if connection is not None:
                    partition.fetching = True
                    to_fetch.setdefault((connection, asked), []).append((partition, partition.generation, leader))
        if to_resume:
            self._spawn(self._positions.resume(to_resume))
        if to_look_up:
            self._spawn(self._positions.look_up(to_look_up))
        for (connection, asked), fetching in to_fetch.items():
            self._fetch(connection, asked, fetching)
        if topics := self._nearest.to_review():
            self._spawn(self._review(topics))
        self._look_again_at(later)

    def _fetch(self, connection: Connection, follower: int, fetching: Fetching) -> None:
        config = self._config
        request = requests.fetch(
            {partition.key: (partition.fetch_offset, leader.epoch) for partition, _, leader in fetching},
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            partition_max_bytes=config.max_partition_fetch_bytes,
            isolation_level=self._isolation_level,
        )
        if follower != _LEADER:
            patience_ms = min(_FOLLOWER_PATIENCE_MS, config.request_timeout_ms)
            answered = partial(self._answered, connection, follower, fetching, 0)
            connection.call(request, answered, timeout_ms=patience_ms + config.fetch_max_wait_ms)
            return
        leaders = [(partition.key, leader) for partition, _, leader in fetching]
        number = self._silent.sent(connection, leaders, held_back_ms=config.fetch_max_wait_ms)
        answered = partial(self._answered, connection, _LEADER, fetching, number)
        connection.call(request, answered, timeout_ms=config.request_timeout_ms + config.fetch_max_wait_ms)

    def _answered(
        self,
        connection: Connection,
        follower: int,
        fetching: Fetching,
        number: int,
        reply: Any,
        error: Exception | None,
    ) -> None:
        self._silent.ended(number)
        if self._stopped:
            return
        if error is None and reply.error_code is not ErrorCode.none:
            error = error_for(reply.error_code, "fetch")
        if error is not None and follower != _LEADER:
            for partition, generation, _ in fetching:
                self._turned_away(partition, generation, follower, error)
        elif error is not None:
            if isinstance(error, ClientTimeoutError):
                connection.abort(error)
            for partition, generation, leader in fetching:
                self._failed(partition, generation, leader, ErrorCode.network_exception, connection.peer)
        elif reply.throttle_time and not reply.responses:
            self._held_back(fetching, reply.throttle_time.total_seconds())
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
                    continue
                if answer is not None:
                    self._link.metadata.learn_hint(partition.key, answer)
                if follower != _LEADER:
                    self._turned_away(partition, generation, follower, code)
                else:
                    self._failed(partition, generation, leader, code, None)
            if news:
                self.notify()
        self._run()

    def _held_back(self, fetching: Fetching, seconds: float) -> None:
        """A quota is used up: the answer names no partition. What was asked for is asked for again when the time is over."""
        for partition, generation, _ in fetching:
            if partition.generation == generation:
                partition.fetching = False
                partition.not_before = self._loop.time() + seconds

    def _take(self, partition: ConsumedPartition, generation: int, leader: PartitionLeader, answer: Any) -> bool:
        """Put what a fetch brought into the buffer."""
        records = answer.records
        with self.lock:
            if partition.generation != generation:
                return False
            partition.fetching = False
            partition.failures = 0
            partition.validated_epoch = max(partition.validated_epoch, leader.epoch)
            is_committed = self._isolation_level == requests.READ_COMMITTED
            partition.readable_end = int(answer.last_stable_offset if is_committed else answer.high_watermark)
            partition.log_start_offset = int(answer.log_start_offset)
            if not records:
                return partition.notice_empty_answer()
            partition.barren_reads = 0
            first = partition.fetch_offset
            try:
                views = [view for view in batches(records, allow_partial_tail=True) if view.next_offset > first]
                hidden = _hidden(views, answer.aborted_transactions)
            except RaylogError as error:
                partition.error = self._corrupt(partition, first, error)
                return True
            if not views:
                return False
            chunk = Chunk(partition, generation, first, views, len(records), views[-1].next_offset, hidden)
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

    def _turned_away(
        self, partition: ConsumedPartition, generation: int, follower: int, reason: ErrorCode | Exception
    ) -> None:
        """A follower gave an error, or nothing: the leader is asked in the next round."""
        key = partition.key
        text = reason.name if isinstance(reason, ErrorCode) else str(reason)
        logger.debug("node %d gives nothing of %s-%d (%s): asking the leader", follower, *key, text)
        self._nearest.avoid(key, follower, seconds=RETRY_S if reason in _EPOCH_CODES else AVOID_S)
        if partition.generation == generation:
            partition.fetching = False

    def _failed(
        self, partition: ConsumedPartition, generation: int, leader: PartitionLeader, code: ErrorCode, peer: Peer | None
    ) -> None:
        if partition.generation != generation:
            return
        partition.fetching = False
        key = partition.key
        if code is ErrorCode.offset_out_of_range:
            self._positions.out_of_range(partition)
        elif code in LEADER_ERRORS:
            partition.failures += 1
            partition.not_before = self._loop.time() + pause_s(self._config, partition.failures)
            self._search(partition, leader, peer)
        elif code is ErrorCode.corrupt_message and partition.failures >= _CORRUPT_ANSWERS_MAX:
            partition.error = self._corrupt(partition, partition.fetch_offset, _NO_OTHER_COPY)
            self.notify()
        elif ErrorCode(code).retriable:
            partition.failures += 1
            partition.not_before = self._loop.time() + pause_s(self._config, partition.failures + 1)
        else:
            partition.error = error_for(code, f"fetching {key.topic}-{key.partition}: {ErrorCode(code).name.upper()}")
            self.notify()

    def _search(self, partition: ConsumedPartition, failed: PartitionLeader | None, peer: Peer | None) -> None:
        key, generation = partition.key, partition.generation
        if key in self._searching:
            return
        self._searching.add(key)

        def on_end(found: PartitionLeader | None, refusal: RaylogError | None) -> None:
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

    def _connected(self, endpoint: Endpoint) -> Connection | None:
        """The connection, or None while it is being opened."""
        connection = self._link.connections.peek(endpoint)
        if connection is None and endpoint not in self._opening:
            self._connect(endpoint)
        return connection

    def _connect(self, endpoint: Endpoint) -> None:
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
            if leader is None:
                continue
            if leader.endpoint != endpoint:
                if (follower := self._nearest.follower(key, leader)) is not None and follower.endpoint == endpoint:
                    self._nearest.avoid(key, follower.node)
            elif not partition.fetching and partition.error is None:
                self._failed(partition, partition.generation, leader, ErrorCode.network_exception, None)

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

    async def _review(self, topics: list[str]) -> None:
        """Have topics described anew, of which followers are read, or might be again."""
        try:
            await self._link.metadata.refresh(topics)
        except RaylogError as error:
            logger.debug("metadata were not refreshed: %s", error)
            return
        self._nearest.reviewed(topics)

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


def _hidden(views: list[BatchView], transactions: Any) -> frozenset[int]:
    """The base offsets of those of aborted transactions, as the answer names them. Raises CorruptBatch
    for a marker that is none.
    """
    if not transactions:
        return frozenset()
    aborted = AbortedTransactions((int(each.producer_id), int(each.first_offset)) for each in transactions)
    return frozenset(view.base_offset for view in views if aborted.hides(view))
