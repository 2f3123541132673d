"""The actors' classes: each a plain server and the few lines that make it an actor.
(``ray_classes`` makes Ray's of them.)

``__init__`` only stores its arguments (an ``__init__`` that raises makes an actor dead for good);
``start`` opens the server on the actor's own event loop, which is uvloop's, and returns where it
listens. A server that ends by itself (told to exit, or replaced) ends the process. So does an actor
that nobody has started within ``ABANDONED_AFTER_S``: the controller that created it died before it
could, and the next one knows nothing of it.

Ray wakes the main thread of every worker process a hundred times a second, to ask for signals: four
fifths of the CPU time of a process that has nothing to do. It doesn't while that thread is in a
method. So the servers that nobody calls through Ray once they have joined (all but controllers) run
in a thread of their own, and ``serve``, which never returns, has the main thread from then on.
Signals interrupt it there, and what ends a process from outside (``ray.kill``, the raylet's death)
doesn't need that thread.
"""

from __future__ import annotations

from raylog.actors.import_trimming import spare_imports_in_servers

spare_imports_in_servers()

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import ray

from raylog.actors.survivors import Survivors
from raylog.background_loop import BackgroundLoop
from raylog.server import process_log
from raylog.server.spec import OWN_ADDRESS, ServerSpec, new_incarnation
from raylog.types import Endpoint, broker_of
from raylog.wire.internal_tls import Secret

ABANDONED_AFTER_S = 60.0
RESTARTED_AFTER_S = (
    2.0  # whoever waits for a controller hears why it cannot start, and Ray does not start processes without pause
)


class RayServer(Protocol):
    """What every server class offers."""

    async def start(self) -> Endpoint: ...

    async def stop(self) -> None: ...

    async def ended(self) -> str: ...


class ServerActor:
    """One server in one Ray actor process."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._server: RayServer | None = None
        self._endpoint: Endpoint | None = None
        self._starting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        asyncio.get_running_loop().call_later(ABANDONED_AFTER_S, self._end_if_abandoned)

    def _end_if_abandoned(self) -> None:
        if self._endpoint is not None:
            return
        if self._starting.locked():  # somebody waits for it
            asyncio.get_running_loop().call_later(ABANDONED_AFTER_S, self._end_if_abandoned)
            return
        logging.getLogger("raylog").info("process ends: nobody has started its server")
        os._exit(0)

    def _build(self, spec: ServerSpec) -> RayServer:
        raise NotImplementedError

    async def start(self) -> Endpoint:
        """Open the server once; later calls return the same endpoint. Raises what opening raised."""
        async with self._starting:
            if self._endpoint is None:
                spec = self._spec
                process_log.begin(spec.node_id, spec.cluster_id())
                if spec.host == OWN_ADDRESS:
                    spec = replace(spec, host=ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
                self._server = self._build(spec)
                self._endpoint = await self._server.start()
                Survivors().watch()
                self._watch = asyncio.create_task(self._end_with(self._server))
            return self._endpoint

    async def pid(self) -> int:
        """The process id of this server."""
        return os.getpid()

    async def _end_with(self, server: RayServer) -> None:
        reason = await server.ended()
        logging.getLogger("raylog").info("process ends: %s", reason)
        await self._retire(server, reason)
        os._exit(0)

    async def _retire(self, server: Any, reason: str) -> None:
        """What is left to do on Ray before the process ends."""


class ClusterMember(ServerActor):
    """One server that keeps a session to the active controller, made by ``build``."""

    def __init__(self, spec: ServerSpec, build: Callable[[ServerSpec], RayServer]) -> None:
        super().__init__(spec)
        self._builder = build

    def _build(self, spec: ServerSpec) -> RayServer:
        return self._builder(spec)

    async def joined(self) -> None:
        server: Any = self._server
        await server.joined()


class MemberActor:
    """Runs a ``ClusterMember`` in a thread of its own.

    No method is a coroutine: Ray runs coroutines on the main thread, one after the other.
    """

    def __init__(self, spec: ServerSpec) -> None:
        async def make() -> ClusterMember:
            return ClusterMember(spec, self._build)

        self._background = BackgroundLoop("raylog-server")
        self._member = self._background.run(make())

    def _build(self, spec: ServerSpec) -> RayServer:
        raise NotImplementedError

    def start(self) -> Endpoint:
        """Open the server once; later calls return the same endpoint. Raises what opening raised."""
        return self._background.run(self._member.start())

    def joined(self) -> None:
        """Wait until the server, which was started, has had its first session. The last call that
        is answered: ``serve`` follows.

        It is the actor's own call: a controller that had it under way could not be ended by a
        signal before the actor has ended.
        """
        self._background.run(self._member.joined())
        me: Any = ray.get_runtime_context().current_actor
        me.serve.remote()

    def pid(self) -> int:
        """The process id of this server."""
        return os.getpid()

    def serve(self) -> None:
        """Keep the main thread for as long as the process lives: no later call is answered, and Ray
        wakes it no more.
        """
        self._background.thread.join()


class PartitionReplicaActor(MemberActor):
    """A host: holds the replicas that the controller assigns to one node id."""

    def _build(self, spec: ServerSpec) -> RayServer:
        from raylog.actors.malloc_settings import keep_freed_memory
        from raylog.server.replica_server import ReplicaServer

        keep_freed_memory()
        return ReplicaServer(spec)


class CoordinatorActor(PartitionReplicaActor):
    """Holds the replicas of internal topics on one disk, and so runs the groups of those that it
    leads.
    """


class BrokerActor(MemberActor):
    """Holds a broker's disk lock, speaks for the broker, and has the listener for Kafka clients."""

    def _build(self, spec: ServerSpec) -> RayServer:
        from raylog.actors.malloc_settings import keep_freed_memory
        from raylog.actors.ray_metrics import metrics_pushes
        from raylog.actors.ray_notices import node_is_leaving
        from raylog.placement.ray_private import clusters_token
        from raylog.server.broker_server import BrokerServer

        keep_freed_memory()
        pushes = metrics_pushes(broker_of(spec.node_id), spec.cluster_id(), os.environ)
        return BrokerServer(spec, node_is_leaving=node_is_leaving, ray_token=clusters_token(), metrics_pushes=pushes)


class ControllerActor(ServerActor):
    """Runs the controller; Ray restarts it, and each restart is a new incarnation."""

    def __init__(self, spec: ServerSpec) -> None:
        super().__init__(replace(spec, incarnation=new_incarnation()))
        self._launcher: Any = None
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Start the controller. One that cannot start, as on a disk that fails, leaves its place to
        the process that Ray starts next.
        """
        try:
            await self.start()
        except Exception as error:
            logger = logging.getLogger("raylog")
            logger.error("the controller cannot start, another process tries in %g s: %s", RESTARTED_AFTER_S, error)
            await asyncio.sleep(RESTARTED_AFTER_S)
            if self._endpoint is None:
                os._exit(1)

    async def _retire(self, server: Any, reason: str) -> None:
        from raylog.actors.ray_launcher import leave, retire
        from raylog.control.session import SHUT_DOWN
        from raylog.server.controller_server import RETIRED

        if reason == SHUT_DOWN:
            await asyncio.to_thread(retire, server.directory_ids(), self._launcher.waiting())
        elif reason == RETIRED:
            await asyncio.to_thread(leave, self._launcher.waiting())

    async def credentials(self) -> tuple[str, list[Endpoint], Secret]:
        """What a client inside this Ray needs: cluster id, the controllers' addresses, the own
        first, secret, with what TLS needs where links inside have it.

        Inside Ray everyone is trusted.
        """
        own = await self.start()
        disk = self._spec.open_disk()
        return disk.cluster_id, [own, *(each for each in disk.controllers if each != own)], disk.link_secret

    def _build(self, spec: ServerSpec) -> RayServer:
        from raylog.actors.ray_launcher import RayLauncher
        from raylog.server.controller_server import ControllerServer

        self._launcher = RayLauncher(self._spec.host)
        return ControllerServer(spec, launcher=self._launcher)
