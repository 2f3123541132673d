"""``python -m raylog.placement.ray_start …`` is ``ray …``, but that workers are set up by ``worker_setup``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("worker_setup.py")


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


def main() -> None:
    from ray.scripts import scripts

    untyped: Any = scripts
    with own_worker_setup():
        untyped.main()


if __name__ == "__main__":
    main()
