"""Large records in a frame are handed on as views of it where that is asked for, and everything else is as kio decodes it."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

from raylog.wire.frames import (
    BORROWED_BYTES_MIN,
    client_id_field,
    decode_request_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)

LARGE = random.Random(1).randbytes(BORROWED_BYTES_MIN)
SMALL = LARGE[:-1]


def request_of(*records: bytes | None) -> ProduceRequest:
    """Two topics; the partitions dealt out between them."""
    partitions = tuple(PartitionProduceData(index=index, records=each) for index, each in enumerate(records))
    topics = (
        TopicProduceData(name="first", partition_data=partitions[:2]),
        TopicProduceData(name="second", partition_data=partitions[2:]),
    )
    return ProduceRequest(transactional_id=None, acks=-1, timeout=datetime.timedelta(seconds=1), topic_data=topics)  # type: ignore[call-arg]


def decoded(request: Any, *, borrow: bool) -> Any:
    frame = memoryview(b"".join(encode_request(request, 7, client_id_field("c"))))[4:]
    header, position = decode_request_header(frame)
    return decode_request_body(frame, header, position, borrow=borrow)


def records_of(request: Any) -> list[Any]:
    return [partition.records for topic in request.topic_data for partition in topic.partition_data]


@pytest.mark.parametrize(
    "records", [(LARGE,), (SMALL,), (None, LARGE, b""), (LARGE, SMALL, LARGE + b"x", None), (b"a", None, SMALL, LARGE)]
)
def test_only_large_records_are_views_and_all_are_in_their_places(records: tuple[bytes | None, ...]) -> None:
    request = request_of(*records)
    assert decoded(request, borrow=False) == request
    borrowed = decoded(request, borrow=True)
    assert records_of(borrowed) == list(records)
    kinds = [isinstance(each, memoryview) for each in records_of(borrowed)]
    assert kinds == [each is not None and len(each) >= BORROWED_BYTES_MIN for each in records]
    assert [topic.name for topic in borrowed.topic_data] == ["first", "second"]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_every_version_of_produce_and_its_length_fields(version: int) -> None:
    cls = load_request_schema(0, version)
    newest = request_of(b"a", LARGE, None, LARGE[::-1])
    module = __import__(cls.__module__, fromlist=["PartitionProduceData"])
    topics = tuple(
        module.TopicProduceData(
            name=topic.name,
            partition_data=tuple(
                module.PartitionProduceData(index=each.index, records=each.records) for each in topic.partition_data
            ),
        )
        for topic in newest.topic_data
    )
    request = cls(transactional_id=None, acks=1, timeout=datetime.timedelta(seconds=1), topic_data=topics)
    assert records_of(decoded(request, borrow=True)) == records_of(newest)


@pytest.mark.parametrize("version", [4, 12, 17])
def test_a_fetched_answer_too(version: int) -> None:
    cls = load_response_schema(1, version)
    module = __import__(cls.__module__, fromlist=["PartitionData"])
    named = {"topic": "t"} if version < 13 else {"topic_id": None}
    partition = {"partition_index": 3, "error_code": ErrorCode.none, "high_watermark": 9, "last_stable_offset": 9}
    rows = tuple(
        module.PartitionData(**partition, aborted_transactions=None, records=records)
        for records in (LARGE, b"s", None, LARGE[::-1])
    )
    topic = module.FetchableTopicResponse(**named, partitions=rows)
    errors = {} if version < 7 else {"error_code": ErrorCode.none, "session_id": 0}
    reply = cls(throttle_time=datetime.timedelta(0), responses=(topic,), **errors)
    frame = memoryview(b"".join(encode_response(reply, 1)))[4:]
    assert decode_response(1, version, frame) == reply
    borrowed = decode_response(1, version, frame, borrow=True)
    found = [each.records for each in borrowed.responses[0].partitions]
    assert found == [LARGE, b"s", None, LARGE[::-1]]
    assert isinstance(found[0], memoryview) and isinstance(found[1], bytes)
