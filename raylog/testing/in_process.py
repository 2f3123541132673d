"""A whole cluster in one process, without Ray: the production servers on one event loop in a thread
of their own.

::

    with cluster(brokers=3) as running:
        producer = Producer(running.address)

Controllers, Brokers and replicas are the classes that the Ray actors wrap; only the launcher
differs. A sole controller shares the servers' loop, each of several has a loop and thread of its
own, so that it can be frozen. Data lies in a temporary folder, or in ``folder``, where a later
``cluster`` finds it again. ``crash`` ends one server like a SIGKILL would: sockets break, nothing
is closed cleanly, and the controller starts the server anew. Nobody restarts a controller but
``start_controller``; with several each is named by its broker. The active one starts those that a
plan names, and those that the plan has no more use for leave ``controllers``.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from raylog.client.links.address import ClusterAddress
from raylog.disks.disk import (
    Disk,
    disk_path,
    encode_id,
    format_disk,
    new_id,
    read_disk,
    with_controllers,
    with_same_links,
)
from raylog.disks.link_file import Links
from raylog.disks.quorum_disks import quorum_disks
from raylog.errors import ClusterError, RaylogError
from raylog.server.broker_server import BrokerServer
from raylog.server.controller_server import RETIRED, ControllerServer
from raylog.server.replica_server import ReplicaServer
from raylog.server.spec import ServerSpec, new_incarnation
from raylog.types import BROKER_SLOT, CONTROLLER_SLOT, Endpoint, broker_of, node_id
from raylog.wire.internal_tls import SecretInsideTls
from raylog.wire.listeners import Listeners, plaintext
from raylog.wire.private import RegisterDisks

T = TypeVar("T")
Build = Callable[[ServerSpec], Any]
SUCCEEDED_ENDS_WITHIN_S = 1.0
PATIENCE_S = 180.0
"""How long the cluster may take to get where it is wanted: milliseconds, unless the machine is very
busy.
"""


class InProcessLauncher:
    """Starts servers on a running loop. ``build`` makes the server of a kind; tests replace an
    entry to give it other parts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.build: dict[str, Build] = {
            "replica": ReplicaServer,
            "coordinator": ReplicaServer,
            "broker": self._broker,
        }
        self.servers: dict[int, Any] = {}
        self.listeners = plaintext(Endpoint("127.0.0.1", 0))  # of a Broker that is started for the first time
        self.ray_token: str | None = None  # what Brokers take for the Ray's own
        self._outside: dict[int, Endpoint] = {}  # where Kafka clients reach a Broker, by node
        self._bound: dict[int, Listeners] = {}  # by node
        self._succeeded: list[Any] = []  # by another of their node: a controller that died had begun to start them
        self._is_over = False
        self.fault: Exception | None = None  # of a server that no further try would start
        self.start_home: Callable[[ServerSpec], Endpoint] | None = None  # starts a controller, if it does not run

    def build_replicas(self, build: Build) -> None:
        """Have the hosts of replicas, of users' and of internal topics, made by ``build`` from now
        on.
        """
        self.build |= {"replica": build, "coordinator": build}

    def _broker(self, spec: ServerSpec) -> BrokerServer:
        """Its outside listeners are where ``listeners`` says at first, and where they were when it
        is started again.
        """
        listeners = self._bound.get(spec.node_id) or self.listeners
        return BrokerServer(spec, listeners=listeners, ray_token=self.ray_token)

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint:
        """Called in a thread, as with Ray; returns when the server listens."""

        async def start() -> Endpoint:
            server = self.build[kind](spec)
            endpoint: Endpoint = await server.start()
            if spec.node_id in self.servers:
                self._succeeded.append(self.servers[spec.node_id])
            self.servers[spec.node_id] = server
            if isinstance(server, BrokerServer) and server.advertised_listeners:
                self._bound[spec.node_id] = server.listeners
                if server.advertised is not None:
                    self._outside[spec.node_id] = server.advertised
            if self._is_over:
                await server.stop()
            return endpoint

        try:
            return asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        except (OSError, RaylogError):
            raise  # the controller tries again
        except Exception as error:
            self.fault = error
            raise

    def start_controller(self, cluster_id: str, spec: ServerSpec) -> Endpoint:
        """Called in a thread, as with Ray."""
        assert self.start_home is not None, "these servers have a cluster"
        return self.start_home(spec)

    async def end(self) -> None:
        """Stop all servers, and whichever is being started now."""
        self._is_over = True
        await asyncio.gather(
            *(server.stop() for server in self.servers.values()), *map(_stop_unless_ended, self._succeeded)
        )


async def _stop_unless_ended(server: Any) -> None:
    """A server that was told to make way for its successor stops by itself, unless nobody has told
    it yet.
    """
    over = asyncio.ensure_future(server.ended())
    await asyncio.wait({over}, timeout=SUCCEEDED_ENDS_WITHIN_S)
    if not over.done():
        over.cancel()
        await server.stop()


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def end(self) -> None:
        """Cancel what still runs, and end loop and thread."""

        async def cancel() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


class InProcessCluster:
    """What ``cluster`` yields. ``address`` is what client handles are built from."""

    def __init__(
        self,
        folder: Path,
        brokers: int,
        controllers: int | None = None,
        disks: int = 1,
        racks: Sequence[str] | None = None,
        replica_server: Build | None = None,
        listeners: Listeners | None = None,
        ray_token: str | None = None,
        links: Links | None = None,
    ) -> None:
        self.folder = folder
        self._disks = with_same_links(_format(folder, brokers, disks, racks), links)
        self._homes = {disk.broker_id: disk for disk in quorum_disks(self._disks, controllers)}
        self._servers = LoopThread("raylog-cluster")
        self.loop = self._servers.loop
        self.launcher = InProcessLauncher(self.loop)
        if listeners is not None:
            self.launcher.listeners = listeners
        self.launcher.ray_token = ray_token
        if replica_server is not None:
            self.launcher.build_replicas(replica_server)
        alone = len(self._homes) == 1
        self._loops = {
            broker: self._servers if alone else LoopThread(f"raylog-controller-{broker}") for broker in self._homes
        }
        self.controllers: dict[int, ControllerServer] = {}
        self._starting = threading.Lock()  # one controller at a time; two of a disk would be in each other's way
        self._is_over = False
        self._watches: list[asyncio.Future[None]] = []  # for the controllers' ends
        self.launcher.start_home = self._start_planned
        self.address: ClusterAddress

    @property
    def controller(self) -> ControllerServer:
        """The active controller; without one, any that runs."""
        running = list(self.controllers.values())
        return next((each for each in running if each.is_active), running[0])

    @property
    def active(self) -> int:
        """The broker whose controller is active; -1 without one."""
        return next((broker for broker, each in self.controllers.items() if each.is_active), -1)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
        """Run a coroutine on the servers' loop and wait for it; a sole controller is there, too."""
        return self._servers.run(work, timeout_s)

    def start(self) -> None:
        home = self._disks[0]
        endpoints = [self.start_controller(broker) for broker in self._homes]
        self._disks = [with_controllers(disk, endpoints) for disk in self._disks]
        self.address = ClusterAddress("test", "test", home.cluster_id, tuple(endpoints), _as_it_travels(home))
        self.await_true(lambda: self.active >= 0)
        order = RegisterDisks(tuple(map(_registration, self._disks)))
        self._loops[self.active].run(self.controller.register_disks(order))
        self.await_true(self._brokers_live)
        self.await_true(self._brokers_know_each_other)

    def _brokers_live(self) -> bool:
        """Raises ClusterError if a server has a fault that keeps it from starting."""
        if self.launcher.fault is not None:
            raise ClusterError(f"a server cannot start: {self.launcher.fault!r}") from self.launcher.fault
        return all(node_id(disk.broker_id, BROKER_SLOT) in self.controller.live_nodes() for disk in self._disks)

    def _brokers_know_each_other(self) -> bool:
        """Whether each Broker's answers name all of them: the controller hears of a Broker before
        the others do.
        """
        nodes = {node_id(disk.broker_id, BROKER_SLOT) for disk in self._disks}
        servers = [self.launcher.servers.get(node) for node in nodes]
        images = [server.image for server in servers if isinstance(server, BrokerServer)]
        return all(
            image is not None
            and nodes <= {node for node, actor in image.actors.items() if actor.alive and actor.advertised}
            for image in images
        )

    def start_controller(self, broker: int | None = None) -> Endpoint:
        """Another controller process on the same metadata log, where the last one listened. That
        one must have ended.
        """
        broker = min(self._homes) if broker is None else broker
        home = self._homes[broker]
        spec = ServerSpec(
            node_id(home.broker_id, CONTROLLER_SLOT), home.directory_id, str(home.path), "127.0.0.1", new_incarnation()
        )

        async def controller() -> Endpoint:
            controller = ControllerServer(spec, launcher=self.launcher)
            endpoint = await controller.start()
            self.controllers[broker] = controller
            self._watches.append(asyncio.ensure_future(self._watch(broker, controller)))
            return endpoint

        return self._loops[broker].run(controller())

    async def _watch(self, broker: int, controller: ControllerServer) -> None:
        if await controller.ended() == RETIRED and self.controllers.get(broker) is controller:
            del self.controllers[broker]

    def _start_planned(self, spec: ServerSpec) -> Endpoint:
        broker = broker_of(spec.node_id)
        with self._starting:
            if self._is_over:
                raise ClusterError("the cluster is being stopped")
            if broker in self.controllers:
                return self.controllers[broker]._endpoint
            self._homes[broker] = next(disk for disk in self._disks if disk.directory_id == spec.directory_id)
            if broker not in self._loops:
                self._loops[broker] = LoopThread(f"raylog-controller-{broker}")
            return self.start_controller(broker)

    def stop_controller(self, broker: int | None = None) -> None:
        """End a controller, and nothing else: sessions break, replicas serve on."""
        broker = min(self.controllers) if broker is None else broker
        self._loops[broker].run(self.controllers.pop(broker).stop())

    def crash_controller(self, broker: int) -> None:
        """End a controller as a SIGKILL would."""
        self._loops[broker].run(self.controllers.pop(broker).crash())

    @contextmanager
    def frozen_controller(self, broker: int) -> Iterator[None]:
        """One of several controllers stands still, as SIGSTOP would have it: its connections stay
        open, and it neither reads nor writes.
        """
        assert len(self._loops) > 1, "a sole controller shares the servers' loop"
        still, go_on = threading.Event(), threading.Event()

        def freeze() -> None:
            still.set()
            go_on.wait()

        self._loops[broker].loop.call_soon_threadsafe(freeze)
        still.wait()
        try:
            yield
        finally:
            go_on.set()

    def bootstrap_servers(self, listener: str = "PLAINTEXT") -> str:
        """Where Kafka clients of a listener reach the brokers: what they call ``bootstrap.servers``."""

        async def found() -> list[Endpoint]:
            servers = [self.launcher.servers.get(node_id(disk.broker_id, BROKER_SLOT)) for disk in self._disks]
            told = [each for server in servers if server is not None for each in server.advertised_listeners]
            return [each.endpoint for each in told if each.name == listener]

        return ",".join(str(each) for each in dict.fromkeys(self.run(found())))

    def crash(self, node: int) -> None:
        """End the server of that node id as a SIGKILL would; the controller notices and starts
        another.
        """
        server = self.launcher.servers.pop(node)
        self.run(server.crash())

    def await_true(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Wait until the condition, evaluated on the cluster's loop, holds."""

        async def evaluated() -> bool:
            return condition()

        deadline = time.monotonic() + timeout_s
        while not self.run(evaluated()):
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster did not get there within {timeout_s} s")
            threading.Event().wait(0.005)

    def stop(self) -> None:
        """Close every log cleanly and end the loops."""
        with self._starting:
            self._is_over = True
        ending = [
            asyncio.run_coroutine_threadsafe(controller.stop(), self._loops[broker].loop)
            for broker, controller in sorted(self.controllers.items())
        ]  # all at once: else the last would take over what the first leaves
        for stopped in ending:
            stopped.result(60)
        self.run(self.launcher.end())
        for each in {*self._loops.values(), self._servers}:
            each.end()


@contextmanager
def cluster(
    brokers: int = 3,
    *,
    controllers: int = 1,
    disks: int = 1,
    racks: Sequence[str] | None = None,
    folder: Path | None = None,
    replica_server: Build | None = None,
    listeners: Listeners | None = None,
    ray_token: str | None = None,
    links: Links | None = None,
) -> Iterator[InProcessCluster]:
    """A running cluster of that many logical brokers, of that many disks each, and controllers.
    ``racks``: one per broker.

    ``replica_server`` makes the hosts of replicas, where they shall not be plain
    ``ReplicaServer``s. ``listeners`` are those of each broker: any free port of 127.0.0.1 if none
    are given. ``ray_token``: what Brokers take for the Ray's own. ``links``: the settings of TLS on the
    links inside; None: as the folder has it. At the end it is stopped, and its temporary folder
    deleted.
    """
    home = folder or Path(tempfile.mkdtemp(prefix="raylog-"))
    running = InProcessCluster(home, brokers, controllers, disks, racks, replica_server, listeners, ray_token, links)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _format(folder: Path, brokers: int, disks: int, racks: Sequence[str] | None) -> list[Disk]:
    paths = {disk_path(folder, broker, number): broker for broker in range(brokers) for number in range(disks)}
    found = [disk for disk in map(read_disk, paths) if disk is not None]
    cluster_id = found[0].cluster_id if found else encode_id(new_id())
    secret = found[0].secret if found else secrets.token_urlsafe(32)
    return [
        read_disk(path)
        or format_disk(
            path,
            cluster_id=cluster_id,
            broker_id=broker,
            rack=racks[broker] if racks else None,
            controllers=[],
            secret=secret,
        )
        for path, broker in paths.items()
    ]


def _as_it_travels(disk: Disk) -> bytes | SecretInsideTls:
    secret = disk.link_secret
    return secret.without_files() if isinstance(secret, SecretInsideTls) else secret


def _registration(disk: Disk) -> dict[str, Any]:
    return {
        "directory_id": disk.directory_id.bytes,
        "broker_id": disk.broker_id,
        "path": str(disk.path),
        "host": "127.0.0.1",
        "rack": disk.rack,
    }
