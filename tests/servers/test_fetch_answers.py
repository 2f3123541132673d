"""The machine's results become the answer's partitions: each under its own topic, also where a follower's leave some out."""

from __future__ import annotations

import datetime
import itertools
import sys
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema

from raylog.client.links import requests
from raylog.replication.events import FetchPartition, FetchPartitionResult, FetchReply, SendFetch
from raylog.server import follower_fetches
from raylog.server.apis import fetch
from raylog.server.apis.entities import TopicNames
from raylog.types import Endpoint, TopicIdPartition, TopicPartition
from raylog.wire.frames import client_id_field, decode_request

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))
ASKED = [TopicIdPartition(topic, partition) for topic in (A, B, C) for partition in (0, 1)]


def follower_request() -> Any:
    partitions = tuple(FetchPartition(id, 5, 1000, 3, 3, 0) for id in ASKED)
    order = SendFetch(
        leader_node=65538,
        leader_incarnation=7,
        endpoint=Endpoint("127.0.0.1", 1),
        fetch_id=1,
        replica_id=2,
        replica_incarnation=9,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1000,
        partitions=partitions,
    )
    frame = b"".join(follower_fetches.request(order, 1, client_id_field("replica-2")))[4:]
    return decode_request(frame).body


def result(id: TopicIdPartition) -> FetchPartitionResult:
    return FetchPartitionResult(id, 0, 10, 10, 0, None, b"records of %d" % ASKED.index(id))


@pytest.mark.parametrize("count", range(len(ASKED) + 1))
def test_a_followers_answer_may_leave_out_any_partitions(count: int) -> None:
    request = follower_request()
    for kept in itertools.combinations(ASKED, count):
        answer = fetch.entity(request, FetchReply(tuple(map(result, kept))), fetch.FOLLOWER_VERSION)
        assert [(each.id, each.records) for each in fetch.follower_reply(answer).partitions] == [
            (id, result(id).records) for id in kept
        ]


def test_a_consumers_answer_names_all_partitions_that_it_asked_for() -> None:
    names = TopicNames()
    names.add("a", A)
    names.add("b", B)
    asked = {TopicPartition(topic, partition): (0, -1) for topic in ("a", "b", "gone") for partition in (0, 1)}
    request = requests.fetch(asked, max_wait_ms=0, min_bytes=0, max_bytes=10, partition_max_bytes=10)
    event = fetch.event(request, 1, names, 12)
    reply = FetchReply(
        tuple(FetchPartitionResult(part.id, 3 if index > 3 else 0) for index, part in enumerate(event.partitions))
    )
    answer = fetch.entity(request, reply, 12)
    found = [
        (TopicPartition(topic.topic, int(part.partition_index)), int(part.error_code))
        for topic in answer.responses
        for part in topic.partitions
    ]
    assert found == [(key, 3 if key.topic == "gone" else 0) for key in asked]


@pytest.mark.parametrize("version", range(13, 18))
def test_a_topic_without_an_id_is_answered_without_one(version: int) -> None:
    kind = load_request_schema(1, version)
    module = sys.modules[kind.__module__]
    asked = (module.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=10),)
    request = kind(
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        topics=tuple(module.FetchTopic(topic_id=topic, partitions=asked) for topic in (A, None, B)),
        forgotten_topics_data=(),
    )
    event = fetch.event(request, 1, TopicNames(), version)
    reply = FetchReply(tuple(FetchPartitionResult(part.id, 100) for part in event.partitions))
    answer = fetch.entity(request, reply, version)
    assert [(topic.topic_id, len(topic.partitions)) for topic in answer.responses] == [(A, 1), (None, 1), (B, 1)]


def test_only_the_version_that_followers_speak_makes_a_follower() -> None:
    spoken = follower_request()
    event = fetch.event(spoken, 1, TopicNames(), fetch.FOLLOWER_VERSION)
    assert (event.replica_id, event.replica_incarnation) == (2, 9)
    old = load_request_schema(1, 12)
    claimed = old(
        replica_id=2,
        max_wait=spoken.max_wait,
        min_bytes=1,
        max_bytes=10,
        topics=(),
        forgotten_topics_data=(),
        rack_id="",
    )
    assert fetch.event(claimed, 1, TopicNames(), 12).replica_id == -1
