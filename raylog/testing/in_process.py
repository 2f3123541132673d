"""A whole cluster in one process, without Ray: the production servers on one event loop in a thread of their own.

::

    with cluster(brokers=3) as running:
        producer = Producer(running.address)

Controller, Brokers and replicas are the classes that the Ray actors wrap; only the launcher differs. Data lies in a temporary
folder, or in ``folder``, where a later ``cluster`` finds it again. ``crash`` ends one server like a SIGKILL would: sockets break,
nothing is closed cleanly, and the controller starts the server anew.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from raylog.actors.broker_server import BrokerServer
from raylog.actors.controller_server import ControllerServer
from raylog.actors.replica_server import ReplicaServer
from raylog.actors.spec import ServerSpec, new_incarnation
from raylog.client.address import ClusterAddress
from raylog.errors import ClusterError
from raylog.placement.disks import Disk, encode_id, format_disk, new_id, read_disk, with_controllers
from raylog.types import CONTROLLER_SLOT, Endpoint, node_id
from raylog.wire.private import RegisterDisks

T = TypeVar("T")
Build = Callable[[ServerSpec], Any]


class InProcessLauncher:
    """Starts servers on a running loop. ``build`` makes the server of a kind; tests replace an entry to give it other parts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.build: dict[str, Build] = {"replica": ReplicaServer, "broker": BrokerServer}
        self.servers: dict[int, Any] = {}

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint:
        """Called in a thread, as with Ray; returns when the server listens."""

        async def start() -> Endpoint:
            server = self.build[kind](spec)
            endpoint: Endpoint = await server.start()
            self.servers[spec.node_id] = server
            return endpoint

        return asyncio.run_coroutine_threadsafe(start(), self._loop).result()


class InProcessCluster:
    """What ``cluster`` yields. ``address`` is what client handles are built from."""

    def __init__(self, folder: Path, brokers: int) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.launcher = InProcessLauncher(self.loop)
        self._thread = threading.Thread(target=self.loop.run_forever, name="raylog-cluster", daemon=True)
        self._thread.start()
        self._disks = _format(folder, brokers)
        self.controller: ControllerServer
        self._has_controller = False
        self.address: ClusterAddress

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 30) -> T:
        """Run a coroutine on the cluster's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def start(self) -> None:
        home = self._disks[0]
        endpoint = self.start_controller()
        self._disks = [with_controllers(disk, [endpoint]) for disk in self._disks]
        self.address = ClusterAddress("test", "test", home.cluster_id, (endpoint,), home.secret.encode())
        self.await_true(lambda: self.controller.is_active)
        self.run(self.controller.register_disks(RegisterDisks(tuple(map(_registration, self._disks)))))
        self.await_true(lambda: all(node_id(disk.broker_id, 0) in self.controller.live_nodes() for disk in self._disks))

    def start_controller(self) -> Endpoint:
        """Another controller process on the same metadata log, where the last one listened. That one must have ended."""
        home = self._disks[0]
        spec = ServerSpec(
            node_id(home.broker_id, CONTROLLER_SLOT), home.directory_id, str(home.path), "127.0.0.1", new_incarnation()
        )

        async def controller() -> Endpoint:
            controller = ControllerServer(spec, launcher=self.launcher)
            endpoint = await controller.start()
            self.controller, self._has_controller = controller, True
            return endpoint

        return self.run(controller())

    def stop_controller(self) -> None:
        """End the controller, and nothing else: sessions break, replicas serve on."""
        self.run(self.controller.stop())

    def crash(self, node: int) -> None:
        """End the server of that node id as a SIGKILL would; the controller notices and starts another."""
        server = self.launcher.servers.pop(node)
        self.run(server.crash())

    def await_true(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        """Wait until the condition, evaluated on the cluster's loop, holds."""

        async def evaluated() -> bool:
            return condition()

        deadline = time.monotonic() + timeout_s
        while not self.run(evaluated()):
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster did not get there within {timeout_s} s")
            threading.Event().wait(0.005)

    def stop(self) -> None:
        """Close every log cleanly and end the loop."""

        async def end() -> None:
            if self._has_controller:
                await self.controller.stop()
            await asyncio.gather(*(server.stop() for server in self.launcher.servers.values()))
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@contextmanager
def cluster(brokers: int = 3, *, folder: Path | None = None) -> Iterator[InProcessCluster]:
    """A running cluster of that many logical brokers; stopped, and its temporary folder deleted, at the end."""
    home = folder or Path(tempfile.mkdtemp(prefix="raylog-"))
    running = InProcessCluster(home, brokers)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _format(folder: Path, brokers: int) -> list[Disk]:
    paths = [folder / f"broker-{broker}" for broker in range(brokers)]
    found = [disk for disk in map(read_disk, paths) if disk is not None]
    cluster_id = found[0].cluster_id if found else encode_id(new_id())
    secret = found[0].secret if found else secrets.token_urlsafe(32)
    return [
        read_disk(path)
        or format_disk(path, cluster_id=cluster_id, broker_id=broker, rack=None, controllers=[], secret=secret)
        for broker, path in enumerate(paths)
    ]


def _registration(disk: Disk) -> dict[str, Any]:
    return {
        "directory_id": disk.directory_id.bytes,
        "broker_id": disk.broker_id,
        "path": str(disk.path),
        "host": "127.0.0.1",
        "rack": disk.rack,
    }
