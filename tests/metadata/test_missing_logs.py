"""A replica whose folder is gone must not lead what it has lost: random walks over the rules, with logs that are lists of records.

A step is a process that dies, comes back, or reports its log; a folder that is removed, or cut by a loss of power, while its
process is down; a record that is written; a fetch. What the controller has not heard yet happens all the same: a process follows
its leader before its ReplicaOpened arrives.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace

import pytest

from raylog.control.session import ReplicaStatus
from raylog.metadata.partitions import elections
from raylog.metadata.partitions.elections import Candidate, Standing
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.types import Condition

TOPIC = uuid.UUID(int=1)
BROKERS = (0, 1, 2)


@dataclass
class Broker:
    id: int
    incarnation: int = 0  # of the process that runs, or ran last
    is_up: bool = False
    is_heard: bool = False  # the controller knows in which condition the log was found
    folder: list[tuple[int, int]] | None = None  # (leader epoch, number) of each record; None: there is none
    is_suspect: bool = False  # since it was found suspect or missing, until it was copied up to a leader's end
    is_known_missing: bool = False  # the controller has heard that it was missing, and it was not copied since
    lost_power: bool = False
    found: Candidate = field(default_factory=lambda: Candidate(Standing.DEAD))

    @property
    def log(self) -> list[tuple[int, int]]:
        assert self.folder is not None
        return self.folder

    def start(self, rng: random.Random) -> None:
        self.incarnation += 1
        self.is_up, self.is_heard = True, False
        if self.folder is None:
            condition, self.folder = Condition.MISSING, []
        else:
            if self.lost_power:
                del self.folder[rng.randrange(len(self.folder) + 1) :]
            condition = Condition.SUSPECT if self.lost_power or self.is_suspect else Condition.WHOLE
        self.lost_power = False
        self.is_suspect = condition is not Condition.WHOLE
        last_epoch = self.folder[-1][0] if self.folder else -1
        self.found = Candidate(Standing.LIVE, self.incarnation, condition, last_epoch, len(self.folder))

    def trust(self) -> None:
        self.is_suspect = self.is_known_missing = False


class Walk:
    """``committed``: the records below the highest high watermark, unless an unclean election has given them up."""

    def __init__(self, seed: int, min_isr: int) -> None:
        self.rng = random.Random(seed)
        self.min_isr = min_isr
        self.brokers = [Broker(each) for each in BROKERS]
        slots = tuple(ReplicaSlot(each, each << 16 | 2, uuid.UUID(int=each + 1)) for each in BROKERS)
        self.state = PartitionState(slots, BROKERS, -1, 0, -1, 0, (), -1)
        self.committed: list[tuple[int, int]] = []
        self.high_watermark = 0
        self.ends: dict[int, int] = {}  # what the leader knows of its followers, by broker id
        self.history: list[str] = []

    # ------------------------------------------------------------------ the controller

    def candidates(self) -> dict[int, Candidate]:
        found = {}
        for each in self.brokers:
            if not each.is_up:
                found[each.id] = Candidate(Standing.DEAD, each.incarnation)
            elif not each.is_heard:
                found[each.id] = Candidate(Standing.ABSENT, each.incarnation)
            else:
                slot = self.state.slot(each.id)
                assert slot is not None
                is_judged = slot.admitted == each.incarnation
                found[each.id] = replace(each.found, condition=Condition.CLEAN if is_judged else each.found.condition)
        return found

    def settle(self) -> None:
        state = elections.without_short_logs(self.state, self.candidates())
        waits = self.rng.random() < 0.5
        after = elections.settled(
            state, self.candidates(), min_isr=self.min_isr, wait_for_preferred=waits, wait_for_logs=waits
        )
        after.check()
        self.adopt(after)

    def adopt(self, after: PartitionState) -> None:
        before, self.state = self.state, after
        if after.leader_epoch == before.leader_epoch or after.leader < 0:
            return
        leader = self.brokers[after.leader]
        what = f"{self.history[-40:]}\n{before}\n{after}"
        if after.unclean_elections > before.unclean_elections:
            assert not leader.is_known_missing, f"a log that was missing leads though nobody allowed it: {what}"
            kept = sum(1 for a, b in zip(self.committed, leader.log, strict=False) if a == b)
            del self.committed[kept:]
        assert leader.log[: len(self.committed)] == self.committed, f"{leader} lacks {self.committed}: {what}"
        self.history.append(f"{leader.id} leads epoch {after.leader_epoch}")
        self.ends, self.high_watermark = {}, 0
        leader.trust()
        self.commit()

    # ------------------------------------------------------------------ the replicas

    def leader(self) -> Broker | None:
        if self.state.leader < 0:
            return None
        leader = self.brokers[self.state.leader]
        return leader if leader.is_up and leader.incarnation == self.state.leader_incarnation else None

    def commit(self) -> None:
        leader = self.leader()
        if leader is None or len(self.state.isr) < self.min_isr:
            return
        ends = [len(leader.log), *(self.ends.get(each, 0) for each in self.state.isr if each != leader.id)]
        self.high_watermark = max(self.high_watermark, min(ends))
        if self.high_watermark > len(self.committed):
            self.committed = leader.log[: self.high_watermark]

    def step(self) -> None:
        each = self.rng.choice(self.brokers)
        kinds = ("die", "remove", "cut", "start", "start", "hear", "hear", "write", "fetch", "fetch", "fetch", "join")
        kind = self.rng.choice(kinds)
        self.history.append(f"{kind} {each.id}")
        leader = self.leader()
        if kind == "die" and each.is_up:
            each.is_up = each.is_heard = False
            self.ends.pop(each.id, None)
            self.settle()
        elif kind == "remove" and not each.is_up:
            each.folder = None
        elif kind == "cut" and not each.is_up and each.folder is not None:
            each.lost_power = True
        elif kind == "start" and not each.is_up:
            former = each.incarnation
            each.start(self.rng)
            self.state = elections.restarted(self.state, each.id, former)
            self.settle()
        elif kind == "hear" and each.is_up and not each.is_heard:
            each.is_heard = True
            each.is_known_missing |= each.found.condition is Condition.MISSING
            status = ReplicaStatus(
                TOPIC, 0, each.found.condition, 0, each.found.log_end_offset, 0, each.found.last_epoch, -1, -1
            )
            self.adopt(elections.opened(self.state, each.id, each.incarnation, status))
            self.settle()
        elif leader is None:
            pass
        elif kind == "write":
            leader.log.append((self.state.leader_epoch, self.rng.getrandbits(40)))
            self.commit()
        elif kind == "fetch" and each is not leader and each.is_up:
            each.folder = list(leader.log)
            each.trust()
            self.ends[each.id] = len(leader.log)
            self.commit()
        elif kind == "join" and each.is_heard and self.may_join(each):
            state = elections.admitted(self.state, {each.id: each.incarnation})
            self.state = elections.with_isr(state, (*state.isr, each.id), min_isr=self.min_isr)
            self.commit()

    def may_join(self, each: Broker) -> bool:
        has_all = self.ends.get(each.id, -1) >= max(self.high_watermark, len(self.committed))
        return has_all and each.id not in self.state.isr


@pytest.mark.parametrize("min_isr", [1, 2])
def test_a_replica_whose_folder_is_gone_never_leads_what_it_has_lost(min_isr: int) -> None:
    for seed in range(1_000):
        walk = Walk(seed, min_isr)
        for _ in range(80):
            walk.step()
