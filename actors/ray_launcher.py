"""How the controller starts server actors on Ray.

Calls block, so the controller server runs them in threads of their own (``CREATIONS_AT_ONCE``).
With Ray's head away creations wait there, and the controller goes on. An actor is detached, never
restarted by Ray (``max_restarts=0``), pinned into the placement group of its disk, and takes
nothing of a user's runtime environment: its creator is the controller, whose own job has none.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray

from raylog.disks.disk import Disk, encode_id
from raylog.placement.groups import actor_options, advertised_disks, ensure_group, find_group, remove_group
from raylog.placement.resources import NAMESPACE
from raylog.server.spec import ServerSpec
from raylog.types import CONTROLLER_SLOT, Endpoint, node_id

PROVISIONER_NAME = "raylog:provisioner"
CONSOLE_NAME = "raylog:console"
CONTROLLER_PREFIX = "raylog:controller:"
PROVISIONER_PATIENCE_S = 20.0
JOIN_PATIENCE_S = 30.0


def pinned(directory_id: uuid.UUID, *, name: str) -> dict[str, Any]:
    """The options of an actor of that disk: in the disk's group if it ever had one, else pinned to
    this node's address.
    """
    group = find_group(directory_id)
    if group is None and directory_id in advertised_disks():
        group = ensure_group(directory_id)
    if group is not None:
        return actor_options(directory_id, name=name, group=group)
    return actor_options(directory_id, name=name, node_ip=ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def controller_of(home: Disk, host: str) -> ServerSpec:
    """What is started as the controller of that disk."""
    return ServerSpec(node_id(home.broker_id, CONTROLLER_SLOT), home.directory_id, str(home.path), host, 0)


def ensure_controller(cluster_id: str, spec: ServerSpec) -> Any:
    """The controller actor of a disk, made if there is none. Its name begins with the cluster's."""
    from raylog.actors.ray_classes import RAY_CLASSES

    name = f"{CONTROLLER_PREFIX}{cluster_id}:{encode_id(spec.directory_id)}"
    options = pinned(spec.directory_id, name=name)
    return (
        RAY_CLASSES["controller"]
        .options(get_if_exists=True, max_restarts=-1, max_task_retries=-1, **options)
        .remote(replace(spec, incarnation=0))
    )


def leave(waiting: Sequence[Any] = ()) -> None:
    """Called by a retired controller's own actor: end without being restarted. So do the actors in
    ``waiting``, of which no other controller knows; the active one orders what is missing. The
    disk's reservation stays, for its other actors.
    """
    for actor in waiting:
        ray.kill(actor, no_restart=True)
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def retire(directory_ids: Sequence[uuid.UUID], waiting: Sequence[Any] = ()) -> None:
    """Called by a controller's own actor, last of all: give these disks' reservations back but for
    the own, which is the last of them, and end without being restarted. So do the actors in
    ``waiting``, and controllers whose nodes are away.
    """
    _stop_provisioner(directory_ids)
    me = ray.get_runtime_context().current_actor
    for actor in waiting:
        ray.kill(actor, no_restart=True)
    for directory_id in directory_ids[:-1]:
        _end_waiting_controller(directory_id)
        remove_group(directory_id)
    ray.kill(me, no_restart=True)


def _end_waiting_controller(directory_id: uuid.UUID) -> None:
    """Ray would start it again when its node comes back."""
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]
    for name in names:
        if name.startswith(CONTROLLER_PREFIX) and name.endswith(f":{encode_id(directory_id)}"):
            with suppress(ValueError):  # it has just ended
                ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def _stop_provisioner(directory_ids: Sequence[uuid.UUID]) -> None:
    """End the provisioner of the cluster with these disks, if there is one: else it would start
    again what is being shut down. With it ends the console that the head has.
    """
    try:
        provisioner: Any = ray.get_actor(PROVISIONER_NAME, namespace=NAMESPACE)
        if ray.get(provisioner.stop.remote(directory_ids), timeout=PROVISIONER_PATIENCE_S):
            ray.kill(provisioner, no_restart=True)
            with suppress(ValueError):  # there is none
                ray.kill(ray.get_actor(CONSOLE_NAME, namespace=NAMESPACE), no_restart=True)
    except (ValueError, ray.exceptions.RayActorError):
        return  # there is none, or it has just ended
    except ray.exceptions.GetTimeoutError:
        ray.kill(provisioner, no_restart=True)


class RayLauncher:
    """Creates detached server actors. ``host`` is what they listen on: an address, or OWN_ADDRESS
    of each.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._waiting: dict[str, Any] = {}  # actors that Ray has not started yet, by name

    def waiting(self) -> list[Any]:
        """The actors that Ray has found no place for yet: their disk's node is away, or its disk
        was replaced.
        """
        return list(self._waiting.values())

    def start_controller(self, cluster_id: str, spec: ServerSpec) -> Endpoint:
        """See to it that the controller of that disk runs; blocks until it listens. Raises what
        Ray says if it ends before.
        """
        actor = ensure_controller(cluster_id, replace(spec, host=self._host))
        endpoint: Endpoint = ray.get(actor.start.remote())
        return endpoint

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint:
        """Create the actor and wait until it listens and the active controller knows it; raises
        what its opening raised.

        Raises Ray's error if it died before that; afterwards its session tells. It is waited for
        ``JOIN_PATIENCE_S`` to be known. Blocks as long as Ray has no place for the actor: a disk
        whose node is away, a head that is away.
        """
        from raylog.actors.ray_classes import RAY_CLASSES

        name = f"raylog:{encode_id(spec.directory_id)}:{spec.node_id}:{spec.incarnation}"
        spec = replace(spec, host=self._host)
        handle = RAY_CLASSES[kind].options(max_restarts=0, **pinned(spec.directory_id, name=name)).remote(spec)
        self._waiting[name] = handle
        try:
            endpoint: Endpoint = ray.get(handle.start.remote())
        finally:
            del self._waiting[name]
        with suppress(ray.exceptions.GetTimeoutError):
            ray.get(handle.joined.remote(), timeout=JOIN_PATIENCE_S)
        return endpoint
