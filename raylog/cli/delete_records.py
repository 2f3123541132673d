"""``raylog delete-records``: what Kafka's ``kafka-delete-records`` does, with its file and its
words.

Every partition is tried. Exits with 1 if one failed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, place, print_json, print_text
from raylog.cli.reassign import named
from raylog.errors import ConfigError, RaylogError
from raylog.types import TopicPartition


def delete_records(
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help='Offsets as {"partitions": [{"topic": "t", "partition": 0, "offset": 100}], "version": 1}.',
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="With --partition and --offset: one partition.", show_default=False)
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition of --topic.", show_default=False)] = None,
    offset: Annotated[
        int | None,
        typer.Option(min=-1, help="The first offset that stays; -1: all committed records go.", show_default=False),
    ] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Delete the records of partitions below an offset, for good.

    Exits with 1 if that failed for a partition; the others are done.
    """
    given = [each is not None for each in (topic, partition, offset)]
    if any(given) == (offset_json_file is not None) or any(given) != all(given):
        raise typer.BadParameter("give --offset-json-file, or --topic, --partition and --offset")
    if offset_json_file is not None:
        offsets = offsets_of(offset_json_file.read_text())
    else:
        assert topic is not None and partition is not None and offset is not None
        offsets = {TopicPartition(topic, partition): offset}
    deleted: dict[TopicPartition, int] = {}
    failed: dict[TopicPartition, RaylogError] = {}
    with find_cluster(folder, address, timeout).admin() as admin:
        if not as_json:
            print_text("Executing records delete operation")
        for key, before in sorted(offsets.items()):
            try:
                deleted |= admin.delete_records({key: before})
            except RaylogError as error:
                failed[key] = error
    if as_json:
        done = [{**place(key), "low_watermark": low_watermark} for key, low_watermark in deleted.items()]
        print_json({"deleted": done, "failed": [{**place(key), "error": str(failed[key])} for key in failed]})
    else:
        print_text("Records delete operation completed:")
        print_text(*(f"partition: {named([key])}\tlow_watermark: {deleted[key]}" for key in deleted))
        print_text(*(f"partition: {named([key])}\terror: {error}" for key, error in failed.items()))
    if failed:
        raise typer.Exit(1)


def offsets_of(text: str) -> dict[TopicPartition, int]:
    """The offsets that a JSON file of Kafka's names. ConfigError for another document, another
    version than 1, or a partition that is there twice.
    """
    try:
        document = json.loads(text)
        version = int(document.get("version", 1))
        listed = [
            (TopicPartition(str(each["topic"]), int(each["partition"])), int(each["offset"]))
            for each in document["partitions"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'not {{"partitions": [{{"topic": …, "partition": …, "offset": …}}]}}: {type(error).__name__} {error}'
        ) from None
    if version != 1:
        raise ConfigError(f"the offsets have version {version}: only version 1 is known")
    offsets = dict(listed)
    twice = sorted(key for key, count in Counter(key for key, _ in listed).items() if count > 1)
    if twice:
        raise ConfigError(f"the offsets name {named(twice)} twice")
    return offsets
