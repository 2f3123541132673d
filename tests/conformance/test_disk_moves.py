"""Apache Kafka's own tool moves replicas between the disks of brokers, under its throttle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_peer import apache_kafka
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.conformance

REASSIGNING = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=2, disks=2) as found:
        yield found


def test_kafka_reassign_partitions_moves_replicas_between_disks(running: InProcessCluster, tmp_path: Path) -> None:
    kafka, bootstrap = apache_kafka(), running.bootstrap_servers()
    plan = tmp_path / "plan.json"

    def tool(*arguments: str) -> str:
        printed: str = kafka.tool(
            REASSIGNING, "--bootstrap-server", bootstrap, "--reassignment-json-file", str(plan), *arguments
        )
        return printed

    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("moved", replica_assignment={0: (0, 1)})])
        with Producer(running.address, acks="all") as producer:
            for number in range(500):
                producer.send("moved", bytes(1_000) + str(number).encode(), partition=0)
            assert producer.flush(60) == 0
        disks = [[str(disk.path) for disk in running._disks if disk.broker_id == broker] for broker in (0, 1)]
        held = [next(path for path in paths if "moved-0" in os.listdir(path)) for paths in disks]
        others = [next(path for path in paths if path != old) for paths, old in zip(disks, held, strict=True)]
        each = {"topic": "moved", "partition": 0, "replicas": [0, 1], "log_dirs": others}
        plan.write_text(json.dumps({"version": 1, "partitions": [each]}))
        started = tool("--execute", "--replica-alter-log-dirs-throttle", "400000")
        for broker, path in enumerate(others):
            line = f"Successfully started moving log directory to {path} for replica moved-0 with broker {broker}"
            assert line in started
        assert admin.describe_configs(broker=0)[RATE].value == "400000"
        words = [f"Reassignment of replica moved-0-{broker} completed successfully." for broker in (0, 1)]

        def is_done() -> bool:
            said = tool("--verify")
            return all(line in said for line in words)

        eventually(is_done, "both replicas on their other disks")
        assert admin.describe_configs(broker=0)[RATE].value != "400000", "verify takes the throttle off"
        eventually(lambda: not any("moved-0" in os.listdir(path) for path in held), "the old folders deleted")
        assert all("moved-0" in os.listdir(path) for path in others)
        assert admin.describe_topics("moved")["moved"].partitions[0].isr == (0, 1)
