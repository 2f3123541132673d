"""What a producer hands back for records it has taken: light promises that cost nothing until
somebody asks.

``send`` gives a ``Delivery``, ``send_batch`` a ``BatchDelivery``. Both only point at the batches
that carry the records; no future, lock or event exists until ``result()`` or ``await`` is called on
one that is not finished. All records of a batch share its fate. A delivery may be waited for from
any thread and from any event loop; after completion it pickles as its plain result. Where a leader
refused a batch for some of its records, each ``Delivery`` raises what was said of its own record,
and a ``BatchDelivery`` an error whose ``record_errors`` name the values.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from raylog.errors import ClientTimeoutError, KafkaError, RaylogError, RecordError

if TYPE_CHECKING:
    from raylog.client.producer.producer_batch import ProducerBatch

logger = logging.getLogger("raylog.client")

UNKNOWN_OFFSET = -1


class RecordMetadata(NamedTuple):
    """Where a record landed. ``offset`` is −1 with acks=0 and for a duplicate whose place the
    leader has forgotten.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


@dataclass(frozen=True, slots=True)
class ProducedRange:
    """Consecutive records of one batch: offsets ``base_offset`` up to ``base_offset + count``.
    ``timestamp`` −1: as given.
    """

    partition: int
    base_offset: int
    count: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Where the values of one ``send_batch`` landed, in ranges; ``offsets()`` says it record by
    record.
    """

    topic: str
    ranges: tuple[ProducedRange, ...]
    order: tuple[Sequence[int], ...] | None = None  # the input indexes of each range, where keys scattered them

    @property
    def count(self) -> int:
        return sum(part.count for part in self.ranges)

    def offsets(self) -> list[tuple[int, int]]:
        """(partition, offset) of every value, in the order in which they were given."""
        if self.order is None:
            return [place for part in self.ranges for place in _places(part)]
        result: list[tuple[int, int]] = [(-1, UNKNOWN_OFFSET)] * self.count
        for part, indexes in zip(self.ranges, self.order, strict=True):
            for index, place in zip(indexes, _places(part), strict=True):
                result[index] = place
        return result


def _places(part: ProducedRange) -> Iterator[tuple[int, int]]:
    if part.base_offset < 0:
        return ((part.partition, UNKNOWN_OFFSET) for _ in range(part.count))
    return ((part.partition, part.base_offset + index) for index in range(part.count))


OnBatchDelivery = Callable[[BatchResult | None, RaylogError | None], None]
"""Called on the sender's thread when a whole ``send_batch`` is settled; one of the two is None. It
must not block.
"""


class Delivery:
    """The outcome of one ``send``, now or later."""

    __slots__ = ("_batch", "_index", "key_size", "timestamp", "value_size")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int, key_size: int, value_size: int) -> None:
        self._batch = batch
        self._index = index
        self.timestamp = timestamp
        self.key_size = key_size
        self.value_size = value_size

    def done(self) -> bool:
        """Whether ``result()`` would return (or raise) at once."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The record's place; raises what went wrong, or ClientTimeoutError after ``timeout``
        seconds (the record stays on its way).
        """
        if not self._batch.done:
            wait_for([self._batch], timeout)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.done:
            yield from _finished([self._batch]).__await__()
        return self._outcome()

    def _outcome(self) -> RecordMetadata:
        batch, index = self._batch.leaf(self._index)
        error = batch.error_of(index)
        if error is not None:
            raise error
        offset = batch.base_offset + index if batch.base_offset >= 0 else UNKNOWN_OFFSET
        timestamp = batch.log_append_time_ms if batch.log_append_time_ms >= 0 else self.timestamp
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp, self.key_size, self.value_size)

    def __reduce__(self) -> Any:
        if not self.done():
            raise TypeError("a delivery can be pickled only when it has finished: call flush() or result() first")
        try:
            return _FinishedDelivery, (self._outcome(), None)
        except RaylogError as error:
            return _FinishedDelivery, (None, error)

    def __repr__(self) -> str:
        state = "in flight" if not self.done() else "failed" if self._batch.leaf(self._index)[0].error else "delivered"
        return f"<Delivery to {self._batch.topic}-{self._batch.partition}: {state}>"


class _FinishedDelivery:
    """A Delivery that came out of a pickle."""

    __slots__ = ("_error", "_metadata")

    def __init__(self, metadata: RecordMetadata | None, error: RaylogError | None) -> None:
        self._metadata = metadata
        self._error = error

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> RecordMetadata:
        if self._error is not None:
            raise self._error
        assert self._metadata is not None
        return self._metadata

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from ()
        return self.result()

    def __reduce__(self) -> Any:
        return _FinishedDelivery, (self._metadata, self._error)


class BatchDelivery:
    """The outcome of one ``send_batch``: of all its records together. The first error of any part
    is raised.
    """

    __slots__ = ("_batches", "_order", "_topic")

    def __init__(self, topic: str, batches: list[ProducerBatch], order: list[Sequence[int]] | None = None) -> None:
        self._topic = topic
        self._batches = batches
        self._order = order

    def done(self) -> bool:
        return all(batch.done for batch in self._batches)

    def result(self, timeout: float | None = None) -> BatchResult:
        """Where the values landed; raises the first error, or ClientTimeoutError after ``timeout``
        seconds.
        """
        if not self.done():
            wait_for(self._batches, timeout)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, BatchResult]:
        if not self.done():
            yield from _finished(self._batches).__await__()
        return self._outcome()

    def call_when_done(self, on_delivery: OnBatchDelivery) -> None:
        """Call back once, when all is settled, on the thread that settles it (or now)."""
        called = iter((True,))

        def tell() -> None:
            if not next(called, False):
                return
            try:
                result, error = self._outcome(), None
            except RaylogError as raised:
                result, error = None, raised
            try:
                on_delivery(result, error)
            except Exception:
                logger.exception("the delivery callback %r failed", on_delivery)

        _when_all_done(self._batches, tell)

    def _outcome(self) -> BatchResult:
        ranges: list[ProducedRange] = []
        order: list[Sequence[int]] | None = None if self._order is None else []
        before = 0  # records of the batches before, which hold the values in order where ``_order`` is None
        for position, batch in enumerate(self._batches):
            start = 0
            for leaf in batch.leaves():
                if leaf.error is not None:
                    raise _of_values(
                        leaf.error, range(before, sys.maxsize) if self._order is None else self._order[position], start
                    )
                ranges.append(
                    ProducedRange(leaf.partition, leaf.base_offset, leaf.record_count, leaf.log_append_time_ms)
                )
                if order is not None and self._order is not None:
                    order.append(self._order[position][start : start + leaf.record_count])
                start += leaf.record_count
            before += start
        return BatchResult(self._topic, tuple(ranges), None if order is None else tuple(order))

    def __repr__(self) -> str:
        finished = sum(batch.done for batch in self._batches)
        return f"<BatchDelivery to {self._topic}: {finished} of {len(self._batches)} batches finished>"


def _of_values(error: RaylogError, indexes: Sequence[int], start: int) -> RaylogError:
    """The error with ``record_errors`` that count values: those of the refused batch are
    ``indexes`` from ``start`` on.
    """
    if not isinstance(error, KafkaError) or not error.record_errors:
        return error
    found = type(error)(*error.args)
    found.record_errors = tuple(RecordError(indexes[start + each.index], each.message) for each in error.record_errors)
    return found


def wait_for(batches: Sequence[ProducerBatch], timeout: float | None) -> None:
    """Block this thread until all are done."""
    finished = threading.Event()
    _when_all_done(batches, finished.set)
    if not finished.wait(timeout):
        raise ClientTimeoutError(
            f"not delivered within {timeout:g} s; the producer keeps trying until delivery.timeout.ms: wait longer or flush()"
        )


async def _finished(batches: Sequence[ProducerBatch]) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:
            pass  # that loop is closed: nobody waits there any more

    _when_all_done(batches, notify)
    await future


def _when_all_done(batches: Sequence[ProducerBatch], callback: Callable[[], None]) -> None:
    """Calls back once (at least) when all are done, on whichever thread finishes the last one."""

    def maybe() -> None:
        if all(batch.done for batch in batches):
            callback()

    for batch in batches:
        batch.call_when_done(maybe)
    if not batches:
        callback()
