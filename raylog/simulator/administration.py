"""What people do to a simulated cluster: register disks, make topics, change, delete and question them; and the clients of each.

One administrator process sends requests until they are answered. Whenever the cluster may have new partitions, they are described and get
producers and a consumer of their own. Topics are drawn with small segments, all kinds of durability, and few enough names that a name
comes back with another id.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.configs.replication_quotas import FOLLOWER_RATE, FOLLOWERS, LEADER_RATE, LEADERS
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.requests import (
    AlterReassignments,
    ClusterStatus,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeCluster,
    DescribedTopic,
    DescribeTopics,
    DrainBroker,
    ElectionType,
    ElectLeaders,
    ListReassignments,
    MoveReplicas,
    PartitionGrowth,
    PartitionsCreated,
    PartitionTarget,
    PlanHost,
    RegisterDisk,
    ReplicasMoved,
    RequestedTopic,
    RetireHost,
    TopicCreation,
    TopicsCreated,
    TopicsDescribed,
)
from raylog.records.batch import SEQUENCE_MASK
from raylog.simulator.nonsense import nonsense
from raylog.simulator.odd_producers import Successor, Vandal
from raylog.simulator.queue_producer import QueueProducer
from raylog.simulator.simulated_scaling import PARTITIONS
from raylog.simulator.workload import Administrator, Client, KnownLeader, SimulatedConsumer, SimulatedProducer
from raylog.types import ReplicaMove, TopicIdPartition, broker_of

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
TOPIC_NAMES = ("a", "b", "c")
PARTITIONS_MAX = 3
OLD_MS = 3 * 24 * 3_600_000  # how old what some producers write is; retention is longer, deduplication shorter


class Administration:
    """``start`` sets the cluster up; ``stop`` leaves it alone from then on."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self.administrator = Administrator("admin", simulation, simulation.client_machine)
        self.topics: dict[str, DescribedTopic] = {}
        self.known: set[TopicIdPartition] = set()
        self.is_quiet = (
            self.scheduler.chance(0.3) or simulation.faults.is_about_depositions
        )  # no changes after the first topics
        self._brokers = range(1, len(simulation.broker_machines) + 1)  # those that take replicas
        self._replication_factors: dict[str, int] = {}
        self.partition_counts = (1, 1, 2)  # of new topics
        self._created = 0
        self._stopped = False
        self._drained: set[int] = set()  # by what was wished last
        self._draining: set[int] = set()  # a request is on its way
        self._registering: set[int] = set()  # likewise
        self._reassigned: list[tuple[str, int]] = []
        self._plans_hosts = simulation.seed % 3 == 1

    def start(self) -> None:
        self._to_register = len(self.simulation.brokers)
        for broker in self.simulation.brokers:
            self.register_disk(broker, self._registered if broker in self._brokers else self._keep_empty(broker))

    def _keep_empty(self, broker: int) -> Callable[[object], None]:
        """What is drained from the start gets replicas only while all others are down; it counts as registered when it is drained."""
        self._drained.add(broker)
        return lambda reply: self._ask_to_drain(broker, self._registered)

    def register_disk(self, broker: int, on_reply: Callable[[object], None] = lambda reply: None) -> None:
        """The disk that the broker has now; one request at a time, for that of a disk that is lost must not overtake the next."""
        if broker in self._registering:
            return
        self._registering.add(broker)
        simulation = self.simulation
        directory_id, path = simulation.directory_ids[broker], f"/{simulation.machine_of(broker).name}"

        def answered(reply: object) -> None:
            on_reply(reply)
            self._registering.discard(broker)
            if simulation.directory_ids[broker] != directory_id:
                self.register_disk(broker)

        request = RegisterDisk(simulation.cluster_id, broker, directory_id, path, f"rack{broker % 2}")
        self.administrator.request(request, answered)

    def stop(self) -> None:
        """Nothing changes any more, and what stands in the way of whole ISRs ends."""
        self._stopped = True
        for broker in sorted(self._drained):
            self.drain_broker(broker, False)
        self._set_throttle(None)

    def _registered(self, reply: object) -> None:
        self._to_register -= 1
        if self._to_register == 0:
            self.simulation.scaling.configure()
            for name in TOPIC_NAMES[: self.scheduler.rng.choice((1, 1, 2))]:
                self._create(name)
            self._question_later()
            if not self.is_quiet:
                self._later()
                self._move_later()
            self._relocate_later()

    def _question_later(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, 250_000, self._question, "question")

    def _question(self) -> None:
        """Somebody looks for a time in a partition; now and then somebody deletes its oldest records."""
        if self._stopped:
            return
        if self.scheduler.chance(0.12):
            self._delete_records()
        else:
            self._search()
        self._question_later()

    def _later(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, 1_500_000, self._change, "administration")

    def _move_later(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, 400_000, self._move, "move a replica")

    def _move(self) -> None:
        if not self._stopped:
            self._reassign()
            self._move_later()

    def _relocate_later(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, 300_000, self._relocate, "move between actors")

    def _relocate(self) -> None:
        """A replica goes to another actor of its disk; often a process dies or a controller sleeps just then."""
        if self._stopped:
            return
        self._relocate_later()
        simulation, rng = self.simulation, self.scheduler.rng
        if self._plans_hosts and not simulation.scaling.is_on and self.scheduler.chance(0.15):
            self._change_hosts()
        if not self.topics:
            return
        name = rng.choice(sorted(self.topics))
        topic = self.topics[name]
        assert topic.topic_id is not None
        partition = rng.choice(topic.partitions).partition
        state = simulation.state_of(TopicIdPartition(topic.topic_id, partition))
        if state is None:
            return
        slot = rng.choice(state.replicas)
        on_disk = [
            process
            for process in simulation.replica_processes()
            if process.spec.directory_id == slot.directory_id and process.spec.node_id != slot.node_id
        ]
        if not on_disk:
            return
        target = rng.choice(on_disk)
        holders = [each for each in simulation.replica_processes() if each.spec.node_id == slot.node_id]
        self.administrator.request(
            MoveReplicas((ReplicaMove(name, partition, slot.broker_id, target.spec.node_id),)),
            lambda reply: self._relocated(name, reply),
        )
        if self.scheduler.chance(0.3):
            victim = rng.choice((target, *holders))
            delay_us = self.scheduler.skewed_us(rng.choice((3_000, 30_000)))
            simulation.counts["processes killed amid a move"] += 1
            self.scheduler.after_us(delay_us, lambda: None if self._stopped else victim.kill(), "die amid a move")

    def _change_hosts(self) -> None:
        """One more host for a disk, or one less: often the one that has just been added, and never the last one."""
        active = self.simulation.controllers.active()
        if active is None or active.controller is None or not active.controller.image.hosts:
            return
        hosts = active.controller.image.hosts
        host = hosts[self.scheduler.rng.choice(sorted(hosts))]
        beside = [each for each in hosts.values() if (each.directory_id, each.kind) == (host.directory_id, host.kind)]
        counts = self.simulation.counts
        if len(beside) > 1:
            counts["hosts retired by hand"] += 1
            self.administrator.request(RetireHost(host.node_id), lambda reply: None)
        else:
            counts["hosts added by hand"] += 1
            self.administrator.request(PlanHost(broker_of(host.node_id), kind=host.kind), lambda reply: None)

    def _relocated(self, name: str, reply: object) -> None:
        assert isinstance(reply, ReplicasMoved), reply
        for outcome in reply.partitions:
            self.simulation.counts["moves refused"] += bool(outcome.error)
            self.simulation.trace(f"move of {name}-{outcome.partition}: {outcome.error} {outcome.message}")

    def _change(self) -> None:
        if self._stopped:
            return
        change = self.scheduler.rng.choices(
            (
                self._create_some,
                self._delete_some,
                self._grow_some,
                self._configure_some,
                self._delete_records,
                self._ask,
                self._elect,
                self._ask_nonsense,
                self._drain,
                self._throttle,
            ),
            (2, 1, 1, 3, 2, 3, 2, 1, 1, 1),
        )[0]
        change()
        self._later()

    # ---------------------------------------------------------------- topics

    def _create_some(self) -> None:
        absent = [name for name in TOPIC_NAMES if name not in self.topics]
        if absent:
            self._create(self.scheduler.rng.choice(absent))

    def _create(self, name: str) -> None:
        factor = self.scheduler.rng.choice((3, 3, 3, 3, 2, 1))
        self._replication_factors[name] = factor
        drawn = self.scheduler.rng.choice(self.partition_counts)
        partitions = PARTITIONS if self.simulation.scaling.is_on else drawn
        topic = RequestedTopic(name, partitions, factor, configs=self._configs(factor))
        self.simulation.trace(f"create {topic}")
        self._have_created(CreateTopics((topic,), timeout_ms=self._creation_timeout_ms()))

    def _creation_timeout_ms(self) -> int | None:
        """By a hash: what a seed draws is what it was before creations waited for leaders."""
        number = zlib.crc32(f"{self.simulation.seed} creates {self._created} {self.scheduler.now_us}".encode())
        return (None, 0, 300, 1_500, 1_500, 1_500)[number % 6]

    def _have_created(
        self, request: CreateTopics | CreatePartitions, grown: uuid.UUID | None = None, added: range = range(0)
    ) -> None:
        """Send it. Now and then clients set out before it is answered, and ask those who will lead.

        ``grown`` is the topic that gets more partitions, ``added`` their numbers.
        """
        depositions = self.simulation.counts["controllers deposed"]

        def answered(reply: object) -> None:
            if request.timeout_ms is not None and depositions == self.simulation.counts["controllers deposed"]:
                assert isinstance(reply, TopicsCreated | PartitionsCreated), reply
                for each in reply.topics:
                    self.simulation.counts["creations timed out"] += each.error == REQUEST_TIMED_OUT
                    if isinstance(each, TopicCreation):
                        topic_id, created = each.topic_id, range(each.partitions)
                    else:
                        topic_id, created = grown, added
                    if not each.error and topic_id is not None:
                        self.simulation.observer.check_created(topic_id, created)
            self._describe()

        self.administrator.request(request, answered)
        number = zlib.crc32(f"{self.simulation.seed} looks {self._created} {self.scheduler.now_us}".encode())
        if number % 4:
            delay_us = (3_000, 6_000, 20_000, 160_000, 200_000)[number // 4 % 5]
            self.administrator.later(delay_us, self._describe, "look at what is being created")

    def _configs(self, factor: int) -> tuple[tuple[str, str], ...]:
        chance = self.scheduler.chance
        rng = self.scheduler.rng
        configs = {
            "segment.index.bytes": "480",
            "index.interval.bytes": "200",
            "file.delete.delay.ms": "1000",
            "min.insync.replicas": str(rng.choice((1, 2, 2, factor))),
            "segment.bytes": str(rng.choice((600, 2_000, 20_000))),
        }
        if chance(0.3):
            configs["replicas.per.actor"] = "4"
        if chance(0.3):
            configs["flush.messages"] = rng.choice(("1", "1", "10"))
        if chance(0.15):
            configs["flush.ms"] = "200"
        if chance(0.12):
            configs["unclean.leader.election.enable"] = "true"
        if chance(0.15):
            configs["retention.bytes"] = "2000"
        if chance(0.1):
            configs["message.timestamp.type"] = "LogAppendTime"
        self._created += 1
        # By a hash: what a seed draws is what it was before there was compaction.
        number = zlib.crc32(f"{self.simulation.seed} compacts {self._created}".encode())
        if self.simulation.scaling.is_on:
            configs.pop("replicas.per.actor", None)
        elif number % 2:  # by the hash, too; half of the topics are on their disks' hosts
            configs.setdefault("replicas.per.actor", "1")
        if number % 4 == 0:
            configs["cleanup.policy"] = "compact,delete" if "retention.bytes" in configs else "compact"
            configs["min.cleanable.dirty.ratio"] = ("0.0", "0.1", "0.3")[number // 4 % 3]
            configs["delete.retention.ms"] = ("500", "30000")[number // 12 % 2]
            if number // 24 % 3 == 0:
                configs["min.compaction.lag.ms"] = "1000"
        return tuple(configs.items())

    def _describe(self) -> None:
        self.administrator.request(DescribeTopics(), self._described)

    def _described(self, reply: object) -> None:
        assert isinstance(reply, TopicsDescribed), reply
        self.topics = {topic.name: topic for topic in reply.topics if topic.name is not None and not topic.error}
        nodes = {node.node_id: node.endpoint for node in reply.nodes}
        for name, topic in self.topics.items():
            assert topic.topic_id is not None, topic
            for partition in topic.partitions:
                id = TopicIdPartition(topic.topic_id, partition.partition)
                if id not in self.known and not self.simulation.is_deleted(id):
                    self.known.add(id)
                    before = len(self.simulation.producers), len(self.simulation.consumers)
                    self._follow(name, id, dict(topic.configs))
                    endpoint = nodes.get(partition.leader_node)
                    if endpoint is not None:
                        named = KnownLeader(partition.leader_node, partition.leader_epoch, endpoint)
                        self.simulation.counts["leaders named before their election"] += named.epoch < 0
                        clients: list[Client] = [*self.simulation.producers[before[0] :]]
                        clients += self.simulation.consumers[before[1] :]
                        for client in clients:
                            client.leader = named

    def _follow(self, name: str, id: TopicIdPartition, configs: dict[str, str]) -> None:
        """Clients for a new partition."""
        simulation = self.simulation
        history = simulation.checkers.history(id, name)
        history.retention = "retention.bytes" in configs
        history.stamps_time = configs.get("message.timestamp.type") == "LogAppendTime"
        history.compacts = "compact" in configs.get("cleanup.policy", "delete")
        history.delete_retention_ms = int(configs.get("delete.retention.ms", 0)) - simulation.clock_steps.set_back_ms
        history.clocks_are_set = "set a clock" in simulation.faults.mixture
        simulation.transactions.follow(name, id, history)
        tag = f"{name}{id.partition}.{len(self.known)}"
        machine = simulation.client_machine
        kinds = [(True, -1)]
        if self.scheduler.chance(0.5):
            kinds.append((False, self.scheduler.rng.choice((0, 1, -1))))
        for number, (idempotent, acks) in enumerate(kinds):
            interval_us = self.scheduler.rng.choice((30_000, 100_000, 400_000))
            simulation.producers.append(
                SimulatedProducer(
                    f"producer-{tag}.{number}",
                    simulation,
                    machine,
                    topic=name,
                    id=id,
                    acks=acks,
                    idempotent=idempotent,
                    interval_us=interval_us,
                    compacts=history.compacts,
                    first_sequence=SEQUENCE_MASK - self.scheduler.between(0, 200) if self.scheduler.chance(0.3) else 0,
                    age_ms=self.scheduler.rng.choice((0, 0, 0, OLD_MS)),
                )
            )
        pause_us = self.scheduler.rng.choice((200_000, 600_000))
        if not history.compacts and self.scheduler.chance(0.4):
            simulation.consumers.append(
                Successor(f"successor-{tag}", simulation, machine, topic=name, id=id, interval_us=pause_us)
            )
        if self.scheduler.chance(0.3):
            simulation.consumers.append(
                Vandal(f"vandal-{tag}", simulation, machine, topic=name, id=id, interval_us=pause_us)
            )
        if self.scheduler.chance(0.5):
            simulation.producers.append(
                QueueProducer(
                    f"queue-producer-{tag}",
                    simulation,
                    machine,
                    topic=name,
                    id=id,
                    interval_us=self.scheduler.rng.choice((20_000, 60_000, 200_000)),
                    compacts=history.compacts,
                )
            )
        simulation.consumers.append(SimulatedConsumer(f"consumer-{tag}", simulation, machine, topic=name, id=id))

    def _delete_some(self) -> None:
        if len(self.topics) > 1:
            name = self.scheduler.rng.choice(sorted(self.topics))
            topic = self.topics.pop(name)
            assert topic.topic_id is not None
            self.simulation.deleted_topics.add(topic.topic_id)
            self.simulation.trace(f"delete {name}")
            request = DeleteTopics(topic_ids=(topic.topic_id,))
            self.administrator.request(request, lambda reply: self._describe())

    def _grow_some(self) -> None:
        if self.topics:
            name = self.scheduler.rng.choice(sorted(self.topics))
            count = len(self.topics[name].partitions) + 1
            if count <= PARTITIONS_MAX:
                growth = PartitionGrowth(name, count)
                request = CreatePartitions((growth,), timeout_ms=self._creation_timeout_ms())
                self._have_created(request, self.topics[name].topic_id, range(count - 1, count))

    def _configure_some(self) -> None:
        if not self.topics:
            return
        name = self.scheduler.rng.choice(sorted(self.topics))
        key, value = self.scheduler.rng.choice(
            (
                ("min.insync.replicas", "1"),
                ("min.insync.replicas", "2"),
                ("min.insync.replicas", "3"),
                ("flush.messages", "1"),
                ("flush.messages", None),
                ("segment.bytes", "1000"),
                ("unclean.leader.election.enable", "true"),
                ("unclean.leader.election.enable", None),
            )
        )
        if key == "unclean.leader.election.enable" and self.scheduler.chance(0.7):
            return
        self.simulation.trace(f"configure {name} {key}={value}")
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        changes = ResourceChanges(ResourceType.TOPIC, name, (ConfigChange(key, operation, value),))
        self.administrator.request(AlterConfigs((changes,)), lambda reply: None)

    def _elect(self) -> None:
        """Leaders move to the preferred replicas; now and then somebody accepts a loss."""
        self.elect(ElectionType.UNCLEAN if self.scheduler.chance(0.1) else ElectionType.PREFERRED)

    def elect(self, type: ElectionType) -> None:
        self.simulation.trace(f"elect {type}")
        self.administrator.request(ElectLeaders(type), lambda reply: None)

    def _reassign(self) -> None:
        """Replicas move, become more or fewer; one that is under way gets another target or is cancelled, half of them soon."""
        if not self.topics:
            return
        rng = self.scheduler.rng
        if self._reassigned and self.scheduler.chance(0.5):
            self._cancel(*rng.choice(self._reassigned))
            return
        name = rng.choice(sorted(self.topics))
        partition = rng.choice(self.topics[name].partitions).partition
        brokers = list(self._brokers)
        rng.shuffle(brokers)
        target = PartitionTarget(name, partition, tuple(brokers[: rng.choice((1, 2, 2, 3, 3))]))
        self.simulation.trace(f"reassign {target}")
        self.administrator.request(AlterReassignments((target,)), lambda reply: None)
        self._reassigned = [*self._reassigned, (name, partition)][-4:]
        if self.scheduler.chance(0.5):
            delay_us = self.scheduler.skewed_us(20_000)
            self.scheduler.after_us(delay_us, lambda: self._cancel(name, partition), "cancel a reassignment")

    def _cancel(self, name: str, partition: int) -> None:
        if self.simulation.faults.corruption.is_recovering:
            return  # it could take the good copy away, which a person would not do now
        if not self._stopped:
            self.simulation.trace(f"cancel the reassignment of {name}-{partition}")
            request = AlterReassignments((PartitionTarget(name, partition, None),))
            self.administrator.request(request, lambda reply: None)

    def _drain(self) -> None:
        """A broker is emptied of leaders before somebody touches its machine; a drained one returns."""
        drained = sorted(self._drained.intersection(self._brokers))
        if drained and self.scheduler.chance(0.7):
            self.drain_broker(self.scheduler.rng.choice(drained), False)
        else:
            self.drain_broker(self.scheduler.rng.choice(self._brokers), True)

    def drain_broker(self, broker: int, is_draining: bool) -> None:
        self.simulation.trace(f"{'drain' if is_draining else 'undrain'} broker {broker}")
        (self._drained.add if is_draining else self._drained.discard)(broker)
        if broker not in self._draining:
            self._ask_to_drain(broker)

    def _ask_to_drain(self, broker: int, on_reply: Callable[[object], None] = lambda reply: None) -> None:
        """One request at a time: what is asked again and again until it is answered may overtake what was wished later."""
        is_draining = broker in self._drained
        self._draining.add(broker)

        def answered(reply: object) -> None:
            on_reply(reply)
            self._draining.discard(broker)
            if (broker in self._drained) != is_draining:
                self._ask_to_drain(broker)

        self.administrator.request(DrainBroker(broker, is_draining), answered)

    def _throttle(self) -> None:
        """All copying of a topic is slowed down, or the brokers' rates change; as often, there are none any more."""
        if self.topics and self.scheduler.chance(0.5):
            self._list_throttled(self.scheduler.rng.choice(sorted(self.topics)))
        self._set_throttle(self.scheduler.rng.choice((None, None, 300, 3_000, 30_000)))

    def _list_throttled(self, name: str) -> None:
        self.simulation.trace(f"throttle the copying of {name}")
        changes = tuple(ConfigChange(key, ConfigOperation.SET, "*") for key in (LEADERS, FOLLOWERS))
        self._alter(ResourceChanges(ResourceType.TOPIC, name, changes))

    def _set_throttle(self, rate: int | None) -> None:
        self.simulation.trace(f"throttle brokers to {rate}")
        operation, value = (ConfigOperation.DELETE, None) if rate is None else (ConfigOperation.SET, str(rate))
        changes = tuple(ConfigChange(key, operation, value) for key in (LEADER_RATE, FOLLOWER_RATE))

        def answered(reply: object) -> None:
            if rate is not None and self._stopped:  # it came through late, after what was to end it
                self._set_throttle(None)

        self._alter(ResourceChanges(ResourceType.BROKER, "", changes), answered)

    def _alter(self, changes: ResourceChanges, answered: Callable[[object], None] = lambda reply: None) -> None:
        self.administrator.request(AlterConfigs((changes,)), answered)

    def _ask_nonsense(self) -> None:
        """Requests that have to be refused, each by its own error, and change nothing."""
        name = self.scheduler.rng.choice(sorted(self.topics) or ["a"])
        unknown = self.simulation.new_uuid()
        # A disk that is not registered yet would be taken in, under the wrong broker.
        known_to = self.simulation.cluster_id if 1 not in self._registering else "another cluster"
        change = ConfigChange(self.scheduler.rng.choice(("no.such.config", "segment.bytes")), ConfigOperation.SET, "-5")
        request = self.scheduler.rng.choice(
            nonsense(name, unknown, known_to, change, directory_id=self.simulation.directory_ids[1])
        )
        self.administrator.request(request, lambda reply: None)

    # ---------------------------------------------------------------- questions, and deletions of records

    def _some_leader(self) -> SimulatedProducer | None:
        found = [
            producer for producer in self.simulation.producers if producer.leader is not None and not producer.gone
        ]
        return self.scheduler.rng.choice(found) if found else None

    def _delete_records(self) -> None:
        producer = self._some_leader()
        if producer is None or producer.leader is None:
            return
        history = self.simulation.checkers.history(producer.id)
        start = min(history.deletable_end, history.end)
        offset = self.scheduler.between(start, max(start, start + (history.end - start) // 3))
        if self.scheduler.chance(0.1):
            offset = self.scheduler.rng.choice((-1, history.end + 5))
        self.administrator.delete_records(producer.id, producer.leader.endpoint, offset)

    def _search(self) -> None:
        producer = self._some_leader()
        if producer is not None and producer.leader is not None:
            self.administrator.list_offsets(producer.id, producer.leader, self._some_time(producer.id))

    def _some_time(self, id: TopicIdPartition) -> int:
        """A name for an offset, or a time: that of some batch, a little before or after it, or not long ago."""
        rng = self.scheduler.rng
        stamps = self.simulation.checkers.history(id).stamps
        if stamps and self.scheduler.chance(0.6):
            return rng.choice(stamps).timestamp + rng.choice((-1, 0, 0, 1))
        return rng.choice((-1, -2, -3, self.simulation.client_machine.wall_ms() - 1_000))

    def _ask(self) -> None:
        names = tuple(sorted(self.topics))
        request = self.scheduler.rng.choice(
            (
                DescribeTopics(names),
                DescribeCluster(),
                ClusterStatus(),
                ListReassignments(),
                DescribeConfigs(tuple(ConfigQuery(ResourceType.TOPIC, name) for name in names)),
            )
        )
        self.administrator.request(request, lambda reply: None)
        self._search()
        producer = self._some_leader()
        if producer is not None and producer.leader is not None:
            self.administrator.ask_epoch(producer.id, producer.leader.endpoint, producer.leader.epoch)
