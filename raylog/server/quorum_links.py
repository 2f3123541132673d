"""A controller's links to the other controllers: finds them, keeps one way to each, and says who
joined, left and died.

It dials every address in its disk's ``meta.properties`` but its own, again and again, and asks
whoever answers which disk it is: addresses only help to find voters, directory ids name them. The
addresses are read anew, often while something moves and seldom while nothing does (``Pace``). Both
sides dial, so two controllers may have two connections; a message takes the own one if it is open,
else the other's. Messages to a peer without a link are dropped, for the quorum says again what
matters.

When a link that was dialled ends, the address is dialled again at once. Refused, closed before the
handshake ended, or answered by a later incarnation: the process that was there is dead, and
``PeerLeft`` says so; silence is only silence. A link of an older incarnation than the newest one
seen of that disk is closed. (Incarnations never go back, also where a clock does: see
``MetadataLog.claim_incarnation``.)

Invariants: ``PeerJoined`` and ``PeerLeft`` of a peer alternate, but for a death that shows after it
left; every link in the tables is of the newest incarnation seen.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from raylog.control.quorum_stream import QuorumStream, accept_quorum, open_quorum
from raylog.disks.disk import read_disk
from raylog.errors import DisconnectedError, RaylogError
from raylog.metadata.events import PeerJoined, PeerLeft, QuorumMessage
from raylog.raft.messages import Message
from raylog.types import Endpoint
from raylog.wire.dial import outcome_of
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.request import Request

logger = logging.getLogger("raylog.controller")

OPEN_TIMEOUT_MS = 1_000
RETRY_FIRST_S = 0.02
RETRY_MAX_S = 0.5
ADDRESSES_INTERVAL_S = (
    0.1  # how often the addresses are read again while something moves; a small file in the page cache
)
SETTLED_INTERVAL_S = 2.0  # and while nothing does
SETTLED_AFTER_S = 10.0


class Pace:
    """How soon the addresses are worth another look: at once after a link or an address has come or
    gone, seldom when all is quiet.

    A controller that has moved writes its new address before anybody can know it, and whoever was
    linked to it has lost the link.
    """

    def __init__(self, now_s: float) -> None:
        self._moved_s = now_s

    def moved(self, now_s: float) -> None:
        """A link or an address has come or gone."""
        self._moved_s = now_s

    def interval_s(self, now_s: float) -> float:
        """Until the next look."""
        return ADDRESSES_INTERVAL_S if now_s - self._moved_s < SETTLED_AFTER_S else SETTLED_INTERVAL_S


class QuorumLinks:
    def __init__(
        self,
        disk: Path,
        directory_id: uuid.UUID,
        *,
        cluster_id: str,
        secret: Secret,
        identity: Peer,
        on_event: Callable[[PeerJoined | PeerLeft | QuorumMessage], None],
    ) -> None:
        self._disk = disk
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._secret = secret
        self.identity = identity  # the own; known when the links are started
        self._on_event = on_event
        self._own: Endpoint | None = None
        self._dialled: dict[uuid.UUID, QuorumStream] = {}
        self._accepted: dict[uuid.UUID, QuorumStream] = {}
        self._newest: dict[uuid.UUID, int] = {}  # incarnations
        self._endpoints: dict[uuid.UUID, Endpoint] = {}
        self._dialling: dict[Endpoint, asyncio.Task[None]] = {}
        self._finding: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()  # a link has come or gone
        self._stopping = False

    def start(self, own: Endpoint) -> None:
        """Begin to look for the others; ``own`` is where this controller listens."""
        self._own = own
        self._finding = asyncio.get_running_loop().create_task(self._find())

    async def stop(self) -> None:
        """Close every link and look no more."""
        self._stopping = True
        tasks = [*self._dialling.values(), *([self._finding] if self._finding is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in [*self._dialled.values(), *self._accepted.values()]:
            stream.close()

    def peers(self) -> list[uuid.UUID]:
        """Who can be reached now."""
        return sorted(self._dialled.keys() | self._accepted.keys())

    def endpoint_of(self, peer: uuid.UUID) -> Endpoint | None:
        """Where that controller listened when it was last dialled."""
        return self._endpoints.get(peer)

    def send(self, to: uuid.UUID, message: Message) -> None:
        """Send without waiting; dropped if there is no link."""
        stream = self._dialled.get(to) or self._accepted.get(to)
        if stream is not None:
            stream.send(message)

    def accept(self, request: Request) -> None:
        """Another controller's link; the handler of the private request QUORUM."""
        if self._own is None or self._stopping:
            request.refuse(DisconnectedError("this controller is not ready"))
            return
        stream = accept_quorum(request, self._directory_id, self._received, self._closed)
        self._add(self._accepted, stream)

    # ------------------------------------------------------------------ the tables

    def _add(self, table: dict[uuid.UUID, QuorumStream], stream: QuorumStream) -> None:
        peer, incarnation = stream.directory_id, stream.peer.incarnation
        known = self._newest.get(peer)
        if self._stopping or peer == self._directory_id or (known is not None and incarnation < known):
            stream.close()
            return
        self._newest[peer] = incarnation
        was_linked = peer in self._dialled or peer in self._accepted
        replaced = [table.get(peer)]
        if known is not None and incarnation > known:
            replaced += [self._dialled.get(peer), self._accepted.get(peer)]
        table[peer] = stream
        for old in replaced:
            if old is not None and old is not stream:
                self._forget(old)
                old.abort()
        if known is not None and incarnation > known:
            self._on_event(PeerLeft(peer, is_dead=True))
            was_linked = False
        self._moved.set()
        if not was_linked:
            self._on_event(PeerJoined(peer))

    def _forget(self, stream: QuorumStream) -> bool:
        """Whether it was in a table."""
        known = False
        for table in (self._dialled, self._accepted):
            if table.get(stream.directory_id) is stream:
                del table[stream.directory_id]
                known = True
        return known

    def _received(self, stream: QuorumStream, message: Message) -> None:
        if self._newest.get(stream.directory_id) == stream.peer.incarnation and not self._stopping:
            self._on_event(QuorumMessage(stream.directory_id, message))

    def _closed(self, stream: QuorumStream, reason: Exception | None) -> None:
        peer = stream.directory_id
        self._moved.set()
        if self._forget(stream) and not self._stopping and peer not in self._dialled and peer not in self._accepted:
            self._on_event(PeerLeft(peer, is_dead=False))

    # ------------------------------------------------------------------ dialling

    async def _find(self) -> None:
        loop = asyncio.get_running_loop()
        pace, before = Pace(loop.time()), None
        while True:
            try:
                disk = read_disk(self._disk)
            except RaylogError as error:
                logger.error("%s", error)
                disk = None
            if disk is not None:
                wanted = set(disk.controllers) - {self._own}
                for endpoint in sorted(wanted - self._dialling.keys(), key=str):
                    self._dialling[endpoint] = asyncio.get_running_loop().create_task(self._keep(endpoint))
                for endpoint in sorted(self._dialling.keys() - wanted, key=str):
                    self._dialling.pop(endpoint).cancel()
                if wanted != before or self._moved.is_set():
                    pace.moved(loop.time())
                before = wanted
            self._moved.clear()
            interval_s = pace.interval_s(loop.time())
            if interval_s <= ADDRESSES_INTERVAL_S:
                await asyncio.sleep(interval_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._moved.wait()

    async def _keep(self, endpoint: Endpoint) -> None:
        """Dial, again when the link ends, for as long as that address is among the controllers'."""
        last: QuorumStream | None = None
        delay_s = RETRY_FIRST_S
        while True:
            ended = asyncio.Event()
            try:
                stream = await self._open(endpoint, ended)
            except RaylogError as error:
                logger.debug("no controller at %s: %s", endpoint, error)
                if last is not None and isinstance(error, DisconnectedError):
                    if outcome_of(error) in ("refused", "closed"):
                        self._died(last)
                    last = None
                await asyncio.sleep(delay_s)
                delay_s = min(RETRY_MAX_S, delay_s * 2)
                continue
            if stream.directory_id == self._directory_id:
                stream.close()
                return  # an address of our own, under another name
            last, delay_s = stream, RETRY_FIRST_S
            self._endpoints[stream.directory_id] = endpoint
            try:
                await ended.wait()
            finally:
                stream.close()

    async def _open(self, endpoint: Endpoint, ended: asyncio.Event) -> QuorumStream:
        def closed(stream: QuorumStream, reason: Exception | None) -> None:
            ended.set()
            self._closed(stream, reason)

        stream = await open_quorum(
            endpoint,
            self._directory_id,
            secret=self._secret,
            cluster_id=self._cluster_id,
            caller=self.identity,
            on_message=self._received,
            on_close=closed,
            timeout_ms=OPEN_TIMEOUT_MS,
        )
        self._add(self._dialled, stream)
        return stream

    def _died(self, stream: QuorumStream) -> None:
        """The process behind that link, unless a newer one of the same disk has been seen."""
        if self._newest.get(stream.directory_id) == stream.peer.incarnation:
            self._on_event(PeerLeft(stream.directory_id, is_dead=True))
