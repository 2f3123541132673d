"""Faults to be patched into the control session of server actors, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.control.control_session import (
    Beat,
    ControlSession,
    Deliver,
    FrameArrived,
    SayHello,
    SendOnLink,
    SessionChanged,
    SessionState,
    StatusNews,
)

Mutation = Callable[[pytest.MonkeyPatch], None]


def heed_a_link_of_the_past(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlSession, "_is_present", lambda self, link: self.endpoint is not None)


def accept_frames_of_a_link_of_the_past(patch: pytest.MonkeyPatch) -> None:
    handle = ControlSession.handle

    def trusting(self: ControlSession, event: Any, now_ms: int) -> Any:
        return handle(self, replace(event, link=self.link) if isinstance(event, FrameArrived) else event, now_ms)

    patch.setattr(ControlSession, "handle", trusting)


def say_hello_over_the_first_link_alone(patch: pytest.MonkeyPatch) -> None:
    """A lost session is opened again without a hello."""
    opened = ControlSession._opened

    def silent(self: ControlSession, now_ms: int) -> Any:
        return [each for each in opened(self, now_ms) if self.link == 1 or not isinstance(each, SayHello)]

    patch.setattr(ControlSession, "_opened", silent)


def never_reread_the_controllers(patch: pytest.MonkeyPatch) -> None:
    """The first addresses are taken for good: a controller that comes back elsewhere has to summon."""
    read = ControlSession._read

    def remembered(self: ControlSession, controllers: Any, now_ms: int) -> Any:
        return read(self, self._controllers or controllers, now_ms)

    patch.setattr(ControlSession, "_read", remembered)


def deliver_the_welcome_before_the_session_begins(patch: pytest.MonkeyPatch) -> None:
    received = ControlSession._received

    def hasty(self: ControlSession, frame: Any, now_ms: int) -> Any:
        return sorted(received(self, frame, now_ms), key=lambda effect: not isinstance(effect, Deliver))

    patch.setattr(ControlSession, "_received", hasty)


def begin_the_session_with_the_hello(patch: pytest.MonkeyPatch) -> None:
    """Before anybody has said that he is the active controller."""
    opened, welcomed = ControlSession._opened, ControlSession._welcomed

    def begun(self: ControlSession, now_ms: int) -> Any:
        return [*opened(self, now_ms), SessionChanged(True)]

    def nothing_new(self: ControlSession, *arguments: Any) -> Any:
        return [each for each in welcomed(self, *arguments) if not isinstance(each, SessionChanged)]

    patch.setattr(ControlSession, "_opened", begun)
    patch.setattr(ControlSession, "_welcomed", nothing_new)


def hide_the_end_of_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlSession, "_ended", lambda self, reason: [])


def send_news_before_the_hello(patch: pytest.MonkeyPatch) -> None:
    handle = ControlSession.handle

    def eager(self: ControlSession, event: Any, now_ms: int) -> Any:
        if isinstance(event, StatusNews) and self.state is SessionState.OPENING:
            return [SendOnLink(self.link, event.frame)]
        return handle(self, event, now_ms)

    patch.setattr(ControlSession, "handle", eager)


def follow_a_summons_of_the_past(patch: pytest.MonkeyPatch) -> None:
    """A former controller that wakes up takes its servers back."""
    summoned = ControlSession._summoned

    def credulous(self: ControlSession, controller_epoch: int, endpoint: Any) -> Any:
        self._epochs.highest_epoch = min(self._epochs.highest_epoch, controller_epoch)
        return summoned(self, controller_epoch, endpoint)

    patch.setattr(ControlSession, "_summoned", credulous)


def send_no_second_heartbeat(patch: pytest.MonkeyPatch) -> None:
    tick = ControlSession.tick

    def mute(self: ControlSession, now_ms: int) -> Any:
        return [each for each in tick(self, now_ms) if not isinstance(each, Beat)]

    patch.setattr(ControlSession, "tick", mute)


SESSION_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        heed_a_link_of_the_past,
        accept_frames_of_a_link_of_the_past,
        say_hello_over_the_first_link_alone,
        never_reread_the_controllers,
        deliver_the_welcome_before_the_session_begins,
        begin_the_session_with_the_hello,
        hide_the_end_of_a_session,
        send_news_before_the_hello,
        follow_a_summons_of_the_past,
        send_no_second_heartbeat,
    )
}
