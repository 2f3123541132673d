"""The requests of Redpanda Console, each of its list of endpoints that a cluster has to be compatible with and more.

The program itself is not run: it is not in the registries that the tests fetch from. These are its requests, made by hand, in the
versions that its Kafka client would choose: those of Kafka 2.6, to which older releases of it are pinned, and the newest that both know.
They go where its client sends them: what is for the controller to the broker that Metadata names, groups to their coordinators.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from authorized import set_configs
from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode
from outside import Client, request
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.conformance

NONE = ErrorCode.none
BROKERS = (0, 1, 2)
TOPIC_TYPE, BROKER_TYPE = 2, 4
OF_KAFKA_2_6 = {
    "ListOffsets": (2, 5),
    "Metadata": (3, 9),
    "OffsetCommit": (8, 8),
    "OffsetFetch": (9, 7),
    "FindCoordinator": (10, 3),
    "DescribeGroups": (15, 5),
    "ListGroups": (16, 4),
    "DeleteRecords": (21, 2),
    "DescribeAcls": (29, 2),
    "DescribeConfigs": (32, 3),
    "DescribeLogDirs": (35, 2),
    "CreatePartitions": (37, 2),
    "DeleteGroups": (42, 2),
    "IncrementalAlterConfigs": (44, 1),
    "AlterPartitionReassignments": (45, 0),
    "ListPartitionReassignments": (46, 0),
    "OffsetDelete": (47, 0),
    "DescribeClientQuotas": (48, 0),
    "AlterClientQuotas": (49, 0),
    "DescribeUserScramCredentials": (50, 0),  # these two are of Kafka 2.7
    "AlterUserScramCredentials": (51, 0),
}
"""API key and version by API."""
ENDPOINTS = {
    "GET /api/cluster/config": ("DescribeConfigs",),
    "GET /api/consumer-groups": ("DescribeGroups", "ListGroups"),
    "DELETE /api/topics/{topicName}/records": ("DeleteRecords",),
    "PATCH /api/consumer-groups/{groupId}": ("OffsetCommit",),
    "DELETE /api/consumer-groups/{groupId}": ("DeleteGroups",),
    "DELETE /api/consumer-groups/{groupId}/offsets": ("OffsetDelete",),
    "GET /api/operations/reassign-partitions": ("ListPartitionReassignments",),
    "PATCH /api/operations/reassign-partitions": ("IncrementalAlterConfigs", "AlterPartitionReassignments"),
    "GET /api/quotas": ("DescribeClientQuotas",),
    "GET /api/users": ("DescribeUserScramCredentials",),
    "POST /api/users": ("AlterUserScramCredentials",),
    "DELETE /api/users": ("AlterUserScramCredentials",),
}
"""What it offers only where the cluster lists these APIs."""


class Console:
    """One client with a connection to every broker. ``newest``: it speaks the newest versions, else those of Kafka 2.6."""

    def __init__(self, running: InProcessCluster, *, newest: bool) -> None:
        self.newest = newest
        self._clients = {broker: Client(running, broker, "redpanda-console") for broker in BROKERS}
        told = self._clients[0].ask(request(18, 3, client_software_name="RPConsole", client_software_version="dev"))
        self.served = {each.api_key: range(each.min_version, each.max_version + 1) for each in told.api_keys}

    def version(self, api: str) -> int:
        key, pinned = OF_KAFKA_2_6[api]
        return self.served[key][-1] if self.newest else pinned

    def ask(self, api: str, broker: int, **values: Any) -> Any:
        return self._clients[broker].ask(request(OF_KAFKA_2_6[api][0], self.version(api), **values))

    def metadata(self, *topics: str) -> Any:
        """Of these topics, or all."""
        named = {"topic_id": uuid.UUID(int=0)} if self.newest else {}
        more = {} if self.newest else {"include_cluster_authorized_operations": False}

        def asked(module: ModuleType) -> Any:
            return tuple(module.MetadataRequestTopic(name=each, **named) for each in topics) or None

        return self.ask(
            "Metadata",
            1,
            topics=asked,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            **more,
        )

    def ask_controller(self, api: str, **values: Any) -> Any:
        return self.ask(api, self.metadata().controller_id, **values)

    def coordinator(self, group: str) -> int:
        """Waits until it is there, as its client does."""
        asked = {"coordinator_keys": (group,)} if self.newest else {"key": group}

        def found() -> Any:
            told = self.ask("FindCoordinator", 0, key_type=0, **asked)
            told = told.coordinators[0] if self.newest else told
            return (told.node_id,) if told.error_code is NONE else None

        broker: int = eventually(found, f"a coordinator of {group}")[0]
        return broker

    def ask_coordinator(self, api: str, group: str, **values: Any) -> Any:
        return self.ask(api, self.coordinator(group), **values)

    def offsets_of(self, group: str) -> dict[tuple[str, int], int]:
        """All that the group has committed."""
        if self.newest:
            asked: dict[str, Any] = {
                "groups": lambda module: (module.OffsetFetchRequestGroup(group_id=group, topics=None),)
            }
        else:
            asked = {"group_id": group, "topics": None}
        told = self.ask_coordinator("OffsetFetch", group, **asked)
        told = told.groups[0] if self.newest else told
        assert told.error_code is NONE
        return {
            (topic.name, part.partition_index): part.committed_offset
            for topic in told.topics
            for part in topic.partitions
        }

    def close(self) -> None:
        for each in self._clients.values():
            each.close()


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as found:
        set_configs(found, super_users="User:ANONYMOUS", group_initial_rebalance_delay_ms="0")
        yield found


@pytest.fixture(params=["Kafka 2.6", "newest"])
def console(running: InProcessCluster, request: pytest.FixtureRequest) -> Iterator[Console]:
    found = Console(running, newest=request.param == "newest")
    yield found
    found.close()


@pytest.fixture
def topic(running: InProcessCluster) -> str:
    """Of two partitions, with ten records in the first."""
    name = f"topic-{uuid.uuid4().hex}"
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, replica_assignment={0: (0, 1, 2), 1: (1, 2, 0)})])
    eventually(lambda: isr_is_whole(running, name, 2), "all in sync")
    with Producer(running.address, acks="all") as producer:
        for number in range(10):
            producer.send(name, b"%d" % number, partition=0)
    return name


def test_every_endpoint_is_offered(running: InProcessCluster) -> None:
    console = Console(running, newest=True)
    try:
        missing = {
            endpoint: api
            for endpoint, apis in ENDPOINTS.items()
            for api in apis
            if OF_KAFKA_2_6[api][1] not in console.served.get(OF_KAFKA_2_6[api][0], ())
        }
        assert not missing
    finally:
        console.close()


def test_configs_of_a_broker_are_shown_with_synonyms_and_documentation(console: Console) -> None:
    told = console.ask(
        "DescribeConfigs",
        2,
        resources=lambda module: (
            module.DescribeConfigsResource(resource_type=BROKER_TYPE, resource_name="2", configuration_keys=None),
        ),
        include_synonyms=True,
        include_documentation=True,
    ).results[0]
    assert told.error_code is NONE and told.resource_name == "2"
    found = {each.name: each for each in told.configs}
    assert (found["broker.id"].value, found["broker.id"].read_only) == ("2", True)
    retention = found["log.retention.ms"]
    assert retention.value == "604800000" and not retention.read_only and retention.config_type == 5  # LONG
    assert [(each.name, each.value, each.source) for each in retention.synonyms] == [
        ("log.retention.ms", "604800000", 5)  # DEFAULT_CONFIG
    ]
    assert all(each.documentation for each in told.configs)


def test_groups_are_listed_at_every_broker_and_described(
    running: InProcessCluster, console: Console, topic: str
) -> None:
    group = f"group-{uuid.uuid4().hex}"
    server = {"bootstrap.servers": running.bootstrap_servers(), "client.id": "member"}
    consumer = Consumer({**server, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1), "a record for the group")
        coordinator = console.coordinator(group)
        more = {"types_filter": ()} if console.newest else {}
        listed = {broker: console.ask("ListGroups", broker, states_filter=(), **more) for broker in BROKERS}
        assert all(each.error_code is NONE for each in listed.values())
        places = [(broker, each) for broker, told in listed.items() for each in told.groups if each.group_id == group]
        assert [broker for broker, _ in places] == [coordinator]
        assert (places[0][1].protocol_type, places[0][1].group_state) == ("consumer", "Stable")
        told = console.ask("DescribeGroups", coordinator, groups=(group,), include_authorized_operations=False).groups[
            0
        ]
        assert (told.error_code, told.group_state, told.protocol_type) == (NONE, "Stable", "consumer")
        assert told.protocol_data == "range" and [each.client_id for each in told.members] == ["member"]
        assignment = told.members[0].member_assignment
        assert topic.encode() in assignment and assignment.endswith(b"\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0")
    finally:
        consumer.close()


def test_records_are_deleted(console: Console, topic: str) -> None:
    def deleted(module: ModuleType) -> Any:
        parts = (module.DeleteRecordsPartition(partition_index=0, offset=4),)
        return (module.DeleteRecordsTopic(name=topic, partitions=parts),)

    told = console.ask("DeleteRecords", 0, topics=deleted, timeout=timedelta(seconds=15)).topics[0].partitions[0]
    assert (told.error_code, told.low_watermark) == (NONE, 4)
    assert offsets(console, 0, topic, 0, -2) == 4


def offsets(console: Console, broker: int, topic: str, partition: int, timestamp: int) -> int:
    more = {"timeout": timedelta(seconds=5)} if console.newest else {}

    def asked(module: ModuleType) -> Any:
        parts = (module.ListOffsetsPartition(partition_index=partition, timestamp=timestamp),)
        return (module.ListOffsetsTopic(name=topic, partitions=parts),)

    told = console.ask("ListOffsets", broker, replica_id=-1, isolation_level=0, topics=asked, **more)
    found = told.topics[0].partitions[0]
    assert found.error_code is NONE
    return int(found.offset)


def commit(console: Console, group: str, topic: str, offset: int) -> Any:
    """As nobody's member, under the name that it gives itself. The partition's error."""

    def asked(module: ModuleType) -> Any:
        part = module.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        return (module.OffsetCommitRequestTopic(name=topic, partitions=(part,)),)

    told = console.ask_coordinator("OffsetCommit", group, group_id=group, member_id="kowl", topics=asked)
    return told.topics[0].partitions[0].error_code


def test_offsets_of_a_group_are_edited_and_deleted_and_then_the_group(
    running: InProcessCluster, console: Console, topic: str
) -> None:
    group = f"group-{uuid.uuid4().hex}"
    server = {"bootstrap.servers": running.bootstrap_servers(), "enable.auto.commit": False}
    consumer = Consumer({**server, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    first = eventually(lambda: consumer.poll(0.1), "a record for the group")
    consumer.commit(first, asynchronous=False)
    assert commit(console, group, topic, 0) is ErrorCode.unknown_member_id, "the group has a member"
    consumer.close()
    described = console.ask_coordinator("DescribeGroups", group, groups=(group,), include_authorized_operations=False)
    assert (described.groups[0].group_state, described.groups[0].members) == ("Empty", ())
    assert console.offsets_of(group) == {(topic, 0): 1}
    assert commit(console, group, topic, 7) is NONE
    assert console.offsets_of(group) == {(topic, 0): 7}

    def parts(module: ModuleType) -> Any:
        found = tuple(module.OffsetDeleteRequestPartition(partition_index=number) for number in (0, 1))
        return (module.OffsetDeleteRequestTopic(name=topic, partitions=found),)

    told = console.ask_coordinator("OffsetDelete", group, group_id=group, topics=parts)
    assert told.error_code is NONE and {each.error_code for each in told.topics[0].partitions} == {NONE}
    assert console.offsets_of(group) == {}
    told = console.ask_coordinator("DeleteGroups", group, groups_names=(group,)).results[0]
    assert (told.group_id, told.error_code) == (group, NONE)
    gone = console.ask_coordinator("DeleteGroups", group, groups_names=(group,)).results[0]
    assert gone.error_code is ErrorCode.group_id_not_found


def alter(console: Console, kind: int, name: str, operation: int, **configs: str) -> None:
    """Set (0) or take back (1) configs."""

    def asked(module: ModuleType) -> Any:
        orders = tuple(
            module.AlterableConfig(name=key.replace("_", "."), config_operation=operation, value=value)
            for key, value in configs.items()
        )
        return (module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=orders),)

    told = console.ask_controller("IncrementalAlterConfigs", resources=asked, validate_only=False)
    assert told.responses[0].error_code is NONE, told


def test_partitions_are_reassigned_under_a_throttle(console: Console, topic: str) -> None:
    throttled = {
        "leader_replication_throttled_replicas": "0:0,0:1,0:2",
        "follower_replication_throttled_replicas": "0:0,0:1,0:2",
    }
    rates = {
        "leader_replication_throttled_rate": "10000000",
        "follower_replication_throttled_rate": "10000000",
    }
    alter(console, TOPIC_TYPE, topic, 0, **throttled)
    for broker in BROKERS:
        alter(console, BROKER_TYPE, str(broker), 0, **rates)

    def reassigned(*replicas: int) -> Any:
        def asked(module: ModuleType) -> Any:
            part = module.ReassignablePartition(partition_index=0, replicas=replicas)
            return (module.ReassignableTopic(name=topic, partitions=(part,)),)

        told = console.ask_controller("AlterPartitionReassignments", topics=asked)
        assert told.error_code is NONE
        return told.responses[0].partitions[0]

    assert reassigned(2, 1).error_code is NONE
    assert reassigned(0, 99).error_code is ErrorCode.invalid_replica_assignment

    def is_over() -> bool:
        told = console.ask_controller("ListPartitionReassignments", topics=None)
        assert told.error_code is NONE
        return topic not in [each.name for each in told.topics]

    eventually(is_over, "the end of the reassignment")

    def replicas() -> list[int]:
        part = next(each for each in console.metadata(topic).topics[0].partitions if each.partition_index == 0)
        return list(part.replica_nodes)

    eventually(lambda: replicas() == [2, 1], "brokers know of it")
    for broker in BROKERS:
        alter(console, BROKER_TYPE, str(broker), 1, **rates)


def quotas(console: Console) -> dict[str, dict[str, float]]:
    told = console.ask("DescribeClientQuotas", 0, components=(), strict=False)
    assert told.error_code is NONE
    return {
        ",".join(f"{part.entity_type}={part.entity_name}" for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in told.entries
    }


def test_quotas_are_set_shown_and_removed(console: Console) -> None:
    def change(remove: bool, client: str | None, **values: float) -> None:
        def asked(module: ModuleType) -> Any:
            entity = (module.EntityData(entity_type="client-id", entity_name=client),)
            orders = tuple(module.OpData(key=key, value=value, remove=remove) for key, value in values.items())
            return (module.EntryData(entity=entity, ops=orders),)

        told = console.ask_controller("AlterClientQuotas", entries=asked, validate_only=False)
        assert told.entries[0].error_code is NONE

    change(False, "shop", producer_byte_rate=1e6, controller_mutation_rate=5.0)
    change(False, None, consumer_byte_rate=2e6)
    wanted = {
        "client-id=shop": {"producer_byte_rate": 1e6, "controller_mutation_rate": 5.0},
        "client-id=None": {"consumer_byte_rate": 2e6},
    }
    eventually(lambda: quotas(console) == wanted, "both are shown")
    change(True, "shop", producer_byte_rate=0.0, controller_mutation_rate=0.0)
    change(True, None, consumer_byte_rate=0.0)
    eventually(lambda: quotas(console) == {}, "none is left")


def test_users_are_made_shown_and_deleted(console: Console) -> None:
    sha_256, iterations = 1, 4096
    salt = os.urandom(24)
    salted = hashlib.pbkdf2_hmac("sha256", b"secret", salt, iterations)

    def made(module: ModuleType) -> Any:
        return (
            module.ScramCredentialUpsertion(
                name="shop", mechanism=sha_256, iterations=iterations, salt=salt, salted_password=salted
            ),
        )

    def deleted(module: ModuleType) -> Any:
        return (module.ScramCredentialDeletion(name="shop", mechanism=sha_256),)

    def shown() -> dict[str, list[tuple[int, int]]]:
        told = console.ask_controller("DescribeUserScramCredentials", users=None)
        assert told.error_code is NONE
        return {
            each.user: [(part.mechanism, part.iterations) for part in each.credential_infos] for each in told.results
        }

    told = console.ask_controller("AlterUserScramCredentials", deletions=(), upsertions=made).results
    assert [(each.user, each.error_code) for each in told] == [("shop", NONE)]
    eventually(lambda: shown() == {"shop": [(sha_256, iterations)]}, "the user is shown")
    told = console.ask_controller("AlterUserScramCredentials", deletions=deleted, upsertions=()).results
    assert [each.error_code for each in told] == [NONE]
    eventually(lambda: shown() == {}, "the user is gone")
    told = console.ask_controller("AlterUserScramCredentials", deletions=deleted, upsertions=()).results
    assert [each.error_code for each in told] == [ErrorCode.resource_not_found]


def test_the_overview_counts_what_is_there(running: InProcessCluster, console: Console, topic: str) -> None:
    told = console.metadata()
    assert [each.node_id for each in told.brokers] == list(BROKERS) and told.controller_id in BROKERS
    assert told.cluster_id == running.address.cluster_id and not told.cluster_id.startswith("redpanda.")
    found = next(each for each in told.topics if each.name == topic)
    assert not found.is_internal and [len(each.replica_nodes) for each in found.partitions] == [3, 3]
    assert all(each.error_code is NONE and not each.offline_replicas for each in found.partitions)
    everything = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    nobody = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    acls = console.ask("DescribeAcls", 0, **everything, **nobody)
    assert (acls.error_code, acls.resources) == (NONE, ())
    for broker in BROKERS:
        dirs = console.ask("DescribeLogDirs", broker, topics=None).results
        assert [each.error_code for each in dirs] == [NONE]
        assert [each for each in dirs[0].topics if each.name == topic]


def test_partitions_of_a_topic_are_shown_with_their_ends_and_sizes_and_grow(console: Console, topic: str) -> None:
    assert [offsets(console, 0, topic, 0, time) for time in (-2, -1)] == [0, 10]
    assert [offsets(console, 1, topic, 1, time) for time in (-2, -1)] == [0, 0]

    def of_topic(module: ModuleType) -> Any:
        return (module.DescribableLogDirTopic(topic=topic, partitions=(0, 1)),)

    sizes = {}
    for broker in BROKERS:
        told = console.ask("DescribeLogDirs", broker, topics=of_topic).results[0]
        sizes[broker] = {part.partition_index: part.partition_size for each in told.topics for part in each.partitions}
    assert len({frozenset(each.items()) for each in sizes.values()}) == 1 and sizes[0][0] > 0 == sizes[0][1]

    def grow(count: int, validate_only: bool) -> Any:
        told = console.ask_controller(
            "CreatePartitions",
            topics=lambda module: (module.CreatePartitionsTopic(name=topic, count=count, assignments=None),),
            timeout=timedelta(seconds=15),
            validate_only=validate_only,
        )
        return told.results[0].error_code

    assert grow(3, True) is NONE and len(console.metadata(topic).topics[0].partitions) == 2
    assert grow(2, True) is ErrorCode.invalid_partitions
    assert grow(3, False) is NONE
    eventually(lambda: len(console.metadata(topic).topics[0].partitions) == 3, "three partitions")
