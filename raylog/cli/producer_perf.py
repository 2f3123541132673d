"""``raylog producer-perf``: how fast one producer's records are taken, with the options and lines of
Kafka's ``kafka-producer-perf-test``.

Each record is handed to ``send`` on its own. Its latency ends when the delivery's callback is
called, on the client's thread.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.cli.client_properties import (
    CommandProperty,
    MoreProperties,
    PrintMetrics,
    ProducerFile,
    ProducerProps,
    cluster_of,
    properties_of,
    refuse_metrics,
)
from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout
from raylog.cli.output import AsJson, print_json, print_text
from raylog.errors import ConfigError

if TYPE_CHECKING:
    from raylog.client.producer.deliveries import RecordMetadata
    from raylog.client.sync import Producer
    from raylog.errors import RaylogError

MIB = 1024 * 1024
LATENCIES_MAX = 500_000  # of so many records, spread evenly, latencies are kept for the percentiles
RANDOM_PAYLOADS = 1_000
LETTERS = bytes(65 + number % 26 for number in range(256))
SHARES = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}


def producer_perf(
    topic: Annotated[str, typer.Option(help="The topic's name.", show_default=False)],
    num_records: Annotated[int, typer.Option(min=1, help="How many records to send.", show_default=False)],
    throughput: Annotated[float, typer.Option(help="At most this many records per second; -1 for no limit.")] = -1,
    record_size: Annotated[
        int | None, typer.Option(min=1, help="Bytes of each value: random letters.", show_default=False)
    ] = None,
    payload_file: Annotated[
        Path | None, typer.Option(help="A file with values, of which each record has any.", show_default=False)
    ] = None,
    payload_delimiter: Annotated[str, typer.Option(help="What is between the values of --payload-file.")] = "\\n",
    payload_monotonic: Annotated[
        bool, typer.Option("--payload-monotonic", help="Values are the records' numbers.")
    ] = False,
    warmup_records: Annotated[
        int, typer.Option(min=0, help="So many first records are left out of the steady state's line.")
    ] = 0,
    reporting_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between lines of progress.")] = 5_000,
    command_property: CommandProperty = None,
    producer_props: ProducerProps = None,
    producer_config: ProducerFile = None,
    more: MoreProperties = None,
    print_metrics: PrintMetrics = False,
    transactional_id: Annotated[str | None, typer.Option(hidden=True)] = None,
    transaction_duration_ms: Annotated[int | None, typer.Option(hidden=True)] = None,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Send records one by one and measure rate and latency, as kafka-producer-perf-test does.

    Give one of --record-size, --payload-file and --payload-monotonic. --command-config FILE has
    options of the producer. `raylog perf produce` measures batches instead.
    """
    refuse_metrics(print_metrics)
    if transactional_id is not None or transaction_duration_ms is not None:
        raise ConfigError(
            "--transactional-id and --transaction-duration-ms are refused: this measures single sends, without transactions"
        )
    if [record_size is not None, payload_file is not None, payload_monotonic].count(True) != 1:
        raise typer.BadParameter("give exactly one of --record-size, --payload-file and --payload-monotonic")
    if warmup_records >= num_records:
        raise typer.BadParameter(f"--warmup-records must be fewer than --num-records, {num_records}")
    values = _values(record_size, payload_file, payload_delimiter.replace("\\n", "\n").replace("\\t", "\t").encode())
    properties = properties_of(producer_config, producer_props, command_property, more)
    cluster, options = cluster_of(properties, folder, address, timeout)
    window_s = reporting_interval / 1_000
    with cluster.producer(**{name.replace(".", "_"): value for name, value in options.items()}) as producer:
        producer.partitions_for(topic)
        if warmup_records and not as_json:
            print_text(
                f"Warmup first {warmup_records} records. Steady state results will print after the complete test summary."
            )
        run = _MeasuredSending(num_records, warmup_records, window_s, is_quiet=as_json)
        run.send(producer, topic, values, throughput)
    _report(run, as_json)


def _values(record_size: int | None, file: Path | None, delimiter: bytes) -> Iterator[bytes]:
    """Values without end."""
    if file is not None:
        try:
            found = file.read_bytes().split(delimiter)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        payloads: Sequence[bytes] = found[:-1] if found[-1] == b"" else found
        if not payloads:
            raise ConfigError(f"{file} holds no value")
    elif record_size is not None:
        block = os.urandom(record_size + RANDOM_PAYLOADS).translate(LETTERS)
        payloads = [block[start : start + record_size] for start in range(RANDOM_PAYLOADS)]
    else:
        return (b"%d" % number for number in _numbers())
    return (random.choice(payloads) for _ in _numbers())


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


class LatencyTally:
    """What was acknowledged since ``begun`` (of ``time.perf_counter``)."""

    def __init__(self, begun: float, records_max: int) -> None:
        self.begun = begun
        self.records = self.size_bytes = 0
        self.sum_s = self.max_s = 0.0
        self.latencies_s: list[float] = []
        self._every = -(-records_max // LATENCIES_MAX)

    def add(self, size_bytes: int, latency_s: float) -> None:
        if self.records % self._every == 0:
            self.latencies_s.append(latency_s)
        self.records += 1
        self.size_bytes += size_bytes
        self.sum_s += latency_s
        self.max_s = max(self.max_s, latency_s)

    def rates(self, now: float) -> tuple[float, float]:
        """Records and MiB per second until now."""
        elapsed_s = max(now - self.begun, 1e-9)
        return self.records / elapsed_s, self.size_bytes / MIB / elapsed_s

    @property
    def average_ms(self) -> float:
        return 1_000 * self.sum_s / max(1, self.records)

    def percentiles_ms(self) -> dict[str, float]:
        """Kafka's four; the latency at that share of the sorted ones."""
        ordered = sorted(self.latencies_s)
        return {name: 1_000 * ordered[int(len(ordered) * share)] for name, share in SHARES.items() if ordered}


class _MeasuredSending:
    """One run. The client's thread adds what is acknowledged, and prints a line when one is due."""

    def __init__(self, num_records: int, warmup_records: int, window_s: float, *, is_quiet: bool) -> None:
        now = time.perf_counter()
        self.all = LatencyTally(now, num_records)
        self.steady: LatencyTally | None = None
        self.ended = now
        self._window = LatencyTally(now, num_records)
        self._window_s = window_s
        self._num_records = num_records
        self._warmup_records = warmup_records
        self._is_quiet = is_quiet
        self._is_steady_told = True
        self._error: RaylogError | None = None
        self._lock = Lock()

    def send(self, producer: Producer, topic: str, values: Iterator[bytes], throughput: float) -> None:
        """Send all, and wait for them. Raises the first error of a record."""
        for number in range(self._num_records):
            if self._warmup_records and number == self._warmup_records:
                self._begin_steady_state(self._num_records - number)
            if throughput > 0:
                time.sleep(max(0.0, self.all.begun + number / throughput - time.perf_counter()))
            self._send_one(producer, topic, next(values), self.steady)
            if self._error is not None:
                raise self._error
        producer.flush()
        self.ended = time.perf_counter()
        if self._error is not None:
            raise self._error

    def _begin_steady_state(self, num_records: int) -> None:
        """Intervals begin anew, and leave out what is sent already."""
        now = time.perf_counter()
        with self._lock:
            self.steady, self._window = LatencyTally(now, num_records), LatencyTally(now, num_records)
            self._is_steady_told = False

    def _send_one(self, producer: Producer, topic: str, value: bytes, steady: LatencyTally | None) -> None:
        begun = time.perf_counter()

        def settled(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
            if error is not None:
                self._error = self._error or error
                return
            now = time.perf_counter()
            with self._lock:
                window = self._window if steady is self.steady else None
                for tally in (self.all, window, steady):
                    if tally is not None:
                        tally.add(len(value), now - begun)
                if now - self._window.begun >= self._window_s:
                    self._print_window(now)

        producer.send(topic, value, on_delivery=settled)

    def _print_window(self, now: float) -> None:
        window, self._window = self._window, LatencyTally(now, self._num_records)
        rate, megabytes = window.rates(now)
        if not self._is_quiet:
            if not self._is_steady_told:
                self._is_steady_told = True
                print_text("In steady state.")
            print_text(
                f"{window.records} records sent, {rate:.1f} records/sec ({megabytes:.2f} MB/sec), "
                f"{window.average_ms:.1f} ms avg latency, {1_000 * window.max_s:.1f} ms max latency."
            )


def _report(run: _MeasuredSending, as_json: bool) -> None:
    if as_json:
        steady = None if run.steady is None else _plain(run.steady, run.ended)
        print_json(_plain(run.all, run.ended) | {"steady_state": steady})
        return
    print_text(_line(run.all, run.ended, "records"))
    if run.steady is not None:
        print_text(_line(run.steady, run.ended, "steady state records"))


def _line(tally: LatencyTally, now: float, what: str) -> str:
    rate, megabytes = tally.rates(now)
    line = f"{tally.records} {what} sent, {rate:.6f} records/sec ({megabytes:.2f} MB/sec), "
    line += f"{tally.average_ms:.2f} ms avg latency, {1_000 * tally.max_s:.2f} ms max latency"
    return line + "".join(f", {round(value)} ms {name}" for name, value in tally.percentiles_ms().items()) + "."


def _plain(tally: LatencyTally, now: float) -> dict[str, Any]:
    rate, megabytes = tally.rates(now)
    latency = {"avg": tally.average_ms, "max": 1_000 * tally.max_s} | tally.percentiles_ms()
    return {
        "records": tally.records,
        "bytes": tally.size_bytes,
        "seconds": round(now - tally.begun, 6),
        "records_per_s": round(rate, 1),
        "mib_per_s": round(megabytes, 3),
        "latency_ms": {name: round(value, 3) for name, value in latency.items()},
    }
