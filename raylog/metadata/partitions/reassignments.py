"""How one partition gets from one set of replicas to another (KIP-455): pure functions over its
state.

They own the rules of ``adding`` and ``removing``. They know nothing of requests, disks or records.
``target`` is what somebody wants, ``origin`` what the partition has without what is being added.

A reassignment runs through these states, all of them plain ``PartitionState``s::

    replicas            isr         adding   removing     what happens
    [0 1 2]             0 1 2                             target [3 1 2]
    [3 1 2 0]           0 1 2       3        0            3 copies; nothing else changes, the minimum ISR counts 0 1 2
    [3 1 2 0]           0 1 2 3     3        0            3 has joined the ISR: complete at once, in the same decision
    [3 1 2]             1 2 3                             0 is told to delete its folder; if it led, another of the target leads

**Complete** when all that are added are in sync, what stays in sync is no less than the minimum ISR
of the target, and somebody of the target leads or can. The minimum is stricter than Kafka's rule: a
removal never leaves records that are committed in fewer copies than the topic asks for while more
can still come. **Cancelling** is a reassignment to the origin. A **changed** target starts from the
origin again: what an unfinished reassignment had added and the new one does not want is dropped at
once, in sync or not.

**Epochs.** A replica that is added to a process of its own is told from all earlier ones by its
incarnation. One that is packed into a process that runs already may have been there before, and a
fetch of that time may still be on its way to the leader: it must not count for the new one, which
is empty. So the leader gets a new epoch then (``renews_epoch``), and the late fetch is fenced by
the old.

A change that would drop everybody who certainly has what is committed is impossible (``None``).
"""

from __future__ import annotations

from dataclasses import replace

from raylog.metadata.partitions.elections import Candidates, effective_min_isr, led_by, may_take_over
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.types import NO_LEADER


def origin(state: PartitionState) -> tuple[ReplicaSlot, ...]:
    """The replicas without those that are being added."""
    return tuple(slot for slot in state.replicas if slot.broker_id not in state.adding)


def target(state: PartitionState) -> tuple[ReplicaSlot, ...]:
    """The replicas without those that are being removed: what there will be."""
    return tuple(slot for slot in state.replicas if slot.broker_id not in state.removing)


def is_under_way(state: PartitionState) -> bool:
    return bool(state.adding or state.removing)


def started(
    state: PartitionState, wanted: tuple[ReplicaSlot, ...], *, renews_epoch: bool = False
) -> PartitionState | None:
    """The state on its way to these replicas, in this order; None if nobody who has all that is
    committed would be left.

    ``wanted`` names the slots of ``state`` for the brokers that have a replica already.
    ``completed`` has to follow.
    """
    before = origin(state)
    brokers = tuple(slot.broker_id for slot in wanted)
    leaving = tuple(slot for slot in before if slot.broker_id not in brokers)
    replicas = wanted + leaving
    kept = {slot.broker_id for slot in replicas}
    isr = tuple(member for member in state.isr if member in kept)
    elr = tuple(member for member in state.elr if member in kept)
    if not _somebody_stays(state, kept):
        return None
    had = {slot.broker_id for slot in before}
    drops_leader = state.leader != NO_LEADER and state.leader not in kept
    after = replace(
        state,
        replicas=replicas,
        isr=isr,
        elr=elr,
        adding=tuple(broker for broker in brokers if broker not in had),
        removing=tuple(slot.broker_id for slot in leaving),
        leader=NO_LEADER if drops_leader else state.leader,
        leader_incarnation=0 if drops_leader else state.leader_incarnation,
        leader_epoch=state.leader_epoch + (drops_leader or (renews_epoch and state.leader != NO_LEADER)),
        last_known_leader=state.last_known_leader if state.last_known_leader in kept else NO_LEADER,
    )
    return state if after == state else replace(after, partition_epoch=state.partition_epoch + 1)


def completed(state: PartitionState, candidates: Candidates, *, min_insync_replicas: int) -> PartitionState:
    """The state without the replicas that were to be removed, if the reassignment can end now; else
    the same state.
    """
    if not is_under_way(state) or state.leader == NO_LEADER:
        return state
    replicas = target(state)
    staying = {slot.broker_id for slot in replicas}
    isr = tuple(member for member in state.isr if member in staying)
    after = replace(
        state,
        replicas=replicas,
        isr=isr,
        elr=(),  # the minimum may have changed, and is reached
        adding=(),
        removing=(),
        last_known_leader=state.last_known_leader if state.last_known_leader in staying else NO_LEADER,
        partition_epoch=state.partition_epoch + 1,
    )
    min_isr = effective_min_isr(after, min_insync_replicas)
    if not set(state.adding) <= set(isr) or len(isr) < min_isr:
        return state
    if all(candidates[member].is_damaged for member in isr):
        return state  # what is to go may hold the only whole copy
    if state.leader in staying:
        return after
    able = [broker for broker in after.brokers if broker in isr and may_take_over(candidates[broker])]
    return led_by(after, able[0], candidates, isr, min_isr) if able else state


def _somebody_stays(state: PartitionState, kept: set[int]) -> bool:
    """Of those who have what is committed: the ISR; without one the ELR; without either the last
    known leader.
    """
    if state.isr or state.elr:
        return not kept.isdisjoint(state.isr or state.elr)
    return state.last_known_leader == NO_LEADER or state.last_known_leader in kept
