"""``python -m raylog.placement.ray_start …`` is ``ray …``: workers are set up by ``worker_setup``, and a node may take its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("worker_setup.py")
NODE_START_TIMEOUT_S = 120.0
NODE_POLL_S = 0.1


@contextmanager
def own_worker_setup() -> Iterator[None]:
    """A Ray that this process starts meanwhile sets workers up by ``worker_setup``."""
    from ray._private.parameter import RayParams

    parameters: Any = RayParams
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
    """A Ray node that this process starts meanwhile has ``NODE_START_TIMEOUT_S`` to come up.

    Ray gives it 30 s, which a busy machine may need, and then leaves its processes behind. It asks the head for the node, over and over;
    here each of its questions waits for the answer.
    """
    from ray._private import services

    untyped: Any = services
    rays_own = untyped.get_node

    def get_node(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + NODE_START_TIMEOUT_S
        while True:
            try:
                return rays_own(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(NODE_POLL_S)

    untyped.get_node = get_node
    try:
        yield
    finally:
        untyped.get_node = rays_own


def main() -> None:
    from ray.scripts import scripts

    untyped: Any = scripts
    with own_worker_setup(), patient_start():
        untyped.main()


if __name__ == "__main__":
    main()
