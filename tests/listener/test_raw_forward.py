"""Requests of one partition are passed on by their bytes: only such as mean the same to the owner, whatever they are made of."""

from __future__ import annotations

import datetime
import importlib
import uuid
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from outside import fetch, produce

from raylog.kafka import table
from raylog.listener.raw_forward import OnePartition, fetched, is_good_news, produced
from raylog.server.apis.entities import build, milliseconds
from raylog.wire.frames import (
    client_id_field,
    decode_request_body,
    decode_request_header,
    encode_request,
    encode_response,
)

PRODUCE, FETCH = table.PRODUCE.key, table.FETCH.key
TOPIC_ID = uuid.UUID(int=0x1234 << 100)
VERSIONS = [(PRODUCE, version) for version in table.PRODUCE.versions] + [
    (FETCH, version) for version in table.FETCH.versions
]


def topic_of(version: int, name: str = "orders") -> str | uuid.UUID:
    return TOPIC_ID if version >= 13 else name


def simple(api_key: int, version: int, name: str = "orders", **values: Any) -> Any:
    topic = topic_of(version, name)
    if api_key == PRODUCE:
        return produce(topic, {7: b"r" * 300}, version=version, timeout_ms=1_234, **values)
    return fetch(topic, {7: 4_711}, version=version, max_wait_ms=1_234, **values)


def frame_of(request: Any) -> bytes:
    return b"".join(encode_request(request, 99, client_id_field("rdkafka")))[4:]


def read(frame: bytes) -> OnePartition | None:
    header, position = decode_request_header(frame)
    return (produced if header.api_key == PRODUCE else fetched)(frame, header.version, position)


def decoded(frame: bytes) -> Any:
    """As the owner does: nothing may follow."""
    header, position = decode_request_header(frame)
    return decode_request_body(frame, header, position)


def partitions_of(body: Any) -> list[tuple[Any, int]]:
    topics = body.topic_data if hasattr(body, "topic_data") else body.topics
    return [
        (
            getattr(topic, "topic_id", None) or getattr(topic, "name", None) or getattr(topic, "topic", None),
            getattr(part, "index", getattr(part, "partition", None)),
        )
        for topic in topics
        for part in (topic.partition_data if hasattr(topic, "partition_data") else topic.partitions)
    ]


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_request_of_one_partition_is_read_where_it_stands(api_key: int, version: int) -> None:
    frame = frame_of(simple(api_key, version))
    found = read(frame)
    assert found is not None
    assert (found.topic, found.number, found.waits_ms) == (topic_of(version), 7, 1_234)
    assert found.end == len(frame)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_bytes_behind_a_request_are_not_passed_on(api_key: int, version: int) -> None:
    frame = frame_of(simple(api_key, version))
    found = read(frame + b"rest")
    assert found is not None and found.end == len(frame)


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_a_produce_that_is_not_simple_goes_the_long_way(version: int) -> None:
    topic = topic_of(version)
    assert read(frame_of(produce(topic, {0: b"a"}, version=version, acks=0))) is None
    assert read(frame_of(produce(topic, {0: b"a", 1: b"b"}, version=version))) is None
    assert read(frame_of(produce(topic, {0: b""}, version=version))) is None
    assert read(frame_of(produce(topic, {}, version=version))) is None


@pytest.mark.parametrize("version", [4, 6, 7, 11, 12, 13, 15, 18])
def test_a_fetch_that_is_not_simple_goes_the_long_way(version: int) -> None:
    topic = topic_of(version)
    others = [fetch(topic, {0: 0, 1: 0}, version=version), fetch(topic, {}, version=version)]
    others.append(fetch(topic, {0: 0}, version=version, replica=(5, 1)))
    others.append(fetch(topic, {0: 0}, version=version, max_bytes=0))
    if version >= 7:
        others.append(fetch(topic, {0: 0}, version=version, session=(0, 0)))
        others.append(fetch(topic, {0: 0}, version=version, session=(77, 3)))
        others.append(fetch(topic, {0: 0}, version=version, forgotten=(1,)))
    if version >= 11:
        others.append(fetch(topic, {0: 0}, version=version, rack="a"))
    assert [read(frame_of(each)) for each in others] == [None] * len(others)


@settings(max_examples=600)
@example((FETCH, 11), "orders", [(-6, 0x80)], 40)  # a negative number of forgotten topics
@example((FETCH, 11), "orders", [(-2, 0xFF), (-1, 0xFF)], 40)  # no rack at all
@given(
    st.sampled_from(VERSIONS),
    st.text(min_size=1, max_size=150),
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4),
    st.integers(0, 40),
)
def test_what_is_passed_on_is_sound_and_means_what_was_read(
    kind: tuple[int, int], name: str, changes: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(frame_of(simple(*kind, name)))
    fixed = 10 + len("rdkafka")
    for at, value in changes:
        frame[fixed + at % (len(frame) - fixed)] = value
    frame = frame[: len(frame) - cut] if cut < 20 else frame
    found = read(bytes(frame))
    if not changes and cut in (0, *range(20, 41)):
        assert found is not None
    if found is None:
        return
    body = decoded(bytes(frame[: found.end]))
    assert partitions_of(body) == [(found.topic, found.number)]
    assert milliseconds(body.timeout if kind[0] == PRODUCE else body.max_wait) == found.waits_ms
    if kind[0] == PRODUCE:
        assert body.acks != 0 and body.topic_data[0].partition_data[0].records
    else:
        assert getattr(body, "session_epoch", -1) == -1 and not getattr(body, "rack_id", "")
        assert getattr(body, "replica_id", -1) < 0 and body.max_bytes > 0


def answer(
    api_key: int,
    version: int,
    *,
    number: int = 7,
    error: int = 0,
    as_a_whole: int = 0,
    parts: int = 1,
    throttle_ms: int = 0,
    endpoints: int = 0,
) -> bytes:
    """An answer's frame as a client gets it."""
    cls = load_response_schema(api_key, version)
    module = importlib.import_module(cls.__module__)
    values: dict[str, Any] = {
        "error_code": ErrorCode(error), "base_offset": 5, "log_append_time": None, "log_start_offset": 0,
        "record_errors": (), "error_message": None, "high_watermark": 9, "last_stable_offset": 9,
        "aborted_transactions": None, "preferred_read_replica": -1, "records": b"r" * 100,
    }  # fmt: skip
    part = module.PartitionProduceResponse if api_key == PRODUCE else module.PartitionData
    topic = module.TopicProduceResponse if api_key == PRODUCE else module.FetchableTopicResponse
    partitions = tuple(build(part, index=number, partition_index=number, **values) for _ in range(parts))
    named = topic_of(version)
    topics = build(
        topic, name=named, topic=named, topic_id=named, partitions=partitions, partition_responses=partitions
    )
    whole = build(
        cls,
        responses=(topics,),
        throttle_time=datetime.timedelta(milliseconds=throttle_ms),
        error_code=ErrorCode(as_a_whole),
        session_id=0,
        node_endpoints=tuple(
            module.NodeEndpoint(node_id=each, host="h", port=1, rack=None)  # of a version that has them
            for each in range(endpoints)
        ),
    )
    return b"".join(encode_response(whole, 1))[4:]


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_only_good_news_of_the_partition_is_passed_back(api_key: int, version: int) -> None:
    asked = read(frame_of(simple(api_key, version)))
    assert asked is not None

    def is_bad(frame: bytes) -> bool:
        return not is_good_news(frame, asked)

    assert not is_bad(answer(api_key, version))
    assert is_bad(answer(api_key, version, error=6))
    assert is_bad(answer(api_key, version, number=8))
    assert is_bad(answer(api_key, version, parts=0))
    assert is_bad(answer(api_key, version)[:12])
    assert is_bad(answer(api_key, version, throttle_ms=1)), "whom it has wait is not read meanwhile"
    if api_key == FETCH and version >= 7:
        assert is_bad(answer(api_key, version, as_a_whole=70))
    if api_key == PRODUCE and version >= 10:
        assert is_bad(answer(api_key, version, endpoints=1))
