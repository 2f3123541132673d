"""Two senders of a producer side by side: one looks at what is due, the other at everything. Both have to send the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.client.config import ProducerConfig
from raylog.client.links import requests
from raylog.client.links.metadata import PartitionLeader
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.memory import BufferMemory, MemoryWaiter
from raylog.client.producer.partition_queue import PartitionQueue
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.client.producer.sender import Sender
from raylog.clock import MachineClock
from raylog.errors import ClosedError, DisconnectedError, kafka_error
from raylog.records.codec import encode_values
from raylog.types import Endpoint, TopicPartition

PARTITIONS = 3
ENDPOINTS = [Endpoint("a", 1), Endpoint("b", 2)]
GRID_MS = 7  # no wait of the configurations below is a multiple of it: what comes by time comes between two steps
TURNS = 12

A, B, C = (TopicPartition("t", partition) for partition in range(3))


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.clock = LoopClock(self)

    def time(self) -> float:
        return self.now_s


class NoChance(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 1.0


class LoopClock(MachineClock):
    chance = NoChance()

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.now_s


class TimedSender(Sender):
    looked = 0

    def _sendable(self, due: list[PartitionQueue], now: float) -> Any:
        self.looked += len(due)
        return super()._sendable(due, now)


class LooksAtAll(TimedSender):
    """The model: each round looks at every partition. It needs a round at every moment at which something may be due."""

    def _run(self) -> None:
        if self._stopped:
            return
        now = self._now_ms()
        active = self._accumulator.active
        for key in active:
            self._deadlines.at(key, now)
        self._expire(now)
        if self._idempotent and self._identity is None and active:
            self._fetch_identity(now)
            return
        while by_leader := self._sendable(self._oldest_first(), now):
            for (endpoint, connection), queues in by_leader.items():
                self._send(endpoint, connection, queues)

    def _oldest_first(self) -> list[PartitionQueue]:
        return sorted(self._accumulator.active.values(), key=lambda queue: (queue.waiting_since_ms, queue.key))


class ScriptedConnection:
    peer = None

    def __init__(self, world: World, endpoint: Endpoint) -> None:
        self.world = world
        self.endpoint = endpoint
        self.calls: list[tuple[list[TopicPartition], Callable[..., None]]] = []
        self.write_paused = False
        self.drained = asyncio.Event()

    def call(self, request: dict[TopicPartition, bytes], on_end: Callable[..., None], *, timeout_ms: float) -> None:
        self.send_unanswered(request)
        self.calls.append((list(request), on_end))

    def send_unanswered(self, request: dict[TopicPartition, bytes]) -> None:
        self.world.tell(self.endpoint, [(key, bytes(data)) for key, data in request.items()])

    async def drain(self) -> None:
        await self.drained.wait()

    def abort(self, error: Exception) -> None:
        self.write_paused = False
        self.drained.set()
        self.world.connections.pop(self.endpoint, None)
        calls, self.calls = self.calls, []
        for _, on_end in calls:
            on_end(None, error)


class World:
    """One sender with everything around it scripted. It plays the metadata, the connections and the controller."""

    def __init__(self, kind: type[TimedSender], options: dict[str, Any], *, is_up: bool) -> None:
        self.loop = asyncio.get_running_loop()
        config = ProducerConfig.parse(None, options)
        self.trace: list[tuple[Any, ...]] = []
        self.connections: dict[Endpoint, ScriptedConnection] = {}
        if is_up:
            self.connections = {endpoint: ScriptedConnection(self, endpoint) for endpoint in ENDPOINTS}
        self.is_up = is_up
        self.opening: dict[Endpoint, asyncio.Future[None]] = {}
        self.identities: list[asyncio.Future[Any]] = []
        self.searches: dict[TopicPartition, Callable[..., None]] = {}
        self.leaders = {
            TopicPartition("t", index): PartitionLeader(index % 2, 0, ENDPOINTS[index % 2])
            for index in range(PARTITIONS)
        }
        self.on_leader_change: Callable[[TopicPartition], None] | None = None
        self.encoding: list[ProducerBatch] = []
        self.waiters: list[MemoryWaiter] = []
        self.flushes: set[asyncio.Task[int]] = set()
        self.producer_ids = 0
        self.numbers = 0
        self.memory = BufferMemory(1 << 20)
        self.accumulator = Accumulator(config, self.loop.time)
        me: Any = self
        self.sender = kind(config, self.accumulator, self.memory, me, me, me)

    def tell(self, *what: Any) -> None:
        self.trace.append((self.loop.time(), *what))

    # as Metadata

    def leader(self, key: TopicPartition) -> PartitionLeader | None:
        return self.leaders.get(key)

    def successors(self, key: TopicPartition) -> list[Endpoint]:
        return []

    def search_leader(self, key: TopicPartition, failed: Any, *, peer: Any, on_end: Callable[..., None]) -> None:
        assert key not in self.searches
        self.searches[key] = on_end

    def learn_hint(self, key: TopicPartition, answer: Any, nodes: Any) -> None:
        if answer.hint is not None:
            self.lead(key, answer.hint)

    async def await_newer(self, key: TopicPartition, epoch: int) -> None:
        await asyncio.Event().wait()

    # as Connections and ControllerLink

    def peek(self, endpoint: Endpoint) -> ScriptedConnection | None:
        return self.connections.get(endpoint)

    async def get(self, endpoint: Endpoint) -> None:
        self.tell("connects", endpoint)
        self.opening[endpoint] = self.loop.create_future()
        await self.opening[endpoint]

    def warm(self, endpoints: list[Endpoint]) -> None:
        pass

    async def request(self, request: Any) -> Any:
        future = self.loop.create_future()
        self.identities.append(future)
        if self.is_up:
            self.identity(True)
        return await future

    # what may happen

    def lead(self, key: TopicPartition, node: int) -> None:
        self.leaders[key] = PartitionLeader(node, self.leaders[key].epoch + 1, ENDPOINTS[node])
        assert self.on_leader_change is not None
        self.on_leader_change(key)

    def watch(self, batch: ProducerBatch) -> None:
        number, self.numbers = self.numbers, self.numbers + 1
        batch.on_done.append(lambda: self.tell("done", number, type(batch.error).__name__))

    def add(self, partition: int, size: int) -> None:
        with suppress(ClosedError):
            self.memory.used_bytes += size
            batch, index, full, wake = self.accumulator.add("t", partition, (1, None, b"v" * size, ()), size)
            if index == 0:
                self.watch(batch)
            if full is not None:
                self.encoding.append(full)
            if wake:
                self.sender.wake()

    def finish_encoding(self) -> None:
        for batch in self.encoding:
            self.accumulator.finish_encoding(batch)
            self.tell("encoded")
        self.encoding.clear()
        self.sender.wake()

    def add_encoded(self, partition: int, records: int) -> None:
        with suppress(ClosedError):
            data = encode_values([b"x"] * records, timestamp_ms=1)
            batch = self.accumulator.encoded_batch("t", partition, data, records)
            self.memory.used_bytes += len(data)
            self.watch(batch)
            self.accumulator.add_encoded(batch)
            self.sender.wake()

    def answer(self, node: int, which: int, codes: list[ErrorCode], hint: int | None, throttle_ms: int) -> None:
        connection = self.connections.get(ENDPOINTS[node])
        if connection is None or not connection.calls:
            return
        keys, on_end = connection.calls.pop(which % len(connection.calls))
        answers = [
            SimpleNamespace(
                index=key.partition,
                error_code=codes[position % len(codes)],
                base_offset=1,
                log_append_time=None,
                error_message=None,
                record_errors=(),
                hint=hint,
            )
            for position, key in enumerate(keys)
        ]
        topic = SimpleNamespace(name="t", partition_responses=answers)
        on_end(
            SimpleNamespace(throttle_time=timedelta(milliseconds=throttle_ms), responses=[topic], node_endpoints=()),
            None,
        )

    def break_off(self, node: int) -> None:
        if connection := self.connections.get(ENDPOINTS[node]):
            connection.abort(DisconnectedError("gone"))

    def open(self, node: int, succeeds: bool) -> None:
        future = self.opening.pop(ENDPOINTS[node], None)
        if future is not None and succeeds:
            self.connections[ENDPOINTS[node]] = ScriptedConnection(self, ENDPOINTS[node])
            future.set_result(None)
        elif future is not None:
            future.set_exception(DisconnectedError("nobody there"))

    def found(self, partition: int, node: int | None, refused: bool) -> None:
        key = TopicPartition("t", partition)
        on_end = self.searches.pop(key, None)
        if on_end is None:
            return
        if refused:
            on_end(None, kafka_error(ErrorCode.unknown_topic_or_partition)("no such partition"))
        elif node is None:
            on_end(None, None)
        else:
            self.lead(key, node)
            on_end(self.leaders[key], None)

    def lost(self, partition: int) -> None:
        key = TopicPartition("t", partition)
        self.leaders[key] = PartitionLeader(-1, self.leaders[key].epoch + 1, None)
        assert self.on_leader_change is not None
        self.on_leader_change(key)

    def pause(self, node: int) -> None:
        if connection := self.connections.get(ENDPOINTS[node]):
            connection.write_paused = True
            connection.drained.clear()

    def drain(self, node: int) -> None:
        if connection := self.connections.get(ENDPOINTS[node]):
            connection.write_paused = False
            connection.drained.set()

    def identity(self, succeeds: bool) -> None:
        for future in self.identities:
            self.producer_ids += 1
            code = ErrorCode.none if succeeds else ErrorCode.coordinator_not_available
            future.set_result(SimpleNamespace(error_code=code, producer_id=self.producer_ids, producer_epoch=0))
        self.identities.clear()

    def flush(self) -> None:
        flush = self.loop.create_task(self.sender.flush(0.02))
        self.flushes.add(flush)
        flush.add_done_callback(self.flushes.discard)

    def wait_for_memory(self, begins: bool) -> None:
        if begins:
            self.waiters.append(self.memory.wait(1 << 20, lambda: None))
            self.sender.wake()
        elif self.waiters:
            waiter = self.waiters.pop()
            if self.memory.leave(waiter):
                self.memory.give_back(waiter.size_bytes)

    def close(self) -> None:
        self.accumulator.close()
        self.flush()


MENDING: list[tuple[Any, ...]] = [
    ("finish_encoding",),
    ("identity", True),
    *(("open", node, True) for node in range(len(ENDPOINTS))),
    *(("drain", node) for node in range(len(ENDPOINTS))),
    *(("found", partition, partition % 2, False) for partition in range(PARTITIONS)),
    *(("answer", node, 0, [ErrorCode.none], None, 0) for node in range(len(ENDPOINTS))),
]
"""What brings every batch to its end when it happens often enough."""


PARTITION = st.integers(0, PARTITIONS - 1)
NODE = st.integers(0, 1)
CODE = st.sampled_from(
    [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.request_timed_out,
        ErrorCode.message_too_large,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.duplicate_sequence_number,
        ErrorCode.invalid_record,
    ]
)
ADD = st.tuples(st.just("add"), PARTITION, st.sampled_from([20, 90]))
ANSWER = st.tuples(
    st.just("answer"),
    NODE,
    st.integers(0, 4),
    st.lists(CODE, min_size=1, max_size=3),
    st.none() | NODE,
    st.sampled_from([0, 0, 30]),
)
EVENT = st.one_of(
    ADD,
    ADD,
    ADD,
    st.tuples(st.just("add_encoded"), PARTITION, st.integers(1, 3)),
    st.tuples(st.just("finish_encoding")),
    ANSWER,
    ANSWER,
    ANSWER,
    ANSWER,
    st.tuples(st.just("break_off"), NODE),
    st.tuples(st.just("open"), NODE, st.sampled_from([True, True, False])),
    st.tuples(st.just("found"), PARTITION, st.none() | NODE, st.sampled_from([False, False, True])),
    st.tuples(st.just("lead"), PARTITION.map(lambda index: TopicPartition("t", index)), NODE),
    st.tuples(st.just("lost"), PARTITION),
    st.tuples(st.just("pause"), NODE),
    st.tuples(st.just("drain"), NODE),
    st.tuples(st.just("identity"), st.booleans()),
    st.tuples(st.just("flush")),
    st.tuples(st.just("wait_for_memory"), st.booleans()),
    st.tuples(st.just("close")),
)
STEPS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 3, 30]), EVENT), min_size=30, max_size=60)
OPTIONS = st.fixed_dictionaries(
    {
        "linger_ms": st.sampled_from([0, 13, 60]),
        "max_in_flight_requests_per_connection": st.sampled_from([1, 2, 5]),
        "max_request_size": st.sampled_from([220, 10_000]),
        "is_up": st.booleans(),
        "acks": st.sampled_from(["all", "all", 1, 0]),
    }
)


DEFAULTS: dict[str, Any] = {
    "linger_ms": 0,
    "max_in_flight_requests_per_connection": 5,
    "max_request_size": 10_000,
    "acks": "all",
    "is_up": True,
}


def answered(code: ErrorCode) -> tuple[Any, ...]:
    """The first leader says this of the first request that it holds."""
    return ("answer", 0, 0, [code], None, 0)


ANSWERED = answered(ErrorCode.none)
ANSWER_FENCED = answered(ErrorCode.invalid_producer_epoch)
SENT_AGAIN = [(0, ("break_off", 0)), (0, ("found", 0, 0, False)), (0, ("open", 0, True))]


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def play(steps: list[tuple[int, tuple[Any, ...]]], options: dict[str, Any], loop: Loop) -> list[tuple[Any, ...]]:
    """What was sent and what ended, and when: the same by both senders, or AssertionError."""
    given = {
        "enable_idempotence": options["acks"] == "all",
        "batch_size": 200,
        "delivery_timeout_ms": 500,
        "request_timeout_ms": 400,
        "retry_backoff_ms": 30,
        "retry_backoff_max_ms": 240,
        **options,
    }
    is_up = given.pop("is_up")
    mended, model = World(TimedSender, given, is_up=is_up), World(LooksAtAll, given, is_up=is_up)

    async def look() -> None:
        await settle()
        model.sender._run()
        await settle()
        assert mended.trace == model.trace
        queues = mended.accumulator.queues
        for queue in queues.values():
            queue.check()
        assert set(mended.accumulator.active) == {key for key, queue in queues.items() if not queue.idle}

    async def wait(ticks: int) -> None:
        for _ in range(ticks):
            loop.now_s += GRID_MS / 1000
            await look()

    async def happen(name: str, *arguments: Any) -> None:
        for world in (mended, model):
            getattr(world, name)(*arguments)
        await look()

    for ticks, event in steps:
        await wait(ticks)
        await happen(*event)
    for _ in range(100):
        if not model.accumulator.unfinished:
            break
        for event in MENDING:
            await happen(*event)
        await wait(1)
    assert mended.accumulator.unfinished == model.accumulator.unfinished == 0, "something was never looked at"
    for world in (mended, model):
        world.sender.stop()
    await settle()
    return mended.trace


def played(steps: list[tuple[int, tuple[Any, ...]]], options: dict[str, Any]) -> list[tuple[Any, ...]]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=Loop) as runner:
        patch.setattr(requests, "produce", lambda records, **_: dict(records))
        patch.setattr(requests, "init_producer_id", lambda: None)
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        return runner.run(play(steps, options, loop))
