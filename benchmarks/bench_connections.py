"""Two hundred clients that each do little: latency, memory and CPU of one broker, beside Apache Kafka's.

One raylog broker, embedded, every server a Ray actor, behind its listener for Kafka clients; and one KRaft broker of Apache
Kafka with a 1 GB heap at most. Both are up for the whole script and take turns. The clients are the same: a hundred producers
and a hundred consumers of confluent-kafka (``light_clients``; librdkafka opens a second connection for each consumer), acks=1, no
linger; each producer sends ten records of 100 B per second to its own partition, and a consumer waits for them. RF 1; raylog's
100 partitions are packed into one process.

- *acknowledged*: from ``produce`` to the delivery report. *end to end*: from ``produce`` to ``poll`` of the consumer.
- *CPU*: of all the side's servers, as a share of one core. raylog's: the Broker, the controller and the process of the replicas.
- *memory*: the proportional share (PSS) of the same processes, with all clients connected, at the end of a round; and what it was
  when nobody was. Ray itself (GCS, raylet, agents, idle workers) is shown apart: it is there for whatever else runs on it, too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Self

import psutil
from apache_kafka import VERSION, ApacheKafka
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments, cpu_seconds, pss_bytes
from light_clients import CLIENT, LightClients

TOPIC = "light"
PAIRS = 100
RECORDS_PER_SECOND = 10
WARM_UP_S = 3.0
MEASURED_S = 12.0
PERCENTS = (50, 99)
TIMES_KAFKAS_LATENCY = 2.0
NOTE = (
    "With clients raylog's memory has one process more: that of __consumer_offsets, which the first group had created. "
    '"Ray itself" is the head of a Ray (GCS, raylet, dashboard, agents, idle workers), which is there for whatever else '
    "runs on it, too."
)


class Raylog:
    name: ClassVar = "raylog"

    def __init__(self) -> None:
        self._running = EmbeddedCluster(brokers=1)

    def __enter__(self) -> Self:
        self._running.__enter__()
        self._running.create_topic(TOPIC, partitions=PAIRS, configs={"replicas.per.actor": PAIRS})
        self.bootstrap = self._running.cluster.bootstrap_servers()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)

    def pids(self) -> dict[str, int]:
        status = self._running.cluster.status()
        return {
            "controller": int(status["controller"]["pid"]),
            **{_name(each): int(each["pid"]) for each in status["actors"]},
        }

    def rays_pids(self, others: Collection[int]) -> list[int]:
        """Everything that this script started but for our servers and ``others``: Ray."""
        servers = {*self.pids().values(), *others}
        return [each.pid for each in psutil.Process().children(recursive=True) if each.pid not in servers]


def _name(actor: dict[str, Any]) -> str:
    return f"{actor['kind']}, {actor['replicas']}" if actor["kind"] == "replicas" else str(actor["kind"])


class Kafka:
    name: ClassVar = "Apache Kafka"

    def __init__(self) -> None:
        self._kafka = ApacheKafka(1)

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        self._kafka.create_topic(TOPIC, partitions=PAIRS)
        self.bootstrap = self._kafka.bootstrap
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.__exit__(None, None, None)

    def pids(self) -> dict[str, int]:
        return {"broker": self._kafka.pid_of(1)}


Contestant = Raylog | Kafka


def connections(pids: Sequence[int]) -> int:
    """How many connections these processes have opened."""
    found = [each for pid in pids for each in psutil.Process(pid).net_connections("tcp")]
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)


class Rounds:
    """Runs rounds of one contestant and keeps what each has shown."""

    def __init__(self, contestant: Contestant, measured_s: float) -> None:
        self._contestant = contestant
        self._measured_s = measured_s
        self.figures: dict[str, Measurement] = {}
        self._note_memory("nobody connected")

    def _add(self, case: str, value: float, unit: str) -> None:
        self.figures.setdefault(case, Measurement(unit)).values.append(value)

    def _note_memory(self, when: str) -> None:
        total = sum(pss_bytes(pid) for pid in self._contestant.pids().values())
        self._add(f"memory of the servers, {when}", total / 1e6, "MB")

    def run(self, *, counts: bool) -> None:
        contestant = self._contestant
        pids = list(contestant.pids().values())
        with LightClients(contestant.bootstrap, TOPIC, PAIRS, records_per_second=RECORDS_PER_SECOND) as clients:
            time.sleep(WARM_UP_S)
            used = [cpu_seconds(*pids), cpu_seconds(*clients.pids)]
            began = time.monotonic()
            taken = 0.0

            def wait() -> None:
                nonlocal taken
                time.sleep(self._measured_s)
                taken = time.monotonic() - began
                used[:] = [cpu_seconds(*pids) - used[0], cpu_seconds(*clients.pids) - used[1]]

            connected = connections(clients.pids)
            found = clients.measured(wait)
            if not counts:
                return
            assert not found.refused, f"{found.refused} records were refused"
            for name, latencies in (("acknowledged", found.acknowledged), ("end to end", found.end_to_end)):
                of_all = Measurement("ms", [1000 * each for each in latencies])
                for percent in PERCENTS:
                    self._add(f"{name}, p{percent}", of_all.percentile(percent), "ms")
            self._add("CPU of the servers", used[0] / taken, "cores")
            self._add("CPU of the clients", used[1] / taken, "cores")
            self._add("records read", len(found.end_to_end) / taken, "records/s")
            self._add("connections", connected, "connections")
        self._note_memory("200 clients")
        shown = {case: each.values[-1] for case, each in self.figures.items() if case.split(",")[0] != "memory"}
        print(contestant.name, {case: round(value, 2) for case, value in shown.items()}, flush=True)


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "connections",
        f"200 Kafka clients that each produce or consume ten records per second, one broker, beside Apache Kafka {VERSION}",
        settings={
            "producers": PAIRS,
            "consumers": PAIRS,
            "records_per_second_each": RECORDS_PER_SECOND,
            "record_bytes": 100,
            "acks": "1",
            "linger.ms": 0,
            "clients": CLIENT,
            "measured_s": MEASURED_S,
        },
        quick=quick,
    )
    measured_s = MEASURED_S / (4 if quick else 1)
    with Raylog() as ours, Kafka() as theirs:
        rounds = [Rounds(ours, measured_s), Rounds(theirs, measured_s)]
        for number in range(-1, bench.rounds):
            for each in rounds if number % 2 else reversed(rounds):
                each.run(counts=number >= 0)
        for kind, pid in ours.pids().items():
            bench.record("memory of one process", f"raylog's {kind}", [pss_bytes(pid) / 1e6], unit="MB")
        rays = [pss_bytes(pid) / 1e6 for pid in ours.rays_pids(theirs.pids().values())]
        bench.record("memory of one process", "Ray itself, all", [sum(rays)], unit="MB", processes=len(rays))
    for case in rounds[1].figures:
        for name, figures in zip((Raylog.name, Kafka.name), (each.figures for each in rounds), strict=True):
            bench.cases.setdefault(case, {})[name] = figures[case]
    bench.cases["memory of one process"] = bench.cases.pop("memory of one process")
    bench.note(NOTE)
    for kind in ("acknowledged", "end to end"):
        here, there = (bench.cases[f"{kind}, p99"][name].median for name in (Raylog.name, Kafka.name))
        bench.target(f"{kind}, p99: raylog's in Kafka's", here / there, at_most=TIMES_KAFKAS_LATENCY)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
