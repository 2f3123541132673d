"""A random model of one partition over failovers: the client's real queue, the brokers' real ``ProducerStates``, everything else
as small as it can be.

Three replicas. A leader appends what its producer state allows, acknowledges what every member of the ISR has, and refuses the
rest with the codes that a real leader uses, before or after the append. It may be deposed, with or without noticing, die, lose
its disk, or answer late. Connections break while requests are on them, and those may still arrive (or not) at any later time.
The client gives batches up after their delivery timeout and when its retries are used up, and splits those that are too large.
Elections are clean, so nothing that was acknowledged may be lost.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import PartitionQueue, ProducerIdentity
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.errors import KafkaError
from raylog.log.producers import ProducerStates
from raylog.records.batch import BatchView
from raylog.records.codec import decode_values, encode_values
from raylog.simulator.queue_client import QueueClient

STEPS_MAX = 20_000
MIN_ISR = 2
TRACED = False  # for a person who replays a seed


@dataclass(eq=False)
class Answer:
    batch: ProducerBatch
    code: ErrorCode
    base_offset: int = -1


class Wire:
    """A connection of the client to one replica. Dead: the client has given it up, what was sent may still arrive."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.requests: deque[tuple[ProducerBatch, bytes]] = deque()
        self.waiting: list[ProducerBatch] = []  # sent, and not answered as far as the client knows
        self.answers: deque[Answer] = deque()
        self.is_dead = False


@dataclass(eq=False)
class Replica:
    number: int
    log: list[BatchView] = field(default_factory=list)
    states: ProducerStates = field(default_factory=ProducerStates)
    leads: int = -1  # the epoch that it believes to lead
    parked: list[tuple[Wire, ProducerBatch, int, int]] = field(default_factory=list)  # with base and end offset

    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def append(self, view: BatchView) -> None:
        self.log.append(view)
        self.states.note(view, wall_ms=0)

    def truncate(self, count: int) -> None:
        del self.log[count:]
        self.states = ProducerStates()
        for view in self.log:
            self.states.note(view, wall_ms=0)


class Failovers:
    """One run; ``run`` returns what broke, or None."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.replicas = [Replica(number) for number in range(3)]
        self.leader = self.replicas[0]
        self.leader.leads = self.epoch = 0
        self.isr = set(self.replicas[1:] if chance.random() < 0.2 else self.replicas) | {self.leader}
        self.known_leader = self.leader
        self.wires: list[Wire] = []
        self.live: Wire | None = None
        self.records_max = 100
        retries = chance.choice((0, 2, 1000, 1000))
        queue = PartitionQueue("t", 0, max_in_flight=chance.choice((1, 2, 5, 5)), retries=retries)
        self.client = QueueClient(queue, ProducerIdentity(7, 0))
        self.made: list[ProducerBatch] = []
        self.poison: set[int] = set()
        self.step = 0
        self.calm = False
        self.faults = chance.sample(
            [
                self._depose,
                self._depose_unnoticed,
                self._kill,
                self._lose_disk,
                self._break_connection,
                self._break_connection,
                self._arrive_late,
                self._time_out_parked,
                self._shrink,
                self._change_size_limit,
            ],
            chance.randint(1, 5),
        )

    def run(self) -> str | None:
        count = self.chance.randint(2, 12)
        trouble_end = self.chance.choice((60, 150, 300))
        fault_rate = self.chance.choice((0.1, 0.2, 0.4))
        while len(self.made) < count or not self.client.queue.idle or self.live is None or self._uneven():
            self.step += 1
            if self.step > STEPS_MAX:
                return "no progress"
            self.calm = self.step > trouble_end
            if not self.calm and self.chance.random() < fault_rate:
                self.chance.choice(self.faults)()
            else:
                self._work(count)
            self.client.queue.check()
        return self._broken()

    def _say(self, line: str) -> None:
        if TRACED:
            print(f"{self.step:5d} {line}")

    def _work(self, count: int) -> None:
        actions = [self._send, self._deliver, self._deliver, self._answer, self._replicate, self._replicate, self._join]
        actions += [self._notice, self._settle_dead] if self.calm else [self._expire]
        if len(self.made) < count:
            actions.append(self._make)
        self.chance.choice(actions)()

    # ---------------------------------------------------------------- client

    def _make(self) -> None:
        number, records = len(self.made), self.chance.randint(1, 4)
        data = encode_values([b"%d/%d" % (number, index) for index in range(records)], timestamp_ms=1)
        deadline = self.step + self.chance.choice((20, 60, 200, 10_000, 10_000))
        batch = ProducerBatch.of_bytes("t", 0, data, records, created_ms=0, deadline_ms=deadline, compression=0)
        if not self.calm and self.chance.random() < 0.05:
            self.poison.add(number)
        self.made.append(batch)
        self.client.add(batch)

    def _send(self) -> None:
        if self.known_leader is not self.leader and self.chance.random() < 0.3:
            self.known_leader = self.leader
        if self.live is not None and self.live.replica is not self.known_leader:
            if self.chance.random() < 0.5:  # what is under way there comes back or not; new requests go elsewhere
                self._break(self.live)
            else:
                self.live = None
        if self.live is None:
            self.live = Wire(self.known_leader)
            self.wires.append(self.live)
        batch = self.client.take(self.step)
        if batch is not None:
            self._say(f"send {batch} to {self.live.replica.number}")
            self.live.requests.append((batch, bytes(batch.stamped_bytes())))
            self.live.waiting.append(batch)

    def _answer(self) -> None:
        ready = [wire for wire in self.wires if wire.answers]
        if not ready:
            return
        wire = self.chance.choice(ready)
        answer = wire.answers.popleft()
        if wire.is_dead or answer.batch not in wire.waiting:
            return
        wire.waiting.remove(answer.batch)
        self._say(f"answer {answer}")
        if answer.code is ErrorCode.none:
            self.client.acknowledged(answer.batch, answer.base_offset)
        else:
            self.client.refused(answer.batch, answer.code)

    def _expire(self) -> None:
        self._say("expire")
        self.client.expire(self.step)

    def _break_connection(self) -> None:
        if self.wires:
            self._break(self.chance.choice(self.wires))

    def _break(self, wire: Wire) -> None:
        if wire.is_dead:
            return
        wire.is_dead = True
        if wire is self.live:
            self.live = None
        waiting, wire.waiting = wire.waiting, []
        self._say(f"break to {wire.replica.number}: {waiting}")
        for batch in waiting:
            self.client.refused(batch, ErrorCode.network_exception)

    def _change_size_limit(self) -> None:
        self.records_max = self.chance.choice((1, 2, 100, 100))

    # ---------------------------------------------------------------- servers

    def _deliver(self) -> None:
        ready = [wire for wire in self.wires if wire.requests and not wire.is_dead]
        if ready:
            wire = self.chance.choice(ready)
            self._received(wire, *wire.requests.popleft())

    def _arrive_late(self) -> None:
        """What was sent over a connection that is given up arrives after all, or never."""
        ready = [wire for wire in self.wires if wire.requests and wire.is_dead]
        if ready:
            wire = self.chance.choice(ready)
            if self.chance.random() < 0.1:
                wire.requests.clear()
            for _ in range(min(len(wire.requests), self.chance.randint(1, 3))):
                self._received(wire, *wire.requests.popleft())

    def _settle_dead(self) -> None:
        self._arrive_late()

    def _received(self, wire: Wire, batch: ProducerBatch, data: bytes) -> None:
        replica = wire.replica
        view = BatchView(data)
        if replica.leads < 0:
            wire.answers.append(Answer(batch, ErrorCode.not_leader_or_follower))
            return
        if not self.calm and self.chance.random() < 0.03:
            code = self.chance.choice((ErrorCode.unknown_topic_or_partition, ErrorCode.throttling_quota_exceeded))
            wire.answers.append(Answer(batch, code))
            return
        if len(self.isr) < MIN_ISR and replica is self.leader:
            wire.answers.append(Answer(batch, ErrorCode.not_enough_replicas))
            return
        try:
            earlier = replica.states.judge([view], where="t-0")
        except KafkaError as error:
            wire.answers.append(Answer(batch, error.code))
            return
        values = list(decode_values(view))
        number = int(str(values[0], "ascii").partition("/")[0])
        if earlier is not None:
            base_offset = earlier.base_offset
            end_offset = earlier.last_offset + 1
        elif number in self.poison:
            wire.answers.append(Answer(batch, ErrorCode.invalid_record))
            return
        elif view.record_count > self.records_max:
            wire.answers.append(Answer(batch, ErrorCode.message_too_large))
            return
        else:
            base_offset = view.base_offset = replica.end
            view.partition_leader_epoch = replica.leads
            replica.append(view)
            end_offset = view.next_offset
        self._say(f"{replica.number} has {values} {view.producer_epoch}:{view.base_sequence} at {base_offset}")
        replica.parked.append((wire, batch, base_offset, end_offset))
        self._commit()

    def _commit(self) -> None:
        leader = self.leader
        common = min(self._common(replica) for replica in self.isr)
        high_watermark = leader.log[common - 1].next_offset if common else 0
        still = []
        for wire, batch, base_offset, end_offset in leader.parked:
            if end_offset <= high_watermark and len(self.isr) >= MIN_ISR:
                wire.answers.append(Answer(batch, ErrorCode.none, base_offset))
            else:
                still.append((wire, batch, base_offset, end_offset))
        leader.parked = still

    def _refuse_parked(self, replica: Replica, code: ErrorCode) -> None:
        for wire, batch, _, _ in replica.parked:
            wire.answers.append(Answer(batch, code))
        replica.parked = []

    def _replicate(self) -> None:
        follower = self.chance.choice(self.replicas)
        leader = self.leader
        if follower is leader or follower.leads >= 0:
            return
        common = self._common(follower)
        if common < len(follower.log):
            follower.truncate(common)
        elif common < len(leader.log):
            follower.append(leader.log[common])
        self._commit()

    def _common(self, replica: Replica) -> int:
        """How many batches it has that the leader has too."""
        common = 0
        for mine, theirs in zip(replica.log, self.leader.log, strict=False):
            if mine is not theirs:
                break
            common += 1
        return common

    def _join(self) -> None:
        if self.chance.random() < 0.3:
            for replica in self.replicas:
                if replica.leads < 0 and replica.log == self.leader.log:
                    self.isr.add(replica)

    def _shrink(self) -> None:
        others = sorted(self.isr - {self.leader}, key=lambda replica: replica.number)
        if others:
            self.isr.discard(self.chance.choice(others))
            if len(self.isr) < MIN_ISR:
                self._refuse_parked(self.leader, ErrorCode.not_enough_replicas_after_append)
            self._commit()

    def _time_out_parked(self) -> None:
        if self.leader.parked:
            wire, batch, _, _ = self.leader.parked.pop(self.chance.randrange(len(self.leader.parked)))
            wire.answers.append(Answer(batch, ErrorCode.request_timed_out))

    def _elect(self) -> Replica | None:
        """Another member of the ISR leads; returns the old leader, which does not know yet."""
        others = sorted(self.isr - {self.leader}, key=lambda replica: replica.number)
        others = [replica for replica in others if replica.leads < 0]
        if not others:
            return None
        old, self.leader = self.leader, self.chance.choice(others)
        self.epoch += 1
        self.leader.leads = self.epoch
        self._say(f"{self.leader.number} leads, not {old.number}")
        if self.chance.random() < 0.5:
            self.isr.discard(old)
        return old

    def _steps_down(self, replica: Replica, code: ErrorCode) -> None:
        replica.leads = -1
        self._refuse_parked(replica, code)

    def _depose(self) -> None:
        if (old := self._elect()) is not None:
            self._steps_down(old, ErrorCode.not_leader_or_follower)

    def _depose_unnoticed(self) -> None:
        """The old leader appends on, and can commit nothing."""
        if (old := self._elect()) is not None:
            self.isr.discard(old)
        else:
            self._notice()

    def _notice(self) -> None:
        for replica in self.replicas:
            if replica.leads >= 0 and replica is not self.leader:
                self._steps_down(replica, ErrorCode.not_leader_or_follower)

    def _lose_disk(self) -> None:
        if (old := self._elect()) is not None:
            self.isr.discard(old)
            self._steps_down(old, ErrorCode.kafka_storage_error)

    def _kill(self) -> None:
        """What is on the wire to a process dies with it; its log is there again when it is back."""
        if (old := self._elect()) is None:
            return
        old.leads = -1
        old.parked = []
        self.isr.discard(old)
        for wire in self.wires:
            if wire.replica is old:
                wire.requests.clear()
                self._break(wire)

    # ---------------------------------------------------------------- the end

    def _uneven(self) -> bool:
        return any(replica.log != self.leader.log for replica in self.replicas)

    def _broken(self) -> str | None:
        """What the client was promised, against the log that everybody has."""
        at: dict[bytes, list[int]] = {}
        order = []
        for view in self.leader.log:
            for index, value in enumerate(decode_values(view)):
                at.setdefault(value, []).append(view.base_offset + index)
                order.append(tuple(map(int, value.split(b"/"))))
        for number, batch in enumerate(self.made):
            index = 0
            for leaf in batch.leaves():
                assert leaf.done, leaf
                for position in range(leaf.record_count):
                    value = b"%d/%d" % (number, index)
                    index += 1
                    if leaf.error is not None:
                        continue
                    if value not in at:
                        return f"lost: {value!r} was acknowledged at {leaf.base_offset + position}"
                    if leaf.base_offset + position not in at[value]:
                        return (
                            f"misplaced: {value!r} was acknowledged at {leaf.base_offset + position}, is at {at[value]}"
                        )
        doubled = {value: offsets for value, offsets in at.items() if len(offsets) > 1}
        if doubled:
            return f"doubled: {doubled}"
        return None if order == sorted(order) else f"reordered: {order}"
