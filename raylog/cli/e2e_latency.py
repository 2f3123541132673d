"""``raylog e2e-latency``: how long a record takes from a producer to a consumer, with the options
and lines of Kafka's ``kafka-e2e-latency``.

One record is on its way at a time: it is sent, acknowledged and read before the next. Producer and
consumer are in this process, so the time is that of one clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.producer_perf import LETTERS
from raylog.errors import ClusterError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.sync import Consumer, Producer
    from raylog.cluster import Cluster

POLL_TIMEOUT_S = 60.0
LINE_EVERY = 1_000
PERCENTILES = {"50th": 0.5, "99th": 0.99, "99.9th": 0.999}


class ProducerAcks(Enum):
    one = "1"
    all = "all"


def e2e_latency(
    topic: Annotated[
        str, typer.Option(help="The topic; made with one partition if it is not there.", show_default=False)
    ],
    num_records: Annotated[int, typer.Option(min=1, help="How many records to send.", show_default=False)],
    producer_acks: Annotated[ProducerAcks, typer.Option(help="1 or all.")] = ProducerAcks.all,
    record_size: Annotated[int, typer.Option(min=1, help="Bytes of each value.")] = 100,
    record_key_size: Annotated[int, typer.Option(min=0, help="Bytes of each key; 0: no keys.")] = 0,
    num_headers: Annotated[int, typer.Option(min=0, help="Headers of each record.")] = 0,
    record_header_key_size: Annotated[int, typer.Option(min=0, help="Bytes of each header's key.")] = 0,
    record_header_size: Annotated[int, typer.Option(min=-1, help="Bytes of each header's value; -1: null.")] = 0,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Measure how long records take from send to receipt, one by one.

    Exits with 1 if a record does not arrive within a minute, or another one arrives.
    """
    cluster = find_cluster(folder, address, timeout)
    _ensure_topic(cluster, topic)
    with (
        cluster.producer(acks=producer_acks.value, linger_ms=0) as producer,
        cluster.consumer(fetch_max_wait_ms=0) as consumer,
    ):
        partitions = [TopicPartition(topic, number) for number in range(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        consumer.seek_to_end()
        for each in partitions:
            consumer.position(each)
        latencies_ms: list[float] = []
        for number in range(num_records):
            key = os.urandom(record_key_size) if record_key_size else None
            headers = [_header(record_header_key_size, record_header_size) for _ in range(num_headers)]
            value = os.urandom(record_size)
            latencies_ms.append(_one_way_ms(producer, consumer, topic, value, key=key, headers=headers))
            if number % LINE_EVERY == 0 and not as_json:
                print_text(f"{number}\t{latencies_ms[-1]:.4f}")
    average = sum(latencies_ms) / len(latencies_ms)
    found = percentiles(latencies_ms)
    if as_json:
        shown = {name: round(value, 4) for name, value in found.items()}
        print_json({"records": num_records, "avg_latency_ms": round(average, 4), "percentiles_ms": shown})
    else:
        print_text(f"Avg latency: {average:.4f} ms")
        print_text("Percentiles: " + ", ".join(f"{name} = {value:.3f}" for name, value in found.items()))


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Kafka's three: the value at that share of the sorted ones."""
    ordered = sorted(latencies_ms)
    return {name: ordered[int(len(ordered) * share)] for name, share in PERCENTILES.items()}


def _ensure_topic(cluster: Cluster, topic: str) -> None:
    from raylog.client.admin.admin import NewTopic

    with cluster.admin() as admin:
        if topic not in admin.list_topics(internal=True):
            notice(f"topic {topic} does not exist: it is created with 1 partition")
            admin.create_topics([NewTopic(topic, 1)], if_not_exists=True)


def _header(key_size: int, value_size: int) -> tuple[str, bytes | None]:
    key = os.urandom(key_size).translate(LETTERS).decode()
    return key, None if value_size < 0 else os.urandom(value_size)


def _one_way_ms(
    producer: Producer,
    consumer: Consumer,
    topic: str,
    value: bytes,
    *,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> float:
    begun = time.perf_counter()
    producer.send(topic, value, key=key, headers=headers).result(POLL_TIMEOUT_S)
    records = consumer.consume(timeout=POLL_TIMEOUT_S)
    elapsed_ms = (time.perf_counter() - begun) * 1000
    if not records:
        raise ClusterError(f"a record that {topic} acknowledged did not arrive within {POLL_TIMEOUT_S:g} s")
    if len(records) > 1 or (records[0].value, records[0].key) != (value, key):
        raise ClusterError(f"another record than the one that was sent arrived: nobody else may write to {topic}")
    return elapsed_ms
