"""Sessions through a listener's TLS, over sockets: frames inside of it, and bytes that should have begun it.

The client shares the servers' loop. A frame is counted if it was answered, or ended its connection.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from certificates import Authority, settings
from fast_feed import FRAMES_MAX, Door, FastFeed, errors_in
from hostile_frames import changed

from raylog.kafka import table

LANES_MAX: Final = 8
PATIENCE_S: Final = 0.2
"""A connection that is silent for so long has no more to say."""
CONNECT_S: Final = 60.0
HELLO_SHARE: Final = 0.3  # of connections
_NO_ANSWER: Final = table.PRODUCE.key


class TlsFeed:
    """Feeds the listener of ``tls`` and ``hello``, whose connections are counted with those of ``feed``."""

    def __init__(self, feed: FastFeed, tls: Door, hello: Door, authority: Path) -> None:
        self._feed = feed
        self._doors = {"tls": tls, "hello": hello}
        self._context = ssl.create_default_context(cafile=str(authority))
        self._hello = client_hello(self._context)
        self._until = 0
        self._connections = 0

    async def run(self, frames: int) -> None:
        self._until = self._feed.fed + frames
        await asyncio.gather(*(self._lane() for _ in range(LANES_MAX)))

    async def replay(self, door: str, frames: Iterable[bytes]) -> None:
        await self._connect(door, list(frames))

    async def _lane(self) -> None:
        while self._feed.fed < self._until:
            number, self._connections = self._connections, self._connections + 1
            chance = random.Random(self._feed.seed << 40 | 1 << 39 | number)
            name = "hello" if chance.random() < HELLO_SHARE else "tls"
            if name == "hello":
                frames = [changed(chance, self._hello, [self._hello])]
            else:
                frames = list(self._doors[name].drawn(chance))[:FRAMES_MAX]
            known = sum(self._feed.findings.values())
            try:
                await self._connect(name, frames)
            except OSError as error:
                self._feed.findings[f"nobody can connect by TLS: {error!r}"] += 1
                self._until = 0
            self._feed.save(known, (name, number, frames))

    async def _connect(self, name: str, frames: list[bytes]) -> None:
        door = self._doors[name]
        endpoint = door.port.endpoint
        assert endpoint is not None
        context = self._context if name == "tls" else None
        opening = asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        reader, writer = await asyncio.wait_for(opening, CONNECT_S)
        self._feed.connections += 1
        try:
            if name == "hello":
                writer.write(frames[0])
                await self._hears_hello(door, reader, frames[0])
            else:
                sent = [_numbered(frame, number) for number, frame in enumerate(frames)]
                writer.writelines(len(each).to_bytes(4, "big") + each for each in sent)
                await self._hears(door, reader, sent)
        except ConnectionError:
            self._feed.outcomes["the connection is closed"] += 1
        finally:
            writer.transport.abort()

    async def _hears_hello(self, door: Door, reader: asyncio.StreamReader, sent: bytes) -> None:
        self._feed.count(door, b"")
        try:
            while await asyncio.wait_for(reader.read(65_536), PATIENCE_S):
                self._feed.outcomes["TLS answers"] += 1
            self._feed.outcomes["the connection is closed"] += 1
        except TimeoutError:
            self._feed.outcomes["it waits"] += 1

    async def _hears(self, door: Door, reader: asyncio.StreamReader, sent: list[bytes]) -> None:
        position = 0
        while position < len(sent):
            try:
                size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), PATIENCE_S), "big")
                answer = await asyncio.wait_for(reader.readexactly(size), CONNECT_S)
            except TimeoutError:
                self._feed.outcomes["it waits"] += 1
                return
            except (asyncio.IncompleteReadError, ConnectionError):
                self._feed.count(door, sent[position])
                self._feed.outcomes["the connection is closed"] += 1
                return
            number = int.from_bytes(answer[:4], "big")
            if not position <= number < len(sent):
                self._feed.findings["an answer to nothing"] += 1
                return
            for frame in sent[position : number + 1]:
                self._feed.count(door, frame)
            key, version = int.from_bytes(sent[number][:2], "big"), int.from_bytes(sent[number][2:4], "big")
            if key == table.API_VERSIONS.key and version not in table.API_VERSIONS.versions:
                version = 0  # in which it tells those that are spoken
            self._feed.outcomes.update(errors_in(key, version, answer, self._feed.findings))
            position = number + 1


def certificates(folder: Path) -> tuple[Path, dict[str, str]]:
    """The file of an authority, and the settings of a listener that it vouches for."""
    authority = Authority(folder)
    return authority.certificate, settings(authority.signed("broker"))


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def _numbered(frame: bytes, number: int) -> bytes:
    return frame[:4] + number.to_bytes(4, "big") + frame[8:] if len(frame) >= 8 else frame
