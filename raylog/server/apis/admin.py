"""The controller's Kafka APIs: topics, the cluster, producer ids. Configs are in ``configs``,
partitions' placement in ``operations``.

Metadata's nodes are server actors (``raylog.types``), and it never creates a topic. CreateTopics
and CreatePartitions are answered when all partitions have leaders, or REQUEST_TIMED_OUT after the
request's timeout. DescribeCluster names brokers by broker id, at their Broker actor's address; dead
ones if asked for (fenced, from version 2). InitProducerId is answered without a transactional id
only; that is its coordinator's.

Each entry of ``APIS`` turns a request into one of ``raylog.metadata.requests``, and its reply into
the answer; ``to_request`` raises a KafkaError for what cannot be asked.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.errors import error_for
from raylog.kafka import table
from raylog.metadata import requests
from raylog.metadata.requests import ControllerReply
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY, build, milliseconds
from raylog.types import broker_of

INVALID_REQUEST = ErrorCode.invalid_request.value
TOPIC_DELETION_DISABLED = ErrorCode.topic_deletion_disabled.value
MISMATCHED_ENDPOINT_TYPE = ErrorCode.mismatched_endpoint_type.value
UNSUPPORTED_ENDPOINT_TYPE = ErrorCode.unsupported_endpoint_type.value


# ------------------------------------------------------------------ Metadata


def _metadata_request(body: Any, version: int) -> requests.Request:
    if body.topics is None:
        return requests.DescribeTopics()
    names = tuple(topic.name for topic in body.topics if topic.name is not None)
    ids = tuple(topic.topic_id for topic in body.topics if topic.name is None) if version >= 10 else ()
    return requests.DescribeTopics(names, ids)


def _metadata_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.METADATA, version)
    assert isinstance(reply, requests.TopicsDescribed), reply
    return build(
        cls,
        throttle_time=NO_DELAY,
        brokers=tuple(
            module.MetadataResponseBroker(
                node_id=node.node_id, host=node.endpoint.host, port=node.endpoint.port, rack=node.rack
            )
            for node in reply.nodes
        ),
        cluster_id=reply.cluster_id,
        controller_id=reply.controller_node,
        topics=tuple(_metadata_topic(module, topic, version) for topic in reply.topics),
        cluster_authorized_operations=-(1 << 31),
        error_code=ErrorCode.none,
    )


def _metadata_topic(module: Any, topic: requests.DescribedTopic, version: int) -> Any:
    unnamed = None if version >= 12 else ""
    return build(
        module.MetadataResponseTopic,
        error_code=CODES[topic.error],
        name=topic.name if topic.name is not None else unnamed,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            build(
                module.MetadataResponsePartition,
                error_code=CODES[partition.error],
                partition_index=partition.partition,
                leader_id=partition.leader_node,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replica_nodes,
                isr_nodes=partition.isr_nodes,
                offline_replicas=partition.offline_nodes,
            )
            for partition in topic.partitions
        ),
        topic_authorized_operations=-(1 << 31),
    )


# ------------------------------------------------------------------ topics


def _create_topics_request(body: Any, version: int) -> requests.Request:
    topics = tuple(
        requests.RequestedTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            tuple((each.partition_index, tuple(each.broker_ids)) for each in topic.assignments),
            tuple((config.name, config.value) for config in topic.configs),
        )
        for topic in body.topics
    )
    return requests.CreateTopics(topics, body.validate_only, milliseconds(body.timeout))


def _create_topics_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.CREATE_TOPICS, version)
    assert isinstance(reply, requests.TopicsCreated), reply
    topics = []
    for topic in reply.topics:
        values: dict[str, Any] = {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "error_code": CODES[topic.error],
            "error_message": topic.message,
            "num_partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
        }
        if version >= 5:
            values["configs"] = tuple(
                module.CreatableTopicConfigs(
                    name=name, value=value, read_only=False, config_source=source, is_sensitive=False
                )
                for name, value, source in topic.configs
            )
        topics.append(build(module.CreatableTopicResult, **values))
    return build(cls, throttle_time=NO_DELAY, topics=tuple(topics))


def _delete_topics_request(body: Any, version: int) -> requests.Request:
    if version < 6:
        return requests.DeleteTopics(tuple(body.topic_names))
    for topic in body.topics:
        if (topic.name is None) == (topic.topic_id is None):
            raise error_for(INVALID_REQUEST, "each topic is named either by its name or by its id")
    return _named(body)


def _named(body: Any) -> requests.DeleteTopics:
    names = tuple(topic.name for topic in body.topics if topic.name is not None)
    return requests.DeleteTopics(names, tuple(topic.topic_id for topic in body.topics if topic.name is None))


def _delete_topics_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DELETE_TOPICS, version)
    assert isinstance(reply, requests.TopicsDeleted), reply
    results = tuple(
        build(
            module.DeletableTopicResult,
            name=topic.name,
            topic_id=topic.topic_id,
            error_code=_deletion_error(topic.error, version),
            error_message=topic.message,
        )
        for topic in reply.topics
    )
    return build(cls, throttle_time=NO_DELAY, responses=results)


def _deletion_error(error: int, version: int) -> ErrorCode:
    """The error as that version knows it."""
    return CODES[INVALID_REQUEST if version < 3 and error == TOPIC_DELETION_DISABLED else error]


def _create_partitions_request(body: Any, version: int) -> requests.Request:
    topics = tuple(
        requests.PartitionGrowth(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(tuple(each.broker_ids) for each in topic.assignments),
        )
        for topic in body.topics
    )
    return requests.CreatePartitions(topics, body.validate_only, milliseconds(body.timeout))


def _create_partitions_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.CREATE_PARTITIONS, version)
    assert isinstance(reply, requests.PartitionsCreated), reply
    results = tuple(
        module.CreatePartitionsTopicResult(name=each.name, error_code=CODES[each.error], error_message=each.message)
        for each in reply.topics
    )
    return cls(throttle_time=NO_DELAY, results=results)


# ------------------------------------------------------------------ the cluster and producer ids

_BROKERS, _CONTROLLERS = 1, 2
_ALL_CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))  # nobody is refused any here
_OPERATIONS_NOT_ASKED = -(1 << 31)


def _describe_cluster_request(body: Any, version: int) -> requests.Request:
    asked = body.endpoint_type if version >= 1 else _BROKERS
    if asked == _CONTROLLERS:
        raise error_for(
            MISMATCHED_ENDPOINT_TYPE, "these are the cluster's brokers; controllers have no listener for clients"
        )
    if asked != _BROKERS:
        raise error_for(UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {asked}: 1 is brokers")
    return requests.DescribeCluster()


def _describe_cluster_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.DESCRIBE_CLUSTER, version)
    assert isinstance(reply, requests.ClusterDescribed), reply
    wants_dead = version >= 2 and body.include_fenced_brokers
    brokers = tuple(
        build(
            module.DescribeClusterBroker,
            broker_id=broker.broker_id,
            host=broker.last_endpoint.host if broker.last_endpoint is not None else "",
            port=broker.last_endpoint.port if broker.last_endpoint is not None else -1,
            rack=broker.rack,
            is_fenced=not broker.is_live,
        )
        for broker in reply.brokers
        if broker.is_live or wants_dead
    )
    return build(
        cls,
        throttle_time=NO_DELAY,
        error_code=CODES[0],
        error_message=None,
        endpoint_type=1,
        cluster_id=reply.cluster_id,
        controller_id=broker_of(reply.controller_node),
        brokers=brokers,
        cluster_authorized_operations=_ALL_CLUSTER_OPERATIONS
        if body.include_cluster_authorized_operations
        else _OPERATIONS_NOT_ASKED,
    )


def _init_producer_id_request(body: Any, version: int) -> requests.Request:
    if body.transactional_id is not None:
        raise error_for(INVALID_REQUEST, "the coordinator of a transactional id gives it a producer id")
    if version >= 3:
        return requests.InitProducerId(body.producer_id, body.producer_epoch)
    return requests.InitProducerId()


def _init_producer_id_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, _ = answer(table.INIT_PRODUCER_ID, version)
    assert isinstance(reply, requests.ProducerIdAssigned), reply
    return cls(
        throttle_time=NO_DELAY,
        error_code=CODES[reply.error],
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


def _allocate_producer_ids_request(body: Any, version: int) -> requests.Request:
    return requests.AllocateProducerIds()


def _allocate_producer_ids_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, _ = answer(table.ALLOCATE_PRODUCER_IDS, version)
    assert isinstance(reply, requests.ProducerIdsBlock), reply
    return cls(
        throttle_time=NO_DELAY,
        error_code=CODES[reply.error],
        producer_id_start=reply.first,
        producer_id_len=reply.count,
    )


APIS = (
    Api(table.METADATA, _metadata_request, _metadata_entity),
    Api(table.CREATE_TOPICS, _create_topics_request, _create_topics_entity),
    Api(table.DELETE_TOPICS, _delete_topics_request, _delete_topics_entity),
    Api(table.INIT_PRODUCER_ID, _init_producer_id_request, _init_producer_id_entity),
    Api(table.ALLOCATE_PRODUCER_IDS, _allocate_producer_ids_request, _allocate_producer_ids_entity),
    Api(table.CREATE_PARTITIONS, _create_partitions_request, _create_partitions_entity),
    Api(table.DESCRIBE_CLUSTER, _describe_cluster_request, _describe_cluster_entity),
)
