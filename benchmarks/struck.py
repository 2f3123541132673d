"""The clusters that ``failover.py`` strikes, raylog and Apache Kafka, under one face: single records, changes of metadata, faults.

A *fault* is a generator that stops twice. Before the first ``yield`` it aims: it finds out whom to strike. After it, it strikes
at once. After the second, when writes (and changes, where the fault concerns them) go on, it mends and waits until
everything is as it was: all replicas in the ISR, all controllers there. What it yields the first time is kept with the run.

Both sides: one partition, three replicas, ``min.insync.replicas`` 2, acks=all, idempotent, no linger, three controllers, the
servers' own defaults. raylog's controllers are processes of their own; Kafka's brokers are controllers too, so that a
controller's death takes a replica with it, and a broker's is a node's.

The clients. raylog's has its defaults. For Kafka it is confluent-kafka with its default retries and settings that make it notice as early
as it can: a request unanswered for 2 s is given up (default: 60 s), metadata is asked for every second (default: 5 minutes), and it
reconnects within 500 ms (default: up to 10 s). Changes of metadata go out at a fixed rate without waiting for earlier ones,
so that a call that hangs hides nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, ClassVar, Self

from apache_kafka import ApacheKafka, class_archive, listens
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from paced_load import Note, partition_records
from ray_nodes_cluster import NodesCluster, await_true, pid_of

from raylog.client.admin.admin import AsyncAdminClient
from raylog.client.producer.deliveries import RecordMetadata
from raylog.client.sync import Producer
from raylog.errors import RaylogError
from raylog.types import broker_of

TOPIC = "struck"
CHANGED = "changed"  # the topic whose config the changes set
CONFIGS = {"min.insync.replicas": "2"}
HEAD_AWAY_S = 3.0
CHANGE_TIMEOUT_S = 30.0
WHOLE_IN_A_ROW = 5  # looks, 0.2 s apart

LEADER = "leader process killed"
NODE = "leader's node killed"
SILENT = "leader silent"
CONTROLLER = "active controller killed"
HEAD = "Ray's head killed"
KINDS = (LEADER, NODE, SILENT, CONTROLLER, HEAD)
CHANGES_IN = (CONTROLLER, HEAD)
"""The kinds in which metadata is changed meanwhile and has to go on too."""

Fault = Callable[[], Generator[dict[str, Any]]]
Done = Callable[[object], None]
"""Told what went wrong with a change, or None."""


class Raylog:
    """Three Ray nodes with a broker and a controller each, beside Ray's head."""

    name: ClassVar = "raylog"

    def __init__(self) -> None:
        self._nodes = NodesCluster()
        self.faults: dict[str, Fault] = {
            LEADER: self._kill_leader,
            NODE: self._kill_node,
            SILENT: self._stop_leader,
            CONTROLLER: self._kill_controller,
            HEAD: self._kill_head,
        }

    def __enter__(self) -> Self:
        self._nodes.__enter__()
        try:
            for topic in (TOPIC, CHANGED):
                self._nodes.create_topic(topic, configs=CONFIGS)
            self._producer = Producer(self._nodes.cluster.address, acks="all", linger_ms=0)
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
            self._admin = asyncio.run_coroutine_threadsafe(self._make_admin(), self._loop).result()
        except BaseException:
            self._nodes.__exit__(None, None, None)
            raise
        return self

    async def _make_admin(self) -> AsyncAdminClient:
        return AsyncAdminClient(self._nodes.cluster.address)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close(0)
        asyncio.run_coroutine_threadsafe(self._admin.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._nodes.__exit__(kind, error, trace)

    # -------------------------------------------------------------- the load

    def send(self, sequence: int, value: bytes, note: Note) -> None:
        def settled(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
            note(sequence, None if metadata is None else metadata.offset, error)

        self._producer.send(TOPIC, value, partition=0, on_delivery=settled)

    def is_in_flight(self) -> bool:
        return bool(self._producer.buffered_bytes)

    def flush(self) -> None:
        self._producer.flush(150)

    def change(self, number: int, done: Done) -> None:
        """Sets a topic's config; ``done`` is told when that is committed."""
        altering = self._admin.alter_configs(CHANGED, set={"retention.ms": str(3_600_000 + number)})

        async def bounded() -> None:
            try:
                await asyncio.wait_for(altering, CHANGE_TIMEOUT_S)
            except (RaylogError, TimeoutError) as error:
                done(error)
            else:
                done(None)

        asyncio.run_coroutine_threadsafe(bounded(), self._loop)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Everything in the partition."""
        return partition_records(self._nodes.cluster, TOPIC)

    # -------------------------------------------------------------- faults

    def _leader(self) -> tuple[dict[str, Any], int, int]:
        """The status, the node id of the partition's leader and its process."""
        status = self._nodes.status()
        node = next(each["partitions"][0] for each in status["topics"] if each["name"] == TOPIC)["leader_node"]
        return status, node, pid_of(status, node)

    def _kill_leader(self) -> Generator[dict[str, Any]]:
        _, _, pid = self._leader()
        yield {}
        os.kill(pid, signal.SIGKILL)
        yield {}
        await_true(lambda: self._leader()[2] not in (0, pid), "another process leads")
        self._nodes.await_whole(TOPIC)

    def _kill_node(self) -> Generator[dict[str, Any]]:
        status, node, _ = self._leader()
        broker = broker_of(node)
        yield {"active controller there": status["controller"]["broker"] == broker}
        self._nodes.kill_node(broker)
        yield {}
        self._nodes.forget_node(broker)
        self._nodes.add_node(broker)
        self._nodes.await_whole(TOPIC)

    def _stop_leader(self) -> Generator[dict[str, Any]]:
        _, _, pid = self._leader()
        yield {}
        os.kill(pid, signal.SIGSTOP)
        yield {}
        os.kill(pid, signal.SIGCONT)
        self._nodes.await_whole(TOPIC)

    def _kill_controller(self) -> Generator[dict[str, Any]]:
        status = self._nodes.status()
        epoch = status["controller"]["epoch"]
        yield {}
        os.kill(status["controller"]["pid"], signal.SIGKILL)
        yield {}
        await_true(lambda: self._nodes.status()["controller"]["epoch"] > epoch, "a new active controller")
        self._nodes.await_whole(TOPIC)

    def _kill_head(self) -> Generator[dict[str, Any]]:
        yield {}
        self._nodes.kill_head()
        time.sleep(HEAD_AWAY_S)
        self._nodes.restart_head()
        yield {}
        self._nodes.await_whole(TOPIC)


class Kafka:
    """Three combined KRaft brokers with their defaults."""

    name: ClassVar = "Apache Kafka"

    def __init__(self) -> None:
        self._kafka = ApacheKafka(3, jvm_options=[f"-XX:SharedArchiveFile={class_archive()}"])  # back sooner
        self._stopped = threading.Event()
        self.faults: dict[str, Fault] = {
            LEADER: self._kill_leader,
            SILENT: self._stop_leader,
            CONTROLLER: self._kill_controller,
        }

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        try:
            for topic in (TOPIC, CHANGED):
                self._kafka.create_topic(topic, replication_factor=3, configs=CONFIGS)
            client = {
                "bootstrap.servers": self._kafka.bootstrap,
                "log_level": 0,
                "reconnect.backoff.max.ms": 500,
                "socket.nagle.disable": True,
                "topic.metadata.refresh.interval.ms": 1000,  # it also says which broker takes changes of metadata
            }
            self._producer = KafkaProducer(
                {
                    **client,
                    "acks": "all",
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "socket.timeout.ms": 2000,
                }
            )
            self._admin = AdminClient({**client, "socket.timeout.ms": 10_000})
            self._observer = AdminClient({**client, "socket.timeout.ms": 2000})
            threading.Thread(target=self._poll, daemon=True).start()
        except BaseException:
            self._kafka.__exit__(None, None, None)
            raise
        return self

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._producer.poll(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._kafka.__exit__(kind, error, trace)

    # -------------------------------------------------------------- the load

    def send(self, sequence: int, value: bytes, note: Note) -> None:
        def settled(error: Any, message: Any) -> None:
            note(sequence, None if error is not None else message.offset(), error)

        while True:
            try:
                self._producer.produce(TOPIC, value, partition=0, on_delivery=settled)
                return
            except BufferError:
                time.sleep(0.01)

    def is_in_flight(self) -> bool:
        return len(self._producer) > 0

    def flush(self) -> None:
        self._producer.flush(150)

    def change(self, number: int, done: Done) -> None:
        entry = ConfigEntry("retention.ms", str(3_600_000 + number), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, CHANGED, incremental_configs=[entry])
        futures = self._admin.incremental_alter_configs([resource], request_timeout=CHANGE_TIMEOUT_S)
        futures[resource].add_done_callback(lambda future: done(future.exception()))

    def records(self) -> Iterator[tuple[int, bytes]]:
        consumer = KafkaConsumer(
            {"bootstrap.servers": self._kafka.bootstrap, "group.id": "readback", "enable.auto.commit": False}
        )
        partition = KafkaTopicPartition(TOPIC, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=30)
        consumer.assign([partition])
        position = 0
        while position < end:
            messages = consumer.consume(10_000, timeout=30)
            assert messages, f"nothing comes at offset {position} of {end}"
            for message in messages:
                assert message.error() is None, message.error()
                yield message.offset(), message.value()
            position = messages[-1].offset() + 1
        consumer.close()

    # -------------------------------------------------------------- faults

    def _leader(self) -> int:
        return int(await_true(lambda: max(0, self._part().leader), "a leader"))

    def _part(self) -> Any:
        """The partition, as soon as a broker describes it."""

        def described() -> Any:
            try:
                return self._observer.list_topics(TOPIC, timeout=2).topics[TOPIC].partitions.get(0)
            except KafkaException:
                return None

        return await_true(described, "a broker answers")

    def _await_whole(self) -> None:
        """Waits until all brokers listen, and all replicas are in the ISR and stay there: a broker may describe what was, for a moment."""
        await_true(lambda: all(map(listens, self._kafka.ports.values())), "all brokers listen")
        whole_in_a_row = 0
        while whole_in_a_row < WHOLE_IN_A_ROW:
            await_true(self._is_whole, "the ISR is whole")
            whole_in_a_row = whole_in_a_row + 1 if self._is_whole() else 0
            time.sleep(0.2)

    def _is_whole(self) -> bool:
        return len(self._part().isrs) == 3 and self._active_controller() in self._kafka.pids

    def _active_controller(self) -> int:
        """The broker whose controller is active, as the voters have noted it on their disks; the newest note counts."""
        notes = []
        for broker in self._kafka.broker_ids:
            note = self._kafka.data_folder(broker) / "__cluster_metadata-0" / "quorum-state"
            state = json.loads(note.read_text())
            notes.append((state["leaderEpoch"], state["leaderId"]))
        return int(max(notes)[1])

    def _kill_leader(self) -> Generator[dict[str, Any]]:
        broker = self._leader()
        yield {"active controller there": self._active_controller() == broker}
        self._kafka.kill(broker)
        yield {}
        self._kafka.start_broker(broker)
        self._await_whole()

    def _stop_leader(self) -> Generator[dict[str, Any]]:
        broker = self._leader()
        yield {"active controller there": self._active_controller() == broker}
        os.kill(self._kafka.pid_of(broker), signal.SIGSTOP)
        yield {}
        os.kill(self._kafka.pid_of(broker), signal.SIGCONT)
        self._await_whole()

    def _kill_controller(self) -> Generator[dict[str, Any]]:
        broker = int(await_true(lambda: max(0, self._active_controller()), "an active controller"))
        yield {"leader there": self._leader() == broker}
        self._kafka.kill(broker)
        yield {}
        self._kafka.start_broker(broker)
        self._await_whole()
