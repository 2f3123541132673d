"""The commands that Kafka has as tools of their own: get-offsets, delete-records, log-dirs, features and e2e-latency."""

from __future__ import annotations

import datetime
import json
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner, Result

import raylog.testing
from raylog.cli.delete_records import offsets_of
from raylog.cli.e2e_latency import _one_way_ms, percentiles
from raylog.cli.get_offsets import any_of, both
from raylog.cli.main import app
from raylog.client.admin.admin import TopicDescription
from raylog.client.admin.inspection import AsyncInspectionCalls, Feature, Features, features_of, log_dirs_of
from raylog.client.sync import AdminClient
from raylog.errors import ClusterError, ConfigError, RaylogError
from raylog.kafka import table
from raylog.server.apis.entities import module_of, response_class
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition
from raylog.wire.api_versions import reply

runner = CliRunner()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"orders": 3, "clicks": 1, "empty": 1}, brokers=2) as running:
        running.write("orders", b"a", b"b", b"c", partition=1)
        running.write("clicks", b"a", b"b")
        yield running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYLOG_FOLDER", raising=False)


def run(kafka: Kafka, *arguments: str) -> Result:
    return runner.invoke(app, [*arguments, "--bootstrap-server", kafka.bootstrap])


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout.splitlines()


# ------------------------------------------------------------------ get-offsets


def test_get_offsets_prints_the_lines_of_kafka_get_offsets(kafka: Kafka) -> None:
    assert lines(run(kafka, "get-offsets", "--exclude-internal-topics")) == [
        *("clicks:0:2", "empty:0:0", "orders:0:0", "orders:1:3", "orders:2:0")
    ]
    assert lines(run(kafka, "get-offsets", "--topic", "orders", "--partitions", "1,2", "--time", "earliest")) == [
        *("orders:1:0", "orders:2:0")
    ]
    assert lines(run(kafka, "get-offsets", "--topic-partitions", "orders:1-,clicks", "--time", "-1")) == [
        *("clicks:0:2", "orders:1:3", "orders:2:0")
    ]


def test_a_partition_without_such_an_offset_has_no_line(kafka: Kafka) -> None:
    asked = ("get-offsets", "--topic", "orders|empty", "--time")
    (line,) = lines(run(kafka, *asked, "max-timestamp"))
    assert line.startswith("orders:1:")
    assert lines(run(kafka, *asked, "0")) == ["orders:1:0"]
    assert lines(run(kafka, *asked, "32503680000000")) == []
    assert json.loads(lines(run(kafka, *asked, "0", "--json"))[0]) == [{"topic": "orders", "partition": 1, "offset": 0}]


def test_a_partition_without_a_leader_is_named_and_the_others_are_printed(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = AdminClient.describe_topics

    def without_one_leader(admin: AdminClient, names: Any = None) -> dict[str, TopicDescription]:
        topic = describe(admin, names)["orders"]
        parts = [replace(part, leader=-1) if part.partition == 0 else part for part in topic.partitions]
        return {"orders": replace(topic, partitions=tuple(parts))}

    monkeypatch.setattr(AdminClient, "describe_topics", without_one_leader)
    result = run(kafka, "get-offsets")
    assert (result.exit_code, result.stdout) == (1, "orders:1:3\norders:2:0\n")
    assert "orders-0 has no leader" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--time", "latest-tiered"), "tiered storage, which raylog does not have"),
        (("--time", "yesterday"), "give earliest, latest, max-timestamp or milliseconds"),
        (("--topic", "nowhere"), "no partition matches"),
        (("--topic", "("), "is no regular expression"),
        (("--topic-partitions", "orders:a"), "'a' is no range"),
        (("--partitions", "a"), "give numbers with commas"),
    ],
)
def test_get_offsets_refuses_what_it_cannot_answer(kafka: Kafka, arguments: tuple[str, ...], says: str) -> None:
    result = run(kafka, "get-offsets", *arguments)
    assert isinstance(result.exception, RaylogError) and says in str(result.exception)


def test_get_offsets_has_one_way_to_choose_partitions(kafka: Kafka) -> None:
    assert run(kafka, "get-offsets", "--topic", "a", "--topic-partitions", "b").exit_code == 2


def test_partitions_are_chosen_as_kafka_chooses_them() -> None:
    def chosen(patterns: str) -> list[int]:
        wanted = any_of(patterns)
        return [number for number in range(8) if wanted(TopicPartition("t", number))]

    assert chosen("t:3") == [3] and chosen("t:5-") == [5, 6, 7] and chosen(":-2") == [0, 1]
    assert chosen("t:2-5,t:7") == [2, 3, 4, 7] and chosen("u:1") == [] and chosen("t|u:1") == [1]
    assert chosen("t") == list(range(8))
    wanted = both("a.*, b", None)
    assert [name for name in ("a", "abc", "b", "bc", "c") if wanted(TopicPartition(name, 0))] == ["a", "abc", "b"]


# ------------------------------------------------------------------ delete-records


def test_delete_records_takes_kafkas_file_and_prints_its_lines(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create_topic("old", 2)
    kafka.write("old", b"a", b"b", b"c", partition=1)
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "old", "partition": 1, "offset": 2}], "version": 1}')
    assert lines(run(kafka, "delete-records", "--offset-json-file", str(file))) == [
        "Executing records delete operation",
        "Records delete operation completed:",
        "partition: old-1\tlow_watermark: 2",
    ]
    assert [record.value for record in kafka.records("old")] == [b"c"]
    named = run(kafka, "delete-records", "--topic", "old", "--partition", "1", "--offset", "-1", "--json")
    assert json.loads(named.stdout) == {
        "deleted": [{"topic": "old", "partition": 1, "low_watermark": 3}],
        "failed": [],
    }


def test_one_partition_that_fails_leaves_the_others_done(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create_topic("mixed", 2)
    kafka.write("mixed", b"a", partition=1)
    file = tmp_path / "offsets.json"
    partitions = [{"topic": "mixed", "partition": number, "offset": 1} for number in (0, 1)]
    file.write_text(json.dumps({"partitions": partitions}))
    result = run(kafka, "delete-records", "--offset-json-file", str(file))
    assert result.exit_code == 1
    done, failed = result.stdout.splitlines()[2:]
    assert done == "partition: mixed-1\tlow_watermark: 1"
    assert failed.startswith("partition: mixed-0\terror: mixed-0: the offset lies outside the log")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not {"),
        ('{"partitions": [{"topic": "t"}]}', "KeyError 'partition'"),
        ('{"partitions": [], "version": 2}', "only version 1"),
        ('{"partitions": [' + ", ".join(['{"topic": "t", "partition": 0, "offset": 1}'] * 2) + "]}", "name t-0 twice"),
    ],
)
def test_a_file_of_offsets_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        offsets_of(text)
    assert says in str(refused.value)


@pytest.mark.parametrize("arguments", [(), ("--topic", "t"), ("--topic", "t", "--partition", "0", "--offset", "-2")])
def test_delete_records_needs_offsets(kafka: Kafka, arguments: tuple[str, ...]) -> None:
    assert run(kafka, "delete-records", *arguments).exit_code == 2


# ------------------------------------------------------------------ log-dirs and features


def test_log_dirs_prints_the_json_of_kafka_log_dirs(kafka: Kafka) -> None:
    querying, received, document = lines(run(kafka, "log-dirs", "--describe", "--topic-list", "orders"))
    assert querying == "Querying brokers for log directories information"
    assert received == "Received log directory information from brokers 0,1"
    told = json.loads(document)
    assert told["version"] == 1 and [each["broker"] for each in told["brokers"]] == [0, 1]
    (log_dir,) = told["brokers"][0]["logDirs"]
    assert log_dir["error"] is None and log_dir["logDir"]
    assert [each["partition"] for each in log_dir["partitions"]] == ["orders-0", "orders-1", "orders-2"]
    written = log_dir["partitions"][1]
    assert written["size"] > 0 and (written["offsetLag"], written["isFuture"]) == (0, False)
    (alone,) = lines(run(kafka, "log-dirs", "--broker-list", "1", "--json"))
    assert [each["broker"] for each in json.loads(alone)["brokers"]] == [1]


def test_log_dirs_of_a_broker_that_is_not_there_are_refused(kafka: Kafka) -> None:
    for given, says in (("0,7", "7 is no broker that is there; those that are: 0,1"), ("a", "give ids of brokers")):
        result = run(kafka, "log-dirs", "--broker-list", given)
        assert isinstance(result.exception, ConfigError) and says in str(result.exception)


def test_log_dirs_of_a_broker_that_does_not_answer_are_missed(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = AdminClient.describe_log_dirs
    monkeypatch.setattr(
        AdminClient,
        "describe_log_dirs",
        lambda admin: {broker: dirs for broker, dirs in describe(admin).items() if broker != 1},
    )
    result = run(kafka, "log-dirs", "--json")
    assert result.exit_code == 1 and "brokers 1 hold replicas and do not answer" in result.stderr
    assert [each["broker"] for each in json.loads(result.stdout)["brokers"]] == [0]


def test_the_error_of_a_disk_and_a_copy_that_is_not_in_use_are_told() -> None:
    module = module_of(response_class(table.DESCRIBE_LOG_DIRS, 4))
    part = module.DescribeLogDirsPartition(partition_index=3, partition_size=7, offset_lag=2, is_future_key=True)
    topic = module.DescribeLogDirsTopic(name="t", partitions=(part,))
    result = module.DescribeLogDirsResult(
        error_code=ErrorCode.kafka_storage_error, log_dir="/d", topics=(topic,), total_bytes=9, usable_bytes=5
    )
    answer = module.DescribeLogDirsResponse(
        throttle_time=datetime.timedelta(0), error_code=ErrorCode.none, results=(result,)
    )
    log_dir = log_dirs_of([(4, answer)])[4]["/d"]
    key = TopicPartition("t", 3)
    assert (log_dir.offset_lags, log_dir.future, log_dir.replicas) == ({key: 2}, {key}, {key: 7})
    assert log_dir.error is not None and log_dir.error.code is ErrorCode.kafka_storage_error


def test_the_features_of_an_answer_are_told(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {"name": "metadata.version", "min_version": 7, "max_version": 7, "finalized_version": 7}
    transactions = {"name": "transaction.version", "min_version": 0, "max_version": 2, "finalized_version": 2}
    assert json.loads(lines(run(kafka, "features", "describe", "--json"))[0]) == {
        "epoch": 0,
        "features": [metadata, transactions],
    }
    assert lines(run(kafka, "features", "describe")) == [
        "Feature: metadata.version\tSupportedMinVersion: 3.3-IV3\tSupportedMaxVersion: 3.3-IV3\t"
        "FinalizedVersionLevel: 3.3-IV3\tEpoch: 0",
        "Feature: transaction.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 2\t"
        "FinalizedVersionLevel: 2\tEpoch: 0",
    ]

    async def describe_features(self: AsyncInspectionCalls) -> Features:
        told = (Feature("a", 1, 3, 2), Feature("b", 0, 1, None), Feature("metadata.version", 7, 29, None))
        return Features(7, {each.name: each for each in told})

    monkeypatch.setattr(AsyncInspectionCalls, "describe_features", describe_features)
    assert lines(run(kafka, "features", "describe")) == [
        "Feature: a\tSupportedMinVersion: 1\tSupportedMaxVersion: 3\tFinalizedVersionLevel: 2\tEpoch: 7",
        "Feature: b\tSupportedMinVersion: 0\tSupportedMaxVersion: 1\tFinalizedVersionLevel: 0\tEpoch: 7",
        "Feature: metadata.version\tSupportedMinVersion: 3.3-IV3\tSupportedMaxVersion: UNKNOWN [29]\t"
        "FinalizedVersionLevel: 0\tEpoch: 7",
    ]

    async def none(self: AsyncInspectionCalls) -> Features:
        return Features(-1, {})

    monkeypatch.setattr(AsyncInspectionCalls, "describe_features", none)
    result = run(kafka, "features", "describe")
    assert result.stdout == "" and "tells of no features" in result.stderr


def test_features_are_read_out_of_kafkas_answer() -> None:
    module = module_of(response_class(table.API_VERSIONS, 3))
    answer = module.ApiVersionsResponse(
        error_code=reply({}, 3).error_code,
        api_keys=(),
        throttle_time=reply({}, 3).throttle_time,
        supported_features=(
            module.SupportedFeatureKey(name="metadata.version", min_version=7, max_version=29),
            module.SupportedFeatureKey(name="group.version", min_version=0, max_version=1),
        ),
        finalized_features_epoch=12,
        finalized_features=(
            module.FinalizedFeatureKey(name="metadata.version", max_version_level=25, min_version_level=25),
        ),
    )
    told = features_of(answer)
    assert told.epoch == 12 and list(told.features) == ["group.version", "metadata.version"]
    assert told.features["metadata.version"] == Feature("metadata.version", 7, 29, 25)
    assert told.features["group.version"].finalized_version is None


# ------------------------------------------------------------------ e2e-latency


def test_e2e_latency_prints_what_kafka_e2e_latency_prints(kafka: Kafka) -> None:
    result = run(kafka, "e2e-latency", "--topic", "trips", "--num-records", "20", "--record-size", "50")
    first, average, found = lines(result)
    assert first.startswith("0\t") and float(first.split()[1]) > 0
    assert average.startswith("Avg latency: ") and average.endswith(" ms")
    assert [each.split(" = ")[0] for each in found.removeprefix("Percentiles: ").split(", ")] == [
        *("50th", "99th", "99.9th")
    ]
    assert "trips does not exist" in result.stderr
    assert [len(record.value or b"") for record in kafka.records("trips")] == [50] * 20
    told = json.loads(
        lines(run(kafka, "e2e-latency", "--topic", "trips", "--num-records", "3", "--producer-acks", "1", "--json"))[0]
    )
    sizes = ["--record-key-size", "9", "--num-headers", "2", "--record-header-key-size", "3", "--record-header-size"]
    for header_size in ("4", "-1"):
        lines(run(kafka, "e2e-latency", "--topic", "trips", "--num-records", "1", *sizes, header_size))
    whole, null = kafka.records("trips")[-2:]
    assert (
        len(whole.key or b"") == 9 and [(len(name), len(value or b"")) for name, value in whole.headers] == [(3, 4)] * 2
    )
    assert [value for _, value in null.headers] == [None, None]
    assert told["records"] == 3 and 0 < told["avg_latency_ms"] <= told["percentiles_ms"]["99.9th"]


def test_percentiles_are_kafkas() -> None:
    assert percentiles([float(number) for number in range(2_000, 0, -1)]) == {
        "50th": 1_001.0,
        "99th": 1_981.0,
        "99.9th": 1_999.0,
    }


class Arriving:
    """A producer whose records are acknowledged, and a consumer of what it is given instead."""

    def __init__(self, *values: bytes) -> None:
        self.values = values

    def send(self, topic: str, value: bytes, **more: Any) -> Any:
        return types.SimpleNamespace(result=lambda timeout: None)

    def consume(self, *, timeout: float) -> Any:
        return [types.SimpleNamespace(value=value, key=None) for value in self.values]


@pytest.mark.parametrize(
    ("arriving", "says"),
    [
        (Arriving(), "did not arrive within 60 s"),
        (Arriving(b"another"), "another record than the one that was sent"),
        (Arriving(b"sent", b"another"), "another record than the one that was sent"),
    ],
)
def test_a_record_that_does_not_arrive_or_is_another_one_ends_the_measurement(arriving: Any, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        _one_way_ms(arriving, arriving, "t", b"sent")
    mine: Any = Arriving(b"sent")
    assert _one_way_ms(mine, mine, "t", b"sent") >= 0
