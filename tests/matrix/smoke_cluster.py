"""A cluster of three brokers comes up, takes records, loses the leader of a partition by SIGKILL,
takes more, and gives all of them back.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import raylog
from raylog.client.admin.admin import NewTopic

TOPIC = "smoke"
RECORDS = 2_000


def leader_pid(cluster: raylog.Cluster) -> int:
    with cluster.admin() as admin:
        leader = admin.describe_topics([TOPIC])[TOPIC].partitions[0].leader_node
    return next(int(actor["pid"]) for actor in cluster.status()["actors"] if actor["node_id"] == leader)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rlm") as folder,
        raylog.init(Path(folder) / "data", brokers=3) as cluster,
    ):
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3, {"min.insync.replicas": "2"})])
        with cluster.producer(acks="all") as producer:
            for number in range(RECORDS // 2):
                producer.send(TOPIC, b"%d" % number, partition=0)
            producer.flush()
            os.kill(leader_pid(cluster), signal.SIGKILL)
            for number in range(RECORDS // 2, RECORDS):
                producer.send(TOPIC, b"%d" % number, partition=0)
            producer.flush()
        found: list[int] = []
        with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe([TOPIC])
            while len(found) < RECORDS:
                records = consumer.consume(RECORDS, timeout=30)
                assert records, f"{len(found)} of {RECORDS} records came back, then none for 30 s"
                found += [int(record.value) for record in records]
        assert found == list(range(RECORDS)), "records are missing, doubled or out of order"
    print(f"{RECORDS} records, a leader killed, none lost", file=sys.stderr)


if __name__ == "__main__":
    main()
