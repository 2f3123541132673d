"""Brokers with two disks each, between which their replicas move.

``DiskSimulation`` is the simulation (``simulation``), with its faults, topics, clients and checkers;
but every broker that holds replicas has a second disk on its machine, and somebody moves replicas
from one to the other all the time: the move of one is now and then turned round, or cancelled, and
often a process dies just then: the one that copies, the one that has the replica, or the leader.
Whoever leads is moved more often, and somebody writes to it with acks=1.

The checkers judge as ever: nothing acknowledged is lost, at most one process leads an epoch, a
replica's process never deletes a folder that is assigned to its disk. What is judged here on top, of
each decision by which a copy takes its replica's place:

- the broker is in the ISR, and nobody leaves it but whom the leader asked out in the same request:
  then the decision counts for two partition epochs;
- who led leads on, in the next leader epoch if it is the leader that came to another disk;
- in that case the process that was taken in begins its leadership with every record that the former
  one acknowledged in its own, with whatever acks. No death is an excuse: another process of the copy
  would be another leader.

These are promises about one decision, so the entries of the metadata log are judged one by one.
What the controllers' images show between two looks may be several decisions: where a process dies
just then, the entry behind the arrival takes it out of the ISR and elects another leader.

At the end no disk holds a folder of a partition that is not assigned to it.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from raylog.metadata.actors.disk_requests import DiskTarget, MoveToDisks, MovingToDisks
from raylog.metadata.records import PartitionChanged, PartitionState, Record, TopicDeleted, decode_batch
from raylog.metadata.requests import RegisterDisk
from raylog.raft.messages import EntryKind
from raylog.simulator.checkers import Violation
from raylog.simulator.simulation import Simulation
from raylog.simulator.workload import SimulatedProducer
from raylog.types import TopicIdPartition

PAUSE_US = 200_000  # between two moves
WRITES_US = 5_000  # between two batches of those who write with acks=1
DEATHS = 0.4  # the share of moves in which somebody dies


ActorIncarnation = tuple[int, int]  # (broker, incarnation)


class LedEpoch(NamedTuple):
    """One leader epoch of a partition."""

    id: TopicIdPartition
    leader_epoch: int


class DiskSimulation(Simulation):
    def run(self) -> None:
        self._second = {broker: self.new_uuid() for broker in range(1, len(self.broker_machines) + 1)}
        self._judged: dict[TopicIdPartition, PartitionState] = {}  # as the entries up to the next index have it
        self._judged_index = 0
        self._writers: dict[TopicIdPartition, SimulatedProducer] = {}  # with acks=1, to leaders that move
        self._promised: dict[LedEpoch, int] = {}  # the last offset that it acknowledged before others had it
        self._arrived: dict[LedEpoch, ActorIncarnation] = {}  # the copy in which it goes on, not seen to lead yet
        self._begun: dict[LedEpoch, int] = {}  # where the copy began to lead
        for broker in self._second:
            files = self.machine_of(broker).disk.files()
            files.make_directory(self._path(broker))
            files.sync_directory("/")
        self._stand_by()
        super().run()

    def has_disk(self, broker_id: int, directory_id: uuid.UUID) -> bool:
        return super().has_disk(broker_id, directory_id) or self._second.get(broker_id) == directory_id

    def _path(self, broker: int, *, first: bool = False) -> str:
        name = self.machine_of(broker).name
        return f"/{name}" if first else f"/{name}-second"

    def _stand_by(self) -> None:
        self.scheduler.after_us(PAUSE_US, self._move, "move between disks")

    def _move(self) -> None:
        if self.is_healing:
            return
        self._stand_by()
        if not self._registered():
            return
        rng = self.scheduler.rng
        found = [(id, topic, state) for id, topic, state in self.partitions() if state.leader_epoch >= 0]
        if not found:
            return
        id, topic, state = rng.choice(found)
        leading = state.slot(state.leader)
        slot = leading if leading is not None and self.scheduler.chance(0.5) else rng.choice(state.replicas)
        if slot.broker_id not in self._second:
            return  # a broker that holds replicas only while all others are down
        if slot is leading:
            self._write(id, topic)
        on_second = slot.directory_id == self._second[slot.broker_id]
        future = state.future(slot.broker_id)
        turns_round = future is not None and self.scheduler.chance(0.3)
        path = self._path(slot.broker_id, first=on_second is not turns_round)
        self.trace(f"move {topic}-{id.partition} of broker {slot.broker_id} to {path}")
        request = MoveToDisks(slot.broker_id, (DiskTarget(topic, id.partition, path),))
        self.administration.administrator.request(request, self._answered)
        if self.scheduler.chance(DEATHS):
            nodes = {slot.node_id, state.node_of(state.leader), future.node_id if future is not None else -1}
            victims = [each for each in self.replica_processes() if each.spec.node_id in nodes]
            if victims:
                victim = rng.choice(victims)
                delay_us = self.scheduler.skewed_us(rng.choice((3_000, 30_000, 200_000)))
                self.counts["processes killed amid a move between disks"] += 1
                self.scheduler.after_us(delay_us, lambda: None if self.is_healing else victim.kill(), "die amid a move")

    def _write(self, id: TopicIdPartition, topic: str) -> None:
        """Somebody writes to it who is told of a record as soon as the leader has it."""
        if id not in self._writers:
            compacts = self.checkers.history(id).compacts
            writer = self._writers[id] = SimulatedProducer(
                f"writer-{topic}{id.partition}.{len(self._writers)}",
                self,
                self.client_machine,
                topic=topic,
                id=id,
                acks=1,
                idempotent=False,
                interval_us=WRITES_US,
                compacts=compacts,
            )
            self.producers.append(writer)

    def acknowledged_alone(self, id: TopicIdPartition, leader_epoch: int, base_offset: int) -> None:
        led = LedEpoch(id, leader_epoch)
        self._promised[led] = max(base_offset, self._promised.get(led, -1))
        self._compare_promises(led)

    def _compare_promises(self, led: LedEpoch) -> None:
        begun, promised = self._begun.get(led), self._promised.get(led, -1)
        if begun is not None and promised >= begun:
            raise Violation(
                f"{led.id} came to another disk and is led there from {begun}; {promised} was acknowledged in epoch "
                f"{led.leader_epoch}"
            )

    def _meet_copies(self) -> None:
        """Look at the logs with which copies begin to lead."""
        for led, (broker, incarnation) in list(self._arrived.items()):
            process = self.process_of(broker, incarnation)
            replica = process.host.replicas.get(led.id) if process is not None else None
            if replica is None or replica.assignment.leader_epoch > led.leader_epoch + 1:
                del self._arrived[led]  # it has died, or leads no more
            elif replica.leader is not None and replica.leader.leader_epoch == led.leader_epoch + 1:
                del self._arrived[led]
                self._begun[led] = replica.leader.epoch_start_offset
                self.counts["leaders that went on with what was acknowledged alone"] += led in self._promised
                self._compare_promises(led)

    def _registered(self) -> bool:
        """Whether all second disks are; those that are not are asked for."""
        active = self.controllers.active()
        if active is None or active.controller is None:
            return False
        known = active.controller.image.disks
        for broker, directory_id in self._second.items():
            if directory_id not in known and broker in active.controller.image.brokers:
                request = RegisterDisk(self.cluster_id, broker, directory_id, self._path(broker), f"rack{broker % 2}")
                self.administration.administrator.request(request, lambda reply: None)
                return False
        return all(directory_id in known for directory_id in self._second.values())

    def _answered(self, reply: object) -> None:
        assert isinstance(reply, MovingToDisks), reply
        for error, message in reply.outcomes:
            self.counts["moves between disks refused" if error else "moves between disks begun"] += 1
            self.trace(f"move between disks: {error} {message}")

    def _step(self) -> None:
        super()._step()
        whole = [each.controller.quorum for each in self.controllers.running() if each.controller is not None]
        if whole and self._judged_index < min(quorum.log.snapshot.last_index for quorum in whole):
            self._judged.clear()  # what is between is in nobody's log any more
            self._judged_index = min(quorum.log.snapshot.last_index for quorum in whole)
        for quorum in whole:
            if quorum.log.snapshot.last_index <= self._judged_index < quorum.delivered_index:
                for entry in quorum.log.slice(self._judged_index + 1, quorum.delivered_index, 1 << 62):
                    if entry.kind is EntryKind.RECORDS:
                        for record in decode_batch(entry.data):
                            self._follow(record)
                self._judged_index = quorum.delivered_index
        self._meet_copies()

    def _follow(self, record: Record) -> None:
        if isinstance(record, TopicDeleted):
            self._judged = {id: state for id, state in self._judged.items() if id.topic_id != record.topic_id}
        elif isinstance(record, PartitionChanged):
            id = TopicIdPartition(record.topic_id, record.partition)
            before = self._judged.get(id)
            self._judged[id] = record.state
            if before is not None:
                self._judge(id, before, record.state)

    def _judge(self, id: TopicIdPartition, before: PartitionState, after: PartitionState) -> None:
        for future in before.futures:
            broker = future.broker_id
            if after.node_of(broker) != future.node_id:
                continue
            self.counts["replicas that came to another disk"] += 1
            has_led = before.leader == broker
            if broker not in after.isr or after.future(broker) is not None:
                raise Violation(f"{id} of broker {broker} came to another disk: {before} became {after}")
            if after.partition_epoch == before.partition_epoch + 1 and not set(before.isr) <= set(after.isr):
                raise Violation(f"{id} came to another disk, and its ISR {before.isr} became {after.isr}")
            if (after.leader, after.leader_epoch) != (before.leader, before.leader_epoch + has_led):
                raise Violation(f"{id} of broker {broker} came to another disk: {before} became {after}")
            if has_led:
                self.counts["leaders that came to another disk"] += 1
                self._arrived[LedEpoch(id, before.leader_epoch)] = (broker, after.leader_incarnation)

    def _uneven(self) -> str | None:
        return super()._uneven() or self._left_over()

    def _left_over(self) -> str | None:
        """A folder on a disk to which its partition is not assigned."""
        for broker, second in self._second.items():
            disk = self.machine_of(broker).disk
            for directory_id, path in (
                (self.directory_ids[broker], self._path(broker, first=True)),
                (second, self._path(broker)),
            ):
                found = disk.lookup(path)
                for id, topic, state in self.partitions() if found is not None else ():
                    slot = state.slot(broker)
                    is_home = slot is not None and slot.directory_id == directory_id
                    if not is_home and disk.lookup(f"{path}/{topic}-{id.partition}") is not None:
                        return f"{path} holds {topic}-{id.partition}, whose replica there is {slot}"
        return None
