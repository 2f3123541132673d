"""A producer's request to one leader, as its configuration and its transaction want it."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.client.config import ProducerConfig
from raylog.client.links import requests
from raylog.client.transactions.phases import ProducerTransactions
from raylog.types import TopicPartition


def produce_request(
    records: Mapping[TopicPartition, bytes | bytearray],
    config: ProducerConfig,
    transactions: ProducerTransactions | None,
) -> requests.Request:
    """Of stamped batches. The coordinator may hear of the transaction once it is sent."""
    if transactions is None:
        return requests.produce(records, acks=config.acks, timeout_ms=config.request_timeout_ms)
    transactions.wrote()
    return requests.transactional_produce(
        records,
        transactional_id=transactions.transactional_id,
        adds_partitions=transactions.leaders_add_partitions,
        timeout_ms=config.request_timeout_ms,
    )
