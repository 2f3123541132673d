"""The controllers of an embedded cluster: find or start a Ray for them, and have the launcher's
process create them there. From then on the quorum and its plan say where they are, and how many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from raylog.client.sync import call
from raylog.disks.disk import Disk, open_disk, with_controllers
from raylog.errors import ClusterError, KafkaError
from raylog.launcher import LauncherProcess
from raylog.placement.local_ray import coming_up, running_ray
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S, ensure_ray, is_connected
from raylog.readiness import StartingCluster, await_voters
from raylog.starting import Start
from raylog.types import Endpoint
from raylog.wire.private import PlanControllersRequest


def start_controllers(
    disks: list[Disk],
    homes: list[Disk],
    start: Start,
    launcher: LauncherProcess | None,
    *,
    host: str,
    ray_address: str | None,
    log_to_driver: bool,
) -> tuple[bool, list[Endpoint]]:
    """Returns whether it has started a Ray, and where the controllers of the disks ``homes``
    listen.

    With a ``launcher`` the Ray at ``ray_address`` is used as it is; else ``ensure_ray`` finds or
    starts one.
    """
    with contextlib.ExitStack() as ends:
        owns_ray, gcs_address, is_own_ray = False, ray_address or "", launcher is not None
        if launcher is None:
            launcher = ends.enter_context(LauncherProcess(is_loopback=_expects_loopback(ray_address)))
            with start.phase("ray"):
                owns_ray, gcs_address = ensure_ray(
                    _resources(disks),
                    ray_address,
                    log_to_driver=log_to_driver,
                    timeout_s=min(CONNECT_TIMEOUT_S, start.patience.still_s),
                )
        if launcher.is_loopback != gcs_address.startswith("127."):
            launcher = ends.enter_context(LauncherProcess(is_loopback=not launcher.is_loopback))
        start.watch(lambda: coming_up(gcs_address))
        with start.phase("controllers"):
            endpoints = launch(launcher, gcs_address, disks, homes, host, start, is_own_ray=is_own_ray)
    return owns_ray, endpoints


def have_controllers(cluster: StartingCluster, count: int | None, start: Start) -> None:
    """See to it that a cluster that serves has so many controllers, and wait for them; None: as it
    is. ClusterError for more than there are brokers.
    """
    if count is None:
        return
    quorum = cluster.quorum()
    if count != len(quorum["planned"] or quorum["voters"]):
        try:
            call(cluster.address, PlanControllersRequest(count=count), timeout_s=start.patience.still_s)
        except KafkaError as error:
            raise ClusterError(str(error)) from None
    await_voters(cluster, count, start)


def note_controllers(disks: Sequence[Disk], quorum: Mapping[str, Any]) -> tuple[Endpoint, ...]:
    """Write down on these disks where the voters listen, and nobody else, if that is known of all.
    Returns what the first one says.
    """
    voters = [Endpoint.of(each["endpoint"]) for each in quorum["voters"] if each["endpoint"] is not None]
    for disk in disks:
        said = open_disk(disk.path).controllers
        if len(voters) == len(quorum["voters"]) and set(voters) != set(said):
            with_controllers(disk, voters)
    return open_disk(disks[0].path).controllers


def _resources(disks: Sequence[Disk]) -> dict[str, float]:
    from raylog.placement.resources import node_resources

    return {**node_resources(disk.path for disk in disks)}


def launch(
    launcher: LauncherProcess,
    gcs_address: str,
    disks: Sequence[Disk],
    homes: Sequence[Disk],
    host: str,
    start: Start,
    *,
    is_own_ray: bool = False,
) -> list[Endpoint]:
    """Have the launcher's process create the controllers of ``homes``; returns where they listen."""
    order = {
        "ray_address": gcs_address,
        "disks": [str(disk.path) for disk in disks],
        "controller_disks": [str(disk.path) for disk in homes],
        "host": host,
        "timeout_s": start.patience.still_s,
    }
    answer = launcher.carry_out(order, start, is_own_ray=is_own_ray)
    return [Endpoint(host, port) for host, port in answer["controllers"]]


def _expects_loopback(ray_address: str | None) -> bool:
    """Whether the Ray that ``ensure_ray`` is going to find or start listens on the loopback
    interface.
    """
    if is_connected():
        import ray

        return str(ray.get_runtime_context().gcs_address).startswith("127.")
    address = ray_address or running_ray()
    return address in (None, "local") or str(address).startswith("127.")
