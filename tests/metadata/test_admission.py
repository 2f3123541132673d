"""Three controllers, one of whose disks is lost: the disk in its place is made a voter by records."""

from __future__ import annotations

import random
import uuid
from collections import deque
from typing import Any

import pytest

from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.metadata.controller import Controller
from raylog.metadata.events import (
    ControllerTicked,
    Event,
    PeerJoined,
    PeerLeft,
    Persist,
    Persisted,
    QuorumMessage,
    RequestReceived,
    SendControllerReply,
    SendQuorum,
)
from raylog.metadata.requests import RegisterDisk
from raylog.raft.messages import BLANK, HardState, QuorumConfig, bootstrap_snapshot
from raylog.raft.quorum import Quorum

A, B, C, D = (uuid.UUID(int=number) for number in (10, 11, 12, 13))
BROKERS = {A: 0, B: 1, C: 2, D: 2}


class Controllers:
    """Controllers that hear each other at once, whose disks write at once; nobody launches anything."""

    def __init__(self, voters: tuple[uuid.UUID, ...] = (A, B, C)) -> None:
        self.now_ms = 0
        self.formatted = voters
        self.deaf: set[uuid.UUID] = set()  # nothing that is said to them arrives
        self.members: dict[uuid.UUID, Controller] = {}
        self.queue: deque[tuple[uuid.UUID, uuid.UUID, Any]] = deque()
        self.replies: list[Any] = []
        for member in voters:
            self.start(member, blank=False)
        for one in voters:
            for other in voters:
                if one != other:
                    self.handle(one, PeerJoined(other))

    def start(self, member: uuid.UUID, *, blank: bool) -> None:
        quorum = Quorum(
            member,
            hard_state=HardState(),
            snapshot=BLANK if blank else bootstrap_snapshot("c", self.formatted),
            entries=(),
            config=QuorumConfig(),
            draw_election_timeout_ms=lambda: 1_000 + 100 * BROKERS[member],
            now_ms=self.now_ms,
        )
        config = ControllerConfig(starts_brokers=False)
        controller = Controller(
            quorum,
            controller_node=BROKERS[member] << 16 | 1,
            config=config,
            plan=lambda *_, **__: [],
            new_uuid=uuid.uuid4,
        )
        self.members[member] = controller
        self.carry_out(member, controller.start(self.now_ms))

    def handle(self, member: uuid.UUID, event: Event) -> None:
        self.carry_out(member, self.members[member].handle(event, self.now_ms))

    def carry_out(self, member: uuid.UUID, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Persist(write):
                    self.handle(member, Persisted(write.number))
                case SendQuorum(to, message):
                    self.queue.append((member, to, message))
                case SendControllerReply(_, reply):
                    self.replies.append(reply)
        self.members[member].check()

    def advance(self, elapsed_ms: int) -> None:
        end_ms = self.now_ms + elapsed_ms
        while True:
            while self.queue:
                sender, to, message = self.queue.popleft()
                if to in self.members and sender in self.members and to not in self.deaf:
                    self.handle(to, QuorumMessage(sender, message))
            due = [(at, member) for member, each in self.members.items() if (at := each.next_deadline_ms()) is not None]
            if not due or min(due)[0] > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = max(self.now_ms, min(due)[0])
            self.handle(min(due)[1], ControllerTicked())

    def lose(self, member: uuid.UUID) -> None:
        del self.members[member]
        for other in self.members:
            self.handle(other, PeerLeft(member, is_dead=True))

    def join(self, newcomer: uuid.UUID) -> None:
        for other in [each for each in self.members if each != newcomer]:
            self.handle(other, PeerJoined(newcomer))
            self.handle(newcomer, PeerJoined(other))

    def register(self, directory_id: uuid.UUID) -> None:
        active = next(each for each, controller in self.members.items() if controller.active is not None)
        asked = RegisterDisk("c", BROKERS[directory_id], directory_id, f"/{directory_id}", None)
        self.handle(active, RequestReceived(random.getrandbits(60), asked))
        self.advance(0)

    def voters(self) -> set[tuple[uuid.UUID, ...]]:
        return {controller.quorum.voters for controller in self.members.values()}


@pytest.fixture
def controllers() -> Controllers:
    made = Controllers()
    made.advance(2_000)
    for disk in (A, B, C):
        made.register(disk)
    return made


def replace_c(controllers: Controllers) -> None:
    controllers.lose(C)
    controllers.start(D, blank=True)
    controllers.join(D)


def test_the_disk_in_the_place_of_a_lost_voter_becomes_one(controllers: Controllers) -> None:
    replace_c(controllers)
    controllers.advance(1_000)
    assert controllers.voters() == {(A, B, C)}, "nobody knows yet whose disk it is"
    controllers.register(D)
    controllers.advance(1_000)
    assert controllers.voters() == {(A, B, D)}
    assert len({controller.quorum.commit_index for controller in controllers.members.values()}) == 1
    assert len({str(controller.image) for controller in controllers.members.values()}) == 1
    controllers.lose(B)
    controllers.advance(5_000)
    controllers.register(A)
    assert any(each.active for each in controllers.members.values()), "the new voter counts"


def test_nobody_loses_their_place_before_the_disk_that_takes_it_has_caught_up(controllers: Controllers) -> None:
    controllers.deaf.add(D)
    replace_c(controllers)
    controllers.register(D)
    controllers.advance(3_000)
    assert controllers.voters() - {()} == {(A, B, C)}, (
        "a majority of two needs both, and nobody is ready to be the third"
    )
    controllers.deaf.clear()
    controllers.advance(3_000)
    assert controllers.voters() == {(A, B, D)}


def test_one_controller_becomes_three_when_two_more_are_ready() -> None:
    one = Controllers(voters=(A,))
    for disk in (A, B, C):
        one.register(disk)
    one.start(B, blank=True)
    one.join(B)
    one.advance(3_000)
    assert one.members[A].quorum.voters == (A,), "of two controllers none may be away"
    one.deaf.add(C)
    one.start(C, blank=True)
    one.join(C)
    one.advance(3_000)
    assert one.members[A].quorum.voters == (A,), "the third has not caught up"
    one.deaf.clear()
    one.advance(3_000)
    assert one.voters() == {(A, B, C)}
    one.lose(A)
    one.advance(5_000)
    one.register(B)
    assert [member for member, each in one.members.items() if each.active] != []


def test_two_controllers_of_one_broker_are_no_second_and_third(controllers: Controllers) -> None:
    one = Controllers(voters=(A,))
    for disk in (A, C, D):
        one.register(disk)
    for disk in (C, D):
        one.start(disk, blank=True)
        one.join(disk)
    one.advance(3_000)
    assert one.members[A].quorum.voters == (A,)


def test_a_voter_that_can_be_reached_keeps_its_place(controllers: Controllers) -> None:
    controllers.start(D, blank=True)
    controllers.join(D)
    controllers.register(D)
    controllers.advance(3_000)
    assert controllers.voters() == {(A, B, C)}


def test_a_newcomer_of_another_broker_replaces_nobody(
    controllers: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BROKERS, D, 3)
    replace_c(controllers)
    controllers.register(D)
    controllers.advance(3_000)
    assert controllers.voters() == {(A, B, C)}


def test_nobody_is_replaced_while_another_voter_is_away_too(controllers: Controllers) -> None:
    replace_c(controllers)
    active = next(each for each, controller in controllers.members.items() if controller.active is not None)
    controllers.handle(active, PeerLeft(B if active == A else A, is_dead=False))
    controllers.register(D)
    controllers.advance(3_000)
    assert controllers.voters() == {(A, B, C)}
