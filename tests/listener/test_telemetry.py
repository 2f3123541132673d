"""Clients push metrics to a running cluster's listener (KIP-714), and a scraper sees them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from outside import Client, fetch, produce, request
from raw_requests import batch, eventually
from scraping import open_metrics, scraped

from raylog.client.links import requests
from raylog.client.sync import AdminClient
from raylog.configs.metrics_configs import TELEMETRY_BYTES
from raylog.kafka import table
from raylog.listener.client_instances import shown_id
from raylog.metrics.table import DROPPED_POINTS, UNREADABLE_PUSHES
from raylog.records.compression import Compression, compress
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint

pytestmark = pytest.mark.core

GET, PUSH = table.GET_TELEMETRY_SUBSCRIPTIONS.key, table.PUSH_TELEMETRY.key
SENT = "kafka_client_producer_record_send_total"
_names = itertools.count()


@pytest.fixture(scope="module")
def at(running: InProcessCluster) -> dict[int, Endpoint]:
    return open_metrics(running, 3)


@pytest.fixture
def subscribed(running: InProcessCluster) -> Iterator[Callable[..., str]]:
    """Makes a subscription, which ends with the test."""
    made: list[str] = []
    with AdminClient(running.address) as admin:

        def make(**configs: str) -> str:
            made.append(f"subscription-{next(_names)}")
            admin.alter_client_metrics(
                made[-1],
                set={"metrics": "*", "interval.ms": "60000"} | {k.replace("_", "."): v for k, v in configs.items()},
            )
            return made[-1]

        yield make
        for name in made:
            admin.alter_client_metrics(name, delete=["metrics", "interval.ms", "match"])


def told(one: Client, id: uuid.UUID | None = None) -> Any:
    return one.ask(request(GET, 0, client_instance_id=id))


def subscription(one: Client) -> Any:
    """Once there are metrics to push. Each question is a new client instance's."""

    def found() -> Any:
        reply = told(one)
        assert reply.error_code is ErrorCode.none
        return reply if reply.requested_metrics else None

    return eventually(found, "a subscription")


def sent(count: int) -> bytes:
    total = Sum(aggregation_temporality=1, is_monotonic=True, data_points=[NumberDataPoint(as_int=count)])
    metric = Metric(name="org.apache.kafka.producer.record.send.total", sum=total)
    return MetricsData(
        resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[metric])])]
    ).SerializeToString()


def push(one: Client, to: Any, metrics: bytes, *, compression: int = 0, terminating: bool = False) -> ErrorCode:
    body = request(
        PUSH,
        0,
        client_instance_id=to.client_instance_id,
        subscription_id=to.subscription_id,
        terminating=terminating,
        compression_type=compression,
        metrics=metrics,
    )
    error: ErrorCode = one.ask(body).error_code
    return error


def test_without_a_subscription_there_is_nothing_to_push(client: Callable[..., Client]) -> None:
    reply = told(client())
    assert (reply.error_code, reply.requested_metrics) == (ErrorCode.none, ())
    assert reply.push_interval.total_seconds() == 300 and reply.client_instance_id.version == 4
    assert (reply.telemetry_max_bytes, reply.delta_temporality) == (1 << 20, True)
    assert reply.accepted_compression_types == (4, 3, 1, 2)


def test_listeners_say_that_they_take_metrics(client: Callable[..., Client]) -> None:
    keys = {each.api_key: each for each in client().ask(requests.api_versions(3)).api_keys}
    assert (keys[GET].max_version, keys[PUSH].max_version) == (0, 0)


def test_what_a_client_pushes_is_scraped_beside_the_brokers_metrics(
    client: Callable[..., Client], at: dict[int, Endpoint], subscribed: Callable[..., str]
) -> None:
    subscribed()
    one = client(1)
    to = subscription(one)
    series = ("raylog", shown_id(to.client_instance_id))
    assert push(one, to, compress(Compression.ZSTD, sent(5)), compression=4) is ErrorCode.none
    assert scraped(at[1])[SENT][series] == 5
    assert push(one, to, sent(1)) is ErrorCode.throttling_quota_exceeded
    assert push(one, to, sent(2), terminating=True) is ErrorCode.none
    assert scraped(at[1])[SENT][series] == 7
    assert push(one, to, sent(2), terminating=True) is ErrorCode.invalid_request
    assert SENT not in scraped(at[0])


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_taken(
    client: Callable[..., Client], at: dict[int, Endpoint], subscribed: Callable[..., str], codec: Compression
) -> None:
    subscribed()
    one = client()
    to = subscription(one)
    assert push(one, to, compress(codec, sent(3)), compression=codec) is ErrorCode.none
    assert scraped(at[0])[SENT]["raylog", shown_id(to.client_instance_id)] == 3


def test_what_cannot_be_read_is_refused_and_counted(
    client: Callable[..., Client], at: dict[int, Endpoint], subscribed: Callable[..., str]
) -> None:
    subscribed()
    one = client()
    before = scraped(at[0])[UNREADABLE_PUSHES.name][()]
    bomb = compress(Compression.GZIP, bytes(9 << 20))
    for metrics, codec in ((b"\x0a\xff", 0), (b"no frame", 3), (bomb, 1)):
        assert push(one, subscription(one), metrics, compression=codec) is ErrorCode.invalid_record
    assert scraped(at[0])[UNREADABLE_PUSHES.name][()] == before + 3
    assert scraped(at[0])[DROPPED_POINTS.name][()] == 0


def test_pushes_are_no_larger_than_the_config_says(
    running: InProcessCluster, client: Callable[..., Client], subscribed: Callable[..., str]
) -> None:
    subscribed()
    one = client()
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker=0, set={TELEMETRY_BYTES: "20"})
        eventually(lambda: told(one).telemetry_max_bytes == 20, "the bound")
        to = subscription(one)
        assert push(one, to, bytes(21)) is ErrorCode.telemetry_too_large
        admin.alter_configs(broker=0, delete=[TELEMETRY_BYTES])


def test_a_subscription_names_clients_by_their_software_even_after_their_connection_has_moved(
    client: Callable[..., Client], new_topic: Callable[..., str], subscribed: Callable[..., str]
) -> None:
    subscribed(match="client_software_name=raylog,client_source_address=127\\.0\\.0\\.1,client_id=raylog")
    topic, one = new_topic((0,)), client()
    assert not told(one).requested_metrics, "it has not said what it is"
    one.ask(requests.api_versions(3))
    subscription(one)
    for _ in range(20):  # its host answers them, and gives the connection back
        one.ask(produce(topic, {0: batch(b"v")}))
        one.ask(fetch(topic, {0: 0}))
    assert told(one).requested_metrics == ("*",)
