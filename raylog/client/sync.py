"""The blocking faces of the clients: ``Producer``, ``Consumer``, ``AdminClient``. Usable from any
thread, notebook, task or actor.

A handle is small: an address and a configuration. It pickles, connects at its first use and shares
one background loop with all other handles of the process. Blocking calls may be made inside a
running event loop (a notebook's) since the work is done on another one, but they do block it:
coroutines want the ``Async`` classes. In a forked child a handle connects anew.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import uuid
import weakref
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from raylog.client import background as background_module
from raylog.client.admin.actors import ActorCalls
from raylog.client.admin.admin import (
    AnyBroker,
    AsyncAdminClient,
    ClusterDescription,
    DrainProgress,
    ElectionKind,
    NewTopic,
    OffsetInfo,
    OffsetSpec,
    Reassignment,
    TopicDescription,
)
from raylog.client.admin.client_metrics import ClientMetricsCalls
from raylog.client.admin.config_entries import ConfigEntry
from raylog.client.admin.controllers import ControllerCalls
from raylog.client.admin.groups import GroupCalls
from raylog.client.admin.inspection import InspectionCalls, ProducerInfo
from raylog.client.admin.transactions import TransactionInspection
from raylog.client.admin.verification import OnPartition, Verification
from raylog.client.background import background, notice_fork
from raylog.client.config import AdminConfig, ProducerConfig
from raylog.client.consumer.sync_consumer import Consumer
from raylog.client.interceptors import ProducerRecord
from raylog.client.links.address import ClusterAddress
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import TopicView
from raylog.client.producer.batch_input import ColumnNames, EncodedPart, is_arrow
from raylog.client.producer.deliveries import BatchDelivery, Delivery, OnBatchDelivery
from raylog.client.producer.producer import NO_HEADERS, OnDelivery, ProducerCore
from raylog.client.producer.producer_batch import ProducerBatch
from raylog.client.security.acls import AclCalls
from raylog.client.security.quotas import QuotaCalls
from raylog.client.security.tokens import TokenCalls
from raylog.client.security.users import UserCalls
from raylog.client.transactions.transaction import Transaction
from raylog.errors import ClosedError, RaylogError
from raylog.records.record import Header
from raylog.types import TopicPartition

__all__ = ["AdminClient", "Consumer", "Producer", "call"]

logger = logging.getLogger("raylog.client")

T = TypeVar("T")
EXIT_FLUSH_S = 5.0
_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer:
    """A producer. Its options are Kafka's (``linger_ms=5`` or ``{"linger.ms": 5}``). Unknown
    options are refused.

    ::

        with Producer(address) as producer:
            delivery = producer.send_batch("events", [b"a", b"b"])
            print(delivery.result().offsets())
    """

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._address = address
        self._options = {**(config or {}), **options}
        self._config = ProducerConfig.parse(config, options)
        self._live: ProducerCore | None = None
        self._generation = background_module.generation
        self._lock = threading.Lock()
        self._closed = False
        self._finalizer: Any = None

    def __reduce__(self) -> Any:
        return Producer, (self._address, self._options)

    def __repr__(self) -> str:
        return f"<Producer for cluster {self._address.name!r}>"

    # -------------------------------------------------------------- sending

    def send(
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
        """Queue one record and return at once. ``.result()`` of the delivery waits for the
        acknowledgement.

        Blocks while ``buffer.memory`` is full, up to ``max.block.ms``, and then raises
        BufferFullError. ``on_delivery(metadata, error)`` is called on another thread when the
        record is acknowledged or has failed.
        """
        core = self._live
        if core is None or self._generation != background_module.generation or self._closed:
            core = self._core()
        record, key_bytes, value_bytes = core.prepared(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        )
        view = core.metadata.cached(record.topic) or self._fetch_topic(core, record.topic)
        size = core.size_of(key_bytes, value_bytes, record.headers)
        if not core.memory.try_take(size):
            self._wait_for_room(core, size)
        return core.add(view, record, key_bytes, value_bytes, size, on_delivery)

    def send_batch(
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
        """Queue many records in few large batches. This is the fast way.

        ``values`` are bytes (or what ``value.serializer`` takes), objects with ``value`` and
        optionally ``key``, ``timestamp_ms`` and ``headers``, or an Arrow table. ``key`` applies to
        all values, ``keys`` to one each. Without key and partition, the producer picks a partition
        for each batch. Order is kept per partition. If one record is too large, the call refuses
        all of them before it sends anything. Later failures concern single batches, and the
        delivery shows them. ``on_delivery(result, error)`` is called once, when all records are
        acknowledged or have failed.
        """
        if is_arrow(values):
            return self.send_arrow(topic, values, partition=partition, on_delivery=on_delivery)
        core = self._core()
        view = core.metadata.cached(topic) or self._fetch_topic(core, topic)
        if not len(values):
            return BatchDelivery(topic, [])
        parts = core.parts(view, values, key=key, keys=keys, partition=partition, timestamps_ms=timestamps_ms)
        return self._send_parts(core, topic, parts, on_delivery)

    def send_arrow(
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
        """Queue the rows of a pyarrow Table or RecordBatch. Only the value column is required,
        binary or string.

        A row goes to ``partition``, otherwise to the partition in its partition column, otherwise
        to that of its key, otherwise to one that the producer picks. Timestamps are Arrow's or
        milliseconds; headers are lists of structs (key, value) or maps. In all else it works as
        ``send_batch`` does, without a Python object per record.
        """
        core = self._core()
        view = core.metadata.cached(topic) or self._fetch_topic(core, topic)
        if not table.num_rows:
            return BatchDelivery(topic, [])
        names = ColumnNames(key_column, value_column, timestamp_column, headers_column, partition_column)
        return self._send_parts(core, topic, core.arrow_parts(view, table, names, partition), on_delivery)

    def _send_parts(
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
                self._wait_for_room(core, len(part.data))
            batches.append(core.add_part(topic, part))
            if part.order is not None:
                orders.append(part.order)
        delivery = BatchDelivery(topic, batches, orders or None)
        if on_delivery is not None:
            delivery.call_when_done(on_delivery)
        return delivery

    def transaction(self) -> Transaction:
        """A transaction, which a ``with`` block begins, commits and aborts. Needs ``transactional.id``."""
        return Transaction(self, self._core(), self._config.transactional_id)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were queued and are neither acknowledged nor failed."""
        return 0 if self._live is None else self._live.memory.used_bytes

    def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has. Raises UnknownTopicOrPartitionError."""
        return len(self._fetch_topic(self._core(), topic).partitions)

    # -------------------------------------------------------------- the end

    def flush(self, timeout: float | None = None) -> int:
        """Wait until everything queued so far is acknowledged or has failed. Returns how many
        records are neither after ``timeout`` seconds.
        """
        core = self._live
        if core is None or not core.accumulator.unfinished:
            return 0
        return background().run(core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds and end. None waits as long as deliveries may take; 0
        drops what is queued. Idempotent.
        """
        self._closed = True
        core, self._live = self._live, None
        _open_producers.discard(self)
        if self._finalizer is not None:
            self._finalizer.detach()
        if core is not None and self._generation == background_module.generation:
            background().run(core.close(timeout))

    def __enter__(self) -> Self:
        self._core()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -------------------------------------------------------------- inside

    def _core(self) -> ProducerCore:
        if self._closed:
            raise ClosedError("this producer is closed: make another one")
        if self._live is not None and self._generation == background_module.generation:
            return self._live
        if self._live is not None:  # opened before a fork
            notice_fork(repr(self))
            self._lock = threading.Lock()
            self._live = None
        with self._lock:
            if self._live is None:
                core = background().run(self._made())
                self._generation = background_module.generation
                self._finalizer = weakref.finalize(self, _abandon, core, self._generation)
                self._finalizer.atexit = False
                self._live = core
                _open_producers.add(self)
        return self._live

    async def _made(self) -> ProducerCore:
        """A core, in the loop that it lives in."""
        return ProducerCore(self._address, self._config)

    def _fetch_topic(self, core: ProducerCore, topic: str) -> TopicView:
        return background().run(core.fetch_topic(topic))

    def _wait_for_room(self, core: ProducerCore, size: int) -> None:
        if threading.current_thread() is background().thread:
            raise core.no_room(size)  # waiting here would stop the sender that makes room
        granted = threading.Event()
        waiter = core.memory.wait(size, granted.set)
        core.sender.wake()
        try:
            arrived = granted.wait(core.config.max_block_ms / 1000)
        except BaseException:
            if core.memory.leave(waiter):
                core.memory.give_back(size)
            raise
        if not arrived and not core.memory.leave(waiter):
            raise core.no_room(size)


class AdminClient(
    GroupCalls,
    ActorCalls,
    ControllerCalls,
    InspectionCalls,
    TransactionInspection,
    AclCalls,
    UserCalls,
    QuotaCalls,
    ClientMetricsCalls,
    TokenCalls,
):
    """Manages topics, configs, offsets and brokers. ``AsyncAdminClient`` describes each call."""

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._address = address
        self._options = {**(config or {}), **options}
        self._client: AsyncAdminClient = AsyncAdminClient(address, config, **options)
        self._generation = background_module.generation

    def __reduce__(self) -> Any:
        return AdminClient, (self._address, self._options)

    def __repr__(self) -> str:
        return f"<AdminClient for cluster {self._address.name!r}>"

    def create_topics(
        self,
        topics: Iterable[NewTopic] | NewTopic,
        *,
        validate_only: bool = False,
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Create topics. Producers and consumers can use them when the call returns."""
        listed = [topics] if isinstance(topics, NewTopic) else list(topics)
        self._run(
            self._client.create_topics(
                listed, validate_only=validate_only, if_not_exists=if_not_exists, timeout=timeout
            )
        )

    def delete_topics(
        self,
        names: Iterable[str | uuid.UUID] | str | uuid.UUID,
        *,
        if_exists: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Delete topics, by name or by id, with all their records."""
        listed = [names] if isinstance(names, str | uuid.UUID) else list(names)
        self._run(self._client.delete_topics(listed, if_exists=if_exists, timeout=timeout))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics."""
        return self._run(self._client.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str] | str | None = None) -> dict[str, TopicDescription]:
        """Topics by name, or all topics if no names are given."""
        listed = [names] if isinstance(names, str) else names
        return self._run(self._client.describe_topics(listed))

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        new_assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raise the number of partitions of a topic to ``total``."""
        self._run(
            self._client.create_partitions(
                topic, total, new_assignments=new_assignments, validate_only=validate_only, timeout=timeout
            )
        )

    def describe_configs(
        self,
        topic: str | None = None,
        *,
        broker: AnyBroker | None = None,
        group: str | None = None,
        keys: Sequence[str] | None = None,
    ) -> dict[str, ConfigEntry]:
        """The configs of a topic, broker or group."""
        return self._run(self._client.describe_configs(topic, broker=broker, group=group, keys=keys))

    def alter_configs(
        self,
        topic: str | None = None,
        *,
        set: Mapping[str, Any] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, Any] | None = None,
        subtract: Mapping[str, Any] | None = None,
        broker: AnyBroker | None = None,
        group: str | None = None,
        validate_only: bool = False,
    ) -> None:
        """Set and delete configs."""
        self._run(
            self._client.alter_configs(
                topic,
                set=set,
                delete=delete,
                append=append,
                subtract=subtract,
                broker=broker,
                group=group,
                validate_only=validate_only,
            )
        )

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Cluster id, controller and brokers."""
        return self._run(self._client.describe_cluster(include_fenced=include_fenced))

    def list_offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, OffsetInfo]:
        """Offsets by "earliest", "latest", "max_timestamp" or time."""
        return self._run(self._client.list_offsets(specs))

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete everything below these offsets."""
        return self._run(self._client.delete_records(offsets))

    def verify_replicas(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        patience: float = 30.0,
        on_partition: OnPartition = lambda report: None,
        repair: bool = False,
    ) -> Verification:
        """Compare all replicas byte for byte below the high watermark. ``on_partition`` is called
        on another thread.

        ``repair`` copies a replica anew if it is damaged or differs from the majority, and the
        result names it.
        """
        listed = [topics] if isinstance(topics, str) else topics
        return self._run(
            self._client.verify_replicas(listed, patience=patience, on_partition=on_partition, repair=repair)
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerInfo, ...]]:
        """The producers that the partitions' leaders remember."""
        return self._run(self._client.describe_producers(partitions))

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        kind: ElectionKind = "preferred",
        timeout: float | None = None,
    ) -> dict[TopicPartition, RaylogError | None]:
        """Hold preferred or unclean elections. Per partition None, or why none was held."""
        return self._run(self._client.elect_leaders(partitions, kind=kind, timeout=timeout))

    def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        throttle_bytes: int | None = None,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> dict[TopicPartition, RaylogError | None]:
        """Move partitions to other brokers, or cancel moves. Per partition None, or why it was
        refused.
        """
        return self._run(
            self._client.reassign(
                targets,
                throttle_bytes=throttle_bytes,
                allow_replication_factor_change=allow_replication_factor_change,
                timeout=timeout,
            )
        )

    def clear_throttles(self, topics: Iterable[str], *, disk_moves: bool = False) -> tuple[list[int], list[str]]:
        """Remove the replication throttles of all brokers and of these topics; ``disk_moves``: and
        those of moves between disks. Returns the brokers, and which of the topics exist.
        """
        return self._run(self._client.clear_throttles(topics, disk_moves=disk_moves))

    def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way."""
        return self._run(self._client.list_reassignments(partitions))

    def drain_broker(self, broker: int) -> DrainProgress:
        """Move every leader away from a broker and keep leaders away. Idempotent."""
        return self._run(self._client.drain_broker(broker))

    def undrain_broker(self, broker: int) -> None:
        """Let a broker lead again."""
        self._run(self._client.undrain_broker(broker))

    def unregister_broker(self, broker: int) -> None:
        """Remove a broker that holds no replica from the cluster."""
        self._run(self._client.unregister_broker(broker))

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._generation == background_module.generation:
            background().run(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return background().run(work)


def call(address: ClusterAddress, request: Any, *, timeout_s: float = 30) -> Any:
    """The active controller's reply to one request, over a connection made for it."""

    async def ask() -> Any:
        link = ClusterLink(address, AdminConfig.parse())
        try:
            return await link.controller.request(request, timeout_ms=timeout_s * 1000)
        finally:
            await link.close()

    return background().run(ask(), timeout_s + 5)


def _flush_at_exit() -> None:
    """The interpreter ends: what producers still hold gets some seconds to leave."""
    for producer in list(_open_producers):
        try:
            if producer.flush(EXIT_FLUSH_S):
                logger.warning(
                    "%r still held records when the interpreter ended: call flush() or close() before", producer
                )
            producer.close(0)
        except RaylogError as error:
            logger.warning("%r could not be closed: %s", producer, error)


atexit.register(_flush_at_exit)


def _abandon(core: ProducerCore, generation: int) -> None:
    """A producer was dropped without close(): send what it holds and close its connections behind
    its back.
    """
    if generation == background_module.generation:
        try:
            asyncio.run_coroutine_threadsafe(core.close(None), core.loop)
        except RuntimeError:
            pass  # the loop is gone, at the interpreter's end
