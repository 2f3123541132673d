"""GET /metrics over HTTP/1.1, and nothing else: one request for each connection.

Whoever connects may read. A connection that does not send its request within ``REQUEST_TIMEOUT_S``,
or takes its answer slower than within ``ANSWER_TIMEOUT_S``, is closed; beyond ``CONNECTIONS_MAX`` at
once, further ones are answered 503. Scrapes that come together share one collection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from raylog.metrics.exposition import content_type, exposition
from raylog.metrics.registry import Samples
from raylog.types import Endpoint

logger = logging.getLogger("raylog.metrics")

PATH: Final = "/metrics"
CONNECTIONS_MAX: Final = 32
REQUEST_BYTES_MAX: Final = 16_384
REQUEST_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 60.0
LINGER_S: Final = 1.0
_TEXT = "text/plain; charset=utf-8"


class MetricsEndpoint:
    """``collect`` is asked at each scrape."""

    def __init__(self, collect: Callable[[], Awaitable[Samples]]) -> None:
        self._collect = collect
        self._collecting: asyncio.Task[Samples] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.endpoint: Endpoint | None = None

    async def start(self, at: Endpoint) -> Endpoint:
        """Listen; port 0 is any free one. Raises OSError if the address can't be had."""
        self._server = await asyncio.start_server(self._accepted, at.host, at.port, limit=REQUEST_BYTES_MAX)
        self.endpoint = Endpoint(at.host, self._server.sockets[0].getsockname()[1])
        return self.endpoint

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections, *([self._collecting] if self._collecting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.endpoint = None

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                writer.write(await self._answer(head))
                await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(_answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            await _read_on(reader)
        except (asyncio.IncompleteReadError, TimeoutError, OSError) as error:
            logger.debug("a scrape has ended early: %s", error)
        except asyncio.CancelledError:
            logger.debug("a scrape has ended with its port")  # by ``stop``; asyncio would log it as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _answer(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if target.partition("?")[0] != PATH:
            return _answer(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD\r\n")
        if len(self._connections) > CONNECTIONS_MAX:
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE)
        headers = [(name.strip().lower(), value) for name, _, value in (line.partition(":") for line in lines[1:])]
        format = content_type(",".join(value.strip() for name, value in headers if name == "accept"))
        try:
            samples = await self._collected()
        except Exception:
            logger.exception("the metrics cannot be collected")
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _answer(HTTPStatus.OK, body=exposition(samples, format), type=format, is_whole=method == "GET")

    async def _collected(self) -> Samples:
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.ensure_future(self._collect())
        return await asyncio.shield(self._collecting)


async def _read_on(reader: asyncio.StreamReader) -> None:
    """Take what still comes: bytes that nobody has read would reset the connection before the answer
    is there.
    """
    try:
        async with asyncio.timeout(LINGER_S):
            while await reader.read(REQUEST_BYTES_MAX):
                pass
    except (TimeoutError, OSError) as error:
        logger.debug("a refused scraper sends on: %s", error)


def _answer(
    status: HTTPStatus, headers: str = "", *, body: str | None = None, type: str = _TEXT, is_whole: bool = True
) -> bytes:
    content = (f"{status.phrase}\n" if body is None else body).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {type}\r\nContent-Length: {len(content)}\r\n"
        f"{headers}Connection: close\r\n\r\n"
    )
    return head.encode() + (content if is_whole else b"")
