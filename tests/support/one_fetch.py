"""One Fetch of a stranger's at a listener: how many record bytes a server gives at once."""

from __future__ import annotations

import asyncio

from outside import fetch, parts

from raylog.types import Endpoint
from raylog.wire.connection import Connection


def fetched_bytes(listener: Endpoint, topic: str) -> int:
    """The size of what one Fetch from the start of the topic's first partition returns, asked for 16 MiB."""

    async def ask() -> int:
        connection = await Connection.open(listener, secret=None, cluster_id="")
        try:
            part = parts(await connection.request(fetch(topic, {0: 0}), timeout_ms=60_000))[0]
        finally:
            connection.close()
            await connection.wait_closed()
        return len(part.records or b"")

    return asyncio.run(ask())
