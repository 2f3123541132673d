"""A load whose every record can be accounted for: several idempotent producers, keyed records,
acks=all, a ledger of what was acknowledged and where.

::

    with VerifiableLoad(address, "t", partitions=3, records_per_second=6000) as load:
        ...                                  # kill something
    findings = audit_of(load, address)       # reads everything back
    assert findings.holds, findings.words()

Each producer is a thread of its own with its own client handle; the first sends its records one by
one (``send``), the others in portions (``send_batch``), so both ways are under fire. They are paced
and catch up after a pause, up to a bound. The topic must keep what it is given (no retention) while
the load is audited. What a record looks like and what the audit demands is in
``raylog.testing.ledger``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from raylog.client.links.address import ClusterAddress
from raylog.client.producer.deliveries import BatchResult, RecordMetadata
from raylog.client.sync import Consumer, Producer
from raylog.errors import ClientTimeoutError, RaylogError
from raylog.testing.ledger import Audit, Findings, LoadLedger, key_of, value_of
from raylog.types import TopicPartition

TICK_S = 0.04
SINGLE_TICK_S = 0.01
CATCH_UP_RECORDS_MAX = 2_000  # in one tick
FLUSH_S = 150.0  # longer than delivery.timeout.ms: every delivery is settled then
READ_PATIENCE_S = 60.0


class VerifiableLoad:
    """Runs between ``start`` and ``stop``; ``ledger`` says what was acknowledged."""

    def __init__(
        self,
        address: ClusterAddress,
        topic: str,
        *,
        partitions: int,
        producers: int = 3,
        records_per_second: int = 6_000,
        keys_per_producer: int = 24,
        value_bytes: int = 100,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.ledger = LoadLedger(time.time_ns() // 1_000 & 0xFFFFFFFF, producers, keys_per_producer)
        self.value_bytes = value_bytes
        self.started_at = self.stopped_at = 0.0
        self.begins = _ends(address, topic, partitions)  # nothing of this run lies below
        self._stopping = threading.Event()
        self._threads = [
            _Sending(self, number, Producer(address, acks="all", **(options or {})), records_per_second / producers)
            for number in range(producers)
        ]

    def start(self) -> None:
        self.started_at = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send nothing more and wait until every delivery is settled. Raises what a thread died of."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(FLUSH_S)
        self.stopped_at = time.monotonic()
        errors = [thread.error for thread in self._threads if thread.error is not None]
        if errors:
            raise errors[0]

    @property
    def rate(self) -> float:
        """Acknowledged records a second, from the start until everything was settled."""
        return self.ledger.acknowledged / max(1e-9, (self.stopped_at or time.monotonic()) - self.started_at)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is KeyboardInterrupt:
            self._stopping.set()  # somebody wants to leave: nobody waits for deliveries
        else:
            self.stop()

    def words(self) -> str:
        """What was sent and what became of it."""
        ledger = self.ledger
        refused = f", {ledger.failed:,} given up ({'; '.join(ledger.failures)})" if ledger.failed else ""
        return (
            f"{len(self._threads)} idempotent producers sent {ledger.sent:,} records to {self.topic}: "
            f"{ledger.acknowledged:,} acknowledged, {self.rate:,.0f} a second{refused}."
        )

    def is_stopping(self, within_s: float) -> bool:
        return self._stopping.wait(within_s)


class _Sending(threading.Thread):
    """One producer. It owns its column of the ledger; acknowledgements come on the clients'
    background thread.
    """

    def __init__(self, load: VerifiableLoad, number: int, producer: Producer, records_per_second: float) -> None:
        super().__init__(name=f"verifiable-load-{number}", daemon=True)
        self.error: BaseException | None = None
        self._load = load
        self._number = number
        self._producer = producer
        self._rate = records_per_second
        self._sends_single = number == 0
        self._sent = 0

    def run(self) -> None:
        load, started = self._load, time.monotonic()
        try:
            while not load.is_stopping(SINGLE_TICK_S if self._sends_single else TICK_S):
                due = int((time.monotonic() - started) * self._rate) - self._sent
                if due > 0:
                    self._send(min(due, CATCH_UP_RECORDS_MAX))
            if left := self._producer.flush(FLUSH_S):
                raise ClientTimeoutError(f"{left} records are not settled after {FLUSH_S:g} s")
        except BaseException as error:
            self.error = error
        finally:
            self._producer.close(0)

    def _send(self, count: int) -> None:
        load, number = self._load, self._number
        sequences = load.ledger.take(number, count)
        self._sent += count
        parts: dict[int, tuple[list[int], list[bytes], list[bytes]]] = {}
        for sequence in sequences:
            key = key_of(number, sequence, load.ledger.keys)
            value = value_of(load.ledger.run, number, sequence, key, value_bytes=load.value_bytes)
            if self._sends_single:
                self._producer.send(load.topic, value, key=key, on_delivery=self._settled(sequence))
                continue
            taken, keys, values = parts.setdefault(sequence % load.ledger.keys % load.partitions, ([], [], []))
            taken.append(sequence)
            keys.append(key)
            values.append(value)
        for partition, (taken, keys, values) in parts.items():
            self._producer.send_batch(
                load.topic, values, keys=keys, partition=partition, on_delivery=self._all_settled(taken)
            )

    def _settled(self, sequence: int) -> Callable[[RecordMetadata | None, RaylogError | None], None]:
        def note(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
            ledger = self._load.ledger
            if metadata is None:
                ledger.fail(self._number, [sequence], str(error))
            else:
                place = (metadata.partition, metadata.offset)
                ledger.acknowledge(self._number, [sequence], [place], time.monotonic())

        return note

    def _all_settled(self, sequences: list[int]) -> Callable[[BatchResult | None, RaylogError | None], None]:
        def note(result: BatchResult | None, error: RaylogError | None) -> None:
            ledger = self._load.ledger
            if result is None:
                ledger.fail(self._number, sequences, str(error))
            else:
                ledger.acknowledge(self._number, sequences, result.offsets(), time.monotonic())

        return note


class LoadAudit:
    """An audit that reads the topic itself, from where the load began, as far as it is asked to."""

    def __init__(self, load: VerifiableLoad, address: ClusterAddress) -> None:
        self._load = load
        self._address = address
        self.audit = Audit(load.ledger)
        for partition, begin in load.begins.items():
            self.audit.passed(partition, begin)

    def catch_up(self) -> int:
        """Read up to what the ends are now and judge; how many acknowledged records are newly found
        lost.
        """
        ends = _ends(self._address, self._load.topic, self._load.partitions)
        self._read(ends)
        return self.audit.settle()

    def finish(self) -> Findings:
        """After the load has stopped: read the rest and judge everything."""
        self._read(_ends(self._address, self._load.topic, self._load.partitions))
        return self.audit.finish()

    def _read(self, ends: Mapping[int, int]) -> None:
        positions = self.audit.positions
        topic = self._load.topic
        behind = [partition for partition, end in ends.items() if positions.get(partition, 0) < end]
        if not behind:
            return
        with Consumer(self._address, auto_offset_reset="earliest") as consumer:  # what was deleted shows as lost
            consumer.assign([TopicPartition(topic, partition) for partition in behind])
            for partition in behind:
                consumer.seek(TopicPartition(topic, partition), positions.get(partition, 0))
            deadline = time.monotonic() + READ_PATIENCE_S
            while any(positions.get(partition, 0) < ends[partition] for partition in behind):
                table = consumer.poll_batch(timeout=1.0)
                if table.num_rows:
                    deadline = time.monotonic() + READ_PATIENCE_S
                elif time.monotonic() > deadline:
                    raise ClientTimeoutError(f"{topic}: nothing comes at {positions}, its ends are {dict(ends)}")
                for partition, offset, key, value in zip(
                    table["partition"].to_pylist(),
                    table["offset"].to_pylist(),
                    table["key"].to_pylist(),
                    table["value"].to_pylist(),
                    strict=True,
                ):
                    self.audit.take(partition, offset, key, value)


def audit_of(load: VerifiableLoad, address: ClusterAddress) -> Findings:
    """Read back everything of a load that has stopped and hold it against its ledger."""
    return LoadAudit(load, address).finish()


def _ends(address: ClusterAddress, topic: str, partitions: int) -> dict[int, int]:
    keys = [TopicPartition(topic, partition) for partition in range(partitions)]
    with Consumer(address) as consumer:
        consumer.assign(keys)
        return {key.partition: end for key, end in consumer.end_offsets(keys).items()}
