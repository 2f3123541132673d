"""``raylog verifiable-producer`` and ``raylog verifiable-consumer``: clients for tests of a cluster
that say each thing they do as a line of JSON, with the options and events of Kafka's tools of these
names.

A test compares what was acknowledged with what was read. Both stop cleanly at SIGTERM and SIGINT: the
first one ends the work, and the end is told; a second one ends the process.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, open_consumer, open_producer
from raylog.cli.output import place, print_json
from raylog.errors import RaylogError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.producer.deliveries import RecordMetadata
    from raylog.client.sync import Consumer, Producer
    from raylog.records.record import Record

POLL_S = 0.2

Topic = Annotated[str, typer.Option(help="The topic's name.", show_default=False)]
MaxMessages = Annotated[int, typer.Option(help="Stop after this many records; -1: at a signal.")]


class ResetPolicy(Enum):
    earliest = "earliest"
    latest = "latest"
    none = "none"


@dataclass(slots=True)
class Stop:
    """Whether a signal has asked for the end."""

    is_wanted: bool = False


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """SIGTERM and SIGINT set the flag meanwhile, instead of ending the process. A client is closed
    after it, so that a second signal ends a wait for its last deliveries.
    """
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.is_wanted = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell(name: str, **facts: Any) -> None:
    """One event: a line of JSON that is written at once."""
    print_json({"timestamp": time.time_ns() // 1_000_000, "name": name} | facts)
    sys.stdout.flush()


# ------------------------------------------------------------------ producing


def verifiable_producer(
    topic: Topic,
    max_messages: MaxMessages = -1,
    throughput: Annotated[int, typer.Option(help="At most this many records per second; -1 for no limit.")] = -1,
    acks: Annotated[int, typer.Option(min=-1, max=1, help="-1, 0 or 1.")] = -1,
    message_create_time: Annotated[
        int, typer.Option(help="Timestamp of the first record in ms since 1970, of each further one 1 more; -1: now.")
    ] = -1,
    value_prefix: Annotated[
        int | None, typer.Option(min=0, help="Write values as PREFIX.NUMBER.", show_default=False)
    ] = None,
    repeating_keys: Annotated[
        int | None, typer.Option(min=1, help="Give keys from 0 up to this many, over and over.", show_default=False)
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
) -> None:
    """Send numbered records and print what became of each, as lines of JSON.

    Exits with 1 if a record was not acknowledged.
    """
    tally = _Tally(topic, throughput)
    with open_producer(folder, address, timeout, {"acks": acks}) as producer, stopped_by_signals() as stop:
        tell("startup_complete")
        for number in _paced(max_messages, throughput, stop):
            value = str(number) if value_prefix is None else f"{value_prefix}.{number}"
            key = None if repeating_keys is None else str(number % repeating_keys)
            moment = None if message_create_time < 0 else message_create_time + number
            tally.send(producer, key, value, moment)
    tell("shutdown_complete")
    tally.tell_summary()
    if tally.acked < tally.sent:
        raise typer.Exit(1)


def _paced(max_messages: int, throughput: int, stop: Stop) -> Iterator[int]:
    """The numbers of records, each when its time has come."""
    begun = time.monotonic()
    number = 0
    while not stop.is_wanted and not 0 <= max_messages <= number:
        yield number
        number += 1
        while throughput > 0 and not stop.is_wanted:
            ahead_s = begun + number / throughput - time.monotonic()
            if ahead_s <= 0:
                break
            time.sleep(min(ahead_s, POLL_S))


class _Tally:
    """What was sent and what became of it. Events of deliveries come from the client's thread."""

    def __init__(self, topic: str, target: int) -> None:
        self.sent = self.acked = 0
        self._topic = topic
        self._target = target
        self._begun = time.monotonic()

    def send(self, producer: Producer, key: str | None, value: str, moment: int | None) -> None:
        self.sent += 1

        def settled(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
            if metadata is not None:
                self.acked += 1
                tell(
                    "producer_send_success",
                    key=key,
                    value=value,
                    topic=metadata.topic,
                    partition=metadata.partition,
                    offset=metadata.offset,
                )
            elif error is not None:
                self._failed(key, value, error)

        try:
            producer.send(
                self._topic,
                value.encode(),
                key=None if key is None else key.encode(),
                timestamp_ms=moment,
                on_delivery=settled,
            )
        except RaylogError as error:
            self._failed(key, value, error)

    def _failed(self, key: str | None, value: str, error: RaylogError) -> None:
        tell(
            "producer_send_error",
            topic=self._topic,
            key=key,
            value=value,
            exception=type(error).__name__,
            message=str(error),
        )

    def tell_summary(self) -> None:
        rate = self.acked / (time.monotonic() - self._begun)
        tell("tool_data", sent=self.sent, acked=self.acked, target_throughput=self._target, avg_throughput=rate)


# ------------------------------------------------------------------ consuming


def verifiable_consumer(
    topic: Topic,
    group_id: Annotated[str, typer.Option(help="The group of which it is a member.", show_default=False)],
    group_instance_id: Annotated[
        str | None, typer.Option(help="The name of a static member.", show_default=False)
    ] = None,
    max_messages: MaxMessages = -1,
    session_timeout: Annotated[int, typer.Option(min=1, help="The session's time-out in ms.")] = 30_000,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell of each record, too.")] = False,
    enable_autocommit: Annotated[
        bool, typer.Option("--enable-autocommit", help="Commit in the background, not after each poll.")
    ] = False,
    reset_policy: Annotated[
        ResetPolicy, typer.Option(help="Where to begin without a committed offset.")
    ] = ResetPolicy.earliest,
    assignment_strategy: Annotated[
        str | None, typer.Option(help="partition.assignment.strategy, as range.", show_default=False)
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
) -> None:
    """Read a topic as a member of a group, and print what it is given, reads and commits, as lines
    of JSON.
    """
    options: dict[str, Any] = {
        "group.id": group_id,
        "session.timeout.ms": session_timeout,
        "enable.auto.commit": enable_autocommit,
        "auto.offset.reset": reset_policy.value,
    }
    if group_instance_id is not None:
        options["group.instance.id"] = group_instance_id
    if assignment_strategy is not None:
        options["partition.assignment.strategy"] = assignment_strategy
    with open_consumer(folder, address, timeout, options) as consumer, stopped_by_signals() as stop:
        tell("startup_complete")
        consumer.subscribe(
            [topic],
            on_assigned=lambda partitions: tell("partitions_assigned", partitions=_plain(partitions)),
            on_revoked=lambda partitions: tell("partitions_revoked", partitions=_plain(partitions)),
        )
        _consume(consumer, max_messages, stop, verbose=verbose, commits=not enable_autocommit)
    tell("shutdown_complete")


def _consume(consumer: Consumer, max_messages: int, stop: Stop, *, verbose: bool, commits: bool) -> None:
    read = 0
    while not stop.is_wanted and not 0 <= max_messages <= read:
        records = consumer.consume(None if max_messages < 0 else max_messages - read, timeout=POLL_S)
        if not records:
            continue
        read += len(records)
        for record in records if verbose else ():
            tell(
                "record_data",
                **place(_key(record)),
                offset=record.offset,
                key=_text(record.key),
                value=_text(record.value),
            )
        ends = _tell_consumed(records)
        if commits:
            _commit(consumer, ends)


def _tell_consumed(records: Sequence[Record]) -> dict[TopicPartition, int]:
    """Tell of the records of a poll. Returns the offsets that follow them."""
    ends: dict[TopicPartition, int] = {}
    partitions = []
    for key, group in groupby(sorted(records, key=lambda record: (_key(record), record.offset)), _key):
        offsets = [record.offset for record in group]
        partitions.append({**place(key), "count": len(offsets), "minOffset": offsets[0], "maxOffset": offsets[-1]})
        ends[key] = offsets[-1] + 1
    tell("records_consumed", count=len(records), partitions=partitions)
    return ends


def _commit(consumer: Consumer, ends: dict[TopicPartition, int]) -> None:
    failure: dict[str, str] = {}
    try:
        consumer.commit(ends)
    except RaylogError as error:
        failure = {"error": str(error)}
    offsets = [{**place(key), "offset": offset} for key, offset in ends.items()]
    tell("offsets_committed", offsets=offsets, success=not failure, **failure)


def _key(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _plain(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [place(key) for key in sorted(partitions)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
