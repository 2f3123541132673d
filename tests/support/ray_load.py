"""A load on a cluster of Ray actors that must not notice what happens to it."""

from __future__ import annotations

import threading

from ray_clusters import eventually

import raylog
from raylog import TopicPartition


class Load:
    """Numbered records, one after the other, until the end of the block; every one is acknowledged."""

    def __init__(self, cluster: raylog.Cluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.acked: list[tuple[int, bytes]] = []

    def __enter__(self) -> Load:
        self._thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        with self._cluster.producer(acks="all") as producer:
            while not self._over.is_set():
                value = b"%d" % len(self.acked)
                self.acked.append((producer.send("events", value, partition=0).result(60).offset, value))

    def more(self, count: int = 100) -> None:
        wanted = len(self.acked) + count
        eventually(lambda: len(self.acked) >= wanted or not self._thread.is_alive(), f"{count} more records")
        assert self._thread.is_alive(), "the producer gave up"

    def check(self) -> None:
        """Everything acknowledged is there, once and in order."""
        self.check_in(self._cluster)

    def check_in(self, cluster: raylog.Cluster) -> None:
        """The same, by another handle: of a cluster that was started anew."""
        first = self.acked[0][0]
        found: list[bytes | None] = []
        with cluster.consumer() as consumer:
            consumer.assign([TopicPartition("events", 0)])
            consumer.seek(TopicPartition("events", 0), first)
            eventually(
                lambda: (
                    found.extend(record.value for record in consumer.consume(1_000, timeout=1.0))
                    or len(found) >= len(self.acked)
                ),
                f"{len(self.acked)} records",
            )
        assert found == [value for _, value in self.acked]
