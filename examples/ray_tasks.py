"""Ray tasks write to the log and a Ray actor reads it: the handle of a cluster travels as an argument.

python examples/ray_tasks.py
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import ray

import raylog

TOPIC = "measurements"
PARTITIONS = 3
SENSORS = 4
READINGS = 5_000


@ray.remote(num_cpus=0.1)
def measure(cluster: raylog.Cluster, sensor: int) -> int:
    """One task is one sensor; its readings share a key, so they stay in order."""
    readings = [json.dumps({"sensor": sensor, "reading": number}).encode() for number in range(READINGS)]
    with cluster.producer(linger_ms=5) as producer:
        delivery = producer.send_batch(TOPIC, readings, key=b"sensor-%d" % sensor)
        return delivery.result().count


@ray.remote(num_cpus=0.1)
class Reader:
    """An actor that keeps its own position."""

    def __init__(self, cluster: raylog.Cluster) -> None:
        self._consumer = cluster.consumer(auto_offset_reset="earliest")
        self._consumer.assign([raylog.TopicPartition(TOPIC, number) for number in range(PARTITIONS)])

    def count(self, wanted: int) -> dict[str, int]:
        """Read that many records and count them by sensor, demanding the order of each."""
        seen: Counter[str] = Counter()
        while seen.total() < wanted:
            for record in self._consumer.consume(10_000, timeout=5):
                reading: dict[str, Any] = json.loads(record.value)
                sensor = f"sensor {reading['sensor']}"
                assert reading["reading"] == seen[sensor], f"{sensor} is out of order"
                seen[sensor] += 1
        return dict(sorted(seen.items()))


def main() -> None:
    with raylog.init("raylog-data") as cluster:
        with cluster.admin() as admin:
            admin.delete_topics(TOPIC, if_exists=True)
            admin.create_topics(raylog.NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=3))
        reader = Reader.remote(cluster)
        written = sum(ray.get([measure.remote(cluster, sensor) for sensor in range(SENSORS)]))
        print(f"written {written}, read {ray.get(reader.count.remote(written))}")


if __name__ == "__main__":
    main()
