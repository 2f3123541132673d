"""Small requests of Kafka clients beside Apache Kafka 4.3: requests per second, what one costs the servers, and how long it takes.

Both sides are clusters on this machine, up for the whole part and warmed by rounds that do not count: raylog embedded, every server a Ray
actor; Kafka as KRaft brokers that are controllers too, with a 1 GB heap. Servers have their defaults; sides take turns; while one is
measured the other is idle. All records have 100 B, are alone in their batches, and go through raylog's listener as all of a Kafka client's
do: ``small_requests`` connects to the brokers that Metadata names, and costs so little itself that servers have most of the machine.

The parts (``--only PART``; the others' figures stay in the file as an earlier run left them):

- ``produce``: acks=1, RF 1, from 1, 4 and 50 connections, a partition each, with 1 and with 5 requests in flight on each. What is
  measured is what lasts: each load runs first for longer than raylog needs to start a second process, if one is not enough.
- ``fetch``: a hundred consumers, a partition each, one record per reply; the same.
- ``clients``: 200 and 2,000 clients, half of them producers that send 1,000 records/s together, half consumers that wait for them: latency
  of acknowledgements, and CPU. A round in which a side doesn't keep up is measured again: a peer that has collapsed is none. 200 also
  as clients of confluent-kafka (``light_clients``).
- ``round-trip``: one record at a time from confluent-kafka and from a bare socket, RF 1 with acks=1 and RF 3 with acks=all, three brokers.
- ``hosts``: raylog alone: eight partitions of one broker in 1, 2 and 4 processes, added and retired by hand.

*Servers' CPU* is that of all of a side's processes: for raylog Brokers, hosts of replicas and groups, and controllers.

``--beside-busy-loop`` measures the first three parts while a process does nothing but use one of the cores. ``--only-raylog`` is for
looking into raylog while it is under load: it names the processes, measures no Kafka and writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import plain_kafka
from apache_kafka import LATEST, ApacheKafka
from bench_round_trip import TRIPS, WARM_UP, Trips, kafka, measure
from confluent_kafka import Producer
from embedded import WAIT_S, EmbeddedCluster
from harness import Benchmark, Measurement, arguments, cpu_seconds
from light_clients import LightClients
from small_requests import Kind, Looked, SmallRequests, Wanted

from raylog.client.admin.actors import ActorInfo
from raylog.client.sync import AdminClient

RAYLOG, KAFKA = "raylog", "Apache Kafka"
PARTS = ("produce", "fetch", "clients", "round-trip", "hosts")
BUSY_PARTS = PARTS[:3]
BUSY = ", beside a busy loop"
CPU = "servers' CPU"

CONNECTIONS = (1, 4, 50)
IN_FLIGHT = (1, 5)
CONSUMERS = 100
RECORDS_EACH = 200  # of a partition that is fetched from
CLIENTS = (200, 2_000)
RECORDS_PER_SECOND = 1_000
HOSTS = (1, 2, 4)
HOT_PARTITIONS = 8
HOT_CONNECTIONS = 16
MEASURED_S = {"produce": 2.5, "fetch": 2.5, "clients": 6.0, "hosts": 4.0}
SETTLE_S = 0.7
CLIENTS_SETTLE_S = 8.0
"""Of 2,000 clients each producer has sent eight records then: long-lived ones are what companies have."""
KEPT_UP = 0.95  # of the records that were to be sent are acknowledged in time; else a round says nothing of latencies
TRIES = 4
WARM_UP_S = 8.0
SATURATED_S = 15.0  # more than actor.scaling.busy.ms and what a split takes
ROUNDS = 3

RATE_MIN = 1.0  # times Kafka's
COST_MAX = 1.2
LATENCY_MAX = {50: 1.5, 99: 2.0}
TRIP_MAX = 1.2
FLAT = 1.15  # of CPU per request, against one host
STEADY = 0.95  # of requests per second, against fewer hosts: as much as rounds differ by themselves


class Side(Protocol):
    """A running cluster of either kind."""

    @property
    def bootstrap(self) -> str: ...

    def create_topic(
        self, topic: str, *, partitions: int = 1, replication_factor: int = 1, configs: Mapping[str, Any] | None = None
    ) -> None: ...

    def server_cpu(self) -> dict[int, float]:
        """CPU time of each server process so far."""
        ...


class Raylog(EmbeddedCluster):
    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers()

    def server_cpu(self) -> dict[int, float]:
        return {pid: cpu_seconds(pid) for pid in self.processes()}


class Kafka(ApacheKafka):
    def server_cpu(self) -> dict[int, float]:
        return {pid: cpu_seconds(pid) for pid in self.pids.values()}


@contextlib.contextmanager
def busy_loop(wanted: bool) -> Iterator[None]:
    """Uses up one core."""
    if not wanted:
        yield
        return
    loop = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Window:
    """What a side did in some seconds of a load."""

    seconds: float
    answered: int
    refused: dict[int, int]
    read: int
    server_cpu_s: float
    processes: int
    load_cpu_s: float
    latencies: Measurement

    @property
    def rate(self) -> float:
        return self.answered / self.seconds

    @property
    def us_per_request(self) -> float:
        return 1e6 * self.server_cpu_s / max(1, self.answered)

    @property
    def cores(self) -> float:
        return self.server_cpu_s / self.seconds


def window(side: Side, wanted: Wanted, seconds: float, settle_s: float = SETTLE_S) -> Window:
    """Runs a load for so long, on connections of its own, behind ``settle_s`` that don't count."""
    with SmallRequests(wanted) as load:
        time.sleep(settle_s)
        cpu, first = side.server_cpu(), load.look()
        time.sleep(seconds)
        last = load.look()
        used = side.server_cpu()
    return between(first, last, cpu, used)


def between(first: Looked, last: Looked, cpu: Mapping[int, float], used: Mapping[int, float]) -> Window:
    return Window(
        last.at - first.at,
        last.answered - first.answered,
        {code: count - first.refused.get(code, 0) for code, count in last.refused.items()},
        last.read - first.read,
        sum(each - cpu.get(pid, 0.0) for pid, each in used.items()),
        len(used),
        last.cpu_s - first.cpu_s,
        Measurement("ms", [1000 * each for each in last.latencies_s]),
    )


Figures = dict[tuple[str, str], float]
"""By what they are called and their unit."""


class Script:
    def __init__(self, bench: Benchmark, options: argparse.Namespace) -> None:
        self.bench = bench
        self.is_busy = bool(options.beside_busy_loop)
        self.seconds = {part: each / (3 if options.quick else 1) for part, each in MEASURED_S.items()}
        self.warm_up_s = WARM_UP_S / (6 if options.quick else 1)
        self.saturated_s = SATURATED_S / (6 if options.quick else 1)
        self.trips = TRIPS // (10 if options.quick else 1)
        self.records_each = RECORDS_EACH // (4 if options.quick else 1)
        self.clients = CLIENTS[:1] if options.quick else CLIENTS
        self._only_raylog = bool(options.only_raylog)

    @contextlib.contextmanager
    def sides(self, brokers: int) -> Iterator[dict[str, Side]]:
        with contextlib.ExitStack() as running:
            found: dict[str, Side] = {RAYLOG: (ours := running.enter_context(Raylog(brokers)))}
            if self._only_raylog:
                print("raylog's processes:", ours.processes(), flush=True)
            else:
                found[KAFKA] = running.enter_context(Kafka(brokers, version=LATEST))
            yield found

    def alternate(
        self, case: str, sides: Mapping[str, Side], run: Callable[[Side], tuple[Figures, dict[str, Any]]]
    ) -> None:
        """Sides take turns; what each run of one shows becomes values of cases."""
        case += BUSY if self.is_busy else ""
        shown: dict[str, list[tuple[Figures, dict[str, Any]]]] = {name: [] for name in sides}
        for number in range(-1, self.bench.rounds):
            for name in reversed(list(sides)) if number % 2 else list(sides):
                os.sync()
                found = run(sides[name])
                if number >= 0:
                    shown[name].append(found)
                    line = ", ".join(f"{value:.4g} {unit}" for (_, unit), value in found[0].items())
                    print(f"{case} · {name} · {line} · {found[1]}", flush=True)
        for name, runs in shown.items():
            for what, unit in runs[0][0]:
                values = [figures[what, unit] for figures, _ in runs]
                notes = {key: [each[key] for _, each in runs] for key in runs[0][1]} if unit.startswith("µs") else {}
                self.bench.record(f"{case}: {what}", name, values, unit=unit, **notes)

    # -------------------------------------------------------------- the parts

    def small(self, parts: Sequence[str]) -> None:
        """Everything that has one broker on each side."""
        with self.sides(1) as sides, busy_loop(self.is_busy):
            self._warm_up(sides, 1)
            if "produce" in parts:
                self._produce(sides)
            if "fetch" in parts:
                self._fetch(sides)
            if "clients" in parts:
                self._clients(sides)

    def _warm_up(self, sides: Mapping[str, Side], replicas: int) -> None:
        """A load until a JVM has compiled what it needs for it; the other side gets the same."""
        for name, side in sides.items():
            side.create_topic("warm", partitions=4, replication_factor=replicas)
            warm = window(side, Wanted(side.bootstrap, "warm", "produce", 4, 5), self.warm_up_s)
            print(f"{name}: {warm.rate:,.0f} requests/s of warming up", flush=True)

    def _kept_up(self, side: Side, wanted: Wanted) -> Window:
        """A round in which the side acknowledged what it was sent. Another one is said, and measured again, a few times."""
        for left in reversed(range(TRIES)):
            found = window(side, wanted, self.seconds["clients"], CLIENTS_SETTLE_S)
            acked = len(found.latencies.values) / found.seconds
            if acked >= KEPT_UP * RECORDS_PER_SECOND:
                break
            print(
                f"{wanted.connections:,} clients: {acked:.0f} records/s were acknowledged; tries left: {left}",
                flush=True,
            )
        return found

    def _saturate(self, sides: Mapping[str, Side], topic: str, kind: Kind, connections: int) -> None:
        """The load of a case, until a raylog whose one process is full of it has got another one and moved replicas there."""
        for name, side in sides.items():
            warm = window(side, Wanted(side.bootstrap, topic, kind, connections, IN_FLIGHT[-1]), self.saturated_s)
            print(f"{name}: {warm.rate:,.0f} requests/s of {many(connections)} before those that count", flush=True)

    def _produce(self, sides: Mapping[str, Side]) -> None:
        for side in sides.values():
            side.create_topic("produced", partitions=max(CONNECTIONS))
        for connections in CONNECTIONS:
            self._saturate(sides, "produced", "produce", connections)
            for in_flight in IN_FLIGHT:

                def run(side: Side, connections: int = connections, in_flight: int = in_flight) -> Any:
                    wanted = Wanted(side.bootstrap, "produced", "produce", connections, in_flight)
                    return rate_and_cost(window(side, wanted, self.seconds["produce"]))

                self.alternate(f"produce from {many(connections)}, {in_flight} in flight", sides, run)

    def _fetch(self, sides: Mapping[str, Side]) -> None:
        for side in sides.values():
            side.create_topic("fetched", partitions=CONSUMERS)
            fill(side.bootstrap, "fetched", self.records_each)
        self._saturate(sides, "fetched", "fetch", CONSUMERS)

        def run(side: Side) -> Any:
            wanted = Wanted(side.bootstrap, "fetched", "fetch", CONSUMERS)
            return rate_and_cost(window(side, wanted, self.seconds["fetch"]))

        self.alternate(f"fetch of one record by each of {CONSUMERS} consumers", sides, run)

    def _clients(self, sides: Mapping[str, Side]) -> None:
        for clients in self.clients:
            topic = f"clients-{clients}"
            for side in sides.values():
                side.create_topic(topic, partitions=clients // 2)

            def run(side: Side, clients: int = clients, topic: str = topic) -> Any:
                wanted = Wanted(side.bootstrap, topic, "clients", clients, per_second=RECORDS_PER_SECOND)
                found = self._kept_up(side, wanted)
                cost = f"{CPU} per record", "µs/record"
                acked = len(found.latencies.values)
                return {
                    **{
                        (f"acknowledged, p{percent}", "ms"): found.latencies.percentile(percent)
                        for percent in LATENCY_MAX
                    },
                    (CPU, "cores"): found.cores,
                    cost: 1e6 * found.server_cpu_s / acked,
                }, {
                    "acked_per_s": round(acked / found.seconds),
                    "refused": found.refused,
                    "fetches_with_records_per_s": round(found.read / found.seconds),
                    "processes": found.processes,
                    "cores_of_the_load": round(found.load_cpu_s / found.seconds, 2),
                }

            self.alternate(f"{clients:,} clients", sides, run)
        pairs = CLIENTS[0] // 2

        def run_light(side: Side) -> Any:
            return light(side, f"clients-{CLIENTS[0]}", pairs, self.seconds["clients"])

        self.alternate(f"{CLIENTS[0]} clients of confluent-kafka", sides, run_light)

    def round_trip(self) -> None:
        with self.sides(3) as sides:
            self._warm_up(sides, 3)
            for replicas, acks in ((1, 1), (3, -1)):
                topic = f"trips-{replicas}"
                for side in sides.values():
                    configs = {"min.insync.replicas": str(min(2, replicas))}
                    side.create_topic(topic, replication_factor=replicas, configs=configs)
                named = "all" if acks == -1 else str(acks)
                confluent: dict[str, Callable[[], Trips]] = {
                    name: partial(kafka, side.bootstrap, topic, named, self.trips) for name, side in sides.items()
                }
                bare: dict[str, Callable[[], Trips]] = {
                    name: partial(bare_trips, side.bootstrap, topic, acks, self.trips) for name, side in sides.items()
                }
                measure(self.bench, f"round trip RF {replicas}, confluent-kafka", confluent)
                measure(self.bench, f"round trip RF {replicas}, bare socket", bare)

    def hosts(self) -> None:
        with Raylog(1) as running, running.cluster.admin() as admin:
            hosts = Hosts(running, admin)
            running.create_topic("hot", partitions=HOT_PARTITIONS)
            figures: dict[int, list[tuple[Figures, dict[str, Any]]]] = {count: [] for count in HOSTS}
            for number in range(-1, self.bench.rounds):
                for count in HOSTS:
                    held = hosts.become(count)
                    time.sleep(SETTLE_S)
                    wanted = Wanted(running.bootstrap, "hot", "produce", HOT_CONNECTIONS, IN_FLIGHT[-1])
                    found = rate_and_cost(window(running, wanted, self.seconds["hosts"]))
                    print(f"replicas on {count} hosts {held} · {found}", flush=True)
                    if number >= 0:
                        figures[count].append(found)
        for what, unit in figures[HOSTS[0]][0][0]:
            for count, runs in figures.items():
                values = [shown[what, unit] for shown, _ in runs]
                notes = {key: [each[key] for _, each in runs] for key in runs[0][1]} if unit.startswith("µs") else {}
                self.bench.record(f"{HOSTS_CASE}: {what}", many_hosts(count), values, unit=unit, **notes)


HOSTS_CASE = f"one broker, {HOT_PARTITIONS} partitions, {HOT_CONNECTIONS} connections"


def many(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


def many_hosts(count: int) -> str:
    return f"{count} host{'s' if count > 1 else ''}"


def rate_and_cost(found: Window) -> tuple[Figures, dict[str, Any]]:
    figures = {("requests", "requests/s"): found.rate, (CPU, "µs/request"): found.us_per_request}
    return figures, {
        "refused": found.refused,
        "processes": found.processes,
        "cores_of_the_load": round(found.load_cpu_s / found.seconds, 2),
    }


def fill(bootstrap: str, topic: str, records_each: int) -> None:
    """Writes batches of one record to all partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "acks": 1, "log_level": 0})
    errors: list[object] = []
    for _ in range(records_each):
        for number in range(CONSUMERS):
            value = b"." * plain_kafka.RECORD_BYTES
            producer.produce(topic, value, partition=number, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0 and not any(errors), f"{set(map(str, errors))}"


def light(side: Side, topic: str, pairs: int, seconds: float) -> tuple[Figures, dict[str, Any]]:
    """So many pairs of confluent-kafka's clients."""
    taken = used = 0.0
    processes = 0

    def wait() -> None:
        nonlocal taken, used, processes
        before, began = side.server_cpu(), time.monotonic()
        time.sleep(seconds)
        after, taken = side.server_cpu(), time.monotonic() - began
        used = sum(each - before.get(pid, 0.0) for pid, each in after.items())
        processes = len(after)

    with LightClients(side.bootstrap, topic, pairs, records_per_second=RECORDS_PER_SECOND / pairs) as clients:
        time.sleep(2.0)
        found = clients.measured(wait)
    assert not found.refused, f"{found.refused} records were refused"
    latencies = Measurement("ms", [1000 * each for each in found.acknowledged])
    return {
        **{(f"acknowledged, p{percent}", "ms"): latencies.percentile(percent) for percent in LATENCY_MAX},
        (CPU, "cores"): used / taken,
        (f"{CPU} per record", "µs/record"): 1e6 * used / len(latencies.values),
    }, {"acked_per_s": round(len(latencies.values) / taken), "processes": processes}


def bare_trips(bootstrap: str, topic: str, acks: int, count: int) -> Trips:
    """One record at a time over a socket, encoded once."""
    (leader,) = plain_kafka.leaders(bootstrap, topic)
    request = plain_kafka.produce_frame(topic, 0, acks)
    place = plain_kafka.produced_at(topic)
    taken = []
    with plain_kafka.connect(leader) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(WARM_UP + count):
            start = time.perf_counter()
            reply = plain_kafka.ask(connection, request)
            taken.append(time.perf_counter() - start)
            error, _ = plain_kafka.PRODUCED.unpack_from(reply, place)
            assert not error, f"refused with {error}"
    return taken[WARM_UP:]


class Hosts:
    """The processes that hold the replicas of a broker's one disk."""

    def __init__(self, running: EmbeddedCluster, admin: AdminClient) -> None:
        self._running = running
        self._admin = admin
        admin.alter_configs(broker="all", set={"actor.scaling.enable": "false"})

    def _all(self) -> list[ActorInfo]:
        return [each for each in self._admin.list_actors() if each.host == "replicas"]

    def become(self, count: int) -> list[int]:
        """Has so many of them, with equal shares of the replicas; how many replicas each holds."""
        while len(found := self._all()) > count:
            while self._admin.retire_actor(found[-1].actor).remaining:
                time.sleep(0.1)
            self._await_count(len(found) - 1)
        while len(found := self._all()) < count:
            self._admin.add_actor(found[0].broker)
            self._await_count(len(found) + 1)
        self._await(lambda: all(each.pid for each in self._all()))
        found = self._all()
        actors = [each.actor for each in found]
        moves = [("hot", number, found[0].broker, actors[number % count]) for number in range(HOT_PARTITIONS)]
        self._await(lambda: not any(self._admin.move_replicas(moves).values()))
        share = HOT_PARTITIONS // count
        self._await(lambda: [each.replicas for each in self._all()] == [share] * count)
        self._running.await_whole("hot", 1)
        return [each.replicas for each in self._all()]

    def _await_count(self, count: int) -> None:
        self._await(lambda: len(self._all()) == count)

    def _await(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {self._all()}"
            time.sleep(0.1)


# ------------------------------------------------------------------ the claims


def judge(bench: Benchmark) -> None:
    """All claims, on figures of this run and of those that it left as they were."""
    for case, found in bench.cases.items():
        if case.startswith(HOSTS_CASE):
            continue
        if RAYLOG not in found or KAFKA not in found:
            continue
        ratio = found[RAYLOG].median / found[KAFKA].median
        if case.removesuffix(": requests") != case:
            bench.target(f"{case}/s, times Kafka's", ratio, at_least=RATE_MIN)
        elif case.endswith((f": {CPU}", f": {CPU} per record")) and found[RAYLOG].unit != "cores":
            bench.target(f"{case}, times Kafka's", ratio, at_most=COST_MAX)
        elif case.startswith("round trip"):
            if case.endswith("p50"):
                bench.target(f"{case}, times Kafka's", ratio, at_most=TRIP_MAX)
        else:
            for percent, most in LATENCY_MAX.items():
                if case.endswith(f": acknowledged, p{percent}"):
                    bench.target(f"{case}, times Kafka's", ratio, at_most=most)
    costs = bench.cases.get(f"{HOSTS_CASE}: {CPU}")
    rates = bench.cases.get(f"{HOSTS_CASE}: requests")
    if costs is not None and rates is not None:
        one = many_hosts(HOSTS[0])
        for count in HOSTS[1:]:
            more = many_hosts(count)
            ratio = costs[more].median / costs[one].median
            bench.target(f"{HOSTS_CASE}: CPU per request with {more}, times that with one", ratio, at_most=FLAT)
            ratio = rates[more].median / rates[one].median
            bench.target(f"{HOSTS_CASE}: requests/s with {more}, times those with one", ratio, at_least=STEADY)


def part_of(case: str) -> str:
    """The part that measures a case."""
    if case.startswith(HOSTS_CASE):
        return "hosts"
    if case.startswith("round trip"):
        return "round-trip"
    return next((part for part in ("produce", "fetch") if case.startswith(part)), "clients")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, help="one part; the others' figures stay")
    parser.add_argument("--only-raylog", action="store_true", help="no Apache Kafka beside; nothing is written")
    parser.add_argument(
        "--beside-busy-loop", action="store_true", help=f"{', '.join(BUSY_PARTS)} while a loop uses one core"
    )
    options = arguments(parser)
    possible = BUSY_PARTS if options.beside_busy_loop else PARTS
    parts = (options.only,) if options.only else possible
    if not set(parts) <= set(possible):
        parser.error(f"a busy loop is beside {', '.join(BUSY_PARTS)} only")
    bench = Benchmark(
        "small_requests",
        f"small requests of Kafka clients through the listener, beside Apache Kafka {LATEST}",
        settings={
            "record_bytes": plain_kafka.RECORD_BYTES,
            "records_per_batch": 1,
            "records_per_second_of_clients": RECORDS_PER_SECOND,
            "seconds": MEASURED_S,
            "servers": "defaults; actor.scaling.enable=false for the part hosts",
        },
        rounds=ROUNDS,
        quick=options.quick or options.only_raylog,
    )
    if not options.quick and "RAYLOG_BENCH_ROUNDS" not in os.environ:
        bench.rounds = ROUNDS
    if options.only or options.beside_busy_loop:
        bench.cases = {
            case: found
            for case, found in bench.earlier().items()
            if part_of(case) not in parts or case.partition(":")[0].endswith(BUSY) != options.beside_busy_loop
        }
    script = Script(bench, options)
    small = [each for each in parts if each in BUSY_PARTS]
    if small:
        script.small(small)
    if "round-trip" in parts:
        script.round_trip()
    if "hosts" in parts:
        script.hosts()
    judge(bench)
    if options.only or options.beside_busy_loop:
        bench.note(
            "Figures of parts that were not run anew, and those without or with a busy loop, are an earlier run's."
        )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
