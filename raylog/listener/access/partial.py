"""The rules of APIs that need more than one check, or whose answers leave out what a client may not
see.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.refusal import refusal, refused_item
from raylog.kafka.spec import ApiSpec, ErrorPlace
from raylog.listener import log_directories, raw_forward
from raylog.listener.access.access import Access
from raylog.listener.access.checks import (
    TOPIC_DENIED,
    Rule,
    all_of,
    denied,
    items,
    on,
    on_cluster,
    parted,
    topics,
    whole,
)
from raylog.listener.coordinator_search import GROUP_KEY, TRANSACTION_KEY
from raylog.security.permissions import Operation, Resource
from raylog.server.apis.api import answer
from raylog.server.apis.entities import build, fields_of
from raylog.wire.request import Request

GROUP_DENIED: Final = ErrorCode.group_authorization_failed
TRANSACTION_DENIED: Final = ErrorCode.transactional_id_authorization_failed
ALTERS_ONE: Final = {2: (Resource.TOPIC, TOPIC_DENIED), 32: (Resource.GROUP, GROUP_DENIED)}
"""Kinds of resources with configs that have ACLs of their own; those of all others are the cluster's."""


# ------------------------------------------------------------------ Produce

_PRODUCED_TOPICS: Final = topics(table.PRODUCE, Operation.WRITE, "topic_data", "responses")


def produce(access: Access, request: Request) -> Any:
    """Without a transactional id, or with one that the client may not write with, nothing of a
    transaction is written.
    """
    if request.frame is not None:
        asked = raw_forward.produced(request.frame, request.version, request.position)
        if asked is not None:
            records = request.frame[asked.records_at : asked.records_end]
            if _may_write_in(
                access, asked.transactional_id, raw_forward.is_transactional(records)
            ) and access.may_on_topic(Operation.WRITE, asked.topic):
                return None
    body = request.body
    batches = (part.records for topic in body.topic_data for part in topic.partition_data)
    if not _may_write_in(access, body.transactional_id, any(map(raw_forward.is_transactional, batches))):
        return denied(table.PRODUCE, request, TRANSACTION_DENIED)
    return _PRODUCED_TOPICS(access, request)


def _may_write_in(access: Access, transactional_id: str | None, is_transactional: bool) -> bool:
    if not transactional_id:
        return not is_transactional
    return access.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)


# ------------------------------------------------------------------ groups

_OFFSETS_GROUP: Final = whole(table.OFFSET_FETCH, GROUP_DENIED, on(Resource.GROUP, Operation.DESCRIBE, "group_id"))
_OFFSETS_GROUPS: Final = items(
    table.OFFSET_FETCH,
    GROUP_DENIED,
    "groups",
    "groups",
    on(Resource.GROUP, Operation.DESCRIBE, "group_id"),
    place=ErrorPlace.OUTERMOST,
)


def offset_fetch(access: Access, request: Request) -> Any:
    """Topics that are asked for by name are denied; of all topics, those are left out that the
    client may not describe.
    """
    names_several = request.version >= 8
    refused = (_OFFSETS_GROUPS if names_several else _OFFSETS_GROUP)(access, request)
    if refused is not None:
        return refused
    body = request.body
    asked = body.groups if names_several else (body,)
    kept: dict[str, Any] = {}
    added: dict[str, tuple[Any, ...]] = {}
    for group in asked:
        passed, wrong = parted(group.topics or (), lambda each: access.may_on_topic(Operation.DESCRIBE, each.name))
        if wrong:
            kept[group.group_id] = dataclasses.replace(group, topics=passed)
            added[group.group_id] = tuple(_denied_offsets(request.version, each) for each in wrong)

    def amended(group: Any) -> Any:
        seen = tuple(
            each for each in group.topics if access.may_on_topic(Operation.DESCRIBE, each.name, is_asked=False)
        )
        id = group.group_id if names_several else body.group_id
        return dataclasses.replace(group, topics=(*seen, *added.get(id, ())))

    if kept and not names_several:
        request.replace_body(kept[body.group_id])
    elif kept:
        groups = tuple(kept.get(each.group_id, each) for each in body.groups)
        request.replace_body(dataclasses.replace(body, groups=groups))
    if names_several:
        request.amend_reply(lambda reply: dataclasses.replace(reply, groups=tuple(map(amended, reply.groups))))
    else:
        request.amend_reply(amended)
    return None


def _denied_offsets(version: int, topic: Any) -> Any:
    _, module = answer(table.OFFSET_FETCH, version)
    plural = "s" if version >= 8 else ""
    of_topic, of_partition = (getattr(module, f"OffsetFetchResponse{each}{plural}") for each in ("Topic", "Partition"))
    partitions = tuple(
        build(
            of_partition,
            partition_index=index,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=TOPIC_DENIED,
        )
        for index in topic.partition_indexes
    )
    return of_topic(name=topic.name, partitions=partitions)


def find_coordinator(access: Access, request: Request) -> Any:
    body = request.body
    of_kind = {
        GROUP_KEY: (Resource.GROUP, GROUP_DENIED),
        TRANSACTION_KEY: (Resource.TRANSACTIONAL_ID, TRANSACTION_DENIED),
    }.get(int(getattr(body, "key_type", GROUP_KEY)))
    if of_kind is None:
        return None
    resource, error = of_kind
    spec = table.FIND_COORDINATOR
    if request.version < 4:
        return whole(spec, error, on(resource, Operation.DESCRIBE, "key"))(access, request)
    return items(
        spec,
        error,
        "coordinator_keys",
        "coordinators",
        lambda access, key: access.may(Operation.DESCRIBE, resource, key),
    )(access, request)


def group_operations(access: Access, request: Request) -> None:
    """DescribeGroups says what its client may do, if that is asked."""
    if not getattr(request.body, "include_authorized_operations", False):
        return

    def amended(group: Any) -> Any:
        if group.error_code is not ErrorCode.none:
            return group
        return dataclasses.replace(group, authorized_operations=access.operations(Resource.GROUP, group.group_id))

    request.amend_reply(lambda reply: dataclasses.replace(reply, groups=tuple(map(amended, reply.groups))))


def _seen(request: Request, field: str, is_seen: Callable[[Any], bool]) -> None:
    """Leave out of an answer's list what the client may not see."""
    request.amend_reply(
        lambda reply: dataclasses.replace(reply, **{field: tuple(filter(is_seen, getattr(reply, field)))})
    )


def list_groups(access: Access, request: Request) -> None:
    if not access.may_on_cluster(Operation.DESCRIBE, is_asked=False):
        _seen(
            request,
            "groups",
            lambda each: access.may(Operation.DESCRIBE, Resource.GROUP, each.group_id, is_asked=False),
        )


# ------------------------------------------------------------------ transactions

_ADDED_FOR_OTHERS: Final = whole(
    dataclasses.replace(table.ADD_PARTITIONS_TO_TXN, refused_at=ErrorPlace.OUTERMOST),
    ErrorCode.cluster_authorization_failed,
    on_cluster(Operation.CLUSTER_ACTION),
)
_ADDED: Final = whole(
    table.ADD_PARTITIONS_TO_TXN,
    TRANSACTION_DENIED,
    on(Resource.TRANSACTIONAL_ID, Operation.WRITE, "v3_and_below_transactional_id"),
)


def add_partitions(access: Access, request: Request) -> Any:
    """From version 4 on only brokers ask. Before, either all partitions are added or none."""
    if request.version >= 4:
        return _ADDED_FOR_OTHERS(access, request)
    refused = _ADDED(access, request)
    if refused is not None:
        return refused
    named = request.body.v3_and_below_topics
    wrong = {each.name for each in named if not access.may_on_topic(Operation.WRITE, each.name)}
    if not wrong:
        return None
    none_is = denied(table.ADD_PARTITIONS_TO_TXN, request, ErrorCode.operation_not_attempted)
    results = tuple(
        dataclasses.replace(
            topic,
            results_by_partition=tuple(
                dataclasses.replace(each, partition_error_code=TOPIC_DENIED) for each in topic.results_by_partition
            ),
        )
        if topic.name in wrong
        else topic
        for topic in none_is.results_by_topic_v3_and_below
    )
    return dataclasses.replace(none_is, results_by_topic_v3_and_below=results)


def topics_of_transactions(access: Access, request: Request) -> None:
    """A transaction's topics are those that the client may describe."""

    def amended(state: Any) -> Any:
        seen = (each for each in state.topics if access.may_on_topic(Operation.DESCRIBE, each.topic, is_asked=False))
        return dataclasses.replace(state, topics=tuple(seen))

    request.amend_reply(
        lambda reply: dataclasses.replace(reply, transaction_states=tuple(map(amended, reply.transaction_states)))
    )


def list_transactions(access: Access, request: Request) -> None:
    def is_seen(state: Any) -> bool:
        return access.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, state.transactional_id, is_asked=False)

    _seen(request, "transaction_states", is_seen)


# ------------------------------------------------------------------ topics

_EPOCHS: Final = topics(table.OFFSET_FOR_LEADER_EPOCH, Operation.DESCRIBE)
_CREATED: Final = topics(table.CREATE_TOPICS, Operation.CREATE)


def offset_for_leader_epoch(access: Access, request: Request) -> Any:
    if access.may_on_cluster(Operation.CLUSTER_ACTION, is_asked=False):
        return None
    return _EPOCHS(access, request)


def create_topics(access: Access, request: Request) -> Any:
    """Whoever may create a topic may still not see its configs."""
    if not access.may_on_cluster(Operation.CREATE, is_asked=False):
        refused = _CREATED(access, request)
        if refused is not None:
            return refused
    if request.version < 5:
        return None

    def amended(topic: Any) -> Any:
        if topic.error_code is not ErrorCode.none or access.may_on_topic(
            Operation.DESCRIBE_CONFIGS, topic.name, is_asked=False
        ):
            return topic
        return dataclasses.replace(
            topic, topic_config_error_code=TOPIC_DENIED.value, num_partitions=-1, replication_factor=-1, configs=()
        )

    request.amend_reply(lambda reply: dataclasses.replace(reply, topics=tuple(map(amended, reply.topics))))
    return None


def _may_delete(access: Access, topic: str | uuid.UUID | None) -> bool:
    return access.may_on_topic(Operation.DESCRIBE, topic) and access.may_on_topic(Operation.DELETE, topic)


_DELETED_BY_NAME: Final = items(table.DELETE_TOPICS, TOPIC_DENIED, "topic_names", "responses", _may_delete)
_DELETED: Final = all_of(
    items(
        # An id that is unknown here may be known to the controller, which does not ask.
        table.DELETE_TOPICS,
        ErrorCode.unknown_topic_id,
        "topics",
        "responses",
        lambda access, each: each.topic_id is None or access.is_known(each.topic_id),
    ),
    items(
        table.DELETE_TOPICS,
        TOPIC_DENIED,
        "topics",
        "responses",
        lambda access, each: (
            _may_delete(access, each.name if each.name is not None else each.topic_id)
            and (each.name is None or each.topic_id is None or _may_delete(access, each.topic_id))
        ),
    ),
)


def delete_topics(access: Access, request: Request) -> Any:
    return (_DELETED_BY_NAME if request.version < 6 else _DELETED)(access, request)


# ------------------------------------------------------------------ the cluster


def configs(spec: ApiSpec, operation: Operation, replied: str) -> Rule:
    """Configs of topics and of groups are theirs; of brokers, their loggers and clients' metrics,
    the cluster's.
    """

    def of_kind(number: int, resource: Resource, error: ErrorCode) -> Rule:
        return items(
            spec,
            error,
            "resources",
            replied,
            lambda access, each: each.resource_type != number or access.may(operation, resource, each.resource_name),
        )

    return all_of(
        *(of_kind(number, resource, error) for number, (resource, error) in ALTERS_ONE.items()),
        items(
            spec,
            ErrorCode.cluster_authorization_failed,
            "resources",
            replied,
            lambda access, each: each.resource_type in ALTERS_ONE or access.may_on_cluster(operation),
        ),
    )


def alter_replica_log_dirs(access: Access, request: Request) -> Any:
    """The answer lists topics, the request disks: the error stands on each replica that is named."""
    if access.may_on_cluster(Operation.ALTER):
        return None
    named = sum(len(topic.partitions) for each in request.body.dirs for topic in each.topics)
    return log_directories.altered(request, (ErrorCode.cluster_authorization_failed,) * named)


def describe_log_dirs(access: Access, request: Request) -> Any:
    """Before version 3 an answer has no place for the error: it is empty."""
    if access.may_on_cluster(Operation.DESCRIBE):
        return None
    error = ErrorCode.cluster_authorization_failed if request.version >= 3 else ErrorCode.none
    return refusal(table.DESCRIBE_LOG_DIRS, request.version, request.body, error)


def describe_cluster(access: Access, request: Request) -> None:
    """Everybody may see the brokers; the operations on the cluster are the client's."""
    if request.body.include_cluster_authorized_operations:
        request.amend_reply(
            lambda reply: dataclasses.replace(reply, cluster_authorized_operations=cluster_operations(access))
        )


def cluster_operations(access: Access) -> int:
    if not access.may_on_cluster(Operation.DESCRIBE, is_asked=False):
        return 0
    return access.operations(Resource.CLUSTER, "kafka-cluster")


# ------------------------------------------------------------------ Metadata, whose handler asks


def metadata(access: Access, request: Request, created: Callable[[Any, int], list[str]]) -> None:
    """Named topics that the client may not describe are denied, of all topics they are left out.
    Of ``created``, the missing topics of a request that are to be created, those are denied that it
    may not create.
    """
    body, version = request.body, request.version
    named = body.topics or ()

    def name_of(topic: Any) -> Any:
        return topic.name if topic.name is not None else topic.topic_id

    passed, wrong = parted(named, lambda each: access.may_on_topic(Operation.DESCRIBE, name_of(each)))
    missing = set(created(dataclasses.replace(body, topics=passed), version)) if passed else set()
    if missing and not access.may_on_cluster(Operation.CREATE, is_asked=False):
        missing = {each for each in missing if not access.may_on_topic(Operation.CREATE, each)}
        passed, uncreated = parted(passed, lambda each: each.name not in missing)
        wrong += uncreated
    _, module = answer(table.METADATA, version)
    refused = tuple(
        refused_item(module.MetadataResponseTopic, each, TOPIC_DENIED, topic_authorized_operations=_NOT_ASKED)
        if "topic_authorized_operations" in fields_of(module.MetadataResponseTopic)
        else refused_item(module.MetadataResponseTopic, each, TOPIC_DENIED)
        for each in wrong
    )
    if refused:
        request.replace_body(dataclasses.replace(body, topics=passed))
    of_topics = getattr(body, "include_topic_authorized_operations", False)

    def amended(reply: Any) -> Any:
        seen = tuple(
            dataclasses.replace(each, topic_authorized_operations=access.operations(Resource.TOPIC, each.name))
            if of_topics and each.error_code is not ErrorCode.unknown_topic_or_partition and each.name
            else each
            for each in (reply.topics if passed or not named else ())  # version 0 means all topics by none
            if not each.name or access.may_on_topic(Operation.DESCRIBE, each.name, is_asked=False)
        )
        reply = dataclasses.replace(reply, topics=(*seen, *refused))
        if getattr(body, "include_cluster_authorized_operations", False):
            reply = dataclasses.replace(reply, cluster_authorized_operations=cluster_operations(access))
        return reply

    request.amend_reply(amended)


def describable(access: Access | None) -> Callable[[str], bool]:
    """Whether a topic that nobody has named may be shown."""
    if access is None:
        return lambda name: True
    return lambda name: access.may_on_topic(Operation.DESCRIBE, name, is_asked=False)


_NOT_ASKED: Final = -(1 << 31)
_DESCRIBED: Final = topics(table.DESCRIBE_TOPIC_PARTITIONS, Operation.DESCRIBE)


def describe_topic_partitions(access: Access, request: Request) -> Any:
    """Of named topics; of all topics, the handler leaves out what may not be described."""
    refused = _DESCRIBED(access, request)
    if refused is None:

        def amended(topic: Any) -> Any:
            if topic.error_code is not ErrorCode.none:
                return topic
            return dataclasses.replace(topic, topic_authorized_operations=access.operations(Resource.TOPIC, topic.name))

        request.amend_reply(lambda reply: dataclasses.replace(reply, topics=tuple(map(amended, reply.topics))))
    return refused
