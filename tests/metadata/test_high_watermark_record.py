"""The record of high watermarks: whose word counts, when it is written, who hears of it, when it ends."""

from __future__ import annotations

import pytest

from raylog.control.high_watermarks import HighWatermark
from raylog.control.session import ImageChanged
from raylog.metadata.records import HighWatermarksNoted, PartitionChanged, decode_batch
from raylog.metadata.requests import DeleteTopics
from raylog.types import BROKER_SLOT, Condition, TopicIdPartition, node_id


@pytest.fixture
def three(world):
    world.p = TopicIdPartition(world.create("t", (0, 1, 2), min_insync_replicas=2), 0)
    return world


def test_the_record_only_rises_and_only_by_the_word_of_the_present_leader(three):
    three.report(three.p, 8)
    three.report(three.p, 7)
    three.leader(three.p).report(three.p, HighWatermark(5, 11))
    three.pass_time(4_000)
    assert three.noted(three.p) == (0, 8)
    three.process(three.p, 1).report(three.p, HighWatermark(0, 12))
    three.pass_time(4_000)
    assert three.noted(three.p) == (0, 8)


def test_nothing_is_recorded_while_the_log_of_a_member_is_not_known(three):
    """What it says when it opens may be older than what the leader counts, and it would look cut."""
    three.starts_at_once = False
    new = three.launch(three.process(three.p, 1).node, says_hello=False)
    new.opens = False
    new.conditions[three.p] = Condition.CLEAN
    new.hello()
    assert three.state(three.p).isr == (0, 1, 2)
    three.report(three.p, 8)
    assert three.noted(three.p) is None
    new.ends[three.p] = (0, 5)
    new.open(three.p)
    three.run_later()
    three.pass_time(4_000)
    assert three.noted(three.p) == (0, 8) and three.state(three.p).isr == (0, 1, 2)


def test_reports_are_written_together_and_seldom_and_tell_nobody_anything(world):
    topic_id = world.create("t", *[(0, 1, 2)] * 4)
    leader = world.leader(TopicIdPartition(topic_id, 0))
    broker = world.launch(node_id(1, BROKER_SLOT))
    world.pass_time(3_000)
    entries, heard = len(world.entries), [len(each.heard) for each in (leader, broker)]
    epochs = [world.state(TopicIdPartition(topic_id, number)).partition_epoch for number in range(4)]
    for offset in (5, 6, 7):
        for number in range(4):
            leader.report(TopicIdPartition(topic_id, number), HighWatermark(0, offset))
        world.pass_time(300)
    world.pass_time(10_000)
    assert len(world.entries) == entries + 1
    assert [len(each.heard) for each in (leader, broker)] == heard
    assert [world.state(TopicIdPartition(topic_id, number)).partition_epoch for number in range(4)] == epochs
    assert {mark.offset for mark in world.image.high_watermarks.values()} == {7}
    for number in range(4):
        leader.report(TopicIdPartition(topic_id, number), HighWatermark(0, 7))
    world.pass_time(10_000)
    assert len(world.entries) == entries + 1, "what stands there already is not written again"


def test_a_broker_that_is_sent_the_whole_image_is_not_sent_the_record(three):
    three.report(three.p, 8)
    broker = three.launch(node_id(1, BROKER_SLOT))
    frames = [frame for frame in broker.heard if isinstance(frame, ImageChanged)]
    told = [record for frame in frames for record in decode_batch(frame.batch)]
    assert any(isinstance(record, PartitionChanged) for record in told)
    assert not any(isinstance(record, HighWatermarksNoted) for record in told)


def test_the_record_outlives_the_controller_and_its_log_and_dies_with_the_topic(new_world):
    world = new_world(snapshot_bytes=1)
    world.p = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.report(world.p, 8)
    world.restart_controller()
    assert world.noted(world.p) == (0, 8) and not [each for each in world.entries if each.data]
    assert world.ask(DeleteTopics(("t",))).topics[0].error == 0
    assert world.noted(world.p) is None
