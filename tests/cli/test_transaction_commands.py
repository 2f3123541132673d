"""``raylog transactions`` through a test broker's listener: the columns of ``kafka-transactions``."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import raylog.testing
from raylog.cli.main import app
from raylog.errors import ConfigError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"orders": 1}) as running:
        yield running


def said(kafka: Kafka, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["transactions", *arguments, "--bootstrap-server", kafka.bootstrap])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_open_transactions_are_shown_and_those_with_a_coordinator_do_not_hang(kafka: Kafka) -> None:
    with raylog.connect(bootstrap_servers=kafka.bootstrap).producer(transactional_id="billing") as producer:
        txn = producer.transaction().begin()
        txn.send("orders", b"x").result(30)
        titles, row = (line.split("\t") for line in said(kafka, "list").splitlines())
        assert [each.strip() for each in titles] == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
        assert row[0].strip() == "billing" and row[3].strip() == "Ongoing"
        titles, row = (
            [cell.strip() for cell in line.split("\t")]
            for line in said(kafka, "describe", "--transactional-id", "billing").splitlines()
        )
        found = dict(zip(titles, row, strict=True))
        assert found["TopicPartitions"] == "orders-0" and found["TransactionTimeoutMs"] == "60000"
        assert int(found["TransactionDurationMs"]) >= 0
        assert json.loads(said(kafka, "find-hanging", "--max-transaction-timeout", "0", "--json")) == []
        as_json = json.loads(said(kafka, "describe", "--transactional-id", "billing", "--json"))
        assert as_json["state"] == "Ongoing" and as_json["partitions"] == ["orders-0"]
        said(kafka, "abort", "--topic", "orders", "--partition", "0", "--start-offset", "0")
        with pytest.raises(ConfigError, match="holds no open transaction"):
            said(kafka, "abort", "--topic", "orders", "--partition", "0", "--start-offset", "0")
        txn.abort()
    assert json.loads(said(kafka, "list", "--json"))[0]["state"] == "CompleteAbort"
