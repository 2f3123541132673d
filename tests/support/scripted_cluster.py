"""A small cluster that does as it is told, for faults that the real servers cannot be made to produce on demand.

One controller and some leaders on real sockets, on one event loop in a thread. The log of a partition is shared by
whoever leads it, so a failover loses nothing. ``faults`` is a queue per API key of functions ``(cluster, request) ->
bool``: the first in line sees the next request of that API and returns True if it has dealt with it.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links.address import ClusterAddress
from raylog.records.batch import SEQUENCE_MASK, BatchView, batches, stamp
from raylog.records.codec import decode, encode
from raylog.records.control import Marker, control_batch
from raylog.records.record import Record
from raylog.types import ActorIdentity, Endpoint, TopicPartition
from raylog.wire.private import AWAIT_LEADER, FIND_CONTROLLER, AwaitLeaderResponse, ControllerFound
from raylog.wire.server import Server

PRODUCE, FETCH, LIST_OFFSETS, METADATA, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 3, 22, 23
ZERO = timedelta(0)
SECRET = b"scripted"
CLUSTER_ID = "scripted-cluster"
Fault = Callable[["ScriptedCluster", Any], bool]


def _response(request: Any) -> Any:
    return import_module(type(request.body).__module__.replace(".request", ".response"))


class PartitionLog:
    """The records of one partition, with Kafka's rule for sequence numbers."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.start = 0
        self.leader = 0
        self.epoch = 0
        self.epoch_ends: dict[int, int] = {}
        self.aborted: list[tuple[int, int]] = []  # (producer id, first offset), told to those who read committed data
        self.producers: dict[int, tuple[int, int, deque[tuple[int, int]]]] = {}

    def append(self, records: bytes) -> tuple[ErrorCode, int]:
        view = BatchView(records)
        assert view.has_valid_crc(), "a batch with a wrong CRC left the producer"
        if view.producer_id >= 0:
            epoch, expected, recent = self.producers.get(view.producer_id, (-1, 0, deque(maxlen=5)))
            if view.producer_epoch < epoch:
                return ErrorCode.invalid_producer_epoch, -1
            if view.producer_epoch > epoch:
                expected, recent = 0, deque(maxlen=5)
            known = dict(recent)
            if view.base_sequence in known:
                return ErrorCode.none, known[view.base_sequence]
            if view.base_sequence != expected:
                return ErrorCode.out_of_order_sequence_number, -1
            recent.append((view.base_sequence, self.end))
            self.producers[view.producer_id] = (
                view.producer_epoch,
                (expected + view.record_count) & SEQUENCE_MASK,
                recent,
            )
        data = bytearray(records)
        stamp(data, self.end, self.epoch)
        base = self.end
        self.batches.append(bytes(data))
        self.end += view.record_count
        return ErrorCode.none, base

    def read(self, offset: int) -> bytes:
        return b"".join(batch for batch in self.batches if BatchView(batch).next_offset > offset)


class ScriptedCluster:
    def __init__(self, *, nodes: int = 2, topics: dict[str, int] | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.logs = {TopicPartition(t, p): PartitionLog() for t, n in (topics or {"t": 1}).items() for p in range(n)}
        self.topic_ids: dict[str, uuid.UUID] = defaultdict(uuid.uuid4)
        self.faults: dict[int, deque[Fault]] = defaultdict(deque)
        self.requests: list[Any] = []
        self.servers: dict[int, Server] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.producer_ids = 0
        self.isr: tuple[int, ...] = ()
        self.racks: dict[int, str] = {}
        self.followers: set[int] = set()  # nodes that consumers may read from, though they lead nothing
        self.fetched_at: list[int] = []  # the nodes to which fetches went
        self.hints = False  # whether a node that does not lead names the leader, as the real servers do
        self.waiting_for_leader: list[Any] = []
        self.stopped: set[int] = set()
        self.on(self._start(nodes))

    def on(self, work: Any) -> Any:
        """Run a coroutine on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the cluster's loop."""

        async def run() -> Any:
            return function()

        return self.on(run())

    async def _start(self, nodes: int) -> None:
        handlers = {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
        }
        controller = {
            METADATA: self._metadata,
            INIT_PRODUCER_ID: self._init_producer_id,
            AWAIT_LEADER: self._await_leader,
            FIND_CONTROLLER: self._find_controller,
        }
        for node in range(-1, nodes):
            table = controller if node < 0 else handlers
            faulty = {key: self._with_faults(key, handler) for key, handler in table.items()}
            identity = ActorIdentity(CLUSTER_ID, max(node, 0) + 100 * (node < 0), uuid.uuid4(), 1)
            self.servers[node] = Server(faulty, identity=identity, secret=SECRET)
            self.endpoints[node] = await self.servers[node].start()

    @property
    def address(self) -> ClusterAddress:
        return ClusterAddress("scripted", "tests", CLUSTER_ID, (self.endpoints[-1],), SECRET)

    # -------------------------------------------------------------- the script

    def fail_next(self, api_key: int, fault: Fault, times: int = 1) -> None:
        self.call(lambda: self.faults[api_key].extend([fault] * times))

    def refuse_produce(self, code: ErrorCode, times: int = 1) -> None:
        """The next Produce requests are refused as a whole."""

        def refuse(cluster: ScriptedCluster, request: Any) -> bool:
            cluster._reply_produce(request, lambda key, records: (code, -1))
            return True

        self.fail_next(PRODUCE, refuse, times)

    def lose_request(self, times: int = 1) -> None:
        """The connection breaks before the next Produce is looked at."""

        def lose(cluster: ScriptedCluster, request: Any) -> bool:
            request.connection.abort()
            return True

        self.fail_next(PRODUCE, lose, times)

    def lose_answer(self, times: int = 1) -> None:
        """The next Produce is carried out, and the connection breaks instead of an answer."""

        def lose(cluster: ScriptedCluster, request: Any) -> bool:
            for topic in request.body.topic_data:
                for part in topic.partition_data:
                    cluster.logs[TopicPartition(topic.name, part.index)].append(part.records)
            request.connection.abort()
            return True

        self.fail_next(PRODUCE, lose, times)

    def move_leader(self, key: tuple[str, int], node: int) -> None:
        """Another node leads from now on, under the next epoch."""
        self.move_leaders({TopicPartition(*key): node})

    def move_leaders(self, nodes: Mapping[TopicPartition, int]) -> None:
        """The same of many partitions, in one decision."""

        def move() -> None:
            for key, node in nodes.items():
                log = self.logs[key]
                log.epoch_ends[log.epoch] = log.end
                log.leader, log.epoch = node, log.epoch + 1
            for request in self.waiting_for_leader:
                self._await_leader(request)

        self.call(move)

    def stop(self, node: int) -> None:
        """A node's process is gone."""
        self.stopped.add(node)
        self.on(self.servers[node].stop(grace_s=0))

    def records(self, key: tuple[str, int] = ("t", 0)) -> list[Record]:
        log = self.logs[TopicPartition(*key)]
        return [
            record
            for data in list(log.batches)
            for view in batches(data)
            for record in decode(view, topic=key[0], partition=key[1])
        ]

    def values(self, key: tuple[str, int] = ("t", 0)) -> list[bytes | None]:
        return [record.value for record in self.records(key)]

    def close(self) -> None:
        for server in self.servers.values():
            self.on(server.stop(grace_s=0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    # -------------------------------------------------------------- handlers

    def _find_controller(self, request: Any) -> None:
        request.reply(ControllerFound(self.endpoints[-1].host, self.endpoints[-1].port))

    def _with_faults(self, api_key: int, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        def handle(request: Any) -> None:
            self.requests.append(request.body)
            if api_key == FETCH:
                self.fetched_at.append(self.node_of(request))
            faults = self.faults[api_key]
            if faults and faults.popleft()(self, request):
                return
            handler(request)

        return handle

    def node_of(self, request: Any) -> int:
        """The node that a request came to."""
        return next(number for number, server in self.servers.items() if server is request.connection.server)

    def _produce(self, request: Any) -> None:
        node = self.node_of(request)

        def decide(key: TopicPartition, records: bytes) -> tuple[ErrorCode, int]:
            log = self.logs.get(key)
            if log is None or log.leader != node:
                return ErrorCode.not_leader_or_follower, -1
            return log.append(records)

        self._reply_produce(request, decide)

    def _reply_produce(self, request: Any, decide: Callable[[TopicPartition, bytes], tuple[ErrorCode, int]]) -> None:
        module = _response(request)
        responses = []
        for topic in request.body.topic_data:
            parts = []
            for part in topic.partition_data:
                code, base = decide(TopicPartition(topic.name, part.index), part.records)
                parts.append(
                    module.PartitionProduceResponse(
                        index=part.index,
                        error_code=code,
                        base_offset=base,
                        record_errors=(),
                        error_message=None,
                        **self._hint(module, TopicPartition(topic.name, part.index), code),
                    )
                )
            responses.append(module.TopicProduceResponse(name=topic.name, partition_responses=tuple(parts)))
        if request.body.acks != 0:
            nodes = tuple(
                module.NodeEndpoint(node_id=node, host=endpoint.host, port=endpoint.port, rack=None)
                for node, endpoint in self.endpoints.items()
                if self.hints and node >= 0
            )
            request.reply(module.ProduceResponse(responses=tuple(responses), throttle_time=ZERO, node_endpoints=nodes))

    def _hint(self, module: Any, key: TopicPartition, code: ErrorCode) -> dict[str, Any]:
        if not self.hints or code is not ErrorCode.not_leader_or_follower:
            return {}
        log = self.logs[key]
        return {"current_leader": module.LeaderIdAndEpoch(leader_id=log.leader, leader_epoch=log.epoch)}

    def _fetch(self, request: Any) -> None:
        node = self.node_of(request)
        answers = self._fetch_answers(request, node)
        if any(part.records or part.error_code is not ErrorCode.none for topic in answers for part in topic.partitions):
            self._reply_fetch(request, answers)
        else:
            wait_s = min(request.body.max_wait.total_seconds(), 0.05)
            self.loop.call_later(
                wait_s, lambda: request.is_open and self._reply_fetch(request, self._fetch_answers(request, node))
            )

    def _fetch_answers(self, request: Any, node: int) -> tuple[Any, ...]:
        module = _response(request)
        topics = []
        for topic in request.body.topics:
            parts = []
            for part in topic.partitions:
                log = self.logs[TopicPartition(topic.topic, part.partition)]
                code, records = ErrorCode.none, b""
                if log.leader != node and node not in self.followers:
                    code = ErrorCode.not_leader_or_follower
                elif 0 <= part.current_leader_epoch < log.epoch:
                    code = ErrorCode.fenced_leader_epoch
                elif not log.start <= part.fetch_offset <= log.end:
                    code = ErrorCode.offset_out_of_range
                else:
                    records = log.read(part.fetch_offset)
                parts.append(
                    module.PartitionData(
                        partition_index=part.partition,
                        error_code=code,
                        high_watermark=log.end,
                        last_stable_offset=log.end,
                        log_start_offset=log.start,
                        aborted_transactions=tuple(
                            module.AbortedTransaction(producer_id=producer, first_offset=offset)
                            for producer, offset in log.aborted * request.body.isolation_level
                        ),
                        records=records,
                        **self._hint(module, TopicPartition(topic.topic, part.partition), code),
                    )
                )
            topics.append(module.FetchableTopicResponse(topic=topic.topic, partitions=tuple(parts)))
        return tuple(topics)

    def _reply_fetch(self, request: Any, answers: tuple[Any, ...]) -> None:
        request.reply(
            _response(request).FetchResponse(
                throttle_time=ZERO, error_code=ErrorCode.none, session_id=0, responses=answers
            )
        )

    def _list_offsets(self, request: Any) -> None:
        module = _response(request)
        topics = []
        for topic in request.body.topics:
            parts = []
            for part in topic.partitions:
                log = self.logs[TopicPartition(topic.name, part.partition_index)]
                offset = {-1: log.end, -2: log.start}.get(part.timestamp)
                if offset is None:
                    found = (
                        r.offset
                        for r in self.records((topic.name, part.partition_index))
                        if r.timestamp >= part.timestamp
                    )
                    offset = next(found, -1)
                parts.append(
                    module.ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.none,
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=log.epoch,
                    )
                )
            topics.append(module.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(parts)))
        request.reply(module.ListOffsetsResponse(throttle_time=ZERO, topics=tuple(topics)))

    def _epoch_ends(self, request: Any) -> None:
        module = _response(request)
        topics = []
        for topic in request.body.topics:
            parts = []
            for part in topic.partitions:
                log = self.logs[TopicPartition(topic.topic, part.partition)]
                end = log.epoch_ends.get(part.leader_epoch, log.end)
                parts.append(
                    module.EpochEndOffset(
                        error_code=ErrorCode.none,
                        partition=part.partition,
                        leader_epoch=part.leader_epoch,
                        end_offset=end,
                    )
                )
            topics.append(module.OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(parts)))
        request.reply(module.OffsetForLeaderEpochResponse(throttle_time=ZERO, topics=tuple(topics)))

    def _metadata(self, request: Any) -> None:
        module = _response(request)
        asked = request.body.topics
        names = sorted({key.topic for key in self.logs}) if asked is None else [topic.name for topic in asked]
        topics = []
        for name in names:
            logs = [(key.partition, log) for key, log in sorted(self.logs.items()) if key.topic == name]
            parts = tuple(
                module.MetadataResponsePartition(
                    error_code=ErrorCode.none,
                    partition_index=index,
                    leader_id=log.leader,
                    leader_epoch=log.epoch,
                    replica_nodes=self.isr or (log.leader,),
                    isr_nodes=self.isr or (log.leader,),
                    offline_replicas=(),
                )
                for index, log in logs
            )
            code = ErrorCode.none if logs else ErrorCode.unknown_topic_or_partition
            topics.append(
                module.MetadataResponseTopic(
                    error_code=code, name=name, topic_id=self.topic_ids[name], is_internal=False, partitions=parts
                )
            )
        brokers = tuple(
            module.MetadataResponseBroker(
                node_id=node, host=endpoint.host, port=endpoint.port, rack=self.racks.get(node)
            )
            for node, endpoint in self.endpoints.items()
            if node >= 0
        )
        request.reply(
            module.MetadataResponse(
                throttle_time=ZERO, brokers=brokers, cluster_id=CLUSTER_ID, controller_id=-1, topics=tuple(topics)
            )
        )

    def _init_producer_id(self, request: Any) -> None:
        self.producer_ids += 1
        module = _response(request)
        request.reply(
            module.InitProducerIdResponse(
                throttle_time=ZERO, error_code=ErrorCode.none, producer_id=self.producer_ids, producer_epoch=0
            )
        )

    def _await_leader(self, request: Any) -> None:
        body = request.body
        log = self.logs.get(TopicPartition(body.topic, body.partition))
        if log is None:
            request.reply(AwaitLeaderResponse(-1, -1))
            return
        if log.epoch > body.newer_than_epoch:
            self.waiting_for_leader = [other for other in self.waiting_for_leader if other is not request]
            endpoint = self.endpoints[log.leader]
            request.reply(AwaitLeaderResponse(log.leader, log.epoch, endpoint.host, endpoint.port))
        elif request not in self.waiting_for_leader:
            self.waiting_for_leader.append(request)
            self.loop.call_later(body.timeout_ms / 1000, self._leader_not_found, request)

    def _leader_not_found(self, request: Any) -> None:
        if request in self.waiting_for_leader:
            self.waiting_for_leader.remove(request)
            log = self.logs[TopicPartition(request.body.topic, request.body.partition)]
            if request.is_open and log.leader in self.stopped:
                request.reply(AwaitLeaderResponse(-1, log.epoch))
            elif request.is_open:  # as the controller answers: whoever leads and is not known to be dead
                endpoint = self.endpoints[log.leader]
                request.reply(AwaitLeaderResponse(log.leader, log.epoch, endpoint.host, endpoint.port))


def transactions(cluster: ScriptedCluster) -> None:
    """In the log of ``t``, handwritten: a record ``gone`` and an abort, a record ``kept`` and a commit."""
    log = cluster.logs[TopicPartition("t", 0)]
    for value, kind in ((b"gone", Marker.ABORT), (b"kept", Marker.COMMIT)):
        data = encode(
            [(1000, b"k", value, ())], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        marker = control_batch(kind, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5)
        for batch in (bytearray(data), bytearray(marker)):
            stamp(batch, log.end, log.epoch)
            log.batches.append(bytes(batch))
            log.end = BatchView(bytes(batch)).next_offset
    log.aborted = [(7, 0)]
