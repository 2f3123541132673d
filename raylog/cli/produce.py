"""``raylog produce``: lines from a file or a pipe become records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import typer

from raylog.cli.connection import (
    CONNECT_TIMEOUT_S,
    Acks,
    Address,
    Compression,
    Folder,
    ProducerConfig,
    Timeout,
    open_producer,
)
from raylog.cli.output import AsJson, notice, print_json, progress_bar
from raylog.cli.topics import parse_configs
from raylog.errors import ConfigError

LINES_PER_BATCH = 10_000


def produce(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    file: Annotated[
        Path | None, typer.Option("--file", help="Read this file instead of standard input.", show_default=False)
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(help="Split each line at its first SEPARATOR into key and value.", show_default=False),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Send to this partition.", show_default=False)] = None,
    acks: Acks = "all",
    compression: Compression = "none",
    config: ProducerConfig = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Send each line of standard input (or --file) as a record.

    Exits with 0 when every record is acknowledged. A terminal sends line by line, a pipe or file in
    batches.
    """
    options = {"acks": acks, "compression.type": compression} | parse_configs(config)
    with (
        open_producer(folder, address, timeout, options) as producer,
        _opened(file) as source,
        progress_bar(quiet=as_json) as progress,
    ):
        task = progress.add_task("records", total=None)
        by_line = source.isatty()
        sent = 0
        deliveries = []
        for lines in _chunks(source, 1 if by_line else LINES_PER_BATCH):
            keys, values = _split(lines, key_separator)
            delivery = producer.send_batch(topic, values, keys=keys, partition=partition)
            deliveries.append(delivery)
            if by_line:
                delivery.result()
            while len(deliveries) > 1 and deliveries[0].done():
                deliveries.pop(0).result()
            sent += len(values)
            progress.update(task, completed=sent)
        for delivery in deliveries:
            delivery.result()
    if as_json:
        print_json({"topic": topic, "records": sent})
    else:
        notice(f"{sent} records acknowledged by {topic}")


def _opened(file: Path | None) -> IO[bytes]:
    if file is None:
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigError(f"--file {file}: {error.strerror}") from error


def _chunks(source: IO[bytes], size: int) -> Iterator[list[bytes]]:
    while lines := list(islice(source, size)):
        yield [line.removesuffix(b"\n").removesuffix(b"\r") for line in lines]


def _split(lines: list[bytes], separator: str | None) -> tuple[list[bytes] | None, list[bytes]]:
    if separator is None:
        return None, lines
    mark = separator.encode()
    pairs = [line.partition(mark) for line in lines]
    for line, (_, found, _) in zip(lines, pairs, strict=True):
        if not found:
            raise ConfigError(
                f"a line has no {separator!r} to split key and value: {line[:60].decode(errors='replace')!r}"
            )
    return [key for key, _, _ in pairs], [value for _, _, value in pairs]
