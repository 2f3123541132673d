"""Answers that say nothing but an error: every item that was asked for is there, and the error where clients look for it."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from raylog.kafka.refusal import answer_with
from raylog.wire.frames import decode_response, encode_response
from raylog.wire.schema import fields_of

CODE = ErrorCode.not_controller


def sample(kind: Any) -> Any:
    """A request with one thing in every list."""
    plain: dict[str, Any] = {
        "string": "x",
        "int32": 7,
        "int64": 4,
        "int8": 1,
        "uuid": uuid.UUID(int=5),
        "bytes": b"b",
        "records": b"r",
    }
    plain |= dict.fromkeys(("timedelta_i32", "timedelta_i64"), datetime.timedelta(milliseconds=1))
    defaults = {each.name for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.is_array:
            values[field.name] = (sample(field.entity) if field.entity else plain[field.kafka_type or ""],)
        elif field.name not in defaults:
            if field.entity is not None:
                values[field.name] = sample(field.entity)
            else:
                values[field.name] = plain.get(field.kafka_type or "", 0)
    return kind(**values)


def answered(key: int, version: int, body: Any) -> Any:
    """The answer, after it has been over the wire."""
    entity = answer_with(CODE, load_response_schema(key, version), body, "because")
    return decode_response(key, version, b"".join(encode_response(entity, 1))[4:])


def test_an_error_stands_at_each_item_and_the_top_says_none() -> None:
    request = load_request_schema(8, 9)  # OffsetCommit
    body = sample(request)
    reply = answered(8, 9, dataclasses.replace(body, topics=body.topics * 2))
    assert [
        (topic.name, part.partition_index, part.error_code) for topic in reply.topics for part in topic.partitions
    ] == [("x", 7, CODE)] * 2


def test_where_items_and_the_top_can_say_it_the_items_do() -> None:
    reply = answered(9, 7, sample(load_request_schema(9, 7)))  # OffsetFetch
    assert reply.error_code is ErrorCode.none
    assert [part.error_code for topic in reply.topics for part in topic.partitions] == [CODE]


def test_without_items_the_error_stands_at_the_top() -> None:
    body = sample(load_request_schema(11, 9))  # JoinGroup
    reply = answered(11, 9, body)
    assert (reply.error_code, reply.members) == (CODE, ())
    fetch = load_request_schema(1, 12)
    assert answered(1, 12, dataclasses.replace(sample(fetch), topics=(), forgotten_topics_data=())).error_code is CODE


def test_a_list_of_bare_names_is_answered_name_by_name() -> None:
    body = dataclasses.replace(sample(load_request_schema(10, 4)), coordinator_keys=("a", "b"))  # FindCoordinator
    reply = answered(10, 4, body)
    assert [(each.key, each.error_code, each.error_message) for each in reply.coordinators] == [
        ("a", CODE, "because"),
        ("b", CODE, "because"),
    ]


@pytest.mark.core
@pytest.mark.parametrize("key", sorted(api_key_map), ids=lambda key: api_key_map[key])
def test_every_version_of_every_api_can_be_refused(key: int) -> None:
    for version in schema_name_map[api_key_map[key]]:
        reply = answered(key, version, sample(load_request_schema(key, version)))
        assert CODE.name in repr(reply), (version, reply)
