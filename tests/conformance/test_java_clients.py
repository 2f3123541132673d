"""Apache Kafka's own command-line tools, and so the Java client, through the Brokers' listeners."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from kafka_peer import apache_kafka

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]


@pytest.fixture(scope="module")
def kafka() -> ModuleType:
    return apache_kafka()


@pytest.fixture
def tool(kafka: ModuleType, bootstrap: str) -> Callable[..., str]:
    """Runs one of Kafka's classes against the cluster; what it printed."""

    def run(main_class: str, *arguments: str, stdin: str = "") -> str:
        command = kafka.java_command(main_class, "--bootstrap-server", bootstrap, *arguments)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_lines_go_in_and_come_out(tool: Callable[..., str], new_topic: NewTopicOf) -> None:
    topic = new_topic()
    lines = "".join(f"line {number}\n" for number in range(2_000))
    options = ("--producer-property", "enable.idempotence=true", "--compression-codec", "zstd")
    tool("kafka.tools.ConsoleProducer", "--topic", topic, *options, stdin=lines)
    where = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "2000")
    assert tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *where) == lines
    where = ("--topic", topic, "--partition", "0", "--offset", "1998", "--max-messages", "2")
    assert tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *where) == "line 1998\nline 1999\n"


def test_topics_are_created_described_grown_and_deleted(tool: Callable[..., str]) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    made = (
        "--topic",
        "made-by-java",
        "--partitions",
        "2",
        "--replication-factor",
        "3",
        "--config",
        "retention.ms=1000",
    )
    tool(topics, "--create", *made)
    assert "made-by-java" in tool(topics, "--list").splitlines()
    tool(topics, "--alter", "--topic", "made-by-java", "--partitions", "3")
    described = tool(topics, "--describe", "--topic", "made-by-java")
    assert "PartitionCount: 3" in described and "retention.ms=1000" in described and "Isr: " in described
    tool(topics, "--delete", "--topic", "made-by-java")
    assert "made-by-java" not in tool(topics, "--list").splitlines()


def test_configs_are_altered_and_described(tool: Callable[..., str], new_topic: NewTopicOf) -> None:
    topic = new_topic()
    configs = "kafka.admin.ConfigCommand"
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(configs, "--alter", *entity, "--add-config", "max.message.bytes=5000")
    assert "max.message.bytes=5000" in tool(configs, "--describe", *entity)


def test_offsets_versions_and_folders_are_told(
    tool: Callable[..., str], bootstrap: str, new_topic: NewTopicOf, tmp_path: Path
) -> None:
    topic = new_topic()
    tool("kafka.tools.ConsoleProducer", "--topic", topic, stdin="one\ntwo\nthree\n")
    assert tool("org.apache.kafka.tools.GetOffsetShell", "--topic", topic).strip() == f"{topic}:0:3"
    spoken = tool("kafka.admin.BrokerApiVersionsCommand")
    assert sum(line.startswith("127.0.0.1:") for line in spoken.splitlines()) == 3
    orders = tmp_path / "orders.json"
    orders.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}))
    assert "low_watermark: 2" in tool("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(orders))
    folders = tool("org.apache.kafka.tools.LogDirsCommand", "--describe", "--topic-list", topic)
    found = json.loads(next(line for line in folders.splitlines() if line.startswith("{")))
    assert sorted(each["broker"] for each in found["brokers"]) == [0, 1, 2]
    assert all(f"{topic}-0" in json.dumps(each) for each in found["brokers"])


def test_acls_are_disabled(kafka: ModuleType, bootstrap: str) -> None:
    def error_of(main_class: str, *arguments: str) -> str:
        done = subprocess.run(kafka.java_command(main_class, *arguments), capture_output=True, text=True, timeout=180)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout + done.stderr

    acls = error_of("kafka.admin.AclCommand", "--bootstrap-server", bootstrap, "--list")
    assert "SecurityDisabledException: No Authorizer is configured" in acls
