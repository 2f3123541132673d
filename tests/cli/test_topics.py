"""``raylog topics`` against a stand-in cluster: columns, JSON, refusals, and what reaches the admin client."""

from __future__ import annotations

import json
import uuid
from typing import Any, Self

import pytest
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner, Result

from raylog.cli import topics
from raylog.cli.main import app, main
from raylog.client.admin.admin import ConfigEntry, ConfigSource, PartitionInfo, TopicDescription
from raylog.errors import kafka_error

runner = CliRunner()
TOPIC_ID = uuid.UUID(int=5)


def partition(number: int, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionInfo:
    return PartitionInfo(number, leader, 4, replicas, isr, (), leader << 16 | 2)


class StandInAdmin:
    """Answers like an admin client and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.topics = {
            "t": TopicDescription(
                "t", TOPIC_ID, False, (partition(0, 2, (1, 2, 0), (2, 0)), partition(1, -1, (2,), ()))
            ),
            "u": TopicDescription("u", uuid.UUID(int=6), False, (partition(0, 1, (1,), (1,)),)),
        }
        self.configs = {"t": {"retention.ms": "60000"}, "u": {}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(("close", None))

    def admin(self) -> StandInAdmin:
        return self

    def create_topics(self, wanted: Any, *, if_not_exists: bool) -> None:
        self.calls.append(("create", (wanted, if_not_exists)))

    def delete_topics(self, names: Any, *, if_exists: bool) -> None:
        if not if_exists and "gone" in names:
            raise kafka_error(ErrorCode.unknown_topic_or_partition)("topic gone: there is none of that name")
        self.calls.append(("delete", (names, if_exists)))

    def list_topics(self, *, internal: bool) -> list[str]:
        return [*sorted(self.topics), *(["__consumer_offsets"] if internal else [])]

    def describe_topics(self, names: list[str] | None) -> dict[str, TopicDescription]:
        return {name: self.topics[name] for name in names or sorted(self.topics)}

    def describe_configs(self, topic: str) -> dict[str, ConfigEntry]:
        own = self.configs[topic]
        entries = {
            name: ConfigEntry(name, value, ConfigSource.TOPIC, False, False, None) for name, value in own.items()
        }
        return entries | {"segment.bytes": ConfigEntry("segment.bytes", "1", ConfigSource.DEFAULT, False, False, None)}

    def alter_configs(self, topic: str, *, set: dict[str, str], delete: list[str]) -> None:
        self.calls.append(("configs", (topic, set, delete)))

    def create_partitions(self, topic: str, total: int) -> None:
        self.calls.append(("partitions", (topic, total)))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> StandInAdmin:
    stand_in = StandInAdmin()
    monkeypatch.setattr(topics, "find_cluster", lambda folder, address, timeout_s: stand_in)
    return stand_in


def run(*arguments: str) -> Result:
    return runner.invoke(app, ["topics", *arguments])


def test_tv_27_describe_prints_the_columns_of_kafka_topics(admin: StandInAdmin) -> None:
    admin.topics = {"T": TopicDescription("T", TOPIC_ID, False, (partition(0, 2, (1, 2, 0), (2, 0)),))}
    admin.configs = {"T": {}}
    result = run("describe", "T")
    assert result.exit_code == 0
    header, line = result.stdout.splitlines()
    assert header == "Topic:T\tPartitionCount:1\tReplicationFactor:3\tConfigs:"
    assert line.strip() == "Topic: T\tPartition: 0\tLeader: 2\tReplicas: 1,2,0\tIsr: 2,0"


def test_describe_shows_own_configs_and_a_missing_leader(admin: StandInAdmin) -> None:
    lines = run("describe", "t").stdout.splitlines()
    assert lines[0] == "Topic:t\tPartitionCount:2\tReplicationFactor:3\tConfigs:retention.ms=60000"
    assert lines[2] == "\tTopic: t\tPartition: 1\tLeader: none\tReplicas: 2\tIsr: "


def test_describe_can_show_only_what_needs_attention(admin: StandInAdmin) -> None:
    assert [line.split("\t")[2] for line in run("describe", "--under-replicated-partitions").stdout.splitlines()] == [
        "Partition: 0",
        "Partition: 1",
    ]
    (line,) = run("describe", "--unavailable-partitions").stdout.splitlines()
    assert "Partition: 1\tLeader: none" in line
    (header,) = run("describe", "--topics-with-overrides").stdout.splitlines()
    assert header.startswith("Topic:t\t")
    (first, second) = json.loads(run("describe", "--unavailable-partitions", "--json").stdout)
    assert [each["partition"] for each in first["partitions"]] == [1] and second["partitions"] == []


def test_describe_as_json_says_the_same(admin: StandInAdmin) -> None:
    (topic,) = json.loads(run("describe", "t", "--json").stdout)
    assert topic["name"] == "t" and topic["topic_id"] == str(TOPIC_ID)
    assert topic["configs"] == {"retention.ms": "60000"}
    assert topic["partitions"][0] == {
        "partition": 0,
        "leader": 2,
        "leader_epoch": 4,
        "replicas": [1, 2, 0],
        "isr": [2, 0],
    }


def test_create_passes_numbers_configs_and_assignment_on(admin: StandInAdmin) -> None:
    result = run("create", "t", "--partitions", "6", "--replication-factor", "3", "--config", "retention.ms=1=2")
    assert result.stdout == "Created topic t with 2 partitions\n"
    (wanted,), if_not_exists = admin.calls[0][1]
    assert (wanted.name, wanted.partitions, wanted.replication_factor, wanted.configs) == (
        "t",
        6,
        3,
        {"retention.ms": "1=2"},
    )
    assert not if_not_exists and admin.calls[-1] == ("close", None)
    run("create", "t", "--replica-assignment", "0:1:2,3:4:5", "--if-not-exists")
    (wanted,), if_not_exists = admin.calls[2][1]
    assert wanted.replica_assignment == {0: [0, 1, 2], 1: [3, 4, 5]} and if_not_exists
    assert (wanted.partitions, wanted.replication_factor) == (-1, -1)


def test_list_delete_and_alter(admin: StandInAdmin) -> None:
    assert run("list").stdout == "t\nu\n"
    assert json.loads(run("list", "--internal", "--json").stdout) == ["t", "u", "__consumer_offsets"]
    assert run("delete", "t", "u").stdout == "Deleted topic t\nDeleted topic u\n"
    assert run("alter", "t", "--partitions", "9", "--config", "a=b", "--delete-config", "c").exit_code == 0
    assert ("configs", ("t", {"a": "b"}, ["c"])) in admin.calls and ("partitions", ("t", 9)) in admin.calls


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", "t", "--partitions", "0"),
        ("create", "t", "--replica-assignment", "0", "--partitions", "1"),
        ("alter", "t"),
        ("delete",),
        ("list", "--bogus"),
    ],
)
def test_wrong_use_exits_with_2(admin: StandInAdmin, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
    assert not [call for call in admin.calls if call[0] != "close"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topics", "delete", "gone"), "raylog: topic gone: there is none of that name"),
        (("topics", "create", "t", "--config", "novalue"), "raylog: --config 'novalue' is not NAME=VALUE"),
        (("topics", "create", "t", "--config", "a=1", "--config", "a=2"), "raylog: --config a is given twice"),
        (("topics", "create", "t", "--replica-assignment", "0:x"), "not of the form 0:1:2,1:2:0"),
    ],
)
def test_failures_exit_with_1_and_one_line(
    admin: StandInAdmin, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()
    assert end.value.code == 1
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1
