"""The machine of a server actor's control session: what it orders for each event, in each of its states."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable

import pytest

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
    SessionState,
    SessionTimings,
    StatusNews,
    SummonReceived,
)
from raylog.control.session import Exit, FromController, ReplicaFailed, SettingsChanged, Welcome
from raylog.types import Endpoint

A, B, C, D = (Endpoint("127.0.0.1", port) for port in (1, 2, 3, 4))
TIMINGS = SessionTimings(retry_first_ms=10, retry_max_ms=40, open_timeout_ms=200, welcome_timeout_ms=1_000)
NEWS = ReplicaFailed(uuid.UUID(int=2), 0, "the disk broke")
BEAT_MS = 300


def welcome(epoch: int = 1, interval_ms: int = BEAT_MS) -> Welcome:
    return Welcome(epoch, interval_ms, 10 * interval_ms)


class Script:
    """A session under test, at a time that the test sets. Every step checks the invariants."""

    def __init__(self, controllers: Iterable[Endpoint] = (A, B, C), pause_share: float = 1.0) -> None:
        self.now_ms = 1_000
        self.controllers = tuple(controllers)
        self.session = ControlSession(timings=TIMINGS, draw_pause_ms=lambda longest_ms: int(longest_ms * pause_share))

    def does(self, event: SessionEvent) -> list[SessionEffect]:
        effects = self.session.handle(event, self.now_ms)
        self.session.check()
        return effects

    def passes(self, ms: int) -> list[SessionEffect]:
        self.now_ms += ms
        effects = self.session.tick(self.now_ms)
        self.session.check()
        return effects

    def reads(self) -> list[SessionEffect]:
        return self.does(ControllersRead(self.controllers))

    def greets(self) -> int:
        """The link to the first controller is open, and the hello has been said; its number."""
        assert self.session.start() == [ReadControllers()]
        self.reads()
        assert self.does(LinkOpened(1)) == [SayHello(1)]
        return 1

    def joins(self, epoch: int = 1) -> int:
        link = self.greets()
        self.does(FrameArrived(link, welcome(epoch)))
        assert self.session.state is SessionState.WELCOMED
        return link


# ------------------------------------------------------------------ looking for the controller


def test_the_addresses_are_tried_in_their_order_until_one_says_welcome() -> None:
    script = Script()
    assert script.session.start() == [ReadControllers()]
    assert script.reads() == [OpenLink(1, A)]
    assert script.does(LinkLost(1, "nobody listens")) == [OpenLink(2, B)]
    assert script.does(LinkOpened(2)) == [SayHello(2)]
    assert script.does(LinkLost(2, "a standby")) == [OpenLink(3, C)]
    assert script.session.welcomed_at is None
    script.does(LinkOpened(3))
    script.does(FrameArrived(3, welcome()))
    assert script.session.welcomed_at == C


def test_at_the_welcome_the_heartbeat_is_first_then_the_session_then_the_frame() -> None:
    script = Script()
    link = script.greets()
    assert script.does(FrameArrived(link, welcome())) == [Beat(link), SessionChanged(True), Deliver(welcome())]


def test_rounds_without_success_are_spaced_by_a_pause_that_doubles_up_to_the_longest() -> None:
    script = Script([A])
    script.session.start()
    for link, pause_ms in enumerate((10, 20, 40, 40), start=1):
        assert script.reads() == [OpenLink(link, A)]
        assert script.does(LinkLost(link, "nobody listens")) == []
        assert script.session.state is SessionState.PAUSING
        assert script.passes(pause_ms - 1) == []
        assert script.passes(1) == [ReadControllers()], "read anew for each round"


def test_the_pause_is_drawn_by_the_caller() -> None:
    script = Script([A], pause_share=0.5)
    script.session.start()
    script.reads()
    script.does(LinkLost(1, "nobody listens"))
    assert script.session.next_deadline_ms() == script.now_ms + 5


def test_a_session_makes_the_next_pause_short_again() -> None:
    script = Script([A])
    script.session.start()
    script.reads()
    script.does(LinkLost(1, "nobody listens"))
    script.passes(10)
    script.reads()
    script.does(LinkOpened(2))
    script.does(FrameArrived(2, welcome()))
    script.does(LinkLost(2, "reset"))
    script.reads()
    script.does(LinkLost(3, "nobody listens"))
    assert script.session.next_deadline_ms() == script.now_ms + 10


def test_each_round_takes_the_addresses_that_were_read_for_it() -> None:
    script = Script([A])
    script.session.start()
    script.reads()
    script.does(LinkLost(1, "nobody listens"))
    script.passes(10)
    script.controllers = (D,)
    assert script.reads() == [OpenLink(2, D)]


def test_addresses_that_cannot_be_read_any_more_are_those_that_were_read_last() -> None:
    script = Script([A])
    script.session.start()
    script.reads()
    script.does(LinkLost(1, "nobody listens"))
    script.passes(10)
    assert script.does(ControllersRead(None)) == [OpenLink(2, A)]


@pytest.mark.parametrize("controllers", [None, ()])
def test_without_an_address_it_pauses_and_reads_again(controllers: tuple[Endpoint, ...] | None) -> None:
    script = Script()
    script.session.start()
    assert script.does(ControllersRead(controllers)) == []
    assert script.passes(10) == [ReadControllers()]


def test_a_link_that_does_not_open_in_time_is_given_up() -> None:
    script = Script()
    script.session.start()
    script.reads()
    assert script.passes(199) == []
    close, following = script.passes(1)
    assert isinstance(close, CloseLink) and close.link == 1
    assert following == OpenLink(2, B)
    assert script.does(LinkOpened(1)) == [], "it opens after all"


def test_a_controller_that_does_not_answer_the_hello_in_time_is_given_up() -> None:
    script = Script()
    script.greets()
    assert script.passes(999) == []
    close, following = script.passes(1)
    assert isinstance(close, CloseLink) and close.link == 1
    assert following == OpenLink(2, B)


# ------------------------------------------------------------------ the session


def test_heartbeats_follow_each_other_by_the_interval_of_the_welcome() -> None:
    script = Script()
    link = script.joins()
    for _ in range(3):
        assert script.passes(BEAT_MS - 1) == []
        assert script.passes(1) == [Beat(link)]


def test_another_interval_is_kept_from_a_heartbeat_at_once() -> None:
    script = Script()
    link = script.joins()
    changed = SettingsChanged(1, 100, ())
    assert script.does(FrameArrived(link, changed)) == [Beat(link), Deliver(changed)]
    assert script.passes(100) == [Beat(link)]
    assert script.does(FrameArrived(link, changed)) == [Deliver(changed)], "no other interval than before"


def test_news_are_sent_behind_the_hello_and_dropped_without_a_link() -> None:
    script = Script()
    assert script.does(StatusNews(NEWS)) == []
    script.session.start()
    script.reads()
    assert script.does(StatusNews(NEWS)) == [], "the hello will report them"
    script.does(LinkOpened(1))
    assert script.does(StatusNews(NEWS)) == [SendOnLink(1, NEWS)], "they are neither in the hello nor in the Welcome"
    script.does(FrameArrived(1, welcome()))
    assert script.does(StatusNews(NEWS)) == [SendOnLink(1, NEWS)]
    script.does(LinkLost(1, "reset"))
    assert script.does(StatusNews(NEWS)) == []


def test_a_lost_session_is_looked_for_at_once_and_begins_with_a_hello() -> None:
    script = Script()
    link = script.joins()
    assert script.does(LinkLost(link, "reset")) == [SessionChanged(False, "reset"), ReadControllers()]
    assert script.reads() == [OpenLink(2, A)]
    assert script.does(LinkOpened(2)) == [SayHello(2)]
    assert script.does(FrameArrived(2, welcome())) == [Beat(2), SessionChanged(True), Deliver(welcome())]


def test_an_exit_instead_of_a_welcome_is_delivered() -> None:
    script = Script()
    link = script.greets()
    leave = Exit(1, "a newer process has taken over")
    assert script.does(FrameArrived(link, leave)) == [Deliver(leave)]
    assert script.session.state is SessionState.GREETING


def test_a_second_welcome_begins_no_second_session() -> None:
    script = Script()
    link = script.joins()
    assert script.does(FrameArrived(link, welcome(2, 100))) == [Beat(link), Deliver(welcome(2, 100))]


# ------------------------------------------------------------------ links and controllers of the past


def test_whatever_a_link_of_the_past_reports_is_void() -> None:
    script = Script()
    script.greets()
    script.passes(1_000)  # no Welcome: given up
    for event in (LinkOpened(1), LinkLost(1, "reset"), FrameArrived(1, welcome()), FrameArrived(1, Exit(1, "gone"))):
        assert script.does(event) == [], event
    script.does(LinkOpened(2))
    for event in (LinkOpened(1), LinkLost(1, "reset"), FrameArrived(1, welcome()), FrameArrived(1, Exit(1, "gone"))):
        assert script.does(event) == [], event
    assert script.session.state is SessionState.GREETING and script.session.endpoint == B


def test_a_lost_link_is_void_before_the_next_one_is_opened() -> None:
    script = Script([A])
    link = script.joins()
    script.does(LinkLost(link, "reset"))
    for state in (SessionState.READING, SessionState.PAUSING):
        if state is SessionState.PAUSING:
            script.reads()
            script.does(LinkLost(2, "nobody listens"))
        assert script.session.state is state
        assert script.does(FrameArrived(script.session.link, welcome())) == []
        assert script.does(LinkLost(script.session.link, "once more")) == []


def test_a_frame_of_an_older_controller_epoch_ends_the_session() -> None:
    script = Script()
    link = script.joins(epoch=5)
    close, changed, read = script.does(FrameArrived(link, Exit(4, "declared dead")))
    assert close == CloseLink(link, "refused Exit of controller epoch 4 < 5")
    assert isinstance(changed, SessionChanged) and not changed.connected
    assert read == ReadControllers()


def test_a_welcome_of_an_older_epoch_than_known_is_passed_by() -> None:
    script = Script([A, B])
    script.does(SummonReceived(3, A))
    link = script.greets()
    close, following = script.does(FrameArrived(link, welcome(2)))
    assert isinstance(close, CloseLink) and following == OpenLink(2, B)
    assert script.session.highest_epoch == 3


def test_a_frame_before_the_hello_ends_the_link() -> None:
    script = Script()
    script.session.start()
    script.reads()
    close, following = script.does(FrameArrived(1, welcome()))
    assert close == CloseLink(1, "Welcome before the hello") and following == OpenLink(2, B)


# ------------------------------------------------------------------ summons


def test_a_summons_before_the_start_is_followed_first() -> None:
    script = Script()
    assert script.does(SummonReceived(1, C)) == []
    script.session.start()
    assert script.reads() == [OpenLink(1, C)]
    assert script.does(LinkLost(1, "nobody listens")) == [OpenLink(2, A)]
    assert script.does(LinkLost(2, "nobody listens")) == [OpenLink(3, B)]
    assert script.does(LinkLost(3, "nobody listens")) == [], "C has been tried in this round"
    script.passes(10)
    assert script.reads() == [OpenLink(4, A)], "a summons is for one round"


def test_a_summons_of_a_newer_controller_ends_the_session_to_the_older() -> None:
    script = Script()
    link = script.joins(epoch=1)
    close, changed, read = script.does(SummonReceived(2, D))
    assert isinstance(close, CloseLink) and close.link == link
    assert isinstance(changed, SessionChanged) and not changed.connected
    assert read == ReadControllers()
    assert script.reads() == [OpenLink(2, D)]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_summons_interrupts_an_attempt(is_open: bool) -> None:
    script = Script()
    script.session.start()
    script.reads()
    if is_open:
        script.does(LinkOpened(1))
    close, read = script.does(SummonReceived(1, D))
    assert isinstance(close, CloseLink) and close.link == 1 and read == ReadControllers()
    assert script.reads() == [OpenLink(2, D)]


def test_a_summons_ends_a_pause() -> None:
    script = Script([])
    script.session.start()
    script.reads()
    assert script.does(SummonReceived(1, D)) == [ReadControllers()]
    assert script.reads() == [OpenLink(1, D)]


def test_a_summons_waits_until_the_addresses_can_be_read() -> None:
    """Only the disk has the secret. The session pauses meanwhile; it does not read again and again."""
    script = Script([A])
    script.does(SummonReceived(1, D))
    script.session.start()
    assert script.does(ControllersRead(None)) == []
    assert script.session.state is SessionState.PAUSING
    script.passes(10)
    assert script.reads() == [OpenLink(1, D)]


def test_a_summons_of_the_present_or_an_older_controller_changes_nothing() -> None:
    script = Script()
    script.joins(epoch=5)
    assert script.does(SummonReceived(5, D)) == []
    assert script.does(SummonReceived(4, D)) == []
    assert script.session.welcomed_at == A


# ------------------------------------------------------------------ any order of events


class Book:
    """What a session has ordered so far, held against its promises."""

    def __init__(self) -> None:
        self.open: int | None = None
        self.has_hello = False
        self.is_connected = False
        self.reads = 0
        self.tried: set[Endpoint] = set()

    def note(self, event: SessionEvent | None, effects: list[SessionEffect]) -> None:
        if isinstance(event, LinkLost) and event.link == self.open:
            self.open, self.has_hello = None, False
        for effect in effects:
            self._note(event, effect)
        assert self.is_connected <= (self.open is not None), "a session without a link"

    def _note(self, event: SessionEvent | None, effect: SessionEffect) -> None:
        match effect:
            case ReadControllers():
                self.reads += 1
                self.tried.clear()
            case OpenLink(link, endpoint):
                assert self.open is None and endpoint not in self.tried
                self.open, self.has_hello = link, False
                self.tried.add(endpoint)
            case CloseLink(link):
                assert link == self.open
                self.open = None
            case SayHello(link):
                assert link == self.open and not self.has_hello
                self.has_hello = True
            case SendOnLink(link, _):
                assert link == self.open and self.has_hello
            case Beat(link):
                assert link == self.open and self.has_hello
            case SessionChanged(connected):
                assert connected is not self.is_connected
                self.is_connected = connected
            case Deliver(frame):
                assert isinstance(event, FrameArrived) and event.frame is frame and event.link == self.open
                assert self.has_hello and (self.is_connected or isinstance(frame, Exit))


def any_event(script: Script, rng: random.Random) -> SessionEvent:
    """Of the present link or the one before it; what opens was being opened."""
    session = script.session
    link = session.link - (session.link > 0 and rng.random() < 0.3)
    epoch = max(1, session.highest_epoch + rng.choice((-1, 0, 0, 0, 0, 1)))
    frames: list[FromController] = [welcome(epoch), Exit(epoch, "gone")]
    if session.state is SessionState.WELCOMED:
        frames += [SettingsChanged(epoch, 100, ())]
    events: list[SessionEvent] = [
        LinkLost(link, "reset"),
        FrameArrived(link, rng.choice(frames)),
        FrameArrived(link, rng.choice(frames)),
        SummonReceived(epoch, rng.choice((A, B, D))),
        StatusNews(NEWS),
    ]
    if session.state is SessionState.OPENING or link != session.link:
        events += [LinkOpened(link)] * 3
    return rng.choice(events)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_orders_keep_the_promises(seed: int) -> None:
    rng = random.Random(seed)
    script, book = Script([A, B]), Book()
    book.note(None, script.session.start())
    sessions = 0
    for _ in range(500):
        event: SessionEvent | None = None
        if script.session.state is SessionState.READING and rng.random() < 0.8:
            event = ControllersRead(rng.choice([(A, B), (B,), (), None]))
        elif rng.random() < 0.8:
            event = any_event(script, rng)
        effects = script.does(event) if event is not None else script.passes(rng.choice([1, 50, 400, 1_000]))
        sessions += SessionChanged(True) in effects
        book.note(event, effects)
    assert sessions > 0
