"""Faults to be patched into the sessions of followers' fetches, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raylog.replication import follower_sessions
from raylog.replication.fetch_streams import FetchStream
from raylog.replication.follower_sessions import FollowerSession, FollowerSessions
from raylog.replication.leader import FollowerProgress

Mutation = Callable[[pytest.MonkeyPatch], None]


def forget_news_that_was_not_sent(patch: pytest.MonkeyPatch) -> None:
    """What did not fit into an answer, or was not enough for one, waits for the next news."""
    patch.setattr(FollowerSession, "told", lambda self, waiting, unsent=(): self.news.clear())


def hear_news_while_a_fetch_waits_only(patch: pytest.MonkeyPatch) -> None:
    hear = FollowerSession.hear
    patch.setattr(FollowerSession, "hear", lambda self, id, waking: hear(self, id, waking) if self.is_parked else None)


def wake_no_fetch_of_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerSession, "hear", lambda self, id, waking: self.news.update({id: None}))


def ask_again_for_what_was_asked(patch: pytest.MonkeyPatch) -> None:
    """The follower names no changes: the leader believes that it has what it had before."""
    patch.setattr(FetchStream, "_changes", lambda self, now_ms: ())


def keep_a_partition_that_has_left(patch: pytest.MonkeyPatch) -> None:
    """The session goes on without partitions that have come, and with those that have gone."""
    patch.setattr(FetchStream, "end_session", lambda self: None)


def take_any_fetch_for_the_next(patch: pytest.MonkeyPatch) -> None:
    """Neither the number of the fetch nor whether the one before is answered counts."""
    patch.setattr(FollowerSessions, "of", lambda self, event: self._sessions.get(event.session_id))


def let_two_sessions_of_a_follower_live(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerSessions, "superseded", lambda self, event: [])


def count_a_quiet_follower_as_lagging(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerProgress, "appended", lambda self, end: None)


def count_once_who_is_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerSession, "note_isr", lambda self, id, *, is_member: None)


def look_at_all_never(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(follower_sessions, "LOOK_MS", 1 << 60)


FOLLOWER_SESSION_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        forget_news_that_was_not_sent,
        hear_news_while_a_fetch_waits_only,
        wake_no_fetch_of_a_session,
        ask_again_for_what_was_asked,
        keep_a_partition_that_has_left,
        take_any_fetch_for_the_next,
        let_two_sessions_of_a_follower_live,
        count_a_quiet_follower_as_lagging,
        count_once_who_is_outside_the_isr,
        look_at_all_never,
    )
}
