"""``raylog consume``: records as lines."""

from __future__ import annotations

import sys
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, ConsumerConfig, Folder, Timeout, open_consumer
from raylog.cli.output import AsJson, notice, print_json, text_or_base64
from raylog.cli.topics import parse_configs
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.records.record import Record

POLL_S = 0.2


class Isolation(Enum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


def consume(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this partition; may be repeated.", show_default=False)
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the first record.")] = False,
    offset: Annotated[
        int | None, typer.Option(min=0, help="Start at this offset (with one --partition).", show_default=False)
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop where the partitions end now instead of waiting for more.")
    ] = False,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many records.", show_default=False)
    ] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many milliseconds without a record.", show_default=False)
    ] = None,
    isolation_level: Annotated[
        Isolation, typer.Option(help="read_committed leaves out records of aborted and open transactions.")
    ] = Isolation.READ_UNCOMMITTED,
    print_key: Annotated[bool, typer.Option("--print-key", help="Print KEY, a tab, VALUE.")] = False,
    config: ConsumerConfig = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print the values of a topic's records, a line each, as they come; --json adds everything
    else.

    Without --from-beginning or --offset it starts with the records that come from now on.
    """
    if offset is not None and (partition is None or len(partition) != 1):
        raise typer.BadParameter("--offset needs exactly one --partition")
    if offset is not None and from_beginning:
        raise typer.BadParameter("give --offset or --from-beginning, not both")
    options = parse_configs(config)
    if isolation_level is not Isolation.READ_UNCOMMITTED:
        options["isolation.level"] = isolation_level.value
    with open_consumer(folder, address, timeout, options) as consumer:
        numbers = partition if partition is not None else list(range(consumer.partitions_for(topic)))
        chosen = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(chosen)
        if offset is not None:
            consumer.seek(chosen[0], offset)
        elif from_beginning:
            consumer.seek_to_beginning()
        else:
            consumer.seek_to_end()
        ends = consumer.end_offsets(chosen) if until_end else {}
        read = _print_records(consumer, chosen, ends, max_messages, timeout_ms, print_key=print_key, as_json=as_json)
    if not as_json and sys.stderr.isatty():
        notice(f"{read} records")


def _print_records(
    consumer: Any,
    chosen: list[TopicPartition],
    ends: dict[TopicPartition, int],
    max_messages: int | None,
    timeout_ms: int | None,
    *,
    print_key: bool,
    as_json: bool,
) -> int:
    read = 0
    last_record_at = time.monotonic()
    while True:
        if ends and all(consumer.position(each) >= ends[each] for each in chosen):
            return read
        records = consumer.consume(timeout=POLL_S)
        for record in records:
            if ends and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                continue
            _print_record(record, print_key=print_key, as_json=as_json)
            read += 1
            if max_messages is not None and read >= max_messages:
                sys.stdout.flush()
                return read
        sys.stdout.flush()
        now = time.monotonic()
        if records:
            last_record_at = now
        elif timeout_ms is not None and (now - last_record_at) * 1000 >= timeout_ms:
            return read


def _print_record(record: Record, *, print_key: bool, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **text_or_base64("key", record.key),
            **text_or_base64("value", record.value),
            "headers": [{"key": name, **text_or_base64("value", value)} for name, value in record.headers],
            "leader_epoch": record.leader_epoch,
        }
        print_json(document)
        return
    line = record.value or b""
    if print_key:
        line = (record.key or b"null") + b"\t" + line
    sys.stdout.write(line.decode(errors="replace") + "\n")
