"""Who may lead a partition, and who is in sync: pure functions over its state and what is known of its replicas.

They own the rules of leadership, ISR and ELR. They know nothing of sessions, time, records or other partitions. The caller says
of each replica how it stands, and gets the partition's next state (the same object if nothing changes).

How a replica stands:

=======  ============================================================================================================
LIVE     its process has a session and has opened this log: it may lead and may join the ISR
ABSENT   nobody has judged it dead, but it cannot act now: no session (it is being dialled), not started, still opening
DEAD     its process was declared dead, or its log failed in this process
=======  ============================================================================================================

**Leadership.** A leader that is not dead, with the incarnation that its epoch was given to, stays. While it is ABSENT (it may
well serve on) nothing changes. Otherwise the leader is the first of, in assignment order: a LIVE member of the ISR; a LIVE
eligible leader (ELR, KIP-966), who becomes the whole ISR while the former ISR joins the ELR; with both sets empty the last
known leader, unless its log is missing (unclean); where the topic allows it and no ISR or ELR member may still turn up (none is
ABSENT), the LIVE replica with the latest epoch and the longest log (unclean, and then it is the whole ISR). Else nobody leads.

**Epochs.** Each change of the leader, to nobody as well, raises leader epoch and partition epoch; any other change the
partition epoch. An epoch belongs to one incarnation.

**ISR.** The dead leave the ISR when somebody live leads, never before: while nobody leads nothing can be committed, so each
member of the ISR stays as good as it was, and a death can never empty it. A member whose going leaves the ISR below the
minimum becomes an eligible leader until the ISR is that large again: below the minimum the high watermark stands still, so
it holds everything that was committed. Only a suspect log leaves both (``opened``).

**Draining.** A broker that is being drained leads only what nobody else can lead: its leaders go to another LIVE member of the ISR as soon
as there is one, and an election takes it last. It stays in the ISRs where it is; joining one is refused (``partition_decisions``).

**A partition that nobody has led yet** (leader epoch −1) holds no record, so no log of it can be suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.metadata.session import Condition, ReplicaStatus
from raylog.types import NO_LEADER


class Standing(Enum):
    LIVE = "live"
    ABSENT = "absent"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of one replica. ``incarnation`` 0: no process has registered. The log's ends are those of its opening."""

    standing: Standing
    incarnation: int = 0
    condition: Condition = Condition.CLEAN
    last_epoch: int = -1
    log_end_offset: int = 0
    is_draining: bool = False


Candidates = Mapping[int, Candidate]  # by broker id, one for each replica


def effective_min_isr(state: PartitionState, min_insync_replicas: int) -> int:
    """min(min.insync.replicas, assigned replicas without those being added)."""
    return max(1, min(min_insync_replicas, len(state.replicas) - len(state.adding)))


def settled(
    state: PartitionState,
    candidates: Candidates,
    *,
    min_isr: int,
    unclean_allowed: bool = False,
    wait_for_preferred: bool = False,
) -> PartitionState:
    """The state that follows from how the replicas stand now.

    ``wait_for_preferred`` keeps a partition that nobody has led yet from going to any but its first replica.
    """
    leader = candidates.get(state.leader)
    if leader is not None and leader.standing is not Standing.DEAD and leader.incarnation == state.leader_incarnation:
        if leader.standing is not Standing.LIVE:
            return state
        if leader.is_draining and any(may_take_over(candidates[broker]) for broker in state.isr):
            return _elected(state, candidates, min_isr, unclean_allowed, wait_for_preferred)
        return _without_dead(state, candidates, min_isr)
    return _elected(state, candidates, min_isr, unclean_allowed, wait_for_preferred)


def preferred(state: PartitionState, candidates: Candidates, *, min_isr: int) -> PartitionState:
    """The state with its first replica as leader, if that is LIVE, in sync and not being drained; else the same state."""
    first = state.brokers[0]
    if state.leader == first or first not in state.isr or not may_take_over(candidates[first]):
        return state
    return led_by(state, first, candidates, _survivors(state, candidates), min_isr)


def opened(state: PartitionState, broker_id: int, incarnation: int, status: ReplicaStatus) -> PartitionState:
    """The state after a process has said in what condition it found its log; ``settled`` has to follow.

    A log is judged once per incarnation. ISR and ELR membership survives any restart but one whose log is suspect or missing.
    """
    slot = state.slot(broker_id)
    assert slot is not None, f"broker {broker_id} holds no replica of {state}"
    if slot.admitted == incarnation:
        return state
    never_opened = slot.admitted == 0
    blank = never_opened and status.condition is Condition.MISSING
    fit = status.condition in (Condition.CLEAN, Condition.WHOLE) or state.leader_epoch < 0 or blank
    if fit:
        return admitted(state, {broker_id: incarnation}) if never_opened else state
    if broker_id not in state.isr and broker_id not in state.elr:
        return state
    led = state.leader == broker_id  # by another incarnation: this one has not been elected yet
    return replace(
        state,
        isr=tuple(member for member in state.isr if member != broker_id),
        elr=tuple(member for member in state.elr if member != broker_id),
        leader=NO_LEADER if led else state.leader,
        leader_incarnation=0 if led else state.leader_incarnation,
        last_known_leader=broker_id if led else state.last_known_leader,
        leader_epoch=state.leader_epoch + led,
        partition_epoch=state.partition_epoch + 1,
    )


def admitted(state: PartitionState, incarnations: Mapping[int, int]) -> PartitionState:
    """The state with these brokers' processes noted as judged; no epoch moves, because nothing is decided by it."""
    slots = tuple(_admit(slot, incarnations.get(slot.broker_id, 0)) for slot in state.replicas)
    return state if slots == state.replicas else replace(state, replicas=slots)


def with_isr(state: PartitionState, isr: tuple[int, ...], *, min_isr: int) -> PartitionState:
    """The state with another ISR, the leader staying, and the ELR that follows."""
    if isr == state.isr:
        return state
    assert state.leader in isr, f"leader {state.leader} is not in the new ISR {isr}"
    return replace(state, isr=isr, elr=_eligible(state, isr, min_isr), partition_epoch=state.partition_epoch + 1)


def with_other_minimum(state: PartitionState) -> PartitionState:
    """The state after the minimum ISR changed: what the ELR promised was said of the old minimum."""
    return replace(state, elr=(), partition_epoch=state.partition_epoch + 1)


def _without_dead(state: PartitionState, candidates: Candidates, min_isr: int) -> PartitionState:
    return with_isr(state, _survivors(state, candidates), min_isr=min_isr)


def _survivors(state: PartitionState, candidates: Candidates) -> tuple[int, ...]:
    return tuple(member for member in state.isr if candidates[member].standing is not Standing.DEAD)


def _elected(
    state: PartitionState, candidates: Candidates, min_isr: int, unclean_allowed: bool, wait_for_preferred: bool
) -> PartitionState:
    live = [broker for broker in state.brokers if candidates[broker].standing is Standing.LIVE]
    live.sort(key=lambda broker: candidates[broker].is_draining)  # the rest keep their order
    in_sync = next((broker for broker in live if broker in state.isr), None)
    if in_sync is not None:
        preferred = state.brokers[0]
        may_come = candidates[preferred].standing is not Standing.DEAD and not candidates[preferred].is_draining
        if wait_for_preferred and state.leader_epoch < 0 and in_sync != preferred and may_come:
            return state
        return led_by(state, in_sync, candidates, _survivors(state, candidates), min_isr)
    eligible = next((broker for broker in live if broker in state.elr), None)
    if eligible is not None:
        return led_by(state, eligible, candidates, (eligible,), min_isr)
    if not state.isr and not state.elr:
        last = state.last_known_leader
        if last in live and candidates[last].condition is not Condition.MISSING:
            return led_by(state, last, candidates, (last,), min_isr, unclean=True)
    waiting = any(candidates[broker].standing is Standing.ABSENT for broker in state.isr + state.elr)
    if unclean_allowed and live and not waiting:
        longest = max(live, key=lambda broker: _length(candidates[broker]))  # the first in assignment order on a tie
        return led_by(state, longest, candidates, (longest,), min_isr, unclean=True)
    return _leaderless(state)


def may_take_over(candidate: Candidate) -> bool:
    """Whether leadership can be moved to this replica by choice."""
    return candidate.standing is Standing.LIVE and not candidate.is_draining


def _length(candidate: Candidate) -> tuple[int, int]:
    return candidate.last_epoch, candidate.log_end_offset


def led_by(
    state: PartitionState,
    leader: int,
    candidates: Candidates,
    isr: tuple[int, ...],
    min_isr: int,
    *,
    unclean: bool = False,
) -> PartitionState:
    """The state under another leader: a new epoch, given to the process that its replica has now."""
    incarnation = candidates[leader].incarnation
    assert incarnation > 0 and leader in isr, f"{leader} of incarnation {incarnation} cannot lead {state}"
    state = admitted(state, {leader: incarnation})
    return replace(
        state,
        leader=leader,
        leader_incarnation=incarnation,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        isr=isr,
        elr=() if unclean else _eligible(state, isr, min_isr),
        last_known_leader=NO_LEADER,
        unclean_elections=state.unclean_elections + unclean,
    )


def _leaderless(state: PartitionState) -> PartitionState:
    if state.leader == NO_LEADER:
        return state
    return replace(
        state,
        leader=NO_LEADER,
        leader_incarnation=0,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        last_known_leader=state.leader,
    )


def _eligible(state: PartitionState, isr: tuple[int, ...], min_isr: int) -> tuple[int, ...]:
    if len(isr) >= min_isr:
        return ()
    former = set(state.isr) | set(state.elr)
    return tuple(broker for broker in state.brokers if broker in former and broker not in isr)


def _admit(slot: ReplicaSlot, incarnation: int) -> ReplicaSlot:
    return slot if incarnation in (0, slot.admitted) else replace(slot, admitted=incarnation)
