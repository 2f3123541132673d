"""A record as its reader gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record with its place. Immutable and cheap to make: a poll makes hundreds of thousands a
    second.

    ``timestamp`` is in milliseconds, −1 for none; ``timestamp_type`` 0 CreateTime, 1 LogAppendTime;
    ``leader_epoch`` is that of the batch, −1 for none. ``key``, ``value`` and ``headers`` are what
    was written; deserializers may put other objects in their place.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    leader_epoch: int
