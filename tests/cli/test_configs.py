"""``raylog configs`` of brokers' loggers and of groups, through a test broker's listener."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

import raylog.testing
from raylog.cli.main import app
from raylog.errors import RaylogError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core
NAME = "raylog.replica"
OF_ONE = ("--entity-type", "broker-loggers", "--entity-name", "0")


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker() as running:
        yield running


def run(kafka: Kafka, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["configs", command, *arguments, "--bootstrap-server", kafka.bootstrap])


def said(kafka: Kafka, command: str, *arguments: str) -> str:
    result = run(kafka, command, *arguments)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_loggers_are_shown_and_their_levels_set_and_taken_away(kafka: Kafka) -> None:
    before = logging.getLogger(NAME).getEffectiveLevel()
    told = said(kafka, "alter", *OF_ONE, "--add-config", f"{NAME}=ERROR,raylog.broker=WARN")
    assert told == "Completed updating config for broker-logger 0.\n"
    assert logging.getLogger(NAME).getEffectiveLevel() == logging.ERROR
    lines = said(kafka, "describe", *OF_ONE).splitlines()
    assert lines[0] == "Dynamic configs for broker-logger 0 are:"
    assert f"  {NAME}=ERROR sensitive=false synonyms={{}}" in lines
    (document,) = json.loads(said(kafka, "describe", "--entity-type", "broker-loggers", "--json"))
    assert (document["entity_type"], document["entity_name"]) == ("broker-loggers", "0")
    shown = {each["name"]: (each["value"], each["source"]) for each in document["configs"]}
    assert shown["raylog.broker"] == ("WARN", "DYNAMIC_BROKER_LOGGER_CONFIG") and "root" in shown
    said(kafka, "alter", *OF_ONE, "--delete-config", f"{NAME},raylog.broker")
    assert logging.getLogger(NAME).getEffectiveLevel() == before


def test_what_makes_no_sense_is_refused_in_words(kafka: Kafka) -> None:
    with pytest.raises(RaylogError, match="Valid log levels are"):
        said(kafka, "alter", *OF_ONE, "--add-config", f"{NAME}=LOUD")
    with pytest.raises(RaylogError, match=r"no\.such\.logger does not exist"):
        said(kafka, "alter", *OF_ONE, "--delete-config", "no.such.logger")
    with pytest.raises(RaylogError, match="broker 7 is not there"):
        said(kafka, "describe", "--entity-type", "broker-loggers", "--entity-name", "7")
    for given, says in (
        (("--entity-default",), "each broker has its own"),
        (("--entity-name", "me"), "named by its id"),
    ):
        result = run(kafka, "describe", "--entity-type", "broker-loggers", *given)
        assert result.exit_code == 2 and says in " ".join(result.stderr.replace("│", " ").split())
    result = run(kafka, "explain", "--entity-type", "broker-loggers")
    assert result.exit_code == 2


def test_groups_have_none_and_each_is_refused_with_its_reason(kafka: Kafka) -> None:
    of_one = ("--entity-type", "groups", "--entity-name", "readers")
    shown = run(kafka, "describe", *of_one)
    assert shown.stdout == "Dynamic configs for group readers are:\n"
    assert shown.stderr.startswith("groups have no configs: groups have the classic protocol")
    assert json.loads(run(kafka, "describe", *of_one, "--json").stdout) == [
        {"entity_type": "groups", "entity_name": "readers", "configs": []}
    ]
    everyone = run(kafka, "describe", "--entity-type", "groups")
    assert (everyone.stdout, everyone.stderr) == ("", shown.stderr)
    with pytest.raises(RaylogError, match=r"each member says its own session\.timeout\.ms"):
        said(kafka, "alter", *of_one, "--add-config", "consumer.session.timeout.ms=50000")
    with pytest.raises(RaylogError, match=r"Unknown group config name: retention\.ms"):
        said(kafka, "alter", *of_one, "--add-config", "retention.ms=7")
    refused = run(kafka, "alter", "--entity-type", "groups", "--entity-default", "--add-config", "a=b")
    assert refused.exit_code == 2 and "groups have no configs" in " ".join(refused.stderr.replace("│", " ").split())
