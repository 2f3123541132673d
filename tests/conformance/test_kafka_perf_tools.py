"""Apache Kafka's performance tools of the newest release, and raylog's of the same options: both print lines of one shape."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from kafka_peer import apache_kafka
from typer.testing import CliRunner

from raylog.cli.main import app

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
Both = Callable[..., tuple[list[str], list[str]]]


def shapes(printed: str) -> list[str]:
    """Lines with N for a number, and .N for each of its decimals. Left out is how many intervals there were, which
    differs by chance, and that --producer-props is an older name."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    kept = [line for line in lines if not re.search(r"records/sec .* max latency\.$|deprecated", line)]
    return [re.sub(r"\d+", "N", re.sub(r"\.\d+", lambda found: ".N" * (len(found[0]) - 1), line)) for line in kept]


@pytest.fixture
def both(bootstrap: str) -> Both:
    """Runs Kafka's tool and raylog's command with the same arguments; the shapes of their lines."""
    kafka = apache_kafka()

    def run(tool: str, command: str, *arguments: str) -> tuple[list[str], list[str]]:
        given = ["--bootstrap-server", bootstrap, *arguments]
        theirs = kafka.tool(f"org.apache.kafka.tools.{tool}", *given, version=kafka.LATEST)
        ours = CliRunner().invoke(app, [command, *given])
        assert ours.exit_code == 0, (ours.output, ours.exception)
        return shapes(theirs), shapes(ours.stdout)

    return run


def test_producer_perf_is_kafka_producer_perf_test(both: Both, new_topic: NewTopicOf) -> None:
    sized = ("--topic", new_topic(), "--num-records", "2000", "--throughput", "4000", "--record-size", "100")
    theirs, ours = both("ProducerPerformance", "producer-perf", *sized, "--command-property", "acks=all", "linger.ms=5")
    assert ours == theirs and len(ours) == 1
    warm = ("--topic", new_topic(), "--num-records", "8000", "--throughput", "4000", "--record-size", "100")
    options = ("--warmup-records", "500", "--reporting-interval", "100", "--producer-props", "acks=1", "linger.ms=0")
    theirs, ours = both("ProducerPerformance", "producer-perf", *warm, *options)
    assert ours == theirs and len(ours) == 4


def test_consumer_perf_is_kafka_consumer_perf_test(both: Both, new_topic: NewTopicOf, bootstrap: str) -> None:
    topic = new_topic()
    sent = ["producer-perf", "--topic", topic, "--num-records", "3000", "--record-size", "100"]
    assert CliRunner().invoke(app, [*sent, "--bootstrap-server", bootstrap]).exit_code == 0
    theirs, ours = both("ConsumerPerformance", "consumer-perf", "--topic", topic, "--num-records", "3000")
    assert ours == theirs and len(ours) == 2
    detailed = ("--topic", topic, "--num-records", "3000", "--show-detailed-stats", "--reporting-interval", "1")
    theirs, ours = both("ConsumerPerformance", "consumer-perf", *detailed)
    assert set(ours) == set(theirs) and len(set(ours)) == 2, "a header and rows of one shape"


def test_e2e_latency_is_kafka_e2e_latency(both: Both, new_topic: NewTopicOf) -> None:
    options = ("--topic", new_topic(), "--num-records", "10", "--producer-acks", "all", "--record-size", "50")
    keys = (
        "--record-key-size",
        "8",
        "--num-headers",
        "2",
        "--record-header-key-size",
        "4",
        "--record-header-size",
        "6",
    )
    theirs, ours = both("EndToEndLatency", "e2e-latency", *options, *keys)
    assert [re.sub(r"(\.N)+", ".N", line) for line in ours] == [
        re.sub(r"(= N)", r"\1.N", re.sub(r"(\.N)+", ".N", line)) for line in theirs
    ], "raylog's percentiles have decimals"
