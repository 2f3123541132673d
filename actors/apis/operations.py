"""The controller's Kafka APIs for operating partitions and brokers.

===========================  ===  ========  ================================================================
API                          key  versions  notes
===========================  ===  ========  ================================================================
ElectLeaders                  43  0–2       preferred and, from version 1, unclean
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


APIS = (Api(ELECT_LEADERS, range(3), _elect_leaders_request, _elect_leaders_entity),)
