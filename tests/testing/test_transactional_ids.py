"""The test broker has the coordinators of transactions, and their requests can be made to fail."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

import raylog.testing

pytestmark = pytest.mark.core


def test_a_test_broker_coordinates_transactions_and_fails_requests_on_order() -> None:
    with raylog.testing.broker(topics=["t"]) as kafka:
        orders = (
            kafka.fail("FindCoordinator", code="COORDINATOR_NOT_AVAILABLE"),
            kafka.fail("InitProducerId", code="CONCURRENT_TRANSACTIONS"),
        )
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "tested"})
        producer.init_transactions(30)
        assert [order.hits for order in orders] == [1, 1]
