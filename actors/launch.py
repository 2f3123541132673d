"""Starts a cluster's controllers on Ray, from a process of its own: ``python -m
raylog.actors.launch`` with JSON on its input.

Server actors must outlive the driver that asked for them and inherit nothing of it: neither its
``working_dir``, which Ray deletes with the driver's job, nor ``uv run``'s wrapping of the
interpreter. An actor inherits its creator's job, so the creator is this short-lived process, a job
without a runtime environment. It makes the placement groups of the disks, creates the controllers
that are not there, each pinned to its disk, waits until they listen, and prints one line of JSON:
``{"controllers": [[host, port], …]}`` or ``{"error": …}``. Before that it prints a line
``{"progress": [processes up, controllers that listen, how far the processes are], "words": …}``
whenever one of these numbers rises.

Input: ``{"ray_address", "offers_token", "disks": [folder, …], "controller_disks": [folder, …],
"host", "timeout_s"}``. Or, for a cluster whose brokers are Ray nodes, ``{"ray_address",
"offers_token", "provisioner": {"expected": disks, "controllers": 1, 3, 5 or null, "configs": {…}},
"console_port": a port or null, "timeout_s"}``: then it starts the provisioner, which does all that,
and the console on the head, and prints ``{"provisioner": …}``, how things stand. ``offers_token``:
the Ray takes the token that this machine has. It is an error if nothing has moved for ``timeout_s``
seconds.
"""

from __future__ import annotations

if __name__ == "__main__":
    from raylog.actors.import_trimming import spare_imports

    spare_imports()

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from raylog.actors.ray_launcher import controller_of, ensure_controller
from raylog.disks.disk import open_disk
from raylog.errors import ClusterError, RaylogError
from raylog.placement.groups import advertised_disks, ensure_group
from raylog.placement.local_ray import coming_up
from raylog.placement.ray_private import offer_token
from raylog.placement.resources import NAMESPACE
from raylog.starting import Effort, Patience
from raylog.types import Endpoint

PROCESS_ANSWER_S = 2.0
POLL_S = 0.25


def launch(order: dict[str, Any]) -> dict[str, Any]:
    """Make what the order names exist; idempotent. Returns what is printed."""
    if order["offers_token"]:
        offer_token()
    ray.init(
        address=order["ray_address"],
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    if "provisioner" in order:
        from raylog.actors.console_actor import ensure_console
        from raylog.actors.provisioner import ensure_provisioner

        status = ensure_provisioner(**order["provisioner"], timeout_s=order["timeout_s"])
        if order["console_port"] is not None:
            status["console"] = ensure_console(order["console_port"], timeout_s=order["timeout_s"])
        return {"provisioner": status}
    return {"controllers": [[each.host, each.port] for each in _launch_controllers(order)]}


def _launch_controllers(order: dict[str, Any]) -> list[Endpoint]:
    offered = advertised_disks()
    for path in order["disks"]:
        disk = open_disk(Path(path))
        if disk.directory_id in offered:
            ensure_group(disk.directory_id)
    homes = [open_disk(Path(path)) for path in order["controller_disks"]]
    actors = [ensure_controller(home.cluster_id, controller_of(home, order["host"])) for home in homes]
    effort = Effort(lambda: coming_up(order["ray_address"]))
    return _await_started(order["controller_disks"], actors, Patience(order["timeout_s"]), effort)


def _await_started(
    paths: Sequence[str], actors: Sequence[Any], patience: Patience, effort: Callable[[], int]
) -> list[Endpoint]:
    """Where they listen, once all do. Prints a line whenever something has moved."""
    starting = [actor.start.remote() for actor in actors]
    coming_up = [actor.pid.remote() for actor in actors]
    while True:
        ready, late = ray.wait(
            [*starting, *coming_up], num_returns=2 * len(actors), timeout=min(POLL_S, patience.left_s)
        )
        listening = sum(each in ready for each in starting)
        up = sum(each in ready for each in coming_up)
        moved = up, listening, effort()
        if patience.saw(moved):
            words = f"{up} of {len(actors)} controller processes are up, {listening} listen"
            print(json.dumps({"progress": moved, "words": words}), flush=True)
        if listening == len(actors):
            endpoints: list[Endpoint] = ray.get(starting)
            return endpoints
        if patience.has_ended:
            slow = [(path, actor) for path, actor, each in zip(paths, actors, starting, strict=True) if each in late]
            raise ClusterError(_why_not_started(slow, patience.still_s))


def _why_not_started(slow: Sequence[tuple[str, Any]], timeout_s: float) -> str:
    """For those whose controllers haven't started in time: by their disks' folders, whether Ray has
    made a process at all.
    """
    asked = {actor.pid.remote(): path for path, actor in slow}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=PROCESS_ANSWER_S)
    found = []
    for each, path in asked.items():
        try:
            state = (
                f"its process {ray.get(each)} is still opening the disk"
                if each in answered
                else "Ray has made no process"
            )
        except ray.exceptions.RayError as error:
            state = str(error).strip().splitlines()[-1]
        found.append(f"that on {path}: {state}")
    return (
        f"nothing has moved for {timeout_s:g} s: a controller has not started ({'; '.join(found)}): see `ray status` and Ray's logs of the "
        "ControllerActor; it goes on starting, and the same call again waits for it"
    )


def main() -> None:
    order = json.load(sys.stdin)
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    try:
        answer = launch(order)
    except RaylogError as error:
        print(json.dumps({"error": str(error)}))
    except ray.exceptions.RayError as error:
        print(json.dumps({"error": f"the controllers could not start on Ray: {error}"}))
    else:
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
