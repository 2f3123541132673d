"""Brokers and disks: how they become known, and which of them take new replicas. Pure.

Registering is idempotent. A broker may have many disks. A disk's broker never changes; its path and
its broker's rack may. A new disk at the path of another disk of the broker has replaced that one,
which is lost; one that is known already has only moved there. A disk's hosts are planned with it,
so that they are warm before the first topic.

A broker is unregistered when nothing is left on it: no replica, no voter of the controllers'
quorum, and no place in their plan.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import replace

from kio.schema.errors import ErrorCode

from raylog.metadata.actors.node_slots import NodeSlots
from raylog.metadata.image import MetadataImage
from raylog.metadata.partitions.topic_decisions import BrokerPlaces
from raylog.metadata.records import BrokerRegistered, BrokerUnregistered, DiskRegistered, HostKind, Record
from raylog.metadata.requests import BrokerUnregistration, DiskOutcome, RegisterDisk, UnregisterBroker
from raylog.types import BROKER_SLOT, broker_of, slot_of

BROKER_ID_END = 1 << 15


def decide_register_disk(
    image: MetadataImage, request: RegisterDisk, *, plans_hosts: bool
) -> tuple[list[Record], DiskOutcome]:
    """``plans_hosts``: the disk gets a host of each kind where it has none."""
    if request.cluster_id != image.cluster_id:
        return [], DiskOutcome(
            ErrorCode.inconsistent_cluster_id,
            f"the disk {request.path} belongs to cluster {request.cluster_id}, this is {image.cluster_id}",
        )
    if not 0 <= request.broker_id < BROKER_ID_END:
        return [], DiskOutcome(ErrorCode.invalid_registration, f"broker ids are 0 to {BROKER_ID_END - 1}")
    known = image.disks.get(request.directory_id)
    if known is not None and known.broker_id != request.broker_id:
        return [], DiskOutcome(
            ErrorCode.duplicate_broker_registration,
            f"the disk {request.path} ({request.directory_id}) is broker {known.broker_id}'s, not {request.broker_id}'s",
        )
    records: list[Record] = []
    broker = BrokerRegistered(request.broker_id, request.rack)
    if image.brokers.get(request.broker_id) != broker:
        records.append(broker)
    disk = DiskRegistered(request.directory_id, request.broker_id, request.path)
    if known != disk:
        records.append(disk)
    replaced = [each for each in image.disks_of(disk.broker_id) if each.path == disk.path] if known is None else []
    records += [replace(each, replaced_by=disk.directory_id) for each in replaced]
    if plans_hosts:
        slots = NodeSlots(image)
        planned = {host.kind for each in (disk, *replaced) for host in image.hosts_of(each.directory_id)}
        records += [
            slots.plan_host(disk.broker_id, disk.directory_id, kind) for kind in HostKind if kind not in planned
        ]
    return records, DiskOutcome(ErrorCode.none)


def decide_unregister_broker(
    image: MetadataImage, request: UnregisterBroker, *, controller_disks: Iterable[uuid.UUID]
) -> tuple[list[Record], BrokerUnregistration]:
    """``controller_disks`` are the directory ids of the quorum's voters."""
    broker_id = request.broker_id
    if broker_id not in image.brokers:
        message = f"broker {broker_id} is not registered"
        return [], BrokerUnregistration(ErrorCode.broker_id_not_registered, message)
    own = {disk.directory_id for disk in image.disks.values() if disk.broker_id == broker_id}
    if own & set(controller_disks):
        message = f"a controller of the cluster lives on broker {broker_id}: `raylog quorum move` moves it first"
        return [], BrokerUnregistration(ErrorCode.invalid_request, message)
    if broker_id in image.planned_controllers:
        message = f"broker {broker_id} shall hold a controller: `raylog quorum move` plans another one first"
        return [], BrokerUnregistration(ErrorCode.invalid_request, message)
    held = [id for node, ids in sorted(image.assigned.items()) if broker_of(node) == broker_id for id in sorted(ids)]
    if held:
        named = ", ".join(f"{image.topics[id.topic_id].name}-{id.partition}" for id in held[:5])
        more = f" and {len(held) - 5} more" if len(held) > 5 else ""
        message = f"broker {broker_id} still holds {named}{more}; `raylog brokers remove {broker_id}` moves them first"
        return [], BrokerUnregistration(ErrorCode.invalid_request, message)
    return [BrokerUnregistered(broker_id)], BrokerUnregistration()


def places(image: MetadataImage, failed: Collection[uuid.UUID] = ()) -> tuple[list[BrokerPlaces], list[BrokerPlaces]]:
    """The brokers with disks: those that are up, and those that are down. ``failed`` are the disks
    that are offline.

    A broker is down if its Broker actor is dead, or if it has server actors and all of them are;
    one that is being drained, or without a disk that works, counts as down.
    """
    alive: dict[int, list[bool]] = {}
    down = set()
    for node_id, actor in sorted(image.actors.items()):
        alive.setdefault(broker_of(node_id), []).append(actor.alive)
        if slot_of(node_id) == BROKER_SLOT and not actor.alive:
            down.add(broker_of(node_id))
    down |= image.draining | image.leaving.keys()
    down |= {broker_id for broker_id, states in alive.items() if not any(states)}
    result: tuple[list[BrokerPlaces], list[BrokerPlaces]] = ([], [])
    for broker_id, broker in sorted(image.brokers.items()):
        directory_ids = tuple(disk.directory_id for disk in image.disks_of(broker_id))
        working = tuple(each for each in directory_ids if each not in failed)
        if working and broker_id not in down:
            result[0].append(BrokerPlaces(broker_id, broker.rack, working))
        elif directory_ids:
            result[1].append(BrokerPlaces(broker_id, broker.rack, directory_ids))
    return result
