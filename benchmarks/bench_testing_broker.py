"""Kafka inside a test's process: what the import costs, and how long ``raylog.testing.broker()`` takes until a client has an answer.

Imports are timed in processes of their own, from the line before ``from raylog.testing import broker`` to the one after it. kio, the
protocol's codec, imports hypothesis where that is installed, for strategies that nobody here uses; so it is measured with and without.

*Ready* is from the call to the answer of Metadata with a leader for the topic's partition, asked by a client in the same process over a
socket. In a process of its own the first one also imports the protocol's classes that are used (they are imported lazily); later ones of
the same process, as in a session of tests, don't.

    python benchmarks/bench_testing_broker.py
    python -X importtime -c 'import raylog.testing.kafka' 2>&1 | sort -t'|' -k2 -n | tail -40      # what the import is made of
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from harness import Benchmark, arguments

HERE = Path(__file__).resolve().parent
ROUNDS = 9
IMPORT = """
import sys, time
{before}
started = time.perf_counter()
from raylog.testing import broker
broker
print(time.perf_counter() - started)
"""
FIRST = """
import socket, time
from raylog.testing import broker
from bench_testing_broker import first_answer
print(first_answer({options}))
"""
WITHOUT_HYPOTHESIS = 'sys.modules["hypothesis"] = None'
IMPORT_MS_MAX = 1_000
READY_MS_MAX = 300


def measured(program: str) -> float:
    """What a process prints, in milliseconds. Modules are compiled once, in the round that doesn't count, as on anybody's machine."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=HERE, env=environment
    )
    return float(done.stdout) * 1_000


def first_answer(**options: object) -> float:
    """Seconds from the call to a leader in Metadata's answer; the broker is stopped outside of that."""
    import asyncio

    from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

    from raylog.testing import broker
    from raylog.types import Endpoint
    from raylog.wire.connection import Connection

    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name="t"),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )

    async def ask(bootstrap: str) -> bool:
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        connection = await Connection.open(Endpoint(host, int(port)), secret=None, cluster_id="")
        reply = await connection.request(request)
        connection.close()
        await connection.wait_closed()
        return all(part.leader_id >= 0 for topic in reply.topics for part in topic.partitions)

    started = time.perf_counter()
    with broker(topics=["t"], **options) as kafka:  # type: ignore[arg-type]
        assert asyncio.run(ask(kafka.bootstrap))
        return time.perf_counter() - started


def main() -> int:
    options = arguments()
    bench = Benchmark(
        "testing_broker",
        "Kafka inside a test's process: import and start",
        rounds=ROUNDS,
        quick=options.quick,
    )
    imports = bench.alternate(
        "import of raylog.testing.broker",
        {
            "with hypothesis installed": lambda: measured(IMPORT.format(before="")),
            "without": lambda: measured(IMPORT.format(before=WITHOUT_HYPOTHESIS)),
        },
        unit="ms",
    )
    first = bench.alternate(
        "ready, the first of a process",
        {
            "one broker, in memory": lambda: measured(FIRST.format(options="")),
            "three brokers, in memory": lambda: measured(FIRST.format(options="brokers=3")),
        },
        unit="ms",
    )
    later = bench.alternate(
        "ready, later ones",
        {
            "one broker, in memory": lambda: first_answer() * 1_000,
            "three brokers, in memory": lambda: first_answer(brokers=3) * 1_000,
        },
        unit="ms",
    )
    bench.target("import, ms", imports["with hypothesis installed"].median, at_most=IMPORT_MS_MAX)
    bench.target("ready, the first, ms", first["one broker, in memory"].median, at_most=READY_MS_MAX)
    bench.target("ready, the first, three brokers, ms", first["three brokers, in memory"].median, at_most=READY_MS_MAX)
    bench.target("ready, later ones, ms", later["one broker, in memory"].median, at_most=READY_MS_MAX)
    bench.note('Ready is from the call of `broker(topics=["t"])` to Metadata\'s answer with a leader..')
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
