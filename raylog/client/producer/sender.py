"""The part of a producer that talks: takes batches from the accumulator and brings each to its partition's leader, until
it is settled.

One *round* (``_run``) does everything that can be done now: fail what is too old, group the sendable batches by
leader, write one request per leader with room, set a timer for the next thing that time alone will bring. Rounds are
caused by new records (``wake``, from any thread), answers, found leaders, opened connections and that timer. There is
no task per request: answers are callbacks. A round looks only at the partitions to which something has happened, or
whose time has come (``due_queues``); of those, at the ones whose first batch has waited for longest first, so that
one that is never idle keeps none out of a leader's requests.

- A batch may leave when it is closed, or has waited ``linger.ms``, or somebody flushes, closes or waits for memory.
- A request carries at most one batch per partition and ``max.request.size`` bytes; at most
  ``max.in.flight.requests.per.connection`` are in flight per leader.
- After an error that concerns the leader a search starts at once (``Metadata.search_leader``); its result lets the
  partition go on at once. Otherwise it goes on after a backoff: short after the first failure under a leader epoch,
  from the second ``retry.backoff.ms`` doubling up to ``retry.backoff.max.ms`` (``retry_pauses``).
- A leader that says nothing is left as soon as another one leads (``silent_leaders``).
- A leader that asks for a pause (``throttle_time``, P15) gets it.
- acks=0 has no answer: written is done, and nothing is retried.
- With a transactional id the identity is the transaction's. Once that has failed, or is aborted, what waits is dropped.

Runs in one event loop; takes the accumulator's lock for moments, never while encoding or writing.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.config import ProducerConfig
from raylog.client.links.connections import Connections, ControllerConnection
from raylog.client.links.metadata import LEADER_ERRORS, Metadata, PartitionLeader
from raylog.client.links.silent_leaders import SilentLeaders
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.due_queues import Cause, DueQueues, Times
from raylog.client.producer.identity_fetch import IdentityFetch
from raylog.client.producer.memory import BufferMemory
from raylog.client.producer.partition_queue import PartitionQueue, ProducerIdentity, Verdict
from raylog.client.producer.produce_errors import encoding_error, late_error, produce_error
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.client.producer.retry_pauses import pause_ms
from raylog.client.producer.rounds import RoundCall, RoundTimer
from raylog.client.transactions.phases import ProducerTransactions
from raylog.client.transactions.produce_requests import produce_request
from raylog.clock import clock_of
from raylog.errors import ClientTimeoutError, ClosedError, DisconnectedError, RaylogError
from raylog.types import Endpoint, TopicPartition
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer

logger = logging.getLogger("raylog.client")

Taken = list[tuple[PartitionQueue, ProducerBatch]]


class Sender:
    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        memory: BufferMemory,
        metadata: Metadata,
        connections: Connections,
        controller: ControllerConnection,
        transactions: ProducerTransactions | None = None,
    ) -> None:
        self._config = config
        self._transactions = transactions
        self._idempotent = config.idempotent
        self._accumulator = accumulator
        self._memory = memory
        self._metadata = metadata
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._call = RoundCall(self._loop, self._run)
        self._timer = RoundTimer(self._loop, self._run)
        self._flushing = 0
        self._identity: ProducerIdentity | None = None
        self._identity_fetch = IdentityFetch(controller, self._clock, config.retry_backoff_ms, self._identity_came)
        self._rested: asyncio.Event | None = None  # of somebody who waits until there is nothing pending or in flight
        self._requests_in_flight: dict[Endpoint, int] = {}
        self._muted_until: dict[Endpoint, float] = {}
        self._opening: set[Endpoint] = set()
        self._searching: set[TopicPartition] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._draining: set[Endpoint] = set()
        self._due = DueQueues()
        self._deadlines = Times()  # when the first delivery timeout of each partition may pass
        metadata.on_leader_change = self._leader_changed
        self._silent = SilentLeaders(metadata)
        self._stopped = False
        self.retries = 0  # batches sent again, ever
        self.splits = 0

    # -------------------------------------------------------------- from outside

    def wake(self) -> None:
        """Cause a round. Any thread; many calls before the round make one."""
        if not self._stopped and not self._call.ask():
            self._stopped = True

    def let_in(self) -> None:
        """Let an overdue round run before the caller goes on (``rounds``). Any thread."""
        self._call.let_in()

    async def flush(self, timeout_s: float | None = None) -> int:
        """Send what is there without lingering and wait for it; the number of records that are not settled after ``timeout_s``."""
        batches = self._accumulator.unfinished_batches()
        if not batches:
            return 0
        settled = asyncio.Event()

        def maybe_settle() -> None:
            if all(batch.done for batch in batches):
                settled.set()

        self._flushing += 1
        try:
            for batch in batches:
                batch.call_when_done(maybe_settle)
            self.wake()
            async with asyncio.timeout(timeout_s):
                await settled.wait()
        except TimeoutError:
            pass
        finally:
            self._flushing -= 1
        return sum(batch.record_count for batch in batches if not batch.done)

    async def rest(self) -> None:
        """Wait until nothing is pending and nothing in flight."""
        while self._accumulator.active and not self._stopped:
            self._rested = asyncio.Event()
            self.wake()
            await self._rested.wait()

    def stop(self) -> None:
        """Give up everything unfinished, with ClosedError."""
        self._stopped = True
        self._identity_fetch.stop()
        if self._rested is not None:
            self._rested.set()
        self._timer.cancel()
        self._silent.close()
        for task in self._tasks:
            task.cancel()
        error = ClosedError("the producer was closed before this was acknowledged; it may or may not be in the log")
        for batch in self._accumulator.unfinished_batches():
            self._finish(batch, error)

    # -------------------------------------------------------------- a round

    def _run(self) -> None:
        if self._stopped:
            return
        now = self._now_ms()
        for queue in self._accumulator.take_touched():
            self._due.mark(queue.key)
            self._deadlines.at(queue.key, queue.deadline_ms)
        self._expire(now)
        if self._transactions is not None:
            self._identity = self._transactions.identity
            if self._transactions.drops_records:
                self._drop_pending()
        elif self._idempotent and self._identity is None and self._accumulator.active:
            self._fetch_identity(now)
            if self._identity is None:
                self._timer.at(self._deadlines.next_ms)
                return
        while due := self._take_due(now):
            for (endpoint, connection), queues in self._sendable(due, now).items():
                self._send(endpoint, connection, queues)
        self._timer.at(min(self._due.next_ms, self._deadlines.next_ms))

    def _take_due(self, now: float) -> list[PartitionQueue]:
        if self._hurries:
            self._due.happened(Cause.HURRY)
        keys = self._due.take(now)
        with self._accumulator.lock:
            queues = self._accumulator.active_of(keys)
        queues.sort(key=lambda queue: (queue.waiting_since_ms, queue.key))
        return queues

    @property
    def _hurries(self) -> bool:
        """Whether nothing lingers now."""
        return self._config.linger_ms == 0 or self._flushing > 0 or self._accumulator.closed or self._memory.has_waiters

    def _sendable(
        self, due: list[PartitionQueue], now: float
    ) -> dict[tuple[Endpoint, Connection], list[PartitionQueue]]:
        """Those queues with something to send, by leader. What the others wait for is noted."""
        by_leader: dict[tuple[Endpoint, Connection], list[PartitionQueue]] = {}
        hurries = self._hurries
        for queue in due:
            key = queue.key
            if not self._is_in_transaction(queue):
                self._due.on(key, Cause.TRANSACTION)
                continue
            head = queue.sendable(now)
            if head is None:
                if queue.pending and now < queue.not_before_ms:
                    self._due.at(key, queue.not_before_ms)
                continue
            if (
                head.open
                and not hurries
                and len(queue.pending) == 1
                and (ready_at := head.created_ms + self._config.linger_ms) > now
            ):
                self._due.at(key, ready_at)
                self._due.on(key, Cause.HURRY)
                continue
            if queue.needs_identity:
                self._due.on(key, Cause.IDENTITY)
                self._renew_identity(queue)
                continue
            if self._idempotent and self._identity is None and queue.identity is None:
                self._due.on(key, Cause.IDENTITY)
                continue
            leader = self._metadata.leader(key)
            if leader is None or leader.endpoint is None:
                self._search(key, queue, leader, None)
                continue
            endpoint = leader.endpoint
            connection = self._free_connection(key, endpoint, now)
            if connection is None:
                self._due.on(key, endpoint)
            else:
                by_leader.setdefault((endpoint, connection), []).append(queue)
        return by_leader

    def _is_in_transaction(self, queue: PartitionQueue) -> bool:
        """Whether what the partition sends now is in its transaction, where there are any."""
        transactions, identity = self._transactions, self._identity
        if transactions is None or identity is None or not queue.pending:
            return True
        if queue.identity != identity:
            queue.begin(identity)
        return transactions.takes(queue.key)

    def partitions_added(self) -> None:
        """What waited until its partition belongs to the transaction may be sent."""
        self._due.happened(Cause.TRANSACTION)
        self.wake()

    def _free_connection(self, key: TopicPartition, endpoint: Endpoint, now: float) -> Connection | None:
        """The connection to a leader that takes a request now; otherwise it will be told when one may."""
        if (muted_until := self._muted_until.get(endpoint, 0.0)) > now:
            self._due.at(key, muted_until)
            return None
        if self._requests_in_flight.get(endpoint, 0) >= self._config.max_in_flight_requests_per_connection:
            return None
        connection = self._connections.peek(endpoint)
        if connection is None:
            self._connect(key, endpoint)
            return None
        if connection.write_paused:
            self._when_drained(endpoint, connection)
            return None
        return connection

    def _send(self, endpoint: Endpoint, connection: Connection, queues: list[PartitionQueue]) -> None:
        taken: Taken = []
        size = 0
        with self._accumulator.lock:
            for queue in queues:
                self._due.mark(queue.key)  # it may have more, or did not fit
                head = queue.pending[0]
                if taken and size + head.size_bytes > self._config.max_request_size:
                    continue
                size += head.size_bytes
                taken.append((queue, queue.take(self._identity or queue.identity)))
        records = {}
        for queue, batch in list(taken):
            try:
                batch.encode()
                records[queue.key] = batch.stamped_bytes()
            except Exception as error:
                logger.exception("a batch for %s-%d cannot be encoded", queue.topic, queue.partition)
                taken.remove((queue, batch))
                self._give_up(queue, batch, encoding_error(error))
        if not taken:
            return
        request = produce_request(records, self._config, self._transactions)
        if self._config.acks == 0:
            connection.send_unanswered(request)
            for queue, batch in taken:
                self._acknowledged(queue, batch, -1, -1)
            return
        self._requests_in_flight[endpoint] = self._requests_in_flight.get(endpoint, 0) + 1
        leaders = [self._metadata.leader(queue.key) for queue, _ in taken]
        asked = self._silent.sent(connection, [(key, led) for key, led in zip(records, leaders) if led is not None])
        connection.call(
            request,
            partial(self._answered, endpoint, connection, taken, leaders, asked),
            timeout_ms=self._config.request_timeout_ms,
        )

    # -------------------------------------------------------------- answers

    def _answered(
        self,
        endpoint: Endpoint,
        connection: Connection,
        taken: Taken,
        leaders: list[PartitionLeader | None],
        asked: int,
        reply: Any,
        error: Exception | None,
    ) -> None:
        self._requests_in_flight[endpoint] -= 1
        self._silent.ended(asked)
        if self._stopped:
            return
        self._due.happened(endpoint)
        for queue, _ in taken:
            self._due.mark(queue.key)
        if error is not None:
            if isinstance(error, ClientTimeoutError):
                connection.abort(error)  # a leader that says nothing for so long is treated as gone
            self._request_failed(connection.peer, taken, leaders, error)
        else:
            self._settle_all(taken, leaders, reply)
        self._run()

    def _request_failed(
        self, peer: Peer, taken: Taken, leaders: list[PartitionLeader | None], error: Exception
    ) -> None:
        failure = error if isinstance(error, RaylogError) else DisconnectedError(str(error))
        for (queue, batch), leader in zip(taken, leaders, strict=True):
            self._settle(queue, batch, ErrorCode.network_exception, failure, leader, peer)

    def _settle_all(self, taken: Taken, leaders: list[PartitionLeader | None], reply: Any) -> None:
        if reply.throttle_time:
            for leader in leaders:
                if leader is not None and leader.endpoint is not None:
                    self._muted_until[leader.endpoint] = self._now_ms() + reply.throttle_time.total_seconds() * 1000
        answers = {
            (topic.name, int(partition.index)): partition
            for topic in reply.responses
            for partition in topic.partition_responses
        }
        for (queue, batch), leader in zip(taken, leaders, strict=True):
            answer = answers.get((queue.topic, queue.partition))
            if answer is None:
                missing = DisconnectedError(f"the leader's answer does not contain {queue.topic}-{queue.partition}")
                self._settle(queue, batch, ErrorCode.network_exception, missing, leader, None)
            elif answer.error_code is ErrorCode.none:
                appended = answer.log_append_time
                time_ms = -1 if appended is None else round(appended.timestamp() * 1000)
                self._acknowledged(queue, batch, int(answer.base_offset), time_ms)
            else:
                self._metadata.learn_hint(queue.key, answer, reply.node_endpoints)
                failure = produce_error(answer, queue, batch)
                self._settle(queue, batch, answer.error_code, failure, leader, None)

    def _acknowledged(
        self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, log_append_time_ms: int
    ) -> None:
        with self._accumulator.lock:
            queue.acknowledged(batch)
            lost = queue.pop_lost()
            self._maybe_rest(queue)
        queue.not_before_ms = 0.0
        if not batch.done:
            self._finish(batch, None, base_offset, log_append_time_ms)
        self._fail_lost(lost)

    def _settle(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        code: ErrorCode,
        failure: RaylogError,
        leader: PartitionLeader | None,
        peer: Peer | None,
    ) -> None:
        """Decide about one batch that came back with an error."""
        verdict = queue.judge(batch, code)
        if verdict is Verdict.DUPLICATE:
            self._acknowledged(queue, batch, -1, -1)
        elif verdict is Verdict.FAIL:
            self._give_up(queue, batch, failure)
        elif verdict is Verdict.SPLIT:
            self.splits += 1
            with self._accumulator.lock:
                queue.split(batch)
                self._accumulator.unfinished += len(batch.children) - 1
                lost = queue.pop_lost()
                self._maybe_rest(queue)
            self._fail_lost(lost)
        else:
            self.retries += 1
            with self._accumulator.lock:
                queue.retry(batch, code)
                lost = queue.pop_lost()
                self._maybe_rest(queue)
            self._fail_lost(lost)
            self._back_off(queue, batch, code)
            if code in LEADER_ERRORS:
                self._search(queue.key, queue, leader, peer)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, failure: RaylogError) -> None:
        with self._accumulator.lock:
            queue.give_up(batch)
            lost = queue.pop_lost()
            self._maybe_rest(queue)
        self._due.mark(queue.key)
        if not batch.done:
            self._finish(batch, failure)
        self._fail_lost(lost)

    def _fail_lost(self, lost: list[ProducerBatch]) -> None:
        for batch in lost:
            if not batch.done:
                reason = "given up: an earlier batch of unknown outcome was, and this one may or may not be in the log"
                self._finish(batch, ClientTimeoutError(f"{batch.topic}-{batch.partition}: {reason}"))

    def _back_off(self, queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> None:
        if not queue.pending or batch is not queue.pending[0]:
            return  # one backoff per failed row
        queue.failures += 1
        pause = pause_ms(self._config, queue.failures, code, self._clock.chance)
        queue.not_before_ms = self._now_ms() + pause

    def _finish(
        self, batch: ProducerBatch, error: RaylogError | None, base_offset: int = -1, log_append_time_ms: int = -1
    ) -> None:
        with self._accumulator.lock:
            self._accumulator.unfinished -= 1
        self._memory.give_back(batch.held_bytes)
        if error is None:
            batch.succeed(base_offset, log_append_time_ms)
        else:
            if self._transactions is not None:
                self._transactions.failed(error)
                self.wake()
            batch.fail(error)

    def _drop_pending(self) -> None:
        """The transaction comes to nothing: what waits need not be sent."""
        assert self._transactions is not None
        with self._accumulator.lock:
            dropped = [(queue, batch) for queue in self._accumulator.active.values() for batch in queue.pending]
        for queue, batch in dropped:
            self._give_up(
                queue, batch, self._transactions.aborted_error("not sent, because its transaction is aborted")
            )

    def _maybe_rest(self, queue: PartitionQueue) -> None:
        if queue.idle:
            self._accumulator.active.pop(queue.key, None)
            if self._rested is not None and not self._accumulator.active:
                self._rested.set()

    # -------------------------------------------------------------- time

    def _expire(self, now: float) -> None:
        keys = self._deadlines.take(now)
        with self._accumulator.lock:
            queues = self._accumulator.active_of(keys)
            late = [(queue, batch) for queue in queues for batch in queue.expired(now)]
        for queue, batch in late:
            error = late_error(batch, self._config.delivery_timeout_ms)
            if batch in queue.in_flight:
                self._finish(batch, error)  # it stays in the row until its answer comes
            elif not batch.done:
                self._give_up(queue, batch, error)
        for queue in queues:
            self._deadlines.at(queue.key, queue.deadline_ms)

    def _now_ms(self) -> float:
        return self._clock.monotonic_s() * 1000

    # -------------------------------------------------------------- leaders, connections, identity

    def _search(
        self, key: TopicPartition, queue: PartitionQueue, failed: PartitionLeader | None, peer: Peer | None
    ) -> None:
        if key in self._searching:
            return
        self._searching.add(key)

        def on_end(found: PartitionLeader | None, refusal: RaylogError | None) -> None:
            self._searching.discard(key)
            if self._stopped:
                return
            if refusal is not None:
                self._refuse_pending(queue, refusal)
            elif found is not None and found.endpoint is not None:
                newer = failed is None or found.epoch > failed.epoch
                if newer or queue.failures <= 1:
                    queue.not_before_ms = 0.0
                if newer:
                    queue.failures = 0
            else:
                queue.failures += 1
                queue.not_before_ms = max(queue.not_before_ms, self._now_ms() + self._config.retry_backoff_ms)
            self._due.mark(key)
            self.wake()

        self._metadata.search_leader(key, failed, peer=peer, on_end=on_end)

    def _refuse_pending(self, queue: PartitionQueue, refusal: RaylogError) -> None:
        """The topic or partition is gone, or this client is let in no more: what waits fails now."""
        with self._accumulator.lock:
            pending = list(queue.pending)
        for batch in reversed(pending):
            if not batch.done:  # giving one up may have orphaned others, which have failed already
                self._give_up(queue, batch, refusal)

    def _leader_changed(self, key: TopicPartition) -> None:
        self._due.mark(key)
        self.wake()

    def _connect(self, key: TopicPartition, endpoint: Endpoint) -> None:
        if endpoint in self._opening:
            return
        self._opening.add(endpoint)

        async def connect() -> None:
            try:
                await self._connections.get(endpoint)
                self._connections.warm(self._metadata.successors(key))
            except RaylogError as error:
                logger.debug("cannot connect to the leader of %s-%d: %s", key.topic, key.partition, error)
                self._unreachable(endpoint)
            finally:
                self._opening.discard(endpoint)
                self._due.happened(endpoint)
            self.wake()

        self._spawn(connect())

    def _unreachable(self, endpoint: Endpoint) -> None:
        """Every partition that this endpoint led needs another leader."""
        with self._accumulator.lock:
            active = list(self._accumulator.active.items())
        for key, queue in active:
            leader = self._metadata.leader(key)
            if leader is not None and leader.endpoint == endpoint and queue.pending:
                self._back_off(queue, queue.pending[0], ErrorCode.network_exception)
                self._search(key, queue, leader, None)

    def _when_drained(self, endpoint: Endpoint, connection: Connection) -> None:
        if endpoint in self._draining:
            return
        self._draining.add(endpoint)

        async def drained() -> None:
            await connection.drain()
            self._draining.discard(endpoint)
            self._due.happened(endpoint)
            self.wake()

        self._spawn(drained())

    def _fetch_identity(self, now: float) -> None:
        if self._identity_fetch.is_under_way:
            return
        if now < self._identity_fetch.not_before_ms:
            self._timer.at(self._identity_fetch.not_before_ms)
            return
        self._identity_fetch.begin()

    def _identity_came(self) -> None:
        self._identity = self._identity_fetch.identity
        if self._identity is not None:
            self._due.happened(Cause.IDENTITY)
        self.wake()

    def _renew_identity(self, queue: PartitionQueue) -> None:
        """A partition cannot go on under the producer's id: a new one serves from here on."""
        identity = self._identity
        if identity is not None and queue.identity is None and queue.needs_identity:
            queue.needs_identity = False
            self._identity = None
            self._fetch_identity(self._now_ms())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
