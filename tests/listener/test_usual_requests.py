"""Usual requests mean to the machine what their decoded form means, and their answers are the bytes that kio writes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outside import fetch, produce

from raylog.kafka import table
from raylog.replication.events import (
    FetchPartitionResult,
    FetchReply,
    LeaderHint,
    ProducePartitionResult,
    ProduceReply,
)
from raylog.server.apis import fetch as fetch_api
from raylog.server.apis import produce as produce_api
from raylog.server.apis.entities import TopicNames
from raylog.server.door import without_hints
from raylog.server.usual_requests import UsualFetch, UsualProduce, usual_fetch, usual_produce
from raylog.types import Endpoint, TopicIdPartition
from raylog.wire.frames import (
    client_id_field,
    decode_request_body,
    decode_request_header,
    encode_request,
    encode_response,
)

PRODUCE, FETCH = table.PRODUCE.key, table.FETCH.key
TOPIC, TOPIC_ID = "orders", uuid.UUID(int=0x1234 << 100)
NUMBER = 7
VERSIONS = [(PRODUCE, each) for each in table.PRODUCE.versions] + [(FETCH, each) for each in table.FETCH.versions]
NAMES = TopicNames()
NAMES.add(TOPIC, TOPIC_ID)


def led(topic: str | uuid.UUID, number: int) -> TopicIdPartition | None:
    return TopicIdPartition(topic if isinstance(topic, uuid.UUID) else NAMES.id_of_name(topic), number)


def frame_of(request: Any, correlation_id: int = 99) -> bytes:
    return b"".join(encode_request(request, correlation_id, client_id_field("rdkafka")))[4:]


def usual(frame: bytes) -> UsualProduce | UsualFetch | None:
    header, position = decode_request_header(frame)
    return (usual_produce if header.api_key == PRODUCE else usual_fetch)(frame, header, position, led)


def named(version: int) -> Any:
    return TOPIC_ID if version >= 13 else TOPIC


def request_of(api_key: int, version: int, varies: int) -> Any:
    if api_key == PRODUCE:
        return produce(named(version), {NUMBER: bytes([varies % 251]) * (varies or 1)}, version=version, acks=1)
    return fetch(named(version), {NUMBER: varies}, version=version, max_wait_ms=321, min_bytes=5, max_bytes=77_000)


def event_of(known: UsualProduce | UsualFetch, frame: bytes) -> Any:
    """What the machine hears of a frame that is compared with a known one; None: it is another one."""
    if isinstance(known, UsualProduce):
        records = known.records_of(frame)
        return None if records is None else known.event(5, records)
    offset = known.offset_of(frame)
    return None if offset is None else known.event(5, offset)


def decoded_event(frame: bytes) -> Any:
    header, position = decode_request_header(frame)
    body = decode_request_body(frame, header, position, ignore_rest=True)
    if header.api_key == PRODUCE:
        return produce_api.event(body, 5, NAMES, header.version)
    return fetch_api.event(body, 5, NAMES, header.version)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_known_start_means_what_the_whole_request_means(api_key: int, version: int) -> None:
    first = frame_of(request_of(api_key, version, 100))
    known = usual(first)
    assert known is not None
    for varies in (0, 1, 100, 200, 5_000):
        frame = frame_of(request_of(api_key, version, varies), correlation_id=varies)
        assert event_of(known, frame) == decoded_event(frame), varies


@pytest.mark.parametrize("version", table.PRODUCE.versions)
def test_the_transaction_of_a_produce_is_not_lost(version: int) -> None:
    """The quick way would begin it without its coordinator's leave."""
    request = produce(named(version), {NUMBER: b"x"}, version=version, acks=1, transactional_id="t")
    known = usual(frame_of(request))
    assert known is not None
    event = event_of(known, frame_of(request))
    assert event == decoded_event(frame_of(request))
    membership = event.partitions[0].membership
    assert (membership.transactional_id, membership.adds, membership.is_abortable) == (
        "t",
        version >= 12,
        version >= 11,
    )


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 100, 126, 127, 128, 20_000, 100_000])
def test_answers_are_the_bytes_that_the_codec_writes(api_key: int, version: int, size: int) -> None:
    frame = frame_of(request_of(api_key, version, 100))
    known = usual(frame)
    assert known is not None
    header, position = decode_request_header(frame)
    body = decode_request_body(frame, header, position)
    if isinstance(known, UsualProduce):
        for time_ms in (-1, 1_795_498_872_123):
            produced = ProducePartitionResult(known.id, 0, 1 << 40 | size, time_ms, size)
            entity = produce_api.entity(body, ProduceReply((produced,)), version)
            assert b"".join(known.answer(99, produced) or ()) == b"".join(encode_response(entity, 99))
    else:
        for aborted in (None, ()):
            fetched = FetchPartitionResult(known.id, 0, 1 << 40, 1 << 39, 3, None, bytes(size), None, aborted)
            entity = fetch_api.entity(body, FetchReply((fetched,)), version)
            assert b"".join(known.answer(99, fetched) or ()) == b"".join(encode_response(entity, 99))


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_an_answer_that_is_not_usual_is_left_to_the_codec(api_key: int, version: int) -> None:
    known = usual(frame_of(request_of(api_key, version, 100)))
    if isinstance(known, UsualProduce):
        assert known.answer(1, ProducePartitionResult(known.id, 6)) is None
    else:
        assert isinstance(known, UsualFetch)
        assert known.answer(1, FetchPartitionResult(known.id, 6)) is None
        assert known.answer(1, FetchPartitionResult(known.id, 0, aborted=((1, 2),))) is None
        assert known.answer(1, FetchPartitionResult(known.id, 0, diverging_epoch=(1, 2))) is None


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@settings(max_examples=60)
@given(data=st.data())
def test_mutated_bytes_mean_the_same_or_go_the_long_way(api_key: int, version: int, data: st.DataObject) -> None:
    """Whatever is done to a frame: if it passes for a known one, the decoder finds the same in it."""
    frame = frame_of(request_of(api_key, version, 130))
    known = usual(frame)
    assert known is not None
    mutated = bytearray(frame_of(request_of(api_key, version, data.draw(st.sampled_from((1, 130, 300))))))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(("set", "cut", "insert", "append")))
        at = data.draw(st.integers(0, len(mutated) - 1)) if mutated else 0
        if kind == "set" and mutated:
            mutated[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del mutated[at : at + data.draw(st.integers(1, 5))]
        elif kind == "insert":
            mutated[at:at] = data.draw(st.binary(min_size=1, max_size=5))
        else:
            mutated += data.draw(st.binary(min_size=1, max_size=5))
    frame = bytes(mutated)
    event = event_of(known, frame)
    if event is not None:
        assert event == decoded_event(frame)


def test_what_is_not_usual_is_not_known() -> None:
    for request in (
        produce(TOPIC, {NUMBER: b"x", 8: b"y"}),
        produce(TOPIC, {NUMBER: b"x"}, acks=0),
        fetch(TOPIC, {NUMBER: 0, 8: 0}),
        fetch(TOPIC, {NUMBER: 0}, session=(5, 1)),
        fetch(TOPIC, {NUMBER: 0}, rack="a"),
    ):
        assert usual(frame_of(request)) is None, request


def test_a_partition_that_is_not_led_here_is_not_known() -> None:
    frame = frame_of(request_of(PRODUCE, 9, 100))
    header, position = decode_request_header(frame)
    assert usual_produce(frame, header, position, lambda *_: None) is None


def test_other_bytes_before_the_partition_are_not_known_again() -> None:
    known = usual(frame_of(produce(TOPIC, {NUMBER: b"x"}, version=9, acks=1)))
    assert isinstance(known, UsualProduce)
    for other in (
        produce(TOPIC, {8: b"x"}, version=9, acks=1),
        produce(TOPIC, {NUMBER: b"x"}, version=9, acks=-1),
        produce(TOPIC, {NUMBER: b"x"}, version=9, acks=1, timeout_ms=1),
        produce("others", {NUMBER: b"x"}, version=9, acks=1),
        produce(TOPIC, {NUMBER: b"x"}, version=10, acks=1),
        produce(TOPIC, {NUMBER: b"x"}, version=9, acks=1, transactional_id="t"),
    ):
        assert known.records_of(frame_of(other)) is None, other


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_refusal_at_the_door_names_no_process_inside(api_key: int, version: int) -> None:
    hint = LeaderHint(123_456_789, 9, Endpoint("10.0.0.1", 4_711))
    frame = frame_of(request_of(api_key, version, 100))
    header, position = decode_request_header(frame)
    body, id = decode_request_body(frame, header, position), TopicIdPartition(TOPIC_ID, NUMBER)
    if api_key == PRODUCE:
        refused = without_hints(ProduceReply((ProducePartitionResult(id, 6, hint=hint),)))
        sent = b"".join(encode_response(produce_api.entity(body, refused, version), 1))
    else:
        refused_fetch = without_hints(FetchReply((FetchPartitionResult(id, 6, hint=hint),)))
        sent = b"".join(encode_response(fetch_api.entity(body, refused_fetch, version), 1))
    assert b"10.0.0.1" not in sent and (123_456_789).to_bytes(4, "big") not in sent
