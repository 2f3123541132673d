"""What it costs that somebody reads the metrics, and what the slow-request log and the spans cost while they are off.

Of the metrics: throughput under a load that keeps the servers busy, and CPU of an idle cluster.

raylog alone: an embedded cluster of three brokers, every server a Ray actor, with so many partitions that a broker has some
thousand series. The arms take turns in windows of ``WINDOW_S`` within one run, ``nobody reads`` among them in every case:

- ``scrape``: the script scrapes every broker's ``/metrics`` as Prometheus does, every 5 s, the shortest of the usual intervals,
  and every 0.5 s: a tenth of what that costs stands out of the noise of a shared machine more clearly than what 5 s cost.

- ``ray``: each Broker gives its metrics to Ray every ``metrics.ray.interval.ms``, as it does unless it is told not to. Ray's own
  processes, which take them in and show them, are not in the figures. Ray reports them up to 10 s later, so ``nobody reads``
  begins 10 s after the last of them was given.

The load is of small produces (``small_requests``), which cost the servers most per byte; it runs on while the arms change.
*Servers' CPU* is that of all of raylog's processes: Brokers, hosts of replicas and groups, and the controller. CPU of the reader
is not in it. The servers' CPU is what bounds their throughput, and CPU per request is steadier on a shared machine than requests
per second: the target is of that, and both are in the file. Counting itself cannot be switched off: it is an addition to an
integer, and all arms have it. A push by OTLP, which the environment switches on, is a collection as a scrape is one, and not
measured.

- ``off``: CPU per request of small produces and fetches with the hooks of the slow-request log and of the spans, which are off
  at first, against the same code without them (``hooks_off``). The servers are in one process, without Ray.

``--only PART`` runs a part anew; the others' figures stay in the file as an earlier run left them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import hooks_off
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments, cpu_seconds
from small_requests import SmallRequests, Wanted

import raylog
from raylog.configs.metrics_configs import METRICS_LISTENER, METRICS_RAY_INTERVAL, RAY_INTERVAL_MS
from raylog.types import TopicPartition

NOBODY, SCRAPED, SCRAPED_OFTEN = "nobody reads", "scraped every 5 s", "scraped every 0.5 s"
GIVEN = f"given to Ray every {RAY_INTERVAL_MS / 1_000:g} s"
PARTS = ("scrape", "ray", "off")
BROKERS = 3
PARTITIONS, REPLICAS = 200, 3
COMMITTED = 50  # partitions whose offsets a group has committed: they have lag
CONNECTIONS, IN_FLIGHT = 6, 5
SCRAPE_S, OFTEN_S = 5.0, 0.5
WINDOW_S = {"scrape": SCRAPE_S, "ray": 10.0}
REPORTED_WITHIN_S = 10.0  # Ray's metrics_report_interval_ms
SETTLE_S = 0.3
WARM_UP_S = 8.0
ROUNDS = {"scrape": {"busy": 5, "idle": 3}, "ray": {"busy": 3, "idle": 2}}
SHARE_MAX = 0.02
RATE, COST, IDLE = "requests/s", "servers' CPU", "servers' CPU of an idle cluster"


@dataclass(frozen=True, slots=True)
class Arm:
    """``reading`` is a context in which somebody reads; it begins anew with each window."""

    name: str
    reading: Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker shows its metrics."""

    port: int

    def scrape(self) -> int:
        """One GET, as Prometheus sends it; the bytes of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(
                "GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"}
            )
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        assert answer.status == 200 and body.endswith(b"# EOF\n"), f"{answer.status}: {body[:200]!r}"
        return len(body)


class Scraper:
    """Scrapes all places every so many seconds, in a thread, the first time after half of that."""

    def __init__(self, places: Sequence[Place], every_s: float) -> None:
        self._places = places
        self._every_s = every_s
        self.took_s: list[float] = []
        self.sizes: list[int] = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        over = threading.Event()
        failures: list[Exception] = []

        def scrape() -> None:
            due = time.monotonic() + self._every_s / 2
            while not over.wait(due - time.monotonic()):
                due += self._every_s
                begun = time.perf_counter()
                try:
                    self.sizes += [place.scrape() for place in self._places]
                except Exception as error:
                    failures.append(error)
                    return
                self.took_s.append(time.perf_counter() - begun)

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert not failures, failures


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    yield


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def open_metrics(running: EmbeddedCluster) -> list[Place]:
    """Has each broker show its metrics, and waits until all do."""
    places = [Place(port) for port in free_ports(BROKERS)]
    with running.cluster.admin() as admin:
        for broker, place in enumerate(places):
            admin.alter_configs(broker=broker, set={METRICS_LISTENER: f"127.0.0.1:{place.port}"})
    deadline = time.monotonic() + 60
    for place in places:
        while True:
            try:
                place.scrape()
                break
            except OSError:
                assert time.monotonic() < deadline, "a broker does not show its metrics"
                time.sleep(0.05)
    return places


def fill(running: EmbeddedCluster) -> None:
    """The partitions, offsets of a group, and the topic of the load."""
    running.create_topic("many", partitions=PARTITIONS, replication_factor=REPLICAS)
    running.create_topic("load", partitions=CONNECTIONS)
    with running.cluster.admin() as admin:
        admin.alter_configs(broker="all", set={METRICS_RAY_INTERVAL: "0", "actor.scaling.enable": "false"})
    with raylog.Consumer(running.cluster.address, group_id="readers", enable_auto_commit=False) as consumer:
        places = [TopicPartition("many", number) for number in range(COMMITTED)]
        consumer.assign(places)
        consumer.commit(dict.fromkeys(places, 0))


class Script:
    def __init__(self, bench: Benchmark, running: EmbeddedCluster, *, quick: bool) -> None:
        self.bench = bench
        self.running = running
        self._is_quick = quick
        self.pids = list(running.processes())

    def _windows(
        self, part: str, kind: str, arms: Sequence[Arm], measure: Callable[[], Mapping[str, float]]
    ) -> dict[str, dict[str, list[float]]]:
        """What ``measure`` shows of each arm in each round; the order turns with each round."""
        found: dict[str, dict[str, list[float]]] = {arm.name: {} for arm in arms}
        for number in range(1 if self._is_quick else ROUNDS[part][kind]):
            turn = number % len(arms)
            for arm in (*arms[turn:], *arms[:turn]):
                with arm.reading():
                    figures = measure()
                for unit, value in figures.items():
                    found[arm.name].setdefault(unit, []).append(value)
                print(
                    f"{kind} · {arm.name} · " + ", ".join(f"{value:.5g} {unit}" for unit, value in figures.items()),
                    flush=True,
                )
        return found

    def part(self, part: str, arms: Sequence[Arm]) -> None:
        """Both cases of a part."""
        window_s = WINDOW_S[part] / (5 if self._is_quick else 1)
        wanted = Wanted(self.running.cluster.bootstrap_servers(), "load", "produce", CONNECTIONS, IN_FLIGHT)
        with SmallRequests(wanted) as load:
            time.sleep(SETTLE_S)

            def busy() -> Mapping[str, float]:
                first, used = load.look(), cpu_seconds(*self.pids)
                time.sleep(window_s)
                last, used_after = load.look(), cpu_seconds(*self.pids)
                answered = last.answered - first.answered
                return {RATE: answered / (last.at - first.at), "µs/request": 1e6 * (used_after - used) / answered}

            of_arms = self._windows(part, "busy", arms, busy)
        for name, figures in of_arms.items():
            self.bench.record(f"{part}: small produces", name, figures[RATE], unit=RATE)
            self.bench.record(f"{part}: small produces, {COST}", name, figures["µs/request"], unit="µs/request")
        time.sleep(3 * SETTLE_S)

        def idle() -> Mapping[str, float]:
            used, begun = cpu_seconds(*self.pids), time.perf_counter()
            time.sleep(window_s)
            return {"of a core": (cpu_seconds(*self.pids) - used) / (time.perf_counter() - begun)}

        for name, figures in self._windows(part, "idle", arms, idle).items():
            self.bench.record(f"{part}: {IDLE}", name, figures["of a core"], unit="of a core")


def scrape(script: Script) -> None:
    places = open_metrics(script.running)
    normal, often = Scraper(places, SCRAPE_S), Scraper(places, OFTEN_S)
    script.part("scrape", [Arm(NOBODY, nobody), Arm(SCRAPED, normal.reading), Arm(SCRAPED_OFTEN, often.reading)])
    took = statistics.median([*normal.took_s, *often.took_s]) if often.took_s else 0.0
    script.bench.note(
        f"A scrape of one broker is {statistics.median(normal.sizes + often.sizes) / 1_000:.0f} kB; of all {BROKERS}, one after the "
        f"other, it takes {1_000 * took:.0f} ms (median of all, most of them under the load)."
    )


def ray(script: Script) -> None:
    def told(value: str) -> None:
        with script.running.cluster.admin() as admin:
            admin.alter_configs(broker="all", set={METRICS_RAY_INTERVAL: value})

    @contextlib.contextmanager
    def given() -> Iterator[None]:
        told(str(RAY_INTERVAL_MS))
        time.sleep(2 * SETTLE_S)
        try:
            yield
        finally:
            told("0")
            time.sleep(REPORTED_WITHIN_S)

    script.part("ray", [Arm(NOBODY, nobody), Arm(GIVEN, given)])


READ: Mapping[str, Callable[[Script], None]] = {"scrape": scrape, "ray": ray}
"""The parts in which somebody reads."""


# ------------------------------------------------------------------ targets


def loss(measured: Mapping[str, Measurement], arm: str) -> float:
    """The share of its requests that a server whose CPU is used up loses, by the medians of CPU per request."""
    return 1 - measured[NOBODY].median / measured[arm].median


def more(measured: Mapping[str, Measurement], arm: str) -> float:
    """How much more of a core an arm takes than nobody does, by the medians of the rounds."""
    return measured[arm].median - measured[NOBODY].median


def judge(bench: Benchmark) -> None:
    """All shares are of what is there when nobody reads, or of a core."""
    often = SCRAPE_S / OFTEN_S
    for case, measured in bench.cases.items():
        for arm in measured:
            if arm == NOBODY:
                continue
            name, times = (f"{SCRAPED}, from a tenth of every 0.5 s", often) if arm == SCRAPED_OFTEN else (arm, 1.0)
            if case.endswith(f"small produces, {COST}"):
                bench.target(f"{case}: throughput lost, {name}", loss(measured, arm) / times, at_most=SHARE_MAX)
            elif case.endswith(IDLE):
                each = more(measured, arm) / times / BROKERS
                bench.target(f"{case}: cores more per broker, {name}", each, at_most=SHARE_MAX)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, help="one part; the others' figures stay")
    options = arguments(parser)
    bench = Benchmark(
        "metrics_cost",
        "what it costs that somebody reads the metrics: at most 2 % of throughput, and of an idle core; "
        "and that the slow-request log and the spans are there while they are off: at most 1 % of the CPU per request",
        settings={
            "brokers": BROKERS,
            "partitions": PARTITIONS,
            "replication_factor": REPLICAS,
            "partitions_with_lag": COMMITTED,
            "connections": CONNECTIONS,
            "in_flight": IN_FLIGHT,
            "window_s": WINDOW_S,
        },
        quick=options.quick,
    )
    parts = (options.only,) if options.only else PARTS
    if options.only:
        bench.cases = {case: found for case, found in bench.earlier().items() if case.partition(":")[0] not in parts}
        bench.note("Figures of parts that were not run anew are an earlier run's.")
    read = [part for part in parts if part in READ]
    if read:
        with EmbeddedCluster(BROKERS) as running:
            fill(running)
            warm = Wanted(running.cluster.bootstrap_servers(), "load", "produce", CONNECTIONS, IN_FLIGHT)
            with SmallRequests(warm):
                time.sleep(WARM_UP_S / (6 if options.quick else 1))
            script = Script(bench, running, quick=options.quick)
            for part in read:
                READ[part](script)
    if "off" in parts:
        hooks_off.measure(bench, quick=options.quick)
    judge(bench)
    hooks_off.judge(bench)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
