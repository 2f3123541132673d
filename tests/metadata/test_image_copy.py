"""A Broker's copy of the image: what its session brings folds to what is committed."""

from __future__ import annotations

import uuid

import pytest

from raylog.control.session import Assignment, ImageChanged, Welcome
from raylog.metadata.image_copy import ImageCopy
from raylog.metadata.partitions import announcements
from raylog.metadata.records import BrokerRegistered, ClusterFormatted, TopicCreated, encode_batch
from raylog.metadata.requests import DeleteTopics
from raylog.types import TopicIdPartition


def copies(world) -> dict[int, ImageCopy]:
    """What each Broker has folded of the frames of its last session."""
    found = {}
    for node, process in world.processes.items():
        if node & 0xFFFF == 0 and process.session is not None:
            copy = found[process.broker] = ImageCopy()
            last = max(index for index, frame in enumerate(process.heard) if isinstance(frame, Welcome))
            for frame in process.heard[last:]:
                if isinstance(frame, ImageChanged):
                    copy.fold(frame)
    return found


@pytest.fixture
def brokers(world, broker_node):
    for broker in range(3):
        world.launch(broker_node(broker))
    return world


def test_every_broker_folds_what_is_committed(brokers):
    topic = brokers.create("t", (0, 1, 2), (1, 2, 0), min_insync_replicas=2)
    brokers.leader(TopicIdPartition(topic, 0)).kill()
    brokers.pass_time(500)
    brokers.create("gone", (0,))
    brokers.ask(DeleteTopics(("gone",)))
    assert brokers.configure("t", "retention.ms", "1000") == 0
    seen = copies(brokers)
    assert sorted(seen) == [0, 1, 2]
    for copy in seen.values():
        assert copy.image == brokers.image


def test_a_broker_that_comes_back_to_another_controller_begins_anew(brokers):
    brokers.create("t", (0, 1, 2))
    brokers.restart_controller()
    for process in list(brokers.processes.values()):
        process.hello()
    brokers.run_later()
    brokers.create("u", (2, 1))
    assert [copy.image for copy in copies(brokers).values()] == [brokers.image] * 3


def test_brokers_that_come_at_different_times_are_sent_what_is_committed_then(brokers, broker_node):
    for broker in range(3):
        process = brokers.processes[broker_node(broker)]
        process.lose_session()
        process.heard.clear()
        brokers.create(f"before-{broker}", (0, 1))
        process.hello()
        brokers.run_later()
    assert [copy.image for copy in copies(brokers).values()] == [brokers.image] * 3


def test_replicas_are_not_sent_the_image(brokers):
    topic = brokers.create("t", (0, 1, 2))
    heard = brokers.leader(TopicIdPartition(topic, 0)).heard
    assert not any(isinstance(frame, ImageChanged) for frame in heard)


def test_a_process_that_coordinates_transactions_folds_what_is_committed(world):
    world.create("t", (0, 1))
    id = TopicIdPartition(world.create("__transaction_state", (2,)), 0)
    holder = world.process(id, 2)
    heard = [type(frame) for frame in holder.heard]
    assert heard.index(ImageChanged) < heard.index(Assignment), "it may lead from then on"
    for name in ("later", "after a new session"):
        world.create(name.replace(" ", "-"), (0, 1))
        last = max(index for index, frame in enumerate(holder.heard) if isinstance(frame, Welcome))
        copy = ImageCopy()
        for frame in holder.heard[last:]:
            if isinstance(frame, ImageChanged):
                copy.fold(frame)
        assert copy.image == world.image
        holder.lose_session()
        holder.hello()
        world.run_later()


def test_an_image_in_several_frames_counts_from_the_last_on(brokers, broker_node, monkeypatch):
    monkeypatch.setattr(announcements, "IMAGE_FRAME_RECORDS", 3)
    brokers.create("t", (0, 1, 2))
    process = brokers.processes[broker_node(1)]
    process.lose_session()
    process.heard.clear()
    process.hello()
    brokers.run_later()
    frames = [frame for frame in process.heard if isinstance(frame, ImageChanged)]
    assert len(frames) > 2 and [frame.begins for frame in frames] == [True] + [False] * (len(frames) - 1)
    copy = ImageCopy()
    assert [copy.fold(frame) for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert copy.image == brokers.image


def test_an_image_that_is_still_arriving_does_not_show():
    copy = ImageCopy()
    copy.fold(ImageChanged(1, encode_batch([ClusterFormatted("c"), BrokerRegistered(0)]), begins=True))
    copy.fold(ImageChanged(2, encode_batch([ClusterFormatted("c")]), begins=True, is_complete=False))
    assert copy.image is not None and list(copy.image.brokers) == [0]
    copy.fold(ImageChanged(2, encode_batch([BrokerRegistered(7)])))
    assert list(copy.image.brokers) == [7]


def test_a_change_before_any_image_is_a_mistake():
    with pytest.raises(AssertionError, match="before any image"):
        ImageCopy().fold(ImageChanged(1, encode_batch([TopicCreated(uuid.UUID(int=1), "t")])))
