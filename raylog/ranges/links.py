"""The link to a cluster that the tasks of one process share.

Tasks are short and many, and each connection costs a handshake.

``acquire`` and ``release`` run on the background loop, so nothing here needs a lock. A link that
was not used for ``IDLE_S`` is closed. Fetched records are not copied, since a range is decoded
right away. A forked process starts without a link: it must not use its parent's connections.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from raylog.client.config import ConsumerConfig
from raylog.client.links.address import ClusterAddress
from raylog.client.links.link import ClusterLink

IDLE_S = 10.0


@dataclass(slots=True)
class _Shared:
    link: ClusterLink
    users: int = 0
    closing: asyncio.TimerHandle | None = None


_links: dict[tuple[int, ClusterAddress], _Shared] = {}


async def acquire(address: ClusterAddress) -> ClusterLink:
    """Return the process's link to a cluster, made if needed. Release each acquired link once."""
    shared = _links.get((os.getpid(), address))
    if shared is None:
        config = ConsumerConfig.parse({"client.id": "raylog-ranges"})
        shared = _links[os.getpid(), address] = _Shared(ClusterLink(address, config, borrows_records=True))
    if shared.closing is not None:
        shared.closing.cancel()
        shared.closing = None
    shared.users += 1
    return shared.link


async def release(address: ClusterAddress) -> None:
    """Release a link. It is closed some time after the last user released it."""
    shared = _links[os.getpid(), address]
    shared.users -= 1
    assert shared.users >= 0, f"released {-shared.users} times more than acquired"
    if not shared.users:
        shared.closing = asyncio.get_running_loop().call_later(IDLE_S, _close, address)


def _close(address: ClusterAddress) -> None:
    shared = _links.pop((os.getpid(), address))
    closing = asyncio.get_running_loop().create_task(shared.link.close())
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()
