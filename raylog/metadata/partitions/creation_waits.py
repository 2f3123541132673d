"""Requests that created partitions and wait for the leaders (CreateTopics, CreatePartitions).

Owns the parked replies and their deadlines. The reply leaves when every partition that the request
created has a leader: its election is committed and its Assignment is on its way, ahead of the
reply. A request that overtakes the Assignment waits at the leader's process
(``raylog.replication.awaited``). So what is answered without an error serves.

=================================  =================================================================================
the wait ends when                 the answer is
=================================  =================================================================================
every partition has a leader       what was decided
the request's timeout has passed   REQUEST_TIMED_OUT on each topic that lacks a leader, though it is created, as in Kafka; on all of
                                   them where the decision is not even committed
its topic is deleted               what was decided: the topic was created
this controller is deposed         what was decided, where that is committed: another controller would say that the topic exists
=================================  =================================================================================

A timeout of 0 or less waits for the commit alone. Kafka then says REQUEST_TIMED_OUT, too.

Invariants (``check``): a wait that is committed lacks a leader, has a deadline, and is found by
each partition that it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from raylog.metadata.events import SendControllerReply
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import PartitionsCreated, TopicCreation, TopicOutcome, TopicsCreated
from raylog.timers import Timers
from raylog.types import NO_LEADER, TopicIdPartition

CREATION = "creation"
REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value

Created = TopicsCreated | PartitionsCreated


@dataclass(slots=True)
class _Wait:
    """``pending`` maps each partition that is not known to have a leader to its topic's name."""

    reply: Created
    pending: dict[TopicIdPartition, str]
    timeout_ms: int
    is_committed: bool = False


class CreationWaits:
    __slots__ = ("_committed", "_timers", "_waiting", "_waits")

    def __init__(self, committed: MetadataImage, timers: Timers) -> None:
        self._committed = committed
        self._timers = timers
        self._waits: dict[int, _Wait] = {}
        self._waiting: dict[TopicIdPartition, dict[int, None]] = {}  # tokens of committed waits, in order of arrival

    def begin(
        self, token: int, reply: Created, created: dict[TopicIdPartition, str], *, timeout_ms: int, now_ms: int
    ) -> None:
        """A request has created these partitions (each with its topic's name). ``committed`` has to
        follow the commit.
        """
        self._waits[token] = _Wait(reply, dict(created), timeout_ms)
        if timeout_ms > 0:
            self._timers.set((CREATION, token), now_ms + timeout_ms)

    def committed(self, token: int) -> list[SendControllerReply]:
        """The decision is committed: the reply, or none yet."""
        wait = self._waits.get(token)
        if wait is None:
            return []
        wait.is_committed = True
        for id in [id for id in wait.pending if self._is_settled(id)]:
            del wait.pending[id]
        if not wait.pending:
            return self._end(token, wait.reply)
        if wait.timeout_ms <= 0:
            return self._end(token, _timed_out(wait.reply, wait.pending.values()))
        for id in wait.pending:
            self._waiting.setdefault(id, {})[token] = None
        return []

    def changed(self, id: TopicIdPartition) -> list[SendControllerReply]:
        """The committed state of a partition has changed."""
        tokens = self._waiting.get(id)
        if not tokens or not self._is_settled(id):
            return []
        del self._waiting[id]
        replies: list[SendControllerReply] = []
        for token in tokens:
            wait = self._waits[token]
            del wait.pending[id]
            if not wait.pending:
                replies += self._end(token, wait.reply)
        return replies

    def deleted(self, partitions: Iterable[TopicIdPartition]) -> list[SendControllerReply]:
        """These partitions are gone from the committed image."""
        return [reply for id in partitions for reply in self.changed(id)]

    def partitions(self) -> list[TopicIdPartition]:
        """Those that somebody waits for."""
        return sorted(self._waiting)

    def timed_out(self, token: int) -> list[SendControllerReply]:
        wait = self._waits.get(token)
        if wait is None:
            return []
        return self._end(token, _timed_out(wait.reply, wait.pending.values()))

    def forget(self, token: int) -> None:
        """Nobody waits for that answer any more."""
        self._end(token, TopicsCreated(()))

    def deposed(self) -> list[SendControllerReply]:
        """The answers to all whose decision is committed. The others are not known to have been
        carried out.
        """
        replies = []
        for token, wait in sorted(self._waits.items()):
            if wait.is_committed:
                replies += self._end(token, wait.reply)
        return replies

    def _end(self, token: int, reply: Created) -> list[SendControllerReply]:
        wait = self._waits.pop(token, None)
        if wait is None:
            return []
        self._timers.cancel((CREATION, token))
        for id in wait.pending:
            tokens = self._waiting.get(id)
            if tokens is not None:
                tokens.pop(token, None)
                if not tokens:
                    del self._waiting[id]
        return [SendControllerReply(token, reply)]

    def _is_settled(self, id: TopicIdPartition) -> bool:
        state = self._committed.partition(id)
        return state is None or state.leader != NO_LEADER

    def check(self) -> None:
        for token, wait in self._waits.items():
            if not wait.is_committed:
                continue
            assert (CREATION, token) in self._timers, f"creation {token} could wait for ever"
            assert wait.pending, f"creation {token} waits for nothing"
            for id in wait.pending:
                assert token in self._waiting[id] and not self._is_settled(id), (
                    f"creation {token} does not hear of {id}"
                )


def _timed_out(reply: Created, names: Iterable[str]) -> Created:
    late = set(names)
    message = "it is created, but not all of its new partitions had a leader in time"
    if isinstance(reply, TopicsCreated):
        creations = (
            TopicCreation(each.name, REQUEST_TIMED_OUT, message) if each.name in late else each for each in reply.topics
        )
        return replace(reply, topics=tuple(creations))
    outcomes = (
        TopicOutcome(each.name, REQUEST_TIMED_OUT, message) if each.name in late else each for each in reply.topics
    )
    return replace(reply, topics=tuple(outcomes))
