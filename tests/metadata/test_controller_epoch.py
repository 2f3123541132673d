"""Three controllers: terms, the deposed, and what they may still say (nothing)."""

from __future__ import annotations

import uuid
from collections import deque

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Assignment, Hello
from raylog.control.session_frames import ControllerEpochGuard
from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.metadata.controller import Controller, image_of
from raylog.metadata.events import (
    CloseSession,
    ControllerTicked,
    PeerJoined,
    Persist,
    Persisted,
    QuorumMessage,
    RequestReceived,
    SendControllerReply,
    SendFrame,
    SendQuorum,
    SessionHello,
    StartActor,
)
from raylog.metadata.requests import CreateTopics, InitProducerId, Refused, RegisterDisk, RequestedTopic
from raylog.placement.planner import plan_replicas
from raylog.raft.messages import HardState, bootstrap_snapshot
from raylog.raft.quorum import Quorum, QuorumConfig
from raylog.types import ActorIdentity, Endpoint

VOTERS = [uuid.UUID(int=number) for number in (1, 2, 3)]
DISK = uuid.UUID(int=0xD0)


class Trio:
    def __init__(self, **config):
        self.now = 0
        self.cut: set[uuid.UUID] = set()
        self.effects: dict[uuid.UUID, list[object]] = {voter: [] for voter in VOTERS}
        self.disks = {voter: (HardState(), bootstrap_snapshot("c", VOTERS), []) for voter in VOTERS}
        self.inbox: deque[object] = deque()
        self.uuids = iter(range(0xABC, 0xFFFF))
        self.config = ControllerConfig(starts_brokers=False, plans_hosts=False, **config)
        self.controllers: dict[uuid.UUID, Controller] = {}
        for voter in VOTERS:
            self.boot(voter)
        self.deliver()

    def boot(self, voter):
        hard_state, snapshot, entries = self.disks[voter]
        quorum = Quorum(
            voter,
            hard_state=hard_state,
            snapshot=snapshot,
            entries=entries,
            config=QuorumConfig(),
            draw_election_timeout_ms=lambda: 1_000 + 300 * VOTERS.index(voter),
            now_ms=self.now,
        )
        self.controllers[voter] = Controller(
            quorum,
            controller_node=1,
            config=self.config,
            plan=plan_replicas,
            new_uuid=lambda: uuid.UUID(int=next(self.uuids)),
        )
        self.perform(voter, self.controllers[voter].start(self.now))

    def feed(self, voter, event):
        self.perform(voter, self.controllers[voter].handle(event, self.now))
        self.controllers[voter].check()

    def perform(self, voter, effects):
        for effect in effects:
            match effect:
                case Persist(write):
                    hard_state, snapshot, entries = self.disks[voter]
                    if write.entries:
                        entries = [entry for entry in entries if entry.index < write.entries[0].index] + [
                            *write.entries
                        ]
                    snapshot = write.snapshot or snapshot
                    entries = [entry for entry in entries if entry.index > snapshot.last_index]
                    self.disks[voter] = (write.hard_state or hard_state, snapshot, entries)
                    self.inbox.append((voter, Persisted(write.number)))
                case SendQuorum(to, message):
                    if not {voter, to} & self.cut:
                        self.inbox.append((to, QuorumMessage(voter, message)))
                case _:
                    self.effects[voter].append(effect)

    def deliver(self):
        while self.inbox:
            self.feed(*self.inbox.popleft())

    def pass_time(self, ms):
        for _ in range(0, ms, 50):
            self.now += 50
            for voter in VOTERS:
                deadline = self.controllers[voter].next_deadline_ms()
                if deadline is not None and deadline <= self.now:
                    self.feed(voter, ControllerTicked())
            self.deliver()

    def active(self):
        (voter,) = [voter for voter in VOTERS if self.controllers[voter].active is not None and voter not in self.cut]
        return voter

    def taken(self, voter, kind):
        return [effect for effect in self.effects[voter] if isinstance(effect, kind)]


@pytest.fixture
def trio():
    trio = Trio()
    trio.pass_time(2_000)
    trio.feed(trio.active(), RequestReceived(1, RegisterDisk("c", 0, DISK, "/d")))
    trio.feed(trio.active(), RequestReceived(2, CreateTopics((RequestedTopic("t", 1, 1),))))
    trio.deliver()
    return trio


def hello(trio, voter, session_id):
    node = next(iter(trio.controllers[voter].image.assigned))
    trio.feed(voter, SessionHello(session_id, Hello(ActorIdentity("c", node, DISK, 5), Endpoint("h", 1), "boot")))
    trio.deliver()


def test_controllers_that_reach_each_other_at_the_start_elect_one_at_once():
    trio = Trio()
    for voter in VOTERS:
        for peer in VOTERS:
            if peer != voter:
                trio.feed(voter, PeerJoined(peer))
    trio.pass_time(200)
    assert trio.active() in VOTERS


def test_one_controller_is_active_and_its_epoch_is_the_term(trio):
    voter = trio.active()
    controller = trio.controllers[voter]
    assert controller.controller_epoch == controller.quorum.term >= 1
    assert {each.token for each in trio.taken(voter, SendControllerReply)} == {1, 2}
    trio.pass_time(500)
    images = [trio.controllers[each].image for each in VOTERS]
    assert images[0] == images[1] == images[2] and "t" in images[0].topic_ids


def test_tv_25_a_deposed_controllers_frames_are_of_a_lower_epoch_than_its_successors(trio):
    guard = ControllerEpochGuard()
    old = trio.active()
    hello(trio, old, 10)
    early = [effect.frame for effect in trio.taken(old, SendFrame)]
    assert any(isinstance(frame, Assignment) for frame in early) and all(guard.accepts(frame) for frame in early)
    trio.cut.add(old)
    trio.pass_time(5_000)
    new = trio.active()
    hello(trio, new, 20)
    late = [effect.frame for effect in trio.taken(new, SendFrame)]
    assert late and all(guard.accepts(frame) for frame in late)
    assert min(frame.controller_epoch for frame in late) > max(frame.controller_epoch for frame in early)
    assert not any(guard.accepts(frame) for frame in early), "what is still under way from the old one is refused"


def test_a_controller_without_a_majority_closes_all_sessions_and_steps_down(trio):
    old = trio.active()
    hello(trio, old, 10)
    trio.cut.add(old)
    trio.feed(old, RequestReceived(7, CreateTopics((RequestedTopic("lost", 1, 1),))))
    trio.feed(old, RequestReceived(8, InitProducerId()))
    trio.pass_time(3_000)
    assert trio.controllers[old].active is None
    assert CloseSession(10) in trio.effects[old]
    replies = {effect.token: effect.reply for effect in trio.taken(old, SendControllerReply)}
    assert all(isinstance(replies[token], Refused) for token in (7, 8))
    assert replies[7].error == ErrorCode.not_controller
    assert "lost" not in trio.controllers[old].image.topic_ids, "it was never committed"
    assert not [start for start in trio.taken(old, StartActor) if len(start.replicas) == 0]


def test_a_deposed_controller_rebuilds_from_the_committed_log(trio):
    old = trio.active()
    trio.cut.add(old)
    trio.feed(old, RequestReceived(7, CreateTopics((RequestedTopic("lost", 1, 1),))))
    trio.pass_time(5_000)
    new = trio.active()
    trio.feed(new, RequestReceived(9, CreateTopics((RequestedTopic("kept", 1, 1),))))
    trio.deliver()
    trio.cut.clear()
    trio.pass_time(5_000)
    images = [trio.controllers[voter].image for voter in VOTERS]
    assert images[0] == images[1] == images[2]
    assert sorted(images[0].topic_ids) == ["kept", "t"]


def test_a_deposed_controller_says_of_what_is_committed_that_it_was_created(trio):
    """Its successor would say that the topic exists already."""
    old = trio.active()
    trio.feed(old, RequestReceived(7, CreateTopics((RequestedTopic("made", 1, 1),), timeout_ms=60_000)))
    trio.deliver()
    assert "made" in trio.controllers[old].image.topic_ids
    assert 7 not in {effect.token for effect in trio.taken(old, SendControllerReply)}, "nobody leads it yet"
    trio.cut.add(old)
    trio.feed(old, RequestReceived(8, CreateTopics((RequestedTopic("lost", 1, 1),), timeout_ms=60_000)))
    trio.pass_time(3_000)
    replies = {effect.token: effect.reply for effect in trio.taken(old, SendControllerReply)}
    assert replies[7].topics[0].error == 0
    assert replies[8].error == ErrorCode.not_controller


def test_a_creation_that_timed_out_before_its_commit_is_not_answered_again_by_the_deposed(trio):
    old = trio.active()
    trio.cut.add(old)
    trio.feed(old, RequestReceived(7, CreateTopics((RequestedTopic("lost", 1, 1),), timeout_ms=200)))
    trio.pass_time(3_000)
    assert trio.controllers[old].active is None
    (reply,) = [effect.reply for effect in trio.taken(old, SendControllerReply) if effect.token == 7]
    assert reply.topics[0].error == ErrorCode.request_timed_out


def test_a_death_is_declared_only_with_a_majority(trio):
    old = trio.active()
    hello(trio, old, 10)
    node = next(iter(trio.controllers[old].image.actors))
    trio.cut.add(old)
    from raylog.metadata.events import Dial, Dialed, DialOutcome, SessionClosed

    trio.feed(old, SessionClosed(10))
    (dial,) = trio.taken(old, Dial)
    trio.feed(old, Dialed(node, 5, dial.dial_id, DialOutcome.REFUSED))
    trio.pass_time(3_000)
    assert all(trio.controllers[voter].image.actors[node].alive for voter in VOTERS if voter == old)


def test_producer_ids_of_two_terms_differ(trio):
    first = trio.active()
    trio.feed(first, RequestReceived(7, InitProducerId()))
    trio.deliver()
    trio.cut.add(first)
    trio.pass_time(5_000)
    second = trio.active()
    trio.feed(second, RequestReceived(8, InitProducerId()))
    trio.deliver()
    given = [effect.reply.producer_id for voter in (first, second) for effect in trio.taken(voter, SendControllerReply)
             if effect.token in (7, 8)]  # fmt: skip
    assert given == [0, 1_000]


def test_a_snapshot_replaces_the_log_and_folds_to_the_same_image():
    trio = Trio(snapshot_bytes=400)
    trio.pass_time(2_000)
    voter = trio.active()
    trio.feed(voter, RequestReceived(1, RegisterDisk("c", 0, DISK, "/d")))
    for number in range(20):
        trio.feed(voter, RequestReceived(100 + number, CreateTopics((RequestedTopic(f"t{number}", 1, 1),))))
        trio.deliver()
    trio.pass_time(500)
    _, snapshot, entries = trio.disks[voter]
    assert snapshot.last_index > 10 and len(entries) < 10
    assert len(image_of(snapshot).topics) >= 15
    before = trio.controllers[voter].image.copy()
    for each in VOTERS:
        trio.boot(each)
    trio.pass_time(3_000)
    assert all(trio.controllers[each].image == before for each in VOTERS)


def test_a_member_that_was_away_for_long_catches_up_by_a_snapshot():
    trio = Trio(snapshot_bytes=400)
    trio.pass_time(2_000)
    voter = trio.active()
    away = next(each for each in VOTERS if each != voter)
    trio.cut.add(away)
    trio.feed(voter, RequestReceived(1, RegisterDisk("c", 0, DISK, "/d")))
    for number in range(20):
        trio.feed(voter, RequestReceived(100 + number, CreateTopics((RequestedTopic(f"t{number}", 1, 1),))))
        trio.deliver()
    assert not trio.controllers[away].image.topics
    trio.cut.clear()
    trio.pass_time(5_000)
    assert trio.controllers[away].image == trio.controllers[trio.active()].image
    assert len(trio.controllers[away].image.topics) == 20
