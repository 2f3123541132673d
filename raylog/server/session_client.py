"""A server actor's side of the control session: finds the active controller, says hello, keeps the heartbeat.

It looks for the controller at the addresses in its disk's ``meta.properties``, read anew for each round of attempts, because
``raylog up`` and a controller that had to move rewrite them. A standby closes what is opened to it, so the search goes on until one says
Welcome. A lost session is looked for again at once; rounds that fail are spaced by ``RETRY_FIRST_S`` growing to ``RETRY_MAX_S``.

A new active controller summons every process that it knows of: the session is opened there at once, whatever was under way, and one
to a controller of an older epoch is closed. So nothing hangs on a former active controller that was stopped and keeps its connections open.
Frames, and summons, of a controller epoch below the highest seen are refused.
Clients that have lost the controller are told where this session leads (``handlers``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from raylog.control.session import FromActor, FromController, Hello, ReplicaLoad, SettingsChanged, Welcome
from raylog.control.session_frames import ControllerEpochGuard
from raylog.control.session_stream import Frame, Session, open_session
from raylog.disks.disk import Disk, open_disk
from raylog.errors import DisconnectedError, RaylogError
from raylog.server.process_usage import ProcessUsage
from raylog.types import ActorIdentity, Endpoint, broker_of
from raylog.wire.handshake import Peer
from raylog.wire.private import FIND_CONTROLLER, SUMMON, ControllerFound, Summon, Summoned
from raylog.wire.request import Request

logger = logging.getLogger("raylog.session")

RETRY_FIRST_S = 0.01
RETRY_MAX_S = 0.5
OPEN_TIMEOUT_MS = 2_000
WELCOME_TIMEOUT_S = 10.0


class SessionClient:
    """Keeps one session to the active controller for as long as it runs.

    ``hello`` makes the opening frame, ``on_frame`` gets every frame in order, ``on_change`` hears when a session begins (after its
    Welcome) and ends. ``loads`` gives the replicas' traffic since the last heartbeat.
    """

    def __init__(
        self,
        disk: Path,
        identity: ActorIdentity,
        *,
        hello: Callable[[], Hello],
        on_frame: Callable[[FromController], None],
        on_change: Callable[[bool], None] = lambda connected: None,
        loads: Callable[[], tuple[ReplicaLoad, ...]] = tuple,
    ) -> None:
        self._disk = disk
        self._read: Disk | None = None  # as it was read last
        self._identity = identity
        self._hello = hello
        self._on_frame = on_frame
        self._on_change = on_change
        self._loads = loads
        self._session: Session | None = None
        self._endpoint = Endpoint("", -1)  # of the controller at the session's other end
        self._welcomed = False
        self._epochs = ControllerEpochGuard()
        self._joined = asyncio.Event()  # a controller has said Welcome, once
        self._settled = asyncio.Event()  # the session that was opened last has its Welcome, or has ended
        self._lost = asyncio.Event()
        self._summoned_to: Endpoint | None = None
        self._attempt: asyncio.Task[bool] | None = None
        self._task: asyncio.Task[None] | None = None
        self._heart: asyncio.TimerHandle | None = None
        self._heartbeat_interval_s = 0.0  # as the controller said last
        self._usage = ProcessUsage()

    def start(self) -> None:
        """Begin to look for the controller."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def joined(self) -> None:
        """Wait for the first session."""
        await self._joined.wait()

    async def stop(self) -> None:
        """End the session and stop looking."""
        tasks = [task for task in (self._task, self._attempt) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._heart is not None:
            self._heart.cancel()
        if self._session is not None:
            self._session.close()

    def send(self, frame: FromActor) -> None:
        """Send a frame behind the hello; dropped while there is no session, because the next hello says what it said.

        What happens between hello and Welcome is in neither, so it is sent at once.
        """
        if self._session is not None:
            self._session.send(frame)

    def controller(self) -> tuple[int, Endpoint] | None:
        """The broker of the active controller, and where that listens; None while there is no session."""
        if self._session is None or not self._welcomed:
            return None
        return broker_of(self._session.peer.node_id), self._endpoint

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        """What the server's listener answers for the session: the summons of a controller, clients that have lost the controller."""
        return {FIND_CONTROLLER: self._tell_controller, SUMMON: self._summoned}

    def _tell_controller(self, request: Request) -> None:
        known = self._endpoint if self._welcomed else Endpoint("", -1)
        request.reply(ControllerFound(known.host, known.port))

    def _summoned(self, request: Request) -> None:
        order: Summon = request.body
        self.summon(order.epoch, Endpoint(order.host, order.port))
        request.reply(Summoned())

    def summon(self, epoch: int, endpoint: Endpoint) -> None:
        """The active controller of that epoch says where it is."""
        if epoch < self._epochs.highest_epoch or (epoch == self._epochs.highest_epoch and self._welcomed):
            return
        self._epochs.highest_epoch = epoch
        self._summoned_to = endpoint
        if self._attempt is not None:
            self._attempt.cancel()
        if self._session is not None:
            self._session.abort()
            self._closed(self._session, None)

    async def _run(self) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            if await self._find():
                delay_s = RETRY_FIRST_S
                await self._lost.wait()
            elif self._summoned_to is None:
                await self._pause(delay_s)
                delay_s = min(RETRY_MAX_S, delay_s * 2)

    async def _pause(self, delay_s: float) -> None:
        self._attempt = asyncio.get_running_loop().create_task(asyncio.sleep(delay_s, False))
        await asyncio.wait({self._attempt})

    async def _find(self) -> bool:
        """One round; whether it ended in a session that was welcomed, though it may be lost again by now."""
        try:
            disk = self._read = open_disk(self._disk, cluster_id=self._identity.cluster_id)
        except RaylogError as error:
            logger.error("%s", error)
            if self._read is None:
                return False
            disk = (
                self._read
            )  # a Broker whose disk has failed speaks for its others, and a replica says that it has failed
        summoned_to, self._summoned_to = self._summoned_to, None
        endpoints = [summoned_to] if summoned_to is not None else []
        endpoints += [each for each in disk.controllers if each != summoned_to]
        for endpoint in endpoints:
            self._attempt = asyncio.get_running_loop().create_task(self._try(endpoint, disk.secret.encode()))
            try:
                await asyncio.wait({self._attempt})
            finally:
                self._attempt.cancel()
            if self._attempt.cancelled() or self._summoned_to is not None:
                return False
            if self._attempt.result():
                return True
        return False

    async def _try(self, endpoint: Endpoint, secret: bytes) -> bool:
        """Whether the controller there is the active one and has said Welcome."""
        session: Session | None = None
        try:
            session = await self._open(endpoint, secret)
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await self._settled.wait()
        except (RaylogError, TimeoutError) as error:
            logger.debug("no session at %s: %s", endpoint, error)
        finally:
            if session is not None and not self._welcomed:
                session.abort()
                self._closed(session, None)
        return self._welcomed

    async def _open(self, endpoint: Endpoint, secret: bytes) -> Session:
        self._lost.clear()
        self._settled.clear()
        self._welcomed = False
        self._session = None
        session = await open_session(
            endpoint,
            secret=secret,
            cluster_id=self._identity.cluster_id,
            caller=Peer(self._identity.node_id, self._identity.incarnation),
            on_frame=self._received,
            on_close=self._closed,
            timeout_ms=OPEN_TIMEOUT_MS,
        )
        if not session.is_open:
            raise DisconnectedError(f"{endpoint} closed the session at once")
        self._session = session
        self._endpoint = endpoint
        session.send(self._hello())
        return session

    def _received(self, session: Session, frame: Frame) -> None:
        assert isinstance(frame, FromController), frame
        if not self._epochs.accepts(frame):
            logger.warning(
                "refused a %s of controller epoch %d < %d",
                type(frame).__name__,
                frame.controller_epoch,
                self._epochs.highest_epoch,
            )
            session.close()
            return
        if isinstance(frame, Welcome):
            self._welcomed = True
            self._joined.set()
            self._settled.set()
            self._heartbeat_interval_s = frame.heartbeat_interval_ms / 1_000
            self._beat(session)
            self._on_change(True)
        elif isinstance(frame, SettingsChanged) and frame.heartbeat_interval_ms / 1_000 != self._heartbeat_interval_s:
            self._heartbeat_interval_s = frame.heartbeat_interval_ms / 1_000
            if self._heart is not None:
                self._heart.cancel()
            self._beat(session)  # at once: the controller may be patient for less time now
        self._on_frame(frame)

    def _beat(self, session: Session) -> None:
        if session is self._session and session.is_open:
            session.send(self._usage.heartbeat(self._loads()))
            self._heart = asyncio.get_running_loop().call_later(self._heartbeat_interval_s, self._beat, session)

    def _closed(self, session: Session, reason: Exception | None) -> None:
        if session is not self._session:
            return
        self._session = None
        self._settled.set()
        self._lost.set()
        if self._welcomed:
            logger.info("the session to the controller at %s ended%s", self._endpoint, f": {reason}" if reason else "")
            self._welcomed = False
            self._on_change(False)
