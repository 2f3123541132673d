"""Transactional ids on real processes: coordinators get their producer ids and the cluster's metadata over real sessions."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

import raylog

pytestmark = pytest.mark.ray


def test_producers_initialise_transactional_ids_on_real_processes(embedded: raylog.Cluster) -> None:
    servers = embedded.bootstrap_servers()
    for number in range(6):
        producer = Producer({"bootstrap.servers": servers, "transactional.id": f"real-{number % 3}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.commit_transaction(60)
