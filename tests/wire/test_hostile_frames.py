"""Whatever a frame holds, decoding it is a request or a ProtocolError, and what is decoded can be refused: hypothesis looks for more."""

from __future__ import annotations

import importlib
import random
import uuid

import pytest
from hostile_frames import TOKENS, changed, real_frames, sasl_frames
from hypothesis import given, settings, target
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from raylog.errors import ProtocolError
from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec, ServerKind
from raylog.wire.frames import (
    client_id_field,
    decode_request_body,
    decode_request_header,
    encode_request,
    encode_response,
)
from raylog.wire.schema import fields_of, size_min

CORPUS = [*real_frames(uuid.UUID(int=7)), *sasl_frames(TOKENS)]
REFUSABLE = {spec.key: spec for spec in table.served_by(ServerKind.BROKER) if spec is not table.API_VERSIONS}


def decoded(frame: bytes) -> int:
    """How far it got: the bytes of the frame that stood for a request, and 0 for no request."""
    try:
        header, position = decode_request_header(frame)
        body = decode_request_body(frame, header, position, borrow=True, ignore_rest=True)
    except ProtocolError:
        return 0
    spec = REFUSABLE.get(header.api_key)
    if spec is not None and header.version in spec.versions:
        answer = refusal(spec, header.version, body, ErrorCode.request_timed_out)
        return sum(map(len, encode_response(answer, header.correlation_id)))
    return 1


def test_there_is_a_real_frame_of_each_api_and_version() -> None:
    found = {frame[:4] for frame in CORPUS}
    for spec in table.served_by(ServerKind.BROKER):
        for version in spec.versions:
            assert spec.key.to_bytes(2, "big") + version.to_bytes(2, "big") in found, (spec, version)
    assert all(map(decoded, CORPUS))


a_change = given(st.integers(0, len(CORPUS) - 1), st.integers(0, 2**32), st.integers(1, 6))


@settings(max_examples=200, deadline=None)
@a_change
def test_a_changed_frame_is_a_request_or_a_protocol_error(number: int, seed: int, times: int) -> None:
    target(float(decoded(changed(random.Random(seed), CORPUS[number], CORPUS, times))))


@pytest.mark.slow
@settings(max_examples=50_000, deadline=None)
@a_change
def test_many_changed_frames_are_requests_or_protocol_errors(number: int, seed: int, times: int) -> None:
    target(float(decoded(changed(random.Random(seed), CORPUS[number], CORPUS, times))))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(REFUSABLE)), st.data())
def test_any_body_behind_a_header_is_a_request_or_a_protocol_error(key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(REFUSABLE[key].versions))
    body = data.draw(st.binary(max_size=200))
    header = b"".join(part.to_bytes(size, "big") for part, size in ((key, 2), (version, 2), (1, 4)))
    target(float(decoded(header + b"\xff\xff" + body)))


@pytest.mark.parametrize("spec", [spec for spec in table.served_by(ServerKind.BROKER) if spec.versions], ids=str)
def test_a_null_list_is_refused_where_the_schema_has_none(spec: ApiSpec) -> None:
    """kio reads it, and no handler expects it."""
    for version in spec.versions:
        kind = load_request_schema(spec.key, version)
        first = next(iter(fields_of(kind)), None)
        if first is None or not first.is_array or first.tag is not None:
            continue
        flexible = kind.__flexible__
        header = b"".join(part.to_bytes(size, "big") for part, size in ((spec.key, 2), (version, 2), (1, 4)))
        nothing = b"\0" if flexible else b"\xff\xff\xff\xff"
        frame = header + b"\xff\xff" + (b"\0" if flexible else b"") + nothing + b"\0" * size_min(kind)
        head, position = decode_request_header(frame)
        if first.null_is_valid:
            body = decode_request_body(frame, head, position, ignore_rest=True)
            assert getattr(body, first.name) is None
        else:
            with pytest.raises(ProtocolError, match=f"{first.name} is null, which it cannot be"):
                decode_request_body(frame, head, position, ignore_rest=True)


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_topic_without_a_name_can_be_refused_in_each_version(version: int) -> None:
    module = importlib.import_module(f"kio.schema.metadata.v{version}.request")
    topics = (module.MetadataRequestTopic(topic_id=uuid.UUID(int=7), name=None),)
    body = module.MetadataRequest(topics=topics, allow_auto_topic_creation=False, **_flags(version))
    assert encode_request(body, 1, client_id_field(None))
    answer = refusal(table.METADATA, version, body, ErrorCode.topic_authorization_failed)
    assert answer.topics[0].name == (None if version >= 12 else "")
    assert encode_response(answer, 1)


def _flags(version: int) -> dict[str, bool]:
    both = {"include_topic_authorized_operations": True}
    return both | ({"include_cluster_authorized_operations": True} if version <= 10 else {})
