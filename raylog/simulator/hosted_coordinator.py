"""The production transaction coordinator in server processes of the simulated cluster, and the road to
it: requests of producers and leaders go over the network to whoever leads the partition of
``__transaction_state``, and get lost with it.

``TransactionProcess`` runs the production ``TransactionMachine`` in the production runtime upon its
replicas, as group coordinators are run (``coordinator_processes``). It answers what the machine wants
of others as a real server does (``raylog.server.transaction_questions``): from its copy of the
metadata image it knows who leads, and sends markers there; producer ids come from the controller.

``HostedCoordinator`` is the other end: what clients see of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from raylog.control.session import ImageChanged
from raylog.coordination.events import OutsideAnswer, OutsideQuestion
from raylog.coordination.runtime import CoordinatorRuntime
from raylog.groups.machine import GroupKind, GroupMachine
from raylog.groups.requests import GroupReply
from raylog.groups.requests import Request as GroupRequest
from raylog.listener.owners import Owner
from raylog.listener.routes import Routes
from raylog.log.markers import TransactionEnd
from raylog.metadata.image import MetadataImage
from raylog.metadata.image_copy import ImageCopy
from raylog.metadata.requests import AllocateProducerIds, AwaitLeader, LeaderFound, ProducerIdsBlock
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_for
from raylog.records.control import Marker
from raylog.replication.events import ProduceReply
from raylog.replication.transaction_events import MarkersReceived, PartitionMarker, VerifyTransaction
from raylog.server.group_coordinator import GroupCoordinators
from raylog.simulator.checkers import Violation
from raylog.simulator.coordinator_processes import CoordinatorCall, CoordinatorProcess
from raylog.simulator.decided_transactions import DecidedTransactions
from raylog.simulator.group_members import on_connection
from raylog.simulator.messages import OnReply, SimulatedCaller
from raylog.simulator.processes import Machine, Process
from raylog.simulator.simulated_network import Link
from raylog.simulator.simulated_sessions import ActorSpec, OneSaid, ProcessClock
from raylog.simulator.transaction_checker import KnownTransaction
from raylog.simulator.transaction_coordinator import TIMEOUT_MS, CoordinatorSays, OnAnswer
from raylog.transactions.machine import TransactionKind, TransactionMachine
from raylog.transactions.records import Participation, TransactionRecord
from raylog.transactions.requests import (
    VERSION_2,
    AddPartitions,
    EndTransaction,
    InitTransactionalId,
    MarkersWritten,
    PartitionsAdded,
    ProducerIdsGiven,
    TransactionalIdInitialised,
    TransactionEnded,
    TransactionReply,
    TransactionRequest,
    VerifyPartitions,
    WantProducerIds,
    WriteMarkers,
)
from raylog.types import Endpoint, TopicIdPartition, TopicPartition, broker_of

if TYPE_CHECKING:
    from raylog.simulator.hosted_transactions import TransactionSimulation
    from raylog.simulator.simulation import Simulation

NETWORK_EXCEPTION = ErrorCode.network_exception.value
LEADER_NOT_AVAILABLE = ErrorCode.leader_not_available.value
REQUEST_TIMEOUT_MS = 3_000
MARKERS_TIMEOUT_MS = 1_500
LEADER_WAIT_MS = 1_000
_WITHIN_US = 200  # from a process to itself


class TransactionProcess(CoordinatorProcess[TransactionRequest, TransactionReply, TransactionRecord]):
    """A process whose coordinators are those of transactions, and those of groups."""

    simulation: TransactionSimulation

    def __init__(self, simulation: TransactionSimulation, machine: Machine, spec: ActorSpec) -> None:
        super().__init__(simulation, machine, spec, TransactionKind(), others=self._ask_others)
        kind = GroupKind(simulation.transactions.group_config, new_uuid=simulation.new_uuid)
        self.groups = GroupCoordinators(CoordinatorRuntime(kind, self, ProcessClock(self)), self.want_leave)
        self._copy = ImageCopy()
        self._routes = Routes(broker_of(spec.node_id), self._image)
        self._owners: dict[Owner, SimulatedCaller] = {}
        self._controller = ControllerRoad(self, simulation)

    @property
    def runtimes(self) -> tuple[CoordinatorRuntime[Any, Any, Any], ...]:
        return self.runtime, self.groups.runtime

    def controller_said(self, frame: OneSaid) -> None:
        if isinstance(frame, ImageChanged):
            self._copy.fold(frame)
        super().controller_said(frame)

    def _image(self) -> MetadataImage:
        assert self._copy.image is not None, "the image comes before the first partition"
        return self._copy.image

    def machine_of(self, id: TopicIdPartition) -> TransactionMachine | GroupMachine | None:
        is_of_groups = id in self.simulation.transactions.offsets_partitions()
        runtime: CoordinatorRuntime[Any, Any, Any] = self.groups.runtime if is_of_groups else self.runtime
        coordinator = runtime.coordinator_of(id.partition)
        machine = coordinator.machine if coordinator is not None else None
        assert machine is None or isinstance(machine, TransactionMachine | GroupMachine)
        return machine

    # ---------------------------------------------------------------- groups

    def with_connection(self, request: Any, connection: int) -> Any:
        return on_connection(request, connection)

    def ask_coordinator(self, number: int, request: Any, answered: Callable[[Any], None]) -> None:
        if isinstance(request, GroupRequest):
            self.groups.ask(number, request, answered)
        else:
            super().ask_coordinator(number, request, answered)

    def asked(self, link: Link, call: CoordinatorCall[Any]) -> Callable[[Any], None]:
        request, id = call.request, call.partition
        if not isinstance(request, GroupRequest):
            return super().asked(link, call)
        offsets, history = self.simulation.transactions.committed_offsets, self.simulation.checkers.history(id)
        received = offsets.received(request)

        def answered(reply: GroupReply) -> None:
            replica = self.host.replicas.get(id)
            leads = replica is not None and replica.leader is not None
            epoch = replica.assignment.leader_epoch if replica is not None else -1
            if leads and epoch == history.newest_epoch and not history.generation:
                offsets.answered(request, received, reply)

        return answered

    # ---------------------------------------------------------------- what the machine wants of others

    def _ask_others(self, question: OutsideQuestion, then: Callable[[OutsideAnswer], None]) -> None:
        self.simulation.trace_event(self.name, question)
        if isinstance(question, WriteMarkers):
            _MarkerRound(self, question, then)
            return
        assert isinstance(question, WantProducerIds), question
        self._controller.ask(AllocateProducerIds(), lambda reply: then(self._given(reply)))

    def _given(self, reply: object | None) -> ProducerIdsGiven:
        if not isinstance(reply, ProducerIdsBlock):
            return ProducerIdsGiven(NETWORK_EXCEPTION)
        for producer_id in range(reply.first, reply.first + reply.count) if not reply.error else ():
            self.simulation.producer_id_assigned(producer_id)
        return ProducerIdsGiven(reply.error, reply.first, reply.count)

    def leading_process(self, partition: TopicPartition) -> Owner | None:
        return self._routes.leading_process(*partition)

    def id_of(self, partition: TopicPartition) -> TopicIdPartition | None:
        image = self._image()
        topic_id = image.topic_ids.get(partition.topic)
        return TopicIdPartition(topic_id, partition.partition) if topic_id is not None else None

    def ask_owner(self, owner: Owner, request: MarkersReceived, on_reply: OnReply) -> None:
        if owner.endpoint == self.endpoint:  # simulated links have two processes at their ends
            token = self.new_token()
            self._inside[token] = on_reply
            self.later(_WITHIN_US, lambda: self.handle(replace(request, token=token)), f"{self.name} asks itself")
            return
        caller = self._owners.get(owner)
        if caller is None:
            expect = (owner.node_id, owner.incarnation)
            caller = self._owners[owner] = SimulatedCaller(self, self.simulation.network, owner.endpoint, expect)
        caller.call(request, on_reply, timeout_ms=REQUEST_TIMEOUT_MS)


class _MarkerRound:
    """One attempt to have markers written, whose answer comes from several leaders."""

    def __init__(
        self, process: TransactionProcess, question: WriteMarkers, then: Callable[[OutsideAnswer], None]
    ) -> None:
        self._question = question
        self._then = then
        self._errors: dict[TopicPartition, tuple[int, ...]] = {}
        led: dict[Owner, list[tuple[TopicPartition, TopicIdPartition]]] = {}
        lost: dict[TopicPartition, tuple[int, ...]] = {}
        for partition in question.partitions:
            owner, id = process.leading_process(partition), process.id_of(partition)
            if owner is None or id is None:
                lost[partition] = (LEADER_NOT_AVAILABLE,)
            else:
                led.setdefault(owner, []).append((partition, id))
        ends = _ends(question)
        for owner, those in led.items():
            markers = tuple(PartitionMarker(id, end) for end in ends for _, id in those)
            request = MarkersReceived(0, MARKERS_TIMEOUT_MS, markers)
            process.ask_owner(owner, request, self._heard([partition for partition, _ in those]))
        if lost:
            # Not in the turn of the question: as over a network, the answer comes later.
            process.later(1_000, lambda: self._answered(lost), f"{process.name} knows no leader")

    def _heard(self, partitions: Sequence[TopicPartition]) -> OnReply:
        def heard(reply: object | None) -> None:
            codes: list[int] = [NETWORK_EXCEPTION] * len(partitions)
            if isinstance(reply, ProduceReply):
                codes = [each.error for each in reply.partitions]
            count = len(partitions)  # of the markers of each producer
            self._answered({each: tuple(codes[at::count]) for at, each in enumerate(partitions)})

        return heard

    def _answered(self, errors: dict[TopicPartition, tuple[int, ...]]) -> None:
        self._errors |= errors
        if len(self._errors) == len(self._question.partitions):
            told = ((each, error) for each, codes in sorted(self._errors.items()) for error in codes)
            self._then(MarkersWritten(tuple(told)))


def _ends(question: WriteMarkers) -> list[TransactionEnd]:
    """That of the producer itself, then those of the participants."""
    producers = [(question.producer_id, question.producer_epoch, question.commits)]
    producers += [
        (each.producer_id, each.producer_epoch, each.part is Participation.WINS) for each in question.participants
    ]
    return [
        TransactionEnd(
            producer_id,
            epoch,
            question.coordinator_epoch,
            Marker.COMMIT if commits else Marker.ABORT,
            question.version,
        )
        for producer_id, epoch, commits in producers
    ]


class ControllerRoad:
    """Asks the controller that answered last, once; the next time another one if that was silent."""

    def __init__(self, process: Process, simulation: Simulation) -> None:
        self._process = process
        self._simulation = simulation
        self._at = 0
        self._callers: dict[Endpoint, SimulatedCaller] = {}

    def ask(self, request: object, on_reply: OnReply) -> None:
        endpoints = self._simulation.controllers.endpoints
        at = self._at

        def answered(reply: object | None) -> None:
            is_refused = getattr(reply, "error", 0) == ErrorCode.not_controller.value
            if (reply is None or is_refused) and at == self._at:
                self._at += 1
            on_reply(reply)

        endpoint = endpoints[at % len(endpoints)]
        self.caller(endpoint).call(request, answered, timeout_ms=REQUEST_TIMEOUT_MS)

    def caller(self, endpoint: Endpoint) -> SimulatedCaller:
        """To whichever process listens there."""
        found = self._callers.get(endpoint)
        if found is None:
            found = SimulatedCaller(self._process, self._simulation.network, endpoint, None)
            self._callers[endpoint] = found
        return found


class CoordinatorRoad:
    """The way from one process to the coordinator of one partition. A question is one attempt: it
    finds the leader if none is known, and forgets the one that did not answer or does not coordinate.
    """

    def __init__(self, process: Process, simulation: Simulation, id: TopicIdPartition) -> None:
        self._id = id
        self._process = process
        self._controller = ControllerRoad(process, simulation)
        self._leader: Endpoint | None = None

    def ask(self, request: TransactionRequest, answered: Callable[[TransactionReply | None], None]) -> None:
        if self._leader is not None:
            self._put(self._leader, request, answered)
            return

        def found(reply: object | None) -> None:
            endpoint = reply.endpoint if isinstance(reply, LeaderFound) and not reply.error else None
            self._leader = endpoint
            if endpoint is None:
                answered(None)
            else:
                self._put(endpoint, request, answered)

        self._controller.ask(AwaitLeader(TRANSACTIONS_TOPIC, self._id.partition, -1, LEADER_WAIT_MS), found)

    def _put(
        self, leader: Endpoint, request: TransactionRequest, answered: Callable[[TransactionReply | None], None]
    ) -> None:
        def heard(reply: object | None) -> None:
            is_lost = reply is None or ErrorCode.not_coordinator.value in _errors(reply)
            if is_lost and self._leader == leader:
                self._leader = None
            answered(reply)  # type: ignore[arg-type]

        process = self._process
        if isinstance(process, TransactionProcess) and leader == process.endpoint:
            ask = lambda: process.runtime.ask(self._id.partition, request, heard)  # noqa: E731
            process.later(_WITHIN_US, ask, f"{process.name} asks itself")
            return
        call = CoordinatorCall(self._id, request, is_native=False)
        self._controller.caller(leader).call(call, heard, timeout_ms=REQUEST_TIMEOUT_MS)


def _errors(reply: object) -> list[int]:
    if isinstance(reply, PartitionsAdded):
        return [error for _, error in reply.errors]
    return [getattr(reply, "error", 0)]


class HostedCoordinator:
    """``Coordination`` by the cluster's own processes. ``partitions`` are those of
    ``__transaction_state``, by number; until all are known, nobody answers.
    """

    def __init__(self, simulation: TransactionSimulation, decided: DecidedTransactions, partition_count: int) -> None:
        self._simulation = simulation
        self._decided = decided
        self._partition_count = partition_count
        self.partitions: dict[int, TopicIdPartition] = {}
        self._roads: dict[tuple[Process, int], CoordinatorRoad] = {}
        self._topics: dict[TopicIdPartition, str] = {}
        self._given: dict[tuple[int, int], Process] = {}  # who got each producer id and epoch at its beginning

    def follow(self, topic: str, id: TopicIdPartition) -> None:
        self._topics[id] = topic
        self._decided.follow(topic, id)

    def ask(
        self, asker: Process, request: TransactionRequest, answered: Callable[[TransactionReply | None], None]
    ) -> None:
        """One attempt, as those below. None: nobody has answered."""
        assert not hasattr(request, "partition"), request
        number = partition_for(request.transactional_id, self._partition_count)  # type: ignore[union-attr]
        id = self.partitions.get(number)
        if id is None:
            asker.later(1_000, lambda: answered(None), f"{asker.name} finds no coordinator")
            return
        road = self._roads.get((asker, number))
        if road is None:
            road = self._roads[asker, number] = CoordinatorRoad(asker, self._simulation, id)
        road.ask(request, answered)

    # ---------------------------------------------------------------- what producers ask

    def initialise(self, asker: Process, transactional_id: str, version: int, answered: OnAnswer) -> None:
        def heard(reply: TransactionReply | None) -> None:
            if not isinstance(reply, TransactionalIdInitialised):
                answered(CoordinatorSays(NETWORK_EXCEPTION))
                return
            identity = (reply.producer_id, reply.producer_epoch)
            if not reply.error and self._given.setdefault(identity, asker) is not asker:
                raise Violation(f"{identity} was given to {self._given[identity].name} and to {asker.name}")
            answered(CoordinatorSays(reply.error, *identity))

        self.ask(asker, InitTransactionalId(transactional_id, TIMEOUT_MS), heard)

    def add_partitions(
        self, asker: Process, transaction: KnownTransaction, ids: Sequence[TopicIdPartition], answered: OnAnswer
    ) -> None:
        def heard(reply: TransactionReply | None) -> None:
            answered(CoordinatorSays(self._worst(reply, ids)))

        self.ask(asker, AddPartitions(*_identity(transaction), self._named(ids)), heard)

    def _named(self, ids: Sequence[TopicIdPartition]) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self._topics[id], id.partition) for id in ids)

    def add_group(self, asker: Process, transaction: KnownTransaction, group_id: str, answered: OnAnswer) -> None:
        """AddOffsetsToTxn of a producer of version 1."""
        count = len(self._simulation.transactions.offsets_partitions())
        partition = TopicPartition(OFFSETS_TOPIC, partition_for(group_id, count))

        def heard(reply: TransactionReply | None) -> None:
            answered(CoordinatorSays(self._worst(reply, ())))

        self.ask(asker, AddPartitions(*_identity(transaction), (partition,)), heard)

    def _worst(self, reply: TransactionReply | None, ids: Sequence[TopicIdPartition]) -> int:
        """What the producer takes for the answer: not one of a topic that is gone, which it would
        ask for again and again.
        """
        if not isinstance(reply, PartitionsAdded):
            return NETWORK_EXCEPTION
        unknown = ErrorCode.unknown_topic_or_partition.value
        error = next((error for _, error in reply.errors if error), 0)
        is_gone = error == unknown and any(map(self._simulation.is_deleted, ids))
        return ErrorCode.invalid_txn_state.value if is_gone else error

    def decide(
        self, asker: Process, transaction: KnownTransaction, version: int, answered: OnAnswer, *, commits: bool
    ) -> None:
        def heard(reply: TransactionReply | None) -> None:
            if not isinstance(reply, TransactionEnded):
                answered(CoordinatorSays(NETWORK_EXCEPTION))
                return
            if not reply.error:
                self._decided.acknowledged(transaction, commits=commits)
            answered(CoordinatorSays(reply.error, reply.producer_id, reply.producer_epoch))

        request = EndTransaction(*_identity(transaction), commits, _wire_version(version))
        self.ask(asker, request, heard)

    # ---------------------------------------------------------------- what leaders ask

    def verify_for(self, asker: Process, order: VerifyTransaction, answered: Callable[[int], None]) -> None:
        partitions = (TopicPartition(order.topic, order.partition),)
        who = (order.membership.transactional_id, order.producer_id, order.producer_epoch)
        request: TransactionRequest = VerifyPartitions(*who, partitions)
        if order.membership.adds:
            request = AddPartitions(*who, partitions, VERSION_2)

        def heard(reply: TransactionReply | None) -> None:
            errors = _errors(reply) if isinstance(reply, PartitionsAdded) else [NETWORK_EXCEPTION]
            answered(errors[0])

        self.ask(asker, request, heard)

    def unfinished(self) -> str | None:
        return self._decided.unfinished()


def _identity(transaction: KnownTransaction) -> tuple[str, int, int]:
    return transaction.name.transactional_id, transaction.producer_id, transaction.producer_epoch


def _wire_version(version: int) -> int:
    return version if version >= VERSION_2 else 0
