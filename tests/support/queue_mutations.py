"""Faults to be patched into a producer's ``PartitionQueue``, by name. The model of failovers and the simulator have to find them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from raylog.client.producer import partition_queue
from raylog.client.producer.partition_queue import PartitionQueue
from raylog.client.producer.producer_batch import ProducerBatch, after


def give_a_sequence_back_after_a_refusal_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """NOT_LEADER_OR_FOLLOWER and KAFKA_STORAGE_ERROR are taken for refusals: the next batch gets the numbers of the one given up."""

    def give_up(self: PartitionQueue, batch: ProducerBatch) -> None:
        (self.in_flight if batch in self.in_flight else self.pending).remove(batch)
        if batch.has_sequence and batch.outcome_unknown:
            self._epoch_change_due = True
        elif batch.has_sequence:
            give_back(self, batch)
        self._row_shrank()

    def give_back(self: PartitionQueue, batch: ProducerBatch) -> None:
        for later in (*self.in_flight, *self.pending):
            if later.has_sequence and later.serial > batch.serial and later.stamp[:2] == batch.stamp[:2]:
                producer_id, epoch, sequence = later.stamp
                later.stamp = (producer_id, epoch, after(sequence, -batch.record_count))
        if self.identity is not None and batch.stamp[:2] == (self.identity.producer_id, self.identity.epoch):
            self.next_sequence = after(self.next_sequence, -batch.record_count)

    refusals = {ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error}
    patch.setattr(partition_queue, "NOT_APPENDED", partition_queue.NOT_APPENDED | refusals)
    patch.setattr(PartitionQueue, "give_up", give_up)


def send_a_batch_in_doubt_again_under_a_new_epoch(patch: pytest.MonkeyPatch) -> None:
    """What Kafka's own client does after a delivery timeout: the leader cannot tell the second copy from the first."""
    start_over = PartitionQueue._start_over

    def trusting(self: PartitionQueue) -> None:
        for batch in self.pending:
            batch.outcome_unknown = False
        start_over(self)

    patch.setattr(PartitionQueue, "_start_over", trusting)


QUEUE_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation
    for mutation in (give_a_sequence_back_after_a_refusal_in_doubt, send_a_batch_in_doubt_again_under_a_new_epoch)
}
