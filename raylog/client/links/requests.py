"""The Kafka requests that clients send, built from plain values.

One function per API, each bound to the version that the inside links speak. kio's modules are
imported when an API is first used, and are taken as untyped here: this is the only module of the
clients that knows their class names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, TypeVar

from raylog.types import TopicPartition

Request = Any
Reply = Any

T = TypeVar("T")

NO_UUID = uuid.UUID(int=0)
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32
READ_UNCOMMITTED = 0
READ_COMMITTED = 1


@cache
def _schema(path: str) -> Any:
    """A request module of kio, such as ``produce.v10``."""
    return import_module(f"kio.schema.{path}.request")


@lru_cache(64)
def _ms(milliseconds: float) -> timedelta:
    return timedelta(milliseconds=int(milliseconds))


def by_topic(values: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    """The same values, grouped as Kafka's requests want them."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, []).append((partition, value))
    return topics


def produce(records: Mapping[TopicPartition, bytes | bytearray], *, acks: int, timeout_ms: float) -> Request:
    """Produce v10, whose answer names the new leader where there is one."""
    return _produce(10, records, None, acks, timeout_ms)


def transactional_produce(
    records: Mapping[TopicPartition, bytes | bytearray],
    *,
    transactional_id: str,
    adds_partitions: bool,
    timeout_ms: float,
) -> Request:
    """Produce v12, whose leaders add the partitions to the transaction, or v11, before which they have
    been added; both may be answered with TRANSACTION_ABORTABLE.
    """
    return _produce(12 if adds_partitions else 11, records, transactional_id, -1, timeout_ms)


def _produce(
    version: int,
    records: Mapping[TopicPartition, bytes | bytearray],
    transactional_id: str | None,
    acks: int,
    timeout_ms: float,
) -> Request:
    schema = _schema(f"produce.v{version}")
    return schema.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=_ms(timeout_ms),
        topic_data=tuple(
            schema.TopicProduceData(
                name=topic,
                partition_data=tuple(
                    schema.PartitionProduceData(index=index, records=data) for index, data in partitions
                ),
            )
            for topic, partitions in by_topic(records).items()
        ),
    )


def fetch(
    positions: Mapping[TopicPartition, tuple[int, int]],
    *,
    max_wait_ms: float,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    isolation_level: int = READ_UNCOMMITTED,
    rack: str = "",
) -> Request:
    """Fetch v12 without a fetch session; a position is (offset, current leader epoch). With a
    ``rack``, a broker's listener answers out of its own replica, follower or leader.
    """
    schema = _schema("fetch.v12")
    return schema.FetchRequest(
        replica_id=-1,
        max_wait=_ms(max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=tuple(
            schema.FetchTopic(
                topic=topic,
                partitions=tuple(
                    schema.FetchPartition(
                        partition=partition,
                        current_leader_epoch=epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=partition_max_bytes,
                    )
                    for partition, (offset, epoch) in partitions
                ),
            )
            for topic, partitions in by_topic(positions).items()
        ),
        forgotten_topics_data=(),
        rack_id=rack,
    )


def list_offsets(
    timestamps: Mapping[TopicPartition, tuple[int, int]], *, isolation_level: int = READ_UNCOMMITTED
) -> Request:
    """ListOffsets v7; a value is (timestamp, current leader epoch). READ_COMMITTED: the latest is
    the last stable offset.
    """
    schema = _schema("list_offsets.v7")
    return schema.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=tuple(
            schema.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    schema.ListOffsetsPartition(
                        partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
                    )
                    for partition, (timestamp, epoch) in partitions
                ),
            )
            for topic, partitions in by_topic(timestamps).items()
        ),
    )


def offset_for_leader_epoch(epochs: Mapping[TopicPartition, tuple[int, int]]) -> Request:
    """OffsetForLeaderEpoch v4; a value is (leader epoch asked about, current leader epoch)."""
    schema = _schema("offset_for_leader_epoch.v4")
    return schema.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=tuple(
            schema.OffsetForLeaderTopic(
                topic=topic,
                partitions=tuple(
                    schema.OffsetForLeaderPartition(
                        partition=partition, current_leader_epoch=current, leader_epoch=epoch
                    )
                    for partition, (epoch, current) in partitions
                ),
            )
            for topic, partitions in by_topic(epochs).items()
        ),
    )


def delete_records(offsets: Mapping[TopicPartition, int], *, timeout_ms: float) -> Request:
    """DeleteRecords v2; offset −1 stands for the high watermark."""
    schema = _schema("delete_records.v2")
    return schema.DeleteRecordsRequest(
        topics=tuple(
            schema.DeleteRecordsTopic(
                name=topic,
                partitions=tuple(
                    schema.DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in partitions
                ),
            )
            for topic, partitions in by_topic(offsets).items()
        ),
        timeout=_ms(timeout_ms),
    )


def api_versions(version: int = 3) -> Request:
    """ApiVersions v3, which also tells of finalized features; any Kafka server answers it. Only v4
    tells of all that are supported.
    """
    return _schema(f"api_versions.v{version}").ApiVersionsRequest(
        client_software_name="raylog", client_software_version="unknown"
    )


def metadata(topics: Iterable[str] | None) -> Request:
    """Metadata v12; None asks for all topics. Nothing is created by asking."""
    schema = _schema("metadata.v12")
    named = (
        None if topics is None else tuple(schema.MetadataRequestTopic(topic_id=NO_UUID, name=topic) for topic in topics)
    )
    return schema.MetadataRequest(
        topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


def init_producer_id() -> Request:
    """InitProducerId v4 for an idempotent producer."""
    return _schema("init_producer_id.v4").InitProducerIdRequest(
        transactional_id=None, transaction_timeout=_ms(0), producer_id=-1, producer_epoch=-1
    )


def init_transactional_id(transactional_id: str, timeout_ms: float, producer_id: int, producer_epoch: int) -> Request:
    """InitProducerId v5 of a transactional id. Producer id and epoch −1: whoever has it is fenced;
    else only somebody else's attempt is.
    """
    return _schema("init_producer_id.v5").InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout=_ms(timeout_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def end_txn(
    transactional_id: str, producer_id: int, producer_epoch: int, *, commits: bool, raises_epoch: bool
) -> Request:
    """EndTxn v5, whose answer has the next epoch, or v4, after which the epoch stays."""
    return _schema("end_txn.v5" if raises_epoch else "end_txn.v4").EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, committed=commits
    )


def add_partitions_to_txn(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
) -> Request:
    """AddPartitionsToTxn v3, a client's own."""
    schema = _schema("add_partitions_to_txn.v3")
    return schema.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=tuple(
            schema.AddPartitionsToTxnTopic(name=topic, partitions=tuple(number for number, _ in numbers))
            for topic, numbers in by_topic(dict.fromkeys(partitions)).items()
        ),
    )


def add_offsets_to_txn(transactional_id: str, producer_id: int, producer_epoch: int, group_id: str) -> Request:
    """AddOffsetsToTxn v3."""
    return _schema("add_offsets_to_txn.v3").AddOffsetsToTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group_id
    )


def describe_transactions(transactional_ids: Iterable[str]) -> Request:
    """DescribeTransactions v0."""
    return _schema("describe_transactions.v0").DescribeTransactionsRequest(transactional_ids=tuple(transactional_ids))


def list_transactions(states: Iterable[str], producer_ids: Iterable[int], longer_than_ms: int) -> Request:
    """ListTransactions v1; empty filters and a negative duration let all pass."""
    return _schema("list_transactions.v1").ListTransactionsRequest(
        state_filters=tuple(states), producer_id_filters=tuple(sorted(producer_ids)), duration_filter=longer_than_ms
    )


def write_txn_marker(key: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> Request:
    """WriteTxnMarkers v1: an abort, in one partition."""
    schema = _schema("write_txn_markers.v1")
    topic = schema.WritableTxnMarkerTopic(name=key.topic, partition_indexes=(key.partition,))
    marker = schema.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=coordinator_epoch,
    )
    return schema.WriteTxnMarkersRequest(markers=(marker,))


def create_topics(
    topics: Iterable[tuple[str, int, int, Mapping[int, Sequence[int]], Mapping[str, str | None]]],
    *,
    timeout_ms: float,
    validate_only: bool,
) -> Request:
    """CreateTopics v7; a topic is (name, partitions, replication factor, assignment by partition,
    configs).
    """
    schema = _schema("create_topics.v7")
    return schema.CreateTopicsRequest(
        topics=tuple(
            schema.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=tuple(
                    schema.CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(brokers))
                    for index, brokers in sorted(assignment.items())
                ),
                configs=tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
            )
            for name, partitions, replication_factor, assignment, configs in topics
        ),
        timeout=_ms(timeout_ms),
        validate_only=validate_only,
    )


def delete_topics(topics: Iterable[str | uuid.UUID], *, timeout_ms: float) -> Request:
    """DeleteTopics v6, by name or by id."""
    schema = _schema("delete_topics.v6")
    return schema.DeleteTopicsRequest(
        topics=tuple(
            schema.DeleteTopicState(name=None, topic_id=each)
            if isinstance(each, uuid.UUID)
            else schema.DeleteTopicState(name=each, topic_id=None)
            for each in topics
        ),
        timeout=_ms(timeout_ms),
    )


def create_partitions(
    counts: Mapping[str, tuple[int, Sequence[Sequence[int]] | None]], *, timeout_ms: float, validate_only: bool
) -> Request:
    """CreatePartitions v3; a value is (new total, brokers per new partition or None)."""
    schema = _schema("create_partitions.v3")
    return schema.CreatePartitionsRequest(
        topics=tuple(
            schema.CreatePartitionsTopic(
                name=name,
                count=total,
                assignments=None
                if brokers is None
                else tuple(schema.CreatePartitionsAssignment(broker_ids=tuple(ids)) for ids in brokers),
            )
            for name, (total, brokers) in counts.items()
        ),
        timeout=_ms(timeout_ms),
        validate_only=validate_only,
    )


def describe_configs(resource_type: int, name: str, keys: Sequence[str] | None) -> Request:
    """DescribeConfigs v4 for one resource."""
    schema = _schema("describe_configs.v4")
    resource = schema.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else tuple(keys)
    )
    return schema.DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=True)


def incremental_alter_configs(
    resource_type: int, name: str, operations: Iterable[tuple[str, int, str | None]], *, validate_only: bool
) -> Request:
    """IncrementalAlterConfigs v1 for one resource; an operation is (key, 0 set / 1 delete / 2
    append / 3 subtract, value).
    """
    schema = _schema("incremental_alter_configs.v1")
    configs = tuple(
        schema.AlterableConfig(name=key, config_operation=kind, value=value) for key, kind, value in operations
    )
    resource = schema.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
    return schema.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)


def describe_producers(partitions: Iterable[TopicPartition]) -> Request:
    """DescribeProducers v0."""
    schema = _schema("describe_producers.v0")
    topics = by_topic(dict.fromkeys(partitions)).items()
    return schema.DescribeProducersRequest(
        topics=tuple(
            schema.TopicRequest(name=topic, partition_indexes=tuple(index for index, _ in indexes))
            for topic, indexes in topics
        )
    )


def describe_quorum() -> Request:
    """DescribeQuorum v2, of the one log that there is."""
    schema = _schema("describe_quorum.v2")
    partition = schema.PartitionData(partition_index=0)
    return schema.DescribeQuorumRequest(
        topics=(schema.TopicData(topic_name="__cluster_metadata", partitions=(partition,)),)
    )


def alter_replica_log_dirs(wanted: Iterable[tuple[str, int, str]]) -> Request:
    """AlterReplicaLogDirs v2: of topics, partitions and the paths where they shall be."""
    schema = _schema("alter_replica_log_dirs.v2")
    dirs: dict[str, dict[str, list[int]]] = {}
    for topic, partition, path in wanted:
        dirs.setdefault(path, {}).setdefault(topic, []).append(partition)
    return schema.AlterReplicaLogDirsRequest(
        dirs=tuple(
            schema.AlterReplicaLogDir(
                path=path,
                topics=tuple(
                    schema.AlterReplicaLogDirTopic(name=name, partitions=tuple(parts)) for name, parts in topics.items()
                ),
            )
            for path, topics in dirs.items()
        )
    )


def describe_log_dirs(only: TopicPartition | None = None) -> Request:
    """DescribeLogDirs v4: of everything that the asked process holds, or of one partition."""
    schema = _schema("describe_log_dirs.v4")
    if only is None:
        return schema.DescribeLogDirsRequest(topics=None)
    topic = schema.DescribableLogDirTopic(topic=only.topic, partitions=(only.partition,))
    return schema.DescribeLogDirsRequest(topics=(topic,))


def describe_cluster(*, include_fenced: bool = False) -> Request:
    """DescribeCluster v2. Fenced brokers are those that are away."""
    return _schema("describe_cluster.v2").DescribeClusterRequest(
        include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=include_fenced
    )


# ------------------------------------------------------------------ operating partitions and brokers


def elect_leaders(election_type: int, partitions: Iterable[TopicPartition] | None, *, timeout_ms: float) -> Request:
    """ElectLeaders v2; type 0 is preferred, 1 unclean; None stands for every partition."""
    schema = _schema("elect_leaders.v2")
    named = None
    if partitions is not None:
        grouped = by_topic(dict.fromkeys(partitions))
        named = tuple(
            schema.TopicPartitions(topic=topic, partitions=tuple(number for number, _ in numbers))
            for topic, numbers in grouped.items()
        )
    return schema.ElectLeadersRequest(election_type=election_type, topic_partitions=named, timeout=_ms(timeout_ms))


def alter_partition_reassignments(
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    timeout_ms: float,
    allow_replication_factor_change: bool = True,
) -> Request:
    """AlterPartitionReassignments v1; a value is the brokers wanted, None to cancel."""
    schema = _schema("alter_partition_reassignments.v1")
    return schema.AlterPartitionReassignmentsRequest(
        timeout=_ms(timeout_ms),
        allow_replication_factor_change=allow_replication_factor_change,
        topics=tuple(
            schema.ReassignableTopic(
                name=topic,
                partitions=tuple(
                    schema.ReassignablePartition(
                        partition_index=index, replicas=None if brokers is None else tuple(brokers)
                    )
                    for index, brokers in partitions
                ),
            )
            for topic, partitions in by_topic(targets).items()
        ),
    )


def list_partition_reassignments(partitions: Iterable[TopicPartition] | None, *, timeout_ms: float) -> Request:
    """ListPartitionReassignments v0; None lists all that are under way."""
    schema = _schema("list_partition_reassignments.v0")
    named = None
    if partitions is not None:
        named = tuple(
            schema.ListPartitionReassignmentsTopics(name=topic, partition_indexes=tuple(index for index, _ in indexes))
            for topic, indexes in by_topic(dict.fromkeys(partitions)).items()
        )
    return schema.ListPartitionReassignmentsRequest(timeout=_ms(timeout_ms), topics=named)


def unregister_broker(broker: int) -> Request:
    """UnregisterBroker v0."""
    return _schema("unregister_broker.v0").UnregisterBrokerRequest(broker_id=broker)
