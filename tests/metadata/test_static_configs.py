"""What a cluster is started with stands behind what is set while it runs, and before the defaults [A20]."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs.replication_quotas import LEADER_RATE
from raylog.metadata.configuration import effective_configs
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
    SetStaticConfigs,
)
from raylog.metadata.configuration.creation_defaults import in_force
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import StaticSource, decode_batch, encode_batch
from raylog.types import TopicIdPartition

OWN, FOR_ALL, STATIC, DEFAULT = 2, 3, 4, 5
PARTITIONS, ROLL = "num.partitions", "log.roll.ms"
HEARTBEAT, SESSION = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"


def start(world, source=StaticSource.START, *, replaces=True, **configs):
    """Names with _ for ``.``."""
    values = tuple((name.replace("_", "."), value) for name, value in configs.items())
    (outcome,) = world.ask(SetStaticConfigs(source, values, replaces)).resources
    return outcome


def alter(world, name, value, *, broker="", replaces=False):
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    changes = ResourceChanges(ResourceType.BROKER, broker, (ConfigChange(name, operation, value),), replaces)
    return world.ask(AlterConfigs((changes,))).resources[0]


def synonyms(world, key, *, broker="1", topic=None):
    asked = ConfigQuery(ResourceType.BROKER, broker, (key,)) if topic is None else None
    (found,) = world.ask(DescribeConfigs((asked or ConfigQuery(ResourceType.TOPIC, topic, (key,)),))).resources
    (entry,) = found.entries
    return [(each.value, each.source) for each in entry.synonyms]


def test_the_same_setting_given_every_way_is_described_in_the_order_in_which_it_counts(world):
    world.create("t", (1, 2), segment_ms="9")
    start(world, StaticSource.NODES, log_roll_ms="1")
    assert synonyms(world, ROLL) == [("1", STATIC), ("604800000", DEFAULT)]
    start(world, log_roll_ms="2")
    assert synonyms(world, ROLL) == [("2", STATIC), ("604800000", DEFAULT)]
    alter(world, ROLL, "3")
    alter(world, ROLL, "4", broker="1")
    assert synonyms(world, ROLL) == [("4", OWN), ("3", FOR_ALL), ("2", STATIC), ("604800000", DEFAULT)]
    assert synonyms(world, ROLL, broker="") == [("3", FOR_ALL), ("2", STATIC), ("604800000", DEFAULT)]
    assert synonyms(world, "segment.ms", topic="t") == [("9", 1), ("3", FOR_ALL), ("2", STATIC), ("604800000", DEFAULT)]


def test_what_is_in_force_goes_back_step_by_step(world):
    topic = world.image.topics[world.create("t", (1, 2))]
    on_broker = {
        broker: lambda broker=broker: effective_configs.of_log(world.image, topic, broker)["segment.ms"]
        for broker in (1, 2)
    }
    start(world, StaticSource.NODES, log_roll_ms="1")
    start(world, log_roll_ms="2")
    alter(world, ROLL, "3")
    alter(world, ROLL, "4", broker="1")
    assert (on_broker[1](), on_broker[2]()) == ("4", "3")
    alter(world, ROLL, None, broker="1")
    assert (on_broker[1](), on_broker[2]()) == ("3", "3")
    alter(world, ROLL, None)
    assert on_broker[1]() == "2"
    start(world)
    assert on_broker[1]() == "1"
    start(world, StaticSource.NODES)
    assert on_broker[1]() == "604800000"
    assert not world.image.broker_configs


def test_a_log_is_told_of_a_static_config_and_of_its_end(world):
    id = TopicIdPartition(world.create("t", (1, 2)), 0)

    def held():
        return [dict(world.process(id, broker).told[id].config)["segment.ms"] for broker in (1, 2)]

    start(world, log_roll_ms="2000")
    assert held() == ["2000", "2000"]
    start(world, log_retention_ms="5")
    assert held() == ["604800000", "604800000"]


def test_the_controller_goes_by_static_configs(world):
    start(world, num_partitions="4", broker_session_timeout_ms="30000")
    assert in_force(world.image, world.controller._settings).num_partitions == 4
    assert world.controller._settings.now.session_timeout_ms == 30_000
    world.restart_controller()
    assert world.controller._settings.now.session_timeout_ms == 30_000
    start(world)
    assert world.controller._settings.now.session_timeout_ms == 9_000


def test_a_start_replaces_what_the_last_one_said_and_nothing_that_was_set(world):
    alter(world, LEADER_RATE, "10")
    start(world, num_partitions="4", log_roll_ms="2000")
    start(world, num_partitions="5")
    assert world.image.broker_configs == {None: {PARTITIONS: "5", LEADER_RATE: "10"}}
    start(world, StaticSource.NODES, log_roll_ms="7")
    start(world, StaticSource.NODES, replaces=False, log_retention_ms="8")
    assert world.image.broker_values.static == {
        StaticSource.START: {PARTITIONS: "5"},
        StaticSource.NODES: {ROLL: "7", "log.retention.ms": "8"},
    }
    alter(world, LEADER_RATE, "11", replaces=True)
    assert world.image.broker_values.static[StaticSource.START] == {PARTITIONS: "5"}, (
        "AlterConfigs replaces what was set"
    )


def test_the_controller_acts_on_a_static_config_at_once(world):
    id = TopicIdPartition(world.create("t", (0, 1)), 0)
    assert world.leader(id).alter(id, 0) == 0
    world.starts_at_once = False
    world.process(id, 0).kill()
    world.run_later()
    assert world.state(id).leader == -1
    assert start(world, min_insync_replicas="2", unclean_leader_election_enable="true").error == 0
    assert world.state(id).leader == 1


def test_they_outlive_the_controller_and_its_snapshot(world):
    start(world, num_partitions="4")
    alter(world, PARTITIONS, "6")
    world.restart_controller()
    again = MetadataImage.of(decode_batch(encode_batch(world.image.records())))
    assert again.broker_values == world.image.broker_values
    assert synonyms(world, PARTITIONS) == [("6", FOR_ALL), ("4", STATIC), ("1", DEFAULT)]


def test_a_start_that_changes_nothing_writes_nothing(world):
    start(world, num_partitions="4")
    before = list(world.image.records())
    index = world.controller.quorum.commit_index
    start(world, num_partitions="4")
    assert list(world.image.records()) == before and world.controller.quorum.commit_index == index


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num.partition", "4", "did you mean 'num.partitions'"),
        ("num.partitions", "0", "must be from 1 to 10000"),
        ("num.partitions", "many", "is no int"),
        ("log.dirs", "/d", "is fixed"),
        (HEARTBEAT, "60000", f"more than half of {SESSION}=9000"),
    ],
)
def test_what_cannot_be_static_is_refused_whole(world, name, value, reason):
    outcome = start(world, **{"log_roll_ms": "7", name: value})
    assert outcome.error == ErrorCode.invalid_config and reason in outcome.message
    assert not world.image.broker_configs


def test_a_conflict_with_what_was_set_names_both_places(world):
    assert alter(world, SESSION, "30000").error == 0
    assert start(world, broker_heartbeat_interval_ms="14000", broker_session_timeout_ms="28000").error == 0
    outcome = start(world, broker_heartbeat_interval_ms="15500", broker_session_timeout_ms="40000")
    assert f"{HEARTBEAT}=15500 is more than half of {SESSION}=30000" in outcome.message
    assert (
        f"Set for all brokers while the cluster ran, and before what it is started with: {SESSION}=30000"
        in outcome.message
    )
    refused = alter(world, SESSION, "20000")
    assert f"{HEARTBEAT}=14000 is more than half of {SESSION}=20000" in refused.message
