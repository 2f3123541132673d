"""A ``PartitionQueue`` driven as the producer's ``Sender`` drives it, without a loop, a lock or a
connection.

The caller takes batches, carries them wherever it likes, and reports what came back and how much
time has passed. This module makes of it what the sender makes of it: retry, split, give up. Used by
the model of failovers and by the simulator.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.client.producer.partition_queue import PartitionQueue, ProducerIdentity, Verdict
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.errors import RaylogError


class QueueClient:
    """One partition's queue and what became of its batches. ``identity`` is what InitProducerId
    gave.
    """

    def __init__(self, queue: PartitionQueue, identity: ProducerIdentity | None = None) -> None:
        self.queue = queue
        self.identity = identity
        self.retries = 0
        self.splits = 0

    @property
    def lacks_identity(self) -> bool:
        """A producer id has to be fetched before anything can be sent; set ``identity`` then."""
        if self.queue.needs_identity:
            self.queue.needs_identity = False
            self.identity = None
        return self.identity is None and self.queue.identity is None

    def add(self, batch: ProducerBatch) -> None:
        self.queue.append(batch)

    def take(self, now_ms: float) -> ProducerBatch | None:
        """The next batch to send, in flight now; None if none may leave."""
        if self.lacks_identity or self.queue.sendable(now_ms) is None:
            return None
        return self.queue.take(self.identity or self.queue.identity)

    def acknowledged(self, batch: ProducerBatch, base_offset: int) -> list[ProducerBatch]:
        """The leader has it. Returns the batches that have ended with this answer."""
        self.queue.acknowledged(batch)
        ended = []
        if not batch.done:
            batch.succeed(base_offset, -1)
            ended.append(batch)
        return ended + self._fail_lost()

    def refused(self, batch: ProducerBatch, code: ErrorCode) -> list[ProducerBatch]:
        """The request failed, or the leader said so. Returns the batches that have ended with this
        answer.
        """
        match self.queue.judge(batch, code):
            case Verdict.DUPLICATE:
                return self.acknowledged(batch, -1)
            case Verdict.SPLIT:
                self.splits += 1
                self.queue.split(batch)
            case Verdict.RETRY:
                self.retries += 1
                self.queue.retry(batch, code)
            case Verdict.FAIL:
                self.queue.give_up(batch)
                return self._fail([batch]) + self._fail_lost()
        return self._fail_lost()

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        """The delivery timeout of some batches may have passed. Returns those that have ended."""
        ended = []
        for batch in self.queue.expired(now_ms):
            if batch.done:
                continue  # lost with one before it
            if batch not in self.queue.in_flight:
                self.queue.give_up(batch)
            ended += self._fail([batch]) + self._fail_lost()
        return ended

    def _fail_lost(self) -> list[ProducerBatch]:
        return self._fail(self.queue.pop_lost())

    @staticmethod
    def _fail(batches: list[ProducerBatch]) -> list[ProducerBatch]:
        ended = [batch for batch in batches if not batch.done]
        for batch in ended:
            batch.fail(RaylogError("given up"))
        return ended
