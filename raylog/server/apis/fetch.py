"""Fetch: by topic name up to version 12, by topic id from 13.

Followers use version 17: it carries their broker id and their incarnation (``replica_epoch``,
KIP-903) and is answered with a diverging epoch (KIP-595). Fetch sessions are kept for followers
only (``replication.follower_sessions``): every other answer says session 0, which every client
understands as "send the whole list each time". By session epoch 0 a follower of ours also says that
it may have missed an answer. Version 16 adds KIP-951's leader hints.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import Any

from raylog.kafka.table import FETCH
from raylog.replication.events import FetchPartition, FetchPartitionResult, FetchReceived, FetchReply
from raylog.server.apis.entities import (
    CODES,
    NO_DELAY,
    TopicNames,
    endpoints,
    fields_of,
    milliseconds,
    module_of,
    response_class,
)
from raylog.types import TopicIdPartition

FOLLOWER_VERSION = 17
WANTS_ALL = 0  # in Kafka: "the full list, for a new session"


def event(request: Any, token: int, names: TopicNames, version: int) -> FetchReceived:
    """The request as the machine's event."""
    if version >= 15:
        replica_id, incarnation = request.replica_state.replica_id, request.replica_state.replica_epoch
    else:
        replica_id, incarnation = (
            -1,
            -1,
        )  # followers of ours speak a newer version: this is a consumer, whatever it claims
    partitions = []
    for topic in request.topics:
        topic_id = names.id_of(topic)
        for partition in topic.partitions:
            partitions.append(
                FetchPartition(
                    TopicIdPartition(topic_id, partition.partition),
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch if version >= 9 else -1,
                    partition.last_fetched_epoch if version >= 12 else -1,
                    partition.log_start_offset if version >= 5 else -1,
                )
            )
    return FetchReceived(
        token,
        replica_id,
        incarnation,
        milliseconds(request.max_wait),
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        tuple(partitions),
        version >= 7 and request.session_epoch == WANTS_ALL,
        *((request.session_id, max(0, request.session_epoch)) if replica_id >= 0 else ()),
    )


def entity(request: Any, reply: FetchReply, version: int) -> Any:
    """The machine's reply as this version's answer.

    Results come in the order of the request; a follower's leave out partitions of which it knows
    all, and in a session name those that only an earlier request named.
    """
    cls = response_class(FETCH, version)
    module = module_of(cls)
    has = fields_of(module.PartitionData)
    if reply.session_id:
        topics = [
            module.FetchableTopicResponse(
                topic_id=id, partitions=tuple(_partition(module, has, each) for each in found)
            )
            for id, found in groupby(reply.partitions, key=lambda result: result.id.topic_id)
        ]
    else:
        topics = _topics_asked(request, reply, version, module, has)
    values: dict[str, Any] = {"throttle_time": NO_DELAY, "responses": tuple(topics)}
    if version >= 7:
        values["error_code"] = CODES[reply.error]
        values["session_id"] = reply.session_id
    if version >= 16:
        values["node_endpoints"] = endpoints(module, (result.hint for result in reply.partitions))
    return cls(**values)


def _topics_asked(request: Any, reply: FetchReply, version: int, module: Any, has: frozenset[str]) -> list[Any]:
    results = deque(reply.partitions)
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            if not results or results[0].id.partition != asked.partition:
                continue
            if version < 13 or topic.topic_id in (None, results[0].id.topic_id):
                partitions.append(_partition(module, has, results.popleft()))
        if partitions:
            named = {"topic_id": topic.topic_id} if version >= 13 else {"topic": topic.topic}
            topics.append(module.FetchableTopicResponse(**named, partitions=tuple(partitions)))
    assert not results, f"{len(results)} results that nobody asked for"
    return topics


def _partition(module: Any, has: frozenset[str], result: FetchPartitionResult) -> Any:
    values: dict[str, Any] = {
        "partition_index": result.id.partition,
        "error_code": CODES[result.error],
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.last_stable_offset,
        "aborted_transactions": None
        if result.aborted is None
        else tuple(
            module.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in result.aborted
        ),
        "records": result.records,
    }
    if "log_start_offset" in has:
        values["log_start_offset"] = result.log_start_offset
    if "diverging_epoch" in has:
        if result.diverging_epoch is not None:
            epoch, end_offset = result.diverging_epoch
            values["diverging_epoch"] = module.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        if result.hint is not None:
            values["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=result.hint.leader_node, leader_epoch=result.hint.leader_epoch
            )
    return module.PartitionData(**values)


def follower_reply(response: Any) -> FetchReply:
    """A leader's answer as the follower's machine wants it."""
    results = []
    for topic in response.responses or ():
        for partition in topic.partitions or ():
            diverging = partition.diverging_epoch
            results.append(
                FetchPartitionResult(
                    TopicIdPartition(topic.topic_id, partition.partition_index),
                    int(partition.error_code),
                    partition.high_watermark,
                    partition.last_stable_offset,
                    partition.log_start_offset,
                    (diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
                    partition.records or b"",
                )
            )
    return FetchReply(tuple(results), response.session_id)
