"""Producers of four Kafka clients that are connected and warm, and send a first record to a topic that does not exist yet.

Each has its library's defaults, so what a client does while it waits for a topic's leader counts: librdkafka asks again after
100 ms, the Java client backs off from 100 ms to a second, kafka-python and aiokafka have pauses of their own. ``first`` returns
how long a record took from ``send`` to its acknowledgement; a record that fails raises what the client said.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apache_kafka import LATEST, java_command

VALUE = bytes(100)
GIVEN_UP_AFTER_S = 60.0


class FirstRecord(ABC):
    """One client, from its making to ``close``."""

    @abstractmethod
    def first(self, topic: str) -> float:
        """Seconds until the first record of that topic was acknowledged."""

    @abstractmethod
    def close(self) -> None:
        """End the client."""


class Confluent(FirstRecord):
    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})

    def first(self, topic: str) -> float:
        found: list[Any] = []
        started = time.perf_counter()
        self._producer.produce(topic, VALUE, on_delivery=lambda error, _: found.append(error))
        self._producer.flush(GIVEN_UP_AFTER_S)
        took = time.perf_counter() - started
        if found != [None]:
            raise RuntimeError(f"{topic}: {found or 'not acknowledged in time'}")
        return took

    def close(self) -> None:
        self._producer.flush(GIVEN_UP_AFTER_S)


class KafkaPython(FirstRecord):
    def __init__(self, bootstrap: str) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(bootstrap_servers=bootstrap.split(","))

    def first(self, topic: str) -> float:
        started = time.perf_counter()
        self._producer.send(topic, VALUE).get(GIVEN_UP_AFTER_S)
        return time.perf_counter() - started

    def close(self) -> None:
        self._producer.close()


class AioKafka(FirstRecord):
    def __init__(self, bootstrap: str) -> None:
        from aiokafka import AIOKafkaProducer

        async def started() -> Any:
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
            await producer.start()
            return producer

        self._runner = asyncio.Runner()
        self._producer = self._runner.run(started())

    def first(self, topic: str) -> float:
        started = time.perf_counter()
        self._runner.run(asyncio.wait_for(self._producer.send_and_wait(topic, VALUE), GIVEN_UP_AFTER_S))
        return time.perf_counter() - started

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


class Java(FirstRecord):
    """Kafka's own client, in a process of its own that reads topics from a pipe (``FirstRecords.java``)."""

    def __init__(self, bootstrap: str) -> None:
        program = Path(__file__).with_name("FirstRecords.java")
        self._process = subprocess.Popen(
            java_command(str(program), bootstrap, version=LATEST),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def first(self, topic: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(topic + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"{topic}: the Java client ended")
        return float(said)

    def close(self) -> None:
        self._process.communicate(timeout=GIVEN_UP_AFTER_S)


CLIENTS: dict[str, Callable[[str], FirstRecord]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "Java": Java,
}
