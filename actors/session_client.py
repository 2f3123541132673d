"""A server actor's side of the control session: finds the active controller, says hello, keeps the heartbeat.

It looks for the controller at the addresses in its disk's ``meta.properties``, read anew for each round of attempts, because
``raylog up`` and a controller that had to move rewrite them. A lost session is opened again at once; attempts that fail are spaced by
``RETRY_FIRST_S`` growing to ``RETRY_MAX_S``. Frames of a controller epoch below the highest seen are refused and the session closed.
Clients that have lost the controller are told where this session leads (``tell_controller``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from raylog.errors import RaylogError
from raylog.metadata.session import ActorIdentity, FromActor, FromController, Heartbeat, Hello, Welcome
from raylog.metadata.session_frames import ControllerEpochGuard
from raylog.placement.disks import open_disk
from raylog.types import Endpoint
from raylog.wire.handshake import Peer
from raylog.wire.private import ControllerFound
from raylog.wire.server import Request
from raylog.wire.session import Frame, Session, open_session

logger = logging.getLogger("raylog.session")

RETRY_FIRST_S = 0.01
RETRY_MAX_S = 0.5
OPEN_TIMEOUT_MS = 2_000


class SessionClient:
    """Keeps one session to the active controller for as long as it runs.

    ``hello`` makes the opening frame, ``on_frame`` gets every frame in order, ``on_change`` hears when a session begins (after its
    Welcome) and ends.
    """

    def __init__(
        self,
        disk: Path,
        identity: ActorIdentity,
        *,
        hello: Callable[[], Hello],
        on_frame: Callable[[FromController], None],
        on_change: Callable[[bool], None] = lambda connected: None,
    ) -> None:
        self._disk = disk
        self._identity = identity
        self._hello = hello
        self._on_frame = on_frame
        self._on_change = on_change
        self._session: Session | None = None
        self._endpoint = Endpoint("", -1)  # of the controller at the session's other end
        self._welcomed = False
        self._epochs = ControllerEpochGuard()
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heart: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look for the controller."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the session and stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
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

    def tell_controller(self, request: Request) -> None:
        """Answer a client that has lost the controller (FIND_CONTROLLER)."""
        known = self._endpoint if self._welcomed else Endpoint("", -1)
        request.reply(ControllerFound(known.host, known.port))

    async def _run(self) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            session = await self._find()
            if session is None:
                await asyncio.sleep(delay_s)
                delay_s = min(RETRY_MAX_S, delay_s * 2)
                continue
            delay_s = RETRY_FIRST_S
            await self._lost.wait()

    async def _find(self) -> Session | None:
        try:
            disk = open_disk(self._disk, cluster_id=self._identity.cluster_id)
        except RaylogError as error:
            logger.error("%s", error)
            return None
        for endpoint in disk.controllers:
            try:
                return await self._open(endpoint, disk.secret.encode())
            except RaylogError as error:
                logger.debug("no session at %s: %s", endpoint, error)
        return None

    async def _open(self, endpoint: Endpoint, secret: bytes) -> Session:
        self._lost.clear()
        self._welcomed = False
        session = await open_session(
            endpoint,
            secret=secret,
            cluster_id=self._identity.cluster_id,
            caller=Peer(self._identity.node_id, self._identity.incarnation),
            on_frame=self._received,
            on_close=self._closed,
            timeout_ms=OPEN_TIMEOUT_MS,
        )
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
            self._beat(session, frame.heartbeat_interval_ms / 1_000)
            self._on_change(True)
        self._on_frame(frame)

    def _beat(self, session: Session, interval_s: float) -> None:
        if session is self._session and session.is_open:
            session.send(Heartbeat())
            self._heart = asyncio.get_running_loop().call_later(interval_s, self._beat, session, interval_s)

    def _closed(self, session: Session, reason: Exception | None) -> None:
        if self._session is not None and session is not self._session:
            return
        logger.info("the session to the controller ended%s", f": {reason}" if reason else "")
        self._session = None
        if self._welcomed:
            self._welcomed = False
            self._on_change(False)
        self._lost.set()
