"""In-process clusters for fault tests: each test's own, with disks that can be made to fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles
from raw_requests import eventually, isr_is_whole, part

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.server.replica_server import ReplicaServer
from raylog.server.spec import ServerSpec
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition, broker_of


class Stream:
    """A producer in a thread of its own that numbers what it sends, until it is told to stop."""

    def __init__(self, running: InProcessCluster) -> None:
        self._producer = Producer(running.address, acks="all", linger_ms=1)
        self._over = threading.Event()
        self.sent: list[tuple[bytes, Any]] = []
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.is_set():
            value = b"%d" % len(self.sent)
            self.sent.append((value, self._producer.send("t", value, key=b"k", partition=0)))
            time.sleep(0.0005)  # a slow source: the records spread over the faults

    def more(self, count: int = 50) -> None:
        """Wait until so many more records than now have been acknowledged."""
        wanted = len(self.sent) + count
        eventually(lambda: len(self.sent) > wanted and self.sent[wanted][1].done(), f"{count} more records")

    def stop(self) -> list[tuple[int, bytes]]:
        """Offset and value of every record; all were acknowledged."""
        self._over.set()
        self._thread.join()
        with self._producer:
            return [(delivery.result(60).offset, value) for value, delivery in self.sent]


class FaultCluster:
    """Brokers in this process. ``files`` are the disks by broker; ``hold`` keeps new replica processes from starting."""

    running: InProcessCluster  # made with ``build``

    def __init__(self) -> None:
        self.files = {broker: FaultyFiles() for broker in range(6)}
        self._held = threading.Event()

    def build(self, spec: ServerSpec) -> Any:
        if self._held.is_set():
            raise OSError("the test holds new processes back")
        return ReplicaServer(spec, files=self.files[broker_of(spec.node_id)])

    def hold(self) -> None:
        self._held.set()

    def let_go(self) -> None:
        self._held.clear()

    def make_topic(self, name: str = "t", *, replication_factor: int = 3, **configs: str) -> None:
        """A topic of one partition, in sync; min.insync.replicas is 2 where there are three replicas."""
        settings = {"min.insync.replicas": str(min(2, replication_factor))}
        settings |= {key.replace("_", "."): value for key, value in configs.items()}
        with AdminClient(self.running.address) as admin:
            admin.create_topics([NewTopic(name, 1, replication_factor, configs=settings)])
        self.await_whole(name)

    def await_whole(self, topic: str = "t") -> None:
        eventually(lambda: isr_is_whole(self.running, topic), f"all replicas of {topic} in sync")

    def leader(self, topic: str = "t") -> int:
        """The node id of the leader."""
        return int(eventually(lambda: part(self.running, topic)["leader_node"] + 1, f"a leader of {topic}")) - 1

    def produce(self, values: list[bytes], topic: str = "t", **options: Any) -> list[int]:
        """Each value's offset; all acknowledged by the whole ISR."""
        with Producer(self.running.address, acks="all", **options) as producer:
            deliveries = [producer.send(topic, value, partition=0) for value in values]
            return [delivery.result(60).offset for delivery in deliveries]

    def values(self, count: int, topic: str = "t") -> list[bytes | None]:
        """Everything in the partition, waiting for at least so many records."""
        found: list[bytes | None] = []
        with Consumer(self.running.address) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()

            def enough() -> bool:
                found.extend(record.value for record in consumer.consume(10_000, timeout=0.2))
                return len(found) >= count

            eventually(enough, f"{count} records of {topic}")
            found.extend(record.value for record in consumer.consume(10_000, timeout=0.1))  # none may follow
        return found

    def stream(self) -> Stream:
        """A producer that goes on sending."""
        return Stream(self.running)

    @contextmanager
    def reader(self, topic: str = "t") -> Iterator[Callable[[int], list[bytes | None]]]:
        """An open consumer: the function gives the next so many values."""
        with Consumer(self.running.address) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()

            def read(count: int) -> list[bytes | None]:
                found: list[bytes | None] = []

                def enough() -> bool:
                    found.extend(record.value for record in consumer.consume(count - len(found), timeout=0.2))
                    return len(found) >= count

                eventually(enough, f"{count} records of {topic}")
                return found

            yield read

    def folder(self, broker: int, topic: str = "t") -> Path:
        return self.running.folder / f"broker-{broker}" / f"{topic}-0"


@pytest.fixture
def faulty() -> Iterator[FaultCluster]:
    found = FaultCluster()
    with cluster(brokers=3, replica_server=found.build) as found.running:
        yield found


@pytest.fixture
def six() -> Iterator[FaultCluster]:
    """Six brokers, the first three with a controller."""
    found = FaultCluster()
    with cluster(brokers=6, controllers=3, replica_server=found.build) as found.running:
        yield found


@pytest.fixture
def three() -> Iterator[FaultCluster]:
    """Three brokers, each with a controller."""
    found = FaultCluster()
    with cluster(brokers=3, controllers=3, replica_server=found.build) as found.running:
        yield found


@pytest.fixture
def numbered() -> Callable[[int, int], list[bytes]]:
    """Values that say their own number."""
    return lambda start, end: [b"%d" % number for number in range(start, end)]
