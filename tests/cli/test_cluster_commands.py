"""Commands against a running cluster (in this process, without Ray): what a shell sees of topics, records and state."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from raylog.cli.main import app
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as started:
        yield started


@pytest.fixture
def run(running: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setenv("RAYLOG_FOLDER", str(running.folder))
    return Runner()


class Runner:
    """Runs command lines; ``ok`` demands exit code 0."""

    def __call__(self, *arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, [*map(str, arguments)], input=stdin)

    def ok(self, *arguments: object, stdin: bytes | None = None) -> str:
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_topic_lives_from_creation_to_deletion(run: Runner) -> None:
    out = run.ok("topics", "create", "life", "--partitions", 2, "--replication-factor", 3, "--config", "retention.ms=9")
    assert out == "Created topic life with 2 partitions\n"
    header, *partitions = run.ok("topics", "describe", "life").splitlines()
    assert header == "Topic:life\tPartitionCount:2\tReplicationFactor:3\tConfigs:retention.ms=9"
    for number, line in enumerate(partitions):
        assert line.startswith(f"\tTopic: life\tPartition: {number}\tLeader: ")
    again = run("topics", "create", "life")
    assert again.exit_code == 1 and "life" in str(again.exception)
    run.ok("topics", "create", "life", "--if-not-exists")
    run.ok(
        "topics",
        "alter",
        "life",
        "--partitions",
        3,
        "--config",
        "segment.bytes=1000000",
        "--delete-config",
        "retention.ms",
    )
    (topic,) = json.loads(run.ok("topics", "describe", "life", "--json"))
    assert len(topic["partitions"]) == 3 and topic["configs"] == {"segment.bytes": "1000000"}
    assert "life" in json.loads(run.ok("topics", "list", "--json"))
    run.ok("topics", "delete", "life")
    assert "life" not in run.ok("topics", "list").splitlines()
    assert run("topics", "delete", "life").exit_code == 1
    run.ok("topics", "delete", "life", "--if-exists")


def test_an_unknown_or_refused_config_is_an_error_that_names_it(run: Runner) -> None:
    unknown = run("topics", "create", "bad", "--config", "retention.mss=1")
    assert unknown.exit_code == 1 and "retention.ms" in str(unknown.exception)
    refused = run("topics", "create", "bad", "--config", "remote.storage.enable=true")
    assert refused.exit_code == 1 and "remote storage" in str(refused.exception)
    option = run("produce", "bad", "--producer-config", "lingr.ms=5", stdin=b"x\n")
    assert option.exit_code == 1 and "linger.ms" in str(option.exception)


def test_lines_go_in_and_come_out_in_order(run: Runner, tmp_path: Path) -> None:
    run.ok("topics", "create", "lines", "--partitions", 1, "--replication-factor", 3)
    sent = [b"line %d" % number for number in range(25_000)]
    result = run("produce", "lines", stdin=b"\n".join(sent) + b"\n")
    assert result.exit_code == 0 and result.stderr == "25000 records acknowledged by lines\n" and result.stdout == ""
    out = run.ok("consume", "lines", "--from-beginning", "--until-end")
    assert out.encode().splitlines() == sent
    file = tmp_path / "more.txt"
    file.write_bytes(b"last\r\nwithout newline")
    assert json.loads(run.ok("produce", "lines", "--file", file, "--json")) == {"topic": "lines", "records": 2}
    tail = run.ok("consume", "lines", "--partition", 0, "--offset", 24_999, "--until-end")
    assert tail.splitlines() == ["line 24999", "last", "without newline"]
    assert run("produce", "lines", "--file", tmp_path / "none").exit_code == 1
    assert run("consume", "lines", "--offset", 3).exit_code == 2


def test_keys_bytes_and_limits(run: Runner) -> None:
    run.ok("topics", "create", "keyed", "--partitions", 3, "--replication-factor", 2)
    run.ok("produce", "keyed", "--key-separator", ":", "--compression", "zstd", stdin=b"a:1\nb:2\na:3\n\xff:\xfe\n")
    documents = lines(run.ok("consume", "keyed", "--from-beginning", "--until-end", "--json"))
    assert sorted((str(each.get("key")), str(each.get("value"))) for each in documents) == [
        ("None", "None"),
        ("a", "1"),
        ("a", "3"),
        ("b", "2"),
    ]
    (binary,) = [each for each in documents if "keyBase64" in each]
    assert (binary["keyBase64"], binary["valueBase64"]) == ("/w==", "/g==")
    assert [each["value"] for each in documents if each.get("key") == "a"] == ["1", "3"]
    assert len(run.ok("consume", "keyed", "--from-beginning", "--max-messages", 2).splitlines()) == 2
    assert "a\t1" in run.ok("consume", "keyed", "--from-beginning", "--until-end", "--print-key").splitlines()
    assert run.ok("consume", "keyed", "--timeout-ms", 100) == ""
    assert run("produce", "keyed", "--key-separator", ":", stdin=b"no separator\n").exit_code == 1


def test_an_unknown_topic_is_one_clear_error(run: Runner) -> None:
    result = run("consume", "nothing", "--from-beginning", "--until-end")
    assert result.exit_code == 1 and "nothing" in str(result.exception)


def test_perf_reports_rates(run: Runner) -> None:
    run.ok("topics", "create", "speed", "--partitions", 2, "--replication-factor", 1)
    report = json.loads(run.ok("perf", "produce", "speed", "--num-records", 20_000, "--acks", 1, "--json"))
    assert report["records"] == 20_000 and report["bytes"] == 2_000_000 and report["records_per_s"] > 0
    assert 0 < report["batch_latency_ms"]["p50"] <= report["batch_latency_ms"]["max"]
    out = run.ok("perf", "consume", "speed")
    assert out.startswith("20000 records read, ") and "records/sec" in out
    paced = json.loads(
        run.ok("perf", "produce", "speed", "--num-records", 300, "--throughput", 1000, "--batch-records", 10, "--json")
    )
    assert paced["records_per_s"] < 1500
    line = run.ok("perf", "produce", "speed", "--num-records", 100)
    assert "ms avg latency" in line and "99.9th" in line


def test_status_shows_brokers_processes_and_topics(run: Runner, running: InProcessCluster) -> None:
    run.ok("topics", "create", "shown", "--partitions", 1, "--replication-factor", 3)
    run.ok("produce", "shown", stdin=b"there is a leader now\n")
    state = json.loads(run.ok("status", "--json"))
    assert [(broker["id"], broker["live"]) for broker in state["brokers"]] == [(0, True), (1, True), (2, True)]
    assert ",".join(broker["listener"] for broker in state["brokers"]) == running.bootstrap_servers()
    assert "shown" in {topic["name"] for topic in state["topics"]}
    text = run.ok("status")
    assert running.address.cluster_id in text and "shown" in text and str(running.folder) in text


def test_a_partitions_folder_can_be_dumped_while_it_is_served(run: Runner, running: InProcessCluster) -> None:
    run.ok("topics", "create", "dumped", "--partitions", 1, "--replication-factor", 1)
    run.ok("produce", "dumped", stdin=b"hello\n")
    (folder,) = running.folder.glob("broker-*/dumped-0")
    out = run.ok("dump-log", folder, "--print-data-log")
    assert "payload: hello" in out and "isvalid: true" in out


def test_a_folder_without_a_running_cluster_says_how_to_start_one(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("status", "--folder", tmp_path)
    assert result.exit_code == 1 and "raylog up" in str(result.exception)


def test_the_quorum_is_shown_in_kafkas_words(run: Runner) -> None:
    out = run.ok("quorum", "status")
    shown = dict(line.split(":", 1) for line in out.splitlines() if ":" in line and line[0].isalpha())
    quorum = json.loads(run.ok("quorum", "status", "--json"))
    assert shown["LeaderId"].strip() == "0" and shown["CurrentVoters"].strip() == "[0]"
    assert shown["CurrentObservers"].strip() == "[]" and shown["MaxFollowerLag"].strip() == "0"
    assert int(shown["HighWatermark"]) <= quorum["high_watermark"] == quorum["voters"][0]["log_end_offset"]
    assert quorum["told_by"]["is_active"]


def test_the_quorum_is_described_as_kafkas_tool_does(run: Runner) -> None:
    lines = dict(line.split(":", 1) for line in run.ok("quorum", "describe", "--status").splitlines())
    assert list(lines) == [
        "ClusterId", "LeaderId", "LeaderEpoch", "HighWatermark", "MaxFollowerLag", "MaxFollowerLagTimeMs",
        "CurrentVoters", "CurrentObservers",
    ]  # fmt: skip
    assert lines["MaxFollowerLagTimeMs"].strip() == "0" and lines["CurrentVoters"].strip() == "[0]"
    header, row = run.ok("quorum", "describe", "--replication").splitlines()
    assert header == "NodeId\tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus"
    values = row.split("\t")
    assert values[0] == "0" and values[2] == "0" and values[5] == "Leader"
    assert abs(int(values[3]) - time.time() * 1000) < 60_000
    assert run("quorum", "describe").exit_code != 0


def test_what_kafka_has_tools_for_works_by_the_clusters_folder(run: Runner) -> None:
    run.ok("topics", "create", "tooled", "--partitions", 1, "--replication-factor", 3)
    sent = lines(run.ok("verifiable-producer", "--topic", "tooled", "--max-messages", 3))
    assert [each["name"] for each in sent].count("producer_send_success") == 3
    read = lines(run.ok("verifiable-consumer", "--topic", "tooled", "--group-id", "tools", "--max-messages", 3))
    assert read[-1]["name"] == "shutdown_complete"
    assert run.ok("get-offsets", "--topic", "tooled") == "tooled:0:3\n"
    deleted = run.ok("delete-records", "--topic", "tooled", "--partition", 0, "--offset", 2)
    assert deleted.splitlines()[-1] == "partition: tooled-0\tlow_watermark: 2"
    (told,) = lines(run.ok("log-dirs", "--topic-list", "tooled", "--json"))
    assert [len(each["logDirs"][0]["partitions"]) for each in told["brokers"]] == [1, 1, 1]
    (told,) = lines(run.ok("features", "describe", "--json"))
    assert [each["name"] for each in told["features"]] == ["metadata.version", "transaction.version"]
    (measured,) = lines(run.ok("e2e-latency", "--topic", "tooled", "--num-records", 3, "--json"))
    assert measured["records"] == 3
    assert [each["broker"] for each in json.loads(run.ok("brokers", "list", "--json"))] == [0, 1, 2]
