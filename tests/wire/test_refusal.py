"""Answers that say nothing but an error: every item that was asked for is there, and the error where clients look for it."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from raylog.kafka import table
from raylog.kafka.refusal import is_not_controller, refusal, refused_with
from raylog.kafka.spec import ApiOwner, ApiSpec, ServerKind
from raylog.wire.frames import decode_response, encode_response
from raylog.wire.private import CancelResponse
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


def spec_of(key: int) -> ApiSpec:
    """The table's, or that of an API which nobody serves yet."""
    return table.BY_KEY.get(key) or ApiSpec(key, api_key_map[key], ApiOwner.BROKER, range(100), ())


def answered(key: int, version: int, body: Any) -> Any:
    """The answer, after it has been over the wire."""
    entity = refusal(spec_of(key), version, body, CODE, "because")
    return decode_response(key, version, b"".join(encode_response(entity, 1))[4:])


def test_an_error_stands_at_each_item_and_the_top_says_none() -> None:
    request = load_request_schema(8, 9)  # OffsetCommit
    body = sample(request)
    reply = answered(8, 9, dataclasses.replace(body, topics=body.topics * 2))
    assert [
        (topic.name, part.partition_index, part.error_code) for topic in reply.topics for part in topic.partitions
    ] == [("x", 7, CODE)] * 2


def test_the_top_alone_says_it_where_clients_look_there() -> None:
    """OffsetFetch, whose clients take an error of a partition for one that nobody expects."""
    for version in range(2, 8):
        reply = answered(9, version, sample(load_request_schema(9, version)))
        assert (reply.error_code, reply.topics) == (CODE, ())
    reply = answered(9, 8, sample(load_request_schema(9, 8)))
    assert [(group.group_id, group.error_code, group.topics) for group in reply.groups] == [("x", CODE, ())]
    reply = answered(9, 1, sample(load_request_schema(9, 1)))
    assert [part.error_code for topic in reply.topics for part in topic.partitions] == [CODE], "there is no other place"


def test_items_and_the_top_say_it_where_clients_look_in_both() -> None:
    reply = answered(43, 2, sample(load_request_schema(43, 2)))  # ElectLeaders
    assert reply.error_code is CODE
    assert [part.error_code for topic in reply.replica_election_results for part in topic.partition_result] == [CODE]


def test_what_is_not_known_is_not_taken_from_the_request() -> None:
    body = sample(load_request_schema(2, 7))  # ListOffsets
    reply = answered(2, 7, body)
    ((part,),) = [topic.partitions for topic in reply.topics]
    assert (part.partition_index, part.timestamp, part.offset, part.leader_epoch) == (7, -1, -1, -1)
    reply = answered(22, 4, sample(load_request_schema(22, 4)))  # InitProducerId
    assert (reply.producer_id, reply.producer_epoch) == (-1, -1)
    (created,) = answered(19, 7, sample(load_request_schema(19, 7))).topics
    assert (created.num_partitions, created.replication_factor) == (-1, -1)


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


# ------------------------------------------------------------------ the way back


def everything(body: Any) -> Any:
    """The same request with null for every list that may be null: for all that there is."""
    nullable = {field.name for field in dataclasses.fields(type(body)) if "None" in str(field.type)}
    lists = [field.name for field in fields_of(type(body)) if field.is_array and field.name in nullable]
    return dataclasses.replace(body, **dict.fromkeys(lists))


OF_A_CONTROLLER = [
    pytest.param(spec, version, id=f"{spec.name} {version}")
    for spec in table.served_by(ServerKind.CONTROLLER)
    if spec is not table.API_VERSIONS
    for version in spec.spoken_by(ServerKind.CONTROLLER)
]


@pytest.mark.parametrize(("spec", "version"), OF_A_CONTROLLER)
def test_a_standby_is_known_by_its_refusal_whatever_was_asked(spec: ApiSpec, version: int) -> None:
    body = sample(load_request_schema(spec.key, version))
    for asked in (body, everything(body)):
        reply = refusal(spec, version, asked, CODE)
        assert refused_with(reply) is CODE and is_not_controller(reply)
        other = refusal(spec, version, asked, ErrorCode.not_leader_or_follower)
        assert is_not_controller(other) == (spec is table.DESCRIBE_QUORUM), "what Kafka's controllers say there"
        assert not is_not_controller(refusal(spec, version, asked, ErrorCode.none))


def test_an_error_of_one_item_refuses_no_request() -> None:
    body = dataclasses.replace(sample(load_request_schema(19, 7)), topics=sample(load_request_schema(19, 7)).topics * 2)
    reply = refusal(table.CREATE_TOPICS, 7, body, ErrorCode.none)
    second = dataclasses.replace(reply.topics[1], error_code=ErrorCode.topic_already_exists)
    assert refused_with(dataclasses.replace(reply, topics=(reply.topics[0], second))) is ErrorCode.none


def test_a_private_reply_is_no_refusal_of_a_standby() -> None:
    assert not is_not_controller(CancelResponse())
