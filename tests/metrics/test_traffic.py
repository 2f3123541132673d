"""The metrics add up: what a load of known size sends and reads is what brokers show, to the byte, on every path of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from outside import Client, fetch, metadata, parts, produce
from raw_requests import batch, eventually, nodes_of
from raw_requests import produce as produce_inside
from scraping import Scraped, scraped, summed

from raylog.client.sync import Consumer, Producer
from raylog.listener.moves import PATIENCE
from raylog.metrics import table
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint, TopicPartition

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
At = dict[int, Endpoint]


def taken_at_once(running: InProcessCluster) -> int:
    """Requests that doors have answered without an event, or with one."""
    servers = [each for each in running.launcher.servers.values() if isinstance(each, ReplicaServer)]
    return sum(sum(server.door.server.counts.requests.values()) for server in servers)


def counted(at: At, topic: str) -> tuple[float, float, float]:
    """Bytes in, records in, bytes out."""
    return tuple(summed(at, each.name, topic) for each in (table.BYTES_IN, table.MESSAGES_IN, table.BYTES_OUT))  # type: ignore[return-value]


def requests_of(at: At, request: str) -> float:
    """Of clients, in any version, at all brokers."""
    found = [scraped(each).get(table.REQUESTS.name, {}) for each in at.values()]
    return sum(count for series in found for labels, count in series.items() if labels[0] == request)


@contextmanager
def asked(at: At, request: str, count: int) -> Iterator[None]:
    """So many requests of clients are counted in the body, no fewer and no more."""
    before = requests_of(at, request)
    yield
    assert requests_of(at, request) - before == count


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_connection_that_moves_to_its_host_is_counted_to_the_byte(
    running: InProcessCluster, at: At, client: Open, new_topic: NewTopicOf, acks: int
) -> None:
    topic, one = new_topic((0, 1)), client()
    sent = [batch(*[bytes(10 * number)] * 3) for number in range(1, 8 * PATIENCE)]
    before = taken_at_once(running)
    with asked(at, "Produce", len(sent)):
        for records in sent:
            if acks:
                one.ask(produce(topic, {0: records}, acks=acks))
            else:
                running.run(_tell(one, produce(topic, {0: records}, acks=0)))
        total = sum(map(len, sent))
        eventually(lambda: counted(at, topic) == (total, 3 * len(sent), 0), f"{total} bytes in")
    assert acks == 0 or taken_at_once(running) > before + PATIENCE, "the connection has moved"
    assert summed(at, table.PRODUCE_REQUESTS.name, topic) == len(sent)
    copied = [summed(at, each.name, topic) for each in (table.REPLICATION_BYTES_IN, table.REPLICATION_BYTES_OUT)]
    eventually(
        lambda: (
            [summed(at, table.REPLICATION_BYTES_IN.name, topic), summed(at, table.REPLICATION_BYTES_OUT.name, topic)]
            == [total, total]
        ),
        f"the follower to have copied {total} bytes, not {copied}",
    )


async def _tell(client: Client, entity: Any) -> None:
    client.connection.send_unanswered(entity)


def test_what_a_consumer_reads_by_a_connection_that_moves_is_counted_to_the_byte(
    running: InProcessCluster, at: At, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), client()
    records = batch(b"a" * 1_000)
    one.ask(produce(topic, {0: records}))
    before, read, times = taken_at_once(running), 0, 8 * PATIENCE
    with asked(at, "Fetch", times):
        for _ in range(times):
            read += len(parts(one.ask(fetch(topic, {0: 0})))[0].records)
    assert taken_at_once(running) > before + PATIENCE, "the connection has moved"
    assert counted(at, topic) == (len(records), 1, read) and read == times * len(records)


def test_a_request_that_is_split_among_processes_counts_once_and_its_bytes_by_topic(
    at: At, client: Open, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1), (0, 1), (0, 1), replicas_per_actor="1")
    one, sent = client(), {number: batch(bytes(100 + number)) for number in range(3)}
    total = sum(map(len, sent.values()))
    with asked(at, "Produce", 1), asked(at, "Fetch", 1):
        one.ask(produce(topic, sent))
        answered = parts(one.ask(fetch(topic, dict.fromkeys(range(3), 0))))
    assert sum(len(part.records) for part in answered.values()) == total
    assert counted(at, topic) == (total, 3, total)
    assert summed(at, table.PRODUCE_REQUESTS.name, topic) == 3


def test_a_native_client_is_counted_where_it_connects(running: InProcessCluster, at: At, new_topic: NewTopicOf) -> None:
    topic = new_topic((1, 0))
    records = batch(b"v" * 300, b"w")
    with asked(at, "Produce", 1):
        produce_inside(running, nodes_of(running, topic)[1], topic, records)
    assert counted(at, topic) == (len(records), 2, 0)


def test_the_clients_of_raylog_count_too(running: InProcessCluster, at: At, new_topic: NewTopicOf) -> None:
    topic = new_topic((0, 1), (1, 0))
    with Producer(running.address) as producer:
        for delivery in [producer.send(topic, bytes(number)) for number in range(100)]:
            delivery.result(60)
    with Consumer(running.address) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        consumer.seek_to_beginning()
        found: list[Any] = []
        eventually(lambda: found.extend(consumer.consume(100, timeout=0.2)) or len(found) >= 100, "100 records")
    bytes_in, messages_in, bytes_out = counted(at, topic)
    assert (messages_in, bytes_out) == (100, bytes_in)


def test_a_refused_append_is_counted_and_its_bytes_are_not(at: At, client: Open, new_topic: NewTopicOf) -> None:
    topic = new_topic((0,), min_insync_replicas="1", max_message_bytes="200")
    one = client()
    small, large = batch(b"v"), batch(bytes(1_000))
    one.ask(produce(topic, {0: small}))
    one.ask(produce(topic, {0: large}))
    assert counted(at, topic) == (len(small), 1, 0)
    assert summed(at, table.FAILED_PRODUCE_REQUESTS.name, topic) == 1
    assert summed(at, table.PRODUCE_REQUESTS.name, topic) == 2


def test_requests_are_counted_by_api_and_version(at: At, client: Open, new_topic: NewTopicOf) -> None:
    topic, one = new_topic((0, 1)), client()
    before: Scraped = scraped(at[0])
    for version in (9, 12, 12):
        one.ask(metadata(topic, version=version))
    after = scraped(at[0])

    def more(version: str) -> float:
        series = ("Metadata", version)
        return after[table.REQUESTS.name].get(series, 0) - before[table.REQUESTS.name].get(series, 0)

    assert (more("9"), more("12")) == (1, 2)
    assert after[table.INTERNAL_REQUESTS.name][("CollectMetrics", "0")] > 0


def test_a_connection_counts_while_it_is_open_wherever_it_is_served(
    running: InProcessCluster, at: At, client: Open, new_topic: NewTopicOf
) -> None:
    def connections() -> tuple[float, float]:
        found = scraped(at[0])
        return (
            found[table.CONNECTIONS.name][("PLAINTEXT",)],
            found[table.CONNECTIONS_CREATED.name].get(("PLAINTEXT",), 0),
        )

    topic = new_topic((0, 1))
    open_before, created_before = eventually(lambda: connections(), "a scrape")
    one, before = client(), taken_at_once(running)
    one.ask(metadata(topic))
    assert connections() == (open_before + 1, created_before + 1)
    eventually(
        lambda: one.ask(produce(topic, {0: batch(b"v")}, acks=1)) and taken_at_once(running) > before, "it to move"
    )
    assert connections() == (open_before + 1, created_before + 1)
    one.close()
    eventually(lambda: connections() == (open_before, created_before + 1), "its end to be known")
