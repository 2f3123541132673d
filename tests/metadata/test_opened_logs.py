"""What the cluster's status says of the logs that live processes have opened."""

from __future__ import annotations

from dataclasses import replace

from raylog.control.session import ReplicaOpened
from raylog.metadata.actors.opened_logs import CutLog, OpenedLogs
from raylog.metadata.requests import ClusterStatus
from raylog.types import Condition, TopicIdPartition


def logs(world) -> OpenedLogs:
    return world.ask(ClusterStatus()).logs


def reopen(world, id, broker, condition, **found):
    """A new process of that broker's replica finds its log like this."""
    world.starts_at_once = False
    world.process(id, broker).kill()
    process = world.launch(world.state(id).node_of(broker), says_hello=False)
    process.opens = False
    process.hello()
    world.run_later()
    process.opens = True
    process.default_condition = condition
    process.open(id)
    (status,) = process.held.values()
    process.held[id] = status = replace(status, **found)
    world._later.clear()
    process.say(ReplicaOpened(status))


def test_logs_are_counted_by_what_was_found(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    assert logs(world) == OpenedLogs(missing=3), "new ones"
    reopen(world, id, 1, Condition.WHOLE, scanned_bytes=500, cut_bytes=30)
    reopen(world, id, 2, Condition.CLEAN)
    assert logs(world) == OpenedLogs(
        missing=1, clean=1, whole=1, scanned_bytes=500, cut=(CutLog("t", 0, 1, Condition.WHOLE, 30),)
    )
    reopen(world, id, 2, Condition.SUSPECT, scanned_bytes=7)
    assert logs(world).cut[1] == CutLog("t", 0, 2, Condition.SUSPECT, 0) and logs(world).scanned_bytes == 507


def test_a_log_whose_process_is_away_or_recovers_is_not_open_yet(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.starts_at_once = False
    world.process(id, 2).kill()
    assert logs(world) == OpenedLogs(missing=2, opening=1)
    process = world.launch(world.state(id).node_of(2), says_hello=False)
    process.opens = False
    process.hello()
    world.run_later()
    assert logs(world) == OpenedLogs(missing=2, opening=1)
    process.open(id)
    world.run_later()
    assert logs(world) == OpenedLogs(missing=2, whole=1)


def test_a_log_that_cannot_be_opened_is_not_waited_for(world):
    id = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.process(id, 2).fail(id)
    assert logs(world) == OpenedLogs(missing=2)
