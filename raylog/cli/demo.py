"""``make demo``: a replicated log that survives the death of a leader, shown on real data and
proven.

An embedded cluster of three brokers takes the flights of 2013 with acks=all into six partitions,
three replicas each, two of which must have a record before it is acknowledged. Midway, with
requests in flight, the process that leads the busiest partition is killed with SIGKILL. The stream
goes on; then everything is read back and held against the ledger of acknowledgements
(``raylog/cli/proof.py``). Exits with 1 if the proof fails or the cluster does not heal.

Brokers here are processes of one machine under a folder that is removed at the end; so is the Ray
that runs them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from raylog.cli import demo_stage as acts
from raylog.cli.flights import Feed, read_flights
from raylog.cli.proof import AcknowledgedRecords, ProofVerdict, ReadRecord, verify
from raylog.errors import ClusterError, RaylogError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.admin import PartitionInfo
    from raylog.client.sync import AdminClient, Producer
    from raylog.cluster import Cluster

TOPIC = "flights"
BROKERS = 3
PARTITIONS = 6
MIN_ISR = 2
FLIGHTS_PER_BATCH = 500
BATCHES_IN_FLIGHT = 20
START_TIMEOUT_S = 60
HEAL_TIMEOUT_S = 40


@dataclass(slots=True)
class Killing:
    """What was killed, and what a watching thread saw of the partition afterwards."""

    partition: int
    broker: int
    pid: int
    in_flight: int
    isr_before: tuple[int, ...]
    at: float
    new_leader: int = -1
    isr_without: tuple[int, ...] = ()
    healed_isr: tuple[int, ...] = ()
    healed_after_s: float = 0.0
    watching: threading.Thread | None = None

    def watch(self, admin: AdminClient) -> None:
        """Look until the ISR is whole again, with the killed broker out of it in between."""
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while time.monotonic() < deadline and not self.healed_isr:
            try:
                info = _partition(admin, self.partition)
            except RaylogError:
                continue
            if not self.isr_without:
                if self.broker not in info.isr and info.leader >= 0:
                    self.isr_without, self.new_leader = info.isr, info.leader
            elif set(info.isr) == set(info.replicas):
                self.healed_isr, self.healed_after_s = info.isr, time.perf_counter() - self.at
            time.sleep(0.01)


@dataclass(slots=True)
class Story:
    """The figures of the run, for the table at the end."""

    ledger: AcknowledgedRecords = field(default_factory=AcknowledgedRecords)
    start_s: float = 0.0
    stream_s: float = 0.0
    read_s: float = 0.0
    pause_s: float = 0.0
    killing: Killing | None = None


def main() -> int:
    """Run the demo; the process's exit code."""
    console = acts.console()
    console.print("[bold]raylog demo[/]: three brokers, a killed leader, and every flight accounted for")
    with acts.stage(console, "demo") as (folder, progress):
        story, verdict = _run(folder, progress, console)
    _report(console, story, verdict)
    return 0 if verdict.holds and story.killing is not None and story.killing.healed_isr else 1


def _run(folder: Path, progress: Progress, console: Console) -> tuple[Story, ProofVerdict]:
    from raylog import NewTopic
    from raylog.embedded_cluster import init

    story = Story()
    reading = progress.add_task("reading the flights of 2013", total=None)
    flights = read_flights()
    progress.update(reading, total=len(flights), completed=len(flights))
    starting = progress.add_task("starting three brokers", total=None)
    began = time.perf_counter()
    cluster = init(folder, brokers=BROKERS, ray_address="local")
    try:
        with cluster.admin() as admin:
            configs = {"min.insync.replicas": MIN_ISR}
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, BROKERS, configs)])
            progress.update(starting, total=BROKERS, completed=BROKERS, description="three brokers are up")
            _await_replicas(admin, progress)
            story.start_s = time.perf_counter() - began
            with cluster.producer(acks="all") as producer:
                _stream(cluster, admin, producer, flights, story, progress, console)
            _await_healing(story.killing, progress)
        began = time.perf_counter()
        reading = progress.add_task("reading back", total=len(story.ledger))
        verdict = verify(_watched(read_back(cluster), progress, reading), story.ledger)
        story.read_s = time.perf_counter() - began
    finally:
        cluster.shutdown()
    return story, verdict


def _stream(
    cluster: Cluster,
    admin: AdminClient,
    producer: Producer,
    flights: Feed,
    story: Story,
    progress: Progress,
    console: Console,
) -> None:
    """Send everything, note every ack, kill a leader halfway."""
    task = progress.add_task("streaming flights", total=len(flights))
    waiting: deque[tuple[slice, Any]] = deque()
    last_ack = began = time.perf_counter()

    def settle(most: int) -> None:
        nonlocal last_ack
        while waiting and (len(waiting) > most or waiting[0][1].done()):
            sent, delivery = waiting.popleft()
            places = delivery.result().offsets()
            now = time.perf_counter()
            if story.killing is not None and now >= story.killing.at:
                story.pause_s = max(story.pause_s, now - last_ack)
            last_ack = now
            story.ledger.note(flights.keys[sent], flights.values[sent], flights.timestamps_ms[sent], places)
            progress.update(task, completed=len(story.ledger))

    for start in range(0, len(flights), FLIGHTS_PER_BATCH):
        sent = slice(start, start + FLIGHTS_PER_BATCH)
        delivery = producer.send_batch(
            TOPIC, flights.values[sent], keys=flights.keys[sent], timestamps_ms=flights.timestamps_ms[sent]
        )
        waiting.append((sent, delivery))
        if story.killing is None and len(story.ledger) >= len(flights) // 2:
            story.killing = _kill_a_leader(cluster, admin, story.ledger, len(waiting))
            _say(console, story.killing)
        settle(BATCHES_IN_FLIGHT)
    settle(0)
    story.stream_s = time.perf_counter() - began


def _await_replicas(admin: AdminClient, progress: Progress) -> None:
    """Wait until each replica is open and each partition has a leader."""
    total = PARTITIONS * BROKERS
    task = progress.add_task("starting replicas", total=total)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        partitions = admin.describe_topics([TOPIC])[TOPIC].partitions
        serving = sum(len(each.replicas) - len(each.offline) for each in partitions)
        progress.update(task, completed=serving)
        if serving == total and all(each.leader >= 0 for each in partitions):
            progress.update(task, description="replicas are up")
            return
        time.sleep(0.05)
    raise ClusterError(f"{serving} of {total} replicas serve after {START_TIMEOUT_S} s")


def _kill_a_leader(cluster: Cluster, admin: AdminClient, ledger: AcknowledgedRecords, in_flight: int) -> Killing:
    """SIGKILL the process that leads the partition with the most flights so far."""
    busiest = Counter(partition for partition, _ in ledger.places).most_common(1)[0][0]
    info = _partition(admin, busiest)
    pids = {actor["node_id"]: actor["pid"] for actor in cluster.status()["actors"]}
    pid = pids.get(info.leader_node)
    if not pid:
        raise ClusterError(f"the process that leads {TOPIC}-{busiest} is not known to the controller")
    at = time.perf_counter()
    kill(info.leader_node, pid)
    killing = Killing(busiest, info.leader, pid, in_flight, info.isr, at)
    killing.watching = threading.Thread(target=killing.watch, args=(admin,), daemon=True)
    killing.watching.start()
    return killing


def kill(node: int, pid: int) -> None:
    """End the process of that server actor without a word to it."""
    os.kill(pid, signal.SIGKILL)


def _say(console: Console, killing: Killing) -> None:
    console.print(
        f"killed process {killing.pid}, leader of partition {killing.partition} (broker {killing.broker}), "
        f"{killing.in_flight} requests in flight",
        highlight=False,
    )


def _await_healing(killing: Killing | None, progress: Progress) -> None:
    assert killing is not None and killing.watching is not None, "the stream ended before its middle"
    task = progress.add_task("the killed replica returns", total=None)
    killing.watching.join()
    if killing.healed_isr:
        progress.update(task, total=1, completed=1, description="the killed replica is back")


def _partition(admin: AdminClient, number: int) -> PartitionInfo:
    return admin.describe_topics([TOPIC])[TOPIC].partitions[number]


def read_back(cluster: Cluster) -> Iterator[ReadRecord]:
    """Every record of the topic, from the first to what is the end when reading starts."""
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with cluster.consumer() as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            yield from consumer.consume(10_000, timeout=1.0)


def _watched(records: Iterator[ReadRecord], progress: Progress, task: Any) -> Iterator[ReadRecord]:
    count = 0
    for record in records:
        count += 1
        if count % 5000 == 0:
            progress.update(task, completed=count)
        yield record
    progress.update(task, completed=count)


def _report(console: Console, story: Story, verdict: ProofVerdict) -> None:
    killing = story.killing
    assert killing is not None
    count = len(story.ledger)
    rows = [
        ("cluster started in", f"{story.start_s:.1f} s: 3 brokers, 6 partitions × 3 replicas"),
        ("written with acks=all", f"{count:,} flights, {count / story.stream_s:,.0f} a second"),
        ("read back and compared", f"{verdict.read:,} flights, {verdict.read / story.read_s:,.0f} a second"),
        (
            "killed (SIGKILL)",
            f"process {killing.pid}, leader of partition {killing.partition}, broker {killing.broker}",
        ),
        ("longest pause of acks", f"{story.pause_s * 1000:,.0f} ms, new leader: broker {killing.new_leader}"),
        ("ISR before → after", f"{_brokers(killing.isr_before)} → {_brokers(killing.isr_without)}"),
        ("replica recreated", _healed(killing)),
        ("lost / unexpected", f"{verdict.lost} / {verdict.unexpected}"),
        ("altered / out of order", f"{verdict.altered} / {verdict.out_of_order}"),
    ]
    acts.print_figures(console, rows)
    for example in verdict.examples:
        console.print(f"  {example}", highlight=False)
    if verdict.holds and killing.healed_isr:
        console.print(f"[green]Proven:[/] each of {count:,} acknowledged flights is there exactly once, in key order.")
        console.print("Next: README.md has a page of use; `raylog up` starts a cluster that stays.")
    elif verdict.holds:
        console.print(f"[red]Not healed:[/] the killed replica was not back in the ISR within {HEAL_TIMEOUT_S} s.")
    else:
        console.print("[red]Proof failed:[/] the log did not keep its word.")


def _healed(killing: Killing) -> str:
    if not killing.healed_isr:
        return "no"
    return f"back in ISR {_brokers(killing.healed_isr)} after {killing.healed_after_s:.1f} s"


def _brokers(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))
