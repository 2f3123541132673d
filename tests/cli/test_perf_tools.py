"""``producer-perf`` and ``consumer-perf``: what Kafka's tools of these names take and print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import raylog.testing
from raylog.cli.consumer_perf import ReadProgress, _format_of
from raylog.cli.main import app
from raylog.cli.producer_perf import LATENCIES_MAX, LatencyTally
from raylog.errors import ConfigError, RaylogError
from raylog.testing.kafka import Kafka

runner = CliRunner()
NUMBER = r"\d+\.\d+"
RATE = rf"{NUMBER} records/sec \(\d+\.\d\d MB/sec\)"
SUMMARY = rf"{RATE}, \d+\.\d\d ms avg latency, \d+\.\d\d ms max latency, " + ", ".join(
    rf"\d+ ms {name}" for name in ("50th", "95th", "99th", r"99\.9th")
)
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
CONSUMED = r"\d+\.\d{4}, \d+\.\d{4}, (\d+), \d+\.\d{4}, \d+, \d+, \d+\.\d{4}, \d+\.\d{4}"


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"orders": 2, "letters": 1, "file": 1, "numbers": 1}, brokers=2) as running:
        yield running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYLOG_FOLDER", raising=False)


def run(*arguments: str, code: int = 0) -> Result:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def produce(kafka: Kafka, topic: str, *arguments: str, code: int = 0) -> Result:
    return run("producer-perf", "--bootstrap-server", kafka.bootstrap, "--topic", topic, *arguments, code=code)


def consume(kafka: Kafka, *arguments: str, code: int = 0) -> Result:
    return run("consumer-perf", "--bootstrap-server", kafka.bootstrap, *arguments, code=code)


def test_a_producer_is_measured_with_the_lines_of_kafkas_tool(kafka: Kafka) -> None:
    (line,) = produce(
        kafka, "letters", "--num-records", "300", "--record-size", "80", "--throughput", "-1"
    ).stdout.splitlines()
    assert re.fullmatch(rf"300 records sent, {SUMMARY}\.", line), line
    values = [record.value or b"" for record in kafka.records("letters", count=300)]
    assert all(re.fullmatch(rb"[A-Z]{80}", value) for value in values) and len(set(values)) > 50


def test_the_steady_state_and_intervals_have_lines_of_their_own(kafka: Kafka) -> None:
    arguments = ["--num-records", "600", "--record-size", "10", "--throughput", "1000", "--warmup-records", "400"]
    first, *between, whole, steady = produce(
        kafka, "orders", *arguments, "--reporting-interval", "100"
    ).stdout.splitlines()
    assert first == "Warmup first 400 records. Steady state results will print after the complete test summary."
    assert between.count("In steady state.") == 1 and between[-1] != "In steady state."
    windows = [each for each in between if each != "In steady state."]
    assert len(windows) - between.index("In steady state.") < 3, "200 ms in a steady state"
    shape = r"(\d+) records sent, \d+\.\d records/sec \(\d+\.\d\d MB/sec\), \d+\.\d ms avg latency, \d+\.\d ms max latency\."
    found = [re.fullmatch(shape, each) for each in windows]
    assert len(found) >= 4 and all(found), windows
    assert 0 < sum(int(each[1]) for each in found if each) <= 600
    assert re.fullmatch(rf"600 records sent, {SUMMARY}\.", whole), whole
    assert re.fullmatch(rf"200 steady state records sent, {SUMMARY}\.", steady), steady
    told = json.loads(produce(kafka, "orders", *arguments, "--json").stdout)
    assert (told["records"], told["bytes"], told["steady_state"]["records"]) == (600, 6_000, 200)
    assert 500 < told["records_per_s"] <= 1_001 and 0.55 < told["seconds"] < 5
    assert 0 < told["latency_ms"]["50th"] <= told["latency_ms"]["99.9th"] <= told["latency_ms"]["max"]


def test_values_are_those_of_a_file_or_numbers(kafka: Kafka, tmp_path: Path) -> None:
    (tmp_path / "payloads").write_text("one;two;three;")
    produce(kafka, "file", "--num-records", "100", "--payload-file", "payloads", "--payload-delimiter", ";")
    assert {record.value for record in kafka.records("file", count=100)} == {b"one", b"two", b"three"}
    produce(kafka, "numbers", "--num-records", "12", "--payload-monotonic")
    assert [record.value for record in kafka.records("numbers", count=12)] == [b"%d" % each for each in range(12)]


def test_the_cluster_and_options_are_also_among_the_properties(kafka: Kafka, tmp_path: Path) -> None:
    secret = (kafka.address.secret or b"").decode()
    file = tmp_path / "producer.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nlinger.ms=7\nacks=1\nkey.serializer=org.apache.X\n")
    sent = ["producer-perf", "--topic", "orders", "--num-records", "10", "--record-size", "10"]
    run(*sent, "--producer-props", f"bootstrap.servers={kafka.bootstrap}", "acks=all", "--throughput", "-1")
    run(*sent, "--producer.config", "producer.properties", "--command-property", f"bootstrap.servers={kafka.bootstrap}")
    run(*sent, "--command-config", "producer.properties", "--bootstrap-server", kafka.bootstrap)
    file.write_text(f"bootstrap.servers={kafka.bootstrap}\ncluster.secret={secret}x\n")
    with pytest.raises(ConfigError, match="the secret is not that of cluster"):
        _raised(*sent, "--command-config", "producer.properties")
    with pytest.raises(ConfigError, match=r"cluster\.secret goes with bootstrap\.servers"):
        _raised(*sent, "--producer-props", "cluster.secret=x")
    with pytest.raises(RaylogError, match=r"max\.request\.size"):
        _raised(*sent, "--producer-props", f"bootstrap.servers={kafka.bootstrap}", "max.request.size=70")
    with pytest.raises(ConfigError, match=r"did you mean 'linger\.ms'"):
        _raised(*sent, "--producer-props", f"bootstrap.servers={kafka.bootstrap}", "lingr.ms=5")
    read = ["consumer-perf", "--topic", "orders", "--num-records", "5", "--group", "by-file"]
    file.write_text(f"bootstrap.servers={kafka.bootstrap}\nmax.poll.records=1\n")
    run(*read, "--consumer.config", "producer.properties", "--command-property", "client.id=x", "group.id=other")
    assert "other" not in run("groups", "list", "--bootstrap-server", kafka.bootstrap).stdout.split()
    run(*read[:-2], "--command-config", "producer.properties", "--command-property", "group.id=other")
    assert "other" in run("groups", "list", "--bootstrap-server", kafka.bootstrap).stdout.split()


def _raised(*arguments: str) -> None:
    result = runner.invoke(app, list(arguments))
    assert result.exception is not None, result.output
    raise result.exception


def test_a_consumer_is_measured_with_the_lines_of_kafkas_tool(kafka: Kafka) -> None:
    kafka.create_topic("read", partitions=2)
    produce(kafka, "read", "--num-records", "5000", "--record-size", "100")
    header, line = consume(kafka, "--topic", "read", "--num-records", "4000").stdout.splitlines()
    assert header == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    found = re.fullmatch(rf"{TIME}, {TIME}, {CONSUMED}", line)
    assert found and found[1] == "4000", line
    assert line.split(", ")[2] == f"{4_000 * 100 / 2**20:.4f}"
    told = json.loads(consume(kafka, "--include", "re.d", "--messages", "5000", "--json").stdout)
    assert (told["records"], told["bytes"]) == (5_000, 500_000)
    assert told["rebalance_ms"] > 0 and told["rebalance_ms"] + told["fetch_ms"] == pytest.approx(
        1_000 * told["seconds"], abs=1
    )
    again = ["--topic", "read", "--group", "twice", "--hide-header"]
    for count in ("3000", "2000"):
        (line,) = consume(
            kafka, *again, "--num-records", count, "--date-format", "dd.MM.yyyy 'at' HH"
        ).stdout.splitlines()
        assert re.match(r"\d\d\.\d\d\.\d{4} at \d\d, ", line) and f", {count}, " in line, "the group goes on"


def test_detailed_stats_have_a_line_for_each_interval_and_none_for_the_whole(kafka: Kafka) -> None:
    kafka.create_topic("detailed")
    produce(kafka, "detailed", "--num-records", "200", "--record-size", "100")
    result = consume(
        *(kafka, "--topic", "detailed", "--num-records", "400", "--show-detailed-stats"),
        *("--reporting-interval", "200", "--timeout", "900"),
        code=1,
    )
    header, *rows = result.stdout.splitlines()
    assert header.startswith("time, threadId, data.consumed.in.MB, MB.sec, ")
    found = [re.fullmatch(rf"{TIME}, 0, {CONSUMED}", row) for row in rows]
    assert len(found) >= 3 and all(found), rows
    assert found[-1] and found[-1][1] == "200" and rows[-1].split(", ")[5] == "0.0000", "nothing in the last interval"
    assert (
        "WARNING: Exiting before consuming the expected number of records: timeout (900 ms) exceeded." in result.stderr
    )


def test_from_latest_begins_at_the_end(kafka: Kafka) -> None:
    told = consume(
        *(kafka, "--topic", "orders", "--num-records", "1", "--from-latest", "--timeout", "300", "--json"), code=1
    )
    assert json.loads(told.stdout)["records"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--num-records", "1"], "give exactly one of --record-size, --payload-file and --payload-monotonic"),
        (["--num-records", "1", "--record-size", "1", "--payload-monotonic"], "give exactly one of"),
        (["--num-records", "5", "--record-size", "1", "--warmup-records", "5"], "must be fewer than --num-records, 5"),
        (["--num-records", "1", "--record-size", "1", "acks=1"], "'acks=1' belongs to no option"),
        (["--num-records", "1", "--record-size", "1", "--producer-props", "acks=1", "x"], "'x' belongs to no option"),
    ],
)
def test_wrong_use_of_the_producer_is_told(kafka: Kafka, arguments: list[str], said: str) -> None:
    result = produce(kafka, "orders", *arguments, code=2)
    assert said in " ".join(result.output.replace("│", "").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topic", "a"], "give --num-records, and one of --topic and --include"),
        (["--num-records", "1"], "give --num-records, and one of --topic and --include"),
        (["--include", "(", "--num-records", "1"], "--include '(' is no regular expression"),
        (["--topic", "a", "--num-records", "1", "--date-format", "EEE"], "EEE is not known here"),
    ],
)
def test_wrong_use_of_the_consumer_is_told(kafka: Kafka, arguments: list[str], said: str) -> None:
    assert said in " ".join(consume(kafka, *arguments, code=2).output.replace("│", "").split())


def test_what_raylog_does_not_have_is_refused_by_name(kafka: Kafka) -> None:
    sent = ["producer-perf", "--bootstrap-server", kafka.bootstrap, "--topic", "orders", "--num-records", "1"]
    for options, said in (
        (["--print-metrics"], "--print-metrics is refused"),
        (["--transactional-id", "t"], "without transactions"),
        (["--transaction-duration-ms", "5"], "without transactions"),
    ):
        with pytest.raises(ConfigError, match=said):
            _raised(*sent, "--record-size", "1", *options)
    with pytest.raises(ConfigError, match=r"cannot read nowhere: No such file"):
        _raised(*sent, "--payload-file", "nowhere")
    (Path("empty")).write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no value"):
        _raised(*sent, "--payload-file", "empty")


def test_a_tally_keeps_some_latencies_and_knows_all() -> None:
    tally = LatencyTally(0.0, 2 * LATENCIES_MAX)
    for number in range(1, 1_001):
        tally.add(10, number / 1_000)
    assert len(tally.latencies_s) == 500 and (tally.records, tally.size_bytes, tally.max_s) == (1_000, 10_000, 1.0)
    assert tally.average_ms == pytest.approx(500.5) and tally.rates(10.0) == (100.0, 10_000 / 2**20 / 10)
    assert tally.percentiles_ms() == pytest.approx({"50th": 501, "95th": 951, "99th": 991, "99.9th": 999})


def test_rebalances_are_no_part_of_fetching() -> None:
    progress = ReadProgress(begun=100.0, records=30, size_bytes=3 * 2**20, rebalances_s=1.0)
    before = ReadProgress(begun=98.0)
    assert progress.since(before, 102.0) == (0.75, 7.5, 1_000, 3_000, 1.0, 10.0)


def test_a_date_format_is_javas() -> None:
    assert _format_of("yyyy-MM-dd'T'HH:mm:ss:SSS 100%") == "%Y-%m-%dT%H:%M:%S:\x01 100%%"
