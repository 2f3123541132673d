"""The codec against kio's own writer and reader, and its headers against hand-written bytes."""

import datetime
import io
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.serial import entity_reader, entity_writer

from raylog.errors import ProtocolError, error_for
from raylog.wire import private, unknown_tags
from raylog.wire.bounds import check, checker, read_varint
from raylog.wire.encoding import encoder
from raylog.wire.frames import (
    UnsupportedVersionError,
    client_id_field,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    known_versions,
)
from raylog.wire.schema import fields_of
from raylog.wire.unknown_tags import without_unknown_tags

MakeEntity = Callable[[random.Random, type[Any]], Any]

SPOKEN_FIRST = (0, 1, 2, 3, 18, 19, 20, 22, 23, 32, 37, 44, 60, 21)  # what raylog's own links carry


def classes(api_key: int) -> list[type[Any]]:
    versions = sorted(schema_name_map[api_key_map[api_key]])
    return [load(api_key, version) for version in versions for load in (load_request_schema, load_response_schema)]


def encoded(entity: Any) -> bytes:
    parts: list[bytes] = []
    encoder(type(entity))(entity, parts.append)
    return b"".join(parts)


def as_kio_writes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def produce(records: bytes | memoryview) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=1,
        timeout=datetime.timedelta(seconds=30),
        topic_data=(TopicProduceData(name="flights", partition_data=(partition,)),),
    )


@pytest.mark.parametrize("api_key", SPOKEN_FIRST)
def test_compiled_encoder_and_bounds_agree_with_kio(random_entity: MakeEntity, api_key: int) -> None:
    rng = random.Random(api_key)
    for cls in classes(api_key):
        entity = random_entity(rng, cls)
        data = encoded(entity)
        assert data == as_kio_writes(entity), cls
        assert check(checker(cls), data, 0) == len(data), cls
        assert entity_reader(cls)(data, 0) == (entity, len(data))


@pytest.mark.core
def test_compiled_codec_agrees_with_kio_for_every_message_that_kio_knows(random_entity: MakeEntity) -> None:
    rng = random.Random(0)
    for api_key in sorted(api_key_map):
        for cls in classes(api_key):
            for _ in range(3):
                entity = random_entity(rng, cls)
                data = encoded(entity)
                assert data == as_kio_writes(entity), cls
                assert check(checker(cls), data, 0) == len(data), cls
                assert entity_reader(cls)(data, 0) == (entity, len(data)), cls


def test_request_header_has_kafkas_bytes() -> None:
    # ApiVersions v3 from a client named "kcat": header version 2, client id in the old string form
    request = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7")
    frame = b"".join(encode_request(request, 7, client_id_field("kcat")))
    assert frame.hex(" ") == "00 00 00 19 00 12 00 03 00 00 00 07 00 04 6b 63 61 74 00 05 6b 63 61 74 04 31 2e 37 00"
    header, body = decode_request(frame[4:])
    assert header == (18, 3, 7, "kcat")
    assert body == request


def test_client_id_may_be_null() -> None:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    frame = b"".join(encode_request(request, 1, client_id_field(None)))
    assert decode_request(frame[4:]) == ((3, 12, 1, None), request)


def test_api_versions_reply_always_has_header_version_0() -> None:
    reply = ApiVersionsResponse(error_code=ErrorCode.none, api_keys=(), throttle_time=datetime.timedelta(0))
    frame = b"".join(encode_response(reply, 5))
    assert frame[4:8] == struct.pack(">i", 5)
    assert frame[8:10] == b"\x00\x00"  # the error code follows at once
    assert decode_response(18, 3, frame[4:]) == reply


def test_tagged_fields_of_the_header_are_skipped() -> None:
    request = produce(b"x")
    frame = b"".join(encode_request(request, 1, client_id_field("c")))[4:]
    header_end = 10 + 1
    assert frame[header_end] == 0
    tagged = frame[:header_end] + b"\x02\x00\x03abc\x05\x00" + frame[header_end + 1 :]
    assert decode_request(tagged).body == request


def test_unknown_tagged_fields_of_a_body_are_skipped() -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="b")
    frame = b"".join(encode_request(request, 1, client_id_field("c")))[4:]
    assert decode_request(frame[:-1] + b"\x01\x63\x02zz").body == request


@pytest.mark.parametrize("api_key", (0, 1, 3, 19, 68))
def test_unknown_tagged_fields_are_skipped_at_any_depth(random_entity: MakeEntity, api_key: int) -> None:
    rng = random.Random(api_key)
    for load in (load_request_schema, load_response_schema):
        cls = load(api_key, max(known_versions(api_key)))
        for _ in range(5):
            entity = random_entity(rng, cls)
            strange = with_unknown_tags(cls, encoded(entity), 0)[0]
            assert len(strange) > len(encoded(entity))
            assert check(checker(cls), strange, 0) == len(strange)
            assert entity_reader(cls)(without_unknown_tags(cls, strange, 0), 0)[0] == entity


def with_unknown_tags(cls: type[Any], data: bytes, position: int) -> tuple[bytes, int]:
    """Adds a tagged field 250 to every structure that has no tagged fields: where an encoder ends one with a zero byte."""
    out = b""
    for field in fields_of(cls):
        if field.tag is not None:
            continue
        if field.entity is None:
            parts: list[Any] = []
            position = unknown_tags._copy_field(field, True, data, position, parts)
            out += b"".join(parts)
            continue
        if field.is_array:
            count, end = unknown_tags._length(True, 4, data, position)
        else:
            end = position + (1 if field.nullable else 0)
            count = 1 if not field.nullable or data[position] == 1 else 0
        out += data[position:end]
        position = end
        for _ in range(count):
            changed, position = with_unknown_tags(field.entity, data, position)
            out += changed
    count, end = read_varint(data, position)
    for _ in range(count):
        _, end = read_varint(data, end)
        size, end = read_varint(data, end)
        end += size
    tagged = data[position + 1 : end]
    assert count < 127
    return out + bytes([count + 1]) + tagged + b"\xfa\x01\x03zzz", end


def test_large_fields_are_not_copied_when_encoded() -> None:
    records = memoryview(bytes(1_000_000))
    frame = encode_request(produce(records), 1, client_id_field("c"))
    assert any(part is records for part in frame)
    assert len(frame) == 3
    joined = b"".join(frame)
    assert struct.unpack(">i", joined[:4])[0] == len(joined) - 4
    assert decode_request(joined[4:]).body == produce(bytes(1_000_000))


def test_decoded_fields_outlive_the_receive_buffer() -> None:
    frame = b"".join(encode_request(produce(b"abc" * 5000), 1, client_id_field("c")))[4:]
    buffer = bytearray(frame)
    body = decode_request(memoryview(buffer).toreadonly()).body
    buffer[:] = bytes(len(buffer))
    assert body == produce(b"abc" * 5000)


def test_null_where_none_is_allowed_is_a_callers_mistake() -> None:
    with pytest.raises(TypeError, match=r"TopicProduceData\.name"):
        encoded(
            ProduceRequest(
                acks=1, timeout=datetime.timedelta(0), topic_data=(TopicProduceData(name=None, partition_data=()),)
            )
        )


@pytest.mark.parametrize(("api_key", "version"), [(0, 99), (0, -1), (999, 0), (20_999, 0), (20_000, 1)])
def test_unknown_api_or_version_is_told_apart_from_garbage(api_key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersionError) as raised:
        decode_request(struct.pack(">hhih", api_key, version, 4, -1))
    assert (raised.value.api_key, raised.value.version, raised.value.correlation_id) == (api_key, version, 4)


def test_known_versions_are_kios() -> None:
    assert 9 in known_versions(0) and 12 in known_versions(1)
    assert not known_versions(999)


def test_bytes_behind_a_message_are_refused() -> None:
    frame = b"".join(encode_request(produce(b"x"), 1, client_id_field("c")))[4:]
    with pytest.raises(ProtocolError, match="2 bytes behind its end"):
        decode_request(frame + b"zz")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decoded_and_nothing_else(data: bytes) -> None:
    try:
        decode_request(data)
    except ProtocolError:
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), api_key=st.sampled_from((0, 1, 2, 3, 18, 19, 22)))
def test_every_truncation_of_a_request_is_refused(random_entity: MakeEntity, data: st.DataObject, api_key: int) -> None:
    cls = load_request_schema(api_key, max(known_versions(api_key)))
    rng = random.Random(data.draw(st.integers(0, 50)))
    frame = b"".join(encode_request(random_entity(rng, cls), 1, client_id_field("c")))[4:]
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(ProtocolError):
        decode_request(frame[:cut])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), api_key=st.sampled_from((0, 1, 2, 3, 19)))
def test_flipped_bytes_never_do_worse_than_a_refusal(
    random_entity: MakeEntity, data: st.DataObject, api_key: int
) -> None:
    cls = load_request_schema(api_key, max(known_versions(api_key)))
    rng = random.Random(data.draw(st.integers(0, 50)))
    frame = bytearray(b"".join(encode_request(random_entity(rng, cls), 1, client_id_field("c")))[4:])
    for position in data.draw(st.lists(st.integers(0, len(frame) - 1), max_size=4)):
        frame[position] = data.draw(st.sampled_from((0, 1, 127, 128, 255)))
    try:
        decode_request(bytes(frame))
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("version", "hostile"),
    [
        (1, struct.pack(">i", 2**31 - 1)),  # legacy array length
        (1, struct.pack(">i", -(2**31))),
        (12, b"\xff\xff\xff\xff\x0f"),  # compact array length
        (12, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),  # a varint without end
        (12, b"\x01\x00\x00\xff\xff\xff\xff\x0f"),  # number of tagged fields
    ],
)
def test_a_short_frame_that_claims_billions_of_elements_is_refused(version: int, hostile: bytes) -> None:
    """kio reserves memory for a claimed length before it reads an element; a claim it cannot satisfy aborts the process."""
    header = struct.pack(">hhih", 3, version, 1, -1) + (b"\x00" if version >= 9 else b"")
    with pytest.raises(ProtocolError):
        decode_request(header + hostile + bytes(90))


def test_a_nested_array_that_claims_billions_of_elements_is_refused() -> None:
    frame = b"".join(encode_request(produce(b"x"), 1, client_id_field("c")))[4:]
    at = frame.index(b"flights") + len(b"flights")
    assert frame[at] == 2  # one partition
    with pytest.raises(ProtocolError, match="claims 2147483646 elements"):
        decode_request(frame[:at] + b"\xff\xff\xff\xff\x07" + frame[at + 1 :])


def test_a_field_that_reaches_behind_the_frame_is_refused() -> None:
    frame = b"".join(encode_request(produce(b"x" * 50), 1, client_id_field("c")))[4:]
    at = frame.index(b"x" * 50) - 1
    with pytest.raises(ProtocolError):
        decode_request(frame[:at] + b"\xff\xff\x7f" + frame[at + 1 :])


def test_an_entity_whose_text_is_not_utf_8_is_refused() -> None:
    frame = b"".join(encode_request(produce(b"x"), 1, client_id_field("c")))[4:]
    with pytest.raises(ProtocolError, match="produce request v9"):
        decode_request(frame.replace(b"flights", b"\xff" * 7))


def test_private_requests_and_replies_round_trip() -> None:
    request = private.AwaitLeaderRequest("flights", 3, 7, 1000)
    frame = b"".join(encode_request(request, 9, client_id_field("c")))[4:]
    assert decode_request(frame) == ((private.AWAIT_LEADER, 0, 9, "c"), request)
    reply = private.AwaitLeaderResponse(leader_node=65538, leader_epoch=8, host="127.0.0.1", port=9)
    assert decode_response(private.AWAIT_LEADER, 0, b"".join(encode_response(reply, 9))[4:]) == reply


def test_a_private_refusal_is_raised_as_its_kafka_error() -> None:
    refusal = private.Refusal.of(error_for(3, "no topic named x"))
    with pytest.raises(type(error_for(3)), match="no topic named x"):
        decode_response(private.AWAIT_LEADER, 0, b"".join(encode_response(refusal, 9))[4:])


def test_a_response_that_is_not_the_expected_message_is_refused() -> None:
    with pytest.raises(ProtocolError, match="fetch response v12"):
        decode_response(1, 12, struct.pack(">i", 1) + b"\x00" + b"\xff" * 40)


def test_fetch_request_of_a_consumer_is_small() -> None:
    fetch = FetchRequest(
        max_wait=datetime.timedelta(milliseconds=500), min_bytes=1, max_bytes=1, topics=(), forgotten_topics_data=()
    )
    assert len(encode_request(fetch, 1, client_id_field("c"))) == 1
