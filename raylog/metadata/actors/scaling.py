"""Hosts that come and go by themselves: one more where a host's event loop is saturated and cores
are idle, one less where it is idle.

Hosts report how busy their loops are and which replicas have traffic (``host_loads``). For each
disk one thing is done at a time:

- **Spread.** A host was busy for ``actor.scaling.busy.ms``. If moving some of its hottest replicas
  to the least busy other host of the disk evens them out enough, they move, one after the other.
  Otherwise, if it would help and the machine has a core to spare, one more host is planned, and
  they move when it runs. One replica that makes all the load stays: nothing would be gained.
- **Merge.** A host that was added here was idle for ``actor.scaling.idle.ms``. Its replicas go to
  the least busy other host of the disk, if that stays below the bound; then it is retired.

A replica moves only while the ISR of its partition is whole, so never two of one partition at the
same time.

Hosts that an operator added, and the first of each disk, stay: the record says which were added
here (``HostPlanned.is_automatic``). Internal topics' hosts, and actors of topics with a number in
``replicas.per.actor``, are left alone.

Nothing flaps. The bounds lie apart; both windows begin anew after each step; steps of a disk are
``actor.scaling.backoff.ms`` apart; a replica that was moved stays for ``Bounds.rest_ms``; a spread
has to lower the busier host's share by ``host_loads.GAIN_MIN``.

A machine is known by its boot id. It has a core to spare while our processes there leave at least
half a core idle and fewer of its hosts are busy than it has cores. A broker never gets more hosts
than cores, or than ``actor.scaling.actors.max``.

Load history and the rest of a step under way are this controller's alone. The next one finds hosts
and replicas where the records have them, all in valid places, and begins to measure.

Invariants (``check``): at most one step per disk; a step's next replica is named once.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raylog.control.session import Heartbeat
from raylog.metadata.actors import scaling_configs
from raylog.metadata.actors.host_decisions import HostDecisions
from raylog.metadata.actors.host_loads import Bounds, HostLoad, worth_moving
from raylog.metadata.actors.node_slots import NodeSlots
from raylog.metadata.events import Notice, NoticeLevel
from raylog.metadata.image import MetadataImage
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions import reassignments
from raylog.metadata.partitions.move_decisions import Moves
from raylog.metadata.records import HostKind, HostPlanned, PartitionState
from raylog.metadata.requests import MoveReplicas, RetireHost
from raylog.metadata.sessions import Session, Sessions
from raylog.types import ReplicaMove, TopicIdPartition, broker_of

STEP_PATIENCE_MS = 30_000  # for a planned host to run, and for each replica to be open at the other host
SPARE_CORE_PER_MILLE = 500


@dataclass(slots=True)
class ScalingStep:
    """Replicas on their way from one host to another of a disk. ``source`` is retired at the end if
    ``retires``.

    ``moving`` is the replica that the other host is about to open.
    """

    source: int
    target: int
    waiting: deque[TopicIdPartition]
    retires: bool
    give_up_at_ms: int
    moving: TopicIdPartition | None = None


class Scaling:
    __slots__ = (
        "_absent_since_ms",
        "_began_ms",
        "_hosts",
        "_ledger",
        "_loads",
        "_moved_away",
        "_moves",
        "_notice",
        "_quiet_until_ms",
        "_sessions",
        "_steps",
        "moved_at_ms",
    )

    def __init__(
        self,
        ledger: Ledger,
        sessions: Sessions,
        hosts: HostDecisions,
        moves: Moves,
        *,
        moved_away: Callable[[Iterable[int]], None],
        notice: Callable[[Notice], None],
    ) -> None:
        """``moved_away`` is told which actors have lost a replica."""
        self._ledger = ledger
        self._sessions = sessions
        self._hosts = hosts
        self._moves = moves
        self._moved_away = moved_away
        self._notice = notice
        self._began_ms = 0
        self._loads: dict[int, HostLoad] = {}
        self._steps: dict[uuid.UUID, ScalingStep] = {}
        self._absent_since_ms: dict[int, int] = {}  # hosts that were added, hold nothing and do not run
        self._quiet_until_ms: dict[uuid.UUID, int] = {}
        self.moved_at_ms: dict[tuple[int, TopicIdPartition], int] = {}  # by broker; of what may not have rested yet

    @property
    def _latest(self) -> MetadataImage:
        return self._ledger.latest

    def begin(self, now_ms: int) -> None:
        """This controller's term begins."""
        self._began_ms = now_ms

    # -------------------------------------------------------------- what is heard

    def reported(self, session: Session, heartbeat: Heartbeat, now_ms: int) -> None:
        """A host's heartbeat."""
        host = self._latest.hosts.get(session.node_id)
        if host is None or host.kind is not HostKind.REPLICAS:
            return
        bounds = scaling_configs.in_force(self._latest)
        load = self._loads.get(session.node_id)
        if load is None or load.incarnation != session.incarnation:
            load = self._loads[session.node_id] = HostLoad(session.incarnation)
        load.report(heartbeat, bounds, now_ms)
        self._look(host.directory_id, bounds, now_ms)

    def progressed(self, id: TopicIdPartition, now_ms: int) -> None:
        """A replica of that partition was opened or released, or its ISR has changed: the step that
        moves it may go on.
        """
        for directory_id, step in list(self._steps.items()):
            if step.moving == id:
                self._look(directory_id, scaling_configs.in_force(self._latest), now_ms)

    # -------------------------------------------------------------- what to do

    def _look(self, directory_id: uuid.UUID, bounds: Bounds, now_ms: int) -> None:
        step = self._steps.get(directory_id)
        if step is not None:
            self._go_on(directory_id, step, bounds, now_ms)
            return
        if not bounds.is_on or self._awaits_host(directory_id, bounds, now_ms):
            return
        if now_ms < self._quiet_until_ms.get(directory_id, self._began_ms + bounds.backoff_ms):
            return
        running = self._running(directory_id)
        for source in self._busy_for_long(running, bounds, now_ms):
            if self._spread(directory_id, source, running, bounds, now_ms):
                return
        self._merge(directory_id, running, bounds, now_ms)

    def _awaits_host(self, directory_id: uuid.UUID, bounds: Bounds, now_ms: int) -> bool:
        """Whether a host that was added has yet to come. One that does not come in time is given
        up.
        """
        for host in self._latest.hosts_of(directory_id):
            node = host.node_id
            if not host.is_automatic or self._latest.assigned.get(node) or self._sessions.of_node(node) is not None:
                self._absent_since_ms.pop(node, None)
                continue
            if now_ms - self._absent_since_ms.setdefault(node, now_ms) >= STEP_PATIENCE_MS:
                del self._absent_since_ms[node]
                text = f"actor {node}, which was added, does not come: it is given up"
                self._notice(Notice(text, NoticeLevel.WARNING))
                self._moved_away(self._hosts.retire(RetireHost(node), now_ms)[1])
                self._quiet_until_ms[directory_id] = now_ms + bounds.backoff_ms
            return True
        return False

    def _running(self, directory_id: uuid.UUID) -> list[int]:
        hosts = [each.node_id for each in self._latest.hosts_of(directory_id) if each.kind is HostKind.REPLICAS]
        sessions = [(node, self._sessions.of_node(node)) for node in hosts]
        return [node for node, session in sessions if session is not None and not session.exiting]

    def _busy(self, node: int) -> int:
        load = self._loads.get(node)
        return load.busy_per_mille if load is not None else 0

    def _busy_for_long(self, running: list[int], bounds: Bounds, now_ms: int) -> list[int]:
        """The busiest first. Saturated hosts look alike, whatever is asked of them: of these the
        one with the most replicas.
        """
        loads = {node: self._loads[node] for node in running if node in self._loads}
        busy = [node for node, load in loads.items() if load.was_busy_for(bounds.busy_ms, now_ms)]
        return sorted(busy, key=lambda node: (-(loads[node].busy_per_mille // 100), -len(loads[node].shares), node))

    def _spread(self, directory_id: uuid.UUID, source: int, running: list[int], bounds: Bounds, now_ms: int) -> bool:
        """Whether this host is the one to do something about: now, or when replicas of it that have
        just been moved may move again.
        """
        shares = self._loads[source].shares
        movable = [id for id in shares if self._may_move(id, source)]
        broker_id, rest_ms = broker_of(source), bounds.rest_ms
        rested = [id for id in movable if now_ms - self.moved_at_ms.get((broker_id, id), -rest_ms) >= rest_ms]
        others = [node for node in running if node != source]
        if others:
            target = min(others, key=lambda node: (self._busy(node), node))
            moves = worth_moving(shares, self._busy(target), movable=rested)
            if moves:
                self._begin(directory_id, source, target, moves, now_ms, retires=False)
                return True
        if worth_moving(shares, 0, movable=movable) and self._has_room(source, bounds):
            if worth_moving(shares, 0, movable=rested):
                self._plan_host(directory_id, source)
            return True
        return False

    def _may_move(self, id: TopicIdPartition, source: int) -> bool:
        state = self._latest.partition(id)
        return (
            state is not None
            and not reassignments.is_under_way(state)
            and id in self._latest.assigned.get(source, ())
            and state.future(broker_of(source)) is None
        )

    def _has_room(self, source: int, bounds: Bounds) -> bool:
        """Whether the machine has a core to spare, and the broker fewer hosts than it may have."""
        session = self._sessions.of_node(source)
        assert session is not None
        cores = session.usage.cores
        broker_id = broker_of(source)
        hosts = [
            node
            for node, host in self._latest.hosts.items()
            if host.kind is HostKind.REPLICAS and broker_of(node) == broker_id
        ]
        if len(hosts) >= (min(cores, bounds.actors_max) if bounds.actors_max else cores):
            return False
        neighbours = self._on_machine_of(source)
        used = sum(max(0, each.usage.cpu_per_mille) for each in neighbours)
        busy = sum(self._busy(each.node_id) >= bounds.busy_per_mille for each in neighbours)
        return busy < cores and used + SPARE_CORE_PER_MILLE <= cores * 1_000

    def _on_machine_of(self, node: int) -> list[Session]:
        actors = self._latest.actors
        boot_id = actors[node].boot_id
        return [
            each for each in self._sessions.all() if each.node_id in actors and actors[each.node_id].boot_id == boot_id
        ]

    def _plan_host(self, directory_id: uuid.UUID, source: int) -> None:
        broker_id = broker_of(source)
        host = NodeSlots(self._latest).plan_host(broker_id, directory_id, HostKind.REPLICAS, is_automatic=True)
        self._ledger.add(host)
        busy = self._busy(source) // 10
        self._notice(Notice(f"actor {source} of broker {broker_id} is {busy} % busy: actor {host.node_id} is added"))

    def _merge(self, directory_id: uuid.UUID, running: list[int], bounds: Bounds, now_ms: int) -> None:
        for host in self._latest.hosts_of(directory_id):
            node = host.node_id
            load = self._loads.get(node)
            others = [each for each in running if each != node]
            if not self._may_end(host) or node not in running or load is None or not others:
                continue
            if not load.was_idle_for(bounds.idle_ms, now_ms):
                continue
            target = min(others, key=lambda each: (self._busy(each), self._latest.hosts[each].is_automatic, each))
            if self._busy(target) + load.busy_per_mille >= bounds.busy_per_mille:
                continue
            self._begin(directory_id, node, target, self._latest.partitions_on(node), now_ms, retires=True)
            return

    @staticmethod
    def _may_end(host: HostPlanned) -> bool:
        return host.is_automatic

    # -------------------------------------------------------------- a step

    def _begin(
        self,
        directory_id: uuid.UUID,
        source: int,
        target: int,
        ids: Iterable[TopicIdPartition],
        now_ms: int,
        *,
        retires: bool,
    ) -> None:
        step = ScalingStep(source, target, deque(ids), retires, now_ms + STEP_PATIENCE_MS)
        self._steps[directory_id] = step
        why = "is idle" if retires else "is busy"
        self._notice(Notice(f"actor {source} {why}: {len(step.waiting)} of its replicas go to actor {target}"))
        self._go_on(directory_id, step, scaling_configs.in_force(self._latest), now_ms)

    def _go_on(self, directory_id: uuid.UUID, step: ScalingStep, bounds: Bounds, now_ms: int) -> None:
        """Move the next replica if the last one is open where it was moved to, and in sync again."""
        if not bounds.is_on or now_ms >= step.give_up_at_ms or not self._both_run(step):
            self._end(directory_id, step, bounds, now_ms)
            return
        if step.moving is not None and not self._has_arrived(step.moving, step):
            return
        step.moving = None
        while step.waiting:
            id = step.waiting[0]
            state = self._latest.partition(id)
            if state is None or id not in self._latest.assigned.get(step.source, ()):
                step.waiting.popleft()  # deleted, or moved by somebody else
                continue
            if not _is_whole(state):
                return  # another replica of it is away; again with the next report, until the time is up
            name = self._latest.topics[id.topic_id].name
            move = ReplicaMove(name, id.partition, broker_of(step.source), step.target)
            reply, former = self._moves.move(MoveReplicas((move,)), now_ms)
            if reply.partitions[0].error:
                if reassignments.is_under_way(state):
                    step.waiting.popleft()
                    continue
                return  # it cannot now; again likewise
            self._moved_away(former)
            step.waiting.popleft()
            step.moving = id
            step.give_up_at_ms = now_ms + STEP_PATIENCE_MS
            self.moved_at_ms[broker_of(step.source), id] = now_ms
            return
        if step.retires:
            _, former = self._hosts.retire(RetireHost(step.source), now_ms)
            self._moved_away(former)
        self._end(directory_id, step, bounds, now_ms)

    def _both_run(self, step: ScalingStep) -> bool:
        running = self._running(self._latest.directory_of(step.source)) if step.source in self._latest.hosts else []
        return step.source in running and step.target in running

    def _has_arrived(self, id: TopicIdPartition, step: ScalingStep) -> bool:
        state = self._latest.partition(id)
        if state is None or state.node_of(broker_of(step.target)) != step.target:
            return True  # it is somebody else's business now
        target, source = self._sessions.of_node(step.target), self._sessions.of_node(step.source)
        assert target is not None and source is not None
        return id in target.opened and id not in source.releasing and broker_of(step.target) in state.isr

    def _end(self, directory_id: uuid.UUID, step: ScalingStep, bounds: Bounds, now_ms: int) -> None:
        del self._steps[directory_id]
        self._quiet_until_ms[directory_id] = now_ms + bounds.backoff_ms
        for node in [node for node in self._loads if node not in self._latest.hosts]:
            del self._loads[node]
        for host in self._latest.hosts_of(directory_id):
            if host.node_id in self._loads:
                self._loads[host.node_id].forget_history()
        rested = [key for key, at_ms in self.moved_at_ms.items() if now_ms - at_ms >= bounds.rest_ms]
        for key in rested:
            del self.moved_at_ms[key]

    def check(self) -> None:
        for step in self._steps.values():
            assert step.source != step.target and step.moving not in step.waiting, f"{step}"
            assert len(set(step.waiting)) == len(step.waiting), f"{step}"


def _is_whole(state: PartitionState) -> bool:
    return len(state.isr) == len(state.replicas)
