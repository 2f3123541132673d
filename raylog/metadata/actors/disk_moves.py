"""How a replica gets from one disk of its broker to another: pure functions over the partition's
state.

A broker's disk has server actors of its own, so the replica gets another actor, too, and another
folder. A *future* copy (``PartitionState.futures``) is opened there, empty, beside the replica. It
is none of the replicas: it is in no ISR, no election asks it, and clients are not shown it. It
copies from the leader as any follower does, and the leader knows it by ``future_id`` in the place of
a broker id.

::

    replicas   isr     futures     what happens
    [0 1 2]    0 1 2               broker 1 shall have its replica on another disk
    [0 1 2]    0 1 2   1'          1' copies from the leader
    [0 1 2]    0 1 2   1'          the leader has seen 1' come near, waits for it from now on, and soon asks it in
    [0 1' 2]   0 1 2               1' is the replica: in the same decision the old copy is told to delete its folder

**Nothing is lost**: before the leader asks, and from then on, no record is committed that the future
copy lacks (``replication.arrival``). So it has all that the ISR promises when it takes the old copy's
place, and the ISR keeps its size. Nor does a leader whose own copy arrives acknowledge any record
that the copy may lack. A replica that was out of sync comes in with its new copy. Until that decision
the old copy is whole and counts, after it the new one; a crash of anybody changes nothing of that.

**Epochs.** If the replica led, its new copy leads on in a new epoch: another process leads. The
leader's epoch also rises when the future copy is opened by a process that runs already, for the
reason that ``reassignments`` gives.

A future copy whose log or disk fails is given up: the replica stays where it is.
"""

from __future__ import annotations

from dataclasses import replace

from raylog.metadata.actors.disk_requests import DiskMove
from raylog.metadata.image import MetadataImage
from raylog.metadata.partitions.elections import admitted
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.types import NO_LEADER, broker_of_future, future_id, is_future


def shown(future: ReplicaSlot) -> ReplicaSlot:
    """A future copy as those who hold the partition know it: named by its future id."""
    return replace(future, broker_id=future_id(future.broker_id))


def started(state: PartitionState, future: ReplicaSlot, *, renews_epoch: bool) -> PartitionState:
    """The state with that future copy of its broker, in the place of an earlier one."""
    others = tuple(slot for slot in state.futures if slot.broker_id != future.broker_id)
    return replace(
        state,
        futures=(*others, future),
        leader_epoch=state.leader_epoch + (renews_epoch and state.leader != NO_LEADER),
        partition_epoch=state.partition_epoch + 1,
    )


def given_up(state: PartitionState, broker_id: int) -> PartitionState:
    """The state without a future copy of that broker."""
    kept = tuple(slot for slot in state.futures if slot.broker_id != broker_id)
    if kept == state.futures:
        return state
    return replace(state, futures=kept, partition_epoch=state.partition_epoch + 1)


def without_homeless(state: PartitionState) -> PartitionState:
    """The state without future copies of brokers that hold no replica any more, and of those whose
    replica has come to the same disk some other way.
    """
    for future in state.futures:
        slot = state.slot(future.broker_id)
        if slot is None or slot.directory_id == future.directory_id:
            state = given_up(state, future.broker_id)
    return state


def arrived(state: PartitionState, broker_id: int, incarnation: int) -> PartitionState:
    """The state in which the future copy is the broker's replica, in sync; ``settled`` has to
    follow.

    ``incarnation`` is of the process in which the leader saw it catch up.
    """
    future = state.future(broker_id)
    assert future is not None, f"broker {broker_id} has no future copy in {state}"
    replicas = tuple(future if slot.broker_id == broker_id else slot for slot in state.replicas)
    led = state.leader == broker_id
    after = replace(
        state,
        replicas=replicas,
        futures=tuple(slot for slot in state.futures if slot.broker_id != broker_id),
        isr=state.isr if broker_id in state.isr else (*state.isr, broker_id),
        elr=tuple(member for member in state.elr if member != broker_id),
        leader_incarnation=incarnation if led else state.leader_incarnation,
        leader_epoch=state.leader_epoch + led,
        partition_epoch=state.partition_epoch + 1,
    )
    return admitted(after, {broker_id: incarnation})


def under_way(image: MetadataImage) -> tuple[DiskMove, ...]:
    """The moves that have begun and are not complete, by topic name and partition."""
    found = (
        DiskMove(name, partition, slot.broker_id, slot.node_id, image.disks[slot.directory_id].path)
        for name, topic_id in image.topic_ids.items()
        for partition, state in image.topics[topic_id].partitions.items()
        for slot in state.futures
    )
    return tuple(sorted(found, key=lambda move: (move.topic, move.partition, move.node_id)))


def apart(members: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """The members (broker, incarnation) of an ISR that a leader asks for, and the future copies
    among them, under their brokers' ids.
    """
    present = tuple(member for member in members if not is_future(member[0]))
    return present, tuple((broker_of_future(id), incarnation) for id, incarnation in members if is_future(id))
