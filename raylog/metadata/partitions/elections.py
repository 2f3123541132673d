"""Who may lead a partition, and who is in sync: pure functions over its state and what is known of
its replicas.

They own the rules of leadership, ISR and ELR. They know nothing of sessions, time, records or other
partitions. The caller says of each replica how it stands, and gets the partition's next state (the
same object if nothing changes).

How a replica stands:

=======  ============================================================================================================
LIVE     its process has a session and has opened this log: it may lead and may join the ISR
ABSENT   nobody has judged it dead, but it cannot act now: no session (it is being dialled), not started, still opening
DEAD     its process was declared dead, or its log failed in this process
=======  ============================================================================================================

**Proof.** A member of ISR or ELR is *proven* while its process is the one that was elected or that
a leader took into the ISR (``ReplicaSlot.admitted``), and after a clean stop. A log that a new
process found whole after an unclean stop is not proven: its files may have lost acknowledged
records at rest, and nothing in them has to show it. No record can be lost from a partition that
nobody has led, so there every member is proven.

**Leadership.** A leader that is not dead, with the incarnation that its epoch was given to, stays.
While it is ABSENT (it may well serve on) nothing changes. Otherwise the leader is the first of, in
assignment order:

1. a LIVE, proven member of the ISR;
2. a LIVE, proven eligible leader (ELR, KIP-966), who becomes the whole ISR while the former ISR
   joins the ELR;
3. of the LIVE unproven members of both, without those that lie below the record (see there), the
   one with the latest epoch and the longest log, once every other member that may still come up has
   been heard (``wait_for_logs``; the caller bounds the wait);
4. with both sets empty the last known leader, unless its log was found missing since (unclean);
   where another LIVE replica or the record knows of committed records that this log lacks, the
   longest log instead;
5. where the topic allows it and no ISR or ELR member may still turn up (none is ABSENT), the LIVE
   replica with the latest epoch and the longest log (unclean, and then it is the whole ISR).

Else nobody leads. An unproven log that lacks what another replica knows to be committed leaves ISR
and ELR (``without_short_logs``).

**The record.** The controllers keep of each partition a high watermark that was reached, with its
leader epoch (``noted``): a lower bound of what is committed, a few seconds old
(``high_watermark_record``). Nothing on a broker's own disk may show that its log was cut, or is an
old copy; the record does. An unproven log below it never leads while a member of ISR or ELR may
still have more. It takes part in the wait, for which replicas that are out of sync are heard, too,
as long as no LIVE member reaches the record. Then it leaves both sets, and nobody leads until a
member with a good log is back, or an unclean election is allowed or asked for. Where no member is
left rule 4 holds. A log that a clean stop left below the record proves nothing (``weighed``). An
unclean election gives records up, so it ends the record of its partition (``image``).

**Epochs.** Each change of the leader, to nobody as well, raises leader epoch and partition epoch;
any other change the partition epoch. An epoch belongs to one incarnation.

**ISR.** The dead leave the ISR when somebody live leads, never before: while nobody leads nothing
can be committed, so each member of the ISR stays as good as it was, and a death can never empty it.
The LIVE unproven leave it then, too, except those whose log ends exactly where the log of the
elected one does, in the same epoch: it is the same log, and they are proven by it. The others
rejoin when the leader has seen them catch up. A member whose going leaves the ISR below the minimum
becomes an eligible leader until the ISR is that large again: below the minimum the high watermark
stands still, so it holds everything that was committed. Only a suspect log leaves both
(``opened``).

**Draining.** A broker that is being drained leads only what nobody else can lead: its leaders go to
another LIVE member of the ISR as soon as there is one, and an election takes it last. It stays in
the ISRs where it is; joining one is refused (``partition_decisions``).

**Damage.** A live replica whose log has damaged bytes leads only where no live ISR member without
damage can. When one can, a new leader epoch begins under it (or under the same leader, where only a
follower is damaged), and the damaged replica is in neither ISR nor ELR: from then on nobody counts
on what it holds, and what it was seen to hold in the old epoch counts for nothing, so it may drop
the damage and copy from the leader. Where every live ISR member is damaged, nothing is dropped.

**A partition that nobody has led yet** (leader epoch −1) holds no record, so no log of it can be
suspect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from raylog.control.high_watermarks import HighWatermark
from raylog.control.session import ReplicaStatus
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.types import NO_LEADER, Condition


class Standing(Enum):
    LIVE = "live"
    ABSENT = "absent"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of one replica. ``incarnation`` 0: no process has registered. The log's ends
    are those of its opening.

    ``condition`` is CLEAN for a log that this process was already judged by. ``may_come_up``: if it
    is not LIVE, it may be soon.
    """

    standing: Standing
    incarnation: int = 0
    condition: Condition = Condition.CLEAN
    last_epoch: int = -1
    log_end_offset: int = 0
    is_draining: bool = False
    high_watermark: int = 0
    may_come_up: bool = True
    damaged_in: int = -1  # the leader epoch in which its process last reported damage in its log; −1: none is known

    @property
    def is_damaged(self) -> bool:
        return self.damaged_in >= 0


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
    wait_for_logs: bool = False,
    noted: HighWatermark | None = None,
) -> PartitionState:
    """The state that follows from how the replicas stand now. ``without_short_logs`` comes before
    it.

    ``noted`` is what the record says of this partition.

    ``wait_for_preferred`` keeps a partition that nobody has led yet from going to any but its first
    replica, ``wait_for_logs`` one whose live members are all unproven from going to any of them
    before the others' logs are known.
    """
    waits = _Waits(wait_for_preferred, wait_for_logs)
    leader = candidates.get(state.leader)
    if leader is not None and leader.standing is not Standing.DEAD and leader.incarnation == state.leader_incarnation:
        if leader.standing is not Standing.LIVE:
            return state
        if leader.is_draining and any(may_take_over(candidates[broker]) for broker in state.isr):
            return _elected(state, candidates, min_isr, unclean_allowed, waits, noted)
        relieved = _without_damaged(state, candidates, min_isr)
        if relieved is not state:
            return relieved
        return with_isr(state, _survivors(state, candidates), min_isr=min_isr)
    return _elected(state, candidates, min_isr, unclean_allowed, waits, noted)


@dataclass(frozen=True, slots=True)
class _Waits:
    for_preferred: bool
    for_logs: bool


def is_proven(state: PartitionState, candidate: Candidate) -> bool:
    """Whether the log of a LIVE member of ISR or ELR certainly holds everything that was committed."""
    return candidate.condition is Condition.CLEAN or state.leader_epoch < 0


def awaits_logs(state: PartitionState, candidates: Candidates) -> bool:
    """Whether nobody leads, though a member of ISR or ELR is LIVE: the logs of the others are
    awaited.
    """
    return state.leader == NO_LEADER and bool(_unproven(state, candidates))


def _unproven(state: PartitionState, candidates: Candidates) -> list[int]:
    members = (broker for broker in state.brokers if broker in state.isr or broker in state.elr)
    return [broker for broker in members if _is_unproven(state, candidates[broker])]


def _is_unproven(state: PartitionState, candidate: Candidate) -> bool:
    return candidate.standing is Standing.LIVE and not is_proven(state, candidate)


def without_short_logs(state: PartitionState, candidates: Candidates) -> PartitionState:
    """The state without the unproven members whose log lacks what another LIVE replica knows to be
    committed.
    """
    unproven = _unproven(state, candidates)
    if not unproven:
        return state
    witnesses = _witnesses(state, candidates)
    short = [
        broker for broker in unproven if any(_lacks_committed(candidates[broker], witness) for witness in witnesses)
    ]
    return without_members(state, short)


def _witnesses(state: PartitionState, candidates: Candidates) -> list[Candidate]:
    """The LIVE replicas whose high watermark counts.

    After an unclean election a replica outside ISR and ELR may know of records that this election
    gave up.
    """
    members = state.isr + state.elr
    return [
        each
        for broker, each in candidates.items()
        if each.standing is Standing.LIVE and (broker in members or not state.unclean_elections)
    ]


def _lacks_committed(candidate: Candidate, witness: Candidate) -> bool:
    return is_below(candidate, HighWatermark(witness.last_epoch, witness.high_watermark))


def is_below(log: Candidate | ReplicaStatus, mark: HighWatermark | None) -> bool:
    """Whether that log, as it was opened, lacks records that are committed by this mark."""
    return mark is not None and log.last_epoch <= mark.leader_epoch and log.log_end_offset < mark.offset


def weighed(status: ReplicaStatus, noted: HighWatermark | None) -> ReplicaStatus:
    """The status of a log that was just opened as it is to be taken: a clean stop proves nothing of
    a log below the record.

    It is an old copy. Later the same log may not be judged so: the record grows, and the status
    doesn't.
    """
    is_old = status.condition is Condition.CLEAN and is_below(status, noted)
    return replace(status, condition=Condition.WHOLE) if is_old else status


def without_members(state: PartitionState, brokers: Collection[int]) -> PartitionState:
    """The state with these out of ISR and ELR. If one of them leads, nobody does."""
    if not any(broker in state.isr or broker in state.elr for broker in brokers):
        return state
    led = state.leader in brokers
    return replace(
        state,
        isr=tuple(member for member in state.isr if member not in brokers),
        elr=tuple(member for member in state.elr if member not in brokers),
        leader=NO_LEADER if led else state.leader,
        leader_incarnation=0 if led else state.leader_incarnation,
        last_known_leader=state.leader if led else state.last_known_leader,
        leader_epoch=state.leader_epoch + led,
        partition_epoch=state.partition_epoch + 1,
    )


def preferred(state: PartitionState, candidates: Candidates, *, min_isr: int) -> PartitionState:
    """The state with its first replica as leader, if that is LIVE, in sync and not being drained;
    else the same state.
    """
    first = state.brokers[0]
    if state.leader == first or first not in state.isr or not may_take_over(candidates[first]):
        return state
    return led_by(state, first, candidates, _survivors(state, candidates), min_isr)


def handed_over(state: PartitionState, candidates: Candidates, *, min_isr: int) -> PartitionState:
    """The state without its leader: with another LIVE, proven, undamaged member of the ISR at its
    place that is not being drained, or with nobody.
    """
    able = (broker for broker in state.brokers if broker in state.isr and broker != state.leader)
    successor = next((broker for broker in able if may_take_over(candidates[broker])), None)
    if successor is None:
        return _leaderless(state)
    return led_by(state, successor, candidates, _survivors(state, candidates), min_isr)


def opened(state: PartitionState, broker_id: int, incarnation: int, status: ReplicaStatus) -> PartitionState:
    """The state after a process has said in what condition it found its log; ``settled`` has to
    follow.

    A log is judged once per incarnation. ISR and ELR membership survives any restart but one whose
    log is suspect or missing. A log with records of a leader epoch that was never given to anybody
    is corrupt, hence suspect.
    """
    slot = state.slot(broker_id)
    assert slot is not None, f"broker {broker_id} holds no replica of {state}"
    if slot.admitted == incarnation:
        return state
    never_opened = slot.admitted == 0
    blank = never_opened and status.condition is Condition.MISSING
    fit = status.condition in (Condition.CLEAN, Condition.WHOLE) or state.leader_epoch < 0 or blank
    if fit and (status.last_epoch <= state.leader_epoch or state.leader_epoch < 0):
        return admitted(state, {broker_id: incarnation}) if never_opened else state
    after = without_members(state, (broker_id,))  # if it led, then by another incarnation: this one was not elected yet
    if status.condition is Condition.MISSING and after.last_known_leader == broker_id:
        # What it led with is gone. The next process will find the log that this one has begun, and
        # call it suspect.
        after = replace(after, last_known_leader=NO_LEADER)
    return after


def restarted(state: PartitionState, broker_id: int, former: int) -> PartitionState:
    """The state after another process than ``former`` (0: none) has said hello; ``opened`` follows.

    The former one may have opened the replica, and copied records that the leader took for
    committed, before anybody heard of it. So in a partition that somebody has led a missing log is
    a lost one from now on.
    """
    slot = state.slot(broker_id)
    assert slot is not None, f"broker {broker_id} holds no replica of {state}"
    if slot.admitted or state.leader_epoch < 0:
        return state
    return admitted(state, {broker_id: former})


def admitted(state: PartitionState, incarnations: Mapping[int, int]) -> PartitionState:
    """The state with these brokers' processes noted as judged; no epoch moves, because nothing is
    decided by it.
    """
    slots = tuple(_admit(slot, incarnations.get(slot.broker_id, 0)) for slot in state.replicas)
    return state if slots == state.replicas else replace(state, replicas=slots)


def with_isr(state: PartitionState, isr: tuple[int, ...], *, min_isr: int) -> PartitionState:
    """The state with another ISR, the leader staying, and the ELR that follows."""
    if isr == state.isr:
        return state
    assert state.leader in isr, f"leader {state.leader} is not in the new ISR {isr}"
    return replace(state, isr=isr, elr=_eligible(state, isr, min_isr), partition_epoch=state.partition_epoch + 1)


def with_other_minimum(state: PartitionState, *, min_isr: int) -> PartitionState:
    """The state after the minimum ISR changed, ``min_isr`` is the new one.

    An ISR that is large enough now may commit what the eligible leaders lack: they are eligible no
    more. Below the new minimum, and while nobody leads, nothing can be committed: they stay, and an
    election waits for their logs.
    """
    commits = state.leader != NO_LEADER and len(state.isr) >= min_isr
    return replace(state, elr=() if commits else state.elr, partition_epoch=state.partition_epoch + 1)


def _without_damaged(state: PartitionState, candidates: Candidates, min_isr: int) -> PartitionState:
    """The state in a new epoch without damaged replicas in the ISR; the same one if there is none,
    or nobody else to lead.
    """
    damaged = {broker for broker in state.brokers if _is_to_leave(state, broker, candidates[broker])}
    if not damaged:
        return state
    whole = [
        broker
        for broker in state.brokers
        if broker in state.isr
        and candidates[broker].standing is Standing.LIVE
        and is_proven(state, candidates[broker])
        and not candidates[broker].is_damaged
    ]
    whole.sort(key=lambda broker: (broker != state.leader, candidates[broker].is_draining))
    if not whole:
        return state
    isr = tuple(broker for broker in _survivors(state, candidates) if broker not in damaged)
    after = led_by(state, whole[0], candidates, isr, min_isr)
    return replace(after, elr=tuple(broker for broker in after.elr if broker not in damaged))


def _is_to_leave(state: PartitionState, broker: int, candidate: Candidate) -> bool:
    """Whether a damaged replica is counted on, or may have been seen by its leader, in this epoch,
    to hold what it will drop.
    """
    if not candidate.is_damaged or candidate.standing is not Standing.LIVE:
        return False
    return broker in state.isr or broker in state.elr or candidate.damaged_in >= state.leader_epoch


def _survivors(state: PartitionState, candidates: Candidates) -> tuple[int, ...]:
    """The ISR under a proven leader: without the dead, and without those who have yet to prove that
    they hold everything.
    """
    return tuple(
        member
        for member in state.isr
        if candidates[member].standing is not Standing.DEAD and not _is_unproven(state, candidates[member])
    )


def _elected(
    state: PartitionState,
    candidates: Candidates,
    min_isr: int,
    unclean_allowed: bool,
    waits: _Waits,
    noted: HighWatermark | None,
) -> PartitionState:
    live = [broker for broker in state.brokers if candidates[broker].standing is Standing.LIVE]
    # The rest keep their order.
    live.sort(key=lambda broker: (candidates[broker].is_damaged, candidates[broker].is_draining))
    proven = [broker for broker in live if is_proven(state, candidates[broker])]
    in_sync = next((broker for broker in proven if broker in state.isr), None)
    if in_sync is not None:
        preferred = state.brokers[0]
        may_come = candidates[preferred].standing is not Standing.DEAD and not candidates[preferred].is_draining
        if waits.for_preferred and state.leader_epoch < 0 and in_sync != preferred and may_come:
            return state
        return led_by(state, in_sync, candidates, _survivors(state, candidates), min_isr)
    eligible = next((broker for broker in proven if broker in state.elr), None)
    if eligible is not None:
        return led_by(state, eligible, candidates, (eligible,), min_isr)
    unproven = _unproven(state, candidates)
    if unproven:
        reaching = [broker for broker in unproven if not is_below(candidates[broker], noted)]
        others = (candidates[broker] for broker in (state.isr + state.elr if reaching else state.brokers))
        if waits.for_logs and any(other.standing is not Standing.LIVE and other.may_come_up for other in others):
            return _leaderless(state)
        if reaching:
            return _led_by_longest(state, reaching, candidates, min_isr)
        state = without_members(state, unproven)
    if not state.isr and not state.elr:
        last = state.last_known_leader
        if last in live and candidates[last].condition is not Condition.MISSING:
            witnesses = _witnesses(state, candidates)
            is_short = any(_lacks_committed(candidates[last], witness) for witness in witnesses)
            if is_short or is_below(candidates[last], noted):
                last = max(live, key=lambda broker: _length(candidates[broker]))
            return led_by(state, last, candidates, (last,), min_isr, unclean=True)
    waiting = any(candidates[broker].standing is Standing.ABSENT for broker in state.isr + state.elr)
    if unclean_allowed and live and not waiting:
        longest = max(live, key=lambda broker: _length(candidates[broker]))  # the first in assignment order on a tie
        return led_by(state, longest, candidates, (longest,), min_isr, unclean=True)
    return _leaderless(state)


def _led_by_longest(
    state: PartitionState, unproven: Sequence[int], candidates: Candidates, min_isr: int
) -> PartitionState:
    """The state under that one of these members, all LIVE, which has the latest epoch and the
    longest log.
    """

    def rank(broker: int) -> tuple[tuple[int, int], bool, bool]:
        return _length(candidates[broker]), broker in state.isr, not candidates[broker].is_draining

    longest = max(unproven, key=rank)  # the first in assignment order on a tie
    same = {broker for broker in unproven if _length(candidates[broker]) == _length(candidates[longest])}
    state = admitted(state, {broker: candidates[broker].incarnation for broker in same})
    if longest not in state.isr:
        return led_by(state, longest, candidates, (longest,), min_isr)
    survivors = _survivors(state, candidates)
    isr = tuple(member for member in state.isr if member in same or member in survivors)
    return led_by(state, longest, candidates, isr, min_isr)


def may_take_over(candidate: Candidate) -> bool:
    """Whether leadership can be moved by choice to this member of the ISR: LIVE, proven, neither
    damaged nor being drained.
    """
    return (
        candidate.standing is Standing.LIVE
        and candidate.condition is Condition.CLEAN
        and not candidate.is_draining
        and not candidate.is_damaged
    )


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
