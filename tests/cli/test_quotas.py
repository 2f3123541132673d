"""``raylog quotas`` and Kafka's APIs of client quotas, through a test broker's listener."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import raylog.testing
from raylog.cli.main import app
from raylog.errors import ConfigError, KafkaError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker() as running:
        yield running


def said(kafka: Kafka, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["quotas", *arguments, "--bootstrap-server", kafka.bootstrap])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def listed(kafka: Kafka, *arguments: str):
    return json.loads(said(kafka, "list", "--json", *arguments))


def test_quotas_are_set_listed_and_removed(kafka: Kafka) -> None:
    assert said(kafka, "set", "--user", "alice", "--producer-byte-rate", "1048576", "--request-percentage", "2.5") == (
        "Set producer_byte_rate, request_percentage of user alice\n"
    )
    told = json.loads(
        said(kafka, "set", "--user", "alice", "--default-client-id", "--consumer-byte-rate", "10", "--json")
    )
    assert told == {"entity": {"user": "alice", "client-id": None}, "quotas": {"consumer_byte_rate": 10.0}}
    said(kafka, "set", "--ip", "10.0.0.1", "--connection-creation-rate", "5")
    assert [line.split() for line in said(kafka, "list").splitlines()] == [
        ["Entity", "Quota", "Value"],
        ["default", "client-id,", "user", "alice", "consumer_byte_rate", "10"],
        ["ip", "10.0.0.1", "connection_creation_rate", "5"],
        ["user", "alice", "producer_byte_rate", "1048576"],
        ["user", "alice", "request_percentage", "2.5"],
    ]
    assert [each["entity"] for each in listed(kafka, "--user", "alice")] == [
        {"client-id": None, "user": "alice"},
        {"user": "alice"},
    ]
    assert listed(kafka, "--default-client-id")[0]["quotas"] == {"consumer_byte_rate": 10.0}
    assert said(kafka, "remove", "--user", "alice", "--quota", "request_percentage") == (
        "Removed request_percentage of user alice\n"
    )
    assert json.loads(said(kafka, "remove", "--user", "alice", "--json"))["removed"] == ["producer_byte_rate"]
    with pytest.raises(ConfigError, match="user alice has no such quota"):
        said(kafka, "remove", "--user", "alice")
    said(kafka, "remove", "--user", "alice", "--default-client-id")
    said(kafka, "remove", "--ip", "10.0.0.1")
    assert listed(kafka) == []


def test_what_makes_no_sense_is_refused(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match="say whom"):
        said(kafka, "set", "--producer-byte-rate", "1")
    with pytest.raises(ConfigError, match="not both"):
        said(kafka, "set", "--user", "a", "--default-user", "--producer-byte-rate", "1")
    with pytest.raises(ConfigError, match="name a quota"):
        said(kafka, "set", "--user", "a")
    with pytest.raises(ConfigError, match="choose from producer_byte_rate"):
        said(kafka, "remove", "--user", "a", "--quota", "byte_rate")
    with pytest.raises(KafkaError, match="Invalid configuration key"):
        said(kafka, "set", "--user", "a", "--connection-creation-rate", "1")
    with pytest.raises(KafkaError, match="must be greater than 0"):
        said(kafka, "set", "--user", "a", "--producer-byte-rate", "0")
    with pytest.raises(KafkaError, match="should not be combined"):
        said(kafka, "set", "--user", "a", "--ip", "10.0.0.1", "--connection-creation-rate", "1")
