"""Elections by hand and leaders that go back to their preferred replicas by themselves."""

from __future__ import annotations

import uuid

from kio.schema.errors import ErrorCode

from raylog.configs.topic_configs import TopicConfig
from raylog.metadata.configuration import effective_configs
from raylog.metadata.events import Notice, Persist
from raylog.metadata.image import MetadataImage
from raylog.metadata.partitions.leadership import imbalanced
from raylog.metadata.records import DiskRegistered, PartitionChanged, PartitionState, ReplicaSlot, TopicCreated
from raylog.metadata.requests import ElectionType, ElectLeaders
from raylog.types import TopicIdPartition, node_id

TOPIC = uuid.UUID(int=7)
MINUTE_MS = 60_000


def image_with(partitions: int, *, led_elsewhere: int) -> MetadataImage:
    """Partitions that all prefer broker 0, some of them led by broker 1."""
    slots = tuple(ReplicaSlot(broker, node_id(broker, 2), uuid.UUID(int=broker + 1)) for broker in (0, 1))
    records: list[object] = [DiskRegistered(slot.directory_id, slot.broker_id, "/d") for slot in slots]
    records.append(TopicCreated(TOPIC, "t"))
    for partition in range(partitions):
        leader = 1 if partition < led_elsewhere else 0
        records.append(PartitionChanged(TOPIC, partition, PartitionState(slots, (0, 1), leader, 9, 0)))
    return MetadataImage.of(records)


def test_tv_28_three_of_twenty_partitions_led_elsewhere_are_too_many_and_two_are_not():
    too_many = imbalanced(image_with(20, led_elsewhere=3), percentage=10)
    assert too_many == [TopicIdPartition(TOPIC, partition) for partition in range(3)]
    assert imbalanced(image_with(20, led_elsewhere=2), percentage=10) == [], "exactly the percentage must not act"


def moved_away(world):
    """A partition whose preferred leader, broker 0, has died and is back in the ISR."""
    topic_id = world.create("t", (0, 1, 2))
    id = TopicIdPartition(topic_id, 0)
    world.process(id, 0).kill()
    world.run_later()
    assert world.state(id).leader == 1
    assert world.leader(id).alter(id, 1, 2, 0) == 0
    return id


def test_leaders_go_back_by_themselves_after_the_interval_and_not_before(world):
    id = moved_away(world)
    world.pass_time(4 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 1
    world.pass_time(MINUTE_MS + 1_000, step=1_000)
    assert world.state(id).leader == 0
    epoch = world.state(id).leader_epoch
    world.pass_time(6 * MINUTE_MS, step=1_000)
    assert world.state(id).leader_epoch == epoch, "a balanced cluster is left alone"


def test_leaders_stay_where_they_are_if_automatic_balance_is_off(new_world):
    world = new_world(auto_leader_rebalance_enable=False)
    id = moved_away(world)
    world.pass_time(11 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 1


def test_a_preferred_replica_that_is_not_in_sync_is_not_given_the_lead_back(world):
    topic_id = world.create("t", (0, 1, 2))
    id = TopicIdPartition(topic_id, 0)
    world.process(id, 0).kill()
    world.run_later()
    world.pass_time(6 * MINUTE_MS, step=1_000)
    assert world.state(id).leader == 1 and 0 not in world.state(id).isr
    outcome = world.ask(ElectLeaders(ElectionType.PREFERRED, (("t", 0),))).partitions[0]
    assert outcome.error == ErrorCode.preferred_leader_not_available
    assert outcome.message == "the preferred leader, broker 0, is not in sync"


def test_elections_by_hand_say_what_was_not_done_and_why(world):
    id = moved_away(world)
    reply = world.ask(ElectLeaders(ElectionType.PREFERRED))
    assert [(each.topic, each.partition, each.error) for each in reply.partitions] == [("t", 0, 0)]
    assert world.state(id).leader == 0
    again, unknown = world.ask(ElectLeaders(ElectionType.PREFERRED, (("t", 0), ("t", 5)))).partitions
    assert again.error == ErrorCode.election_not_needed and "broker 0, leads already" in again.message
    assert unknown.error == ErrorCode.unknown_topic_or_partition
    unclean = world.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),))).partitions[0]
    assert unclean.error == ErrorCode.election_not_needed


def many_led_by_broker_0(world):
    topic = world.create("many", *[(0, 1, 2)] * 40, replicas_per_actor=1_000)
    ids = [TopicIdPartition(topic, partition) for partition in range(40)]
    assert {world.state(id).leader for id in ids} == {0}
    world.starts_at_once = False
    return ids


def test_a_host_of_many_leaders_that_dies_has_each_config_parsed_once(world, monkeypatch):
    ids = many_led_by_broker_0(world)
    parse, parsed = TopicConfig.parse, []

    def counting(config, text):
        parsed.append((config.name, text))
        return parse(config, text)

    effective_configs._parsed.cache_clear()
    monkeypatch.setattr(TopicConfig, "parse", counting)
    world.process(ids[0], 0).kill()
    world.pass_time(100)
    assert {world.state(id).leader for id in ids} == {1}
    assert len(parsed) == len(set(parsed))


def test_what_a_server_logs_of_many_new_leaders_comes_after_the_write_and_the_frames(world):
    ids = many_led_by_broker_0(world)
    kinds, perform = [], world.perform

    def watched(effects):
        kinds.append([type(effect) for effect in effects])
        perform(effects)

    world.perform = watched
    world.process(ids[0], 0).kill()
    world.pass_time(100)
    assert any(Persist in each and each.count(Notice) > len(ids) for each in kinds)
    for each in kinds:
        assert Notice not in each[: len(each) - each.count(Notice)], each
