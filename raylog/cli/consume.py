"""``raylog consume``: records as lines."""

from __future__ import annotations

import json
import sys
import time
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, ConsumerConfig, Folder, Timeout, open_consumer
from raylog.cli.output import AsJson, notice, print_json, text_or_base64
from raylog.cli.schema_registry import RegistryCa, RegistryPasswordFile, RegistryUrl, RegistryUser, decoder_of
from raylog.cli.topics import parse_configs
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.records.record import Record
    from raylog.schemas.decoding import Decoded, NotDecoded, Reading, SchemaDecoder

POLL_S = 0.2
REGISTRY_WAIT_S = 10.0
"""For what one poll brought: nobody reloads a line, so it is longer than for a page."""


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
    schema_registry: RegistryUrl = None,
    schema_registry_user: RegistryUser = None,
    schema_registry_password_file: RegistryPasswordFile = None,
    schema_registry_ca: RegistryCa = None,
    config: ConsumerConfig = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print the values of a topic's records, a line each, as they come; --json adds everything
    else.

    Without --from-beginning or --offset it starts with the records that come from now on. A value whose
    schema the registry cannot give is printed in hex.
    """
    if offset is not None and (partition is None or len(partition) != 1):
        raise typer.BadParameter("--offset needs exactly one --partition")
    if offset is not None and from_beginning:
        raise typer.BadParameter("give --offset or --from-beginning, not both")
    decoder = decoder_of(schema_registry, schema_registry_user, schema_registry_password_file, schema_registry_ca)
    printer = _Printer(decoder, print_key=print_key, as_json=as_json)
    options = parse_configs(config)
    if isolation_level is not Isolation.READ_UNCOMMITTED:
        options["isolation.level"] = isolation_level.value
    with open_consumer(folder, address, timeout, options) as consumer:
        numbers = partition if partition is not None else list(range(consumer.partitions_for(topic)))
        chosen = [TopicPartition(topic, number) for number in numbers]
        _start(consumer, chosen, offset, from_beginning=from_beginning)
        ends = consumer.end_offsets(chosen) if until_end else {}
        read = _print_records(consumer, chosen, ends, max_messages, timeout_ms, printer)
    if not as_json and sys.stderr.isatty():
        notice(f"{read} records")


def _start(consumer: Any, chosen: list[TopicPartition], offset: int | None, *, from_beginning: bool) -> None:
    consumer.assign(chosen)
    if offset is not None:
        consumer.seek(chosen[0], offset)
    elif from_beginning:
        consumer.seek_to_beginning()
    else:
        consumer.seek_to_end()


def _print_records(
    consumer: Any,
    chosen: list[TopicPartition],
    ends: dict[TopicPartition, int],
    max_messages: int | None,
    timeout_ms: int | None,
    printer: _Printer,
) -> int:
    read = 0
    last_record_at = time.monotonic()
    while True:
        if ends and all(consumer.position(each) >= ends[each] for each in chosen):
            return read
        records = consumer.consume(timeout=POLL_S)
        printer.begin()
        for record in records:
            if ends and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                continue
            printer.print(record)
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


class _Printer:
    """Writes records to stdout. ``decoder``: of a schema registry, if there is one."""

    def __init__(self, decoder: SchemaDecoder | None, *, print_key: bool, as_json: bool) -> None:
        self._decoder = decoder
        self._reading: Reading | None = None
        self._print_key = print_key
        self._as_json = as_json
        self._last_notice = ""

    def begin(self) -> None:
        """For what one poll brought."""
        self._reading = None if self._decoder is None else self._decoder.reading(wait_s=REGISTRY_WAIT_S)

    def print(self, record: Record) -> None:
        if self._as_json:
            document: dict[str, Any] = {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                **self._field("key", record.key),
                **self._field("value", record.value),
                "headers": [{"key": name, **text_or_base64("value", value)} for name, value in record.headers],
                "leader_epoch": record.leader_epoch,
            }
            print_json(document)
            return
        line = self._line(record.value) or b""
        if self._print_key:
            line = (self._line(record.key) or b"null") + b"\t" + line
        sys.stdout.write(line.decode(errors="replace") + "\n")

    def _field(self, name: str, data: bytes | None) -> dict[str, Any]:
        """Of a document: the decoded value and its schema, or the data as ever."""
        found = self._decoded(data)
        if found is None:
            return dict(text_or_base64(name, data))
        from raylog.schemas.decoding import NotDecoded

        if isinstance(found, NotDecoded):
            schema = {"id": found.schema_id, "not_decoded": found.reason}
            return {**text_or_base64(name, data), f"{name}_schema": schema}
        return {name: json.loads(found.text()), f"{name}_schema": {"id": found.schema_id, "type": found.kind}}

    def _line(self, data: bytes | None) -> bytes | None:
        """JSON of what is decoded; hex, and a notice of the reason, of what can't be; else the data."""
        found = self._decoded(data)
        if found is None or data is None:
            return data
        from raylog.schemas.decoding import NotDecoded

        if not isinstance(found, NotDecoded):
            return found.text().encode()
        told = f"A message with schema {found.schema_id} is not decoded: {found.reason}"
        if told != self._last_notice:
            notice(told)
            self._last_notice = told
        return data.hex().encode()

    def _decoded(self, data: bytes | None) -> Decoded | NotDecoded | None:
        return None if data is None or self._reading is None else self._reading.decoded(data)
