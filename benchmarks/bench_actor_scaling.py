"""Eight hot partitions saturate the one actor of their disk; it splits by itself, and more is written.

An embedded cluster of one broker, every server a Ray actor; one topic of eight partitions with one replica each, all of which begin on the
disk's one host. ``saturating_load`` sends small requests to all of them, acks=1, as fast as they are answered, for very little
CPU of its own. In each round, without a pause of the load:

1. ``actor.scaling.enable=false``: one host. Throughput over ``MEASURED_S``.
2. ``actor.scaling.enable=true``, all bounds at their defaults: the controller adds a host and moves replicas there. When
   each host holds some of them, throughput again.
3. Switched off again, and the added host is retired by hand for the next round.

The machine has few cores, and the load needs some of one: what the servers and the load used is reported beside.

At the end each partition is read back. Nothing acknowledged may be lost: acknowledged offsets rise, each is below the log's
end, and the log has a record at every offset.
"""

from __future__ import annotations

import time

from embedded import WAIT_S, EmbeddedCluster
from harness import Benchmark, arguments, cpu_seconds
from saturating_load import RECORD_BYTES, WINDOW, Looked, SaturatingLoad

from raylog.client.admin.actors import ActorInfo
from raylog.client.sync import AdminClient
from raylog.cluster import Cluster

TOPIC = "hot"
PARTITIONS = 8
MEASURED_S = 10.0
ROUNDS = 5
GAIN_MIN = 1.4


class Scaled:
    """The hosts of the one disk, and whether they may become more."""

    def __init__(self, running: EmbeddedCluster, admin: AdminClient) -> None:
        self._running = running
        self._admin = admin

    def hosts(self) -> list[ActorInfo]:
        return [each for each in self._admin.list_actors() if each.host == "replicas"]

    def switch(self, *, on: bool) -> None:
        self._admin.alter_configs(broker="all", set={"actor.scaling.enable": str(on).lower()})

    def split(self) -> list[int]:
        """Wait until the added host has its share; how many replicas each holds."""
        deadline = time.monotonic() + WAIT_S
        counts: list[int] = []
        steady = 0
        while steady < 6:
            assert time.monotonic() < deadline, f"no split: {self.hosts()}"
            time.sleep(0.5)
            now = [each.replicas for each in self.hosts()]
            steady = steady + 1 if len(now) > 1 and now == counts and all(now) else 0
            counts = now
        return counts

    def merge(self) -> None:
        for added in [each for each in self.hosts() if each.automatic]:
            while self._admin.retire_actor(added.actor).remaining:
                time.sleep(0.1)
        deadline = time.monotonic() + WAIT_S
        while len(self.hosts()) > 1:
            assert time.monotonic() < deadline, self.hosts()
            time.sleep(0.1)


def measured(load: SaturatingLoad, pids: list[int], seconds: float) -> tuple[float, float, float]:
    """Requests per second; cores that the hosts used, and the load."""
    first, cpu_s = load.look(), cpu_seconds(*pids)
    time.sleep(seconds)
    last, used_s = load.look(), cpu_seconds(*pids) - cpu_s
    passed_s = last.at - first.at
    return (last.acked - first.acked) / passed_s, used_s / passed_s, (last.cpu_s - first.cpu_s) / passed_s


def lost_records(cluster: Cluster, last: Looked) -> int:
    """Acknowledged records that are not in the log."""
    lost = 0
    for partition, sent in enumerate(last.partitions):
        with cluster.consumer() as consumer:
            consumer.assign([(TOPIC, partition)])
            consumer.seek_to_beginning()
            end = consumer.end_offsets([(TOPIC, partition)])[(TOPIC, partition)]
            read = 0
            while read < end:
                offsets = consumer.poll_batch(timeout=30)["offset"]
                assert offsets[0].as_py() == read and offsets[-1].as_py() == read + len(offsets) - 1, (
                    "a hole in the log"
                )
                read += len(offsets)
        lost += max(0, sent.last_offset + 1 - end) + max(0, sent.acked - end)
    return lost


def main() -> int:
    options = arguments()
    seconds = 3.0 if options.quick else MEASURED_S
    bench = Benchmark(
        "actor_scaling",
        f"{PARTITIONS} hot partitions of one disk, scaling off and on",
        settings={
            "brokers": 1,
            "partitions": PARTITIONS,
            "replication.factor": 1,
            "acks": 1,
            "record_bytes": RECORD_BYTES,
            "records_per_request": 1,
            "in_flight_per_partition": WINDOW,
            "seconds": seconds,
            "actor.scaling.*": "defaults",
        },
        rounds=ROUNDS,
        quick=options.quick,
    )
    off, on = "off: one actor", "on: split by itself"
    rates: dict[str, list[float]] = {off: [], on: []}
    hosts_used: dict[str, list[float]] = {off: [], on: []}
    load_used: dict[str, list[float]] = {off: [], on: []}
    split_s, pauses_ms, held = [], [], []
    with EmbeddedCluster(brokers=1) as running, running.cluster.admin() as admin:
        scaled = Scaled(running, admin)
        scaled.switch(on=False)
        running.create_topic(TOPIC, partitions=PARTITIONS)
        with SaturatingLoad(running.cluster.address, TOPIC, PARTITIONS) as load:
            for number in range(bench.rounds):
                time.sleep(2.0)  # the log's first bytes, caches
                for name in (off, on):
                    if name == on:
                        load.forget_pauses()
                        began = time.monotonic()
                        scaled.switch(on=True)
                        held.append(scaled.split())
                        split_s.append(time.monotonic() - began - 3.0)  # it was watched for so long after the last move
                        pauses_ms.append(1000 * max(each.longest_pause_s for each in load.look().partitions))
                    rate, used, own = measured(load, [each.pid for each in scaled.hosts()], seconds)
                    rates[name].append(rate)
                    hosts_used[name].append(used)
                    load_used[name].append(own)
                    print(f"round {number + 1}, {name}: {rate:,.0f}/s, hosts {used:.2f}, load {own:.2f}", flush=True)
                scaled.switch(on=False)
                scaled.merge()
            last = load.stop()
        time.sleep(1.0)
        lost = lost_records(running.cluster, last)
    for name in (off, on):
        bench.record("throughput", name, rates[name], unit="requests/s")
        bench.record("cores that the hosts use", name, hosts_used[name], unit="cores")
        bench.record("cores that the load uses", name, load_used[name], unit="cores")
    bench.record("from switched on to split", on, split_s, unit="s", replicas_on_each=held)
    bench.record("longest time without acks of a partition, split", on, pauses_ms, unit="ms")
    disordered = sum(each.disordered for each in last.partitions)
    bench.record(
        "read back",
        "all rounds",
        [float(last.acked)],
        unit="acked",
        lost=lost,
        disordered=disordered,
        refused=sum(each.refused for each in last.partitions),
        without_answer=sum(each.unanswered for each in last.partitions),
    )
    gains = [after / before for before, after in zip(rates[off], rates[on], strict=True)]
    bench.record("times the throughput of one actor", on, gains, unit="×")
    ordered = sorted(gains)
    bench.target("median gain, × the throughput of one actor", ordered[len(ordered) // 2], at_least=GAIN_MIN)
    bench.target("acknowledged records lost", lost, at_most=0)
    bench.target("acknowledgements whose offsets do not rise", disordered, at_most=0)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
