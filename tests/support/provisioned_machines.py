"""Nodes of the test's own for the provisioner, on real folders, with controllers that are none."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raylog.client.links.address import ClusterAddress
from raylog.disks.disk import Disk, Reservation, read_disk, reserve_disk, with_configs
from raylog.errors import ClusterError, RaylogError
from raylog.metadata.records import StaticSource
from raylog.placement.founding import JoinedDisk, KnownBroker
from raylog.server import disk_work
from raylog.server.disk_work import FolderFound
from raylog.server.provisioner import FormatOrder, QuorumSeen
from raylog.types import Endpoint


def _dotted(configs: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name.replace("_", "."), value) for name, value in configs.items()))


class Machines:
    """Nodes that live in one process. ``fails`` names folders on which the next piece of work of that kind breaks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, JoinedDisk] = {}
        self.fails: set[tuple[str, str]] = set()
        self.registered: dict[uuid.UUID, tuple[int, str]] = {}
        self.paths: dict[int, set[str]] = {}
        self.others: set[int] = set()  # brokers that are registered and away
        self.live: set[int] = set()
        self.lost: dict[uuid.UUID, int] = {}  # voters that nobody reaches, and their brokers
        self.voters: dict[uuid.UUID, int] | None = None  # that are reached; None: those whose controllers run
        self.planned: tuple[int, ...] = ()
        self._homes: dict[uuid.UUID, int] = {}  # disks whose controllers have run, and their brokers
        self.counts: list[int] = []  # of controllers, as they were ordered
        self.running: list[str] = []
        self.has_majority = True
        self.static: dict[StaticSource, dict[str, str]] = {}
        self.work: list[str] = []

    def join(self, name: str, host: str, rack: str | None = None, **configs: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        disk = read_disk(path)
        directory_id = (
            disk.directory_id
            if disk is not None
            else reserve_disk(path, rack=rack, configs=_dotted(configs)).directory_id
        )
        if disk is not None and configs:
            with_configs(disk, _dotted(configs))
        self.nodes[name] = JoinedDisk(directory_id, path, f"node of {name} at {host}", host)
        return path

    def offered(self) -> Mapping[uuid.UUID, JoinedDisk]:
        return {each.directory_id: each for each in self.nodes.values()}

    def _do(self, kind: str, path: Path, work: Any) -> Any:
        self.work.append(kind)
        if (kind, path.name) in self.fails:
            return ClusterError(f"{path.name} broke")
        try:
            return work()
        except RaylogError as error:
            return error

    def look(self, disks: Sequence[JoinedDisk]) -> Mapping[uuid.UUID, FolderFound | Exception]:
        return {
            each.directory_id: self._do(
                "look", each.path, partial(disk_work.look, each.path, each.directory_id, each.host)
            )
            for each in disks
        }

    def promise(
        self, orders: Sequence[FormatOrder], voters: Sequence[uuid.UUID]
    ) -> Mapping[uuid.UUID, Reservation | Exception]:
        return {
            each.joined.directory_id: self._do(
                "promise", each.joined.path, partial(disk_work.promise, each.joined.path, each.reservation, voters)
            )
            for each in orders
        }

    def format(self, orders: Sequence[FormatOrder]) -> Mapping[uuid.UUID, FolderFound | Exception]:
        return {
            each.joined.directory_id: self._do(
                "format",
                each.joined.path,
                partial(
                    disk_work.format_folder,
                    each.joined.path,
                    each.reservation,
                    secret=each.secret,
                    controllers=each.controllers,
                ),
            )
            for each in orders
        }

    def tell(
        self, disks: Sequence[JoinedDisk], controllers: Sequence[Endpoint]
    ) -> Mapping[uuid.UUID, Disk | Exception]:
        return {
            each.directory_id: self._do(
                "tell", each.path, partial(disk_work.tell_controllers, each.path, each.disk.cluster_id, controllers)
            )
            for each in disks
            if each.disk is not None
        }

    def run_controllers(self, homes: Sequence[JoinedDisk]) -> Mapping[uuid.UUID, Endpoint | Exception]:
        self.running = sorted(each.path.name for each in homes)
        self._homes |= {each.directory_id: each.disk.broker_id for each in homes}
        return {each.directory_id: self.endpoint_of(each) for each in homes}

    def known_brokers(self, address: ClusterAddress) -> Sequence[KnownBroker]:
        self._ask(address)
        hosts: dict[int, set[str]] = {each: set() for each in self.others}
        for broker_id, host in self.registered.values():
            hosts.setdefault(broker_id, set()).add(host)
        return [
            KnownBroker(each, each in self.live, frozenset(at), frozenset(self.paths.get(each, ())))
            for each, at in hosts.items()
        ]

    def quorum(self, address: ClusterAddress) -> QuorumSeen | None:
        if not self.has_majority:
            return None
        here = {each.directory_id: each for each in self.nodes.values()}
        voters = self.voters
        if voters is None:  # those that run, and who has gone with nobody in its place
            voters = {
                each: self._homes[each]
                for each in here.keys() & self._homes.keys()
                if here[each].path.name in self.running
            }
            voters |= {
                each: broker
                for each, broker in self._homes.items()
                if each not in here and broker not in voters.values()
            }
        known = {voter: self.endpoint_of(here[voter]) for voter in voters if voter in here}
        return QuorumSeen({**voters, **self.lost}, known, frozenset(self.lost), self.planned)

    def plan_controllers(self, address: ClusterAddress, count: int) -> None:
        self._ask(address)
        self.counts.append(count)
        self.planned = tuple(range(count))

    def endpoint_of(self, joined: JoinedDisk) -> Endpoint:
        return Endpoint(joined.host, 8999 + int(joined.path.name.removeprefix("m")))

    def configure(
        self, address: ClusterAddress, source: StaticSource, configs: Mapping[str, str], *, replaces: bool
    ) -> None:
        self._ask(address)
        self.static[source] = {**({} if replaces else self.static.get(source, {})), **configs}

    def register(self, address: ClusterAddress, disks: Sequence[JoinedDisk]) -> None:
        self._ask(address)
        for each in disks:
            assert each.disk is not None
            self.registered[each.directory_id] = (each.disk.broker_id, each.host)
            self.paths.setdefault(each.disk.broker_id, set()).add(str(each.path))

    def _ask(self, address: ClusterAddress) -> None:
        assert address.bootstrap
        if not self.has_majority:
            raise ClusterError("no controller is active")

    def brokers(self) -> dict[str, int]:
        return {each.path.name: self.registered[each.directory_id][0] for each in self.nodes.values()}
