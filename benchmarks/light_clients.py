"""Many Kafka clients that do little: pairs of a producer and a consumer of confluent-kafka, each client a connection and a thread.

``LightClients`` starts some processes and shares the pairs out among them. Pair n sends to partition n, a record at a time and at a steady
rate, and reads it back; a record carries the moment when it was sent, by the machine's monotonic clock. Every latency between ``start``
and ``stop`` is kept: of the acknowledgement, and of the record's way to its consumer.

Run as ``python light_clients.py FD``: a pipe to the script that started it.
"""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

PROCESSES = 4
START_TIMEOUT_S = 60.0
CLIENT = {"log_level": 0, "socket.nagle.disable": True}
SENT_AT = struct.Struct(">d")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The pairs of one process."""

    bootstrap: str
    topic: str
    partitions: range
    records_per_second: float  # of each pair
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """In seconds, and how many records were refused."""

    acknowledged: array[float]
    end_to_end: array[float]
    refused: int


# ------------------------------------------------------------------ in the clients' process


class _Pairs:
    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._stopped = threading.Event()
        self._clear()
        self._reading = threading.Semaphore(0)
        threads = [threading.Thread(target=self._produce, args=(each,)) for each in wanted.partitions]
        threads += [threading.Thread(target=self._consume, args=(each,)) for each in wanted.partitions]
        self._threads = threads
        for thread in threads:
            thread.start()
        for _ in wanted.partitions:
            if not self._reading.acquire(timeout=START_TIMEOUT_S):
                raise TimeoutError(f"not all consumers read within {START_TIMEOUT_S:.0f} s")

    def _clear(self) -> None:
        self._acknowledged = array("d")
        self._end_to_end = array("d")
        self._refused = 0

    def _produce(self, partition: int) -> None:
        wanted = self._wanted
        producer = Producer({"bootstrap.servers": wanted.bootstrap, "acks": 1, "linger.ms": 0, **CLIENT})
        every_s = 1 / wanted.records_per_second
        due = time.monotonic() + random.random() * every_s

        def settled(error: Any, message: Any) -> None:
            if error is not None:
                self._refused += 1
            else:
                self._acknowledged.append(time.monotonic() - SENT_AT.unpack_from(message.value())[0])

        while not self._stopped.is_set():
            left = due - time.monotonic()
            if left > 0:
                producer.poll(left)
                continue
            due += every_s
            value = SENT_AT.pack(time.monotonic()).ljust(wanted.record_bytes, b".")
            producer.produce(wanted.topic, value, partition=partition, on_delivery=settled)
        producer.flush(10)

    def _consume(self, partition: int) -> None:
        wanted = self._wanted
        options = {"bootstrap.servers": wanted.bootstrap, "group.id": "light", "enable.auto.commit": False, **CLIENT}
        consumer = Consumer(options)
        consumer.assign([TopicPartition(wanted.topic, partition, OFFSET_END)])
        is_reading = False
        while not self._stopped.is_set():
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            self._end_to_end.append(time.monotonic() - SENT_AT.unpack_from(message.value())[0])
            if not is_reading:
                is_reading = True
                self._reading.release()
        consumer.close()

    def start(self) -> None:
        self._clear()

    def stop(self) -> Latencies:
        found = Latencies(self._acknowledged, self._end_to_end, self._refused)
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return found


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        pairs = _Pairs(pipe.recv())
        pipe.send(None)
        while True:
            said = pipe.recv()
            pipe.send(getattr(pairs, said)())


# ------------------------------------------------------------------ in the script's process


class LightClients:
    """Running clients, all of which have produced and consumed, until the end of ``with``."""

    def __init__(
        self, bootstrap: str, topic: str, pairs: int, *, records_per_second: float, record_bytes: int = 100
    ) -> None:
        share = -(-pairs // PROCESSES)
        parts = [range(first, min(first + share, pairs)) for first in range(0, pairs, share)]
        self._wanted = [Wanted(bootstrap, topic, part, records_per_second, record_bytes) for part in parts]
        self._processes: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def __enter__(self) -> LightClients:
        for wanted in self._wanted:
            ours, theirs = Pipe()
            process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
            theirs.close()
            self._processes.append((process, ours))
            ours.send(wanted)
        self._answers()
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._processes:
            pipe.close()
            process.kill()
            process.wait()

    def _ask(self, what: str) -> list[Any]:
        for _, pipe in self._processes:
            pipe.send(what)
        return self._answers()

    def _answers(self) -> list[Any]:
        return [pipe.recv() for _, pipe in self._processes]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process, _ in self._processes]

    def measured(self, run: Callable[[], None]) -> Latencies:
        """What all records took that were settled while ``run`` did whatever it does. The clients end."""
        self._ask("start")
        run()
        found: list[Latencies] = self._ask("stop")
        acknowledged, end_to_end = array("d"), array("d")
        for each in found:
            acknowledged.extend(each.acknowledged)
            end_to_end.extend(each.end_to_end)
        return Latencies(acknowledged, end_to_end, sum(each.refused for each in found))


if __name__ == "__main__":
    import light_clients

    light_clients.main()  # not this one's: what comes over the pipe is of that module
