"""A follower's fetches are the bytes that kio writes, and mean to both machines what kio reads in them."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from raw_requests import batch, produce

from raylog.errors import ProtocolError
from raylog.replication.events import FetchPartition, FetchPartitionResult, FetchReply, LeaderHint, SendFetch
from raylog.server import follower_fetches
from raylog.server.apis import fetch
from raylog.server.apis.entities import TopicNames, module_of
from raylog.types import Endpoint, TopicIdPartition
from raylog.wire.frames import (
    client_id_field,
    decode_request_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)

VERSION = fetch.FOLLOWER_VERSION
CLIENT_ID = client_id_field("replica-1")
NAMES = TopicNames()
int32, int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.builds(
    TopicIdPartition, st.sampled_from([uuid.UUID(int=n << 90) for n in range(1, 4)]), st.integers(0, (1 << 31) - 1)
)
partitions = st.lists(
    st.builds(FetchPartition, ids, int64, int32, int32, int32, int64), max_size=150, unique_by=lambda p: p.id
)
waits = numbers = st.integers(0, (1 << 31) - 1)
sessions = st.tuples(st.booleans(), st.just(0), st.just(0)) | st.tuples(
    st.just(False), st.integers(1, (1 << 31) - 1), st.integers(1, (1 << 31) - 1)
)


def order(parts: list[FetchPartition], wait_ms: int = 500, session: tuple[bool, int, int] = (False, 0, 0)) -> SendFetch:
    """``session``: whether it wants all, the number of the session and of the fetch in it."""
    return SendFetch(65538, 7, Endpoint("127.0.0.1", 1), 1, 2, 9 << 40, wait_ms, 1, 1 << 20, tuple(parts), *session)


def entity_of(wanted: SendFetch) -> Any:
    """What kio makes of it."""
    cls = load_request_schema(1, VERSION)
    module = module_of(cls)
    topics: dict[Any, list[Any]] = {}
    for part in wanted.partitions:
        topics.setdefault(part.id.topic_id, []).append(
            module.FetchPartition(
                partition=part.id.partition,
                current_leader_epoch=part.current_leader_epoch,
                fetch_offset=part.fetch_offset,
                last_fetched_epoch=part.last_fetched_epoch,
                log_start_offset=part.log_start_offset,
                partition_max_bytes=part.max_bytes,
            )
        )
    return cls(
        replica_state=module.ReplicaState(replica_id=wanted.replica_id, replica_epoch=wanted.replica_incarnation),
        max_wait=datetime.timedelta(milliseconds=wanted.max_wait_ms),
        min_bytes=wanted.min_bytes,
        max_bytes=wanted.max_bytes,
        isolation_level=0,
        session_id=wanted.session_id,
        session_epoch=wanted.session_epoch or (0 if wanted.wants_all else -1),
        topics=tuple(module.FetchTopic(topic_id=id, partitions=tuple(items)) for id, items in topics.items()),
        forgotten_topics_data=(),
        rack_id="",
    )


def written(wanted: SendFetch) -> bytes:
    return b"".join(follower_fetches.request(wanted, 99, CLIENT_ID))


@given(partitions, waits, sessions)
def test_a_request_is_what_kio_writes(
    parts: list[FetchPartition], wait_ms: int, session: tuple[bool, int, int]
) -> None:
    wanted = order(parts, wait_ms, session)
    assert written(wanted) == b"".join(encode_request(entity_of(wanted), 99, CLIENT_ID))


@given(partitions, waits, sessions)
def test_a_request_means_what_kio_reads_in_it(
    parts: list[FetchPartition], wait_ms: int, session: tuple[bool, int, int]
) -> None:
    frame = written(order(parts, wait_ms, session))[4:]
    header, position = decode_request_header(frame)
    event = follower_fetches.event(frame, position, 5)
    assert event == fetch.event(decode_request_body(frame, header, position), 5, NAMES, VERSION)
    assert event is not None and sorted(event.partitions, key=str) == sorted(parts, key=str)
    assert (event.wants_all, event.session_id, event.session_epoch) == session


def damaged(frame: bytes, start: int = 0) -> Iterator[bytes]:
    """Every frame that differs from this one, from ``start`` on, by one byte, that it lacks, has besides or has with another value."""
    for at in range(start, len(frame)):
        yield frame[:at]
        yield frame[:at] + frame[at + 1 :]
        for value in (0, 1, 2, 127, 128, 255, frame[at] + 1 & 255):
            yield frame[:at] + bytes([value]) + frame[at + 1 :]
            yield frame[:at] + bytes([value]) + frame[at:]
    yield frame + b"\0"


P = TopicIdPartition(uuid.UUID(bytes=b"\5" * 16), 3)
Q = TopicIdPartition(uuid.UUID(bytes=b"\6" * 16), 2)


def test_a_damaged_request_means_what_kio_reads_in_it_or_is_left_to_kio() -> None:
    sound = written(order([FetchPartition(id, 5, 1000, 3, 3, 0) for id in (P, P._replace(partition=4), Q)]))[4:]
    header, position = decode_request_header(sound)
    for frame in damaged(sound, position):
        event = follower_fetches.event(frame, position, 5)
        if event is not None:
            assert event == fetch.event(decode_request_body(frame, header, position), 5, NAMES, VERSION), frame


found = st.builds(FetchPartitionResult, ids, st.just(0), int64, int64, int64, st.none(), st.binary(max_size=300))
replies = st.builds(
    lambda results, session_id: FetchReply(tuple(sorted(results, key=lambda each: each.id)), session_id),
    st.lists(found, max_size=150, unique_by=lambda each: each.id),
    numbers,
)
hint = LeaderHint(65540, 4, Endpoint("127.0.0.1", 2))
RARE = [
    FetchPartitionResult(P, 6, 1, 1, 0),
    FetchPartitionResult(P, 6, 1, 1, 0, hint=hint),
    FetchPartitionResult(P, 0, 1, 1, 0, (3, 17)),
    FetchPartitionResult(P, 0, 1, 1, 0, None, b"x", None, ((4, 5),)),
    FetchPartitionResult(P, 0, 1, 1, 0, None, b"x", None, ()),
]


def as_kio_writes(reply: FetchReply) -> bytes:
    asked = entity_of(order([FetchPartition(each.id, 0, 1) for each in reply.partitions]))
    return b"".join(encode_response(fetch.entity(asked, reply, VERSION), 99))


@given(replies)
@example(FetchReply(()))
@example(FetchReply((FetchPartitionResult(P, 0, 1, 1, 0, None, bytes(200_000)),)))
def test_an_answer_is_what_kio_writes_and_the_same_results_again(reply: FetchReply) -> None:
    answer = follower_fetches.answer(99, reply)
    assert answer is not None and b"".join(answer) == as_kio_writes(reply)
    assert follower_fetches.results(memoryview(b"".join(answer))[4:]) == reply


@pytest.mark.parametrize("rare", RARE)
def test_what_is_rare_is_left_to_kio(rare: FetchPartitionResult) -> None:
    plain = FetchPartitionResult(TopicIdPartition(P.topic_id, 1), 0, 1, 1, 0, None, b"r")
    reply = FetchReply((plain, rare))
    assert follower_fetches.answer(99, reply) is None
    answer = follower_fetches.results(as_kio_writes(reply)[4:])
    assert answer is not None
    assert [(each.id, each.error, each.diverging_epoch, each.records) for each in answer.partitions] == [
        (each.id, each.error, each.diverging_epoch, each.records) for each in (plain, rare)
    ]


def test_an_answer_that_is_an_error_as_a_whole_has_no_results() -> None:
    refused = FetchReply((), error=ErrorCode.fetch_session_id_not_found.value)
    assert follower_fetches.answer(99, refused) is None, "kio writes it"
    assert follower_fetches.results(as_kio_writes(refused)[4:]) is None


def test_small_records_are_copied_and_large_ones_of_a_large_frame_are_not() -> None:
    small, large = (
        FetchPartitionResult(TopicIdPartition(P.topic_id, n), 0, 1, 1, 0, None, bytes(size))
        for n, size in ((1, 10), (2, 100_000))
    )
    frame = memoryview(b"".join(follower_fetches.answer(1, FetchReply((small, large))) or ()))[4:]
    answer = follower_fetches.results(frame)
    assert answer is not None and [type(each.records) for each in answer.partitions] == [bytes, memoryview]


def test_a_damaged_answer_means_what_kio_reads_in_it_or_is_refused() -> None:
    results = tuple(FetchPartitionResult(id, 0, 9, 9, 1, None, b"records") for id in (P, P._replace(partition=4), Q))
    for frame in damaged(as_kio_writes(FetchReply(results))[4:]):
        try:
            reply = decode_response(1, VERSION, frame)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                follower_fetches.results(frame)
        else:
            expected = fetch.follower_reply(reply) if not reply.error_code else None
            assert follower_fetches.results(frame) == expected, frame


@pytest.mark.core
def test_followers_and_leaders_write_and_read_no_entity_while_nothing_is_rare(
    faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.make_topic(replication_factor=3)
    node = faulty.leader()
    produce(faulty.running, node, "t", batch(b"before"))

    def by_kio(*_: Any, **__: Any) -> Any:
        raise AssertionError("kio reads or writes a follower's fetch")

    monkeypatch.setattr(fetch, "follower_reply", by_kio)
    monkeypatch.setattr(fetch, "entity", by_kio)
    monkeypatch.setattr(fetch, "event", by_kio)
    for number in range(20):
        assert produce(faulty.running, node, "t", batch(b"%d" % number)).error_code is ErrorCode.none
