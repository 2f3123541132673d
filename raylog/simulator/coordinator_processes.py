"""Server processes of a simulated cluster that coordinate something: the production
``CoordinatorRuntime`` on their replicas.

A coordinator dies, is deposed, is cut off and loses its page cache like any leader, by the same
faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from raylog.coordination.context import KeyedT
from raylog.coordination.coordinator import CoordinatorRole
from raylog.coordination.events import ReplyT, RequestT
from raylog.coordination.machine import CoordinatorKind
from raylog.coordination.runtime import CoordinatorRuntime, Others
from raylog.log.files import NotInMemory
from raylog.log.log import Log
from raylog.replication.events import DamageSuspected, LogFailed, OwnAppend, ProducePartition, ProducePartitionResult
from raylog.replication.leaderships import Leadership
from raylog.replication.transaction_events import LeaveGiven, LeaveWanted
from raylog.simulator.messages import Answer, Call
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_network import End, Link
from raylog.simulator.simulated_servers import ReplicaProcess
from raylog.simulator.simulated_sessions import ActorSpec, OneSaid, ProcessClock, ServerEnd
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class CoordinatorCall(Generic[RequestT]):
    """A request to the process that leads a partition of a coordinators' topic."""

    partition: TopicIdPartition
    request: RequestT
    is_native: bool


class CoordinatorProcess(ReplicaProcess, Generic[RequestT, ReplyT, KeyedT]):
    """A process that holds replicas, and coordinates on those of one kind's topic that it leads."""

    def __init__(
        self,
        simulation: Simulation,
        machine: Machine,
        spec: ActorSpec,
        kind: CoordinatorKind[RequestT, ReplyT, KeyedT],
        *,
        others: Others | None = None,
    ) -> None:
        super().__init__(simulation, machine, spec)
        self.runtime = CoordinatorRuntime(kind, self, ProcessClock(self), others=others)
        self._inside: dict[int, Callable[[Any], None]] = {}
        self._roles: dict[tuple[str, int], CoordinatorRole] = {}

    @property
    def runtimes(self) -> tuple[CoordinatorRuntime[Any, Any, Any], ...]:
        return (self.runtime,)

    def controller_said(self, frame: OneSaid) -> None:
        for runtime in self.runtimes:
            runtime.hear(frame)
        super().controller_said(frame)

    def leaderships_changed(self, changes: Sequence[Leadership]) -> None:
        for runtime in self.runtimes if self.alive else ():
            runtime.receive(changes)

    def after_work(self) -> None:
        super().after_work()
        for runtime in self.runtimes:
            for number in runtime.numbers():
                coordinator = runtime.coordinator_of(number)
                assert coordinator is not None
                coordinator.check()
                key = runtime.kind.topic, number
                was, self._roles[key] = self._roles.get(key), coordinator.role
                if was is not coordinator.role and coordinator.role is CoordinatorRole.LEADING:
                    self.simulation.counts["coordinators that took over"] += 1
                    self.simulation.trace(f"{self.name} coordinates {number} from {coordinator.position}")

    @property
    def coordinates(self) -> bool:
        return CoordinatorRole.LEADING in self._roles.values()

    def on_end(self) -> None:
        self.simulation.counts["coordinator crashes"] += self.coordinates

    # ---------------------------------------------------------------- what the coordinators want of the replicas

    def log(self, id: TopicIdPartition) -> Log | None:
        replica = self.host.replicas.get(id)
        return replica.log if replica is not None else None

    def append(
        self,
        id: TopicIdPartition,
        batch: bytes,
        leader_epoch: int,
        then: Callable[[ProducePartitionResult], None],
        leave: int,
    ) -> None:
        token = self.new_token()
        self._inside[token] = lambda reply: then(reply.partitions[0])
        self.handle(OwnAppend(token, ProducePartition(id, batch), leader_epoch, leave))

    def want_leave(self, wanted: Callable[[int], LeaveWanted], then: Callable[[LeaveGiven], None]) -> None:
        token = self.new_token()
        self._inside[token] = then
        self.handle(wanted(token))

    def answer(self, token: int, reply: Any) -> None:
        then = self._inside.pop(token, None)
        if then is not None:
            then(reply)
        else:
            super().answer(token, reply)

    def load(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        def loaded() -> None:
            try:
                self.files.load(missing.path, missing.position, missing.size)
            except OSError as error:
                self.simulation.trace(f"{self.name} cannot load {missing.path}: {error}")
            then()

        self.in_thread(1_000, loaded, "load for coordinators")

    def log_failed(self, id: TopicIdPartition, reason: str) -> None:
        self.handle(LogFailed(id, reason))

    def suspect(self, id: TopicIdPartition, offset: int) -> None:
        self.handle(DamageSuspected(id, offset))

    # ---------------------------------------------------------------- requests

    def accepted(self, link: Link) -> End:
        return _CoordinatorEnd(self, link.number)

    def serve(self, end: ServerEnd, call: Call) -> bool:
        request = call.request
        if not isinstance(request, CoordinatorCall):
            return super().serve(end, call)
        assert isinstance(end, _CoordinatorEnd) and end.link is not None
        link = end.link
        asked = self.with_connection(request.request, end.number) if request.is_native else request.request
        self.simulation.trace_event(self.name, asked)
        check = self.asked(link, CoordinatorCall(request.partition, asked, request.is_native))

        def answered(reply: ReplyT) -> None:
            self.simulation.trace_event(self.name, reply)
            check(reply)
            link.send(self, Answer(call.correlation, reply))

        self.ask_coordinator(request.partition.partition, asked, answered)
        return True

    def ask_coordinator(self, number: int, request: RequestT, answered: Callable[[ReplyT], None]) -> None:
        self.runtime.ask(number, request, answered)

    def with_connection(self, request: RequestT, connection: int) -> RequestT:
        """A native client's request, on the connection whose end is to count."""
        return request

    def asked(self, link: Link, call: CoordinatorCall[RequestT]) -> Callable[[ReplyT], None]:
        """A request has arrived; what is returned is called with the reply, before the reply is
        sent.
        """
        return lambda reply: None


class _CoordinatorEnd(ServerEnd):
    """Reports the end of a connection to the coordinators."""

    __slots__ = ("number",)

    def __init__(self, server: CoordinatorProcess[Any, Any, Any], number: int) -> None:
        super().__init__(server)
        self.number = number

    def closed(self, link: Link) -> None:
        super().closed(link)
        assert isinstance(self.server, CoordinatorProcess)
        for runtime in self.server.runtimes:
            runtime.connection_closed(self.number)
