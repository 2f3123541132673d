"""The controller's Kafka APIs for operating partitions and brokers.

===========================  ===  ========  ================================================================
API                          key  versions  notes
===========================  ===  ========  ================================================================
ElectLeaders                  43  0–2       preferred and, from version 1, unclean
AlterPartitionReassignments   45  0–1       null replicas cancel; a number of replicas to keep from version 1
ListPartitionReassignments    46  0
UnregisterBroker              64  0         refused while the broker holds replicas
===========================  ===  ========  ================================================================

As in ``admin``: each entry of ``APIS`` is (key, versions, to_request, to_entity). Replicas are named by broker id.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.actors.apis.api import Api, answer
from raylog.actors.apis.entities import CODES, NO_DELAY, build
from raylog.errors import error_for
from raylog.metadata import requests
from raylog.metadata.requests import ControllerReply, ElectionType, Refused

INVALID_REQUEST = ErrorCode.invalid_request.value

# ------------------------------------------------------------------ ElectLeaders

ELECT_LEADERS = 43


def _elect_leaders_request(body: Any, version: int) -> requests.Request:
    number = body.election_type if version >= 1 else 0
    if number not in (0, 1):
        raise error_for(INVALID_REQUEST, f"election type {number}: 0 is preferred, 1 is unclean")
    named = body.topic_partitions
    partitions = None if named is None else tuple((each.topic, number) for each in named for number in each.partitions)
    return requests.ElectLeaders(ElectionType(number), partitions)


def _elect_leaders_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(ELECT_LEADERS, version)
    error = CODES[0]
    if isinstance(reply, Refused):
        error = CODES[reply.error]
        reply = requests.LeadersElected(
            tuple(
                requests.PartitionOutcome(each.topic, number, error.value, reply.message)
                for each in body.topic_partitions or ()
                for number in each.partitions
            )
        )
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
    return build(cls, throttle_time=NO_DELAY, error_code=error, replica_election_results=results)


# ------------------------------------------------------------------ reassignments

ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 45, 46


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
    cls, module = answer(ALTER_REASSIGNMENTS, version)
    error, message = CODES[0], None
    outcomes: dict[tuple[str, int], list[requests.PartitionOutcome]] = {}
    if isinstance(reply, Refused):
        error, message = CODES[reply.error], reply.message
    else:
        assert isinstance(reply, requests.ReassignmentsAltered), reply
        for outcome in reply.partitions:
            outcomes.setdefault((outcome.topic, outcome.partition), []).append(outcome)

    def result(topic: str, partition: int) -> Any:
        found = (
            outcomes[topic, partition].pop(0)
            if outcomes
            else requests.PartitionOutcome(topic, partition, error.value, message)
        )
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
        error_code=error,
        error_message=message,
        responses=responses,
    )


def _list_reassignments_request(body: Any, version: int) -> requests.Request:
    if body.topics is None:
        return requests.ListReassignments()
    return requests.ListReassignments(
        tuple((topic.name, number) for topic in body.topics for number in topic.partition_indexes)
    )


def _list_reassignments_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, module = answer(LIST_REASSIGNMENTS, version)
    error, message = CODES[0], None
    if isinstance(reply, Refused):
        error, message = CODES[reply.error], reply.message
        reply = requests.ReassignmentsListed(())
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
    return cls(throttle_time=NO_DELAY, error_code=error, error_message=message, topics=ongoing)


# ------------------------------------------------------------------ UnregisterBroker

UNREGISTER_BROKER = 64


def _unregister_broker_request(body: Any, version: int) -> requests.Request:
    return requests.UnregisterBroker(body.broker_id)


def _unregister_broker_entity(body: Any, reply: ControllerReply, version: int) -> Any:
    cls, _ = answer(UNREGISTER_BROKER, version)
    assert isinstance(reply, requests.BrokerUnregistration | Refused), reply
    return cls(throttle_time=NO_DELAY, error_code=CODES[reply.error], error_message=reply.message)


APIS = (
    Api(ELECT_LEADERS, range(3), _elect_leaders_request, _elect_leaders_entity),
    Api(ALTER_REASSIGNMENTS, range(2), _alter_reassignments_request, _alter_reassignments_entity),
    Api(LIST_REASSIGNMENTS, range(1), _list_reassignments_request, _list_reassignments_entity),
    Api(UNREGISTER_BROKER, range(1), _unregister_broker_request, _unregister_broker_entity),
)
