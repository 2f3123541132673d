"""The loggers of a broker, whose levels clients read and set at its listener (KIP-412). The three brokers share one process here;
``tests/ray/test_broker_loggers.py`` has a process for each server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, listener, request
from raw_requests import eventually

import raylog
from raylog.client.sync import AdminClient
from raylog.errors import RaylogError
from raylog.listener import broker_loggers
from raylog.server.logger_levels import LEVELS
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.connection import Connection
from raylog.wire.private import SET_LOGGER_LEVELS

pytestmark = pytest.mark.core

TOPIC, LOGGERS = 2, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
NAME = "raylog.replica"


def described(client: Client, *resources: tuple[int, str, tuple[str, ...] | None], version: int = 4) -> Any:
    def each(module: Any) -> Any:
        return tuple(
            module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        )

    extra = {"include_documentation": True} if version >= 3 else {}
    return client.ask(request(32, version, resources=each, include_synonyms=True, **extra)).results


def levels(client: Client, broker: str = "0") -> dict[str, str]:
    (found,) = described(client, (LOGGERS, broker, None))
    assert found.error_code is ErrorCode.none, found.error_message
    return {each.name: each.value for each in found.configs}


def alteration(*resources: Any, validate_only: bool = False, version: int = 1) -> Any:
    def each(module: Any) -> Any:
        return tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    module.AlterableConfig(name=config, config_operation=operation, value=value)
                    for config, operation, value in configs
                ),
            )
            for kind, name, configs in resources
        )

    return request(44, version, resources=each, validate_only=validate_only)


def altered(client: Client, *changes: tuple[str, int, str | None], broker: str = "0") -> tuple[ErrorCode, str]:
    (found,) = client.ask(alteration((LOGGERS, broker, changes))).responses
    return found.error_code, found.error_message or ""


@pytest.fixture
def one(client: Callable[..., Client]) -> Iterator[Client]:
    """A client of broker 0. What it sets is taken away at the end."""
    found = client()
    yield found
    for name in broker_loggers.OF_PROCESS._told.get(0, {}).copy():
        altered(found, (name, SET, "INFO") if name == "root" else (name, DELETE, None))


def test_each_logger_is_a_config_whose_value_is_the_level_that_it_goes_by(one: Client) -> None:
    (found,) = described(one, (LOGGERS, "0", None))
    assert (found.error_code, found.resource_type, found.resource_name) == (ErrorCode.none, LOGGERS, "0")
    entries = {each.name: each for each in found.configs}
    assert {"root", NAME, "raylog.broker", "raylog.controller"} <= set(entries)
    assert [*entries] == sorted(entries)
    assert {each.value for each in found.configs} <= set(LEVELS)
    entry = entries[NAME]
    assert (entry.config_source, entry.read_only, entry.is_sensitive, entry.synonyms) == (6, False, False, ())
    (keyed,) = described(one, (LOGGERS, "0", (NAME, "no.such.logger")))
    assert [each.name for each in keyed.configs] == [NAME]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_that_is_set_holds_until_it_is_deleted(one: Client, level: str) -> None:
    logger = logging.getLogger(NAME)
    before, own = levels(one)[NAME], logger.level
    assert altered(one, (NAME, SET, level)) == (ErrorCode.none, "")
    assert logger.getEffectiveLevel() == LEVELS[level]
    assert levels(one)[NAME] == level
    assert altered(one, (NAME, DELETE, None)) == (ErrorCode.none, "")
    assert levels(one)[NAME] == before and logger.level == own


def test_a_logger_without_a_level_of_its_own_goes_by_the_one_above_it(one: Client) -> None:
    assert altered(one, ("root", SET, "ERROR")) == (ErrorCode.none, "")
    assert levels(one)[NAME] == "ERROR"
    assert altered(one, ("root", SET, "WARN"), (NAME, SET, "DEBUG"))[0] is ErrorCode.none
    assert (levels(one)[NAME], levels(one)["raylog.broker"]) == ("DEBUG", "WARN")


REFUSED = [
    ((("no.such.logger", SET, "INFO"),), ErrorCode.invalid_config, "Logger no.such.logger does not exist!"),
    ((("no.such.logger", DELETE, None),), ErrorCode.invalid_config, "Logger no.such.logger does not exist!"),
    (
        ((NAME, SET, "WARNING"),),
        ErrorCode.invalid_config,
        "Valid log levels are INFO, DEBUG, WARN, ERROR, FATAL, TRACE",
    ),
    (((NAME, SET, "info"),), ErrorCode.invalid_config, "is not a supported log level"),
    (((NAME, SET, None),), ErrorCode.invalid_config, "is not a supported log level"),
    (((NAME, SET, "x" * 10_000),), ErrorCode.invalid_config, "is not a supported log level"),
    (((NAME, APPEND, "INFO"),), ErrorCode.invalid_request, "no list"),
    (((NAME, SUBTRACT, "INFO"),), ErrorCode.invalid_request, "no list"),
    (((NAME, 9, "INFO"),), ErrorCode.invalid_request, "no list"),
    ((("root", DELETE, None),), ErrorCode.invalid_request, "root logger is not allowed"),
    (((NAME, SET, "DEBUG"), (NAME, SET, "INFO")), ErrorCode.invalid_request, "twice"),
]


@pytest.mark.parametrize(("changes", "code", "why"), REFUSED)
def test_what_makes_no_sense_is_refused_and_changes_nothing(one: Client, changes: Any, code: Any, why: str) -> None:
    before = levels(one)
    found, message = altered(one, ("raylog.broker", SET, "ERROR"), *changes)
    assert found is code and why in message
    assert levels(one) == before


@pytest.mark.parametrize("name", ["1", "", "00", "me", "77"])
def test_a_brokers_loggers_are_asked_of_that_broker(one: Client, name: str) -> None:
    (found,) = described(one, (LOGGERS, name, None))
    assert found.error_code is ErrorCode.invalid_request and found.configs == () and "this is 0" in found.error_message
    assert altered(one, (NAME, SET, "DEBUG"), broker=name)[0] is ErrorCode.invalid_request


def test_what_is_only_validated_is_not_set(one: Client) -> None:
    before = levels(one)
    ask = lambda level: one.ask(alteration((LOGGERS, "0", ((NAME, SET, level),)), validate_only=True)).responses[0]  # noqa: E731
    assert ask("TRACE").error_code is ErrorCode.none
    assert ask("LOUD").error_code is ErrorCode.invalid_config
    assert levels(one) == before


def test_alter_configs_does_not_set_levels(one: Client) -> None:
    def resources(module: Any) -> Any:
        configs = (module.AlterableConfig(name=NAME, value="DEBUG"),)
        return (module.AlterConfigsResource(resource_type=LOGGERS, resource_name="0", configs=configs),)

    (found,) = one.ask(request(33, 2, resources=resources, validate_only=False)).responses
    assert found.error_code is ErrorCode.invalid_request and "IncrementalAlterConfigs" in found.error_message


def test_other_resources_of_the_same_request_are_answered_in_their_places(
    one: Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic((0,))
    first, second, third = described(one, (TOPIC, topic, None), (LOGGERS, "0", (NAME,)), (TOPIC, "none", None))
    assert (first.resource_name, first.error_code) == (topic, ErrorCode.none) and len(first.configs) > 20
    assert [each.name for each in second.configs] == [NAME]
    assert (third.resource_name, third.error_code) == ("none", ErrorCode.unknown_topic_or_partition)
    changes = ((LOGGERS, "0", ((NAME, SET, "ERROR"),)), (TOPIC, topic, (("retention.ms", SET, "7000"),)))
    of_loggers, of_topic = one.ask(alteration(*changes)).responses
    assert [each.error_code for each in (of_loggers, of_topic)] == [ErrorCode.none] * 2
    assert (of_loggers.resource_type, of_topic.resource_name) == (LOGGERS, topic)
    assert levels(one)[NAME] == "ERROR"
    twice = ((LOGGERS, "0", ((NAME, SET, "INFO"),)),) * 2
    assert {each.error_code for each in one.ask(alteration(*twice)).responses} == {ErrorCode.invalid_request}
    assert levels(one)[NAME] == "ERROR"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_of_describe_configs_shows_loggers(one: Client, version: int) -> None:
    (found,) = described(one, (LOGGERS, "0", (NAME,)), version=version)
    assert [each.name for each in found.configs] == [NAME]


def test_a_process_that_begins_later_is_told(running: InProcessCluster, one: Client) -> None:
    assert altered(one, (NAME, SET, "OFF"))[0] is ErrorCode.none
    broker = running.launcher.servers[node_id(0, BROKER_SLOT)]
    loggers = broker._loggers
    known = set(loggers._known)
    assert known

    async def forget() -> None:
        loggers._known.clear()
        loggers._own.set(0, {})
        assert logging.getLogger(NAME).level != LEVELS["OFF"]
        loggers.follow()

    running.run(forget())
    eventually(lambda: logging.getLogger(NAME).level == LEVELS["OFF"], "a process that is new is told")
    assert set(loggers._known) == known


def test_a_process_that_does_not_answer_is_named_and_told_when_it_does(
    running: InProcessCluster, one: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    loggers = running.launcher.servers[node_id(0, BROKER_SLOT)]._loggers
    host = max(each.node_id for each in loggers._known)
    handlers = running.launcher.servers[host]._server.handlers
    unanswered: list[Any] = []
    monkeypatch.setattr(broker_loggers, "TIMEOUT_MS", 1_000)
    with monkeypatch.context() as silent:
        silent.setitem(handlers, SET_LOGGER_LEVELS, unanswered.append)
        code, message = altered(one, (NAME, SET, "ERROR"))
        assert code is ErrorCode.request_timed_out and message.endswith(f"when they do: {host}")
        assert levels(one)[NAME] == "ERROR", "the others have it"
    assert unanswered[0].body.levels[NAME] == "ERROR"
    monkeypatch.undo()
    eventually(lambda: not loggers._behind, "the host has answered")
    assert altered(one, (NAME, DELETE, None)) == (ErrorCode.none, "")


def test_the_admin_client_reads_and_sets_levels_inside_and_outside(running: InProcessCluster, one: Client) -> None:
    outside = raylog.connect(bootstrap_servers=str(listener(running, 1)))
    for make in (lambda: AdminClient(running.address), outside.admin):
        with make() as admin:
            admin.alter_loggers(0, set={NAME: "FATAL"})
            assert admin.describe_loggers(0)[NAME].value == "FATAL" == levels(one)[NAME]
            with pytest.raises(RaylogError, match="does not exist"):
                admin.alter_loggers(0, delete=["no.such.logger"])
            admin.alter_loggers(0, delete=[NAME])
            assert levels(one)[NAME] != "FATAL"
            with pytest.raises(RaylogError, match="broker 77 is not there"):
                admin.describe_loggers(77)


def test_the_inside_server_of_a_broker_answers_for_loggers_only(running: InProcessCluster) -> None:
    broker = running.launcher.servers[node_id(0, BROKER_SLOT)]
    address = running.address

    async def ask(entity: Any) -> Any:
        at = broker._server.endpoint
        connection = await Connection.open(at, secret=address.secret, cluster_id=address.cluster_id)
        try:
            return await connection.request(entity, timeout_ms=60_000)
        finally:
            connection.close()

    asked = alteration((TOPIC, "t", (("retention.ms", SET, "7"),)), (LOGGERS, "0", ((NAME, SET, "LOUD"),)))
    topic, loggers = running.run(ask(asked)).responses
    assert topic.error_code is ErrorCode.invalid_request and "active controller" in topic.error_message
    assert loggers.error_code is ErrorCode.invalid_config
