"""The production clients in a simulated cluster: producers and consumers as users have them, under
the simulator's faults.

``ClientSimulation`` is the simulation (``simulation``) with servers that speak raylog's wire
protocol (``wire_servers``) and with clients (``native_clients``) whose every line is production
code: connections, metadata, sender, fetcher, group membership. Their event loop is simulated
(``simulated_loop``). What is asked of them is what a user is promised (``client_checker``).

Disks are not damaged here: what that does to replicas the other simulations find out.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, ClassVar

from raylog.client.links.address import ClusterAddress
from raylog.groups.context import GroupConfig
from raylog.metadata.requests import CreateTopics, RequestedTopic
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.simulator.administration import Administration
from raylog.simulator.checkers import Violation
from raylog.simulator.client_checker import ClientChecker
from raylog.simulator.faults import CORRUPT
from raylog.simulator.kafka_clients import KafkaCommitter, KafkaReader, KafkaWriter
from raylog.simulator.native_clients import GroupReader, PartitionReader, Writer
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_sessions import ActorSpec
from raylog.simulator.simulation import Simulation
from raylog.simulator.wire_brokers import WireBrokerProcess
from raylog.simulator.wire_servers import SECRET, WireControllerProcess, WireReplicaProcess
from raylog.types import Endpoint, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulated_quorum import Place

TOPIC = "t"
OFFSETS_PARTITIONS = 2
MEMBERS_MAX = 3
LOGGER = logging.getLogger("raylog")

_names = itertools.count(1)  # what a process knows of one cluster it must not know of the next


class ClientAdministration(Administration):
    """Makes one topic and ``__consumer_offsets``; then leaders move, brokers are drained and
    replicas are reassigned.
    """

    simulation: ClientSimulation

    def _registered(self, reply: object) -> None:
        self._to_register -= 1
        if self._to_register:
            return
        rng = self.scheduler.rng
        configs = {
            "segment.index.bytes": "480",
            "index.interval.bytes": "200",
            "min.insync.replicas": str(rng.choice((1, 2, 2))),
            "segment.bytes": str(rng.choice((2_000, 20_000))),
        }
        if self.scheduler.chance(0.3):
            configs["flush.messages"] = "1"
        if self.scheduler.chance(0.06):  # it ends nearly all that can be claimed
            configs["unclean.leader.election.enable"] = "true"
        topic = RequestedTopic(TOPIC, rng.choice((1, 2, 3)), 3, configs=tuple(configs.items()))
        of_offsets = RequestedTopic(OFFSETS_TOPIC, OFFSETS_PARTITIONS, 3, configs=(("segment.index.bytes", "480"),))
        self.administrator.request(CreateTopics((topic, of_offsets)), lambda reply: self._describe())
        if not self.is_quiet:
            self._later()
            self._move_later()

    def _change(self) -> None:
        if not self._stopped:
            self.scheduler.rng.choice((self._elect, self._drain, self._throttle))()
            self._later()

    def _follow(self, name: str, id: TopicIdPartition, configs: dict[str, str]) -> None:
        self.simulation.checkers.history(id, name).compacts = name == OFFSETS_TOPIC
        if name == TOPIC:
            self.simulation.begin(id)


class ClientSimulation(Simulation):
    """``ClientSimulation(seed).run()``, as ``Simulation``."""

    coordinated_topics: ClassVar = (OFFSETS_TOPIC,)
    runs_transactions: ClassVar = False

    def __init__(self, seed: int, **options: Any) -> None:
        self.controller_endpoints: dict[int, Endpoint] = {}
        self.kafka_listeners: dict[int, Endpoint] = {}  # by broker: where Kafka's clients reach its last process
        super().__init__(seed, **options)
        for name in (CORRUPT, "let a log rot"):
            self.faults.mixture.pop(name, None)
        self.group_config = GroupConfig(group_initial_rebalance_delay_ms=self.scheduler.rng.choice((0, 1_000)))
        self.administration = ClientAdministration(self)
        self._cluster_name = f"simulated{next(_names)}"
        self.client_checker = ClientChecker(self.checkers, self.counts)
        self.partition_ids: list[TopicIdPartition] = []
        self.writers: list[Writer] = []
        self.readers: list[PartitionReader] = []
        self._numbers = itertools.count(1)
        self._group_id, self._group_of_kafka_client = itertools.islice(
            (
                name
                for name in (f"group{number}" for number in itertools.count())
                if partition_for(name) < OFFSETS_PARTITIONS
            ),
            2,
        )
        self.group_strategy = self.scheduler.rng.choice(
            (["range"], ["cooperative-sticky"], ["range", "cooperative-sticky"])
        )
        self._errors = _Errors()
        self.is_finishing = False

    def run(self) -> None:
        was_propagating, LOGGER.propagate = LOGGER.propagate, False
        LOGGER.addHandler(self._errors)
        try:
            super().run()
        finally:
            for machine in self.all_machines:
                for process in list(machine.processes):
                    process.end(silently=True)
            LOGGER.removeHandler(self._errors)
            LOGGER.propagate = was_propagating

    def _step(self) -> None:
        super()._step()
        if self._errors.first is not None:
            raise Violation(f"an error was logged: {self._errors.first}")

    # ---------------------------------------------------------------- servers

    def new_controller(self, place: Place) -> WireControllerProcess:
        return WireControllerProcess(self, place)

    def start_actor(self, machine: Machine, spec: ActorSpec, *, is_broker: bool) -> None:
        self.counts["server starts"] += 1
        if is_broker:
            WireBrokerProcess(self, machine, spec)
        else:
            WireReplicaProcess(self, machine, spec)

    # ---------------------------------------------------------------- clients

    @property
    def address(self) -> ClusterAddress:
        """The cluster as a client is told of it now."""
        endpoints = tuple(self.controllers.endpoints)
        return ClusterAddress(self._cluster_name, "simulated", self.cluster_id, endpoints, SECRET)

    def begin(self, id: TopicIdPartition) -> None:
        """A partition is there. With the first one come the clients of the topic."""
        self.partition_ids.append(id)
        if len(self.partition_ids) > 1:
            return
        for _ in range(self.scheduler.between(1, 2)):
            self.writers.append(Writer(f"writer{next(self._numbers)}", self, TOPIC))
        self._start_reader()
        for _ in range(self.scheduler.between(1, MEMBERS_MAX)):
            self._join()
        self._start_kafka_clients()
        self.scheduler.after_us(self.scheduler.skewed_us(500_000), self._live, "clients live")

    def _start_kafka_clients(self) -> None:
        self.kafka_writer = KafkaWriter(f"writer{next(self._numbers)}", self, TOPIC)
        self.kafka_reader = KafkaReader(f"kafka-reader{next(self._numbers)}", self, TOPIC)
        self.kafka_committer = KafkaCommitter(
            f"committer{next(self._numbers)}", self, TOPIC, self._group_of_kafka_client
        )

    def _start_reader(self) -> None:
        self.readers.append(PartitionReader(f"reader{next(self._numbers)}", self, TOPIC))

    def _join(self) -> None:
        self.counts["members that joined"] += 1
        self.readers.append(GroupReader(f"member{next(self._numbers)}", self, TOPIC, self._group_id))

    def reader_failed(self, reader: PartitionReader) -> None:
        """Its user begins anew with another one."""
        again = self._join if isinstance(reader, GroupReader) else self._start_reader
        self.scheduler.after_us(self.scheduler.skewed_us(100_000), again, "a reader begins anew")

    def living(self) -> list[GroupReader]:
        return [each for each in self.readers if isinstance(each, GroupReader) and each.alive and not each.is_over]

    def _live(self) -> None:
        """Something becomes of a reader, or there is one more."""
        if self._healing:
            return
        self.rhythm.later(self.scheduler.after_us, 800_000, self._live, "clients live")
        rng, living = self.scheduler.rng, self.living()
        what = rng.choices(("join", "crash", "leave", "pause", "restart a reader"), (3, 2, 2, 1, 1))[0]
        if what == "join":
            if len(living) < MEMBERS_MAX:
                self._join()
            return
        if what == "restart a reader":
            alone = [each for each in self.readers if not isinstance(each, GroupReader) and each.alive]
            for each in alone:
                each.kill()
            self._start_reader()
            return
        if not living:
            return
        member = rng.choice(living)
        self.trace(f"{member.name}: {what}")
        self.counts[f"members: {what}"] += 1
        if what == "crash":
            member.kill()
        elif what == "leave":
            member.leave()
        else:
            member.pause()
            self.scheduler.after_ms(self.scheduler.between(100, 12_000), member.resume, "a member wakes up")

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        self.is_finishing = True
        for reader in self.readers:
            reader.resume()
        for writer in self.writers:
            writer.finish()
        self.kafka_writer.finish()
        self.kafka_committer.finish()

    def _unfinished(self) -> str | None:
        if not self.is_finishing:
            self._finish()
        if not self.living():
            self._join()
        writers: list[Writer | KafkaWriter] = [*self.writers, self.kafka_writer]
        for writer in writers:
            if not writer.is_settled:
                return f"{writer.name} waits for {writer.unsettled} records"
        if not self.kafka_committer.is_settled:
            return f"{self.kafka_committer.name} cannot commit"
        ends = {id.partition: self.checkers.history(id).end for id in self.partition_ids}
        for reader in self.readers:
            if reader.alive and not isinstance(reader, GroupReader) and (behind := reader.behind(ends)) is not None:
                return behind
        if (behind := self.kafka_reader.behind(ends)) is not None:
            return behind
        if (behind := self.client_checker.group_behind(ends)) is not None:
            return f"the group of {[each.name for each in self.living()]}: {behind}"
        return super()._unfinished()

    def _compare(self) -> None:
        super()._compare()
        for id, _, state in self.partitions():
            if id in self.partition_ids:
                leader = next(
                    replica.open_log()
                    for process, replica in self._replicas_of(id)
                    if process.host.context.broker_id == state.leader
                )
                self.client_checker.compare(id, leader)


class _Errors(logging.Handler):
    """Remembers the first error that production code met and only logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and self.first is None:
            self.first = f"{record.getMessage()}: {record.exc_info[1]!r}"
