"""``raylog verifiable-producer`` and ``raylog verifiable-consumer``: the events of Kafka's tools, line by line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import raylog.testing
from raylog.cli.main import app
from raylog.testing.kafka import Kafka

runner = CliRunner()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"orders": 2}) as running:
        yield running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYLOG_FOLDER", raising=False)


def run(kafka: Kafka, *arguments: str) -> Result:
    return runner.invoke(app, [*arguments, "--bootstrap-server", kafka.bootstrap])


def events(result: Result, code: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == code, (result.output, result.exception)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(each["timestamp"] > 1_600_000_000_000 for each in found)
    return found


def test_a_producer_tells_of_every_record_and_sums_up(kafka: Kafka) -> None:
    kafka.create_topic("sent", 1)
    asked = ("verifiable-producer", "--topic", "sent", "--max-messages", "5", "--value-prefix", "7")
    told = events(run(kafka, *asked, "--repeating-keys", "2", "--message-create-time", "1000", "--throughput", "1000"))
    assert [each["name"] for each in told] == [
        *("startup_complete", *["producer_send_success"] * 5, "shutdown_complete", "tool_data")
    ]
    third = {name: value for name, value in told[3].items() if name != "timestamp"}
    assert third == {
        "name": "producer_send_success",
        "key": "0",
        "value": "7.2",
        "topic": "sent",
        "partition": 0,
        "offset": 2,
    }
    summary = told[-1]
    assert (summary["sent"], summary["acked"], summary["target_throughput"]) == (5, 5, 1000)
    assert 0 < summary["avg_throughput"] <= 1250
    records = kafka.records("sent")
    assert [(record.key, record.value, record.timestamp) for record in records[:2]] == [
        (b"0", b"7.0", 1000),
        (b"1", b"7.1", 1001),
    ]


def test_a_record_that_is_refused_is_an_error_and_fails_the_run(kafka: Kafka) -> None:
    kafka.create_topic("small", 1, configs={"max.message.bytes": 10})
    told = events(run(kafka, "verifiable-producer", "--topic", "small", "--max-messages", "1"), code=1)
    assert [each["name"] for each in told] == [
        *("startup_complete", "producer_send_error", "shutdown_complete", "tool_data")
    ]
    assert told[1]["exception"] == "MessageTooLargeError" and told[1]["message"] and told[1]["value"] == "0"
    assert (told[-1]["sent"], told[-1]["acked"]) == (1, 0)
    missing = events(run(kafka, "verifiable-producer", "--topic", "nowhere", "--max-messages", "1"), code=1)
    assert missing[1]["name"] == "producer_send_error" and missing[1]["exception"] == "UnknownTopicOrPartitionError"


def test_a_consumer_tells_what_it_is_given_reads_and_commits(kafka: Kafka) -> None:
    kafka.write("orders", b"a", b"b", key=b"k")
    kafka.write("orders", b"c", partition=1)
    asked = ("verifiable-consumer", "--topic", "orders", "--group-id", "readers", "--max-messages", "3", "--verbose")
    told = events(run(kafka, *asked))
    names = [each["name"] for each in told]
    assert names[:2] == ["startup_complete", "partitions_assigned"]
    assert names[-2:] == ["partitions_revoked", "shutdown_complete"]
    both = [{"topic": "orders", "partition": number} for number in (0, 1)]
    assert told[1]["partitions"] == both == told[-2]["partitions"]
    data = [each for each in told if each["name"] == "record_data"]
    assert sorted((each["partition"], each["offset"], each["key"], each["value"]) for each in data) == [
        (0, 0, "k", "a"),
        (0, 1, "k", "b"),
        (1, 0, None, "c"),
    ]
    consumed = [each for each in told if each["name"] == "records_consumed"]
    assert sum(each["count"] for each in consumed) == 3
    parts = {part["partition"]: part for each in consumed for part in each["partitions"]}
    assert parts[0] == {"topic": "orders", "partition": 0, "count": 2, "minOffset": 0, "maxOffset": 1}
    commits = [each for each in told if each["name"] == "offsets_committed"]
    assert len(commits) == len(consumed) and all(each["success"] and "error" not in each for each in commits)
    offsets = {part["partition"]: part["offset"] for each in commits for part in each["offsets"]}
    assert offsets == {0: 2, 1: 1}
    again = runner.invoke(app, ["groups", "describe", "--group", "readers", "--bootstrap-server", kafka.bootstrap])
    assert again.exit_code == 0 and "orders" in again.stdout


def test_a_commit_that_fails_is_told(kafka: Kafka) -> None:
    kafka.create_topic("refused", 1)
    kafka.write("refused", b"a")
    kafka.fail("OffsetCommit", code="GROUP_AUTHORIZATION_FAILED", times=1)
    asked = ("verifiable-consumer", "--topic", "refused", "--group-id", "denied", "--max-messages", "1")
    (commit,) = [each for each in events(run(kafka, *asked)) if each["name"] == "offsets_committed"]
    assert not commit["success"] and commit["error"]


@pytest.mark.core
def test_a_signal_ends_a_consumer_cleanly(kafka: Kafka) -> None:
    asked = ["verifiable-consumer", "--topic", "orders", "--group-id", "waiting", "--bootstrap-server", kafka.bootstrap]
    command = [sys.executable, "-m", "raylog.cli.main", *asked, "--reset-policy", "latest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        names = []
        for line in process.stdout:
            names.append(json.loads(line)["name"])
            if names[-1] == "partitions_assigned":
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert names == ["startup_complete", "partitions_assigned", "partitions_revoked", "shutdown_complete"]


@pytest.mark.core
def test_a_signal_ends_a_producer_and_it_still_sums_up(kafka: Kafka) -> None:
    asked = ["verifiable-producer", "--topic", "orders", "--throughput", "50", "--bootstrap-server", kafka.bootstrap]
    command = [sys.executable, "-m", "raylog.cli.main", *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(json.loads(line))
            if len(told) == 4:
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert [each["name"] for each in told[-2:]] == ["shutdown_complete", "tool_data"]
    acked = sum(each["name"] == "producer_send_success" for each in told)
    assert told[-1]["sent"] == told[-1]["acked"] == acked >= 3
