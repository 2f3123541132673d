"""Consume, transform, produce, each record exactly once: a Ray actor is killed again and again, and the output shows nothing of it.

What the actor writes and how far it has read are one transaction. When it dies, Ray starts it again; its producer has the same
transactional.id, so whatever the dead one had begun is aborted, and its consumer goes on where the last commit was.

python examples/exactly_once.py
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress

import ray

import raylog
from raylog.errors import TransactionAbortedError

SOURCE = "numbers"
TARGET = "squares"
COUNT = 20_000
KILLS = 5


@ray.remote(num_cpus=0.1, max_restarts=-1, max_task_retries=-1, max_concurrency=2)
class Squarer:
    """``name``: of this one among all that run at the same time."""

    def __init__(self, cluster: raylog.Cluster, name: str) -> None:
        self._producer = cluster.producer(transactional_id=name)
        self._consumer = cluster.consumer(
            group_id="squarers",
            group_instance_id=name,  # the actor that is started again takes over at once
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        self._consumer.subscribe(SOURCE)

    def pid(self) -> int:
        return os.getpid()

    def square(self, seconds: float) -> None:
        """Square what comes, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not (records := self._consumer.consume(100, timeout=0.2)):
                continue
            with suppress(TransactionAbortedError):
                with self._producer.transaction() as txn:
                    txn.send_batch(TARGET, [b"%d" % int(record.value or b"0") ** 2 for record in records])
                    txn.commit_offsets(self._consumer)
                continue
            self._consumer.seek_to_committed()  # it was aborted: read the same again


def squares(cluster: raylog.Cluster, count: int, timeout_s: float) -> Counter[int]:
    """How often each number is in the output, read until there are ``count`` of them, and a little longer."""
    found: Counter[int] = Counter()
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([raylog.TopicPartition(TARGET, 0)])
        end = time.monotonic() + timeout_s
        while found.total() < count and time.monotonic() < end:
            found.update(int(record.value or b"0") for record in consumer.consume(10_000, timeout=1.0))
        found.update(int(record.value or b"0") for record in consumer.consume(10_000, timeout=1.0))
    return found


def run(cluster: raylog.Cluster, *, count: int = COUNT, kills: int = KILLS, timeout_s: float = 120) -> Counter[int]:
    """Have ``count`` numbers squared by an actor that is killed so many times meanwhile."""
    with cluster.admin() as admin:
        for topic in (SOURCE, TARGET):
            admin.delete_topics(topic, if_exists=True)
            admin.create_topics(raylog.NewTopic(topic, partitions=1, replication_factor=3))
    squarer = Squarer.remote(cluster, "squarer-1")
    squarer.square.remote(timeout_s)  # Ray calls it again when it has started the actor again
    with cluster.producer() as producer:
        for part in range(kills + 1):
            producer.send_batch(SOURCE, [b"%d" % number for number in range(part, count, kills + 1)]).result()
            if part < kills:
                time.sleep(1.0)
                pid = ray.get(squarer.pid.remote())
                print(f"killing process {pid}")
                os.kill(pid, signal.SIGKILL)
    found = squares(cluster, count, timeout_s)
    ray.kill(squarer)
    return found


def main() -> None:
    with raylog.init("raylog-data") as cluster:
        found = run(cluster)
        once = sum(times == 1 for times in found.values())
        print(
            f"{COUNT} numbers: {once} squares are there once, {len(found) - once} more often, {COUNT - len(found)} not"
        )


if __name__ == "__main__":
    main()
