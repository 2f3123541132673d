"""A controller that has nobody to talk to sleeps until something happens."""

from __future__ import annotations

import uuid

from raylog.raft.messages import HardState, QuorumConfig, bootstrap_snapshot
from raylog.raft.quorum import Quorum

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def leader() -> Quorum:
    quorum = Quorum(
        ONE,
        hard_state=HardState(),
        snapshot=bootstrap_snapshot("c", (ONE,)),
        entries=(),
        config=QuorumConfig(),
        draw_election_timeout_ms=lambda: 1_000,
        now_ms=0,
    )
    while ready := quorum.ready():
        if ready.write is not None:
            quorum.persisted(ready.write.number, 0)
    assert quorum.is_leader
    return quorum


def test_a_sole_voter_that_leads_has_no_deadline() -> None:
    assert leader().next_deadline_ms() is None


def test_a_sole_voter_speaks_to_an_observer_as_soon_as_there_is_one() -> None:
    quorum = leader()
    quorum.add_observer(OTHER, 60_000)
    due_ms = quorum.next_deadline_ms()
    assert due_ms is not None and due_ms <= 60_000 + QuorumConfig().heartbeat_interval_ms
    quorum.tick(due_ms)
    ready = quorum.ready()
    assert ready is not None and {to for to, _ in ready.messages} == {OTHER}
    quorum.remove_observer(OTHER, 61_000)
    assert quorum.next_deadline_ms() is None
