"""What a server has counted since it began: plain integers, for whoever asks (``raylog.metrics``)."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from raylog.time_counts import TimeCounts

VERSION_BITS: Final = 16


class ServerCounts:
    """Requests are counted by API key and version (``api_number``), the rest by listener.

    ``requests`` are those of clients. A connection that has moved (``Server.adopt``) is created and
    authenticated once, where it came in.

    The times are those of clients' requests, by API key. A request is in ``at_once`` if it was answered
    before its handler returned. Of the others, ``until_handled`` has the time until the handler returned,
    unless that is a coroutine, and ``until_answered`` the time until they were answered.
    """

    __slots__ = (
        "at_once",
        "created",
        "failed_authentications",
        "internal_requests",
        "requests",
        "successful_authentications",
        "throttles",
        "until_answered",
        "until_handled",
    )

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        self.at_once: defaultdict[int, TimeCounts] = defaultdict(TimeCounts)
        self.until_handled: defaultdict[int, TimeCounts] = defaultdict(TimeCounts)
        self.until_answered: defaultdict[int, TimeCounts] = defaultdict(TimeCounts)
        self.throttles: defaultdict[int, TimeCounts] = defaultdict(TimeCounts)  # what clients were told to wait
        self.internal_requests: Counter[int] = Counter()  # of the cluster's own processes
        self.created: Counter[str] = Counter()
        self.successful_authentications: Counter[str] = Counter()
        self.failed_authentications: Counter[str] = Counter()


def api_number(api_key: int, version: int) -> int:
    """One number for both."""
    return api_key << VERSION_BITS | version


def api_of_number(number: int) -> tuple[int, int]:
    """Key and version."""
    return number >> VERSION_BITS, number & ((1 << VERSION_BITS) - 1)
