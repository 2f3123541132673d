"""What a server lets its peers make it hold (``server``)."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer, or all of them, may make the server hold.

    ``request_bytes_max`` is Kafka's ``socket.request.max.bytes``, ``connections_max`` its
    ``max.connections``, ``connections_of_host_max`` its ``max.connections.per.ip``,
    ``idle_timeout_ms`` its ``connections.max.idle.ms``; None: no limit.
    ``unauthenticated_of_host_max``: connections of one address that have not authenticated yet, where
    they have to.
    ``connection_fetches_max``: Fetch requests of one connection that are worked on at a time,
    because a small one may ask for a large answer. ``answers_bytes_max``: of answers that peers
    have not read; who fetches for them goes by it (``Server.unread_bytes``). A Broker speaks for
    many clients over one connection, so it may have ``BROKER_REQUESTS_MAX`` requests open.
    """

    request_bytes_max: int = 104_857_600
    connection_bytes_max: int = 64 * 1024 * 1024
    connection_requests_max: int = 4096
    server_bytes_max: int = 256 * 1024 * 1024
    handshake_timeout_ms: int = 10_000
    frame_timeout_ms: int = 30_000
    connections_max: int | None = None
    connections_of_host_max: int | None = None
    unauthenticated_of_host_max: int = 1_000
    idle_timeout_ms: int | None = None
    connection_fetches_max: int | None = None
    answers_bytes_max: int | None = None


LISTENER_LIMITS = Limits(idle_timeout_ms=600_000, connection_fetches_max=4, answers_bytes_max=256 << 20)
"""What Kafka clients may make a listener hold, where nothing else is configured."""

NEVER = -1
"""As ``connections.max.idle.ms``."""


def idle_limit(connections_max_idle_ms: int) -> int | None:
    """The ``idle_timeout_ms`` of that config."""
    return None if connections_max_idle_ms < 0 else connections_max_idle_ms


def bytes_limit(queued_max_request_bytes: int) -> int:
    """The ``server_bytes_max`` of that config: as in Kafka, nothing and less than nothing are no
    limit.
    """
    return queued_max_request_bytes if queued_max_request_bytes > 0 else sys.maxsize
