"""A broker's own process: it holds the locks of the broker's disks, tries them out, and says by its session that the broker is there.

It starts on one of the disks; the controller tells it of the others. A disk that fails later is reported and does not end it.

The listener for Kafka clients will live here. Until then its listener answers the handshake and the summons of a new active controller,
which is how a controller sees whether the process lives, and tells clients that have lost the controller where it is.
It also watches for the notice that its node is about to be taken away, and passes it on to the controller.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from raylog.actors.disk_watch import DiskWatch
from raylog.actors.patience import once_unlocked
from raylog.actors.session_client import SessionClient
from raylog.actors.spec import ServerSpec
from raylog.metadata.session import BrokerDisks, DisksChecked, Exit, FromController, Hello, NodeLeaving
from raylog.placement.disks import DiskLock, boot_id, lock_disk
from raylog.types import Endpoint
from raylog.wire.server import Server

logger = logging.getLogger("raylog.broker")

NOTICE_POLL_S = 0.3  # leaders have left within a second of the notice


class BrokerServer:
    """One broker: ``start`` takes its disk and joins the cluster, ``ended`` returns why it is over."""

    def __init__(self, spec: ServerSpec, *, node_is_leaving: Callable[[], bool] | None = None) -> None:
        """``node_is_leaving`` says whether this process's node is about to go; it may block, and is called in a thread."""
        self._spec = spec
        self._ask_notice = node_is_leaving
        self._is_leaving = False
        self._watch: asyncio.Task[None] | None = None
        self._disk = spec.open_disk()
        self._identity = spec.identity(self._disk)
        self._lock: DiskLock | None = None
        self._disks = DiskWatch(Path(spec.disk), lambda failed: self._session.send(DisksChecked(failed)))
        self._session = SessionClient(
            Path(spec.disk),
            self._identity,
            hello=self._hello,
            on_frame=self._controller_said,
            on_change=self._session_changed,
        )
        self._server = Server(
            self._session.handlers(),
            identity=self._identity,
            secret=self._disk.secret.encode(),
            host=spec.host,
        )

    async def start(self) -> Endpoint:
        """Lock the disk, waiting for a predecessor that is still dying; listen; look for the controller.

        Raises DiskError if another process keeps the disk.
        """
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        path = Path(self._spec.disk)
        self._lock = await asyncio.to_thread(once_unlocked, lambda: lock_disk(path))
        self._endpoint = await self._server.start()
        self._session.start()
        if self._ask_notice is not None:
            self._watch = asyncio.create_task(self._await_notice(self._ask_notice))
        return self._endpoint

    async def joined(self) -> None:
        """Wait until the active controller knows this process."""
        await self._session.joined()

    async def ended(self) -> str:
        """Wait until this server is over of its own; the reason."""
        return await self._over

    async def stop(self, reason: str = "stopped") -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._disks.stop()
        await self._session.stop()
        await self._server.stop()
        if self._lock is not None:
            self._lock.release()
        if not self._over.done():
            self._over.set_result(reason)

    async def crash(self) -> None:
        """End as a SIGKILL would, for clusters in one process."""
        await self._disks.stop()
        await self._session.stop()
        await self._server.stop(grace_s=0)
        if self._lock is not None:
            self._lock.release()

    async def _await_notice(self, node_is_leaving: Callable[[], bool]) -> None:
        """Ask until the answer is yes: there is no way back from it but a new process."""
        while not self._is_leaving:
            try:
                self._is_leaving = await asyncio.to_thread(node_is_leaving)
            except Exception as error:  # whatever Ray raises while its head comes and goes
                logger.debug("cannot ask whether this node is about to go: %s", error)
            await asyncio.sleep(0 if self._is_leaving else NOTICE_POLL_S)
        logger.info("this node is about to be taken away: its leaders move")
        self._session.send(NodeLeaving())

    def _session_changed(self, connected: bool) -> None:
        if connected and self._is_leaving:
            self._session.send(NodeLeaving())

    def _hello(self) -> Hello:
        return Hello(self._identity, self._endpoint, boot_id(), (), self._disk.rack, os.getpid(), self._disks.failed)

    def _controller_said(self, frame: FromController) -> None:
        if isinstance(frame, BrokerDisks):
            self._disks.assign(frame.disks)
        elif isinstance(frame, Exit):
            logger.info("told to exit: %s", frame.reason)
            self._exiting = asyncio.get_running_loop().create_task(self.stop(frame.reason))
