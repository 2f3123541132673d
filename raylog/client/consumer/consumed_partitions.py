"""The partitions that a consumer follows, and what was fetched for them and not yet taken.

Shared between the loop that fetches and the thread that reads, under ``lock``. Whoever wants news
leaves a callback and is called once there may be some. Knows neither leaders nor requests: what is
missing is fetched by ``fetcher``, which is woken by every change that may give it work.

Invariants (under the lock): the bytes of the buffer are the sum over its chunks, and so are each
partition's.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumed_partition import COMMITTED, EARLIEST, LATEST, Chunk, ConsumedPartition
from raylog.errors import RaylogError, error_for
from raylog.types import TopicPartition

Committed = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, tuple[int, int]]]]
"""Asks for the committed offsets of partitions, each with its leader epoch; those that have none
are left out.
"""


class ConsumedPartitions(ABC):
    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self.lock = threading.Lock()
        self.partitions: dict[TopicPartition, ConsumedPartition] = {}
        self.buffer: deque[Chunk] = deque()
        self._buffered_bytes = 0
        self._waiters: dict[Callable[[], None], None] = {}  # in the order in which they came
        self._stopped = False
        self.has_duty: Callable[[], bool] = lambda: False  # whether a poll has something else to do; from any thread
        self.committed: Committed | None = None

    @abstractmethod
    def wake(self) -> None:
        """See to it that what has changed is acted upon. From any thread."""

    @property
    def default_start(self) -> int:
        return EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST

    def assign(self, keys: Iterable[TopicPartition], positions: dict[TopicPartition, int] | None = None) -> None:
        """Follow exactly these partitions; those that were followed before keep their place."""
        with self.lock:
            wanted = {TopicPartition(*key): None for key in keys}
            for key in [key for key in self.partitions if key not in wanted]:
                gone = self.partitions.pop(key)
                gone.generation += 1  # what is in flight for it is nobody's
                self.discard(gone)
            for key in wanted:
                if key not in self.partitions:
                    start_at = self.default_start if self.committed is None else COMMITTED
                    partition = self.partitions[key] = ConsumedPartition(key, start_at)
                    if positions is not None and key in positions:
                        partition.jump(positions[key])
                    elif self.committed is None:
                        self.start_by_default(partition)
        self.notify()
        self.wake()

    def start_by_default(self, partition: ConsumedPartition) -> None:
        """Under the lock."""
        if self._config.auto_offset_reset == "none":
            key = partition.key
            partition.start_at = None
            partition.error = error_for(
                ErrorCode.offset_out_of_range,
                f"{key.topic}-{key.partition} has no {'position' if self.committed is None else 'committed offset'} and "
                "auto.offset.reset=none: seek() first",
            )
        else:
            partition.start_at = self.default_start

    def take_chunk(self) -> Chunk | None:
        """The next chunk of a partition that is not paused; its bytes leave the buffer."""
        with self.lock:
            taken = next((chunk for chunk in self.buffer if not chunk.partition.paused), None)
            if taken is not None:
                self.buffer.remove(taken)
                self._buffered_bytes -= taken.size_bytes
                taken.partition.buffered_bytes -= taken.size_bytes
        if taken is not None:
            self.wake()
        return taken

    def halt(self, partition: ConsumedPartition, error: RaylogError) -> None:
        """Let a partition raise this error until it is sought or assigned anew."""
        with self.lock:
            self.discard(partition)
            partition.error = error

    def put_back(self, chunk: Chunk) -> None:
        """Return a chunk of the present generation to the front. Under the lock."""
        self.buffer.appendleft(chunk)
        self._buffered_bytes += chunk.size_bytes
        chunk.partition.buffered_bytes += chunk.size_bytes

    def seek(self, partition: ConsumedPartition, *, offset: int | None = None, timestamp: int | None = None) -> None:
        """Read from an offset on, or from that of a timestamp (−2 earliest, −1 latest)."""
        with self.lock:
            self.discard(partition)
            if offset is not None:
                partition.jump(offset)
            else:
                assert timestamp is not None, "a seek to nowhere"
                partition.look_up(timestamp)
        self.wake()

    def has_news(self) -> bool:
        """Whether there is a chunk to take, an error to raise or something else to do. Under the
        lock.
        """
        if self.has_duty() or any(partition.error is not None for partition in self.partitions.values()):
            return True
        return any(not chunk.partition.paused for chunk in self.buffer)

    @contextmanager
    def news(self, callback: Callable[[], None]) -> Iterator[None]:
        """Meanwhile, call back once when there is (or may be) something new, at once if there is
        now. Any thread enters it.
        """
        with self.lock:
            waits = not self.has_news() and not self._stopped
            if waits:
                self._waiters[callback] = None
        if not waits:
            callback()
        try:
            yield
        finally:
            with self.lock:
                self._waiters.pop(callback, None)

    def notify(self) -> None:
        """Wake who waits for news, in the loop."""
        with self.lock:
            waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter()

    def discard(self, partition: ConsumedPartition) -> None:
        """Drop what is buffered of a partition. Under the lock."""
        kept = [chunk for chunk in self.buffer if chunk.partition is not partition]
        if len(kept) < len(self.buffer):
            self.buffer = deque(kept)
            self._buffered_bytes = sum(chunk.size_bytes for chunk in kept)
        partition.buffered_bytes = 0
