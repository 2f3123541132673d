"""Requests to the coordinator of a group, or of a transactional id, wherever it is.

The coordinator is the leader of the group's partition of ``__consumer_offsets``, or of the id's
partition of ``__transaction_state``, so it is found as every leader is: in the metadata, and after a
failure by a search for a newer leader epoch, which takes milliseconds (``metadata``). The first
group, or id, of a cluster has the topic created. A connection
that breaks, no answer in time and NOT_COORDINATOR start a search; after the first NOT_COORDINATOR
the same process is asked once more meanwhile, for it may not have heard yet that it leads. One that
says nothing at all is left as soon as another one leads (``silent_leaders``).

``ask`` makes one attempt and gives its error code back, for those who have a machine of their own;
``request`` goes on until the deadline. A client that is let in no more, because its user or its
certificate is gone, is told at once: trying again cannot mend it. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links import requests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import PartitionLeader
from raylog.client.links.silent_leaders import SilentLeaders
from raylog.errors import ClientTimeoutError, RaylogError, SslAuthenticationError, error_for, kafka_error
from raylog.groups.requests import HEARTBEAT_HELD_BACK_MS
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.types import TopicPartition
from raylog.wire.client_security import SaslAuthenticationFailedError
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer

_FIRST_RETRY_S = 0.02
_SEARCH_S = 1.2
AGAIN = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.unstable_offset_commit,
        ErrorCode.concurrent_transactions,
    }
)
_UnknownTopic = kafka_error(ErrorCode.unknown_topic_or_partition)


def whole_error(reply: Any) -> int:
    """The error of a reply that has one for the whole of it."""
    return int(reply.error_code)


class CoordinatorLink:
    """``id``: of a group, or with the topic ``__transaction_state`` a transactional one.
    ``partition``: of ``topic``, where it is not the id that decides. ``node``: who answered last,
    −1 if nobody has.
    """

    def __init__(self, link: ClusterLink, id: str, *, partition: int | None = None, topic: str = OFFSETS_TOPIC) -> None:
        self._link = link
        self.id = id
        self._topic = topic
        self.node = -1
        self.refusal: RaylogError | None = None  # why this client is let in no more
        self._key = TopicPartition(topic, partition) if partition is not None else None
        self._search_ended: asyncio.Event | None = None  # of the search under way
        self._silent = SilentLeaders(link.metadata)
        self._denials = 0  # NOT_COORDINATOR, in a row

    async def ask(
        self, request: Any, *, timeout_ms: float, error_of: Callable[[Any], int] = whole_error
    ) -> tuple[int, Any]:
        """One attempt: the error code and the reply. Where no answer came NETWORK_EXCEPTION or
        COORDINATOR_NOT_AVAILABLE, and None; where this client is let in no more, the code of
        ``refusal``.
        """
        leader: PartitionLeader | None = None
        peer: Peer | None = None
        try:
            leader = await self._leader()
            if leader is None or leader.endpoint is None:
                return ErrorCode.coordinator_not_available.value, None
            connection = await self._link.connections.get(leader.endpoint)
            peer = connection.peer
            reply = await self._watched(connection, leader, request, timeout_ms)
        except (SaslAuthenticationFailedError, SslAuthenticationError) as error:
            self.refusal = error
            return error.code.value, None
        except RaylogError as error:
            if leader is None:
                return int(error.code if error.retriable else ErrorCode.coordinator_not_available), None
            if isinstance(error, ClientTimeoutError) and leader.endpoint is not None:
                silent = self._link.connections.peek(leader.endpoint)
                if silent is not None:
                    silent.abort(error)
            self._search(leader, peer)
            return ErrorCode.network_exception.value, None
        self.node, self.refusal = leader.node, None
        code = error_of(reply)
        if code == ErrorCode.not_coordinator:
            self._denials += 1
            self._search(leader, None)
        else:
            self._denials = 0
        return code, reply

    async def request(
        self, request: Any, *, timeout_ms: float, what: str, error_of: Callable[[Any], int] = whole_error
    ) -> Any:
        """The coordinator's reply, asked for until the deadline. Raises what it says of errors that
        waiting does not mend.
        """
        loop = asyncio.get_running_loop()
        config = self._link.config
        deadline = loop.time() + timeout_ms / 1000
        failures = 0
        while True:
            left_ms = max(1.0, (deadline - loop.time()) * 1000)
            code, reply = await self.ask(request, timeout_ms=min(config.request_timeout_ms, left_ms), error_of=error_of)
            if not code:
                return reply
            if self.refusal is not None:
                raise self.refusal
            whose = "group" if self._topic == OFFSETS_TOPIC else "transactional.id"
            error = error_for(code, f"{what} of {whose} {self.id!r}: {ErrorCode(code).name.upper()}")
            if code not in AGAIN:
                raise error
            failures += 1
            backoff = config.retry_backoff_ms * 2 ** min(max(failures - 2, 0), 16)
            pause_s = _FIRST_RETRY_S if failures == 1 else min(backoff, config.retry_backoff_max_ms) / 1000
            if loop.time() + pause_s >= deadline:
                raise ClientTimeoutError(f"no answer within {timeout_ms:g} ms: {error}") from error
            await asyncio.sleep(pause_s)

    async def _watched(self, connection: Connection, leader: PartitionLeader, request: Any, timeout_ms: float) -> Any:
        assert self._key is not None, "a leader of no partition"
        number = self._silent.sent(connection, [(self._key, leader)], held_back_ms=HEARTBEAT_HELD_BACK_MS)
        try:
            return await connection.request(request, timeout_ms=timeout_ms)
        finally:
            self._silent.ended(number)

    def close(self) -> None:
        self._silent.close()

    # -------------------------------------------------------------- where it is

    async def _leader(self) -> PartitionLeader | None:
        if self._search_ended is not None and self._denials != 1:
            try:
                async with asyncio.timeout(_SEARCH_S):
                    await self._search_ended.wait()
            except TimeoutError:
                pass
        metadata = self._link.metadata
        if self._key is None:
            view = await coordinated_topic(self._link, self._topic)
            self._key = TopicPartition(self._topic, partition_for(self.id, len(view.partitions)))
        leader = metadata.leader(self._key)
        if leader is None:
            await metadata.partition(self._key)
            leader = metadata.leader(self._key)
        if leader is not None and leader.endpoint is None:
            self._search(leader, None)
        return leader

    def _search(self, failed: PartitionLeader, peer: Peer | None) -> None:
        if self._search_ended is not None or self._key is None:
            return
        ended = self._search_ended = asyncio.Event()

        def on_end(found: PartitionLeader | None, refusal: RaylogError | None) -> None:
            self._search_ended = None
            ended.set()

        self._link.metadata.search_leader(self._key, failed, peer=peer, on_end=on_end)


async def coordinated_topic(link: ClusterLink, topic: str = OFFSETS_TOPIC) -> Any:
    """The view of ``__consumer_offsets`` or ``__transaction_state``, which is created where there has
    been no group, or no transactional id, yet.
    """
    try:
        return await link.metadata.topic(topic)
    except _UnknownTopic:
        timeout_ms = link.config.request_timeout_ms
        request = requests.create_topics([(topic, -1, -1, {}, {})], timeout_ms=timeout_ms, validate_only=False)
        reply = await link.controller.request(request, timeout_ms=timeout_ms)
        for each in reply.topics:
            if each.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                raise error_for(each.error_code, each.error_message) from None
        return await link.metadata.topic(topic)
