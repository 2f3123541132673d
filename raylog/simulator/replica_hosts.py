"""Several ReplicaHosts in memory, joined by a network that the test holds in its hand.

``Hosts`` is a shell like the others: it carries out effects, but every message waits in ``wires``
until the test says ``run`` (all of them, in order, until nothing moves) or ``step``. Time stands
still until ``advance``. After every event the host that took it is checked. Controllers are played
by the test, which sends assignments and reads ``told``.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from raylog.control.session import AlterPartition, AssignedReplica, Assignment, Removal, ReplicaOpened
from raylog.errors import DiskLockedError
from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.log.open_files import OpenFiles
from raylog.log.record_validation import checked
from raylog.log.removal import remove_folder
from raylog.records.batch import batches
from raylog.records.codec import decode, encode_values
from raylog.replication.cleaning_rounds import ended
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    Assigned,
    CheckRecords,
    Clean,
    CleaningEnded,
    CloseLog,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    FetchReply,
    Flush,
    FlushCompleted,
    FolderRemoved,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsReceived,
    ListOffsetsReply,
    Load,
    Loaded,
    LogClosed,
    LogOpened,
    OpenLog,
    ProducePartition,
    ProducePartitionResult,
    ProduceReceived,
    ProduceReply,
    RecordsChecked,
    RemoveFolder,
    Replied,
    Reply,
    RunHousekeeping,
    Scrub,
    ScrubEnded,
    SendFetch,
    Tell,
    Ticked,
)
from raylog.replication.host import ReplicaHost
from raylog.replication.leaderships import Leadership, LeadershipsChanged
from raylog.replication.replica import Replica
from raylog.replication.traced import TraceReached
from raylog.replication.transaction_events import TransactionMembership, TransactionVerified, VerifyTransaction
from raylog.simulator.simulated_files import SimulatedDisk, SimulatedFiles
from raylog.types import ActorIdentity, Endpoint, TopicIdPartition, node_id

TOPIC_ID = uuid.UUID(int=7)
P0 = TopicIdPartition(TOPIC_ID, 0)
WALL_MS = 1_700_000_000_000


@dataclass
class HostProcess:
    """One process start of one broker's actor."""

    broker: int
    incarnation: int
    host: ReplicaHost
    files: SimulatedFiles
    alive: bool = True
    open_files: OpenFiles = field(default_factory=lambda: OpenFiles(2))


@dataclass
class FetchMessage:
    """A fetch on its way to the leader, or its answer on its way back."""

    sender: int
    receiver: int
    fetch: SendFetch
    answer: FetchReply | None = None
    failed: bool = False


class Hosts:
    """See the module."""

    def __init__(
        self,
        brokers: Sequence[int] = (1, 2, 3),
        config: HostConfig | None = None,
        watched_topics: Sequence[str] = (),
    ) -> None:
        self.config = config or HostConfig()
        self.watched_topics = watched_topics
        self.now_ms = 0
        self.processes: dict[int, HostProcess] = {}
        self.disks = {broker: SimulatedDisk() for broker in brokers}
        self.wires: list[FetchMessage] = []
        self.cut: set[int] = set()  # brokers whose messages stay on the wire
        self.told: dict[int, list[Any]] = {broker: [] for broker in brokers}
        self.replies: dict[int, Replied] = {}
        self.closed: list[CloseLog] = []
        self.flushes: list[tuple[int, Flush]] = []
        self.holds_flushes = False
        self.loads: list[tuple[int, Load]] = []
        self.holds_loads = False
        self.checks: list[tuple[int, CheckRecords]] = []
        self.holds_checks = False
        self.scrubs: list[tuple[int, Scrub]] = []
        self.holds_scrubs = False
        self.questions: list[tuple[int, VerifyTransaction]] = []  # to transaction coordinators, which the test plays
        self.openings: list[tuple[HostProcess, Assignment]] = []
        self.holds_openings = False
        self.housekept: list[RunHousekeeping] = []
        self.leaderships: list[tuple[int, Leadership]] = []  # of ``watched_topics``
        self.traced: list[TraceReached] = []
        self._fetches: dict[tuple[int, int], FetchMessage] = {}
        self._tokens = 0
        self._incarnations = 100
        self.controller_epoch = 1
        self.assignments: dict[TopicIdPartition, Assignment] = {}
        for broker in brokers:
            self.start(broker)

    # -------------------------------------------------------------- processes

    def start(self, broker: int) -> HostProcess:
        """A new process of that broker, with another incarnation, on the same disk."""
        self._incarnations += 1
        identity = ActorIdentity("cluster", node_id(broker, 2), uuid.UUID(int=broker), self._incarnations)
        host = ReplicaHost(identity, broker, self.config, watched_topics=self.watched_topics)
        process = HostProcess(broker, self._incarnations, host, self.disks[broker].files())
        self.processes[broker] = process
        self.told[broker] = []
        return process

    def kill(self, broker: int) -> None:
        """SIGKILL: nothing is closed; what was written stays in the page cache. Its peers' fetches
        fail.
        """
        self.processes[broker].alive = False
        self.processes[broker].files.crash()
        for message in self.wires:
            if (message.receiver == broker and message.answer is None) or message.sender == broker:
                message.failed = True
        for (leader, token), message in list(self._fetches.items()):
            if leader == broker:
                del self._fetches[leader, token]
                self.wires.append(replace(message, sender=broker, receiver=message.sender, failed=True))

    def host(self, broker: int) -> ReplicaHost:
        return self.processes[broker].host

    def replica(self, broker: int, id: TopicIdPartition = P0) -> Replica:
        return self.host(broker).replicas[id]

    def log(self, broker: int, id: TopicIdPartition = P0) -> Log:
        return self.replica(broker, id).open_log()

    # -------------------------------------------------------------- controller

    def assigned(self, broker: int) -> AssignedReplica:
        process = self.processes[broker]
        if not process.alive:
            return AssignedReplica(broker, node_id(broker, 2), uuid.UUID(int=broker), 0, None)
        endpoint = Endpoint("host", 9000 + broker)
        return AssignedReplica(broker, node_id(broker, 2), uuid.UUID(int=broker), process.incarnation, endpoint)

    def assign(
        self,
        leader: int,
        isr: Sequence[int],
        *,
        epoch: int | None = None,
        min_isr: int = 1,
        replicas: Sequence[int] | None = None,
        to: Sequence[int] | None = None,
        id: TopicIdPartition = P0,
        config: dict[str, str] | None = None,
        elr: Sequence[int] = (),
        run: bool = True,
    ) -> Assignment:
        """Commit a state of the partition (its partition epoch rises) and send it to the live
        brokers, or only ``to`` some.
        """
        known = self.assignments.get(id)
        leader_epoch = epoch if epoch is not None else (known.leader_epoch if known else 0)
        brokers = replicas or ([each.broker_id for each in known.replicas] if known else list(self.processes))
        assignment = Assignment(
            self.controller_epoch,
            id.topic_id,
            f"topic{id.topic_id.int}",
            id.partition,
            leader,
            leader_epoch,
            known.partition_epoch + 1 if known else 0,
            tuple(self.assigned(broker) for broker in brokers),
            tuple(isr),
            (),
            (),
            min_isr,
            tuple(sorted(config.items())) if config is not None else (known.config if known else ()),
            tuple(elr),
        )
        self.assignments[id] = assignment
        for broker in brokers if to is None else to:
            if self.processes[broker].alive:
                self.handle(broker, Assigned(assignment))
        if run:
            self.run()
        return assignment

    def asked(self, broker: int) -> list[AlterPartition]:
        """The ISR changes that this broker has asked for."""
        return [frame for frame in self.told[broker] if isinstance(frame, AlterPartition)]

    def opened(self, broker: int) -> list[ReplicaOpened]:
        return [frame for frame in self.told[broker] if isinstance(frame, ReplicaOpened)]

    # -------------------------------------------------------------- the shell

    def handle(self, broker: int, event: Event) -> list[Effect]:
        """Give one event to a broker's host, check it, carry out what it orders."""
        process = self.processes[broker]
        assert process.alive, broker
        effects = process.host.handle(event, self.now_ms, WALL_MS + self.now_ms)
        process.host.check()
        for effect in effects:  # first: what is done in threads elsewhere is done at once here
            if isinstance(effect, LeadershipsChanged):
                self.leaderships += [(broker, change) for change in effect.changes]
        for effect in effects:
            self._carry_out(process, effect)
        return effects

    def _carry_out(self, process: HostProcess, effect: Effect) -> None:
        broker = process.broker
        match effect:
            case Reply(token, reply):
                message = self._fetches.pop((broker, token), None)
                if message is None:
                    assert token not in self.replies, f"request {token} was answered twice"
                    self.replies[token] = reply
                else:
                    assert isinstance(reply, FetchReply)
                    back = replace(message, sender=broker, receiver=message.sender, answer=reply)
                    self.wires.append(back)
            case SendFetch():
                self.wires.append(FetchMessage(broker, effect.leader_node >> 16, effect))
            case Tell(frame):
                self.told[broker].append(frame)
            case OpenLog(assignment):
                self.openings.append((process, assignment))
                if not self.holds_openings:
                    self.finish_openings()
            case CloseLog(id, log, delete, clean, reports):
                self.closed.append(effect)
                if delete:
                    self.handle(broker, _deleted(effect))
                else:
                    log.close(clean=clean)
                    if reports:
                        self.handle(broker, LogClosed(id))
            case RemoveFolder(removal):
                self._remove_folder(process, removal)
            case Flush():
                self.flushes.append((broker, effect))
                if not self.holds_flushes:
                    self.finish_flushes()
            case Load():
                self.loads.append((broker, effect))
                if not self.holds_loads:
                    self.finish_loads()
            case CheckRecords():
                self.checks.append((broker, effect))
                if not self.holds_checks:
                    self.finish_check()
            case RunHousekeeping():
                self.housekept.append(effect)
            case Clean():
                self.handle(broker, _cleaned(effect))
            case Scrub():
                self.scrubs.append((broker, effect))
                if not self.holds_scrubs:
                    self.finish_scrubs()
            case VerifyTransaction():
                self.questions.append((broker, effect))
            case LeadershipsChanged():
                pass
            case TraceReached():
                self.traced.append(effect)
            case _:
                assert_never(effect)

    def _open(self, process: HostProcess, assignment: Assignment) -> None:
        try:
            log = Log.open(
                f"/data/{assignment.topic}-{assignment.partition}",
                files=process.files,
                config=LogConfig.from_topic_configs(dict(assignment.config)),
                topic=assignment.topic,
                partition=assignment.partition,
                topic_id=assignment.topic_id,
                now_ms=WALL_MS + self.now_ms,
                boot_id="boot",
                open_files=process.open_files,
            )
        except (OSError, DiskLockedError) as error:
            locked = isinstance(error, DiskLockedError)
            self.handle(process.broker, LogOpened(assignment.id, None, str(error), locked=locked))
        else:
            self.handle(process.broker, LogOpened(assignment.id, log))

    def _remove_folder(self, process: HostProcess, removal: Removal) -> None:
        id = TopicIdPartition(removal.topic_id, removal.partition)
        try:
            remove_folder(process.files, f"/data/{removal.topic}-{removal.partition}", removal.topic_id)
        except (OSError, DiskLockedError) as error:
            locked = isinstance(error, DiskLockedError)
            self.handle(process.broker, FolderRemoved(id, str(error), locked=locked))
        else:
            self.handle(process.broker, FolderRemoved(id))

    def finish_openings(self) -> None:
        """The logs that were to be opened are open."""
        openings, self.openings = self.openings, []
        for process, assignment in openings:
            if process.alive:
                self._open(process, assignment)

    def finish_flushes(self) -> None:
        """The disk gets done with what it was asked to flush."""
        flushes, self.flushes = self.flushes, []
        for broker, flush in flushes:
            if self.processes[broker].alive:
                flush.log.flush()
                self.handle(broker, FlushCompleted(flush.id, flush.log_end_offset))

    def finish_scrubs(self) -> None:
        """What is to be read through for damage is read, as far as it was not."""
        scrubs, self.scrubs = self.scrubs, []
        for broker, scrub in scrubs:
            while scrub.scrubbing.step():
                pass
            self.handle(broker, ScrubEnded(scrub.id, scrub.log, scrub.scrubbing))

    def finish_loads(self, error: str | None = None) -> None:
        """The disk brings in what it was asked for, or fails."""
        loads, self.loads = self.loads, []
        for broker, load in loads:
            if self.processes[broker].alive:
                if error is None:
                    self.processes[broker].files.load(load.path, load.position, load.size)
                self.handle(broker, Loaded(load.id, load.path, load.position, load.size, error))

    def finish_check(self, number: int = 0) -> None:
        """A thread gets done with one of the checks that were ordered."""
        broker, check = self.checks.pop(number)
        if self.processes[broker].alive:
            verdict = checked(check.records, config=check.config, wall_ms=check.wall_ms, where=check.where)
            self.handle(broker, RecordsChecked(check.token, check.index, verdict))

    def answer_question(self, error: int = 0, number: int = 0) -> None:
        """The transaction coordinator answers one of the leaders' questions."""
        broker, question = self.questions.pop(number)
        if self.processes[broker].alive:
            self.handle(broker, TransactionVerified(question.question, error))

    def step(self) -> bool:
        """Deliver the oldest message that is not held by a cut; False if there is none."""
        for number, message in enumerate(self.wires):
            if message.sender not in self.cut and message.receiver not in self.cut:
                del self.wires[number]
                self._deliver(message)
                return True
        return False

    def _deliver(self, message: FetchMessage) -> None:
        fetch = message.fetch
        receiver = self.processes[message.receiver]
        if message.answer is not None or message.failed:
            follower = fetch.replica_id
            process = self.processes[follower]
            if process.alive and process.incarnation == fetch.replica_incarnation:
                key = (fetch.leader_node, fetch.leader_incarnation, fetch.fetch_id)
                if message.failed or message.answer is None or message.answer.error:
                    self.handle(follower, FetchFailed(*key))
                else:
                    answer = message.answer
                    self.handle(follower, FetchAnswered(*key, answer.partitions, answer.session_id))
        elif not receiver.alive or receiver.incarnation != fetch.leader_incarnation:
            self.wires.append(replace(message, sender=message.receiver, receiver=message.sender, failed=True))
        else:
            token = self.token()
            self._fetches[message.receiver, token] = message
            self.handle(
                message.receiver,
                FetchReceived(
                    token,
                    fetch.replica_id,
                    fetch.replica_incarnation,
                    fetch.max_wait_ms,
                    fetch.min_bytes,
                    fetch.max_bytes,
                    0,
                    fetch.partitions,
                    fetch.wants_all,
                    fetch.session_id,
                    fetch.session_epoch,
                ),
            )

    def run(self) -> None:
        """Deliver until nothing moves."""
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("the hosts never come to rest")

    def inform(self) -> None:
        """Let followers hear how far the high watermark is, if no records come that say it sooner."""
        self.advance(self.config.high_watermark_news_ms)

    def advance(self, ms: int) -> None:
        """Let time pass, with every timer and message in its turn."""
        end_ms = self.now_ms + ms
        self.run()
        while True:
            due = [
                due_ms
                for process in self.processes.values()
                if process.alive and (due_ms := process.host.next_deadline_ms()) is not None and due_ms <= end_ms
            ]
            if not due:
                break
            self.now_ms = max(self.now_ms, min(due))
            for broker, process in self.processes.items():
                due_ms = process.host.next_deadline_ms() if process.alive else None
                if due_ms is not None and due_ms <= self.now_ms:
                    self.handle(broker, Ticked())
            self.run()
        self.now_ms = end_ms

    # -------------------------------------------------------------- clients

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def produce(
        self,
        broker: int,
        *values: bytes,
        acks: int = -1,
        timeout_ms: int = 30_000,
        id: TopicIdPartition = P0,
        producer: tuple[int, int, int] = (-1, -1, -1),
        membership: TransactionMembership | None = None,
        trace: object | None = None,
        run: bool = True,
    ) -> int:
        """Send one batch; returns the token. ``producer`` is (id, epoch, base sequence);
        ``membership`` says of which transaction.
        """
        token = self.token()
        is_transactional = membership is not None
        records = batch(
            *values, timestamp_ms=WALL_MS + self.now_ms, producer=producer, is_transactional=is_transactional
        )
        part = ProducePartition(id, records, membership, trace)
        self.handle(broker, ProduceReceived(token, acks, timeout_ms, (part,)))
        if run:
            self.run()
        return token

    def produced(self, token: int) -> ProducePartitionResult | None:
        """The result of a produce, None while it waits."""
        reply = self.replies.get(token)
        assert reply is None or isinstance(reply, ProduceReply)
        return reply.partitions[0] if reply is not None else None

    def fetch(
        self,
        broker: int,
        offset: int,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        replica: tuple[int, int] = (-1, -1),
        epoch: int = -1,
        last_epoch: int = -1,
        log_start: int = -1,
        id: TopicIdPartition = P0,
    ) -> int:
        """Send a fetch of one partition; ``replica`` is (broker, incarnation) of a follower that
        the test plays.
        """
        token = self.token()
        part = FetchPartition(id, offset, max_bytes, epoch, last_epoch, log_start)
        self.handle(broker, FetchReceived(token, *replica, max_wait_ms, min_bytes, max_bytes, 0, (part,)))
        return token

    def fetched(self, token: int) -> FetchPartitionResult | None:
        """The first result of a fetch; None while it waits or when the answer has no news."""
        reply = self.replies.get(token)
        assert reply is None or isinstance(reply, FetchReply)
        return reply.partitions[0] if reply is not None and reply.partitions else None

    def read(self, broker: int, offset: int = 0, *, id: TopicIdPartition = P0) -> list[bytes]:
        """What a consumer can read there from ``offset`` on."""
        found: list[bytes] = []
        while True:
            result = self.fetched(self.fetch(broker, offset, id=id))
            assert result is not None and result.error == 0, result
            if not len(result.records):
                return found
            for view in batches(result.records):
                found += [record.value or b"" for record in decode(view) if record.offset >= offset]
                next_offset = view.next_offset
            offset = next_offset

    def list_offset(
        self, broker: int, timestamp: int, *, epoch: int = -1, replica_id: int = -1
    ) -> ListOffsetsPartitionResult:
        token = self.token()
        part = ListOffsetsPartition(P0, timestamp, epoch)
        self.handle(broker, ListOffsetsReceived(token, replica_id, 0, (part,)))
        reply = self.replies[token]
        assert isinstance(reply, ListOffsetsReply)
        return reply.partitions[0]


def _deleted(order: CloseLog) -> FolderRemoved:
    try:
        order.log.delete()
    except OSError as error:
        return FolderRemoved(order.id, str(error))
    return FolderRemoved(order.id)


def _cleaned(order: Clean) -> CleaningEnded:
    """Compact a log at one go."""
    try:
        while order.cleaning.step() is not None:
            pass
    except OSError as error:
        return ended(order, error)
    return ended(order)


def batch(
    *values: bytes, timestamp_ms: int = WALL_MS, producer: tuple[int, int, int] = (-1, -1, -1), **options: Any
) -> bytes:
    """One record batch."""
    producer_id, producer_epoch, base_sequence = producer
    return bytes(
        encode_values(
            list(values),
            timestamp_ms=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            **options,
        )
    )


def contents(log: Log) -> list[tuple[int, int, bytes]]:
    """(offset, leader epoch, value) of every record in a log."""
    found: list[tuple[int, int, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            found += [(record.offset, view.partition_leader_epoch, record.value or b"") for record in decode(view)]
            offset = view.next_offset
    return found
