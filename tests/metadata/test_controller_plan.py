"""Controllers that go where a plan says, one voter at a time, on a network and disks of the test's own; calm first, then with faults.

The fault runs look for what would break the quorum: two leaders of a term, a voter that votes twice, a committed entry that a later
leader lacks, also where a controller has forgotten everything and come back under the same directory id.
"""

from __future__ import annotations

import heapq
import itertools
import random
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.metadata.controller import START_AGAIN_MS, Controller
from raylog.metadata.controllers.controller_plan import QuorumStanding, is_settled, next_step
from raylog.metadata.events import (
    ControllerTicked,
    Event,
    Notice,
    PeerJoined,
    PeerLeft,
    Persist,
    Persisted,
    QuorumMessage,
    RequestReceived,
    RetireController,
    SendControllerReply,
    SendQuorum,
    StartController,
)
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import BrokerRegistered, ControllersPlanned, DiskRegistered
from raylog.metadata.requests import ControllersPlan, DrainBroker, PlanControllers, RegisterDisk, UnregisterBroker
from raylog.raft.messages import BLANK, HardState, QuorumConfig, QuorumWrite, VoteReply, bootstrap_snapshot
from raylog.raft.quorum import Quorum

BROKERS = 6


def disk_of(broker: int) -> uuid.UUID:
    return uuid.UUID(int=0xD000 + broker)


def disks_of(*brokers: int) -> tuple[uuid.UUID, ...]:
    return tuple(disk_of(broker) for broker in brokers)


class Memory:
    """The metadata on one disk."""

    def __init__(self) -> None:
        self.hard_state, self.snapshot, self.entries = HardState(), BLANK, []

    def store(self, write: QuorumWrite) -> None:
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.snapshot is not None:
            self.snapshot = write.snapshot
            self.entries = [entry for entry in self.entries if entry.index > write.snapshot.last_index]
        if write.entries:
            first = write.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first] + list(write.entries)


class Controllers:
    """Up to six brokers with a disk each. What is ordered is done after a while; with a seed it takes longer or does not happen."""

    def __init__(self, voters: int = 3, seed: int | None = None, append_bytes_max: int = 1 << 20) -> None:
        self.config = QuorumConfig(append_bytes_max=append_bytes_max)
        self.chance = random.Random(seed)
        self.is_rough = seed is not None
        self.now_ms = 0
        self.members: dict[int, Controller] = {}
        self.lives = dict.fromkeys(range(BROKERS), 0)
        self.memories = {broker: Memory() for broker in range(BROKERS)}
        self.off: set[int] = set()  # brokers on which nothing starts
        self.started: list[int] = []
        self.retired: list[int] = []
        self.notices: list[str] = []
        self.replies: dict[int, Any] = {}
        self.seen_voters: list[tuple[int, ...]] = []
        self._queue: list[tuple[int, int, Any]] = []
        self._numbers = itertools.count()
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], uuid.UUID] = {}
        self._committed: dict[int, tuple[int, bytes]] = {}
        for broker in range(voters):
            self.memories[broker].snapshot = bootstrap_snapshot("c", disks_of(*range(voters)))
        for broker in range(voters):
            self.start(broker)
        self.advance(3_000)
        for broker in range(BROKERS):
            self.ask(RegisterDisk("c", broker, disk_of(broker), f"/{broker}", None))

    # ---------------------------------------------------------------- processes

    def start(self, broker: int) -> None:
        if broker in self.members or broker in self.off:
            return
        memory = self.memories[broker]
        self.lives[broker] += 1
        quorum = Quorum(
            disk_of(broker),
            hard_state=memory.hard_state,
            snapshot=memory.snapshot,
            entries=memory.entries,
            config=self.config,
            draw_election_timeout_ms=lambda: self.chance.randint(1_000, 2_000),
            now_ms=self.now_ms,
        )
        self.members[broker] = Controller(
            quorum,
            controller_node=broker << 16 | 1,
            config=ControllerConfig(starts_brokers=False, plans_hosts=False),
            plan=lambda *_, **__: [],
            new_uuid=uuid.uuid4,
        )
        self.carry_out(broker, self.members[broker].start(self.now_ms))
        for other in sorted(self.members.keys() - {broker}):
            self.handle(other, PeerJoined(disk_of(broker)))
            self.handle(broker, PeerJoined(disk_of(other)))

    def crash(self, broker: int) -> None:
        if self.members.pop(broker, None) is not None:
            self.lives[broker] += 1
            for other in sorted(self.members):
                self.handle(other, PeerLeft(disk_of(broker), is_dead=True))

    def later(self, delay_ms: int, work: Any) -> None:
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._numbers), work))

    def delay(self, usual_ms: int) -> int:
        return self.chance.randint(0, 4 * usual_ms) if self.is_rough else usual_ms

    def handle(self, broker: int, event: Event) -> None:
        if broker in self.members:
            self.carry_out(broker, self.members[broker].handle(event, self.now_ms))

    def carry_out(self, broker: int, effects: list[Any]) -> None:
        life = self.lives[broker]
        for effect in effects:
            match effect:
                case Persist(write):
                    self.later(self.delay(2), lambda write=write: self._store(broker, life, write))
                case SendQuorum(to, message):
                    self._send(broker, to, message)
                case SendControllerReply(token, reply):
                    self.replies[token] = reply
                case StartController():
                    assert effect.directory_id == disk_of(effect.broker_id)
                    self.started.append(effect.broker_id)
                    self.later(self.delay(100), lambda started=effect.broker_id: self.start(started))
                case RetireController():
                    self.retired.append(broker)
                    self.later(0, lambda: self._retire(broker, life))
                case Notice(text):
                    self.notices.append(text)
        if broker in self.members:
            self._judge(broker)

    def _store(self, broker: int, life: int, write: QuorumWrite) -> None:
        if self.lives[broker] == life:
            self.memories[broker].store(write)
            self.handle(broker, Persisted(write.number))

    def _retire(self, broker: int, life: int) -> None:
        if self.lives[broker] == life:
            self.crash(broker)
            self.memories[broker] = Memory()

    def _send(self, sender: int, to: uuid.UUID, message: Any) -> None:
        receiver = to.int - 0xD000
        if isinstance(message, VoteReply) and message.granted and not message.pre_vote:
            voted = self._votes.setdefault((message.term, sender), to)
            assert voted == to, f"{sender} votes twice in term {message.term}"
        lives = self.lives[sender], self.lives[receiver]

        def arrive() -> None:
            if (self.lives[sender], self.lives[receiver]) == lives:  # a link ends with either end
                self.handle(receiver, QuorumMessage(disk_of(sender), message))

        if not self.is_rough or self.chance.random() > 0.05:
            self.later(self.delay(1), arrive)

    def _judge(self, broker: int) -> None:
        controller = self.members[broker]
        controller.check()
        quorum = controller.quorum
        for entry in quorum.log.entries:
            if entry.index <= quorum.delivered_index:
                known = self._committed.setdefault(entry.index, (entry.term, entry.data))
                assert known == (entry.term, entry.data), f"two entries are committed at {entry.index}"
        if quorum.is_leader and self._leaders.get(quorum.term) is None:
            self._leaders[quorum.term] = broker
            for index, (term, _) in self._committed.items():
                held = index <= quorum.log.snapshot.last_index or quorum.log.term_at(index) == term
                assert held, f"{broker} leads term {quorum.term} without the committed entry {index}"
        assert not quorum.is_leader or self._leaders[quorum.term] == broker, f"two lead term {quorum.term}"
        if quorum.is_leader:
            voters = tuple(sorted(each.int - 0xD000 for each in quorum.voters))
            if not self.seen_voters or self.seen_voters[-1] != voters:
                self.seen_voters.append(voters)

    # ---------------------------------------------------------------- time and requests

    def advance(self, elapsed_ms: int) -> None:
        end_ms = self.now_ms + elapsed_ms
        while True:
            due = [(at, each) for each, member in self.members.items() if (at := member.next_deadline_ms()) is not None]
            tick_ms = max(self.now_ms, min(due)[0]) if due else end_ms + 1
            work_ms = self._queue[0][0] if self._queue else end_ms + 1
            if min(tick_ms, work_ms) > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = min(tick_ms, work_ms)
            if work_ms <= tick_ms:
                heapq.heappop(self._queue)[2]()
            else:
                self.handle(min(due)[1], ControllerTicked())

    @property
    def active(self) -> int | None:
        found = [(each.quorum.term, broker) for broker, each in self.members.items() if each.active is not None]
        return max(found)[1] if found else None

    def ask(self, request: Any, *, patience_ms: int = 2_000) -> Any:
        """The active controller's answer; None if there was none."""
        token = next(self._numbers)
        if self.active is None:
            self.advance(patience_ms)
        if self.active is not None:
            self.handle(self.active, RequestReceived(token, request))
            self.advance(patience_ms if self.is_rough else 50)
        return self.replies.get(token)

    def plan(self, *brokers: int, count: int = 0) -> ControllersPlan:
        answer = self.ask(PlanControllers(brokers, count))
        assert isinstance(answer, ControllersPlan), answer
        return answer

    def voters(self) -> tuple[int, ...]:
        assert self.active is not None, "nobody is active"
        return tuple(sorted(each.int - 0xD000 for each in self.members[self.active].quorum.voters))


def settled(controllers: Controllers, brokers: Iterable[int]) -> bool:
    wanted = sorted(brokers)
    return controllers.active is not None and controllers.voters() == tuple(wanted) == tuple(
        sorted(controllers.members)
    )


# ------------------------------------------------------------------ a calm world


def test_three_become_five_then_three_elsewhere_then_one_then_three_one_voter_at_a_time() -> None:
    controllers = Controllers()
    for brokers in ((0, 1, 2, 3, 4), (1, 3, 4), (5,), (0, 1, 2)):
        answer = controllers.plan(*brokers)
        assert answer == ControllersPlan(broker_ids=brokers)
        controllers.advance(30_000)
        assert settled(controllers, brokers), (brokers, controllers.voters(), sorted(controllers.members))
    steps = list(itertools.pairwise(controllers.seen_voters))
    assert all(len(set(before) ^ set(after)) == 1 for before, after in steps), controllers.seen_voters
    assert controllers.seen_voters[:3] == [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4)]
    for broker in (3, 4):
        assert controllers.memories[broker].entries == [], "it has forgotten what it held"


def test_who_reads_of_an_old_plan_without_it_first_reads_on() -> None:
    controllers = Controllers(append_bytes_max=1)  # one entry a message
    controllers.plan(0, 1, 2)
    for broker in range(BROKERS):
        controllers.ask(DrainBroker(broker))
        controllers.ask(DrainBroker(broker, False))
    controllers.plan(0, 1, 3)
    controllers.advance(20_000)
    assert settled(controllers, (0, 1, 3)) and controllers.retired == [2] and controllers.started == [3]


def test_a_sole_voter_takes_in_the_second_only_with_the_third() -> None:
    controllers = Controllers(voters=1)
    controllers.off = {2}
    controllers.plan(0, 1, 2)
    controllers.advance(10_000)
    assert controllers.voters() == (0,) and sorted(controllers.members) == [0, 1]
    assert controllers.started.count(2) >= 10_000 // START_AGAIN_MS, "it is ordered again and again"
    controllers.off = set()
    controllers.advance(10_000)
    assert settled(controllers, (0, 1, 2))


def test_the_active_controller_leaves_last_and_another_is_elected() -> None:
    controllers = Controllers()
    active = controllers.active
    others = [broker for broker in (0, 1, 2) if broker != active]
    controllers.plan(3, 4, 5)
    controllers.advance(30_000)
    assert settled(controllers, (3, 4, 5)) and controllers.retired == [*others, active]


def test_nobody_is_voted_out_before_the_one_that_takes_the_place_votes() -> None:
    controllers = Controllers()
    controllers.off = {3}
    controllers.plan(1, 2, 3)
    controllers.advance(20_000)
    assert controllers.voters() == (0, 1, 2) and controllers.retired == []
    controllers.off = set()
    controllers.advance(20_000)
    assert settled(controllers, (1, 2, 3))


def test_a_plan_replaces_one_that_is_under_way() -> None:
    controllers = Controllers()
    controllers.off = {3}
    controllers.plan(1, 2, 3)
    controllers.advance(10_000)
    controllers.plan(1, 2, 4)
    controllers.advance(20_000)
    assert settled(controllers, (1, 2, 4))


def test_a_dead_voter_that_leaves_goes_first_and_its_disk_votes_no_more_when_it_is_back() -> None:
    controllers = Controllers()
    dead = next(broker for broker in (0, 1, 2) if broker != controllers.active)
    controllers.crash(dead)
    rest = [broker for broker in (0, 1, 2) if broker != dead]
    controllers.plan(3, *rest)
    controllers.advance(20_000)
    assert controllers.voters() == (*rest, 3)
    before = controllers.members[controllers.active].quorum.term
    controllers.start(dead)
    controllers.advance(20_000)
    assert settled(controllers, (*rest, 3)) and controllers.retired == [dead]
    assert controllers.members[controllers.active].quorum.term == before, "it has disturbed nobody"


def test_no_voter_is_taken_out_where_the_rest_could_not_decide() -> None:
    image = MetadataImage.of(
        [
            *(BrokerRegistered(broker) for broker in range(5)),
            ControllersPlanned((0, 1, 2)),
            *(DiskRegistered(disk_of(broker), broker, f"/{broker}") for broker in range(5)),
        ]
    )
    voters = disks_of(0, 1, 2, 3, 4)
    three_reached = frozenset(disks_of(3, 4))
    step = next_step(image, QuorumStanding(disk_of(0), voters, three_reached, three_reached))
    assert step is None, "0 and 4 of 0, 1, 2 and 4 are no majority"
    reached = frozenset(disks_of(1, 3, 4))
    step = next_step(image, QuorumStanding(disk_of(0), voters, reached, reached))
    assert step is not None and step.voters == disks_of(0, 1, 2, 4)


def test_a_disk_that_is_not_registered_is_voted_out_of_nothing() -> None:
    image = MetadataImage.of([BrokerRegistered(0), ControllersPlanned((0,)), DiskRegistered(disk_of(0), 0, "/0")])
    voters = disks_of(0, 1, 2)
    reached = frozenset(disks_of(1, 2))
    assert next_step(image, QuorumStanding(disk_of(0), voters, reached, reached)) is None
    assert not is_settled(image, voters, reached)


def test_without_a_plan_nobody_retires_and_a_plan_of_what_is_there_changes_nothing() -> None:
    controllers = Controllers()
    controllers.start(4)
    controllers.advance(10_000)
    assert controllers.voters() == (0, 1, 2) and controllers.retired == []
    controllers.plan(0, 1, 2)
    controllers.advance(10_000)
    assert settled(controllers, (0, 1, 2)) and controllers.retired == [4] and len(controllers.seen_voters) == 1


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("brokers", "count", "error", "words"),
    [
        ((0, 1), 0, ErrorCode.invalid_request, "1, 3 or 5 controllers, not 2"),
        ((), 0, ErrorCode.invalid_request, "1, 3 or 5 controllers, not 0"),
        ((), 4, ErrorCode.invalid_request, "1, 3 or 5 controllers, not 4"),
        ((0,), 1, ErrorCode.invalid_request, "not both"),
        ((0, 1, 1), 0, ErrorCode.invalid_request, "broker 1 is named twice"),
        ((0, 1, 7), 0, ErrorCode.broker_id_not_registered, "broker 7 is not registered"),
        ((0, 1, 3), 0, ErrorCode.invalid_request, "broker 3 is being drained"),
        ((0, 1, 6), 0, ErrorCode.invalid_request, "broker 6 has no disk"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_name(
    brokers: tuple[int, ...], count: int, error: ErrorCode, words: str
) -> None:
    controllers = Controllers()
    controllers.ask(DrainBroker(3))
    active = controllers.members[controllers.active].active
    for image in (active.latest, active.committed):
        image.apply(BrokerRegistered(6))
    answer = controllers.plan(*brokers, count=count)
    assert answer.error == error and words in answer.message, answer
    assert active.latest.planned_controllers == ()


def test_more_controllers_than_brokers_are_refused() -> None:
    controllers = Controllers()
    for broker in (3, 4):
        controllers.ask(DrainBroker(broker))
    answer = controllers.plan(count=5)
    assert "5 controllers need as many brokers, there are 4" in answer.message


def test_a_count_keeps_the_controllers_that_are_there_and_leaves_out_who_is_drained() -> None:
    controllers = Controllers()
    controllers.ask(DrainBroker(1))
    assert controllers.plan(count=3).broker_ids == (0, 2, 3), "the drained one is replaced"
    controllers.ask(DrainBroker(1, False))
    controllers.advance(20_000)
    assert controllers.plan(count=3).broker_ids == (0, 2, 3), "those that have one now"
    assert controllers.plan(count=5).broker_ids == (0, 1, 2, 3, 4)
    assert controllers.plan(0, 1, 2).error == 0


def test_a_broker_that_is_drained_may_keep_its_controller() -> None:
    controllers = Controllers()
    controllers.ask(DrainBroker(1))
    assert controllers.plan(0, 1, 3).broker_ids == (0, 1, 3)


def test_a_broker_with_a_controller_or_in_the_plan_is_not_unregistered() -> None:
    controllers = Controllers()
    assert "a controller of the cluster lives on broker 2" in controllers.ask(UnregisterBroker(2)).message
    controllers.off = {3}
    controllers.plan(0, 1, 3)
    assert "broker 3 shall hold a controller" in controllers.ask(UnregisterBroker(3)).message
    controllers.off = set()
    controllers.advance(20_000)
    assert controllers.ask(UnregisterBroker(2)).error == 0
    assert settled(controllers, (0, 1, 3))


# ------------------------------------------------------------------ a rough one


@pytest.mark.parametrize("seed", [*range(40), 1002])
def test_plans_amid_crashes_and_lost_messages_break_no_promise_and_arrive(seed: int) -> None:
    controllers = Controllers(voters=(1, 3)[seed % 2], seed=seed)
    chance = controllers.chance
    plan: tuple[int, ...] = ()
    for _ in range(25):
        fate = chance.random()
        if fate < 0.4:
            wanted = tuple(sorted(chance.sample(range(BROKERS), chance.choice((1, 3, 3, 5)))))
            answer = controllers.ask(PlanControllers(wanted), patience_ms=chance.randint(1, 2_000))
            if isinstance(answer, ControllersPlan):
                assert answer.error == 0, answer
                plan = answer.broker_ids
        elif fate < 0.7 and controllers.members:
            crashed = chance.choice(sorted(controllers.members))
            controllers.crash(crashed)
            controllers.later(chance.randint(0, 4_000), lambda broker=crashed: controllers.start(broker))
        else:
            controllers.ask(RegisterDisk("c", 0, disk_of(0), f"/{chance.random()}", None), patience_ms=100)
        controllers.advance(chance.randint(0, 3_000))
    controllers.is_rough = False
    controllers.advance(30_000)
    last = controllers.ask(PlanControllers((1, 2, 5)))
    assert last == ControllersPlan(broker_ids=(1, 2, 5)), (last, plan)
    controllers.advance(60_000)
    assert settled(controllers, (1, 2, 5)), (controllers.voters(), sorted(controllers.members))
