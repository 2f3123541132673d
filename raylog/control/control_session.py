"""A server actor's side of the control session, as a machine.

It finds the active controller, says hello, and keeps the heartbeat. Events and the time go in,
effects come out; ``raylog.server.session_client`` carries them out in a real process and the
simulator in a simulated one. The machine knows no sockets, no clock and no files. It numbers the
links that it asks for. What is reported of a link other than the present one is void: a link may
still report when it has been given up.

========  ================================  =======================================================
state     waits for                         leaves to
========  ================================  =======================================================
reading   the controllers' addresses        opening; pausing if there is none
opening   the link to one of them           greeting; the next address, or pausing after the last
greeting  its answer to the hello           welcomed; the next address, or pausing after the last
welcomed  frames, and the next heartbeat    reading, at once, when the link is lost
pausing   the end of the pause              reading
========  ================================  =======================================================

The addresses are read anew for each round of attempts, because ``raylog up`` and a controller that
had to move rewrite them. A standby closes what is opened to it, so the search goes on until one
controller says Welcome. Rounds without success are spaced by a pause that doubles.

A new active controller summons every process that it knows. The machine then opens the link there
at once, whatever was under way, and closes one to a controller of an older epoch. So nothing
depends on a former active controller that was stopped and keeps its connections open. Frames and
summons of a controller epoch below the highest known are refused (TV-25).

A hello reports all that the process holds. Later news are sent over the link. Without a link they
are dropped, because the next hello will report them. At the Welcome the order is: heartbeat,
``SessionChanged``, the Welcome itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from raylog.control.session import FromActor, FromController, SettingsChanged, Welcome
from raylog.control.session_frames import ControllerEpochGuard
from raylog.types import Endpoint


@dataclass(frozen=True, slots=True)
class SessionTimings:
    """How long the machine waits.

    The longest pause after a round without success is ``retry_first_ms``; it doubles each time, up
    to ``retry_max_ms``.
    """

    retry_first_ms: int = 10
    retry_max_ms: int = 500
    open_timeout_ms: int = 4_000
    welcome_timeout_ms: int = 10_000


class SessionState(Enum):
    READING = "reading"
    OPENING = "opening"
    GREETING = "greeting"
    WELCOMED = "welcomed"
    PAUSING = "pausing"


# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class ControllersRead:
    """Where the controllers are, in the order to try them; None: it could not be read."""

    controllers: tuple[Endpoint, ...] | None


@dataclass(frozen=True, slots=True)
class LinkOpened:
    link: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The link could not be opened, or has ended."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class FrameArrived:
    link: int
    frame: FromController


@dataclass(frozen=True, slots=True)
class SummonReceived:
    """The active controller of that epoch says where it is."""

    controller_epoch: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class StatusNews:
    """Something has become of the process that a controller has to know."""

    frame: FromActor


SessionEvent = ControllersRead | LinkOpened | LinkLost | FrameArrived | SummonReceived | StatusNews


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class ReadControllers:
    """Read where the controllers are; ``ControllersRead`` answers it."""


@dataclass(frozen=True, slots=True)
class OpenLink:
    """``LinkOpened`` or ``LinkLost`` answers it, unless ``CloseLink`` comes first."""

    link: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close the link, or stop opening it. What it reports from now on does not matter."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class SayHello:
    """Send a Hello that reports all that the process holds now."""

    link: int


@dataclass(frozen=True, slots=True)
class SendOnLink:
    link: int
    frame: FromActor


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a Heartbeat."""

    link: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the frame to the process."""

    frame: FromController


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A session has begun, after its Welcome, or ended."""

    connected: bool
    reason: str = ""


SessionEffect = ReadControllers | OpenLink | CloseLink | SayHello | SendOnLink | Beat | Deliver | SessionChanged


class ControlSession:
    """One session to the active controller, for as long as the process lives.

    ``draw_pause_ms`` gives a pause between 0 and the longest, which is its argument.
    """

    def __init__(self, *, timings: SessionTimings = SessionTimings(), draw_pause_ms: Callable[[int], int]) -> None:
        assert 0 < timings.retry_first_ms <= timings.retry_max_ms, timings
        self._timings = timings
        self._draw_pause_ms = draw_pause_ms
        self.state = SessionState.READING
        self.link = 0  # the number of the one opened last
        self.endpoint: Endpoint | None = None  # where that leads; None while there is no link
        self._due_ms: int | None = None  # None: only while reading
        self._longest_pause_ms = timings.retry_first_ms
        self._epochs = ControllerEpochGuard()
        self._controllers: tuple[Endpoint, ...] | None = None  # as read last
        self._round: deque[Endpoint] = deque()  # those that this round has not tried yet
        self._summoned_to: Endpoint | None = None  # is tried before all others
        self._heartbeat_interval_ms = 0  # as the controller said last

    @property
    def highest_epoch(self) -> int:
        """Of all controllers that this process has heard of."""
        return self._epochs.highest_epoch

    @property
    def welcomed_at(self) -> Endpoint | None:
        """Where the controller of the session is; None without a session."""
        return self.endpoint if self.state is SessionState.WELCOMED else None

    def next_deadline_ms(self) -> int | None:
        """When ``tick`` has something to do."""
        return self._due_ms

    def start(self) -> list[SessionEffect]:
        """Begin to look for the controller. A summons may have come before."""
        assert self.state is SessionState.READING and not self.link, self
        return [ReadControllers()]

    def handle(self, event: SessionEvent, now_ms: int) -> list[SessionEffect]:
        match event:
            case ControllersRead(controllers):
                return self._read(controllers, now_ms)
            case LinkOpened(link):
                return self._opened(now_ms) if self._is_present(link) else []
            case LinkLost(link, reason):
                return self._lost(reason, now_ms) if self._is_present(link) else []
            case FrameArrived(link, frame):
                return self._received(frame, now_ms) if self._is_present(link) else []
            case SummonReceived(epoch, endpoint):
                return self._summoned(epoch, endpoint)
            case StatusNews(frame):
                return [SendOnLink(self.link, frame)] if self._has_said_hello else []
            case _:
                assert_never(event)

    def tick(self, now_ms: int) -> list[SessionEffect]:
        """The time is ``now_ms``."""
        if self._due_ms is None or now_ms < self._due_ms:
            return []
        state = self.state
        match state:
            case SessionState.OPENING:
                return self._give_up(f"it did not open within {self._timings.open_timeout_ms} ms", now_ms)
            case SessionState.GREETING:
                return self._give_up(f"no Welcome within {self._timings.welcome_timeout_ms} ms", now_ms)
            case SessionState.WELCOMED:
                return self._beat(now_ms)
            case SessionState.PAUSING:
                return self._begin_round()
            case SessionState.READING:
                raise AssertionError(f"reading has no deadline: {self._due_ms}")
            case _:
                assert_never(state)

    def check(self) -> None:
        """The invariants."""
        has_link = self.state in (SessionState.OPENING, SessionState.GREETING, SessionState.WELCOMED)
        assert has_link == (self.endpoint is not None), (self.state, self.endpoint)
        assert (self._due_ms is None) == (self.state is SessionState.READING), (self.state, self._due_ms)
        assert self._longest_pause_ms <= self._timings.retry_max_ms, self._longest_pause_ms
        if self.state is SessionState.WELCOMED:
            assert self._heartbeat_interval_ms > 0 and self._summoned_to is None, self._summoned_to

    # ---------------------------------------------------------------- looking for the controller

    def _begin_round(self) -> list[SessionEffect]:
        self.state = SessionState.READING
        self.endpoint = None
        self._due_ms = None
        return [ReadControllers()]

    def _read(self, controllers: tuple[Endpoint, ...] | None, now_ms: int) -> list[SessionEffect]:
        assert self.state is SessionState.READING, self.state
        if controllers is not None:
            self._controllers = controllers
        if self._controllers is None:
            return self._pause(now_ms)
        first, self._summoned_to = self._summoned_to, None
        others = (each for each in self._controllers if each != first)
        self._round = deque(others if first is None else (first, *others))
        return self._try_next(now_ms)

    def _try_next(self, now_ms: int) -> list[SessionEffect]:
        if not self._round:
            return self._pause(now_ms)
        self.state = SessionState.OPENING
        self.link += 1
        self.endpoint = self._round.popleft()
        self._due_ms = now_ms + self._timings.open_timeout_ms
        return [OpenLink(self.link, self.endpoint)]

    def _pause(self, now_ms: int) -> list[SessionEffect]:
        pause_ms = self._draw_pause_ms(self._longest_pause_ms)
        assert 0 <= pause_ms <= self._longest_pause_ms, (pause_ms, self._longest_pause_ms)
        self.state = SessionState.PAUSING
        self.endpoint = None
        self._due_ms = now_ms + pause_ms
        self._longest_pause_ms = min(2 * self._longest_pause_ms, self._timings.retry_max_ms)
        return []

    def _summoned(self, controller_epoch: int, endpoint: Endpoint) -> list[SessionEffect]:
        known, is_welcomed = self._epochs.highest_epoch, self.state is SessionState.WELCOMED
        if controller_epoch < known or (controller_epoch == known and is_welcomed):
            return []
        self._epochs.highest_epoch = controller_epoch
        self._summoned_to = endpoint
        if self.state is SessionState.READING:
            return []
        effects: list[SessionEffect] = []
        reason = f"the controller of epoch {controller_epoch} summons"
        if self.endpoint is not None:
            effects.append(CloseLink(self.link, reason))
        return effects + self._ended(reason) + self._begin_round()

    # ---------------------------------------------------------------- the link

    def _is_present(self, link: int) -> bool:
        return link == self.link and self.endpoint is not None

    @property
    def _has_said_hello(self) -> bool:
        return self.state in (SessionState.GREETING, SessionState.WELCOMED)

    def _opened(self, now_ms: int) -> list[SessionEffect]:
        assert self.state is SessionState.OPENING, self.state
        self.state = SessionState.GREETING
        self._due_ms = now_ms + self._timings.welcome_timeout_ms
        return [SayHello(self.link)]

    def _give_up(self, reason: str, now_ms: int) -> list[SessionEffect]:
        return [CloseLink(self.link, reason), *self._lost(reason, now_ms)]

    def _lost(self, reason: str, now_ms: int) -> list[SessionEffect]:
        if self.state is SessionState.WELCOMED:
            return self._ended(reason) + self._begin_round()
        return self._try_next(now_ms)

    def _ended(self, reason: str) -> list[SessionEffect]:
        return [SessionChanged(False, reason)] if self.state is SessionState.WELCOMED else []

    def _received(self, frame: FromController, now_ms: int) -> list[SessionEffect]:
        if not self._has_said_hello:
            return self._give_up(f"{type(frame).__name__} before the hello", now_ms)
        if not self._epochs.accepts(frame):
            what = f"{type(frame).__name__} of controller epoch {frame.controller_epoch}"
            return self._give_up(f"refused {what} < {self._epochs.highest_epoch}", now_ms)
        if isinstance(frame, Welcome):
            return [*self._welcomed(frame, now_ms), Deliver(frame)]
        if isinstance(frame, SettingsChanged) and self.state is SessionState.WELCOMED:
            return [*self._change_pace(frame.heartbeat_interval_ms, now_ms), Deliver(frame)]
        return [Deliver(frame)]

    def _welcomed(self, frame: Welcome, now_ms: int) -> list[SessionEffect]:
        was_welcomed = self.state is SessionState.WELCOMED
        self.state = SessionState.WELCOMED
        self._longest_pause_ms = self._timings.retry_first_ms
        self._heartbeat_interval_ms = frame.heartbeat_interval_ms
        return self._beat(now_ms) + ([] if was_welcomed else [SessionChanged(True)])

    def _change_pace(self, interval_ms: int, now_ms: int) -> list[SessionEffect]:
        if interval_ms == self._heartbeat_interval_ms:
            return []
        self._heartbeat_interval_ms = interval_ms
        return self._beat(now_ms)  # at once: the controller may be patient for less time now

    def _beat(self, now_ms: int) -> list[SessionEffect]:
        self._due_ms = now_ms + self._heartbeat_interval_ms
        return [Beat(self.link)]
