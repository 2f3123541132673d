"""Quotas at a listener that asks an authorizer: each does its part."""

from __future__ import annotations

import pytest
from acl_cases import TOPIC, topic
from authorized import authorized_cluster
from kio.schema.errors import ErrorCode
from outside import Client, metadata, produce
from raw_requests import batch, eventually

from raylog.client.sync import AdminClient
from raylog.security.permissions import Operation

pytestmark = pytest.mark.core

VALUE = b"v" * (23 * 1_024 // 2)


def test_a_throttled_client_keeps_its_connection_and_is_denied_as_before() -> None:
    with authorized_cluster() as clients:
        clients.grant(topic(Operation.WRITE), topic(Operation.DESCRIBE))
        with AdminClient(clients.running.address) as admin:
            admin.alter_quotas({"user": "ANONYMOUS"}, {"producer_byte_rate": 2_048})
        eventually(lambda: len(clients.image().quotas) == 1, "the Broker knows the quota")
        silent, other = Client(clients.running, 0), Client(clients.running, 0)
        for _ in range(2):
            silent.send(produce(TOPIC, {0: batch(VALUE)}, acks=0))
        assert silent.ask(metadata(TOPIC)).topics[0].error_code is ErrorCode.none, "a Produce without an answer, too"
        clients.grant(topic(Operation.DESCRIBE))
        reply = other.ask(produce(TOPIC, {0: batch(VALUE)}))
        assert reply.responses[0].partition_responses[0].error_code is ErrorCode.topic_authorization_failed
        assert reply.throttle_time.total_seconds() > 0, "what is denied counts"
        for each in (silent, other):
            each.close()
