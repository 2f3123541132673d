"""How fast a replica that was away catches up: megabytes of records a second, from its first byte to its place in the ISR.

Three brokers, one topic of one partition, RF 3. A follower's broker is killed, ``RECORDS`` records of 1 KB are written to the other
two, and the broker is started again. The clock runs from the moment when the returned replica's segments have begun to grow to the moment
when the leader's cluster names it in the ISR, so starting processes is not counted; how long it took from the order to start until then is
shown too. *Beside load* the same, while a producer goes on with ``LOAD_BYTES_PER_SECOND`` at acks=all.

Also shown: the rate from 5 to 95 % of the bytes, which is copying alone, without the way into the ISR.

raylog: Ray nodes of their own (``ray_nodes_cluster``), the follower's node is killed and comes back with its disk. Apache Kafka: three
KRaft brokers with their defaults; the follower's broker is killed. Both are asked for the ISR every 20 ms, and for the sizes of the segment
files every 5 ms.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apache_kafka import VERSION, ApacheKafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from harness import Benchmark, arguments, ready_page_cache
from producers import ConfluentKafka, RaylogProducer, random_values
from ray_nodes_cluster import NodesCluster, await_true

RECORD_BYTES = 1000
RECORDS = 500_000
LOAD_BYTES_PER_SECOND = 10_000_000
LOAD_TICK_S = 0.02
GROWTH_TICK_S = 0.005
CONFIGS = {"min.insync.replicas": "2"}
RAYLOG, KAFKA = "raylog", "Apache Kafka"


class RaylogSide:
    """A node that goes and comes back."""

    def __init__(self) -> None:
        self._nodes = NodesCluster()

    def __enter__(self) -> Self:
        self._nodes.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._nodes.__exit__(None, None, None)

    def create_topic(self, topic: str) -> None:
        self._nodes.create_topic(topic, configs=CONFIGS)

    def delete_topic(self, topic: str) -> None:
        with self._nodes.cluster.admin() as admin:
            admin.delete_topics(topic)

    def follower(self, topic: str) -> int:
        part = self._nodes.part(topic)
        return int(max(broker for broker in part["replicas"] if broker != part["leader"]))

    def take_away(self, topic: str, broker: int) -> None:
        self._nodes.kill_node(broker)
        self._nodes.forget_node(broker)
        await_true(lambda: broker not in self.isr(topic), "the follower left the ISR")

    def bring_back(self, broker: int) -> None:
        self._nodes.add_node(broker)

    def isr(self, topic: str) -> list[int]:
        isr: list[int] = self._nodes.part(topic)["isr"]
        return isr

    def folder(self, topic: str, broker: int) -> Path:
        return self._nodes.folder / "data" / f"broker-{broker}" / f"{topic}-0"

    def producer(self, topic: str, values: list[bytes]) -> RaylogProducer:
        return RaylogProducer(self._nodes.cluster.address, topic, values, "all")


class KafkaSide:
    """A broker that goes and comes back."""

    def __init__(self) -> None:
        self._kafka = ApacheKafka(3)

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        self._admin = AdminClient(
            {"bootstrap.servers": self._kafka.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kafka.__exit__(kind, error, trace)

    def create_topic(self, topic: str) -> None:
        self._kafka.create_topic(topic, replication_factor=3, configs=CONFIGS)

    def delete_topic(self, topic: str) -> None:
        self._kafka.delete_topic(topic)

    def _part(self, topic: str) -> Any:
        def described() -> Any:
            try:
                return self._admin.list_topics(topic, timeout=2).topics[topic].partitions.get(0)
            except KafkaException:
                return None

        return await_true(described, "a broker answers")

    def follower(self, topic: str) -> int:
        part = self._part(topic)
        return int(max(broker for broker in part.replicas if broker != part.leader))

    def take_away(self, topic: str, broker: int) -> None:
        self._kafka.kill(broker)
        await_true(lambda: broker not in self.isr(topic), "the follower left the ISR")

    def bring_back(self, broker: int) -> None:
        self._kafka.start_broker(broker)

    def isr(self, topic: str) -> list[int]:
        return list(self._part(topic).isrs)

    def folder(self, topic: str, broker: int) -> Path:
        return self._kafka.data_folder(broker) / f"{topic}-0"

    def producer(self, topic: str, values: list[bytes]) -> ConfluentKafka:
        return ConfluentKafka(self._kafka.bootstrap, topic, values, "all")


class Load(threading.Thread):
    """Goes on producing at a fixed rate until its end, a tick's records at a time."""

    def __init__(self, make: Callable[[list[bytes]], RaylogProducer | ConfluentKafka]) -> None:
        super().__init__(daemon=True)
        self._stopped = threading.Event()
        self._producer = make(random_values(int(LOAD_BYTES_PER_SECOND * LOAD_TICK_S / RECORD_BYTES), RECORD_BYTES))

    def run(self) -> None:
        next_at = time.perf_counter()
        while not self._stopped.wait(max(0.0, next_at - time.perf_counter())):
            self._producer.rate()
            next_at += LOAD_TICK_S

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()
        self._producer.close()


def size_of(folder: Path) -> int:
    """Bytes in the segments."""
    return sum(each.stat().st_size for each in folder.glob("*.log"))


class Growth(threading.Thread):
    """Watches the size of a replica's segments."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._stopped = threading.Event()
        self.samples = [(time.perf_counter(), size_of(folder))]

    def run(self) -> None:
        while not self._stopped.wait(GROWTH_TICK_S):
            self.samples.append((time.perf_counter(), size_of(self._folder)))

    def reached(self, share: float) -> tuple[float, int]:
        """When that share of all that was copied was there, and how many bytes that is."""
        first, last = self.samples[0][1], self.samples[-1][1]
        wanted = first + share * (last - first)
        return next((at, size) for at, size in self.samples if size >= wanted and size > first)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()
        self.samples.append((time.perf_counter(), size_of(self._folder)))


class CatchUp:
    """One side's measurements, in turns with the other's."""

    def __init__(self, side: RaylogSide | KafkaSide, records: int) -> None:
        self._side = side
        self._values = random_values(records, RECORD_BYTES)
        self._number = 0
        self.start_s: dict[bool, list[float]] = {False: [], True: []}
        self.copying: dict[bool, list[float]] = {False: [], True: []}

    def run(self, *, under_load: bool) -> float:
        """MB/s of one return."""
        side = self._side
        self._number += 1
        topic = f"caught-{self._number}"
        side.create_topic(topic)
        broker = side.follower(topic)
        side.take_away(topic, broker)
        folder = side.folder(topic, broker)
        writer = side.producer(topic, self._values)
        writer.rate()
        writer.close()
        beside = Load(lambda values: side.producer(topic, values)) if under_load else nullcontext()
        with beside, Growth(folder) as growth:
            ordered = time.perf_counter()
            side.bring_back(broker)
            await_true(lambda: broker in side.isr(topic), "the replica is in the ISR", every_s=0.02)
            ended = time.perf_counter()
        side.delete_topic(topic)
        began, _ = growth.reached(0)
        from_at, from_bytes = growth.reached(0.05)
        to_at, to_bytes = growth.reached(0.95)
        self.start_s[under_load].append(began - ordered)
        self.copying[under_load].append((to_bytes - from_bytes) / 1e6 / max(1e-3, to_at - from_at))
        return (growth.samples[-1][1] - growth.samples[0][1]) / 1e6 / (ended - began)


def main() -> int:
    quick = arguments().quick
    records = RECORDS // (10 if quick else 1)
    bench = Benchmark(
        "catch_up",
        f"a follower that was away while {records * RECORD_BYTES / 1e6:,.0f} MB were written catches up, against Apache Kafka {VERSION}",
        settings={
            "replication.factor": 3,
            "min.insync.replicas": 2,
            "record_bytes": RECORD_BYTES,
            "records": records,
            "load_bytes_per_second": LOAD_BYTES_PER_SECOND,
        },
        rounds=2,
        quick=quick,
    )
    ready_page_cache(records * RECORD_BYTES)
    with RaylogSide() as ours, KafkaSide() as theirs:
        sides = {RAYLOG: CatchUp(ours, records), KAFKA: CatchUp(theirs, records)}
        for case, under_load in (("idle", False), (f"beside {LOAD_BYTES_PER_SECOND / 1e6:g} MB/s", True)):
            rates = bench.alternate(
                case,
                {name: lambda side=side, load=under_load: side.run(under_load=load) for name, side in sides.items()},
                unit="MB/s",
                warm_up=False,
                written_bytes=records * RECORD_BYTES * 2,
            )
            for name, side in sides.items():
                bench.record(f"{case}: from 5 to 95 % of the bytes", name, side.copying[under_load], unit="MB/s")
            for name, side in sides.items():
                bench.record(f"{case}: order to first byte", name, side.start_s[under_load], unit="s")
            ratio = rates[RAYLOG].median / rates[KAFKA].median
            bench.target(f"{case}: times Kafka's rate", ratio, at_least=1)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
