"""Faults to be patched into what a Broker does for Kafka's clients, by name, as in ``mutations``; hunted in the runs with clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.listener import coordinators, fan_out
from raylog.listener.fetch_sessions import Fetching, FetchSessions
from raylog.listener.owners import _Link
from raylog.listener.routes import Routes
from raylog.metadata.image_copy import ImageCopy

Mutation = Callable[[pytest.MonkeyPatch], None]


def fold_no_decision_behind_the_first_image(patch: pytest.MonkeyPatch) -> None:
    """The Broker answers for ever from what it was greeted with."""
    fold = ImageCopy.fold

    def stale(self: ImageCopy, frame: Any) -> bool:
        return (frame.begins or self.image is None) and fold(self, frame)

    patch.setattr(ImageCopy, "fold", stale)


def begin_no_new_image(patch: pytest.MonkeyPatch) -> None:
    """The image of a new session is applied on top of the old copy: what was deleted meanwhile comes back."""
    fold = ImageCopy.fold

    def on_top(self: ImageCopy, frame: Any) -> bool:
        return fold(self, replace(frame, begins=frame.begins and self.image is None))

    patch.setattr(ImageCopy, "fold", on_top)


def keep_what_a_session_forgot(patch: pytest.MonkeyPatch) -> None:
    begin = FetchSessions.begin

    def remembering(
        self: FetchSessions, version: int, id: int, epoch: int, asked: Any, forgotten: Any, now: int
    ) -> Any:
        return begin(self, version, id, epoch, asked, (), now)

    patch.setattr(FetchSessions, "begin", remembering)


def keep_a_sessions_first_offsets(patch: pytest.MonkeyPatch) -> None:
    """What the client asks anew for a partition that the session has is ignored."""
    begin = FetchSessions.begin

    def first(self: FetchSessions, version: int, id: int, epoch: int, asked: Any, forgotten: Any, now: int) -> Any:
        session = self._sessions.get(id)
        known = session.partitions if session is not None and epoch > 0 else {}
        return begin(self, version, id, epoch, [each for each in asked if each[0] not in known], forgotten, now)

    patch.setattr(FetchSessions, "begin", first)


def leave_out_records_below_the_told_end(patch: pytest.MonkeyPatch) -> None:
    """A partition is news in a session only if its end has moved, though more of its records may be read."""
    answered = FetchSessions.answered

    def quiet(self: FetchSessions, fetching: Fetching, results: Any) -> Any:
        before = (
            {key: each.high_watermark for key, each in fetching.session.partitions.items()} if fetching.session else {}
        )
        news = answered(self, fetching, results)
        return {key: each for key, each in news.items() if before.get(key, -1) != each.high_watermark}

    patch.setattr(FetchSessions, "answered", quiet)


def acknowledge_what_a_lost_leader_was_sent(patch: pytest.MonkeyPatch) -> None:
    """A connection to a leader ends with a Produce under way, and the client is told that all is well."""
    refuse = fan_out._GatheredAnswers._refuse

    def welcome(self: Any, spot: Any, elsewhere: Any) -> None:
        lost = elsewhere.error is ErrorCode.not_leader_or_follower and self._body.__class__.__name__ == "ProduceRequest"
        refuse(self, spot, replace(elsewhere, error=ErrorCode.none) if lost else elsewhere)

    patch.setattr(fan_out._GatheredAnswers, "_refuse", welcome)


def ask_any_process_for_a_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinators, "partition_for", lambda group_id: 0)


def remember_leaders_that_are_gone(patch: pytest.MonkeyPatch) -> None:
    """The first owner that was found for a partition is taken for good."""
    leader_of = Routes.leader_of
    patch.setattr(
        Routes,
        "leader_of",
        lambda self, topic, number: self.__dict__.setdefault("_first", {}).setdefault(
            (topic, number), leader_of(self, topic, number)
        ),
    )


def never_open_a_broken_connection_again(patch: pytest.MonkeyPatch) -> None:
    """What goes to a process whose connection has broken waits for it."""
    wait = _Link._wait

    def patient(self: Any, waiting: Any) -> None:
        if self.__dict__.setdefault("_was_open", False):
            self._waiting.append(waiting)
            return
        self._was_open = True
        wait(self, waiting)

    patch.setattr(_Link, "_wait", patient)


BROKER_MUTATIONS: dict[str, Mutation] = {
    each.__name__: each
    for each in (
        fold_no_decision_behind_the_first_image,
        begin_no_new_image,
        keep_what_a_session_forgot,
        keep_a_sessions_first_offsets,
        leave_out_records_below_the_told_end,
        acknowledge_what_a_lost_leader_was_sent,
        ask_any_process_for_a_group,
        remember_leaders_that_are_gone,
        never_open_a_broken_connection_again,
    )
}
