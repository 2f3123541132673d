"""Faults to be patched into the production clients, and into what only they meet, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.client.consumer.consumed_partition import ConsumedPartition
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.consumer.record_reader import RecordReader
from raylog.client.groups.membership import GroupMembership
from raylog.client.groups.offset_commits import OffsetAndMetadata
from raylog.client.producer.partition_queue import PartitionQueue, ProducerIdentity, Verdict
from raylog.client.producer.producer_batch import NO_STAMP, ProducerBatch
from raylog.wire.connection import Connection

Mutation = Callable[[pytest.MonkeyPatch], None]


def retry_a_batch_behind_the_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionQueue, "_insert", lambda self, batch: self.pending.append(batch))


def number_a_retried_batch_anew(patch: pytest.MonkeyPatch) -> None:
    """The leader cannot tell that it has the batch."""
    retry = PartitionQueue.retry

    def renumbered(self: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> None:
        retry(self, batch, code)
        if not self.in_flight and not any(each.has_sequence for each in self.pending if each is not batch):
            batch.stamp = NO_STAMP

    patch.setattr(PartitionQueue, "retry", renumbered)


def begin_at_sequence_0_under_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    start_over = PartitionQueue._start_over

    def stay(self: PartitionQueue) -> None:
        before = self.identity
        start_over(self)
        if before is not None and not self.needs_identity:
            self.identity = ProducerIdentity(before.producer_id, before.epoch)

    patch.setattr(PartitionQueue, "_start_over", stay)


def take_a_broken_connection_for_an_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    judge = PartitionQueue.judge

    def hopeful(self: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> Verdict:
        return Verdict.DUPLICATE if code is ErrorCode.network_exception else judge(self, batch, code)

    patch.setattr(PartitionQueue, "judge", hopeful)


def name_the_offset_of_the_last_record(patch: pytest.MonkeyPatch) -> None:
    succeed = ProducerBatch.succeed

    def late(self: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        succeed(self, base_offset + self.record_count - 1, log_append_time_ms)

    patch.setattr(ProducerBatch, "succeed", late)


def count_a_batch_as_handed_out_with_its_first_record(patch: pytest.MonkeyPatch) -> None:
    def take_records(self: RecordReader, count_max: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < count_max and (self._in_hand() or self._advance(raising=not taken)):
            part = list(islice(self._records, self._next_record, self._next_record + count_max - len(taken)))
            self._next_record += len(part)
            assert self._chunk is not None
            self._chunk.partition.position = self._records[-1].offset + 1
            taken += part
        return taken

    patch.setattr(RecordReader, "take_records", take_records)


def fetch_one_record_too_far(patch: pytest.MonkeyPatch) -> None:
    take = Fetcher._take

    def greedy(self: Fetcher, partition: ConsumedPartition, *arguments: Any) -> bool:
        before = partition.fetch_offset
        is_news = take(self, partition, *arguments)
        partition.fetch_offset += partition.fetch_offset > before
        return is_news

    patch.setattr(Fetcher, "_take", greedy)


def commit_what_was_fetched(patch: pytest.MonkeyPatch) -> None:
    positions = GroupMembership.positions

    def ahead(self: GroupMembership, *arguments: Any) -> Any:
        fetched = self._fetcher.partitions
        return {key: OffsetAndMetadata(fetched[key].fetch_offset) for key in positions(self, *arguments)}

    patch.setattr(GroupMembership, "positions", ahead)


def forget_what_was_committed(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: GroupMembership, keys: Any) -> Any:
        return {}

    patch.setattr(GroupMembership, "_committed_positions", nothing)


def match_replies_in_the_order_of_requests(patch: pytest.MonkeyPatch) -> None:
    received = Connection.frame_received

    def in_order(self: Connection, frame: memoryview) -> None:
        if self._stream is None and self._pending:
            first = next(iter(self._pending))
            frame = memoryview(first.to_bytes(4, "big") + bytes(frame[4:]))
        received(self, frame)

    patch.setattr(Connection, "frame_received", in_order)


CLIENT_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        retry_a_batch_behind_the_others,
        number_a_retried_batch_anew,
        begin_at_sequence_0_under_the_same_epoch,
        take_a_broken_connection_for_an_acknowledgement,
        name_the_offset_of_the_last_record,
        count_a_batch_as_handed_out_with_its_first_record,
        fetch_one_record_too_far,
        commit_what_was_fetched,
        forget_what_was_committed,
        match_replies_in_the_order_of_requests,
    )
}
