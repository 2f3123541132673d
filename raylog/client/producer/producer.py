"""The producer: ``ProducerCore`` takes records on any thread; ``AsyncProducer`` is the coroutine
face of it (the sync one is in ``sync.py``).

The core lives in one event loop (connections, metadata, sender) and is entered from any thread
through calls that never block: they either do the work, or say what has to be waited for first (a
topic's metadata, room in ``buffer.memory``). The faces do the waiting, each in its own way, up to
``max.block.ms``. Serializing, partitioning and encoding happen on the caller's thread; the loop's
thread gets bytes.

Order: what one thread hands over for one partition is stored in that order. Durability: a delivery
with a result is on every in-sync replica (acks=all), on the leader (acks=1), or on its way
(acks=0).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.config import ProducerConfig
from raylog.client.interceptors import InterceptorChain, ProducerRecord
from raylog.client.links.address import ClusterAddress
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import TopicPartitions, TopicView, unknown_partition
from raylog.client.partitioners import DefaultPartitioner, partitioner_of
from raylog.client.producer.accumulator import Accumulator, Watch
from raylog.client.producer.batch_input import (
    BatchInput,
    ColumnNames,
    EncodedPart,
    columns_from,
    encoded_parts,
    is_arrow,
    record_size,
    refuse_large_record,
)
from raylog.client.producer.deliveries import BatchDelivery, Delivery, OnBatchDelivery, RecordMetadata
from raylog.client.producer.memory import BufferMemory
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.client.producer.sender import Sender
from raylog.client.serializers import checked_bytes, serializer_of
from raylog.client.transactions.calls import TransactionCalls
from raylog.client.transactions.phases import ProducerTransactions
from raylog.client.transactions.transaction import AsyncTransaction
from raylog.clock import clock_of
from raylog.errors import BufferFullError, ClientTimeoutError, ClosedError, ConfigError, RaylogError, error_for
from raylog.records import kernel
from raylog.records.record import Header
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.client")

OnDelivery = Callable[[RecordMetadata | None, RaylogError | None], None]
"""Called on the sender's thread when a record is settled, in send order; one of the two is None. It
must not block.
"""

NO_HEADERS: Sequence[Header] = ()


class ProducerCore:
    """Made in the loop that it will live in. ``is_participant``: of a transaction that somebody else
    begins and ends.
    """

    def __init__(self, address: ClusterAddress, config: ProducerConfig, *, is_participant: bool = False) -> None:
        self.config = config
        self.address = address
        self.loop = asyncio.get_running_loop()
        self.clock = clock_of(self.loop)
        self.accumulator = Accumulator(config, self.clock.monotonic_s)
        self.memory = BufferMemory(config.buffer_memory)
        self.link = link = ClusterLink(address, config)
        self.connections, self.controller, self.metadata = link.connections, link.controller, link.metadata
        self.transactions: ProducerTransactions | None = None
        self.transaction_calls: TransactionCalls | None = None
        if config.transactional_id is not None:
            self.transactions = ProducerTransactions(config.transactional_id, config.transaction_timeout_ms)
            self.accumulator.refusal = self.transactions.refusal
        self.sender = Sender(
            config,
            self.accumulator,
            self.memory,
            self.metadata,
            self.connections,
            self.controller,
            self.transactions,
        )
        if self.transactions is not None and not is_participant:
            self.transaction_calls = TransactionCalls(config, link, self.accumulator, self.sender, self.transactions)
        self.partitioner = partitioner_of(config, self.accumulator.queued)
        self.interceptors = InterceptorChain(config.interceptor_classes)
        self._intercepts = bool(self.interceptors)
        self._key_serializer = serializer_of(config.key_serializer, "key.serializer")
        self._value_serializer = serializer_of(config.value_serializer, "value.serializer")
        self._default = self.partitioner if isinstance(self.partitioner, DefaultPartitioner) else None
        self._refresher = self.loop.create_task(self._refresh_metadata())

    # -------------------------------------------------------------- one record

    def prepared(self, record: ProducerRecord) -> tuple[ProducerRecord, bytes | None, bytes | None]:
        """The record after the interceptors, its key and value as bytes."""
        if self._intercepts:
            record = self.interceptors.on_send(record)
        key, value = record.key, record.value
        if self._key_serializer is not None and key is not None:
            key = self._key_serializer(record.topic, key)
        if self._value_serializer is not None and value is not None:
            value = self._value_serializer(record.topic, value)
        if key is not None and type(key) is not bytes:
            key = checked_bytes(key, "key")
        if value is not None and type(value) is not bytes:
            value = checked_bytes(value, "value")
        return record, key, value

    def add(
        self,
        view: TopicView,
        record: ProducerRecord,
        key: bytes | None,
        value: bytes | None,
        size: int,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        """Put a record for which memory was taken into its batch. Gives the memory back if it
        raises.
        """
        try:
            view.used = True
            partition = record.partition
            if partition is None:
                partition = self._choose(view, record, key, value)
            elif not 0 <= partition < len(view.partitions):
                raise unknown_partition(TopicPartition(record.topic, partition), len(view.partitions))
            timestamp = record.timestamp_ms if record.timestamp_ms is not None else self.clock.wall_ms()
            key_size = -1 if key is None else len(key)
            value_size = -1 if value is None else len(value)
            watch = None
            if on_delivery is not None or self._intercepts:
                watch = self._watch(timestamp, key_size, value_size, on_delivery)
            batch, index, full, wake = self.accumulator.add(
                record.topic, partition, (timestamp, key, value, record.headers), size, watch
            )
        except BaseException:
            self.memory.give_back(size)
            raise
        if full is not None:
            self.accumulator.finish_encoding(full)
        if wake:
            self.sender.wake()
        if full is not None:
            self.sender.let_in()
        return Delivery(batch, index, timestamp, key_size, value_size)

    def _watch(self, timestamp: int, key_size: int, value_size: int, on_delivery: OnDelivery | None) -> Watch:
        def watch(batch: ProducerBatch, index: int) -> Callable[[], None]:
            delivery = Delivery(batch, index, timestamp, key_size, value_size)
            return lambda: self._tell(delivery, on_delivery)

        return watch

    def _choose(self, view: TopicView, record: ProducerRecord, key: bytes | None, value: bytes | None) -> int:
        choice = self._available(view)
        if self._default is not None:
            if key is not None and self._default.uses_keys:
                return self._default.keyed(key, choice.count)
            return self._default.sticky(choice, len(value) if value is not None else 0)
        chosen = self.partitioner.partition(record.topic, record.key, key, record.value, value, choice)
        if not 0 <= chosen < choice.count:
            raise ConfigError(
                f"partitioner.class chose partition {chosen} of topic {record.topic!r}, which has {choice.count}"
            )
        return chosen

    def _available(self, view: TopicView) -> TopicPartitions:
        limit_ms = self.config.partitioner_availability_timeout_ms
        if not limit_ms:
            return view.choice
        stalled = self.accumulator.stalled(view.name, self.clock.monotonic_s() * 1000 - limit_ms)
        return TopicPartitions(
            view.name, view.choice.count, tuple(p for p in view.choice.available if p not in stalled)
        )

    def size_of(self, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
        """What the record takes of ``buffer.memory``. Raises MessageTooLargeError for one that no
        request may carry.
        """
        size = record_size(key, value, headers)
        refuse_large_record(size, self.config.max_request_size)
        if size > self.config.buffer_memory:
            raise BufferFullError(f"a record of {size} bytes is larger than buffer.memory={self.config.buffer_memory}")
        return size

    def _tell(self, delivery: Delivery, on_delivery: OnDelivery | None) -> None:
        metadata: RecordMetadata | None = None
        error: RaylogError | None = None
        try:
            metadata = delivery.result(0)
        except RaylogError as raised:
            error = raised
        if self._intercepts:
            self.interceptors.on_acknowledgement(metadata, error)
        if on_delivery is not None:
            try:
                on_delivery(metadata, error)
            except Exception:
                logger.exception("the delivery callback %r failed", on_delivery)

    # -------------------------------------------------------------- many records

    def parts(
        self,
        view: TopicView,
        values: Sequence[Any],
        *,
        key: Any,
        keys: Sequence[Any] | None,
        partition: int | None,
        timestamps_ms: Sequence[int | None] | None,
    ) -> Iterator[EncodedPart]:
        """The batches of one ``send_batch``, encoded one by one as they are asked for."""
        if partition is not None and not 0 <= partition < len(view.partitions):
            raise unknown_partition(TopicPartition(view.name, partition), len(view.partitions))
        if self._intercepts:
            values, keys, timestamps_ms, key = (
                self._intercepted(view.name, values, keys, key, timestamps_ms, partition),
                None,
                None,
                None,
            )
        columns = columns_from(
            view.name,
            values,
            key=key,
            keys=keys,
            timestamps_ms=timestamps_ms,
            key_serializer=self._key_serializer,
            value_serializer=self._value_serializer,
        )
        return self.parts_of(view, columns, partition)

    def parts_of(self, view: TopicView, columns: BatchInput, partition: int | None) -> Iterator[EncodedPart]:
        view.used = True
        return encoded_parts(
            columns,
            self._available(view),
            self.partitioner,
            partition=partition,
            now_ms=self.clock.wall_ms(),
            bytes_max=min(self.config.batch_size, self.config.max_request_size),
            request_bytes_max=self.config.max_request_size,
            compression=self.accumulator.compression,
            will_be_stamped=self.config.idempotent,
        )

    def _intercepted(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        key: Any,
        times: Sequence[int | None] | None,
        partition: int | None,
    ) -> list[ProducerRecord]:
        records = []
        for index, value in enumerate(values):
            if not isinstance(value, (bytes, bytearray, memoryview)) and hasattr(value, "value"):
                given = ProducerRecord(
                    topic, value.value, getattr(value, "key", None), partition, getattr(value, "timestamp_ms", None)
                )
            else:
                own_key = key if keys is None else keys[index]
                given = ProducerRecord(topic, value, own_key, partition, None if times is None else times[index])
            records.append(self.interceptors.on_send(given))
        return records

    def arrow_parts(
        self, view: TopicView, table: Any, names: ColumnNames, partition: int | None
    ) -> Iterator[EncodedPart]:
        """The batches of one ``send_arrow``, encoded one by one as they are asked for."""
        from raylog.client.producer.arrow_input import arrow_parts, columns_of_table  # pyarrow is an extra

        if partition is not None and not 0 <= partition < len(view.partitions):
            raise unknown_partition(TopicPartition(view.name, partition), len(view.partitions))
        compiled = kernel.loaded()
        if compiled is None or self._default is None:
            return self.parts_of(view, columns_of_table(table, names, view), partition)
        view.used = True
        return arrow_parts(
            compiled,
            table,
            names,
            self._available(view),
            self._default,
            partition=partition,
            now_ms=self.clock.wall_ms(),
            bytes_max=min(self.config.batch_size, self.config.max_request_size),
            request_bytes_max=self.config.max_request_size,
            compression=self.accumulator.compression,
            will_be_stamped=self.config.idempotent,
        )

    def add_part(self, topic: str, part: EncodedPart) -> ProducerBatch:
        """Hand over one encoded batch for which ``len(part.data)`` bytes of memory were taken."""
        try:
            batch = self.accumulator.encoded_batch(topic, part.partition, part.data, part.record_count)
            if self._intercepts:
                batch.on_done.append(lambda: self._acknowledge_all(batch))
            self.accumulator.add_encoded(batch)
        except BaseException:
            self.memory.give_back(len(part.data))
            raise
        self.sender.wake()
        self.sender.let_in()
        return batch

    def _acknowledge_all(self, batch: ProducerBatch) -> None:
        for index in range(batch.record_count):
            self._tell(Delivery(batch, index, -1, -1, -1), None)

    # -------------------------------------------------------------- waiting, time, the end

    def no_room(self, size_bytes: int) -> BufferFullError:
        return BufferFullError(
            f"buffer.memory={self.config.buffer_memory} stayed full for max.block.ms={self.config.max_block_ms:g} "
            f"({self.memory.used_bytes} bytes are unacknowledged, {size_bytes} more were requested): "
            "send more slowly, raise buffer.memory, or find out why the cluster is slow (`raylog status`)"
        )

    async def fetch_topic(self, topic: str) -> TopicView:
        """A topic's metadata, waited for up to ``max.block.ms``."""
        check_topic_name(topic)
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                return await self.metadata.topic(topic)
        except TimeoutError:
            raise ClientTimeoutError(
                f"no metadata of topic {topic!r} within max.block.ms={self.config.max_block_ms:g} ({self.controller.trouble()})"
            ) from None

    async def _refresh_metadata(self) -> None:
        period_s = max(self.config.metadata_max_age_ms / 1000, 0.1)
        while True:
            await asyncio.sleep(period_s)
            self.metadata.forget_idle(self.config.metadata_max_idle_ms)
            try:
                if names := self.metadata.topic_names():
                    await self.metadata.refresh(names)
            except RaylogError as error:
                logger.debug("metadata were not refreshed: %s", error)

    async def flush(self, timeout_s: float | None) -> int:
        return await self.sender.flush(timeout_s)

    async def close(self, timeout_s: float | None) -> None:
        """Send what is there, up to ``timeout_s``; fail the rest with ClosedError; close the
        connections.
        """
        self.accumulator.close()
        try:
            if self.transaction_calls is not None:
                await self.transaction_calls.close()
            if timeout_s is None or timeout_s > 0:
                await self.sender.flush(timeout_s)
        finally:
            self._refresher.cancel()
            self.sender.stop()
            self.metadata.close()
            await self.connections.close()
            self.interceptors.close()
            if hasattr(self.partitioner, "close"):
                self.partitioner.close()


def check_topic_name(topic: str) -> None:
    """Refuse what can't name a topic before anybody is asked."""
    if not isinstance(topic, str) or not topic or len(topic) > 249:
        raise error_for(
            ErrorCode.invalid_topic_exception, f"{topic!r} is not a topic name: give text of 1 to 249 characters"
        )


class AsyncProducer:
    """A producer for coroutines, living in the loop in which it is first used.

    ::

        async with AsyncProducer(address, linger_ms=5) as producer:
            delivery = await producer.send("events", b"value", key=b"key")   # taken; waits only while buffer.memory is full
            metadata = await delivery                                        # acknowledged
    """

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._address = address
        self._options = {**(config or {}), **options}
        self._config = ProducerConfig.parse(config, options)
        self._core: ProducerCore | None = None
        self._closed = False

    def __reduce__(self) -> Any:
        return AsyncProducer, (self._address, self._options)

    def _opened(self) -> ProducerCore:
        if self._closed:
            raise ClosedError("this producer is closed: make another one")
        if self._core is None or self._core.loop is not asyncio.get_running_loop():
            self._core = ProducerCore(self._address, self._config)
        return self._core

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = NO_HEADERS,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Queue one record. The delivery is awaitable. Raises BufferFullError if there is no room
        within ``max.block.ms``.
        """
        core = self._opened()
        record, key_bytes, value_bytes = core.prepared(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        )
        view = core.metadata.cached(record.topic) or await core.fetch_topic(record.topic)
        size = core.size_of(key_bytes, value_bytes, record.headers)
        if not core.memory.try_take(size):
            await self._wait_for_room(core, size)
        return core.add(view, record, key_bytes, value_bytes, size, on_delivery)

    async def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        """``send``, then wait until the record is acknowledged."""
        return await (await self.send(topic, value, **options))

    async def send_batch(
        self,
        topic: str,
        values: Any,
        *,
        key: Any = None,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        on_delivery: OnBatchDelivery | None = None,
    ) -> BatchDelivery:
        """Queue many records in few large batches; see ``Producer.send_batch``."""
        if is_arrow(values):
            return await self.send_arrow(topic, values, partition=partition, on_delivery=on_delivery)
        core = self._opened()
        view = core.metadata.cached(topic) or await core.fetch_topic(topic)
        if not len(values):
            return BatchDelivery(topic, [])
        parts = core.parts(view, values, key=key, keys=keys, partition=partition, timestamps_ms=timestamps_ms)
        return await self._send_parts(core, topic, parts, on_delivery)

    async def send_arrow(
        self,
        topic: str,
        table: Any,
        *,
        partition: int | None = None,
        key_column: str = "key",
        value_column: str = "value",
        timestamp_column: str = "timestamp",
        headers_column: str = "headers",
        partition_column: str = "partition",
        on_delivery: OnBatchDelivery | None = None,
    ) -> BatchDelivery:
        """Queue the rows of a pyarrow Table or RecordBatch; see ``Producer.send_arrow``."""
        core = self._opened()
        view = core.metadata.cached(topic) or await core.fetch_topic(topic)
        if not table.num_rows:
            return BatchDelivery(topic, [])
        names = ColumnNames(key_column, value_column, timestamp_column, headers_column, partition_column)
        return await self._send_parts(core, topic, core.arrow_parts(view, table, names, partition), on_delivery)

    async def _send_parts(
        self,
        core: ProducerCore,
        topic: str,
        parts: Iterator[EncodedPart],
        on_delivery: OnBatchDelivery | None,
    ) -> BatchDelivery:
        batches: list[ProducerBatch] = []
        orders: list[Sequence[int]] = []
        for part in parts:
            if not core.memory.try_take(len(part.data)):
                await self._wait_for_room(core, len(part.data))
            batches.append(core.add_part(topic, part))
            if part.order is not None:
                orders.append(part.order)
            await asyncio.sleep(0)  # let the sender write it while the next one is encoded
        delivery = BatchDelivery(topic, batches, orders or None)
        if on_delivery is not None:
            delivery.call_when_done(on_delivery)
        return delivery

    def transaction(self) -> AsyncTransaction:
        """A transaction, which ``async with`` begins, commits and aborts. Needs ``transactional.id``."""
        return AsyncTransaction(self, self._opened(), self._config.transactional_id)

    async def _wait_for_room(self, core: ProducerCore, size: int) -> None:
        granted = asyncio.Event()

        def wake() -> None:
            core.loop.call_soon_threadsafe(granted.set)

        waiter = core.memory.wait(size, wake)
        core.sender.wake()
        try:
            async with asyncio.timeout(core.config.max_block_ms / 1000):
                await granted.wait()
        except TimeoutError:
            if not core.memory.leave(waiter):
                raise core.no_room(size) from None
        except BaseException:
            if core.memory.leave(waiter):
                core.memory.give_back(size)
            raise

    async def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has."""
        return len((await self._opened().fetch_topic(topic)).partitions)

    async def flush(self, timeout: float | None = None) -> int:
        """Wait until everything queued so far is acknowledged or has failed. Returns how many
        records are neither after ``timeout`` seconds.
        """
        return 0 if self._core is None else await self._core.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds and end. None waits as long as deliveries may take; 0
        drops what is queued.
        """
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await core.close(timeout)

    async def __aenter__(self) -> AsyncProducer:
        self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
