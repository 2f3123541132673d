"""The controller's Kafka APIs for operating partitions and brokers.

ElectLeaders elects the preferred and, from version 1, an unclean leader.
AlterPartitionReassignments cancels where there are null replicas, and keeps the number of replicas
if that is asked, from version 1. UnregisterBroker is refused while the broker holds replicas. As in
``admin``, each entry of ``APIS`` is two translations. Replicas are named by broker id.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.errors import error_for
from raylog.kafka import table
from raylog.metadata import requests
from raylog.metadata.requests import ControllerReply, ElectionType
from raylog.server.apis.api import Api, answer
from raylog.server.apis.entities import CODES, NO_DELAY, build

INVALID_REQUEST = ErrorCode.invalid_request.value

# ------------------------------------------------------------------ ElectLeaders


def _elect_leaders_request(body: Any, version: int) -> requests.Request:
    number = body.election_type if version >= 1 else 0
    if number not in (0, 1):
        raise error_for(INVALID_REQUEST, f"election type {number}: 0 is preferred, 1 is unclean")
    named = body.topic_partitions
    partitions = None if named is None else tuple((each.topic, number) for each in named for number in each.partitions)
    return requests.ElectLeaders(ElectionType(number), partitions)


def _elect_leaders_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.ELECT_LEADERS, version)
    assert isinstance(reply, requests.LeadersElected), reply
    topics: dict[str, list[Any]] = {}
    for outcome in reply.partitions:
        topics.setdefault(outcome.topic, []).append(
            module.PartitionResult(
                partition_id=outcome.partition, error_code=CODES[outcome.error], error_message=outcome.message
            )
        )
    results = tuple(
        module.ReplicaElectionResult(topic=topic, partition_result=tuple(partitions))
        for topic, partitions in topics.items()
    )
    return build(cls, throttle_time=NO_DELAY, error_code=CODES[0], replica_election_results=results)


# ------------------------------------------------------------------ reassignments


def _alter_reassignments_request(body: Any, version: int) -> requests.Request:
    targets = tuple(
        requests.PartitionTarget(
            topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas)
        )
        for topic in body.topics
        for each in topic.partitions
    )
    return requests.AlterReassignments(targets, version < 1 or body.allow_replication_factor_change)


def _alter_reassignments_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.ALTER_PARTITION_REASSIGNMENTS, version)
    outcomes: dict[tuple[str, int], list[requests.PartitionOutcome]] = {}
    assert isinstance(reply, requests.ReassignmentsAltered), reply
    for outcome in reply.partitions:
        outcomes.setdefault((outcome.topic, outcome.partition), []).append(outcome)

    def result(topic: str, partition: int) -> Any:
        found = outcomes[topic, partition].pop(0)
        return module.ReassignablePartitionResponse(
            partition_index=partition, error_code=CODES[found.error], error_message=found.message
        )

    responses = tuple(
        module.ReassignableTopicResponse(
            name=topic.name, partitions=tuple(result(topic.name, each.partition_index) for each in topic.partitions)
        )
        for topic in body.topics
    )
    return build(
        cls,
        throttle_time=NO_DELAY,
        allow_replication_factor_change=version < 1 or body.allow_replication_factor_change,
        error_code=CODES[0],
        error_message=None,
        responses=responses,
    )


def _list_reassignments_request(body: Any, version: int) -> requests.Request:
    if body.topics is None:
        return requests.ListReassignments()
    return requests.ListReassignments(
        tuple((topic.name, number) for topic in body.topics for number in topic.partition_indexes)
    )


def _list_reassignments_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(table.LIST_PARTITION_REASSIGNMENTS, version)
    assert isinstance(reply, requests.ReassignmentsListed), reply
    topics: dict[str, list[Any]] = {}
    for each in reply.partitions:
        topics.setdefault(each.topic, []).append(
            module.OngoingPartitionReassignment(
                partition_index=each.partition,
                replicas=each.replicas,
                adding_replicas=each.adding,
                removing_replicas=each.removing,
            )
        )
    ongoing = tuple(
        module.OngoingTopicReassignment(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
    )
    return cls(throttle_time=NO_DELAY, error_code=CODES[0], error_message=None, topics=ongoing)


# ------------------------------------------------------------------ UnregisterBroker


def _unregister_broker_request(body: Any, version: int) -> requests.Request:
    return requests.UnregisterBroker(body.broker_id)


def _unregister_broker_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, _ = answer(table.UNREGISTER_BROKER, version)
    assert isinstance(reply, requests.BrokerUnregistration), reply
    return cls(throttle_time=NO_DELAY, error_code=CODES[reply.error], error_message=reply.message)


APIS = (
    Api(table.ELECT_LEADERS, _elect_leaders_request, _elect_leaders_entity),
    Api(table.ALTER_PARTITION_REASSIGNMENTS, _alter_reassignments_request, _alter_reassignments_entity),
    Api(table.LIST_PARTITION_REASSIGNMENTS, _list_reassignments_request, _list_reassignments_entity),
    Api(table.UNREGISTER_BROKER, _unregister_broker_request, _unregister_broker_entity),
)
