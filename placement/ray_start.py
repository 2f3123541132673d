"""``python -m raylog.placement.ray_start …`` is ``ray …``: workers are set up by ``worker_setup``,
and a node may take its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from raylog.placement import ray_private

SCRIPT = Path(__file__).with_name("worker_setup.py")
NODE_START_TIMEOUT_S = 120.0
NODE_POLL_S = 0.1
ATTEMPTS = 3
GAVE_UP = "The current node timed out during startup"

T = TypeVar("T")


def started(start: Callable[[], T]) -> T:
    """What that returns, which starts a Ray node in this process; tried again where the node did
    not come up.

    A raylet ends when its agent has not told its port after 15 s, as on a busy machine; Ray then
    waits for another 15 s and gives up. Nothing of an attempt that failed is left.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with _nodes_made() as nodes:
            try:
                with patient_start():
                    return start()
            except Exception as error:
                if GAVE_UP not in str(error) or attempt == ATTEMPTS:
                    raise
            for node in nodes:
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    raise AssertionError("unreachable")


@contextmanager
def _nodes_made() -> Iterator[list[Any]]:
    """Ray's nodes that this process makes meanwhile, those that do not come up among them."""
    kind = ray_private.node_class()
    rays_own, made = kind.__init__, []

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(self)
        rays_own(self, *arguments, **options)

    kind.__init__ = init
    try:
        yield made
    finally:
        kind.__init__ = rays_own


@contextmanager
def own_worker_setup() -> Iterator[None]:
    """A Ray that this process starts meanwhile sets workers up by ``worker_setup``."""
    parameters = ray_private.parameters_class()
    rays_own = parameters.update_if_absent

    def update_if_absent(self: Any, **values: Any) -> None:
        rays_own(self, **values | ({"setup_worker_path": str(SCRIPT)} if "setup_worker_path" in values else {}))

    parameters.update_if_absent = update_if_absent
    try:
        yield
    finally:
        parameters.update_if_absent = rays_own


@contextmanager
def patient_start() -> Iterator[None]:
    """A Ray node that this process starts meanwhile has ``NODE_START_TIMEOUT_S`` to come up, as
    long as its raylet lives.

    Ray gives it 30 s, which a busy machine may need. It asks the head for the node, over and over;
    here each of its questions waits for the answer.
    """
    untyped = ray_private.services()
    rays_own = untyped.get_node

    def get_node(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + NODE_START_TIMEOUT_S
        while True:
            try:
                return rays_own(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() >= deadline or not _has_raylet(node_id):
                    raise
            time.sleep(NODE_POLL_S)

    untyped.get_node = get_node
    try:
        yield
    finally:
        untyped.get_node = rays_own


def _has_raylet(node_id: str) -> bool:
    """Whether the raylet of a node that this process starts lives."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and f"--node_id={node_id}" in child.cmdline():
                return True
    return False


def main() -> None:
    with own_worker_setup(), patient_start():
        ray_private.command_line()()


if __name__ == "__main__":
    main()
