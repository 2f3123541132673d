"""The provisioner as a Ray actor: what it has done on nodes are Ray tasks there, and controllers
are Ray actors.

One detached actor per Ray, on the head, restarted by Ray; it begins by itself and keeps nothing. A
task goes to the node that offers the disk (and fails if that node has gone); it needs no CPU. Every
server listens on its own node's address.

Nobody waits for it but ``raylog up`` and a shutdown, which ends it before the controllers end.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from raylog.actors.node_work import cause_of, on_nodes
from raylog.actors.ray_launcher import PROVISIONER_NAME, controller_of, ensure_controller
from raylog.client.links.address import ClusterAddress
from raylog.disks.disk import Disk, Reservation
from raylog.errors import ClusterError, RaylogError
from raylog.metadata.records import StaticSource
from raylog.placement.founding import JoinedDisk, KnownBroker
from raylog.placement.groups import advertised_disks, ensure_group
from raylog.placement.resources import NAMESPACE
from raylog.server import disk_work, process_log
from raylog.server.disk_work import FolderFound
from raylog.server.provisioner import FormatOrder, Provisioner, QuorumSeen, find_quorum, quorum_seen
from raylog.server.spec import OWN_ADDRESS
from raylog.server.start_configs import set_static
from raylog.types import Endpoint
from raylog.wire.private import ClusterStatusRequest, DescribeQuorum, PlanControllersRequest, RegisterDisks

logger = logging.getLogger("raylog.provisioner")

ROUND_S = 1.0
CONTROLLER_START_S = 10.0  # then the round goes on without it
REQUEST_TIMEOUT_S = 10.0
CONTROLLER_ANSWER_S = 2.0
HEAD_RESOURCE = "node:__internal_head__"
HEAD_SHARE = 0.001


class ProvisionerActor:
    """Runs the rounds in a thread of its own for as long as it lives."""

    def __init__(self, expected: int, controllers: int | None) -> None:
        process_log.begin_without_cluster()
        self._provisioner = Provisioner(
            RayNodes(), expected=expected, controllers=controllers, on_cluster=process_log.belong_to
        )
        threading.Thread(target=self._run, name="raylog-provisioner", daemon=True).start()

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            try:
                self._provisioner.round()
            except Exception:
                logger.exception("a round failed")
            time.sleep(max(0.0, ROUND_S - (time.monotonic() - started)))

    def expect(self, expected: int, controllers: int | None, configs: dict[str, str] | None = None) -> None:
        self._provisioner.expect(expected, controllers, configs)

    def status(self) -> dict[str, Any]:
        return self._provisioner.status()

    def stop(self, directory_ids: Sequence[uuid.UUID]) -> bool:
        return self._provisioner.stop(directory_ids)


def ensure_provisioner(
    expected: int, controllers: int | None, configs: dict[str, str] | None, *, timeout_s: float
) -> dict[str, Any]:
    """Start the provisioner of this Ray if there is none, and tell it what is expected; its status.

    ClusterError if it hasn't answered after ``timeout_s`` seconds.
    """
    ray_class: Any = ray.remote(ProvisionerActor)
    actor = ray_class.options(
        name=PROVISIONER_NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        resources={HEAD_RESOURCE: HEAD_SHARE},
        runtime_env={"env_vars": {"RAY_worker_niceness": "0"}},
    ).remote(expected, controllers)
    expecting = actor.expect.remote(expected, controllers, configs)  # an actor's calls are done in order
    try:
        status: dict[str, Any] = ray.get([expecting, actor.status.remote()], timeout=timeout_s)[1]
    except ray.exceptions.GetTimeoutError:
        raise ClusterError(
            f"Ray has not started the provisioner within {timeout_s:g} s: it runs on the head's node; see `ray status` and Ray's logs "
            "of the ProvisionerActor. It goes on starting, and the same command again waits for it"
        ) from None
    return status


class RayNodes:
    """``provisioner.Nodes`` on Ray."""

    def __init__(self) -> None:
        self._starting: dict[uuid.UUID, Any] = {}
        self._endpoints: dict[uuid.UUID, Endpoint] = {}

    def offered(self) -> dict[uuid.UUID, JoinedDisk]:
        return {
            directory_id: JoinedDisk(directory_id, each.path, each.ray_node_id, each.node_ip, each.rack)
            for directory_id, each in advertised_disks().items()
            if each.path is not None
        }

    def look(self, disks: Sequence[JoinedDisk]) -> dict[uuid.UUID, FolderFound | Exception]:
        return _on_nodes([(each, partial(disk_work.look, each.path, each.directory_id, each.host)) for each in disks])

    def promise(
        self, orders: Sequence[FormatOrder], voters: Sequence[uuid.UUID]
    ) -> dict[uuid.UUID, Reservation | Exception]:
        return _on_nodes(
            [
                (each.joined, partial(disk_work.promise, each.joined.path, each.reservation, tuple(voters)))
                for each in orders
            ]
        )

    def format(self, orders: Sequence[FormatOrder]) -> dict[uuid.UUID, FolderFound | Exception]:
        return _on_nodes(
            [
                (
                    each.joined,
                    partial(
                        disk_work.format_folder,
                        each.joined.path,
                        each.reservation,
                        secret=each.secret,
                        controllers=each.controllers,
                    ),
                )
                for each in orders
            ]
        )

    def tell(self, disks: Sequence[JoinedDisk], controllers: Sequence[Endpoint]) -> dict[uuid.UUID, Disk | Exception]:
        return _on_nodes(
            [
                (each, partial(disk_work.tell_controllers, each.path, each.disk.cluster_id, tuple(controllers)))
                for each in disks
                if each.disk is not None
            ]
        )

    def run_controllers(self, homes: Sequence[JoinedDisk]) -> dict[uuid.UUID, Endpoint | Exception]:
        found: dict[uuid.UUID, Endpoint | Exception] = {}
        for home in homes:
            if home.directory_id not in self._starting and home.disk is not None:
                try:
                    ensure_group(home.directory_id)
                    # A method of an older Ray does not hold its actor.
                    controller = ensure_controller(home.disk.cluster_id, controller_of(home.disk, OWN_ADDRESS))
                    self._starting[home.directory_id] = controller.start.remote()
                except (RaylogError, ray.exceptions.RayError) as error:
                    found[home.directory_id] = error
        is_known = all(home.directory_id in self._endpoints for home in homes)
        wait_s = ROUND_S if is_known else CONTROLLER_START_S
        ready, _ = ray.wait(list(self._starting.values()), num_returns=len(self._starting), timeout=wait_s)
        for directory_id, asked in list(self._starting.items()):
            if asked in ready:
                del self._starting[directory_id]
                try:
                    self._endpoints[directory_id] = ray.get(asked)
                except (RaylogError, ray.exceptions.RayError) as error:
                    found[directory_id] = cause_of(error)
        here = {home.directory_id for home in homes}
        return {**{each: at for each, at in self._endpoints.items() if each in here}, **found}

    def known_brokers(self, address: ClusterAddress) -> list[KnownBroker]:
        from raylog.client.sync import call  # not at the top: whoever starts the actor does without what it imports

        status = call(address, ClusterStatusRequest(), timeout_s=REQUEST_TIMEOUT_S).status
        hosts: dict[int, set[str]] = {}
        for actor in status["actors"]:
            if actor["endpoint"] is not None:
                hosts.setdefault(actor["broker"], set()).add(actor["endpoint"].rpartition(":")[0])
        return [
            KnownBroker(each["id"], each["live"], frozenset(hosts.get(each["id"], ())), frozenset(each["disks"]))
            for each in status["brokers"]
        ]

    def quorum(self, address: ClusterAddress) -> QuorumSeen | None:
        from raylog.client.sync import call

        def ask(endpoint: Endpoint) -> Mapping[str, Any] | None:
            asked = replace(address, bootstrap=(endpoint,))
            try:
                told: Mapping[str, Any] = call(asked, DescribeQuorum(), timeout_s=CONTROLLER_ANSWER_S).quorum
            except RaylogError as error:
                logger.debug("no controller at %s: %s", endpoint, error)
                return None
            return told

        quorum = find_quorum(ask, address.bootstrap)
        return quorum_seen(quorum) if quorum is not None else None

    def plan_controllers(self, address: ClusterAddress, count: int) -> None:
        from raylog.client.sync import call

        call(address, PlanControllersRequest(count=count), timeout_s=REQUEST_TIMEOUT_S)

    def configure(
        self, address: ClusterAddress, source: StaticSource, configs: Mapping[str, str], *, replaces: bool
    ) -> None:
        set_static(address, configs, source=source, replaces=replaces, timeout_s=REQUEST_TIMEOUT_S)

    def register(self, address: ClusterAddress, disks: Sequence[JoinedDisk]) -> None:
        from raylog.client.sync import call

        for each in disks:
            ensure_group(each.directory_id)
        asked = tuple(_registration(each, each.disk) for each in disks if each.disk is not None)
        call(address, RegisterDisks(asked), timeout_s=REQUEST_TIMEOUT_S)


def _registration(joined: JoinedDisk, disk: Disk) -> dict[str, Any]:
    return {
        "directory_id": disk.directory_id.bytes,
        "broker_id": disk.broker_id,
        "path": str(joined.path),
        "host": joined.host,
        "rack": disk.rack,
    }


def _on_nodes(work: Sequence[tuple[JoinedDisk, Callable[[], Any]]]) -> dict[uuid.UUID, Any]:
    """Each piece of work on its disk's node, all at once; what it returned or raised."""
    done = on_nodes([(joined.node, piece) for joined, piece in work])
    return {joined.directory_id: each for (joined, _), each in zip(work, done, strict=True)}
