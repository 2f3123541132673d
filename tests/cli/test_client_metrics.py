"""``raylog client-metrics``, through a test broker's listener."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import raylog.testing
from raylog.cli.main import app
from raylog.errors import ConfigError, RaylogError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker() as running:
        yield running


def said(kafka: Kafka, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["client-metrics", *arguments, "--bootstrap-server", kafka.bootstrap])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_subscription_is_set_changed_described_and_deleted(kafka: Kafka) -> None:
    assert said(kafka, "set", "all", "--metrics", "*", "--interval", "5000") == "Set interval.ms, metrics of all\n"
    told = said(
        kafka, "set", "orders", "--metrics", "org.a", "--metrics", "org.b", "--match", "client_id=o.*", "--json"
    )
    assert json.loads(told) == {"name": "orders", "set": {"metrics": "org.a,org.b", "match": "client_id=o.*"}}
    assert json.loads(said(kafka, "list", "--json")) == ["all", "orders"]
    assert said(kafka, "list") == "all\norders\n"
    orders = {"interval.ms": "300000", "metrics": "org.a,org.b", "match": "client_id=o.*"}
    everything = {"interval.ms": "5000", "metrics": "*", "match": ""}
    assert json.loads(said(kafka, "describe", "--json")) == {"all": everything, "orders": orders}
    assert json.loads(said(kafka, "describe", "orders", "--json")) == {"orders": orders}
    assert "client_id=o.*" in said(kafka, "describe", "orders")
    assert said(kafka, "set", "all", "--interval", "6000") == "Set interval.ms of all\n"
    assert json.loads(said(kafka, "describe", "all", "--json"))["all"] == everything | {"interval.ms": "6000"}
    assert said(kafka, "delete", "all") == "Deleted all\n"
    assert json.loads(said(kafka, "delete", "orders", "--json")) == {"deleted": "orders"}
    assert json.loads(said(kafka, "list", "--json")) == []


def test_what_makes_no_sense_is_refused_in_words(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match="--metrics"):
        said(kafka, "set", "all")
    with pytest.raises(RaylogError, match=r"interval\.ms=99"):
        said(kafka, "set", "all", "--interval", "99")
    with pytest.raises(RaylogError, match="client_color"):
        said(kafka, "set", "all", "--match", "client_color=red")
    for command in ("describe", "delete"):
        with pytest.raises(ConfigError, match="no subscription 'none'"):
            said(kafka, command, "none")
