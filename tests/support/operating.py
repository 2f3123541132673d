"""Operating a cluster in this process: what a person sees of it, and a load that must not notice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from raylog.client.admin.admin import NewTopic, PartitionInfo
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.errors import RaylogError
from raylog.testing.in_process import InProcessCluster
from raylog.types import TopicPartition

NO_TIMEOUT_MS = 8_000  # the shortest that a producer could have waited for is that of a silent session, 9 s


class Operator:
    """What a person at a terminal can do, and see."""

    def __init__(self, running: InProcessCluster) -> None:
        self.running = running
        self.admin = AdminClient(running.address)

    def new_topic(self, *assignment: tuple[int, ...], **configs: Any) -> str:
        """A topic with these brokers for its partitions, each led by its first and all of them in sync."""
        name = f"topic-{random.getrandbits(40):x}"
        self.admin.create_topics(NewTopic(name, configs=configs, replica_assignment=dict(enumerate(assignment))))
        self.until(lambda: all(part.leader == part.replicas[0] for part in self.partitions(name)))
        return name

    def partitions(self, topic: str) -> tuple[PartitionInfo, ...]:
        return self.admin.describe_topics([topic])[topic].partitions

    def partition(self, topic: str) -> PartitionInfo:
        return self.partitions(topic)[0]

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            threading.Event().wait(0.01)

    def folders(self, topic: str) -> list[str]:
        """The brokers' folders of a topic, as ``<broker>/<topic>-<partition>``."""
        return sorted(
            f"{path.parent.name.removeprefix('broker-')}/{path.name}"
            for path in self.running.folder.glob(f"broker-*/{topic}-*")
        )


class Load:
    """A producer with acks=all that never pauses, in a thread; at the end every acknowledged record is read back."""

    def __init__(self, operator: Operator, topic: str) -> None:
        self.topic = topic
        self.running = operator.running
        self.acked: list[int] = []
        self.errors: list[RaylogError] = []
        self.pauses_ms: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _produce(self) -> None:
        with Producer(self.running.address, acks="all") as producer:
            number = 0
            while not self._over.is_set():
                before = time.monotonic()
                try:
                    producer.send(self.topic, str(number).encode()).result(60)
                    self.acked.append(number)
                except RaylogError as error:
                    self.errors.append(error)
                self.pauses_ms.append((time.monotonic() - before) * 1_000)
                number += 1

    def read_back(self) -> list[int]:
        with Consumer(self.running.address, auto_offset_reset="earliest") as consumer:
            count = consumer.partitions_for(self.topic)
            consumer.assign([TopicPartition(self.topic, number) for number in range(count)])
            found: list[int] = []
            deadline = time.monotonic() + 60
            while len(found) < len(self.acked) and time.monotonic() < deadline:
                found += [int(value) for value in consumer.poll_batch(timeout=1.0)["value"].to_pylist()]
            return found
