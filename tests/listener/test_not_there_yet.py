"""What raylog does not have yet, it refuses: transactions and ACLs, with the codes that end a client's attempt at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import raw_requests
from kio.schema.errors import ErrorCode
from outside import Client, produce, request
from raw_requests import end_of, part

from raylog.records.codec import encode_values
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
INVALID_TXN_STATE = ErrorCode.invalid_txn_state
NO_AUTHORIZER = ErrorCode.security_disabled


def transactional_batch() -> bytes:
    return encode_values(
        [b"x"], timestamp_ms=1, producer_id=7_000, producer_epoch=0, base_sequence=0, is_transactional=True
    )


@pytest.mark.parametrize("partitions", [1, 2], ids=["passed on as bytes", "split"])
def test_a_transactional_batch_of_a_kafka_client_is_refused(
    running: InProcessCluster, client: Open, new_topic: NewTopicOf, partitions: int
) -> None:
    topic = new_topic(*[(0, 1, 2)] * partitions)
    data = {number: transactional_batch() for number in range(partitions)}
    for acks in (-1, 1):
        (reply,) = client().ask(produce(topic, data, acks=acks)).responses
        assert [each.error_code for each in reply.partition_responses] == [INVALID_TXN_STATE] * partitions
        assert "no transactions yet" in reply.partition_responses[0].error_message
    assert end_of(running, topic) == 0


def test_a_transactional_batch_over_the_inside_link_is_refused(
    running: InProcessCluster, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1, 2))
    reply = raw_requests.produce(running, part(running, topic)["leader_node"], topic, transactional_batch())
    assert reply.error_code is INVALID_TXN_STATE and "no transactions yet" in reply.error_message
    assert end_of(running, topic) == 0


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_answered_as_by_kafka_without_an_authorizer(client: Open, version: int) -> None:
    everything: dict[str, Any] = {
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    described = client().ask(request(29, version, resource_type_filter=1, **everything))
    assert described.error_code is NO_AUTHORIZER and not described.resources
    acl = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*", "operation": 3}
    created = client().ask(
        request(
            30,
            version,
            creations=lambda module: (
                module.AclCreation(**acl, resource_pattern_type=3, permission_type=3),
                module.AclCreation(**acl, resource_pattern_type=4, permission_type=2),
            ),
        )
    )
    assert [each.error_code for each in created.results] == [NO_AUTHORIZER] * 2
    deleted = client().ask(
        request(
            31,
            version,
            filters=lambda module: (module.DeleteAclsFilter(resource_type_filter=1, **everything),),
        )
    )
    assert [each.error_code for each in deleted.filter_results] == [NO_AUTHORIZER]
    assert "no authorizer" in deleted.filter_results[0].error_message
