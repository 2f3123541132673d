"""Clients that wait for a leader newer than the one they had (``AwaitLeader``).

Owns the parked requests and their deadlines. A wait ends when a commit brings a live leader of a
newer epoch; when its topic is deleted, with UNKNOWN_TOPIC_OR_PARTITION; or at its deadline, with
whoever leads alive, or LEADER_NOT_AVAILABLE. Whether a leader is alive is asked of the caller.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from raylog.metadata.events import SendControllerReply
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import AwaitLeader, LeaderFound
from raylog.timers import Timers
from raylog.types import NO_LEADER, TopicPartition

AWAIT = "await"


class LeaderWaits:
    __slots__ = ("_committed", "_is_live", "_timers", "_waiting", "_waits")

    def __init__(self, committed: MetadataImage, timers: Timers, is_live: Callable[[int], bool]) -> None:
        self._committed = committed
        self._timers = timers
        self._is_live = is_live
        self._waits: dict[int, AwaitLeader] = {}
        self._waiting: dict[TopicPartition, dict[int, None]] = {}  # tokens in order of arrival

    def ask(self, token: int, request: AwaitLeader, now_ms: int) -> list[SendControllerReply]:
        """The answer, or none yet."""
        answer = self._answer(request, newer_than_epoch=request.newer_than_epoch)
        if answer is None and request.timeout_ms <= 0:
            answer = self._at_deadline(request)
        if answer is not None:
            return [SendControllerReply(token, answer)]
        self._waits[token] = request
        self._waiting.setdefault(TopicPartition(request.topic, request.partition), {})[token] = None
        self._timers.set((AWAIT, token), now_ms + request.timeout_ms)
        return []

    def changed(self, partition: TopicPartition) -> list[SendControllerReply]:
        """The committed state of a partition has changed, or its leader has come to life."""
        replies = []
        for token in list(self._waiting.get(partition, ())):
            request = self._waits[token]
            answer = self._answer(request, newer_than_epoch=request.newer_than_epoch)
            if answer is not None:
                self.forget(token)
                replies.append(SendControllerReply(token, answer))
        return replies

    def topic_deleted(self) -> list[SendControllerReply]:
        """A topic has gone from the committed image: who waits for one that is not there need not
        wait any longer.
        """
        gone = [partition for partition in self._waiting if self._committed.topic_named(partition.topic) is None]
        return [reply for partition in gone for reply in self.changed(partition)]

    def timed_out(self, token: int) -> list[SendControllerReply]:
        request = self._waits.get(token)
        if request is None:
            return []
        self.forget(token)
        return [SendControllerReply(token, self._at_deadline(request))]

    def forget(self, token: int) -> None:
        request = self._waits.pop(token, None)
        if request is not None:
            self._timers.cancel((AWAIT, token))
            key = TopicPartition(request.topic, request.partition)
            del self._waiting[key][token]
            if not self._waiting[key]:
                del self._waiting[key]

    def tokens(self) -> list[int]:
        return sorted(self._waits)

    def _at_deadline(self, request: AwaitLeader) -> LeaderFound:
        answer = self._answer(request, newer_than_epoch=-1)
        return answer if answer is not None else LeaderFound(ErrorCode.leader_not_available)

    def _answer(self, request: AwaitLeader, *, newer_than_epoch: int) -> LeaderFound | None:
        topic = self._committed.topic_named(request.topic)
        state = topic.partitions.get(request.partition) if topic is not None else None
        if topic is None or state is None:
            return LeaderFound(ErrorCode.unknown_topic_or_partition)
        node = state.node_of(state.leader)
        if state.leader == NO_LEADER or state.leader_epoch <= newer_than_epoch or not self._is_live(node):
            return None
        actor = self._committed.actors[node]
        assert actor.incarnation == state.leader_incarnation, f"{actor} does not lead {state}"
        return LeaderFound(ErrorCode.none, node, state.leader_epoch, actor.endpoint, topic.topic_id)

    def check(self) -> None:
        for token, request in self._waits.items():
            assert (AWAIT, token) in self._timers, f"{request} could wait for ever"
