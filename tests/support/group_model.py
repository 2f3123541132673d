"""A group and its coordinators in a world without mercy.

Members crash, leave and lose messages; coordinators die, are deposed and do not know it yet, and lose what of their log was not
replicated.

Everything is drawn from one seed. Three processes hold the partition; one leads, the others read along. ``run`` throws so many steps,
``heal`` then ends the misery and demands that the group comes to rest. After every event the machine is checked, and:

- no partition is in two parts of one generation, whoever answered (a static member's successor counts as itself);
- a commit that was answered is in the log of every later leader; what the leader answers to a fetch is never older than what was answered
  before: a committed offset goes back only where somebody committed an older one later;
- each request is answered at most once.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from raylog.coordination.coordinator import CoordinatorRole, PartitionCoordinator
from raylog.coordination.events import (
    Append,
    Appended,
    ConnectionClosed,
    CoordinatorRequestReceived,
    CoordinatorTicked,
    Elected,
    Event,
    HighWatermarkRose,
    Replayed,
    Resigned,
)
from raylog.groups.assignors import ASSIGNORS, SubscribedMember
from raylog.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.groups.context import GroupConfig
from raylog.groups.machine import GroupCoordinator, GroupKind
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue
from raylog.groups.requests import (
    CommittedPartition,
    GroupHeartbeat,
    HeartbeatAnswer,
    JoinedGroup,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFetched,
    Protocol,
    Request,
    SyncedGroup,
    SyncGroup,
)
from raylog.types import TopicPartition

GROUP, TOPIC = "g", "t"
NOT_LEADER_OR_FOLLOWER, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID, MEMBER_ID_REQUIRED = (
    6,
    25,
    22,
    82,
    79,
)
SESSION_MS, REBALANCE_MS = 6_000, 10_000
PROTOCOLS = (("range",), ("cooperative-sticky",), ("sticky", "roundrobin"), ("range", "cooperative-sticky"))


class Process:
    """One replica. ``log`` is set while it leads, or believes that it does: then what it appends goes there."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self.coordinator = coordinator
        self.leader_epoch = -1
        self.log: list[GroupRecord] | None = None


class Client:
    def __init__(self, world: World, number: int, instance: str | None, protocols: tuple[str, ...]) -> None:
        self.world, self.number, self.instance, self.protocols = world, number, instance, protocols
        self.member_id, self.generation = "", -1
        self.owned: tuple[TopicPartition, ...] = ()
        self.waits_for: tuple[int, Request, int] | None = None  # token, request, since
        self.plan: dict[str, bytes] | None = None  # what to send with the next SyncGroup, None: join first
        self.is_stable = False
        self.is_fenced = False
        self.connection = number * 1_000 if world.random.random() < 0.5 else None

    # ---------------------------------------------------------- asking

    def act(self) -> None:
        """Do the next thing that a consumer does, unless it waits for an answer."""
        world = self.world
        if self.waits_for is not None:
            patience_ms = REBALANCE_MS + 5_000 if isinstance(self.waits_for[1], JoinGroup) else 4_000
            if world.now_ms - self.waits_for[2] < patience_ms:
                return
            self.waits_for = None
        if self.is_fenced:
            return
        if self.is_stable and self.owned and world.random.random() < 0.4:
            world.commit(self, world.random.choice(self.owned))
        elif self.is_stable:
            self._ask(
                GroupHeartbeat(GROUP, self.member_id, self.generation, self.instance, self._park_ms(), self.connection)
            )
        elif self.plan is not None:
            given = tuple(self.plan.items())
            self._ask(
                SyncGroup(GROUP, self.member_id, self.generation, given, self.instance, connection=self.connection)
            )
        else:
            self._join()

    def _park_ms(self) -> int:
        return 2_000 if self.connection is not None and self.world.random.random() < 0.5 else 0

    def _join(self) -> None:
        protocols = []
        for name in self.protocols:
            assignor = ASSIGNORS[name]
            keeps = self.owned if assignor.is_cooperative else ()
            data = assignor.user_data(self.owned, self.generation)
            subscription = Subscription((TOPIC,), data, keeps, self.generation)
            protocols.append(Protocol(name, encode_subscription(subscription)))
        self._ask(
            JoinGroup(
                GROUP,
                self.member_id,
                "consumer",
                tuple(protocols),
                SESSION_MS,
                REBALANCE_MS,
                self.instance,
                client_id=f"c{self.number}",
                connection=self.connection,
            )
        )

    def _ask(self, request: Request) -> None:
        self.waits_for = (self.world.send(request, self), request, self.world.now_ms)

    # ---------------------------------------------------------- being answered

    def answered(self, token: int, reply: Any) -> None:
        if self.waits_for is None or self.waits_for[0] != token:
            return
        request, self.waits_for = self.waits_for[1], None
        match reply:
            case JoinedGroup(error=0):
                self.member_id, self.generation = reply.member_id, reply.generation
                self.plan = self._share_out(reply)
            case JoinedGroup(error=error) if error == MEMBER_ID_REQUIRED:
                self.member_id = reply.member_id
            case SyncedGroup(error=0):
                assert isinstance(request, SyncGroup)
                had, self.owned = self.owned, decode_assignment(reply.assignment).partitions
                gave_up = ASSIGNORS[reply.protocol].is_cooperative and not set(had) <= set(self.owned)
                self.is_stable = not gave_up
                self.plan = None  # somebody waits for what it gave up: join again
            case JoinedGroup() | SyncedGroup() | HeartbeatAnswer():
                self._refused(reply.error)

    def _share_out(self, joined: JoinedGroup) -> dict[str, bytes]:
        if joined.leader != joined.member_id or joined.skip_assignment or joined.protocol is None:
            return {}
        members = [
            SubscribedMember(each.member_id, decode_subscription(each.metadata), each.group_instance_id)
            for each in joined.members
        ]
        plan = ASSIGNORS[joined.protocol].assign(members, {TOPIC: self.world.partitions})
        return {
            member_id: encode_assignment(ConsumerProtocolAssignment(tuple(part))) for member_id, part in plan.items()
        }

    def _refused(self, error: int) -> None:
        if not error:
            return
        if error == FENCED_INSTANCE_ID:
            self.is_fenced = True
        if error in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION):
            self.owned, self.generation = (), -1
            self.member_id = "" if error == UNKNOWN_MEMBER_ID else self.member_id
        self.plan, self.is_stable = None, False


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.protocols = self.random.choice(PROTOCOLS)
        self.partitions = self.random.randint(1, 7)
        delay_ms = self.random.choice((0, 1_000))
        self.config = GroupConfig(
            group_initial_rebalance_delay_ms=delay_ms, offsets_retention_check_interval_ms=1 << 40
        )
        self.now_ms, self.ids, self.tokens, self.numbers, self.commits = 0, 0, 0, 0, 0
        self.is_kind = False
        self.log: list[GroupRecord] = []
        self.high_watermark = 0
        self.leader_epoch = 0
        self.processes = [Process(self._coordinator()) for _ in range(3)]
        self.leader = self.processes[0]
        self.clients: list[Client] = []
        self.asked: dict[int, tuple[Request, Client | None]] = {}
        self.inbox: list[tuple[Client, int, Any]] = []
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.acknowledged: dict[TopicPartition, set[int]] = {}
        self.rebalances = self.failovers = self.commits_acknowledged = 0
        self._elect(self.leader)

    def _coordinator(self) -> GroupCoordinator:
        return PartitionCoordinator(GroupKind(self.config, new_uuid=self._uuid).machine(0))

    def _uuid(self) -> uuid.UUID:
        self.ids += 1
        return uuid.UUID(int=self.ids)

    # ---------------------------------------------------------- the machines

    def tell(self, process: Process, event: Event) -> None:
        todo: list[Event] = [event]
        while todo:
            for effect in process.coordinator.handle(todo.pop(0), self.now_ms, 1_700_000_000_000 + self.now_ms):
                if isinstance(effect, Append):
                    todo.append(self._append(process, effect))
                else:
                    self._replied(process, effect.token, effect.reply)
            process.coordinator.check()

    def _append(self, process: Process, append: Append) -> Event:
        if append.leader_epoch != process.leader_epoch or process.log is None or self._bad_luck(0.03):
            return Appended(append.sequence, -1, NOT_LEADER_OR_FOLLOWER)
        process.log.extend(append.records)
        return Appended(append.sequence, len(process.log))

    def _bad_luck(self, share: float) -> bool:
        return not self.is_kind and self.random.random() < share

    def _elect(self, process: Process) -> None:
        self.leader_epoch += 1
        self.leader = process
        process.leader_epoch, process.log = self.leader_epoch, self.log
        self.tell(process, Elected(self.leader_epoch, len(self.log)))

    def replicate(self) -> None:
        """The high watermark rises, and some hear of it."""
        self.high_watermark = len(self.log) if self.is_kind else self.random.randint(self.high_watermark, len(self.log))
        for process in self.processes:
            if process.coordinator.role is CoordinatorRole.LEADING:
                if process is self.leader:
                    self.tell(process, HighWatermarkRose(self.high_watermark))
            elif process.log is None or process is self.leader:
                known = process.coordinator.position
                end = self.high_watermark if self.is_kind else self.random.randint(known, self.high_watermark)
                self.tell(process, Replayed(tuple(self.log[known:end]), end))
        if self.leader.coordinator.role is CoordinatorRole.LOADING and self.is_kind:
            known = self.leader.coordinator.position
            self.tell(self.leader, Replayed(tuple(self.log[known : len(self.log)]), len(self.log)))

    def fail_over(self) -> None:
        """Another leader, whose log has all that was replicated and maybe more. The old one dies, hears of it, or goes on for a while."""
        self.failovers += 1
        old = self.leader
        self.log = self.log[: self.random.randint(self.high_watermark, len(self.log))]
        fate = self.random.choice(("dies", "hears", "goes on", "again"))
        if fate == "dies":
            old.coordinator, old.log = self._coordinator(), None
        elif fate == "hears":
            self._depose(old)
        candidates = [process for process in self.processes if process is not old or fate == "again"]
        self._elect(old if fate == "again" else self.random.choice(candidates))

    def _depose(self, process: Process) -> None:
        process.log = None
        self.tell(process, Resigned(process.leader_epoch))

    def depose_the_forgotten(self) -> None:
        for process in self.processes:
            if process is not self.leader and process.log is not None:
                self._depose(process)

    def pass_time(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while True:
            dues = [process.coordinator.next_deadline_ms() for process in self.processes]
            due_ms = min((due for due in dues if due is not None), default=until_ms)
            if due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            for process, due in zip(self.processes, dues, strict=True):
                if due is not None and due <= self.now_ms:
                    self.tell(process, CoordinatorTicked())
            if due_ms == until_ms:
                break
        self.now_ms = until_ms

    # ---------------------------------------------------------- requests and answers

    def send(self, request: Request, client: Client | None = None) -> int:
        self.tokens += 1
        token = self.tokens
        self.asked[token] = (request, client)
        if not self._bad_luck(0.05):
            process = self.random.choice(self.processes) if self._bad_luck(0.1) else self.leader
            self.tell(process, CoordinatorRequestReceived(token, request))
        return token

    def _replied(self, process: Process, token: int, reply: Any) -> None:
        assert token in self.asked, f"request {token} is answered twice: {reply}"
        request, client = self.asked.pop(token)
        if isinstance(request, SyncGroup) and not reply.error:
            self.rebalances += 1
            me = request.group_instance_id or request.member_id
            for place in decode_assignment(reply.assignment).partitions:
                owner = self.owners.setdefault((request.generation, place), me)
                assert owner == me, f"{place} is {owner}'s and {me}'s in generation {request.generation}"
        elif isinstance(reply, OffsetsCommitted):
            assert isinstance(request, OffsetCommit)
            (part,) = request.partitions
            if not reply.partitions[0].error:
                self.commits_acknowledged += 1
                self.acknowledged.setdefault(TopicPartition(part.topic, part.partition), set()).add(part.offset)
        elif isinstance(reply, OffsetsFetched) and not reply.error and process is self.leader:
            self._check_fetched(reply)
        if client is not None and not self._bad_luck(0.05):
            self.inbox.append((client, token, reply))

    def commit(self, client: Client, place: TopicPartition) -> None:
        """Each commit has a number of its own as its offset, so that it can be found in the log."""
        self.commits += 1
        part = CommittedPartition(place.topic, place.partition, self.commits)
        self.send(
            OffsetCommit(
                GROUP, (part,), client.member_id, client.generation, client.instance, connection=client.connection
            ),
            client,
        )

    def _commits_in_log(self, place: TopicPartition, end: int) -> list[int]:
        return [
            record.value.offset
            for record in self.log[:end]
            if isinstance(record.key, OffsetKey)
            and isinstance(record.value, OffsetValue)
            and (record.key.topic, record.key.partition) == place
        ]

    def _check_fetched(self, fetched: OffsetsFetched) -> None:
        told = {TopicPartition(each.topic, each.partition): each.offset for each in fetched.partitions}
        for place, acknowledged in self.acknowledged.items():
            in_log = self._commits_in_log(place, self.high_watermark)
            lost = acknowledged - set(in_log)
            assert not lost, f"{place}: commits {lost} were answered and are gone"
            last = max(in_log.index(each) for each in acknowledged)
            assert in_log.index(told[place]) >= last, f"{place}: {told[place]} is older than what was answered"

    def fetch(self) -> None:
        self.send(OffsetFetch(GROUP))

    def deliver(self) -> None:
        while self.inbox:
            client, token, reply = self.inbox.pop(0 if self.is_kind else self.random.randrange(len(self.inbox)))
            if client in self.clients:
                client.answered(token, reply)
            if self._bad_luck(0.5):
                return

    # ---------------------------------------------------------- life

    def arrive(self) -> None:
        self.numbers += 1
        is_static = not self.is_kind and self.random.random() < 0.3
        instance = f"i{self.random.randint(0, 2)}" if is_static else None
        self.clients.append(Client(self, self.numbers, instance, self.protocols))

    def depart(self) -> None:
        """Somebody crashes, or leaves as one should."""
        if not self.clients:
            return
        client = self.clients.pop(self.random.randrange(len(self.clients)))
        if self.random.random() < 0.5:
            self.send(LeaveGroup(GROUP, (LeavingMember(client.member_id or "?", client.instance),)))
        elif client.connection is not None:
            for process in self.processes:
                self.tell(process, ConnectionClosed(client.connection))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            what = self.random.random()
            if what < 0.45 and self.clients:
                self.random.choice(self.clients).act()
            elif what < 0.70:
                self.deliver()
            elif what < 0.82:
                self.replicate()
            elif what < 0.91:
                self.pass_time(self.random.randint(1, 2_500))
            elif what < 0.94:
                self.fetch()
            elif what < 0.96 and len(self.clients) < 5:
                self.arrive()
            elif what < 0.97:
                self.depart()
            elif what < 0.98:
                self.depose_the_forgotten()
            elif what < 0.985:
                self.fail_over()

    def heal(self) -> None:
        """No more trouble: within five minutes the live members share all partitions, and every image says the same."""
        self.is_kind = True
        self.depose_the_forgotten()
        self.deliver()
        names: set[str] = set()
        for client in list(self.clients):  # two live processes of one instance id would fence each other
            if client.is_fenced or (client.instance is not None and client.instance in names):
                self.clients.remove(client)
            elif client.instance is not None:
                names.add(client.instance)
        for _ in range(600):
            self.clients = [client for client in self.clients if not client.is_fenced]
            if not self.clients:
                self.arrive()
            self.replicate()
            for client in self.clients:
                client.act()
            self.replicate()
            self.deliver()
            self.pass_time(500)
        self._check_rest()

    def _check_rest(self) -> None:
        owned = sorted(place for client in self.clients for place in client.owned)
        everything = [TopicPartition(TOPIC, number) for number in range(self.partitions)]
        described = {client.number: (client.is_stable, client.generation, client.owned) for client in self.clients}
        assert owned == everything and all(client.is_stable for client in self.clients), f"no rest: {described}"
        group = self.leader.coordinator.machine.groups[GROUP]
        assert set(group.members) == {client.member_id for client in self.clients}
        self.fetch()
        self.replicate()
        images = [process.coordinator.machine.image.groups for process in self.processes]
        assert images[0] == images[1] == images[2], "who reads along has another picture than who leads"
