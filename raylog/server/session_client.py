"""Carries out what a server actor's ``ControlSession`` orders, with streams, the disk and a timer.

The machine (``raylog.control.control_session``) decides which controller is looked for, when and
for how long. The addresses are those of the disk's ``meta.properties``. If the disk cannot be read
any more, what was read last counts: a Broker whose disk has failed speaks for its others, and a
replica reports that it has failed.

Clients that have lost the controller are told where this session leads (``handlers``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from raylog.control.control_session import (
    Beat,
    CloseLink,
    ControllersRead,
    ControlSession,
    Deliver,
    FrameArrived,
    LinkLost,
    LinkOpened,
    OpenLink,
    ReadControllers,
    SayHello,
    SendOnLink,
    SessionChanged,
    SessionEffect,
    SessionEvent,
    SessionTimings,
    StatusNews,
    SummonReceived,
)
from raylog.control.session import FromActor, FromController, Hello, ReplicaLoad
from raylog.control.session_stream import Frame, SessionStream, open_session
from raylog.disks.disk import Disk, open_disk
from raylog.errors import RaylogError
from raylog.server.driver import Driver, LoopClock
from raylog.server.process_usage import ProcessUsage
from raylog.types import ActorIdentity, Endpoint, broker_of
from raylog.wire.handshake import Peer
from raylog.wire.private import FIND_CONTROLLER, SUMMON, ControllerFound, Summon, Summoned
from raylog.wire.request import Request

logger = logging.getLogger("raylog.session")

UNREACHED_S = 10.0  # so long without any controller is a warning, and twice as long each time after that

TIMINGS = SessionTimings()


class SessionClient:
    """Keeps one session to the active controller for as long as it runs.

    ``hello`` makes the opening frame, ``on_frame`` gets every frame in order. ``on_change`` is
    called when a session begins, after its Welcome, and when it ends. ``loads`` gives the replicas'
    traffic since the last heartbeat. All are called on the loop, and may call ``send``.
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
        self._machine = ControlSession(timings=TIMINGS, draw_pause_ms=_at_least_half)
        machine = self._machine
        self._driver: Driver[SessionEvent, SessionEffect] = Driver(
            LoopClock(),
            step=lambda event, now_ms, wall_ms: machine.handle(event, now_ms),
            tick=lambda now_ms, wall_ms: machine.tick(now_ms),
            next_deadline_ms=machine.next_deadline_ms,
            carry_out=self._carry_out,
        )
        self._opening: asyncio.Task[None] | None = None  # the present link, until it is open
        self._endpoint: Endpoint | None = None  # where the present link leads, or the one before
        self._session: SessionStream | None = None  # over the present link, once that is open
        self._unreached_since: float | None = None  # when the first attempt failed after the last session
        self._tell_after_s = UNREACHED_S
        self._joined = asyncio.Event()  # a controller has said Welcome, once
        self._usage = ProcessUsage()

    def start(self) -> None:
        """Begin to look for the controller."""
        self._driver.carry_out(self._machine.start())

    async def joined(self) -> None:
        """Wait for the first session."""
        await self._joined.wait()

    async def stop(self) -> None:
        """End the session and stop looking."""
        self._driver.stop()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def send(self, frame: FromActor) -> None:
        """Send a frame behind the hello; dropped without a link, because the next hello reports it.

        What happens between hello and Welcome is in neither, so it is sent at once.
        """
        self._handle(StatusNews(frame))

    def controller(self) -> tuple[int, Endpoint] | None:
        """The broker of the active controller, and where that listens; None while there is no
        session.
        """
        endpoint = self._machine.welcomed_at
        if endpoint is None or self._session is None:
            return None
        return broker_of(self._session.peer.node_id), endpoint

    @property
    def controller_endpoint(self) -> Endpoint | None:
        """Where the active controller listens; None while there is no session."""
        found = self.controller()
        return found[1] if found is not None else None

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        """What the listener answers for the session: summons, and clients that look for the
        controller.
        """
        return {FIND_CONTROLLER: self._tell_controller, SUMMON: self._summoned}

    def _tell_controller(self, request: Request) -> None:
        known = self._machine.welcomed_at or Endpoint("", -1)
        request.reply(ControllerFound(known.host, known.port))

    def _summoned(self, request: Request) -> None:
        order: Summon = request.body
        self.summon(order.epoch, Endpoint(order.host, order.port))
        request.reply(Summoned())

    def summon(self, epoch: int, endpoint: Endpoint) -> None:
        """The active controller of that epoch says where it is."""
        self._handle(SummonReceived(epoch, endpoint))

    # ---------------------------------------------------------------- the machine

    def _handle(self, event: SessionEvent) -> None:
        self._driver.handle(event)

    def _carry_out(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            match effect:
                case ReadControllers():
                    self._handle(ControllersRead(self._read_controllers()))
                case OpenLink(link, endpoint):
                    self._endpoint = endpoint
                    self._opening = asyncio.get_running_loop().create_task(self._open(link, endpoint))
                case CloseLink(_, reason):
                    self._close_link(reason)
                case SayHello():
                    self._send(self._hello())
                case SendOnLink(_, frame):
                    self._send(frame)
                case Beat():
                    self._send(self._usage.heartbeat(self._loads()))
                case Deliver(frame):
                    self._on_frame(frame)
                case SessionChanged(connected, reason):
                    self._session_changed(connected, reason)
                case _:
                    assert_never(effect)

    def _session_changed(self, connected: bool, reason: str) -> None:
        if connected:
            self._joined.set()
            if self._unreached_since is not None and self._tell_after_s > UNREACHED_S:
                logger.info("the controller at %s is reached again", self._endpoint)
            self._unreached_since = None
        else:
            logger.info("the session to the controller at %s ended: %s", self._endpoint, reason)
        self._on_change(connected)

    # ---------------------------------------------------------------- disk and link

    def _read_controllers(self) -> tuple[Endpoint, ...] | None:
        try:
            self._read = open_disk(self._disk, cluster_id=self._identity.cluster_id)
        except RaylogError as error:
            logger.error("%s", error)
            return None
        return tuple(self._read.controllers)

    async def _open(self, link: int, endpoint: Endpoint) -> None:
        assert self._read is not None, "the addresses come from the disk"
        try:
            session = await open_session(
                endpoint,
                secret=self._read.link_secret,
                cluster_id=self._identity.cluster_id,
                caller=Peer(self._identity.node_id, self._identity.incarnation),
                on_frame=lambda _, frame: self._received(link, frame),
                on_close=lambda session, reason: self._lost(link, session, reason),
                timeout_ms=TIMINGS.open_timeout_ms // 2,  # for the handshake, and once more for the answer to it
            )
        except (RaylogError, TimeoutError) as error:
            self._not_reached(endpoint, error)
            self._handle(LinkLost(link, str(error)))
            return
        self._opening = None
        if not session.is_open:
            self._handle(LinkLost(link, f"{endpoint} closed the session at once"))
            return
        self._session = session
        self._handle(LinkOpened(link))

    def _not_reached(self, endpoint: Endpoint, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._unreached_since is None:
            self._unreached_since, self._tell_after_s = now_s, UNREACHED_S
        since_s = now_s - self._unreached_since
        level = logging.DEBUG
        if since_s >= self._tell_after_s:
            self._tell_after_s = 2 * since_s + 1
            level = logging.WARNING
        logger.log(level, "no controller is reached for %.0f s; the last one tried is %s: %s", since_s, endpoint, error)

    def _close_link(self, reason: str) -> None:
        logger.info("closing the link to the controller at %s: %s", self._endpoint, reason)
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        session, self._session = self._session, None
        if session is not None:
            session.abort()

    def _send(self, frame: FromActor) -> None:
        if self._session is not None:
            self._session.send(frame)

    def _received(self, link: int, frame: Frame) -> None:
        assert isinstance(frame, FromController), frame
        self._handle(FrameArrived(link, frame))

    def _lost(self, link: int, session: SessionStream, reason: Exception | None) -> None:
        if session is self._session:
            self._session = None
        self._handle(LinkLost(link, str(reason or "the controller closed it")))


def _at_least_half(longest_ms: int) -> int:
    """A pause, so that not all servers that have lost a controller come back at the same moment."""
    return random.randint(longest_ms // 2, longest_ms)
