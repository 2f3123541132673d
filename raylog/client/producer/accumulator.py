"""Where a producer's records gather: per partition a queue of batches, the newest of which is open
for more.

Callers' threads add, the sender takes; one lock, held for moments, lies between them. Encoding
never happens under it. An open batch is full at ``batch_size`` bytes (before compression); the
thread that fills it encodes it, so that several callers encode at once and the sender's loop stays
free; a batch that leaves before it is full is encoded by the sender.

Owns: queues, the open batches, the count of unfinished batches. Does not own: memory
(``memory.py``), the order of sends (``partition_queue.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from raylog.client.config import ProducerConfig
from raylog.client.producer.partition_queue import PartitionQueue
from raylog.client.producer.producer_batch import ProducerBatch, RawRecord
from raylog.errors import ClosedError, RaylogError
from raylog.records.compression import Compression
from raylog.types import TopicPartition

Added = tuple[ProducerBatch, int, ProducerBatch | None, bool]
"""The batch, the record's index in it, a batch that is full now and that the caller shall encode,
whether the sender has to be woken.
"""


Watch = Callable[[ProducerBatch, int], Callable[[], None]]
"""Makes the call to be made at the end of the batch, for the record of that index in it."""


class Accumulator:
    def __init__(self, config: ProducerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._config = config
        self.lock = threading.Lock()
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}  # those that are not idle
        self._touched: dict[TopicPartition, None] = {}  # with batches that the sender has not heard of
        self.closed = False
        self.refusal: Callable[[], RaylogError | None] | None = (
            None  # why nothing may be added now; asked under the lock
        )
        self._is_transactional = config.transactional_id is not None
        self.unfinished = 0  # batches taken in and not done
        self.compression = int(Compression.named(config.compression_type))
        self._batch_size = config.batch_size
        self._delivery_timeout_ms = config.delivery_timeout_ms
        self._waits_for_linger = config.linger_ms > 0

    def add(self, topic: str, partition: int, record: RawRecord, size_bytes: int, watch: Watch | None = None) -> Added:
        """Add one record to the open batch of its partition; ``watch`` is asked under the lock.
        Raises ClosedError after ``close``.
        """
        with self.lock:
            queue = self._queue(TopicPartition(topic, partition))
            batch = queue.open_batch()
            full = None
            wake = not self._waits_for_linger
            if batch is not None and batch.size_bytes + size_bytes > self._batch_size:
                batch.open = False
                batch.being_encoded = True
                full, batch, wake = batch, None, True
            if batch is None:
                batch = self._new_batch(topic, partition)
                queue.append(batch)
                self._touched[queue.key] = None
                self.unfinished += 1
                wake = True  # it may have to start a linger timer
            index = batch.add(record, size_bytes)
            if watch is not None:
                batch.on_done.append(watch(batch, index))
            return batch, index, full, wake

    def add_encoded(self, batch: ProducerBatch) -> None:
        """Add a batch that is already bytes. Raises ClosedError after ``close``."""
        with self.lock:
            queue = self._queue(TopicPartition(batch.topic, batch.partition))
            queue.append(batch)
            self._touched[queue.key] = None
            self.unfinished += 1

    def _new_batch(self, topic: str, partition: int) -> ProducerBatch:
        now_ms = self._clock() * 1000
        deadline_ms = now_ms + self._delivery_timeout_ms
        batch = ProducerBatch(
            topic, partition, created_ms=now_ms, deadline_ms=deadline_ms, compression=self.compression
        )
        batch.is_transactional = self._is_transactional
        return batch

    def encoded_batch(self, topic: str, partition: int, data: bytes | bytearray, record_count: int) -> ProducerBatch:
        now_ms = self._clock() * 1000
        batch = ProducerBatch.of_bytes(
            topic,
            partition,
            data,
            record_count,
            created_ms=now_ms,
            deadline_ms=now_ms + self._delivery_timeout_ms,
            compression=self.compression,
        )
        batch.is_transactional = self._is_transactional
        return batch

    def finish_encoding(self, batch: ProducerBatch) -> None:
        """Encode a batch that ``add`` gave back as full. Call it without the lock; the sender has
        to be woken afterwards.
        """
        try:
            batch.encode()
        finally:
            with self.lock:
                batch.being_encoded = False
                self._touched[TopicPartition(batch.topic, batch.partition)] = None

    def take_touched(self) -> list[PartitionQueue]:
        """The queues that got a batch, or whose first batch may be encoded now, since this was
        asked last.
        """
        with self.lock:
            touched, self._touched = self._touched, {}
            return self.active_of(touched)

    def active_of(self, keys: Iterable[TopicPartition]) -> list[PartitionQueue]:
        """Those of the queues that are not idle."""
        return [queue for key in keys if (queue := self.active.get(key)) is not None]

    def queued(self, topic: str) -> Mapping[int, int]:
        """How many batches wait per partition of a topic, where any do: the load that the sticky
        partitioner looks at.
        """
        with self.lock:
            return {
                key.partition: len(queue.pending)
                for key, queue in self.active.items()
                if key.topic == topic and queue.pending
            }

    def stalled(self, topic: str, since_ms: float) -> set[int]:
        """The partitions of a topic whose first batch has been waiting since before then."""
        with self.lock:
            return {
                key.partition
                for key, queue in self.active.items()
                if key.topic == topic and queue.pending and queue.pending[0].created_ms <= since_ms
            }

    def close(self) -> None:
        """Take nothing more."""
        with self.lock:
            self.closed = True

    def unfinished_batches(self) -> list[ProducerBatch]:
        with self.lock:
            return [
                batch
                for queue in self.active.values()
                for batch in (*queue.in_flight, *queue.pending)
                if not batch.done
            ]

    def _queue(self, key: TopicPartition) -> PartitionQueue:
        if self.closed:
            raise ClosedError("this producer is closed: make another one")
        if self.refusal is not None and (error := self.refusal()) is not None:
            raise error
        queue = self.active.get(key)
        if queue is None:
            queue = self.queues.get(key)
            if queue is None:
                queue = self.queues[key] = PartitionQueue(
                    key.topic,
                    key.partition,
                    max_in_flight=self._config.max_in_flight_requests_per_connection,
                    retries=self._config.retries,
                    is_transactional=self._is_transactional,
                )
            self.active[key] = queue
        return queue
