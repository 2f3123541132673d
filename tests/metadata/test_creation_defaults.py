"""What a topic gets whose creation leaves partitions or replicas to the cluster."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.requests import CreateTopics, RequestedTopic


def configure(world, name, value, *, broker="", operation=ConfigOperation.SET):
    change = ConfigChange(name, operation if value is not None else ConfigOperation.DELETE, value)
    return world.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, broker, (change,)),))).resources[0]


def create(world, name="t", partitions=-1, factor=-1, **options):
    (created,) = world.ask(CreateTopics((RequestedTopic(name, partitions, factor, **options),))).topics
    return created


def shown(world, name, broker="0"):
    (found,) = world.ask(DescribeConfigs((ConfigQuery(ResourceType.BROKER, broker, (name,)),))).resources
    (entry,) = found.entries
    return entry


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_unset_a_topic_has_a_replica_on_three_brokers_or_on_all_if_there_are_fewer(new_world, brokers, factor):
    world = new_world(brokers)
    created = create(world)
    assert (created.error, created.partitions, created.replication_factor) == (0, 1, factor)
    entry = shown(world, "default.replication.factor")
    assert (entry.value, entry.source, entry.read_only) == (str(factor), 5, False)


def test_what_is_set_for_all_brokers_holds_from_then_on(world):
    assert configure(world, "num.partitions", "4").error == 0
    assert configure(world, "default.replication.factor", "2").error == 0
    created = create(world)
    assert (created.partitions, created.replication_factor) == (4, 2)
    for name, value in (("num.partitions", "4"), ("default.replication.factor", "2")):
        assert (shown(world, name).value, shown(world, name).source) == (value, 3)
        assert (shown(world, name, "").value, shown(world, name, "").source) == (value, 3)
    configure(world, "num.partitions", None)
    configure(world, "default.replication.factor", None)
    created = create(world, "u")
    assert (created.partitions, created.replication_factor) == (1, 3)


def test_what_is_set_for_all_brokers_stands_before_what_the_controller_was_started_with(new_world):
    world = new_world(num_partitions=2, default_replication_factor=1)
    assert (shown(world, "num.partitions").source, shown(world, "default.replication.factor").source) == (4, 4)
    assert (create(world, "t").partitions, create(world, "u").replication_factor) == (2, 1)
    configure(world, "num.partitions", "5")
    assert (create(world, "v").partitions, shown(world, "num.partitions").source) == (5, 3)


def test_a_creation_that_says_what_it_wants_gets_it(world):
    configure(world, "num.partitions", "4")
    created = create(world, "t", 2, 1)
    assert (created.partitions, created.replication_factor) == (2, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "-1"),
        ("num.partitions", "10001"),
        ("num.partitions", "many"),
        ("default.replication.factor", "0"),
        ("default.replication.factor", "-1"),
        ("default.replication.factor", "32768"),
        ("default.replication.factor", "1.5"),
    ],
)
def test_a_bad_value_is_refused_by_name(world, name, value):
    answer = configure(world, name, value)
    assert answer.error == ErrorCode.invalid_config and f"{name}=" in answer.message
    assert not world.image.broker_configs


def test_the_most_partitions_that_may_be_set_are_those_that_one_request_makes(world):
    assert "must be from 1 to 10000" in configure(world, "num.partitions", "10001").message
    assert configure(world, "num.partitions", "10000").error == 0
    (planned,) = world.ask(CreateTopics((RequestedTopic("t", -1, -1),), validate_only=True)).topics
    assert (planned.error, planned.partitions) == (0, 10_000)


@pytest.mark.parametrize("name", ["num.partitions", "default.replication.factor"])
def test_a_single_broker_has_no_default_of_its_own(world, name):
    answer = configure(world, name, "2", broker="1")
    assert answer.error == ErrorCode.invalid_config and "cluster's as a whole" in answer.message


def test_a_default_factor_that_there_are_no_brokers_for_is_named_where_a_topic_needs_it(world):
    configure(world, "default.replication.factor", "4")
    created = create(world)
    assert created.error == ErrorCode.invalid_replication_factor
    assert (
        created.message == "replication factor 4 (default.replication.factor) is larger than the number of brokers, 3"
    )


def own_minimum(world, name):
    return world.image.topic_named(name).configs.get("min.insync.replicas")


def test_three_replicas_by_default_come_with_two_that_must_be_in_sync(world):
    created = create(world, "three")
    assert ("min.insync.replicas", "2", 1) in created.configs
    assert own_minimum(world, "three") == "2"
    configure(world, "default.replication.factor", "2")
    create(world, "two")
    assert own_minimum(world, "two") is None


def test_a_minimum_that_the_creation_names_wins(world):
    create(world, "one", configs=(("min.insync.replicas", "1"),))
    create(world, "all", configs=(("min.insync.replicas", "3"),))
    assert (own_minimum(world, "one"), own_minimum(world, "all")) == ("1", "3")


@pytest.mark.parametrize("value", ["1", "3"])
def test_a_minimum_that_is_set_for_all_brokers_wins(world, value):
    configure(world, "min.insync.replicas", value)
    created = create(world)
    assert own_minimum(world, "t") is None
    assert ("min.insync.replicas", value, 3) in created.configs


def test_a_creation_that_names_its_factor_or_its_brokers_has_kafkas_minimum(world):
    create(world, "named", 1, 3)
    create(world, "by-hand", assignment=((0, (0, 1, 2)),))
    assert own_minimum(world, "named") is None and own_minimum(world, "by-hand") is None
