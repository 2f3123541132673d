"""Deleting topics: folders go, confirmed one by one; emptied actors exit; nothing is forgotten meanwhile."""

from __future__ import annotations

import pytest

from raylog.control.session import Assignment, Removal, TopicsNamed
from raylog.metadata.requests import ClusterStatus, CreateTopics, DeleteTopics, RequestedTopic
from raylog.types import TopicIdPartition


@pytest.fixture
def full(world):
    world.topic = world.create("t", (0, 1), (1, 0), replicas_per_actor=2)
    world.p = TopicIdPartition(world.topic, 0)
    return world


def test_removals_go_out_and_confirmed_ones_are_forgotten_and_emptied_actors_exit(full):
    processes = list(full.processes.values())
    full.ask(DeleteTopics(("t",)))
    assert len(processes) == 2
    for process in processes:
        removals = [frame for frame in process.heard if isinstance(frame, Removal)]
        assert [(each.topic, each.partition) for each in removals] == [("t", 0), ("t", 1)]
        assert process.exited
    assert not full.image.removals and not full.image.actors and not full.image.assigned
    full.pass_time(2_000)
    assert len(full.starts) == 2, "nobody is created again"


def topics_of(process):
    """What it was told of topics: everything at first, then each change."""
    return [frame for frame in process.heard if isinstance(frame, TopicsNamed)]


def test_only_who_may_coordinate_groups_is_told_the_topics_and_what_becomes_of_them(full):
    offsets = full.create("__consumer_offsets", (2,))
    holder = full.process(TopicIdPartition(offsets, 0), 2)
    others = [process for process in full.processes.values() if process is not holder]
    (whole,) = topics_of(holder)
    assert (whole.begins, whole.is_complete, whole.gone) == (True, True, ())
    assert dict(whole.topics) == {"t": full.topic, "__consumer_offsets": offsets}
    first = next(frame for frame in holder.heard if isinstance(frame, Assignment))
    assert holder.heard.index(whole) < holder.heard.index(first), "it may lead from then on"
    full.ask(DeleteTopics(("t",)))
    full.pass_time(2_000)
    full.starts_at_once = False
    made = full.create("never-opened", (0, 1))
    full.ask(DeleteTopics(("never-opened",)))
    changes = [(frame.topics, frame.gone) for frame in topics_of(holder)[1:]]
    assert changes == [((), ("t",)), ((("never-opened", made),), ()), ((), ("never-opened",))]
    assert not any(topics_of(process) for process in others)


def test_the_next_session_begins_with_all_topics(full):
    offsets = full.create("__consumer_offsets", (2,))
    holder = full.process(TopicIdPartition(offsets, 0), 2)
    holder.lose_session()
    full.ask(DeleteTopics(("t",)))
    heard = len(holder.heard)
    holder.hello()
    (whole,) = [frame for frame in holder.heard[heard:] if isinstance(frame, TopicsNamed)]
    assert whole.begins and dict(whole.topics) == {"__consumer_offsets": offsets}


def test_an_actor_that_was_away_is_created_to_delete_its_folders(full):
    full.starts_at_once = False
    away = full.process(full.p, 1)
    away.kill()
    full.ask(DeleteTopics(("t",)))
    assert {key.node_id for key in full.image.removals} == {away.node}
    assert full.ask(ClusterStatus()).removals_pending == 2
    start = full.starts[-1]
    assert start.node_id == away.node
    full.start(start)
    assert not full.image.removals and full.processes[away.node].exited
    assert away.node not in full.image.actors


def test_a_removal_that_was_not_confirmed_is_repeated_in_the_next_session(full):
    process = full.process(full.p, 0)
    process.receive, receive = process.heard.append, process.receive
    full.ask(DeleteTopics(("t",)))
    assert process.node in full.image.removals_of
    process.receive = receive
    process.lose_session()
    process.hello()
    full.run_later()
    assert not full.image.removals and process.exited


def test_removals_outlive_the_controller(full):
    for process in full.processes.values():
        process.receive = process.heard.append
    full.ask(DeleteTopics(("t",)))
    pending = dict(full.image.removals)
    assert len(pending) == 4
    full.starts_at_once = False
    full.restart_controller()
    assert full.image.removals == pending


def test_a_replica_that_no_process_ever_opened_leaves_nothing_to_delete(world):
    world.starts_at_once = False
    world.ask(CreateTopics((RequestedTopic("t", 1, 3),)))
    world.ask(DeleteTopics(("t",)))
    assert not world.image.removals


def test_a_topic_created_again_is_another_topic_on_other_actors(full):
    for process in full.processes.values():
        process.receive = process.heard.append  # it deletes for a long time
    full.ask(DeleteTopics(("t",)))
    busy = set(full.image.removals_of)
    (created,) = full.ask(CreateTopics((RequestedTopic("t", 2, 2),))).topics
    assert created.error == 0 and created.topic_id != full.topic
    assert not busy & set(full.image.assigned)


def test_an_idle_actor_that_says_hello_again_is_told_to_exit_and_forgotten(full):
    process = full.process(full.p, 0)
    full.ask(DeleteTopics(("t",)))
    process.hello()
    full.run_later()
    assert process.session is None and process.node not in full.image.actors
