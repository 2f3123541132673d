"""``raylog perf``: how fast a cluster takes and gives records, measured from here by the headline
calls.

``produce`` sends with ``send_batch``, ``consume`` reads with ``poll_batch``. Figures are this
process's: one producer or consumer, its machine's clock, the time from the first record to the last
ack.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from raylog.cli.connection import (
    CONNECT_TIMEOUT_S,
    Acks,
    Address,
    Compression,
    ConsumerConfig,
    Folder,
    ProducerConfig,
    Timeout,
    open_consumer,
    open_producer,
)
from raylog.cli.output import AsJson, print_json, print_text, progress_bar
from raylog.cli.remote import ClusterApp
from raylog.cli.topics import parse_configs
from raylog.types import TopicPartition

MIB = 1024 * 1024
POLL_S = 1.0

app = ClusterApp(help="Measure how fast a cluster takes and gives records.", no_args_is_help=True)


@app.command("produce")
def produce(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    num_records: Annotated[int, typer.Option(min=1, help="How many records to send.")] = 1_000_000,
    record_size: Annotated[int, typer.Option(min=1, help="Bytes of each value.")] = 100,
    throughput: Annotated[int, typer.Option(help="At most this many records per second; -1 for no limit.")] = -1,
    batch_records: Annotated[int, typer.Option(min=1, help="Values handed to one send_batch call.")] = 10_000,
    acks: Acks = "all",
    compression: Compression = "none",
    config: ProducerConfig = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Send records of random bytes and measure rate and latency of the batches."""
    options = {"acks": acks, "compression.type": compression} | parse_configs(config)
    values = _random_values(min(batch_records, num_records), record_size)
    with (
        open_producer(folder, address, timeout, options) as producer,
        progress_bar(quiet=as_json) as progress,
    ):
        producer.partitions_for(topic)
        task = progress.add_task(f"sending to {topic}", total=num_records)
        waiting: list[tuple[float, Any]] = []
        latencies: list[float] = []
        started = time.perf_counter()
        sent = 0
        while sent < num_records:
            count = min(len(values), num_records - sent)
            if throughput > 0:
                time.sleep(max(0.0, started + sent / throughput - time.perf_counter()))
            now = time.perf_counter()
            delivery = producer.send_batch(topic, values[:count] if count < len(values) else values)
            waiting.append((now, delivery))
            sent += count
            while waiting and waiting[0][1].done():
                begun, delivery = waiting.pop(0)
                delivery.result()
                latencies.append(time.perf_counter() - begun)
            progress.update(task, completed=sent)
        for begun, delivery in waiting:
            delivery.result()
            latencies.append(time.perf_counter() - begun)
        elapsed = time.perf_counter() - started
    _report("sent", sent, sent * record_size, elapsed, latencies, as_json)


@app.command("consume")
def consume(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    num_records: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many records; by default at the end of the topic.")
    ] = None,
    config: ConsumerConfig = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Read all partitions from their first record to their current end, and measure the rate."""
    with open_consumer(folder, address, timeout, parse_configs(config)) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        total = sum(ends[each] - begins[each] for each in partitions)
        wanted = total if num_records is None else min(num_records, total)
        consumer.seek_to_beginning()
        read = read_bytes = 0
        with progress_bar(quiet=as_json) as progress:
            task = progress.add_task(f"reading {topic}", total=wanted)
            started = time.perf_counter()
            while read < wanted:
                table = consumer.poll_batch(timeout=POLL_S)
                read += table.num_rows
                read_bytes += table.column("value").nbytes + table.column("key").nbytes
                progress.update(task, completed=read)
            elapsed = time.perf_counter() - started
    _report("read", read, read_bytes, elapsed, [], as_json)


def _random_values(count: int, size: int) -> list[bytes]:
    block = os.urandom(size + count)
    return [block[start : start + size] for start in range(count)]


def _report(
    verb: str, records: int, size_bytes: int, elapsed_s: float, latencies_s: Sequence[float], as_json: bool
) -> None:
    rate, megabytes = records / elapsed_s, size_bytes / MIB / elapsed_s
    ordered = sorted(latencies_s)
    quantiles = {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
        if ordered
    }
    if as_json:
        print_json(
            {
                "records": records,
                "bytes": size_bytes,
                "seconds": round(elapsed_s, 6),
                "records_per_s": round(rate, 1),
                "mib_per_s": round(megabytes, 3),
                "batch_latency_ms": quantiles,
            }
        )
        return
    line = f"{records} records {verb}, {rate:.1f} records/sec ({megabytes:.2f} MB/sec)"
    if quantiles:
        line += f", {1000 * sum(ordered) / len(ordered):.2f} ms avg latency, {quantiles['max']:.2f} ms max latency"
        line += "".join(f", {quantiles[name]:.2f} ms {name[1:]}th" for name in ("p50", "p95", "p99", "p99.9"))
    print_text(line + ".")
