"""Which broker each disk belongs to, and which disks hold a new cluster's metadata. Pure: what
nodes say of their disks comes in.

A Ray node with disks is one broker: its disks share their machine's fate. Formatted disks name
their broker themselves; a blank one joins the broker of its node, takes the place of a disk that is
gone, or makes a new broker with the lowest free id. It takes a place when it has the path of a disk
of a broker that is away, on the machine where that broker's processes were last: as a Kafka broker
whose disk was replaced comes back under its id. Nodes are taken in the order of their addresses
(then of their folders), so that the ids of a new cluster are those that a person would give.

A new cluster has three controllers where there are three brokers, else one: on the first disk of
each of the lowest broker ids.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raylog.disks.disk import Disk, Reservation
from raylog.errors import ClusterError
from raylog.wire.internal_tls import Secret

CONTROLLERS = 3
"""Of a cluster with at least as many brokers."""


@dataclass(frozen=True, slots=True)
class JoinedDisk:
    """A disk on a live Ray node, as its folder was found. ``disk`` is None while it is blank, as is
    ``proof``: what is proven on the cluster's links from anywhere. ``has_tls``: whether its links have
    TLS, or shall.
    """

    directory_id: uuid.UUID
    path: Path
    node: str  # Ray's id of it
    host: str  # its address
    rack: str | None = None
    disk: Disk | None = None
    reservation: Reservation | None = None
    has_metadata: bool = False
    proof: Secret | None = field(default=None, repr=False)
    has_tls: bool = False

    def is_promised_to(self, cluster_id: str) -> bool:
        """Whether it is blank and was to be formatted when that cluster was founded."""
        return self.disk is None and self.reservation is not None and self.reservation.cluster_id == cluster_id


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """What the active controller knows of a broker. ``hosts``: where its processes were when they
    were last heard of.
    """

    broker_id: int
    is_live: bool = False
    hosts: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()

    def had(self, disk: JoinedDisk) -> bool:
        """Whether a disk of its had that path on that machine."""
        return disk.host in self.hosts and str(disk.path) in self.paths


@dataclass(frozen=True, slots=True)
class Founding:
    """A new cluster: the broker of each disk, and the disks of the first controllers."""

    broker_ids: dict[uuid.UUID, int]
    voters: tuple[uuid.UUID, ...]


def cluster_of(joined: Iterable[JoinedDisk]) -> str | None:
    """The id of the cluster that the formatted disks belong to, None if all are blank; ClusterError
    if there are two.
    """
    clusters: dict[str, JoinedDisk] = {}
    for each in joined:
        if each.disk is not None:
            clusters.setdefault(each.disk.cluster_id, each)
    if len(clusters) > 1:
        named = ", ".join(f"{each.path} on {each.host}: {cluster}" for cluster, each in sorted(clusters.items()))
        raise ClusterError(f"the disks of {len(clusters)} clusters are on this Ray ({named}): keep one cluster's")
    return next(iter(clusters), None)


def unlike_links(joined: Iterable[JoinedDisk]) -> dict[uuid.UUID, str]:
    """Why disks cannot be their cluster's: its links inside have TLS and theirs have none, or the other
    way round. By directory id. The cluster has what most of its disks have, and TLS where it is half
    of them; disks count when they are formatted, or else as they are.
    """
    disks = sorted(joined, key=lambda each: (_address_key(each.host), str(each.path)))
    counting = [each for each in disks if each.disk is not None] or disks
    with_tls = sum(each.has_tls for each in counting)
    has_tls = 0 < with_tls >= len(counting) - with_tls
    other = next((each for each in counting if each.has_tls == has_tls), None)
    return {
        each.directory_id: (
            f"{each.path} on {each.host} has {'TLS' if each.has_tls else 'no TLS'} on links inside, and "
            f"{other.path} on {other.host} has {'it' if has_tls else 'none'}: give every node the same "
            "security.inter.broker.protocol by --config of `raylog node resources` or `raylog node lend`"
        )
        for each in disks
        if other is not None and each.has_tls != has_tls
    }


def found(joined: Sequence[JoinedDisk], controllers: int | None = None) -> Founding:
    """A cluster of these blank disks. ClusterError if there are fewer brokers than ``controllers``."""
    broker_ids = assign_brokers(joined, known=())
    brokers: dict[int, uuid.UUID] = {}
    for each in _in_order(joined):
        brokers.setdefault(broker_ids[each.directory_id], each.directory_id)
    count = controllers or (CONTROLLERS if len(brokers) >= CONTROLLERS else 1)
    if count > len(brokers):
        raise ClusterError(f"{count} controllers need as many nodes with disks, there are {len(brokers)}")
    return Founding(broker_ids, tuple(brokers[broker_id] for broker_id in sorted(brokers)[:count]))


def assign_brokers(joined: Sequence[JoinedDisk], *, known: Iterable[KnownBroker]) -> dict[uuid.UUID, int]:
    """The broker id of each blank disk, by directory id. ``known``: every registered broker, also
    those that are away.

    A disk is left out while it is too early to tell: another one that was in its place counts as
    joined, or its broker as live, still.
    """
    of_node: dict[str, int] = {}
    for each in joined:
        if each.disk is not None:
            of_node[each.node] = min(each.disk.broker_id, of_node.get(each.node, each.disk.broker_id))
    here = {each.disk.broker_id for each in joined if each.disk is not None}
    absent = [broker for broker in known if broker.broker_id not in here]
    used = {*here, *(broker.broker_id for broker in absent)}
    for each in _in_order(joined):
        before = [broker for broker in absent if broker.had(each)]
        if each.disk is None and each.node not in of_node and len(before) == 1:
            of_node[each.node] = before[0].broker_id
    waiting = {broker.broker_id for broker in absent if broker.is_live}
    occupied = {(each.host, each.path) for each in joined if each.disk is not None}
    assigned = {}
    for each in _in_order(joined):
        if each.disk is not None or (each.host, each.path) in occupied:
            continue
        if each.node not in of_node:
            of_node[each.node] = next(number for number in range(len(used) + 1) if number not in used)
            used.add(of_node[each.node])
        if of_node[each.node] not in waiting:
            assigned[each.directory_id] = of_node[each.node]
    return assigned


def rack_of(blank: JoinedDisk, joined: Iterable[JoinedDisk]) -> str | None:
    """The rack of a blank disk's broker: what was reserved, what its node says, else that of
    another disk of its node.
    """
    reserved = blank.reservation.rack if blank.reservation is not None else None
    others = (each.disk.rack for each in joined if each.node == blank.node and each.disk is not None and each.disk.rack)
    return reserved or blank.rack or next(others, None)


def _in_order(joined: Iterable[JoinedDisk]) -> list[JoinedDisk]:
    disks = sorted(joined, key=lambda each: (_address_key(each.host), str(each.path), each.directory_id))
    first: dict[str, int] = {}
    for place, each in enumerate(disks):
        first.setdefault(each.node, place)
    return sorted(disks, key=lambda each: first[each.node])  # a node's disks stay together


def _address_key(host: str) -> tuple[int, int, str]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return (9, 0, host)
    return (address.version, int(address), host)
