"""Elections, reassignments and unregistering as Kafka's requests and answers, in each version that is spoken."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.kafka import table
from raylog.kafka.refusal import refusal, refused_with
from raylog.metadata import requests
from raylog.metadata.requests import PartitionOutcome
from raylog.server.apis import operations
from raylog.server.apis.entities import module_of, request_class

BY_SPEC = {api.spec: api for api in operations.APIS}
WHY = "another one decides"


def refused_by_a_standby(spec, version, body):
    return refusal(spec, version, body, ErrorCode.not_controller, WHY)


def elect(version, kind=1, named=True):
    cls = request_class(table.ELECT_LEADERS, version)
    topics = (module_of(cls).TopicPartitions(topic="t", partitions=(0, 3)),) if named else None
    return cls(topic_partitions=topics, **({"election_type": kind} if version >= 1 else {}))


@pytest.mark.parametrize("version", list(table.ELECT_LEADERS.versions))
def test_elections(version):
    api = BY_SPEC[table.ELECT_LEADERS]
    asked = api.to_request(elect(version), version)
    kind = requests.ElectionType.UNCLEAN if version >= 1 else requests.ElectionType.PREFERRED
    assert asked == requests.ElectLeaders(kind, (("t", 0), ("t", 3)))
    assert api.to_request(elect(version, named=False), version).partitions is None
    outcomes = (PartitionOutcome("t", 0), PartitionOutcome("t", 3, ErrorCode.election_not_needed, "leads"))
    entity = api.to_entity(elect(version), requests.LeadersElected(outcomes), version)
    (topic,) = entity.replica_election_results
    assert [(each.partition_id, each.error_code) for each in topic.partition_result] == [
        (0, ErrorCode.none),
        (3, ErrorCode.election_not_needed),
    ]
    refused = refused_by_a_standby(api.spec, version, elect(version))
    assert {each.error_code for each in refused.replica_election_results[0].partition_result} == {
        ErrorCode.not_controller
    }
    assert (
        refused_with(refused_by_a_standby(api.spec, version, elect(version, named=False))) is ErrorCode.not_controller
    )


def test_an_unknown_kind_of_election_is_refused():
    with pytest.raises(kafka_error(ErrorCode.invalid_request), match="election type 7"):
        BY_SPEC[table.ELECT_LEADERS].to_request(elect(2, kind=7), 2)


def reassign(version, *targets, any_factor=True):
    cls = request_class(table.ALTER_PARTITION_REASSIGNMENTS, version)
    module = module_of(cls)
    parts = tuple(module.ReassignablePartition(partition_index=number, replicas=brokers) for number, brokers in targets)
    extra = {"allow_replication_factor_change": any_factor} if version >= 1 else {}
    return cls(topics=(module.ReassignableTopic(name="t", partitions=parts),), **extra)


@pytest.mark.parametrize("version", list(table.ALTER_PARTITION_REASSIGNMENTS.versions))
def test_reassignments(version):
    api = BY_SPEC[table.ALTER_PARTITION_REASSIGNMENTS]
    body = reassign(version, (0, (1, 2)), (3, None), (0, (2,)), any_factor=False)
    asked = api.to_request(body, version)
    assert [each.brokers for each in asked.partitions] == [(1, 2), None, (2,)]
    assert asked.allow_replication_factor_change == (version < 1)
    twice = ErrorCode.invalid_request
    outcomes = (PartitionOutcome("t", 0), PartitionOutcome("t", 3), PartitionOutcome("t", 0, twice, "named twice"))
    entity = api.to_entity(body, requests.ReassignmentsAltered(outcomes), version)
    found = [(each.partition_index, each.error_code) for each in entity.responses[0].partitions]
    assert found == [(0, ErrorCode.none), (3, ErrorCode.none), (0, twice)], "in the order of the request"
    refused = refused_by_a_standby(api.spec, version, body)
    assert refused.error_code is ErrorCode.not_controller and refused.error_message == WHY
    assert {each.error_code for each in refused.responses[0].partitions} == {ErrorCode.not_controller}


def test_listing():
    api = BY_SPEC[table.LIST_PARTITION_REASSIGNMENTS]
    cls = request_class(table.LIST_PARTITION_REASSIGNMENTS, 0)
    some = cls(topics=(module_of(cls).ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 1)),))
    assert api.to_request(some, 0) == requests.ListReassignments((("t", 0), ("t", 1)))
    assert api.to_request(cls(topics=None), 0) == requests.ListReassignments()
    listed = requests.ReassignmentsListed((requests.OngoingReassignment("t", 1, (3, 1, 0), (3,), (0,)),))
    (part,) = api.to_entity(some, listed, 0).topics[0].partitions
    assert (part.replicas, part.adding_replicas, part.removing_replicas) == ((3, 1, 0), (3,), (0,))
    assert refused_by_a_standby(api.spec, 0, some).error_code is ErrorCode.not_controller


def test_unregistering():
    api = BY_SPEC[table.UNREGISTER_BROKER]
    body = request_class(table.UNREGISTER_BROKER, 0)(broker_id=3)
    assert api.to_request(body, 0) == requests.UnregisterBroker(3)
    held = requests.BrokerUnregistration(ErrorCode.invalid_request, "still holds t-0")
    assert api.to_entity(body, held, 0).error_message == "still holds t-0"
    assert refused_by_a_standby(api.spec, 0, body).error_code is ErrorCode.not_controller
