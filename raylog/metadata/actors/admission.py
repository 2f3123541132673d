"""Whether a process that says hello is let in, and how it is registered. Pure.

A process is turned away, with a reason that it can print, if it belongs to another cluster, to a
broker or disk that is not registered, if nothing is assigned to it, or if a newer process of the
same actor has said hello before: one with a higher incarnation, or one that took its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.control.session import Hello
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import ActorRegistered
from raylog.types import FIRST_REPLICA_SLOT, broker_of, slot_of

FORMER_MAX = 16


@dataclass(frozen=True, slots=True)
class Admission:
    """``registration`` None: all of it is known. ``came_back``: the incarnation that was
    registered, and not dead.

    ``former`` is the incarnation in whose place it comes; 0: the node has had no other process, or
    had this one already.
    """

    registration: ActorRegistered | None
    came_back: bool
    former: int = 0


def admit(image: MetadataImage, hello: Hello) -> Admission | str:
    """The admission, or the reason to refuse it."""
    identity = hello.identity
    node_id = identity.node_id
    if identity.cluster_id != image.cluster_id:
        return f"this is cluster {image.cluster_id}, not {identity.cluster_id}"
    if broker_of(node_id) not in image.brokers:
        return f"broker {broker_of(node_id)} is not registered"
    disk = image.disks.get(identity.directory_id)
    if disk is None or disk.broker_id != broker_of(node_id):
        return f"disk {identity.directory_id} is not registered for broker {broker_of(node_id)}"
    if slot_of(node_id) >= FIRST_REPLICA_SLOT:
        if not image.needs(node_id):
            return "nothing is assigned to it"
        if identity.directory_id != image.directory_of(node_id):
            return f"its replicas are on another disk than {identity.directory_id}"
    known = image.actors.get(node_id)
    former: tuple[int, ...] = ()
    if known is not None:
        if identity.incarnation in known.former or identity.incarnation < known.incarnation:
            return "a newer process has taken its place"
        former = known.former
        if identity.incarnation != known.incarnation:
            former = (known.incarnation, *known.former)[:FORMER_MAX]
    registration = ActorRegistered(
        node_id=node_id,
        directory_id=identity.directory_id,
        incarnation=identity.incarnation,
        endpoint=hello.endpoint,
        boot_id=hello.boot_id,
        former=former,
        pid=hello.pid,
        listener=hello.listener,
        listeners=hello.listeners,
    )
    came_back = known is not None and known.alive and known.incarnation == identity.incarnation
    replaced = known.incarnation if known is not None and known.incarnation != identity.incarnation else 0
    return Admission(None if registration == known else registration, came_back, replaced)
