"""Configs of brokers and of the cluster as a whole, changed while it runs."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raylog.configs.broker_configs import BROKER_CONFIGS, FIXED_CONFIGS, validated
from raylog.configs.refused_broker_configs import REFUSED
from raylog.configs.replication_quotas import LEADER_RATE
from raylog.configs.topic_configs import BROKER_NAMES, TOPIC_CONFIGS
from raylog.errors import ConfigError
from raylog.log.config import LogConfig
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.configuration.effective_configs import of_log
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.records import decode_batch, encode_batch
from raylog.metadata.requests import UnregisterBroker
from raylog.types import TopicIdPartition

MINUTE_MS = 60_000


def configure(world, broker, name, value):
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    resource = ResourceChanges(ResourceType.BROKER, broker, (ConfigChange(name, operation, value),))
    return world.ask(AlterConfigs((resource,))).resources[0]


def described(world, broker):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.BROKER, broker),))).resources
    return {entry.name: (entry.value, entry.source) for entry in found.entries}


def synonyms(world, type, name, key):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(type, name, (key,)),))).resources
    (entry,) = found.entries
    return [(each.name, each.value, each.source) for each in entry.synonyms]


@pytest.mark.parametrize("name", sorted(BROKER_CONFIGS))
def test_each_config_accepts_its_default_and_says_what_it_means(name):
    config = BROKER_CONFIGS[name]
    assert validated(name, None, config.default) == config.default
    assert len(config.meaning) > 10


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num.io.threads", "4", "num.io.threads is refused: raylog has no pools of threads"),
        ("log.retention.hours", "4", "set log.retention.ms"),
        ("log.cleaner.threads", "2", "each process compacts its own logs"),
        ("log.dirs", "/d", "is fixed when a broker starts"),
        ("retention.ms", "4", "did you mean 'log.retention.ms'"),
        ("no.such.thing.at.all", "4", "can be changed while it runs; these can: "),
        ("log.segment.bytes", "1", "at least 14"),
        ("min.insync.replicas", "2", "the cluster's as a whole"),
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
    assert configure(world, "77", LEADER_RATE, "1").error == ErrorCode.broker_id_not_registered
    assert configure(world, "one", LEADER_RATE, "1").error == ErrorCode.invalid_request
    (found,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.BROKER, "77"),))).resources
    assert found.error == ErrorCode.invalid_request and not found.entries


def test_configs_outlive_the_controller_and_go_with_their_broker(world):
    configure(world, "", LEADER_RATE, "10")
    configure(world, "2", LEADER_RATE, "20")
    world.restart_controller()
    assert world.image.broker_configs == {None: {LEADER_RATE: "10"}, 2: {LEADER_RATE: "20"}}
    again = MetadataImage.of(decode_batch(encode_batch(world.image.records())))
    assert again.broker_configs == world.image.broker_configs
    assert world.ask(UnregisterBroker(2)).error == 0
    assert world.image.broker_configs == {None: {LEADER_RATE: "10"}}


def test_the_settings_of_the_cleaner_go_with_compacted_logs_the_brokers_own_first(world):
    configure(world, "", "log.cleaner.backoff.ms", "500")
    configure(world, "1", "log.cleaner.backoff.ms", "700")
    configure(world, "", "log.cleaner.delete.retention.ms", "9")
    compacted = LogConfig.from_topic_configs(of_log(world.image, topic_of("compact,delete"), 1))
    assert (compacted.cleaner_backoff_ms, compacted.delete_retention_ms) == (700, 9)
    assert LogConfig.from_topic_configs(of_log(world.image, topic_of("compact"), 2)).cleaner_backoff_ms == 500
    assert "log.cleaner.backoff.ms" not in of_log(world.image, topic_of("delete"), 2)


def test_how_long_producers_are_remembered_goes_with_every_log_the_brokers_own_first(world):
    topic = topic_of("delete")
    assert LogConfig.from_topic_configs(of_log(world.image, topic, 1)).producer_id_expiration_ms == 86_400_000
    configure(world, "", "producer.id.expiration.ms", "5000")
    configure(world, "1", "producer.id.expiration.ms", "700")
    expirations = [
        LogConfig.from_topic_configs(of_log(world.image, topic, broker)).producer_id_expiration_ms for broker in (1, 2)
    ]
    assert expirations == [700, 5_000]
    assert configure(world, "", "producer.id.expiration.ms", "0").error == ErrorCode.invalid_config


def topic_of(policy):
    return Topic(uuid.uuid4(), "t", {"cleanup.policy": policy})


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


# ------------------------------------------------------------------ what topics take that set nothing themselves


def told(world, id, broker):
    return dict(world.process(id, broker).told[id].config)


def test_each_broker_config_of_logs_is_that_of_a_topic():
    for name, broker_name in BROKER_NAMES.items():
        refused = TOPIC_CONFIGS[name].refused is not None
        assert (broker_name in BROKER_CONFIGS) != refused, f"{broker_name}: refused is {name}: {refused}"
        if refused:
            with pytest.raises(ConfigError, match=f"{broker_name} is refused: "):
                validated(broker_name, None, TOPIC_CONFIGS[name].default)
    assert not REFUSED.keys() & BROKER_CONFIGS.keys(), "both served and refused"


def test_a_topics_own_value_goes_before_the_brokers_and_that_before_all_brokers(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    assert told(world, id, 0)["retention.ms"] == "604800000"
    assert configure(world, "", "log.retention.ms", "1000").error == 0
    assert [told(world, id, broker)["retention.ms"] for broker in (0, 1, 2)] == ["1000"] * 3
    assert configure(world, "1", "log.retention.ms", "2000").error == 0
    assert [told(world, id, broker)["retention.ms"] for broker in (0, 1, 2)] == ["1000", "2000", "1000"]
    assert synonyms(world, ResourceType.TOPIC, "t", "retention.ms") == [
        ("log.retention.ms", "1000", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    assert world.configure("t", "retention.ms", "3000") == 0
    assert [told(world, id, broker)["retention.ms"] for broker in (0, 1, 2)] == ["3000"] * 3
    assert synonyms(world, ResourceType.TOPIC, "t", "retention.ms")[0] == ("retention.ms", "3000", 1)
    assert synonyms(world, ResourceType.BROKER, "1", "log.retention.ms") == [
        ("log.retention.ms", "2000", 2),
        ("log.retention.ms", "1000", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    assert world.configure("t", "retention.ms", None) == 0
    assert configure(world, "", "log.retention.ms", None).error == 0
    assert [told(world, id, broker)["retention.ms"] for broker in (0, 1, 2)] == ["604800000", "2000", "604800000"]


def test_a_process_that_comes_later_is_told_what_holds_on_its_broker(world):
    id = TopicIdPartition(world.create("t", (0, 1)), 0)
    assert configure(world, "1", "message.max.bytes", "500").error == 0
    world.process(id, 1).kill()
    world.run_later()
    world.pass_time(1_000)
    assert (told(world, id, 0)["max.message.bytes"], told(world, id, 1)["max.message.bytes"]) == ("1048588", "500")


def test_the_minimum_isr_of_all_topics_can_be_set_at_once(world):
    plain = TopicIdPartition(world.create("plain", (0, 1, 2)), 0)
    own = TopicIdPartition(world.create("own", (0, 1, 2), min_insync_replicas=3), 0)
    before = world.state(plain)
    assert configure(world, "", "min.insync.replicas", "2").error == 0
    after = world.state(plain)
    assert (world.leader(plain).told[plain].min_isr, world.leader(own).told[own].min_isr) == (2, 3)
    assert after.partition_epoch == before.partition_epoch + 1 and after.leader_epoch == before.leader_epoch
    assert configure(world, "0", "min.insync.replicas", "1").error == ErrorCode.invalid_config


def test_unclean_elections_of_all_topics_can_be_allowed_at_once(world):
    id = TopicIdPartition(world.create("t", (0, 1)), 0)
    assert world.leader(id).alter(id, 0) == 0
    world.starts_at_once = False
    world.process(id, 0).kill()
    world.run_later()
    assert world.state(id).leader == -1
    assert configure(world, "", "unclean.leader.election.enable", "true").error == 0
    assert world.state(id).leader == 1


# ------------------------------------------------------------------ whole replacements, other resources, what is fixed


def test_a_replacement_resets_what_it_does_not_name(world):
    world.create("t", (0,), retention_ms=9, segment_bytes=99, replicas_per_actor=None)
    new = (ConfigChange("retention.ms", ConfigOperation.SET, "10"), ConfigChange("flush.ms", ConfigOperation.SET, "5"))
    asked = AlterConfigs((ResourceChanges(ResourceType.TOPIC, "t", new, replaces=True),), validate_only=True)
    assert world.ask(asked).resources[0].error == 0
    assert world.image.topic_named("t").configs == {"retention.ms": "9", "segment.bytes": "99"}
    assert world.ask(replace(asked, validate_only=False)).resources[0].error == 0
    assert world.image.topic_named("t").configs == {"retention.ms": "10", "flush.ms": "5"}
    bad = ResourceChanges(
        ResourceType.TOPIC, "t", (ConfigChange("flush.ms", ConfigOperation.SET, None),), replaces=True
    )
    assert world.ask(AlterConfigs((bad,))).resources[0].error == ErrorCode.invalid_request
    assert world.image.topic_named("t").configs == {"retention.ms": "10", "flush.ms": "5"}
    nothing = ResourceChanges(ResourceType.TOPIC, "t", (), replaces=True)
    assert world.ask(AlterConfigs((nothing,))).resources[0].error == 0 and not world.image.topic_named("t").configs


def test_what_a_broker_can_never_have_may_be_deleted_because_that_asks_for_nothing(world):
    assert configure(world, "1", "alter.log.dirs.replication.quota.window.num", None).error == 0
    assert configure(world, "1", "no.such.thing", None).error == ErrorCode.invalid_config
    assert not world.image.broker_configs


def test_another_type_of_resource_is_refused_alone(world):
    world.create("t", (0,))
    change = (ConfigChange("retention.ms", ConfigOperation.SET, "7"),)
    asked = AlterConfigs((ResourceChanges(64, "0", change), ResourceChanges(ResourceType.TOPIC, "t", change)))
    other, topic = world.ask(asked).resources
    assert (other.error, topic.error) == (ErrorCode.invalid_request, 0) and "resource type 64" in other.message
    other, topic = world.ask(DescribeConfigs((ConfigQuery(64, "0"), ConfigQuery(ResourceType.TOPIC, "t")))).resources
    assert (other.error, topic.error) == (ErrorCode.invalid_request, 0)


def test_a_group_is_described_by_no_configs(world):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.GROUP, "group"),))).resources
    assert (found.type, found.name, found.error, found.entries) == (ResourceType.GROUP, "group", 0, ())


@pytest.mark.parametrize("operation", [ConfigOperation.SET, ConfigOperation.APPEND, ConfigOperation.SUBTRACT])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("consumer.session.timeout.ms", "classic protocol.*group.min.session.timeout.ms"),
        ("consumer.heartbeat.interval.ms", "its own heartbeat.interval.ms"),
        ("share.session.timeout.ms", "share groups are not there"),
        ("streams.num.standby.replicas", "application is told num.standby.replicas"),
        ("some.config", "Unknown group config name: some.config"),
    ],
)
def test_a_group_takes_no_config_and_says_why_not_this_one(world, name, why, operation):
    changes = (ConfigChange(name, operation, "7"),)
    for replaces in (False, True):
        asked = AlterConfigs((ResourceChanges(ResourceType.GROUP, "group", changes, replaces),))
        (outcome,) = world.ask(asked).resources
        assert outcome.error == ErrorCode.invalid_config
        assert name in outcome.message and re.search(why, outcome.message)


def test_a_config_that_a_group_cannot_have_may_be_taken_away(world):
    gone = (ConfigChange("consumer.session.timeout.ms", ConfigOperation.DELETE),)
    before = list(world.image.broker_configs.items())
    assert world.ask(AlterConfigs((ResourceChanges(ResourceType.GROUP, "group", gone),))).resources[0].error == 0
    assert list(world.image.broker_configs.items()) == before


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [(ResourceType.GROUP, "", "needs a name"), (ResourceType.BROKER_LOGGER, "1", "asked of that broker itself")],
)
def test_what_names_nothing_or_is_the_brokers_own_is_an_invalid_request(world, kind, name, why):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(kind, name),))).resources
    (outcome,) = world.ask(AlterConfigs((ResourceChanges(kind, name, ()),))).resources
    assert found.error == outcome.error == ErrorCode.invalid_request
    assert why in found.message and why in outcome.message


def test_what_is_fixed_is_shown_and_cannot_be_set(new_world):
    world = new_world(delete_topic_enable=False)
    (found,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.BROKER, "1"),))).resources
    entries = {entry.name: entry for entry in found.entries}
    static = {name for name, config in BROKER_CONFIGS.items() if config.is_static}
    assert {name for name, entry in entries.items() if entry.read_only} == set(FIXED_CONFIGS) | static
    assert (entries["delete.topic.enable"].value, entries["delete.topic.enable"].source) == ("false", 4)
    assert (entries["broker.id"].value, entries["log.dirs"].value) == ("1", "/disks/1")
    assert entries["log.cleaner.enable"].source == 5
    (for_all,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.BROKER, ""),))).resources
    assert not {"broker.id", "log.dirs"} & {entry.name for entry in for_all.entries}
    assert configure(world, "1", "log.dirs", "/d").error == ErrorCode.invalid_config
    assert configure(world, "1", "broker.id", None).error == ErrorCode.invalid_config
