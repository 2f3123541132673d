"""Answers to Metadata, DescribeTopicPartitions, DescribeCluster and ListConfigResources.

Clients see brokers instead of processes, each by the listener that they came in by themselves. A
broker without a listener of that name is not shown to them, and what it leads has the error
LISTENER_NOT_FOUND, as in Kafka. All functions are pure functions of the Broker's copy of the image.

A broker may lead partitions while its own listener is away. Clients then see another broker as
their leader, and that one forwards (``routes``). So a partition's leader need not be one of its
replicas; the lists of replicas stay correct. A partition that has never had a leader is shown with
its first one, because clients wait for seconds when they see none.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.configs.topic_configs import validate_topic_name
from raylog.errors import KafkaError
from raylog.kafka.refusal import refusal
from raylog.kafka.table import DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS, LIST_CONFIG_RESOURCES, METADATA
from raylog.listener.routes import BrokerListener, Routes
from raylog.metadata.configuration.config_requests import ResourceType
from raylog.metadata.image import Topic
from raylog.metadata.partitions import new_partitions
from raylog.metadata.partitions.topic_decisions import INTERNAL_TOPICS
from raylog.metadata.records import ConfiguredKind, PartitionState
from raylog.server.apis.api import answer
from raylog.server.apis.entities import NO_DELAY, build
from raylog.types import NO_LEADER

NOT_ASKED = -(1 << 31)  # authorised operations, in answers to clients that did not ask for them
TOPIC_OPERATIONS = sum(
    1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11)
)  # all operations that Kafka has; an authorizer says less (access)
CLUSTER_OPERATIONS = sum(1 << each for each in (5, 7, 8, 9, 10, 11, 12))
PARTITIONS_MAX = 2_000  # in one page of DescribeTopicPartitions (Kafka's max.request.partition.size.limit)
BROKERS = 1  # the only kind of endpoint that clients can see


def asks_for_all(body: Any, version: int) -> bool:
    return body.topics is None or (version == 0 and not body.topics)


def metadata(
    routes: Routes,
    body: Any,
    version: int,
    *,
    listener: str,
    controller: int,
    refused: Mapping[str, int],
    gone: Iterable[BrokerListener] = (),
) -> Any:
    """The answer to a Metadata request of a client of that listener. ``refused``: errors of topics
    that could not be created. ``gone``: brokers that are named though they are away.
    """
    no_listener = ErrorCode.listener_not_found if version >= 6 else ErrorCode.leader_not_available
    reached = {each.broker_id: (each, endpoint) for each in routes.listeners() if (endpoint := each.at(listener))}
    seen = _Seen(routes, frozenset(reached), no_listener)
    named = {each.broker_id: (each, endpoint) for each in gone if (endpoint := each.at(listener))} | reached
    cls, module = answer(METADATA, version)
    image = routes.image
    operations = TOPIC_OPERATIONS if getattr(body, "include_topic_authorized_operations", False) else NOT_ASKED
    if asks_for_all(body, version):
        topics = [
            _topic(seen, module, topic.name, topic.topic_id, topic, operations=operations)
            for _, topic in sorted((each.name, each) for each in image.topics.values())
        ]
    else:
        topics = []
        for asked in body.topics:
            if asked.name is not None:
                error = refused.get(asked.name, ErrorCode.unknown_topic_or_partition)
                known = image.topic_named(asked.name)
                topics.append(_topic(seen, module, asked.name, None, known, error, operations=operations))
            else:
                found = image.topics.get(asked.topic_id)
                unnamed = None if version >= 12 else ""
                unknown = ErrorCode.unknown_topic_id
                topics.append(_topic(seen, module, unnamed, asked.topic_id, found, unknown, operations=operations))
    return build(
        cls,
        throttle_time=NO_DELAY,
        brokers=tuple(
            build(
                module.MetadataResponseBroker,
                node_id=each.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=each.rack,
            )
            for _, (each, endpoint) in sorted(named.items())
        ),
        cluster_id=image.cluster_id,
        controller_id=controller,
        topics=tuple(topics),
        cluster_authorized_operations=_of_cluster(body),
        error_code=ErrorCode.none,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a client sees that reaches these brokers. ``no_listener``: the error of a partition
    whose leader it can't reach.
    """

    routes: Routes
    brokers: frozenset[int]
    no_listener: ErrorCode


def _of_cluster(body: Any) -> int:
    return CLUSTER_OPERATIONS if getattr(body, "include_cluster_authorized_operations", False) else NOT_ASKED


def _topic(
    seen: _Seen,
    module: Any,
    name: str | None,
    topic_id: uuid.UUID | None,
    topic: Topic | None,
    error: int = 0,
    *,
    operations: int,
) -> Any:
    values: dict[str, Any] = {"error_code": ErrorCode(error), "name": name, "topic_id": topic_id}
    if topic is not None:
        values = {"error_code": ErrorCode.none, "name": topic.name, "topic_id": topic.topic_id}
    return build(
        module.MetadataResponseTopic,
        **values,
        is_internal=values["name"] in INTERNAL_TOPICS,
        partitions=tuple(
            _partition(seen, module.MetadataResponsePartition, number, state)
            for number, state in sorted(topic.partitions.items())
        )
        if topic is not None
        else (),
        topic_authorized_operations=operations if topic is not None else NOT_ASKED,
    )


def _partition(seen: _Seen, cls: Any, number: int, state: PartitionState) -> Any:
    routes = seen.routes

    def is_alive(node: int) -> bool:
        actor = routes.image.actors.get(node)
        return actor is not None and actor.alive

    leader = new_partitions.leader_or_next(routes.image, state)
    serves = new_partitions.is_new(state) or is_alive(state.node_of(leader))
    leader = routes.stand_in_of(leader) if serves else NO_LEADER
    error = ErrorCode.none if leader != NO_LEADER else ErrorCode.leader_not_available
    if leader != NO_LEADER and leader not in seen.brokers:
        leader, error = NO_LEADER, seen.no_listener
    no_elr = state.isr or state.last_known_leader == NO_LEADER
    return build(
        cls,
        error_code=error,
        partition_index=number,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.brokers,
        isr_nodes=state.isr,
        offline_replicas=tuple(slot.broker_id for slot in state.replicas if not is_alive(slot.node_id)),
        eligible_leader_replicas=state.elr,
        last_known_elr=() if no_elr else (state.last_known_leader,),
    )


def describe_topic_partitions(
    routes: Routes, body: Any, version: int, may_see: Callable[[str], bool], *, listener: str
) -> Any:
    """The answer to a DescribeTopicPartitions request (KIP-966): topics by name, in pages. No
    names: all topics that ``may_see`` lets pass.

    A full page names the start of the next one. A page begins at the cursor's partition, whose
    topic must be in the request.
    """
    cls, module = answer(DESCRIBE_TOPIC_PARTITIONS, version)
    first, start = ("", 0) if body.cursor is None else (body.cursor.topic_name, body.cursor.partition_index)
    asks_for_some = {topic.name for topic in body.topics}
    if start < 0 or (asks_for_some and first and first not in asks_for_some):
        wrong = f"the cursor {first!r}, {start} is none of the topics that are asked for, or of no partition"
        return refusal(DESCRIBE_TOPIC_PARTITIONS, version, body, ErrorCode.invalid_request, wrong)
    reached = frozenset(each.broker_id for each in routes.listeners() if each.at(listener))
    seen = _Seen(routes, reached, ErrorCode.listener_not_found)
    left = max(1, min(body.response_partition_limit, PARTITIONS_MAX))
    topics: list[Any] = []
    following: tuple[str, int] | None = None
    for name in sorted(each for each in asks_for_some or filter(may_see, routes.image.topic_ids) if each >= first):
        if not left:
            following = (name, 0)
            break
        topic = routes.image.topic_named(name)
        begin = start if name == first else 0
        numbers = [number for number in sorted(topic.partitions) if number >= begin] if topic is not None else []
        topics.append(_described(seen, module, name, topic, numbers[:left]))
        if len(numbers) > left:
            following = (name, numbers[left])
            break
        left -= len(numbers)
    cursor = None if following is None else module.Cursor(topic_name=following[0], partition_index=following[1])
    return cls(throttle_time=NO_DELAY, topics=tuple(topics), next_cursor=cursor)


def _described(seen: _Seen, module: Any, name: str, topic: Topic | None, numbers: list[int]) -> Any:
    kind = module.DescribeTopicPartitionsResponsePartition
    parts = [_partition(seen, kind, number, topic.partitions[number]) for number in numbers] if topic else []
    return module.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none if topic is not None else _error_of_missing(name),
        name=name,
        topic_id=topic.topic_id if topic is not None else None,
        is_internal=name in INTERNAL_TOPICS,
        # As in Apache Kafka a leader that is away is no error here.
        partitions=tuple(dataclasses.replace(each, error_code=ErrorCode.none) for each in parts),
        topic_authorized_operations=TOPIC_OPERATIONS if topic is not None else NOT_ASKED,
    )


def _error_of_missing(name: str) -> ErrorCode:
    try:
        validate_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition


def list_config_resources(routes: Routes, body: Any, version: int) -> Any:
    """The answer to a ListConfigResources request (KIP-1142): resources with configs, by kind. No
    kinds: all kinds.

    Version 0 asks for subscriptions to client metrics alone. Groups have no configs.
    """
    cls, module = answer(LIST_CONFIG_RESOURCES, version)
    subscriptions = sorted(
        name for kind, name in routes.image.resource_configs if kind is ConfiguredKind.CLIENT_METRICS
    )
    if version == 0:
        named_alone = tuple(module.ConfigResource(resource_name=name) for name in subscriptions)
        return cls(throttle_time=NO_DELAY, error_code=ErrorCode.none, config_resources=named_alone)
    known = {each.value: each for each in ResourceType}
    kinds = [known.get(number) for number in dict.fromkeys(body.resource_types or known)]
    if None in kinds:
        return refusal(LIST_CONFIG_RESOURCES, version, body, ErrorCode.unsupported_version)
    brokers = [str(broker) for broker in sorted(routes.image.brokers)]
    named = {
        ResourceType.TOPIC: sorted(routes.image.topic_ids),
        ResourceType.BROKER: brokers,
        ResourceType.BROKER_LOGGER: brokers,
        ResourceType.CLIENT_METRICS: subscriptions,
    }
    resources = tuple(
        module.ConfigResource(resource_name=name, resource_type=kind.value)
        for kind in kinds
        if kind is not None
        for name in named.get(kind, ())
    )
    return cls(throttle_time=NO_DELAY, error_code=ErrorCode.none, config_resources=resources)


def describe_cluster(routes: Routes, body: Any, version: int, *, listener: str, controller: int) -> Any:
    """The answer to a DescribeCluster request of a client of that listener."""
    cls, module = answer(DESCRIBE_CLUSTER, version)
    asks_for = getattr(body, "endpoint_type", BROKERS)
    error, message = ErrorCode.none, None
    if asks_for != BROKERS:
        error, message = ErrorCode.mismatched_endpoint_type, "the controllers have no listener for clients"
    live = {each.broker_id for each in routes.listeners()}
    found = routes.listeners(dead_too=getattr(body, "include_fenced_brokers", False)) if asks_for == BROKERS else ()
    return build(
        cls,
        throttle_time=NO_DELAY,
        error_code=error,
        error_message=message,
        endpoint_type=asks_for,
        cluster_id=routes.image.cluster_id,
        controller_id=controller,
        brokers=tuple(
            build(
                module.DescribeClusterBroker,
                broker_id=each.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=each.rack,
                is_fenced=each.broker_id not in live,
            )
            for each in found
            if (endpoint := each.at(listener)) is not None
        ),
        cluster_authorized_operations=_of_cluster(body),
    )
