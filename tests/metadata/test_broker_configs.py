"""Configs of brokers and of the cluster as a whole, changed while it runs."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError
from raylog.metadata.broker_configs import BROKER_CONFIGS, validated
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import decode_batch, encode_batch
from raylog.metadata.requests import (
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    IncrementalAlterConfigs,
    ResourceChanges,
    ResourceType,
    UnregisterBroker,
)
from raylog.metadata.throttled_replicas import LEADER_RATE
from raylog.types import TopicIdPartition

MINUTE_MS = 60_000


def configure(world, broker, name, value):
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    resource = ResourceChanges(ResourceType.BROKER, broker, (ConfigChange(name, operation, value),))
    return world.ask(IncrementalAlterConfigs((resource,))).resources[0]


def described(world, broker):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.BROKER, broker),))).resources
    return {entry.name: (entry.value, entry.source) for entry in found.entries}


@pytest.mark.parametrize("name", sorted(BROKER_CONFIGS))
def test_each_config_accepts_its_default_and_says_what_it_means(name):
    config = BROKER_CONFIGS[name]
    assert validated(name, None, config.default) == config.default
    assert len(config.meaning) > 10


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num.io.threads", "4", "can be changed while it runs"),
        ("leader.replication.throttled.rat", "4", "did you mean 'leader.replication.throttled.rate'"),
        (LEADER_RATE, "-1", "at least 0"),
        (LEADER_RATE, "fast", "is no long"),
        ("auto.leader.rebalance.enable", "true", "the cluster's as a whole"),
    ],
)
def test_what_a_broker_cannot_have_is_refused_with_the_reason(name, value, reason):
    with pytest.raises(ConfigError, match=reason):
        validated(name, 1, value)


def test_values_are_described_with_where_they_come_from(world):
    assert described(world, "1")[LEADER_RATE] == (str(2**63 - 1), 5)
    assert configure(world, "", LEADER_RATE, "10").error == 0
    assert configure(world, "1", LEADER_RATE, "20").error == 0
    assert described(world, "1")[LEADER_RATE] == ("20", 2)
    assert described(world, "2")[LEADER_RATE] == ("10", 3)
    assert described(world, "")[LEADER_RATE] == ("10", 3)
    assert configure(world, "1", LEADER_RATE, None).error == 0
    assert described(world, "1")[LEADER_RATE] == ("10", 3)


def test_a_broker_that_is_not_there_has_no_configs(world):
    assert configure(world, "77", LEADER_RATE, "1").error == ErrorCode.invalid_request
    assert configure(world, "one", LEADER_RATE, "1").error == ErrorCode.invalid_request


def test_configs_outlive_the_controller_and_go_with_their_broker(world):
    configure(world, "", LEADER_RATE, "10")
    configure(world, "2", LEADER_RATE, "20")
    world.restart_controller()
    assert world.image.broker_configs == {None: {LEADER_RATE: "10"}, 2: {LEADER_RATE: "20"}}
    again = MetadataImage.of(decode_batch(encode_batch(world.image.records())))
    assert again.broker_configs == world.image.broker_configs
    assert world.ask(UnregisterBroker(2)).error == 0
    assert world.image.broker_configs == {None: {LEADER_RATE: "10"}}


def moved_away(world):
    """A partition whose preferred leader, broker 0, has died and is back in the ISR."""
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.process(id, 0).kill()
    world.run_later()
    assert world.leader(id).alter(id, 1, 2, 0) == 0 and world.state(id).leader == 1
    return id


def test_the_interval_after_which_leaders_go_back_can_be_set(world):
    id = moved_away(world)
    assert configure(world, "", "leader.imbalance.check.interval.seconds", "5").error == 0
    world.pass_time(6_000)
    assert world.state(id).leader == 0


def test_leaders_stay_where_they_are_while_rebalancing_is_off(world):
    id = moved_away(world)
    assert configure(world, "", "auto.leader.rebalance.enable", "false").error == 0
    world.pass_time(11 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 1
    assert configure(world, "", "auto.leader.rebalance.enable", None).error == 0
    world.pass_time(6 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 0


def test_the_percentage_that_is_tolerated_can_be_set(world):
    id = moved_away(world)
    assert configure(world, "", "leader.imbalance.per.broker.percentage", "100").error == 0
    world.pass_time(6 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 1
    assert configure(world, "", "leader.imbalance.per.broker.percentage", "99").error == 0
    world.pass_time(6 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 0
