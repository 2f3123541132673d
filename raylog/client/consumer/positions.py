"""Where partitions are read from: the place to begin, and whether the place that was come to is
still there.

- A consumer of a group (``committed``) begins where the group has come to, others by
  ``auto.offset.reset``; a seek to a moment, or to an end, asks the leader for the offset.
- When the leader epoch has changed, OffsetForLeaderEpoch tells whether the log was cut below the
  position (KIP-320). If so the position moves to the cut, or with ``auto.offset.reset=none`` the
  user is told.
- OFFSET_OUT_OF_RANGE moves the position by ``auto.offset.reset``, or is told.

Answers of an older generation are dropped. Runs in the fetcher's loop, and wakes it when a
partition may be fetched.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from kio.schema.errors import ErrorCode

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumed_partition import LATEST, ConsumedPartition
from raylog.client.consumer.consumed_partitions import ConsumedPartitions
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import PartitionLeader
from raylog.errors import RaylogError, error_for
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.client")

_FIRST_RETRY_S = 0.02


def pause_s(config: ConsumerConfig, failures: int) -> float:
    """How long to wait after so many failures in a row."""
    if failures <= 1:
        return _FIRST_RETRY_S
    backoff = config.retry_backoff_ms * 2 ** min(failures - 2, 16)
    return float(min(backoff, max(config.retry_backoff_ms, config.retry_backoff_max_ms)) / 1000)


class Positions:
    def __init__(
        self, config: ConsumerConfig, link: ClusterLink, consumed: ConsumedPartitions, isolation_level: int
    ) -> None:
        self._config = config
        self._link = link
        self._consumed = consumed
        self._isolation_level = isolation_level  # by which the end is that of decided transactions
        self._loop = asyncio.get_running_loop()
        self._unchecked: dict[TopicPartition, ErrorCode] = {}  # why, as was told; a retry that fails tells nothing new

    def out_of_range(self, partition: ConsumedPartition) -> None:
        key = partition.key
        if self._config.auto_offset_reset == "none":
            partition.error = error_for(
                ErrorCode.offset_out_of_range,
                f"offset {partition.fetch_offset} of {key.topic}-{key.partition} is not in the log (any more) and "
                "auto.offset.reset=none: seek() to another one",
            )
            self._consumed.notify()
            return
        logger.warning(
            "offset %d of %s-%d is not in the log (any more): going on at the %s one",
            partition.fetch_offset, key.topic, key.partition, self._config.auto_offset_reset,
        )  # fmt: skip
        partition.start_at = self._consumed.default_start

    async def resume(self, wanted: list[tuple[ConsumedPartition, int]]) -> None:
        """Go on where the group has come to."""
        assert self._consumed.committed is not None, "a partition of no group has no committed offset"
        found: dict[TopicPartition, tuple[int, int]] = {}
        failure: RaylogError | None = None
        try:
            found = await self._consumed.committed([partition.key for partition, _ in wanted])
        except RaylogError as error:
            failure = error
        with self._consumed.lock:
            for partition, generation in wanted:
                if partition.generation != generation:
                    continue
                if partition.key in found:
                    offset, epoch = found[partition.key]
                    partition.jump(offset)
                    partition.last_epoch = epoch
                    continue
                partition.resolving = False
                if failure is None:
                    self._consumed.start_by_default(partition)
                elif failure.retriable:  # the coordinator is away: where to begin stays unknown until it is back
                    partition.failures += 1
                    partition.not_before = self._loop.time() + pause_s(self._config, partition.failures)
                else:
                    partition.error = failure
        self._consumed.notify()
        self._consumed.wake()

    async def look_up(self, wanted: list[tuple[ConsumedPartition, int, int]]) -> None:
        """Find the start offsets of partitions, together; each that fails gets its error."""
        asked = {partition.key: start_at for partition, _, start_at in wanted}
        try:
            found = await self.offsets_at(asked)
        except RaylogError as error:
            if len(wanted) > 1:
                for one in wanted:
                    await self.look_up([one])
                return
            self._looked_up(*wanted[0], offset=None, error=error)
        else:
            for partition, generation, start_at in wanted:
                self._looked_up(partition, generation, start_at, offset=found[partition.key], error=None)
        self._consumed.notify()
        self._consumed.wake()

    async def offsets_at(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets of timestamps; where nothing is that late, the end."""
        limit_ms = self._config.default_api_timeout_ms
        find = partial(
            LeaderRequests(self._link).list_offsets, timeout_ms=limit_ms, isolation_level=self._isolation_level
        )
        found = {key: offset for key, (offset, _, _) in (await find(asked)).items()}
        missing = {key: LATEST for key, offset in found.items() if offset < 0}
        if missing:
            found |= {key: offset for key, (offset, _, _) in (await find(missing)).items()}
        return found

    def _looked_up(
        self,
        partition: ConsumedPartition,
        generation: int,
        start_at: int,
        *,
        offset: int | None,
        error: RaylogError | None,
    ) -> None:
        with self._consumed.lock:
            if partition.generation != generation:
                return
            partition.resolving = False
            if offset is None:
                partition.error = error
                return
            partition.start_at = None
            partition.fetch_offset = offset
            partition.last_epoch = -1
            if not partition.buffered_bytes:
                partition.position = offset

    async def validate(self, partition: ConsumedPartition, generation: int, leader: PartitionLeader) -> None:
        """Ask a new leader whether the log still reaches the fetch offset under the epoch that was
        read last.
        """
        key, epoch = partition.key, partition.last_epoch
        try:
            ends = await LeaderRequests(self._link).epoch_ends({key: epoch}, self._config.default_api_timeout_ms)
        except RaylogError as error:
            level = logging.DEBUG if self._unchecked.get(key) == error.code else logging.WARNING
            self._unchecked[key] = error.code
            logger.log(level, "cannot check the position in %s-%d: %s", key.topic, key.partition, error)
            partition.not_before = self._loop.time() + self._config.retry_backoff_ms / 1000
            partition.resolving = False
            self._consumed.wake()
            return
        self._unchecked.pop(key, None)
        _, end_offset = ends[key]
        with self._consumed.lock:
            if partition.generation != generation:
                return
            partition.resolving = False
            partition.validated_epoch = max(leader.epoch, partition.validated_epoch)
            if 0 <= end_offset < partition.fetch_offset:
                self._truncated(partition, end_offset, epoch)
        self._consumed.notify()
        self._consumed.wake()

    def _truncated(self, partition: ConsumedPartition, end_offset: int, epoch: int) -> None:
        key = partition.key
        text = (
            f"{key.topic}-{key.partition} was cut at offset {end_offset} by an unclean election; records up to "
            f"{partition.fetch_offset} of leader epoch {epoch} were read or fetched and are gone"
        )
        if self._config.auto_offset_reset == "none":
            partition.error = error_for(ErrorCode.offset_out_of_range, f"{text}: seek() to go on")
            return
        logger.warning("%s: going on at %d", text, end_offset)
        position = end_offset if partition.position is None else min(partition.position, end_offset)
        self._consumed.discard(partition)
        validated = partition.validated_epoch
        partition.jump(position)
        partition.validated_epoch = validated
