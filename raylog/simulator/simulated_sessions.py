"""The process of a simulated server: its control session, and its accepted connections.

The session is the production machine (``raylog.control.control_session``), which
``raylog.server.session_client`` drives in a real process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

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
from raylog.control.session import (
    AlterPartitionAnswer,
    Assignment,
    Assignments,
    BrokerDisks,
    CopyRatesChanged,
    Exit,
    FromActor,
    FromController,
    Heartbeat,
    Hello,
    ImageChanged,
    Release,
    Removal,
    ReplicaStatus,
    SettingsChanged,
    TopicsNamed,
    Welcome,
)
from raylog.control.session_frames import from_actor, to_frame
from raylog.metadata.partitions.assignment_batches import apart
from raylog.server.driver import Driver
from raylog.simulator.messages import Call, Handshake, HandshakeDone
from raylog.simulator.processes import Machine, Process
from raylog.simulator.scheduler import Timer
from raylog.simulator.session_checker import SessionChecker
from raylog.simulator.simulated_network import End, Link
from raylog.types import ActorIdentity, Endpoint, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What a process is told when it starts."""

    node_id: int
    directory_id: uuid.UUID
    path: str
    incarnation: int


OneSaid = (
    Welcome
    | CopyRatesChanged
    | SettingsChanged
    | BrokerDisks
    | ImageChanged
    | Assignment
    | Removal
    | Release
    | TopicsNamed
    | AlterPartitionAnswer
)
Said = OneSaid | Assignments
"""Many Assignments may be one frame."""


class ProcessClock:
    """The clock of a simulated process, whose timers are late when it is paused, and end with it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        return self._process.now_ms

    def wall_ms(self) -> int:
        return self._process.machine.wall_ms()

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> Timer:
        return self._process.later(delay_ms * 1_000, work, f"{self._process.name} timer")


class ServerProcess(Process):
    """A process with a control session. Subclasses say hello and listen to the controller."""

    def __init__(self, simulation: Simulation, machine: Machine, spec: ActorSpec) -> None:
        super().__init__(f"{machine.name}/{spec.node_id & 0xFFFF}.{spec.incarnation}", machine)
        self.simulation = simulation
        self.spec = spec
        self.identity = ActorIdentity(simulation.cluster_id, spec.node_id, spec.directory_id, spec.incarnation)
        self.endpoint = simulation.network.listen(self, self)
        rng = self.scheduler.rng
        timings = SessionTimings(
            retry_first_ms=5,
            retry_max_ms=300,
            open_timeout_ms=rng.choice((300, 2_000)),
            welcome_timeout_ms=rng.choice((300, 2_000)),
        )
        self.control = ControlSession(
            timings=timings, draw_pause_ms=lambda longest_ms: self.scheduler.between(1, longest_ms)
        )
        self.advertised: Endpoint | None = None  # where clients reach a Broker
        self._checker = SessionChecker(self.name)
        self._driver: Driver[SessionEvent, SessionEffect] = Driver(
            ProcessClock(self),
            step=lambda event, now_ms, wall_ms: self.control.handle(event, now_ms),
            tick=lambda now_ms, wall_ms: self.control.tick(now_ms),
            next_deadline_ms=self.control.next_deadline_ms,
            carry_out=self._carry_out_session,
        )
        self._link: Link | None = None  # to the controller
        self.later(1, lambda: self._driver.carry_out(self.control.start()), "start")

    # ---------------------------------------------------------------- for subclasses

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        return ()

    def unopened(self) -> tuple[TopicIdPartition, ...]:
        return ()

    def session_changed(self, connected: bool) -> None:
        pass

    def controller_said(self, frame: OneSaid) -> None:
        pass

    def accepted(self, link: Link) -> End:
        return ServerEnd(self)

    def serve(self, end: ServerEnd, call: Call) -> bool:
        """False if this server does not answer such requests."""
        return False

    def abandoned(self, token: int) -> None:
        pass

    def exit(self) -> None:
        self.kill()

    def heartbeat(self) -> Heartbeat:
        """What it uses."""
        return self.simulation.scaling.heartbeat(self, [])

    # ---------------------------------------------------------------- the control session

    def send(self, frame: FromActor) -> None:
        """Dropped while there is no link, because the next hello reports it."""
        self.session_event(StatusNews(frame))

    def summoned(self, controller_epoch: int, endpoint: Endpoint) -> None:
        """The active controller of that epoch says where it is."""
        self._checker.summoned(endpoint)
        self.session_event(SummonReceived(controller_epoch, endpoint))

    def session_event(self, event: SessionEvent) -> None:
        self._driver.handle(event)

    def after_work(self) -> None:
        self._checker.settled()
        self.control.check()

    def _carry_out_session(self, effects: list[SessionEffect]) -> None:
        for effect in effects:
            if not self.alive:
                return
            match effect:
                case ReadControllers():
                    self.session_event(ControllersRead(self._read_controllers()))
                case OpenLink(link, endpoint):
                    self._checker.opens(link, endpoint)
                    self._link = self.simulation.network.connect(self, endpoint, SessionEnd(self, link))
                case CloseLink(link, reason):
                    self._close_link(link, reason)
                case SayHello(link):
                    self._checker.says_hello(link)
                    self._send_on_link(self._hello())
                case SendOnLink(link, frame):
                    self._checker.sends(link)
                    # Once in a while as bytes, as on a real link.
                    self._send_on_link(from_actor(to_frame(frame)) if self.scheduler.chance(0.05) else frame)
                case Beat(link):
                    self._checker.sends(link)
                    self._send_on_link(self.heartbeat())
                case Deliver(frame):
                    self._obey(frame)
                case SessionChanged(connected, reason):
                    self._checker.changes(connected)
                    self.simulation.trace(f"{self.name} has {'a' if connected else 'no'} session {reason}")
                    self.session_changed(connected)
                case _:
                    assert_never(effect)

    def _read_controllers(self) -> tuple[Endpoint, ...] | None:
        """Where the controllers are now, in an order of its disk's own; or the disk cannot be read."""
        read = None
        if not self.scheduler.chance(0.02):
            endpoints = self.simulation.controllers.endpoints
            read = tuple(self.scheduler.rng.sample(endpoints, len(endpoints)))
        self._checker.read(read)
        return read

    def _hello(self) -> Hello:
        return Hello(
            self.identity,
            self.endpoint,
            self.machine.boot_id,
            self.statuses(),
            None,
            self.spec.incarnation,
            listener=self.advertised,
            unopened=self.unopened(),
        )

    def _send_on_link(self, frame: FromActor) -> None:
        assert self._link is not None, frame
        self._link.send(self, frame)

    def _close_link(self, number: int, reason: str) -> None:
        """What has been read from a link already arrives even though it is closed."""
        self._checker.gone(number)
        self.simulation.trace(f"{self.name} closes its link to the controller: {reason}")
        link, self._link = self._link, None
        assert link is not None, reason
        if self.scheduler.chance(0.3):
            self.later(self.scheduler.skewed_us(20_000), lambda: link.close(self), f"{self.name} closes late")
        else:
            link.close(self)

    def frame_arrived(self, link: int, frame: Said | Exit) -> None:
        if link != self.control.link:
            self.simulation.counts["frames of former links"] += 1
        elif frame.controller_epoch < self.control.highest_epoch:
            self.simulation.counts["frames of fenced controllers"] += 1
        self._checker.arrives(link, frame)
        self.session_event(FrameArrived(link, frame))

    def link_lost(self, link: int, reason: str) -> None:
        self._checker.gone(link)
        self.session_event(LinkLost(link, reason))

    def _obey(self, frame: FromController) -> None:
        assert isinstance(frame, Said | Exit), frame
        self._checker.obeys(frame)
        self.simulation.checkers.obeyed(self.name, frame.controller_epoch)
        if isinstance(frame, Exit):
            self.simulation.trace(f"{self.name} is told to exit: {frame.reason}")
            self.exit()
        elif isinstance(frame, Assignments):
            for each in apart(frame):
                self.controller_said(each)
        else:
            self.controller_said(frame)


class SessionEnd:
    """The opening half of one link to a controller."""

    __slots__ = ("number", "server")

    def __init__(self, server: ServerProcess, number: int) -> None:
        self.server = server
        self.number = number

    def opened(self, link: Link) -> None:
        self.server.session_event(LinkOpened(self.number))

    def refused(self, link: Link) -> None:
        self.server.link_lost(self.number, "nobody listens")

    def received(self, link: Link, message: object) -> None:
        assert isinstance(message, Said | Exit), message
        self.server.frame_arrived(self.number, message)

    def closed(self, link: Link) -> None:
        self.server.link_lost(self.number, "it was closed")


class ServerEnd:
    """The accepting half of a connection: hands calls to the server, and tells it which of them
    nobody waits for any more.
    """

    __slots__ = ("link", "server", "tokens")

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.link: Link | None = None
        self.tokens: dict[int, None] = {}

    def opened(self, link: Link) -> None:
        raise AssertionError("an accepted link was opened")

    def refused(self, link: Link) -> None:
        raise AssertionError("an accepted link was refused")

    def received(self, link: Link, message: object) -> None:
        self.link = link
        mine = (self.server.spec.node_id, self.server.spec.incarnation)
        match message:
            case Handshake(expect, controller_epoch, controller) if expect == mine:
                link.send(self.server, HandshakeDone())
                self.server.summoned(controller_epoch, controller)
                return
            case Call(_, expect, _) if expect in (None, mine) and self.server.serve(self, message):
                return
        # Meant for somebody who had this port before: the handshake fails.
        link.close(self.server)
        self.closed(link)

    def closed(self, link: Link) -> None:
        tokens, self.tokens = self.tokens, {}
        for token in tokens:
            self.server.abandoned(token)
