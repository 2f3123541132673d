"""The settings of hosts, controllers and groups: each has a way from outside, and what is set reaches who goes by it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs.broker_config import ReadBy
from raylog.configs.broker_configs import BROKER_CONFIGS, for_all_brokers
from raylog.configs.server_configs import CONTROLLERS, HOSTS
from raylog.configs.settings import config_of, with_configs
from raylog.control.session import SettingsChanged, Welcome
from raylog.errors import ConfigError
from raylog.groups.context import GroupConfig
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigsAltered,
    ResourceChanges,
    ResourceOutcome,
    ResourceType,
)
from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.replication.context import HostConfig
from raylog.types import TopicIdPartition

NOT_FROM_OUTSIDE = {"default_replication_factor", "starts_brokers", "plans_hosts"}
OF_LOGS = {"log.cleaner.backoff.ms", "log.scrub.interval.ms"}


def configure(world: Any, broker: str, name: str, value: str) -> ResourceOutcome:
    change = ConfigChange(name, ConfigOperation.SET, value)
    resource = ResourceChanges(ResourceType.BROKER, broker, (change,))
    reply = world.ask(AlterConfigs((resource,), validate_only=False))
    assert isinstance(reply, ConfigsAltered), reply
    return reply.resources[0]


@pytest.mark.parametrize("kind", [HostConfig, ControllerConfig, GroupConfig])
def test_every_setting_is_a_config_of_brokers_and_has_its_default(kind: Any) -> None:
    named = config_of(kind())
    assert {each.name for each in fields(kind)} - named.keys() <= NOT_FROM_OUTSIDE
    for field, name in named.items():
        config = BROKER_CONFIGS[name]
        assert getattr(kind(), field) == config.parse(config.default)
        assert kind is not HostConfig or config.read_by is ReadBy.HOSTS or name in OF_LOGS, f"{name} reaches no host"
        assert kind is not GroupConfig or config.read_by is ReadBy.GROUPS, f"{name} reaches no coordinator"


@pytest.mark.parametrize(("table", "kind"), [(HOSTS, HostConfig), (CONTROLLERS, ControllerConfig)])
def test_every_config_of_a_server_is_a_setting_that_its_process_reads(table: Any, kind: Any) -> None:
    assert {each.name for each in table} - set(config_of(kind()).values()) == set()


@pytest.mark.parametrize("kind", [HostConfig, ControllerConfig, GroupConfig])
def test_each_setting_takes_the_value_that_was_set(kind: Any) -> None:
    for field, name in config_of(kind()).items():
        default = getattr(kind(), field)
        if isinstance(default, str):
            choices = BROKER_CONFIGS[name].choices or ("http://collector:4318",)  # of text, only an endpoint has none
            other = next(each for each in choices if each != default)
        elif isinstance(default, bool):
            other = str(not default).lower()
        else:
            other = str(default - 1 if default > 1 else default + 1)
        values = {name: for_all_brokers({name: other})[name]}
        changed = with_configs(kind(), values)
        assert getattr(changed, field) == BROKER_CONFIGS[name].parse(other) != default


@pytest.mark.parametrize(("stored", "holds"), [("100000", 10_000), ("10000", 10_000), ("0", 1)])
def test_a_stored_number_out_of_todays_bounds_is_the_bound(stored: str, holds: int) -> None:
    """An older raylog allowed it, and a controller has to start all the same."""
    assert with_configs(ControllerConfig(), {"num.partitions": stored}).num_partitions == holds


def test_what_is_set_for_hosts_reaches_the_processes_of_that_broker(new_world: Any) -> None:
    world = new_world()
    topic_id = world.create("t", (1, 2))
    processes = {broker: world.process(TopicIdPartition(topic_id, 0), broker) for broker in (1, 2)}
    before = {broker: len(process.heard) for broker, process in processes.items()}
    assert not configure(world, "1", "replica.lag.time.max.ms", "700").error
    assert not configure(world, "", "fetch.max.bytes", "5000").error
    told = {
        broker: [each for each in process.heard[before[broker] :] if isinstance(each, SettingsChanged)]
        for broker, process in processes.items()
    }
    assert [each.configs for each in told[2]] == [(("fetch.max.bytes", "5000"),)]
    assert told[1][-1].configs == (("fetch.max.bytes", "5000"), ("replica.lag.time.max.ms", "700"))
    processes[1].lose_session()
    processes[1].hello()
    welcome = [each for each in processes[1].heard if isinstance(each, Welcome)][-1]
    assert welcome.configs == told[1][-1].configs


def test_the_controller_goes_by_what_is_set_while_it_runs(new_world: Any) -> None:
    world = new_world()
    topic_id = world.create("t", (1, 2))
    process = world.process(TopicIdPartition(topic_id, 0), 1)
    assert not configure(world, "", "broker.heartbeat.interval.ms", "100").error
    assert not configure(world, "", "broker.session.timeout.ms", "1000").error
    assert [each.heartbeat_interval_ms for each in process.heard if isinstance(each, SettingsChanged)] == [100]
    process.lose_session()
    process.hello()
    welcome = [each for each in process.heard if isinstance(each, Welcome)][-1]
    assert (welcome.heartbeat_interval_ms, welcome.session_timeout_ms) == (100, 1_000)


def test_a_heartbeat_that_is_longer_than_half_a_session_is_refused(new_world: Any) -> None:
    refused = configure(new_world(), "", "broker.heartbeat.interval.ms", "5000")
    assert refused.error == ErrorCode.invalid_config and "one lost heartbeat would be a death" in (
        refused.message or ""
    )
    with pytest.raises(ConfigError, match="more than half of"):
        for_all_brokers({"broker.session.timeout.ms": 1_000})
