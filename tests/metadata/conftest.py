"""A controller with a clock, a quorum of one on a pretended disk, and processes played by hand.

``world`` carries out the effects as a shell would: frames reach ``Process`` objects, dials are answered by whether the process
runs, writes become durable at once (or when told to), creations are noted. ``check()`` runs after every event.
"""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import replace

import pytest

from raylog.control.high_watermarks import HighWatermark, by_topic
from raylog.control.session import (
    AlterPartition,
    AlterPartitionAnswer,
    Assignment,
    Exit,
    Heartbeat,
    Hello,
    HighWatermarks,
    Release,
    Removal,
    ReplicaFailed,
    ReplicaOpened,
    ReplicaReleased,
    ReplicaRemoved,
    ReplicaStatus,
)
from raylog.control.session_frames import from_actor, from_controller, to_frame
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.metadata.controller import Controller
from raylog.metadata.events import (
    ActorStarted,
    CloseSession,
    ControllerTicked,
    Dial,
    Dialed,
    DialOutcome,
    Notice,
    Persist,
    Persisted,
    RequestReceived,
    SendControllerReply,
    SendFrame,
    SendQuorum,
    SessionClosed,
    SessionFrame,
    SessionHello,
    StartActor,
)
from raylog.metadata.requests import CreateTopics, RegisterDisk, RequestedTopic
from raylog.placement.planner import plan_replicas
from raylog.raft.messages import HardState, bootstrap_snapshot
from raylog.raft.quorum import Quorum, QuorumConfig
from raylog.simulator.simulated_files import SimulatedDisk
from raylog.types import ActorIdentity, Condition, Endpoint, TopicIdPartition, is_future, node_id

CLUSTER = "a-test-cluster"
VOTER = uuid.UUID(int=1)


def disk_of(broker: int) -> uuid.UUID:
    return uuid.UUID(int=0xD000 + broker)


class Process:
    """One process of a server actor. ``conditions`` says how it finds a log; logs are whole by default."""

    def __init__(self, world: World, node: int, incarnation: int) -> None:
        self.world = world
        self.node = node
        self.incarnation = incarnation
        self.directory_id = world.replaced.get(self.broker, disk_of(self.broker))
        self.endpoint = Endpoint("127.0.0.1", 10_000 + incarnation)
        self.session: int | None = None
        self.runs = True
        self.mute = False
        self.opens = True
        self.keeps = False  # what it is to let go, until ``let_go``
        self.unopened: tuple[tuple[uuid.UUID, int], ...] = ()
        self.heard: list[object] = []
        self.held: dict[TopicIdPartition, ReplicaStatus] = {}
        self.conditions: dict[TopicIdPartition, Condition] = {}
        self.default_condition: Condition | None = None
        self.ends: dict[TopicIdPartition, tuple[int, ...]] = {}
        self.told: dict[TopicIdPartition, Assignment] = {}
        self.exited = False

    @property
    def broker(self) -> int:
        return self.node >> 16

    def hello(self) -> None:
        self.world.last_session += 1
        self.session = self.world.last_session
        self.world.sessions[self.session] = self
        hello = Hello(
            ActorIdentity(CLUSTER, self.node, self.directory_id, self.incarnation),
            self.endpoint,
            "boot",
            tuple(status for _, status in sorted(self.held.items())),
            pid=self.incarnation,
            unopened=self.unopened,
        )
        self.world.feed(SessionHello(self.session, from_actor(to_frame(hello))))

    def say(self, frame: object) -> None:
        assert self.session is not None
        self.world.feed(SessionFrame(self.session, from_actor(to_frame(frame))))

    def beat(self) -> None:
        self.say(Heartbeat())

    def receive(self, frame: object) -> None:
        frame = from_controller(to_frame(frame))
        self.heard.append(frame)
        match frame:
            case Assignment():
                self.told[frame.id] = frame
                if frame.id not in self.held and self.opens:
                    self.open(frame.id)
            case Removal():
                id = TopicIdPartition(frame.topic_id, frame.partition)
                self.held.pop(id, None)
                self.told.pop(id, None)
                self.world.later(lambda: self.say(ReplicaRemoved(*id)))
            case Release():
                if not self.keeps:
                    self.let_go(TopicIdPartition(frame.topic_id, frame.partition))
            case Exit():
                self.exited = True
                self.runs = False

    def let_go(self, id: TopicIdPartition) -> None:
        self.held.pop(id, None)
        self.told.pop(id, None)
        self.world.later(lambda: self.say(ReplicaReleased(*id)) if self.session is not None else None)
        self.world.run_later()

    def open(self, id: TopicIdPartition) -> None:
        known = id in self.world.disks.setdefault(self.directory_id, set())
        default = self.default_condition or (Condition.WHOLE if known else Condition.MISSING)
        epoch, end, *committed = self.ends.get(id, (-1, 0))
        high_watermark = committed[0] if committed else 0
        status = ReplicaStatus(*id, self.conditions.get(id, default), 0, end, high_watermark, epoch, -1, -1)
        self.held[id] = status
        self.world.disks[self.directory_id].add(id)
        self.world.later(lambda: self.say(ReplicaOpened(status)))

    def report(self, id: TopicIdPartition, mark: HighWatermark) -> None:
        self.say(HighWatermarks(by_topic([(id, mark)])))

    def fail(self, id: TopicIdPartition, reason: str = "disk on fire") -> None:
        self.held.pop(id, None)
        self.say(ReplicaFailed(*id, reason))

    def lose_session(self) -> None:
        session, self.session = self.session, None
        self.world.feed(SessionClosed(session))

    def kill(self) -> None:
        """SIGKILL: the session ends, and nobody listens any more."""
        self.runs = False
        self.lose_session()

    def alter(self, id: TopicIdPartition, *isr: int, **changes: int) -> int:
        """Ask for an ISR and return the error of the answer."""
        told = self.told[id]
        incarnations = {replica.broker_id: replica.incarnation for replica in told.replicas}
        incarnations.update(
            {broker: self.world.process(id, broker).incarnation for broker in isr if not is_future(broker)}
        )
        self.world.last_request += 1
        request = AlterPartition(
            self.world.last_request,
            *id,
            told.leader_epoch,
            told.partition_epoch,
            tuple((broker, incarnations.get(broker, 0)) for broker in isr),
        )
        self.say(replace(request, **changes))
        answers = [frame for frame in self.heard if isinstance(frame, AlterPartitionAnswer)]
        assert answers and answers[-1].request_id == self.world.last_request, "no answer"
        return answers[-1].error


class World:
    def __init__(self, brokers: int = 3, **config: object) -> None:
        config.setdefault("starts_brokers", False)
        config.setdefault("plans_hosts", False)
        self.config = ControllerConfig(**config)  # type: ignore[arg-type]
        self.now = 1_000
        self.sessions: dict[int, Process] = {}
        self.processes: dict[int, Process] = {}
        self.disks: dict[uuid.UUID, set[TopicIdPartition]] = {}  # the logs that are there, whatever process
        self.replaced: dict[int, uuid.UUID] = {}  # disks by broker, where it is not the first one
        self.replies: dict[int, object] = {}
        self.notices: list[str] = []
        self.notice_levels: dict[str, str] = {}
        self.dials: list[Dial] = []
        self.starts: list[StartActor] = []
        self.quorum_out: list[SendQuorum] = []
        self.writes: list[Persist] = []
        self.entries: list[object] = []
        self.hard_state = HardState()
        self.snapshot = bootstrap_snapshot(CLUSTER, [VOTER])
        self.answers_dials = True
        self.persists = True
        self.starts_at_once = True
        self.last_session = self.last_token = self.last_incarnation = self.last_request = self.last_uuid = 0
        self._later: deque[object] = deque()
        self._busy = False
        self.restart_controller()
        for broker in range(brokers):
            self.ask(RegisterDisk(CLUSTER, broker, disk_of(broker), f"/disks/{broker}"))

    # ---------------------------------------------------------- the controller and its shell

    def restart_controller(self, **config: object) -> None:
        """A new controller process on the same disk, with that changed; sessions of the old one are gone without a word."""
        self.config = replace(self.config, **config)  # type: ignore[arg-type]
        self.sessions.clear()
        for process in self.processes.values():
            process.session = None
        self.writes.clear()
        quorum = Quorum(
            VOTER,
            hard_state=self.hard_state,
            snapshot=self.snapshot,
            entries=self.entries,
            config=QuorumConfig(),
            draw_election_timeout_ms=lambda: 1_000,
            now_ms=self.now,
        )
        self.controller = Controller(
            quorum, controller_node=1, config=self.config, plan=plan_replicas, new_uuid=self.new_uuid
        )
        self.perform(self.controller.start(self.now))
        self.run_later()

    def new_uuid(self) -> uuid.UUID:
        self.last_uuid += 1
        return uuid.UUID(int=0xABC000 + self.last_uuid)

    def feed(self, event: object) -> None:
        self.perform(self.controller.handle(event, self.now))
        self.controller.check()
        self.run_later()

    def later(self, action: object) -> None:
        self._later.append(action)

    def run_later(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._later:
                self._later.popleft()()
        finally:
            self._busy = False

    def perform(self, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case SendFrame():
                    process = self.sessions.get(effect.session_id)
                    if process is not None and process.session == effect.session_id:
                        process.receive(effect.frame)
                case CloseSession():
                    process = self.sessions.pop(effect.session_id, None)
                    if process is not None:
                        if process.session == effect.session_id:
                            process.session = None
                        self.later(lambda id=effect.session_id: self.feed(SessionClosed(id)))
                case Dial():
                    self.dials.append(effect)
                    if self.answers_dials:
                        self.later(lambda dial=effect: self.answer(dial))
                case SendControllerReply():
                    assert effect.token not in self.replies, "answered twice"
                    self.replies[effect.token] = effect.reply
                case StartActor():
                    self.starts.append(effect)
                    if self.starts_at_once:
                        self.later(lambda start=effect: self.start(start))
                case Persist():
                    self.writes.append(effect)
                    if self.persists:
                        self.later(self.persist)
                case SendQuorum():
                    self.quorum_out.append(effect)
                case Notice():
                    self.notices.append(effect.text)
                    self.notice_levels[effect.text] = effect.level.name

    def persist(self) -> None:
        if not self.writes:
            return
        write = self.writes.pop(0).write
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.snapshot is not None:
            self.snapshot = write.snapshot
            self.entries = [entry for entry in self.entries if entry.index > write.snapshot.last_index]
        if write.entries:
            first = write.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first] + list(write.entries)
        self.feed(Persisted(write.number))

    def answer(self, dial: Dial, outcome: DialOutcome | None = None) -> None:
        if outcome is None:
            process = self.processes.get(dial.node_id)
            if process is None or process.incarnation != dial.incarnation or not process.runs:
                outcome = DialOutcome.REFUSED
            else:
                outcome = DialOutcome.MUTE if process.mute else DialOutcome.ALIVE
        self.feed(Dialed(dial.node_id, dial.incarnation, dial.dial_id, outcome))

    def start(self, start: StartActor) -> None:
        self.feed(ActorStarted(start.node_id))
        self.launch(start.node_id, directory_id=start.directory_id)

    def launch(self, node: int, *, says_hello: bool = True, directory_id: uuid.UUID | None = None) -> Process:
        """A new process of that node."""
        self.last_incarnation += 1
        process = self.processes[node] = Process(self, node, self.last_incarnation)
        process.directory_id = directory_id or process.directory_id
        if says_hello:
            process.hello()
            self.run_later()
        return process

    def restart(
        self, id: TopicIdPartition, broker: int, condition: Condition, end: tuple[int, ...] = (0, 0)
    ) -> Process:
        """SIGKILL and a new process that finds its log in this condition.

        ``end`` is its last epoch, its end offset and its high watermark (0 if left out).
        """
        process = self.process(id, broker)
        self.starts_at_once = False
        if process.session is not None:
            process.kill()
        new = self.launch(process.node, says_hello=False)
        new.conditions[id] = condition
        new.ends[id] = end
        new.hello()
        self.run_later()
        return new

    def pass_time(self, ms: int, *, step: int = 100, beating: bool = True) -> None:
        """Time passes in small steps; processes with a session keep beating, deadlines are ticked."""
        end = self.now + ms
        while self.now < end:
            self.now = min(self.now + step, end)
            for process in sorted(self.processes.values(), key=lambda each: each.node):
                if beating and process.session is not None and process.runs and not process.mute:
                    process.beat()
            self.tick()

    def tick(self) -> None:
        deadline = self.controller.next_deadline_ms()
        if deadline is not None and deadline <= self.now:
            self.feed(ControllerTicked())

    # ---------------------------------------------------------- what people ask

    def ask(self, request: object, *, wait: bool = True) -> object:
        self.last_token += 1
        token = self.last_token
        self.feed(RequestReceived(token, request))
        return self.replies[token] if wait else token

    def replace_disk(self, broker: int) -> uuid.UUID:
        """A blank disk at the path of the broker's disk."""
        self.replaced[broker] = directory_id = uuid.UUID(int=0xE000 + broker)
        assert self.ask(RegisterDisk(CLUSTER, broker, directory_id, f"/disks/{broker}")).error == 0
        return directory_id

    def create(self, name: str, *assignment: tuple[int, ...], **configs: object) -> uuid.UUID:
        """A topic with these brokers for its partitions; its replicas' processes start and open their logs.

        Each replica has a process of its own, unless ``replicas_per_actor`` says otherwise; None leaves it unset.
        """
        if configs.setdefault("replicas_per_actor", 1) is None:
            del configs["replicas_per_actor"]
        topic = RequestedTopic(
            name,
            assignment=tuple(enumerate(assignment)),
            configs=tuple((key.replace("_", "."), str(value)) for key, value in configs.items()),
        )
        created = self.ask(CreateTopics((topic,))).topics[0]
        assert created.error == 0, created
        self.pass_time(1_100)
        return created.topic_id

    def configure(self, topic: str, key: str, value: str | None) -> int:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        resource = ResourceChanges(ResourceType.TOPIC, topic, (ConfigChange(key, operation, value),))
        return self.ask(AlterConfigs((resource,))).resources[0].error

    # ---------------------------------------------------------- what is so

    @property
    def image(self):
        return self.controller.image

    def state(self, id: TopicIdPartition):
        return self.image.topics[id.topic_id].partitions[id.partition]

    def process(self, id: TopicIdPartition, broker: int) -> Process:
        return self.processes[self.state(id).node_of(broker)]

    def report(self, id: TopicIdPartition, offset: int) -> None:
        """The leader says how far its high watermark is, and time passes until it stands in the record."""
        self.leader(id).report(id, HighWatermark(self.state(id).leader_epoch, offset))
        self.pass_time(self.config.high_watermark_record_interval_ms + 100)

    def noted(self, id: TopicIdPartition) -> tuple[int, int] | None:
        """The leader epoch and the offset that stand in the record."""
        return self.image.high_watermarks.get(id)

    def leader(self, id: TopicIdPartition) -> Process:
        return self.process(id, self.state(id).leader)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def new_world():
    return World


@pytest.fixture
def broker_node():
    return lambda broker: node_id(broker, 0)


@pytest.fixture
def disk() -> SimulatedDisk:
    """With an empty folder ``/disk``, which survives."""
    disk = SimulatedDisk()
    disk.files().make_directory("/disk")
    disk.flush_everything()
    return disk
