"""A job on somebody else's Ray makes folders of its node the disks of a broker, leaves, and finds the
records there again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ray

import raylog
from raylog import NewTopic, TopicPartition

PARTITIONS = [TopicPartition("smoke", number) for number in range(4)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rlm") as name:
        disks = [Path(name) / "disk-0", Path(name) / "disk-1"]
        for each in disks:
            each.mkdir()
        ray.init(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
        node = ray.nodes()[0]["NodeID"]
        cluster = raylog.init(disks={node: disks})
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("smoke", len(PARTITIONS))])
        with cluster.producer() as producer:
            for _, number in PARTITIONS:
                producer.send("smoke", b"%d" % number, partition=number).result(60)
        cluster.shutdown()
        cluster = raylog.init(disks={node: disks})
        found: set[bytes] = set()
        with cluster.consumer() as consumer:
            consumer.assign(PARTITIONS)
            consumer.seek_to_beginning()
            while len(found) < len(PARTITIONS):
                records = consumer.consume(len(PARTITIONS), timeout=30)
                assert records, f"{len(found)} records came back, then none for 30 s"
                found |= {each.value for each in records}
        cluster.shutdown()
        ray.shutdown()
    print(f"{len(found)} records on lent disks, and again after a shutdown", file=sys.stderr)


if __name__ == "__main__":
    main()
