"""Consumer groups in the simulated cluster: coordinators that are leaders of
``__consumer_offsets``, and members that come and go.

``GroupSimulation`` is the simulation (``simulation``) with another topic and other clients. Its
replica processes run the production group machines in the production runtime
(``raylog.coordination``) upon the replicated log, so a coordinator dies, is deposed, is cut off and
loses its page cache like any leader, by the same faults. Members (``group_members``) crash, leave,
get stuck, pause, and come back under the instance id of somebody who may still be there.
``group_checker`` sees all that reaches a coordinator and all that leaves one.

Healing asks for more than that of other topics: each group's live members share all its partitions,
each owned once, in one stable generation; what was committed last is shown; and every replica's
image of the groups is the same.
"""

from __future__ import annotations

import itertools
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from raylog.groups.context import GroupConfig
from raylog.groups.group import State
from raylog.groups.image import StoredGroup
from raylog.groups.machine import GroupKind, GroupMachine
from raylog.groups.records import GroupKey, GroupRecord, OffsetKey, encode
from raylog.groups.requests import GroupReply, OffsetCommit, Request
from raylog.metadata.configuration.config_requests import ConfigChange, ConfigOperation, ResourceChanges, ResourceType
from raylog.metadata.requests import CreateTopics, DescribeTopics, ElectionType, RequestedTopic
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.simulator import answer_checks
from raylog.simulator.administration import Administration
from raylog.simulator.checkers import Violation
from raylog.simulator.coordinator_processes import CoordinatorCall, CoordinatorProcess
from raylog.simulator.group_checker import GroupChecker
from raylog.simulator.group_members import GroupSpec, SimulatedMember, on_connection
from raylog.simulator.group_tool import GroupTool
from raylog.simulator.group_topics import GroupTopics
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_network import Link
from raylog.simulator.simulated_servers import BrokerProcess
from raylog.simulator.simulated_sessions import ActorSpec
from raylog.simulator.simulation import Simulation
from raylog.simulator.unclean_elections import UncleanElections
from raylog.types import TopicIdPartition, TopicPartition

PARTITIONS = 2  # of __consumer_offsets here: fifty would take the time of fifty logs
MEMBERS_MAX = 4
UNCLEAN = "elect an unclean leader of groups"
RETENTION_MINUTES = 2  # of offsets, in runs with nights
_STRATEGIES = (("range",), ("cooperative-sticky",), ("sticky", "roundrobin"), ("range", "cooperative-sticky"))


class GroupProcess(CoordinatorProcess[Request, GroupReply, GroupRecord]):
    """A process whose coordinators are those of groups, and whose answers are checked."""

    simulation: GroupSimulation

    @property
    def topics(self) -> Mapping[str, uuid.UUID]:
        return self.runtime.topics or {}

    def asked(self, link: Link, call: CoordinatorCall[Request]) -> Callable[[GroupReply], None]:
        id, request = call.partition, call.request
        checker, histories = self.simulation.group_checker, self.simulation.checkers
        is_beginning = isinstance(request, OffsetCommit) and self._waits_for_a_plan(id, request.group_id)
        received = checker.received(request, histories.history(id).generation, self.topics, is_beginning=is_beginning)

        def answered(reply: GroupReply) -> None:
            history = histories.history(id)
            replica = self.host.replicas.get(id)
            epoch = replica.assignment.leader_epoch if replica is not None else -1
            number = history.generation if epoch >= history.first_epoch else -1
            leads = epoch == history.newest_epoch and replica is not None and replica.leader is not None

            def has_missed_deletion(place: TopicPartition) -> bool:
                key, _ = encode(GroupRecord(OffsetKey(getattr(request, "group_id", ""), *place), None))
                return answer_checks.has_missed_deletion(history, key, self.host.context.broker_id)

            checker.answered(
                request,
                received,
                reply,
                history_number=number,
                leads=leads,
                topics=self.topics,
                has_missed_deletion=has_missed_deletion,
            )

        return answered

    def with_connection(self, request: Request, connection: int) -> Request:
        return on_connection(request, connection)

    def group_machine(self, id: TopicIdPartition) -> GroupMachine | None:
        coordinator = self.runtime.coordinator_of(id.partition)
        machine = coordinator.machine if coordinator is not None else None
        assert machine is None or isinstance(machine, GroupMachine)
        return machine

    def _waits_for_a_plan(self, id: TopicIdPartition, group_id: str) -> bool:
        machine = self.group_machine(id)
        group = machine.groups.get(group_id) if machine is not None else None
        return group is not None and group.is_in(State.COMPLETING_REBALANCE)


class GroupAdministration(Administration):
    """Makes ``__consumer_offsets`` and the topics that groups read; then leaders move, brokers are
    drained, replicas are reassigned, and topics are deleted and made again.
    """

    simulation: GroupSimulation

    def __init__(self, simulation: GroupSimulation) -> None:
        super().__init__(simulation)
        self.group_topics = GroupTopics(self, tuple(f"work{number}" for number in range(PARTITIONS)))

    def describe(self, then: Callable[[], None]) -> None:
        def described(reply: object) -> None:
            self._described(reply)
            then()

        self.administrator.request(DescribeTopics(), described)

    def stop(self) -> None:
        super().stop()
        self.group_topics.restore()

    def _registered(self, reply: object) -> None:
        self._to_register -= 1
        if self._to_register:
            return
        configs = {
            "segment.index.bytes": "480",
            "min.cleanable.dirty.ratio": "0.2",
            "delete.retention.ms": "1000",
            "index.interval.bytes": "200",
            "segment.bytes": str(self.scheduler.rng.choice((2_000, 20_000))),
        }
        if self.scheduler.chance(0.3):
            configs["flush.messages"] = "1"
        topic = RequestedTopic(OFFSETS_TOPIC, PARTITIONS, -1, configs=tuple(configs.items()))
        self.administrator.request(CreateTopics((topic,)), lambda reply: self._describe())
        self.group_topics.create_all()
        if not self.is_quiet:
            self._later()
            self._move_later()

    def _change(self) -> None:
        if not self._stopped:
            changes = (self._elect, self._drain, self._set_a_groups_config, self.group_topics.delete_some)
            self.scheduler.rng.choice(changes)()
            self._later()

    def _set_a_groups_config(self) -> None:
        """Coordinators go by it from then on."""
        name, value = self.scheduler.rng.choice(
            (
                ("group.initial.rebalance.delay.ms", "0"),
                ("group.initial.rebalance.delay.ms", "2000"),
                ("group.initial.rebalance.delay.ms", None),
                ("offsets.commit.timeout.ms", "500"),
                ("offsets.commit.timeout.ms", None),
            )
        )
        self.simulation.trace(f"configure groups: {name}={value}")
        self.simulation.counts["configs of groups changed"] += 1
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        self._alter(ResourceChanges(ResourceType.BROKER, "", (ConfigChange(name, operation, value),)))

    def _elect(self) -> None:
        self.elect(ElectionType.PREFERRED)

    def _follow(self, name: str, id: TopicIdPartition, configs: dict[str, str]) -> None:
        self.simulation.checkers.history(id, name).compacts = name == OFFSETS_TOPIC
        if name == OFFSETS_TOPIC:
            self.simulation.begin_group(id)


class GroupSimulation(Simulation):
    """``GroupSimulation(seed).run()``, as ``Simulation``."""

    coordinated_topics: ClassVar = (OFFSETS_TOPIC,)
    runs_transactions: ClassVar = False

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        rng = self.scheduler.rng
        self.group_config = GroupConfig(
            group_initial_rebalance_delay_ms=rng.choice((0, 1_000)),
            offsets_commit_timeout_ms=rng.choice((1_000, 5_000)),
            offsets_retention_minutes=RETENTION_MINUTES if self.calm > 1 else 10_080,
            offsets_retention_check_interval_ms=10_000,
        )
        is_told = "set a clock" not in self.faults.mixture  # else offsets may expire at any time
        retention_ms = (RETENTION_MINUTES * 60_000 if is_told else 0) if self.calm > 1 else None
        self.group_checker = GroupChecker(
            self.counts,
            lambda: self.scheduler.now_ms,
            retention_ms=retention_ms,
            is_buried=self._is_buried,
            set_back_ms=lambda: self.clock_steps.set_back_ms,
        )
        # By the key of a group's record: the last one that removes it, by the log's history
        # (unclean elections begin anew) and offset.
        self._buried: dict[bytes, tuple[int, int]] = {}
        self.administration: GroupAdministration = GroupAdministration(self)
        if (
            zlib.crc32(f"{seed} unclean elections".encode()) % 3 == 0
        ):  # by a hash: the draws of other seeds are what they were
            elections = UncleanElections(self, self.faults, OFFSETS_TOPIC)
            self.faults.mixture[UNCLEAN] = (elections.strike, 4.0)
        self.groups: list[GroupSpec] = []
        self.members: dict[str, list[SimulatedMember]] = {}
        self._offsets = itertools.count(1)
        self._member_numbers = itertools.count(1)
        self._confirmed: set[str] = set()  # groups whose offsets were fetched once all was at rest
        self.scheduler.after_us(self.scheduler.skewed_us(700_000), self._live, "members live")

    def _is_buried(self, group_id: str) -> bool:
        key, _ = encode(GroupRecord(GroupKey(group_id), None))
        nowhere = (-1, -1)
        known = self._buried.get(key, nowhere)
        for history in self.checkers.histories.values():
            for offset, content in history.records.items():
                if content[0] == key and content[1] is None:
                    self._buried[key] = max((history.generation, offset), self._buried.get(key, nowhere))
        return self._buried.get(key, nowhere) > known

    def next_offset(self) -> int:
        """For a commit: no other one has it."""
        return next(self._offsets)

    def start_actor(self, machine: Machine, spec: ActorSpec, *, is_broker: bool) -> None:
        self.counts["server starts"] += 1
        if is_broker:
            BrokerProcess(self, machine, spec)
        else:
            GroupProcess(self, machine, spec, GroupKind(self.group_config, new_uuid=self.new_uuid))

    @property
    def is_healing(self) -> bool:
        return self._healing

    def leading_coordinators(self) -> list[GroupProcess]:
        """Those that lead a partition of ``__consumer_offsets``, as they believe."""
        return [each for each in self.replica_processes() if isinstance(each, GroupProcess) and each.coordinates]

    # ---------------------------------------------------------------- members

    def begin_group(self, id: TopicIdPartition) -> None:
        """A partition of ``__consumer_offsets`` is there: it gets a group."""
        topic = f"work{id.partition}"
        places = tuple(TopicPartition(topic, number) for number in range(self.scheduler.between(1, 5)))
        group = GroupSpec(f"group{id.partition}", OFFSETS_TOPIC, id, places, self.scheduler.rng.choice(_STRATEGIES))
        self.groups.append(group)
        self.members[group.group_id] = []
        for _ in range(self.scheduler.between(1, 3)):
            self._arrive(group)
        self.consumers.append(GroupTool(f"tool{id.partition}", self, self.client_machine, id))

    def _arrive(self, group: GroupSpec, *, static_share: float = 0.3) -> None:
        instance = f"i{self.scheduler.between(0, 2)}" if self.scheduler.chance(static_share) else None
        name = f"member{next(self._member_numbers)}"
        self.trace(f"{name} arrives in {group.group_id} as {instance}")
        self.counts["members that arrived"] += 1
        member = SimulatedMember(name, self, self.client_machine, group, instance, self.next_offset)
        self.members[group.group_id].append(member)
        self.consumers.append(member)

    def living(self, group: GroupSpec) -> list[SimulatedMember]:
        """Those that are, or are about to be, in the group."""
        return [member for member in self.members[group.group_id] if member.alive and not member.is_over]

    def _live(self) -> None:
        """Something becomes of a member, or there is one more."""
        if self._healing:
            return
        self.rhythm.later(self.scheduler.after_us, 500_000, self._live, "members live")
        if not self.groups:
            return
        group = self.scheduler.rng.choice(self.groups)
        living = self.living(group)
        if len(living) < MEMBERS_MAX and (not living or self.scheduler.chance(0.5)):
            self._arrive(group)
            return
        member = self.scheduler.rng.choice(living)
        what = self.scheduler.rng.choices(("crash", "leave", "stick", "pause"), (3, 2, 1, 1))[0]
        self.trace(f"{member.name}: {what}")
        if what == "crash":
            self.counts["member crashes"] += 1
            member.kill()
        elif what == "leave":
            member.retire()
        elif what == "stick":
            member.get_stuck(self.scheduler.between(1_000, 20_000))
        else:
            self.counts["member pauses"] += 1
            member.pause()
            self.scheduler.after_ms(self.scheduler.between(100, 12_000), member.resume, "a member wakes up")

    # ---------------------------------------------------------------- the end

    def _unfinished(self) -> str | None:
        for group in self.groups:
            if (reason := self._unrest(group)) is not None:
                return f"{group.group_id}: {reason}"
        return super()._unfinished()

    def _unrest(self, group: GroupSpec) -> str | None:
        for member in self.members[group.group_id]:
            member.resume()
        living = self.living(group)
        if not living:
            self._arrive(group, static_share=0)
            return "nobody was left"
        owned = sorted(place for member in living for place in member.owned)
        if owned != sorted(group.partitions) or not all(member.is_stable for member in living):
            return f"{[(member.name, member.is_stable, member.owned) for member in living]}"
        if group.group_id not in self._confirmed:
            living[0].fetch_offsets(lambda: self._confirmed.add(group.group_id))
            return "its offsets were not fetched"
        return None

    def _images(self, group: GroupSpec) -> list[tuple[GroupProcess, GroupMachine]]:
        found = []
        for process, _ in self._replicas_of(group.id):
            assert isinstance(process, GroupProcess)
            machine = process.group_machine(group.id)
            if machine is not None:
                found.append((process, machine))
        return found

    def _uneven(self) -> str | None:
        reason = super()._uneven()
        if reason is not None:
            return reason
        for group in self.groups:
            for process, machine in self._images(group):
                end = process.host.replicas[group.id].open_log().log_end_offset
                if machine.context.position != end:
                    return f"{process.name} has read {group.group_id}'s log to {machine.context.position} of {end}"
                place = group.partitions[0]
                known = process.topics.get(place.topic)
                if (behind := self.administration.group_topics.unheard(place, known)) is not None:
                    return f"{process.name}: {behind}"
        return None

    def _compare(self) -> None:
        super()._compare()
        for group in self.groups:
            forgotten = self.checkers.forgotten(self.checkers.history(group.id))
            images = [(process.name, known_groups(machine, forgotten)) for process, machine in self._images(group)]
            for name, *image in images[1:]:
                if image != list(images[0][1:]):
                    raise Violation(f"{group.group_id}: {images[0]} has another picture than {name}: {image}")
            self.counts["groups at rest"] += 1


def known_groups(machine: GroupMachine, forgotten: set[bytes | None]) -> dict[str, StoredGroup]:
    """What a replica's machine knows of its groups, but for what it may know because it was away
    while it was deleted.
    """
    known = {}
    for group_id, stored in machine.image.groups.items():
        value = None if encode(GroupRecord(GroupKey(group_id), None))[0] in forgotten else stored.value
        offsets = {
            place: offset
            for place, offset in stored.offsets.items()
            if encode(GroupRecord(OffsetKey(group_id, *place), None))[0] not in forgotten
        }
        if value is not None or offsets:
            known[group_id] = StoredGroup(value, offsets)
    return known
