"""How far a group has come, as one consumer says and asks it: OffsetCommit and OffsetFetch, and the
rule of automatic commits.

A member commits in its generation, so that one whose partitions are somebody else's by now is
refused; a consumer that assigns its own partitions commits as nobody in particular (generation −1).
Commits of one consumer are sent one after the other, so none overtakes an older one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.groups import requests as group_requests
from raylog.client.groups.coordinator_link import CoordinatorLink
from raylog.errors import ConfigError, RaylogError, error_for
from raylog.groups.requests import NO_GENERATION, NO_MEMBER_ID
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.client")


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """``offset`` is that of the next record to read. ``metadata``: up to 4,096 characters of the
    user's own.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], RaylogError | None], None]
"""Told when an asynchronous commit is done: what was to be committed, and why it was not."""


@dataclass(frozen=True, slots=True)
class Identity:
    """In whose name offsets are committed."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's membership as it is now. ``generation`` −1 and ``member_id`` empty: it is not in
    the group (yet, or any more).
    """

    group_id: str
    member_id: str
    generation: int
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HandedOut:
    """How far a consumer has handed records out, and as whom it may commit that."""

    offsets: Offsets
    group: GroupMetadata


_LOST_MEMBERSHIP = frozenset(
    {
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
    }
)
_EXPLAINED = {
    ErrorCode.illegal_generation: "the group has shared out its partitions anew without this member, which polled too seldom "
    "(max.poll.interval.ms) or was away: what it read since its last commit will be read again by others",
    ErrorCode.unknown_member_id: "this consumer is no member any more (it polled too seldom, or was away for session.timeout.ms), or the "
    "group has members and this consumer assigns its own partitions",
    ErrorCode.fenced_instance_id: "another consumer has taken over this group.instance.id",
    ErrorCode.rebalance_in_progress: "the group is sharing out its partitions anew: poll(), then commit again",
    ErrorCode.unknown_topic_or_partition: "a topic is not there any more; what belongs to others is committed",
    ErrorCode.offset_metadata_too_large: "the metadata of an offset is longer than offset.metadata.max.bytes",
}


class OffsetCommits:
    def __init__(
        self,
        coordinator: CoordinatorLink,
        *,
        instance_id: str | None,
        identity: Callable[[], Identity],
        refused: Callable[[Identity, int], None],
        require_stable: bool = False,
    ) -> None:
        """``identity`` is asked when a commit is sent; ``refused`` told when the coordinator does
        not take it from that one. ``require_stable``: an offset that an open transaction may
        replace is waited for.
        """
        self._require_stable = require_stable
        self._coordinator = coordinator
        self._instance_id = instance_id
        self._identity = identity
        self._refused = refused
        self._turn = asyncio.Lock()

    async def commit(self, offsets: Offsets, timeout_ms: float) -> None:
        """Returns when the offsets are replicated; raises the first error."""
        if not offsets:
            return
        async with self._turn:
            identity = self._identity()
            request = group_requests.offset_commit(
                self._coordinator.id,
                group_requests.committed_values(offsets),
                member_id=identity.member_id,
                instance_id=self._instance_id,
                generation=identity.generation,
            )
            try:
                await self._coordinator.request(
                    request, timeout_ms=timeout_ms, what="committing offsets", error_of=first_error
                )
            except RaylogError as error:
                if error.code in _LOST_MEMBERSHIP:
                    self._refused(identity, int(error.code))
                raise explained(error) from None

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, of these partitions or of all; those without a commit are
        left out.
        """
        request = group_requests.offset_fetch(self._coordinator.id, partitions, require_stable=self._require_stable)
        reply = await self._coordinator.request(
            request, timeout_ms=timeout_ms, what="fetching offsets", error_of=_fetch_error
        )
        return {
            key: OffsetAndMetadata(each.offset, each.metadata, each.leader_epoch)
            for key, each in group_requests.fetched_offsets(reply).items()
            if each.offset >= 0
        }


def explained(error: RaylogError) -> RaylogError:
    """The refusal of a commit, with what it means, where there is something to say."""
    meaning = _EXPLAINED.get(error.code)
    return error if meaning is None else error_for(error.code, f"{error}: {meaning}")


def first_error(reply: Any) -> int:
    """What waiting does not mend comes first."""
    codes = [code for code in group_requests.partition_errors(reply).values() if code]
    return next((code for code in codes if not ErrorCode(code).retriable), codes[0] if codes else 0)


def _fetch_error(reply: Any) -> int:
    if reply.error_code is not ErrorCode.none:
        return int(reply.error_code)
    return next((each.error for each in group_requests.fetched_offsets(reply).values() if each.error), 0)


def to_commit(offsets: Mapping[Any, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a user wants committed: per partition an offset, (offset, metadata), or
    OffsetAndMetadata.
    """
    values: dict[TopicPartition, OffsetAndMetadata] = {}
    for key, value in offsets.items():
        if isinstance(value, tuple):
            value = OffsetAndMetadata(*value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = OffsetAndMetadata(value)
        if not isinstance(value, OffsetAndMetadata) or value.offset < 0:
            raise ConfigError(f"cannot commit {value!r} of {key!r}: give an offset from 0, or (offset, metadata)")
        values[TopicPartition(*key)] = value
    return values
