"""Messages of a topic: from an offset, a time or an end, filtered; one of them whole; and the live
tail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from raylog.cli.offset_resets import parse_moment
from raylog.client.admin.admin import TopicDescription
from raylog.console.pages import PageError, number_of, page
from raylog.console.reading import READ_S, SCANNED_MAX, SHOWN_MAX, Filter, read
from raylog.console.shown_bytes import SHOWN_BYTES, SHOWN_BYTES_ALONE, ShownBytes, shown
from raylog.console.topics import described
from raylog.console.view import ClusterView
from raylog.errors import ConfigError
from raylog.records.record import Record
from raylog.schemas.decoding import Reading, SchemaDecoder
from raylog.types import TopicPartition

SHOWN_DEFAULT = 50
FILTER_LENGTH_MAX = 1_000
TAIL_S = 120
TAIL_RECORDS_MAX = 100
DECODING_S = 2 * READ_S
"""Decoding what a page looks at is part of its read; this leaves as much for what it shows."""
WAYS = ("newest", "oldest", "offset", "time", "at")
_AT = re.compile(r"\d{1,9}:\d{1,19}(,\d{1,9}:\d{1,19})*")
_BAD_REQUEST, _NOT_FOUND = 400, 404


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as the page has it."""

    record: Record
    key: ShownBytes
    value: ShownBytes
    headers: list[tuple[str, ShownBytes]]


def shown_record(record: Record, reading: Reading | None, most: int = SHOWN_BYTES) -> ShownRecord:
    return ShownRecord(
        record,
        shown(record.key, most, reading),
        shown(record.value, most, reading),
        [(name, shown(content, most)) for name, content in record.headers],
    )


def messages_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    topic = described(view, request.path_params["topic"])
    way = request.query_params.get("from", "newest")
    if way not in WAYS:
        raise PageError(_BAD_REQUEST, f"from: {way[:40]!r} is none of {', '.join(WAYS)}")
    shown_max = number_of(request, "count", SHOWN_DEFAULT, least=1, most=SHOWN_MAX)
    filter = _filter(request)
    keys = _partitions(request, topic)
    is_committed = request.query_params.get("committed") == "yes"
    start = _start(request, view, topic, keys, way, shown_max, filter)
    reading = _reading(request)
    bound = SCANNED_MAX if way == "newest" else shown_max
    found = read(view, start, shown_max=bound, filter=filter, is_committed=is_committed, reading=reading)
    records = sorted(found.records, key=lambda each: (each.timestamp, each.partition, each.offset))
    if way == "newest":
        records = records[-shown_max:][::-1]
    return page(
        request,
        "messages.html",
        topic=topic,
        way=way,
        query=request.query_params,
        count=shown_max,
        is_committed=is_committed,
        records=[shown_record(each, reading) for each in records],
        found=found,
        next_at=_at_text(found.at) if found.stopped_by and way != "newest" else None,
        partition=request.query_params.get("partition", ""),
        filter=filter,
    )


def message_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    topic = described(view, request.path_params["topic"])
    partition, offset = request.path_params["partition"], request.path_params["offset"]
    _check_partition(topic, partition)
    if offset >= 2**63:
        raise PageError(_BAD_REQUEST, f"{offset} is no offset: an offset has at most 63 bits")
    found = read(view, {TopicPartition(topic.name, partition): offset}, shown_max=1)
    if not found.records or found.records[0].offset != offset:
        next_one = f"; the next one is {found.records[0].offset}" if found.records else ""
        text = f"{topic.name}-{partition} has no record with offset {offset}{next_one}"
        raise PageError(
            _NOT_FOUND, text + ": it was deleted or compacted away, is a marker of a transaction, or is still to come"
        )
    return page(
        request, "message.html", topic=topic, shown=shown_record(found.records[0], _reading(request), SHOWN_BYTES_ALONE)
    )


def tail_page(request: Request) -> Response:
    view: ClusterView = request.app.state.view
    topic = described(view, request.path_params["topic"])
    keys = _partitions(request, topic)
    at = {key: each.offset for key, each in view.admin.list_offsets(dict.fromkeys(keys, "latest")).items()}
    return page(
        request,
        "tail.html",
        topic=topic,
        at=_at_text(at),
        tail_s=TAIL_S,
        filter=_filter(request),
        partition=request.query_params.get("partition", ""),
    )


def tail_records(request: Request) -> Response:
    """What has come since ``at``, the newest first; the page's script asks. Where more than
    ``TAIL_RECORDS_MAX`` have come to a partition, the oldest are left out, unless there is a filter.
    """
    view: ClusterView = request.app.state.view
    topic = described(view, request.path_params["topic"])
    start = parsed_at(topic, request.query_params.get("at", ""))
    filter = _filter(request)
    if not filter.is_there:
        ends = view.admin.list_offsets(dict.fromkeys(start, "latest"))
        start = {key: max(offset, ends[key].offset - TAIL_RECORDS_MAX) for key, offset in start.items()}
    reading = _reading(request)
    found = read(view, start, shown_max=TAIL_RECORDS_MAX * len(start), filter=filter, reading=reading)
    records = [shown_record(each, reading) for each in reversed(found.records)]
    return page(request, "tail_records.html", topic=topic, records=records, at=_at_text(found.at))


def _reading(request: Request) -> Reading | None:
    """What decodes messages for one page; None without a schema registry."""
    decoder: SchemaDecoder | None = request.app.state.decoder
    return None if decoder is None else decoder.reading(decoding_s=DECODING_S)


def _filter(request: Request) -> Filter:
    texts = [request.query_params.get(name, "") for name in ("key", "value", "header")]
    if max(map(len, texts)) > FILTER_LENGTH_MAX:
        raise PageError(_BAD_REQUEST, f"A filter has at most {FILTER_LENGTH_MAX:,} characters.")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise PageError(_BAD_REQUEST, "A filter is text in UTF-8.") from None
    return Filter(*texts)


def _partitions(request: Request, topic: TopicDescription) -> list[TopicPartition]:
    """The one that the query names, else all."""
    if not request.query_params.get("partition", "").strip():
        return [TopicPartition(topic.name, part.partition) for part in topic.partitions]
    number = number_of(request, "partition", 0)
    _check_partition(topic, number)
    return [TopicPartition(topic.name, number)]


def _check_partition(topic: TopicDescription, number: int) -> None:
    if number >= len(topic.partitions):
        raise PageError(_NOT_FOUND, f"Topic {topic.name} has no partition {number}: it has {len(topic.partitions)}.")


def _start(
    request: Request,
    view: ClusterView,
    topic: TopicDescription,
    keys: list[TopicPartition],
    way: str,
    shown_max: int,
    filter: Filter,
) -> dict[TopicPartition, int]:
    """Where each partition is read from. Offsets beyond a log are brought into it later."""
    match way:
        case "oldest":
            return dict.fromkeys(keys, 0)
        case "offset":
            return dict.fromkeys(keys, number_of(request, "offset", 0))
        case "time":
            try:
                at_ms = parse_moment(request.query_params.get("time", "").strip())
            except ConfigError as error:
                raise PageError(_BAD_REQUEST, f"time: {error}") from None
            timely = view.admin.list_offsets(dict.fromkeys(keys, at_ms))
            return {key: each.offset if each.offset >= 0 else 2**63 - 1 for key, each in timely.items()}
        case "at":
            return parsed_at(topic, request.query_params.get("at", ""))
        case _:
            window = SCANNED_MAX // len(keys) if filter.is_there else shown_max
            latest = view.admin.list_offsets(dict.fromkeys(keys, "latest"))
            return {key: max(0, each.offset - max(1, window)) for key, each in latest.items()}


def parsed_at(topic: TopicDescription, text: str) -> dict[TopicPartition, int]:
    """``partition:offset,…`` of a link or a script. Raises PageError (400)."""
    if not _AT.fullmatch(text):
        raise PageError(_BAD_REQUEST, f"at: {text[:40]!r}: give partition:offset,…")
    found = {}
    for part in text.split(","):
        number, _, offset = part.partition(":")
        _check_partition(topic, int(number))
        found[TopicPartition(topic.name, int(number))] = min(int(offset), 2**63 - 1)
    return found


def _at_text(at: Mapping[TopicPartition, int]) -> str:
    return ",".join(f"{key.partition}:{offset}" for key, offset in sorted(at.items()))
