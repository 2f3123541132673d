"""SIGKILL of a leader's, a group coordinator's and a Broker's process: how long until each Kafka client is served again.

An embedded cluster of three brokers, every server a Ray actor, reached through the Brokers' listeners only. One topic of one partition,
RF 3, min.insync.replicas 2. Each client has a producer on it (idempotent, acks=all, 200 records/s) and a group with one member that
reads it and commits where it is, again and again; everything else is as the client has it by default. Then one process is killed:

- *leader*: the process that leads the partition. Counted is the producer.
- *coordinator*: the process that coordinates the member's group. Counted are the commits.
- *Broker*: the listener that both are connected to, because its broker leads the partition and coordinates the group; replicas and groups
  live on. Counted are both.

A *pause* is the longest time between two acknowledgements from the kill until the killed process is back, everything is in sync and
both have been served for another moment, so it covers the way back as well. Every kill counts. At the end the partition is read: every
record that was sent has to be there once, at the offset that its acknowledgement named, and the member must have read them all, in order.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from embedded import EmbeddedCluster
from harness import Benchmark, arguments
from kafka_clients import LIBRARIES, Grouped, Producing, Stream

from raylog.client.admin.admin import NewTopic
from raylog.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_PARTITIONS, partition_for
from raylog.types import BROKER_SLOT, TopicPartition, node_id

TOPIC = "served"
RUNS = 3
PATIENCE_S = 60.0
CALM_S = 0.8
TARGET_S = 3.0
LEADER, COORDINATOR, BROKER = "leader killed", "coordinator killed", "Broker killed"
KINDS = (LEADER, COORDINATOR, BROKER)


def await_true(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise TimeoutError(f"not within {PATIENCE_S:.0f} s: {what}")


def place_beside(running: EmbeddedCluster, group: str) -> None:
    """Makes the topic anew, led by the broker that coordinates the group, so that both are behind one listener."""

    def leader() -> list[int]:
        found = running.partitions(OFFSETS_TOPIC, running.cluster.status())
        return [each["leader"] for each in found if each["partition"] == partition_for(group) and each["leader"] >= 0]

    (broker,) = await_true(leader, "the group has a coordinator")
    order = [(broker + step) % running.brokers for step in range(running.brokers)]
    with running.cluster.admin() as admin:
        if running.partitions(TOPIC, running.cluster.status()):
            admin.delete_topics(TOPIC)
        admin.create_topics(NewTopic(TOPIC, replica_assignment={0: order}, configs={"min.insync.replicas": "2"}))
    running.await_whole(TOPIC, 3)

    def leads() -> bool:
        if running.partitions(TOPIC, running.cluster.status())[0]["leader"] == broker:
            return True
        with running.cluster.admin() as admin:
            admin.elect_leaders([TopicPartition(TOPIC, 0)])  # its process was slow to start
        return False

    await_true(leads, f"broker {broker} leads")


def actor(running: EmbeddedCluster, node: int) -> dict[str, Any]:
    return next(each for each in running.cluster.status()["actors"] if each["node_id"] == node)


def victim(running: EmbeddedCluster, kind: str, group: str) -> dict[str, Any]:
    status = running.cluster.status()
    if kind == COORDINATOR:
        node = running.partitions(OFFSETS_TOPIC, status)[partition_for(group)]["leader_node"]
    else:
        part = running.partitions(TOPIC, status)[0]
        node = part["leader_node"] if kind == LEADER else node_id(part["leader"], BROKER_SLOT)
    return actor(running, node)


def strike(running: EmbeddedCluster, kind: str, streams: list[Stream], group: str, dice: random.Random) -> list[float]:
    """Kills one process and waits until it is back and all is in sync; the streams' pauses."""
    time.sleep(CALM_S * (1 + dice.random()))
    struck = victim(running, kind, group)
    at = time.perf_counter()
    os.kill(struck["pid"], signal.SIGKILL)

    def is_back() -> bool:
        now = actor(running, struck["node_id"])
        return bool(now["state"] == "live" and now["pid"] != struck["pid"])

    await_true(is_back, "the killed process is back")
    running.await_whole(TOPIC, 3)
    running.await_whole(OFFSETS_TOPIC, 3)
    whole_at = time.perf_counter()
    time.sleep(CALM_S)
    await_true(lambda: all(each.served_since(whole_at) for each in streams), "everybody is served again")
    return [each.longest_pause_since(at) for each in streams]


def audit(running: EmbeddedCluster, producing: Producing, grouped: Grouped) -> dict[str, int]:
    """What is wrong with what is in the log, and with what the member read."""
    with running.cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        end = consumer.end_offsets([(TOPIC, 0)])[(TOPIC, 0)]
        found: list[int] = []
        while len(found) < end:
            found += [int(record.value or b"-1") for record in consumer.consume(10_000, timeout=30)]
    there = {number: offset for offset, number in enumerate(found)}
    return {
        "lost": len(producing.offsets.keys() - there.keys()),
        "twice": len(found) - len(there),
        "misplaced": sum(there.get(number) != offset for number, offset in producing.offsets.items()),
        "read otherwise": int(grouped.numbers != found[: len(grouped.numbers)]),
        "told errors": len(producing.errors) + len(grouped.errors),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=None, help=f"of each kind for each client (default {RUNS})")
    parser.add_argument("--clients", nargs="+", default=[*LIBRARIES], choices=[*LIBRARIES])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS])
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    options = arguments(parser)
    runs = options.runs or (2 if options.quick else RUNS)
    bench = Benchmark(
        "client_recovery",
        f"how long a Kafka client is not served when a process is SIGKILLed, RF 3, acks=all, {runs} kills of each kind",
        settings={"replication.factor": 3, "min.insync.replicas": 2, "acks": "all", "runs": runs, "seed": options.seed},
        quick=options.quick,
    )
    dice = random.Random(options.seed)
    found: dict[str, int] = {}
    for name in options.clients:
        with EmbeddedCluster() as running:
            running.create_topic(OFFSETS_TOPIC, partitions=OFFSETS_TOPIC_PARTITIONS, replication_factor=3)
            servers = running.cluster.bootstrap_servers()
            for kind in options.kinds:
                measure(bench, running, servers, name, kind, runs, dice, found)
    for kind in options.kinds:
        for name in options.clients:
            worst = max(max(each.values) for label, each in bench.cases[kind].items() if label.startswith(name))
            bench.target(f"{kind}: {name} is served again, worst, s", worst, at_most=TARGET_S)
    for what, count in found.items():
        bench.target(f"records or members: {what}", count, at_most=0)
    return bench.finish()


def measure(
    bench: Benchmark,
    running: EmbeddedCluster,
    servers: str,
    name: str,
    kind: str,
    runs: int,
    dice: random.Random,
    found: dict[str, int],
) -> None:
    library = LIBRARIES[name]
    group = f"group {kind}"
    place_beside(running, group)
    pauses: dict[str, list[float]] = {"produces": [], "commits": []}
    producing = library.producing(servers, TOPIC)
    await_true(lambda: producing.served, "the producer is served")
    grouped = library.grouped(servers, TOPIC, group)
    try:
        await_true(lambda: grouped.served, "the member is served")
        for number in range(runs):
            one, other = strike(running, kind, [producing, grouped], group, dice)
            pauses["produces"].append(one)
            pauses["commits"].append(other)
            print(f"{kind}, {name} {number + 1}: produces {one:.2f} s, commits {other:.2f} s", flush=True)
            for told in [*producing.errors, *grouped.errors]:
                print(f"   told: {told}", flush=True)
    finally:
        producing.stop()
        await_true(
            lambda: grouped.errors or len(grouped.numbers) >= len(producing.offsets), "the member reads the rest"
        )
        grouped.stop()
    for what in {LEADER: ["produces"], COORDINATOR: ["commits"], BROKER: ["produces", "commits"]}[kind]:
        bench.record(kind, f"{name} {what}", pauses[what], unit="s")
    for what, count in audit(running, producing, grouped).items():
        found[what] = found.get(what, 0) + count


if __name__ == "__main__":
    raise SystemExit(main())
