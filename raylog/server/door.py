"""The door of a host: connections of Kafka clients that a Broker accepted and that ask for what
this process leads or coordinates.

The Broker moves a connection here once its requests are for one partition each and this process
leads them, or in transactions that this process coordinates (``raylog.listener.moves``). Here such a
request needs one process instead of two, and where a Produce or a Fetch has the usual bytes, no
decoding (``usual_requests``). Whatever else the client asks is not served here: the connection goes
back, with that request in hand. So the door knows the usual form of two APIs, and asks the host's
coordinators about three (``Coordinating``). It holds no metadata, and refuses nobody.

A request is turned back when it is not usual, when this process doesn't lead its partition now, or
when clients leave so much unread that a Fetch has to wait for room, which the Broker sees to. An
answer that is an error goes the long way, and names no leader: the nodes that hosts know are
processes inside, and the client asks the Broker for Metadata next.

What a client with a quota is served is counted (``door_quotas``): what is much beside the quota at
once, the rest within ``SETTLED_S``. The request by which it exceeds the quota is served, and the next
one turned back: the Broker throttles. So is a Fetch that
may return more than the quota allows at once, and any request with another client id than those
that brought the connection here. Where the Broker has died, the connection is not read for as long as
the client has to wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Final, Generic, Protocol, TypeVar

from raylog.errors import ClusterError
from raylog.kafka.chain import Stage
from raylog.kafka.context import EXTERNAL
from raylog.kafka.table import FETCH, IN_TRANSACTIONS, PRODUCE
from raylog.listener.quota_usage import BYTE_RATE_OF, QuotaUsage
from raylog.listener.quotas import PERCENT_OF_NANOSECONDS
from raylog.listener.raw_forward import is_transactional
from raylog.replication.context import HostConfig
from raylog.replication.events import FetchPartitionResult, FetchReply, ProducePartitionResult, ProduceReply
from raylog.security.quotas import REQUEST_PERCENTAGE
from raylog.server.door_quotas import DoorQuota
from raylog.server.request_logs import RequestLogs
from raylog.server.usual_requests import HEADER_BYTES, UsualFetch, UsualProduce, usual_fetch, usual_produce
from raylog.types import BROKER_SLOT, TopicIdPartition, broker_of, slot_of
from raylog.wire import private
from raylog.wire.frames import Entity, RequestHeader, decode_request_body, decode_request_header
from raylog.wire.framing import LARGE_FRAME_BYTES, Buffer
from raylog.wire.handshake import Peer
from raylog.wire.limits import LISTENER_LIMITS, idle_limit
from raylog.wire.moved_connections import Channel, ChannelListener, Ended, Grant, Message, Moved, Revoked
from raylog.wire.request import Request
from raylog.wire.server import Server
from raylog.wire.server_connection import ServerConnection
from raylog.wire.server_counts import VERSION_BITS

logger = logging.getLogger("raylog.replica")

SERVED: Final = (PRODUCE, FETCH, *IN_TRANSACTIONS)
RETRY_S: Final = 0.05
SETTLED_S: Final = 0.01
LONG_STAY: Final = 4_096
"""A connection that was served so often before it goes back was right to come."""
KNOWN_MAX: Final = 1_024
"""Of each kind, for one connection."""
Usual = TypeVar("Usual", UsualProduce, UsualFetch)
_correlation = struct.Struct(">i").unpack_from
_size = struct.Struct(">i").pack


class Host(Protocol):
    """What the door needs of the process that it belongs to."""

    def led(self, topic: str | uuid.UUID, number: int) -> TopicIdPartition | None:
        """The partition, if this process leads it now."""

    def leads(self, id: TopicIdPartition) -> bool:
        """Whether this process leads it now."""

    def append_at_once(self, usual: UsualProduce, records: Buffer) -> ProducePartitionResult | None:
        """Append the records, if that is all that the request waits for; None, and nothing is done,
        if not.
        """

    def read_at_once(self, usual: UsualFetch, offset: int) -> FetchPartitionResult | None:
        """Read the records, if there are enough in memory; None if not."""

    def answer_produce(self, request: Request, usual: UsualProduce, result: ProducePartitionResult) -> None: ...

    def answer_fetch(self, request: Request, usual: UsualFetch, result: FetchPartitionResult) -> None: ...

    def produce_usual(self, request: Request, usual: UsualProduce, records: Buffer) -> None: ...

    def fetch_usual(self, request: Request, usual: UsualFetch, offset: int) -> None: ...


Coordinating = Callable[[RequestHeader, Entity], Callable[[Request], None] | None]
"""Finds what serves a request in a transaction; None if it is not for this process."""


class Door:
    """``node_id`` is the host's own. ``usage``: of quotas, at the host. ``stages`` run before every
    handler, as at the listener that a client came in by.
    """

    def __init__(
        self, host: Host, node_id: int, coordinating: Coordinating, usage: QuotaUsage, stages: Sequence[Stage] = ()
    ) -> None:
        self.host = host
        self.coordinating = coordinating
        self.usage = usage
        self._broker = broker_of(node_id)
        self._listener: ChannelListener | None = None
        self._channels: set[Channel] = set()
        self._guests: set[_DoorConnection] = set()
        self._request_logs = RequestLogs()
        self._needs_broker = False  # it asks the authorizer
        self.server = Server(
            dict.fromkeys((spec.key for spec in SERVED), _not_by_the_table),
            connection=partial(_DoorConnection, self),
            ordered=True,
            borrows_records=True,
            undecoded=(PRODUCE.key, FETCH.key),
            ignores_trailing_bytes=True,
            versions={spec.key: spec.versions for spec in SERVED},
            limits=LISTENER_LIMITS,
            listener=EXTERNAL,
            stages=stages,
        )

    def configured(self, config: HostConfig) -> None:
        """Go by what the brokers' configs say now."""
        self._needs_broker = bool(config.authorizer_class_name)
        self._close_lost()
        self.server.limits = replace(
            LISTENER_LIMITS,
            idle_timeout_ms=idle_limit(config.connections_max_idle_ms),
            request_bytes_max=config.socket_request_max_bytes,
        )
        self.log_requests(self.server, config)

    def log_requests(self, server: Server, config: HostConfig) -> None:
        """Have that server of the host log what is configured about requests."""
        self._request_logs.set(server, slow_ms=config.request_slow_log_ms, are_traced=config.request_trace_enable)

    def handlers(self) -> dict[int, Callable[[Request], None]]:
        """What the host's inside server answers for the door."""
        return {private.OPEN_DOOR: self._open}

    async def stop(self, *, grace_s: float = 1.0) -> None:
        """Close the door and every connection that came through it."""
        if self._listener is None:
            return
        self._listener.close()
        for channel in self._channels:
            channel.close()
        await self.server.stop(grace_s=grace_s)

    def _open(self, request: Request) -> None:
        if not _is_broker(request.connection.peer, self._broker):
            request.refuse(ClusterError("only this host's Broker may move connections to it"))
            return
        if self._listener is None:
            self.server.begin()
            self._listener = ChannelListener(self._accepted)
        request.reply(private.DoorOpened(self._listener.name, self._listener.token))

    def _accepted(self, sock: socket.socket) -> None:
        def heard(message: Message, moved: socket.socket | None) -> None:
            if isinstance(message, Revoked):
                for each in self._guests:
                    each.revoked()
                return
            assert isinstance(message, Moved) and moved is not None, f"a Broker doesn't say {message}"
            self.server.adopt(moved, message.pending, partial(_prepare, channel, message))

        def closed() -> None:
            self._channels.discard(channel)
            self._close_lost()

        channel = Channel(sock, heard, closed)
        self._channels.add(channel)

    def came(self, guest: _DoorConnection) -> None:
        """A connection is on its way, or there, until it ends."""
        self._guests.add(guest)
        guest.on_lost(partial(self._guests.discard, guest))

    def may_stay(self, guest: _DoorConnection) -> bool:
        """False without its Broker, where that may have to revoke something."""
        return not guest.has_lost_its_broker or not (self._needs_broker or guest.is_judged)

    def _close_lost(self) -> None:
        for each in list(self._guests):
            if not self.may_stay(each):
                each.close()

    def has_room(self, bytes_max: int) -> bool:
        """Whether clients have read so much of their answers that another one of that size may be
        read from the logs.
        """
        bound = self.server.limits.answers_bytes_max
        return bound is None or bound - self.server.unread_bytes() >= bytes_max


Answer = TypeVar("Answer", ProduceReply, FetchReply)


def without_hints(reply: Answer) -> Answer:
    """The same answer without the leaders that it names: they are processes inside, which clients
    can't reach.
    """
    return replace(reply, partitions=tuple(replace(each, hint=None) for each in reply.partitions))


def _not_by_the_table(request: Request) -> None:
    raise AssertionError(f"{request.header} has not come through the door")


def _is_broker(peer: Peer, broker: int) -> bool:
    return peer.node_id >= 0 and slot_of(peer.node_id) == BROKER_SLOT and broker_of(peer.node_id) == broker


def _prepare(channel: Channel, moved: Moved, connection: ServerConnection) -> None:
    assert isinstance(connection, _DoorConnection)
    connection.came_by(channel, moved)


def _tell_end(channel: Channel, number: int) -> None:
    """The Broker has a descriptor of the socket, too: the client sees no end before it hears of it."""
    if not channel.send(Ended(number)) and channel.is_open:  # it is full
        asyncio.get_running_loop().call_later(RETRY_S, _tell_end, channel, number)


class _Known(Generic[Usual]):
    """The requests of one kind that a connection has sent, by what they begin with.

    Those of one client to partitions of one topic begin equally long, so the length of the last one
    is the one to look up.
    """

    __slots__ = ("_by_start", "_end")

    def __init__(self) -> None:
        self._by_start: dict[bytes, Usual] = {}
        self._end = 0

    def add(self, usual: Usual | None) -> None:
        if usual is None:
            return
        if len(self._by_start) >= KNOWN_MAX:
            self._by_start.clear()
        self._by_start[usual.start] = usual
        self._end = HEADER_BYTES + len(usual.start)

    def like(self, frame: memoryview | bytes) -> Usual | None:
        """The known request that begins as this frame does, behind its correlation id."""
        return self._by_start.get(bytes(frame[HEADER_BYTES : self._end]))


class _DoorConnection(ServerConnection):
    """A client's connection while it is served here."""

    def __init__(self, door: Door, server: Server) -> None:
        super().__init__(server)
        self._door = door
        self._produces: _Known[UsualProduce] = _Known()
        self._fetches: _Known[UsualFetch] = _Known()
        self._channel: Channel
        self._moved: Moved
        self._grants: tuple[Grant, ...] | None = None
        self._quotas: dict[str, DoorQuota] = {}
        self._of_time: DoorQuota | None = None
        self._is_due = False  # what is owed is much beside a quota
        self._settling: asyncio.TimerHandle | None = None
        self._is_revoked = False
        self._exceeded = ""  # the key of a quota
        self._has_returned = False

    def came_by(self, channel: Channel, moved: Moved) -> None:
        self._channel = channel
        self._moved = moved
        self._grants = moved.grants
        self._quotas = {each.key: DoorQuota(self._door.usage, each, moved) for each in moved.quotas}
        self._of_time = self._quotas.get(REQUEST_PERCENTAGE)
        self.principal, self.listener = moved.principal, moved.listener
        self.came_back = moved.came_back
        self.on_lost(self._say_ended)
        self._door.came(self)

    @property
    def is_judged(self) -> bool:
        """Whether its client may do only what it was granted."""
        return self._grants is not None

    @property
    def has_lost_its_broker(self) -> bool:
        return not self._channel.is_open

    def revoked(self) -> None:
        """Serve nothing more of what comes. What is under way stays."""
        self._grants = ()
        self._is_revoked = True
        self._produces, self._fetches = _Known(), _Known()

    def read_ended(self) -> None:
        if self._is_due:
            self._settle()

    def frame_received(self, frame: memoryview) -> None:
        if self._is_due:
            self._settle()  # it may have exceeded the quota
        if self._of_time is None:
            self._take(frame)
            return
        began_ns = perf_counter_ns()
        self._take(frame)
        self._owe(self._of_time, (perf_counter_ns() - began_ns) * PERCENT_OF_NANOSECONDS)

    def _take(self, frame: memoryview) -> None:
        """Serve it, or go back to the Broker with it."""
        data: memoryview | bytes = bytes(frame) if len(frame) <= LARGE_FRAME_BYTES else frame
        if not (self._produced_again(data) or self._fetched_again(data) or self._first_seen(data)):
            self._turn_back(frame)

    @property
    def _may_answer_at_once(self) -> bool:
        """Whether no stage has to be asked, and no earlier request is unanswered."""
        return not (self._order or self.server.stages)

    def _produced_again(self, data: memoryview | bytes) -> bool:
        """Whether it is a Produce that begins as an earlier one did, for what this process leads:
        then it is served.
        """
        usual = self._produces.like(data)
        if usual is None or (records := usual.records_of(data)) is None:
            return False
        if self._grants is not None and not usual.grant[2] and is_transactional(records):
            return False
        host, began_ns = self._door.host, perf_counter_ns()
        if self._may_answer_at_once and (result := host.append_at_once(usual, records)) is not None:
            answer = usual.answer(_correlation(data, 4)[0], result)
            if answer is not None:
                self._answered(usual, data, answer, began_ns)
            else:
                self._serve(data, usual, partial(host.answer_produce, usual=usual, result=result))
        elif host.leads(usual.id):
            self._serve(data, usual, partial(host.produce_usual, usual=usual, records=records))
        else:
            return False
        if usual.charge is not None:
            usual.charge(len(data))
        return True

    def _fetched_again(self, data: memoryview | bytes) -> bool:
        """The same of a Fetch, while there is room for its answer."""
        usual = self._fetches.like(data)
        if usual is None or (offset := usual.offset_of(data)) is None or not self._door.has_room(usual.bytes_max):
            return False
        host, began_ns = self._door.host, perf_counter_ns()
        if self._may_answer_at_once and (result := host.read_at_once(usual, offset)) is not None:
            answer = usual.answer(_correlation(data, 4)[0], result)
            if answer is not None:
                self._answered(usual, data, answer, began_ns)
                if usual.charge is not None:
                    usual.charge(len(result.records))
            else:
                self._serve(data, usual, partial(host.answer_fetch, usual=usual, result=result))
            return True
        if not host.leads(usual.id):
            return False
        self._serve(data, usual, partial(host.fetch_usual, usual=usual, offset=offset))
        return True

    def _first_seen(self, data: memoryview | bytes) -> bool:
        header, position = decode_request_header(data)
        spoken = self.server.versions.get(header.api_key)
        if spoken is None or header.version not in spoken or header.client_id != self._moved.client_id:
            return False
        if self._exceeded and not self.has_lost_its_broker:
            return False
        if header.api_key == PRODUCE.key:
            self._produces.add(self._admitted(usual_produce(data, header, position, self._door.host.led)))
            return self._produced_again(data)
        if header.api_key == FETCH.key:
            self._fetches.add(self._admitted(usual_fetch(data, header, position, self._door.host.led)))
            return self._fetched_again(data)
        return self._coordinated(data, header, position)

    def _coordinated(self, data: memoryview | bytes, header: RequestHeader, position: int) -> bool:
        """Whether it is in a transaction that this process coordinates: then it is served."""
        if self._grants is not None:
            return False
        body = decode_request_body(data, header, position, ignore_rest=True)
        handler = self._door.coordinating(header, body)
        if handler is None:
            return False
        self.counted[header.api_key << VERSION_BITS | header.version] += 1
        self._dispatch(handler, header, body, len(data))
        return True

    def _admitted(self, usual: Usual | None) -> Usual | None:
        """None for what the Broker has not allowed, or has to make smaller."""
        if usual is None or (self._grants is not None and usual.grant not in self._grants):
            return None
        quota = self._quotas.get(BYTE_RATE_OF[usual.key])
        if quota is not None:
            if usual.answer_bytes_max > quota.most:
                return None
            usual.charge = partial(self._owe, quota)
        return usual

    def _owe(self, quota: DoorQuota, amount: float) -> None:
        """Have it charged: what is much beside the quota before the next request, but behind the answers
        of its read; else within ``SETTLED_S``.
        """
        quota.owed += amount
        if quota.owed >= quota.noticed:
            self._is_due = True
            if not self._parsing:
                self._settle()
        elif self._settling is None:
            self._settling = self.loop.call_later(SETTLED_S, self._settle)

    def _settle(self) -> None:
        self._is_due = False
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        for quota in self._quotas.values():
            owed, quota.owed = quota.owed, 0.0
            if owed:
                self._charge(quota, owed)

    def _charge(self, quota: DoorQuota, amount: float) -> None:
        """Count what was served, and serve nothing more if that has exceeded the quota."""
        delay_ms = quota.charge(amount)
        if not delay_ms:
            return
        if self.has_lost_its_broker:
            self.mute(delay_ms / 1_000)
            return
        self._exceeded = quota.key
        self._produces, self._fetches = _Known(), _Known()

    def _answered(
        self, usual: UsualProduce | UsualFetch, data: memoryview | bytes, answer: list[Buffer], began_ns: int
    ) -> None:
        """Without a request that is kept until then."""
        self.requests += 1
        self.counted[usual.api_number] += 1
        self.write_frame(answer)
        length_ns = perf_counter_ns() - began_ns
        self.server.counts.at_once[usual.key].add(length_ns)
        if (slow := self.server.slow) is not None:
            context, api = self._context_of(usual.client_id), (usual.key, usual.version)
            slow.ended_at_once(
                self,
                context,
                api,
                _correlation(data, 4)[0],
                length_ns=length_ns,
                request_bytes=len(data),
                answer=answer,
            )

    def _serve(
        self, data: memoryview | bytes, usual: UsualProduce | UsualFetch, handler: Callable[[Request], None]
    ) -> None:
        header = RequestHeader(usual.key, usual.version, _correlation(data, 4)[0], usual.client_id)
        self.counted[usual.api_number] += 1
        self._dispatch(handler, header, None, len(data), data, usual.header_end)

    def _turn_back(self, frame: memoryview) -> None:
        came_back = self._moved.came_back + 1
        if self.requests >= LONG_STAY:
            came_back = 0
        elif self._is_revoked or self._exceeded:  # not for what it asks
            came_back -= 1

        def hand_over(sock: socket.socket, pending: bytes) -> bool:
            self._settle()
            back = replace(self._moved, pending=pending, came_back=came_back, exceeded=self._exceeded)
            with sock:
                self._has_returned = self._channel.send(back, sock)
            return self._has_returned

        self.leave(hand_over, pending=_size(len(frame)) + frame)

    def _say_ended(self) -> None:
        self._settle()
        if not self._has_returned:
            _tell_end(self._channel, self._moved.number)
