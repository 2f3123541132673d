"""Partitions that nobody has led yet: whether a partition is one of them, and who will lead it.
Pure functions over the image.

Such a partition has leader epoch −1. Its first election takes the first replica in assignment order
that is up, and waits a moment for the preferred one (``elections``). So the leader can be named
before the election: whoever asks for it then is sent to the process that will lead, and waits there
until it does. The forecast may be wrong where a process or a disk fails meanwhile: the process that
was named then becomes a follower, and says so.
"""

from __future__ import annotations

from raylog.metadata.image import MetadataImage
from raylog.metadata.records import PartitionState
from raylog.types import NO_LEADER


def is_new(state: PartitionState) -> bool:
    """Whether nobody has ever led it."""
    return state.leader_epoch < 0


def leader_or_next(image: MetadataImage, state: PartitionState, *, running: bool = False) -> int:
    """The broker that leads the partition; of a new partition the one that will. −1: nobody does,
    and nobody is foreseen.

    A replica whose process has never been started may lead; one whose process was declared dead may
    not. With ``running`` only replicas whose process is live may.
    """
    if state.leader != NO_LEADER or not is_new(state):
        return state.leader
    found = []
    for slot in state.replicas:
        actor = image.actors.get(slot.node_id)
        if actor.alive if actor is not None else not running:
            found.append(slot.broker_id)
    found.sort(key=image.is_draining)  # the rest keep their order
    return found[0] if found else NO_LEADER
