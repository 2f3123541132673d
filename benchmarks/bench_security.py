"""What security costs: TLS and SCRAM beside Apache Kafka 3.9.1, and ACLs beside raylog without any.

``--only PART`` runs a part anew; the others keep the figures of their last run:

- ``tls``: confluent-kafka writes and reads 1 KB records by TLS (SSL, no client certificates), one partition: one broker, RF 1, acks=1, then
  three brokers, RF 3, acks=all. Both sides have the same certificates (P-256); client and server agree on version and cipher.
- ``connections``: four processes open connections by TLS, log in with SCRAM-SHA-512 (4,096 iterations) and close them, over and over
  (``secure_connections``). One broker a side.
- ``acls``: two raylog clusters of one broker, plain listeners. One has an authorizer with 1,000 ACLs of 100 users, and one more that lets
  everybody write and read the topic. Batches of confluent-kafka; single records, one at a time; small requests of 4 connections.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from apache_kafka import VERSION, ApacheKafka
from bench_round_trip import kafka as round_trips
from consumers import ConfluentKafkaReader
from embedded import EmbeddedCluster
from harness import Benchmark, arguments, cpu_seconds
from producers import SETTINGS, ConfluentKafka, megabytes_per_second, random_values, written_bytes
from small_requests import SmallRequests, Wanted

from raylog.client.sync import AdminClient
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from certificates import Authority

RAYLOG, KAFKA = "raylog", "Apache Kafka"
OPEN, GUARDED = "raylog, no authorizer", "raylog, 1,000 ACLs"
PARTS = ("tls", "connections", "acls")
SIZE = 1_000
RECORDS = {1: 300_000, 3: 100_000}  # by replication factor
ROUNDS = 5
CONNECTING = 4
CONNECTING_S = 4.0
USER, PASSWORD = "alice", "wonderland"
SASL = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
}
ACLS, USERS = 1_000, 100
TRIPS_PER_ROUND = 1_500
SMALL_CONNECTIONS = 4
SETTLE_S = 1.0
SMALL_S = 3.0
TIMES_KAFKAS_MIN = 1.0
COST_MAX = 1.05
RATE_MIN = 0.95


def free_ports(count: int) -> list[int]:
    """The first of so many ports in a row that are free, on loopback."""
    with contextlib.ExitStack() as held:
        while True:
            sockets = [held.enter_context(socket.socket()) for _ in range(count)]
            try:
                sockets[0].bind(("127.0.0.1", 0))
                first = sockets[0].getsockname()[1]
                for number, each in enumerate(sockets[1:], 1):
                    each.bind(("127.0.0.1", first + number))
            except OSError:
                continue
            return list(range(first, first + count))


class Secure:
    """Both sides with a further listener of a protocol, by the same certificates."""

    def __init__(self, brokers: int, protocol: str, folder: Path) -> None:
        self.authority = Authority(folder)
        keystore = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.authority.signed("broker"))}
        plain, _, _, secure, _, _ = free_ports(2 * 3)  # each broker takes the next ones
        self._ours_at = f"127.0.0.1:{secure}"
        listeners = f"PLAINTEXT://127.0.0.1:{plain},{protocol}://{self._ours_at}"
        self.ours = EmbeddedCluster(brokers, configs={"listeners": listeners} | keystore)
        sasl = SASL if protocol.startswith("SASL") else {}
        self.theirs = ApacheKafka(brokers, properties=keystore | sasl, protocols=(protocol,))
        self._protocol = protocol

    @property
    def bootstraps(self) -> dict[str, str]:
        return {RAYLOG: self._ours_at, KAFKA: self.theirs.bootstrap_of(self._protocol)}

    def pids(self, side: str) -> list[int]:
        return list(self.ours.processes()) if side == RAYLOG else list(self.theirs.pids.values())


@contextlib.contextmanager
def secure(brokers: int, protocol: str) -> Iterator[Secure]:
    with tempfile.TemporaryDirectory() as folder:
        sides = Secure(brokers, protocol, Path(folder))
        with sides.ours, sides.theirs:
            yield sides


# ------------------------------------------------------------------ TLS


def tls(bench: Benchmark, *, quick: bool) -> None:
    for brokers in (1, 3):
        with secure(brokers, "SSL") as sides:
            configs = {"min.insync.replicas": str(min(2, brokers))}
            for side in (sides.ours, sides.theirs):
                side.create_topic("secret", replication_factor=brokers, configs=configs)
            count = RECORDS[brokers] // (20 if quick else 1)
            options = {"security.protocol": "SSL", "ssl.ca.location": str(sides.authority.certificate)}
            written(bench, sides, options, brokers, count)
            if brokers == 1:
                read(bench, sides, options, count // 2)


def written(bench: Benchmark, sides: Secure, options: Mapping[str, Any], replicas: int, count: int) -> None:
    acks = "1" if replicas == 1 else "all"
    values = random_values(count, SIZE)
    clients = {side: ConfluentKafka(at, "secret", values, acks, **options) for side, at in sides.bootstraps.items()}
    compare(
        bench,
        f"produce by TLS, 1 KB, RF {replicas}, acks={acks}",
        {side: (client.rate, sides.pids(side)) for side, client in clients.items()},
        count,
        written_bytes(count, SIZE, replicas),
    )
    for client in clients.values():
        client.close()


def read(bench: Benchmark, sides: Secure, options: Mapping[str, Any], count: int) -> None:
    clients = {side: ConfluentKafkaReader(at, "secret", count, **options) for side, at in sides.bootstraps.items()}
    runs = {side: (client.rate, sides.pids(side)) for side, client in clients.items()}
    compare(bench, "consume by TLS, 1 KB", runs, count, 0)
    for client in clients.values():
        client.close()


def compare(bench: Benchmark, case: str, runs: Mapping[str, Any], count: int, written: int) -> None:
    """``runs``: by side, what gives records per second, and the servers' processes."""
    costs: dict[str, list[float]] = {side: [] for side in runs}

    def measured(side: str) -> float:
        run, pids = runs[side]
        used = cpu_seconds(*pids)
        rate = run()
        costs[side].append((cpu_seconds(*pids) - used) / (count * SIZE / 1e9))
        return megabytes_per_second(rate, SIZE)

    bench.alternate(case, {side: partial(measured, side) for side in runs}, unit="MB/s", written_bytes=written)
    for side, values in costs.items():
        bench.record(f"{case}, servers' CPU", side, values[1:], unit="CPU s/GB")


# ------------------------------------------------------------------ connections


def connections(bench: Benchmark, *, quick: bool) -> None:
    with secure(1, "SASL_SSL") as sides:
        with AdminClient(sides.ours.cluster.address) as admin:
            admin.set_user(USER, PASSWORD, iterations=4_096)
        set_kafkas_user(sides.theirs)
        costs: dict[str, list[float]] = {RAYLOG: [], KAFKA: []}
        seconds = CONNECTING_S / (4 if quick else 1)

        def measured(side: str) -> float:
            pids = sides.pids(side)
            port = sides.bootstraps[side].rpartition(":")[2]
            used = cpu_seconds(*pids)
            command = [sys.executable, str(Path(__file__).with_name("secure_connections.py")), port]
            command += [str(sides.authority.certificate), USER, PASSWORD, str(seconds)]
            processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CONNECTING)]
            printed = [each.communicate(timeout=120)[0] for each in processes]
            count = sum(int(each) for each in printed)
            costs[side].append(1_000 * (cpu_seconds(*pids) - used) / count)
            return count / seconds

        case = f"connections by TLS and SCRAM-SHA-512, {CONNECTING} clients"
        bench.alternate(case, {side: partial(measured, side) for side in (RAYLOG, KAFKA)}, unit="connections/s")
        for side, values in costs.items():
            bench.record(f"{case}, servers' CPU", side, values[1:], unit="CPU ms each")


def set_kafkas_user(kafka: ApacheKafka) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.alter_user_scram_credentials([change])[USER].result()


# ------------------------------------------------------------------ ACLs


def binding(resource: Resource, name: str, principal: str, operation: Operation) -> AclBinding:
    return AclBinding(resource, name, PatternType.LITERAL, principal, "*", operation, PermissionType.ALLOW)


def acls(bench: Benchmark, *, quick: bool) -> None:
    guard = {"authorizer.class.name": "raylog", "super.users": "User:admin"}
    with EmbeddedCluster(1) as unguarded, EmbeddedCluster(1, configs=guard) as guarded:
        sides = {OPEN: unguarded, GUARDED: guarded}
        for side in sides.values():
            side.create_topic("few")
            side.create_topic("many", partitions=SMALL_CONNECTIONS)
        with AdminClient(guarded.cluster.address) as admin:
            given = [
                binding(Resource.TOPIC, f"topic-{number}", f"User:{number % USERS}", Operation.READ)
                for number in range(ACLS - 5)
            ]
            given += [
                binding(Resource.TOPIC, topic, "User:*", operation)
                for topic in ("few", "many")
                for operation in (Operation.READ, Operation.WRITE)
            ]
            given.append(binding(Resource.GROUP, "bench", "User:*", Operation.READ))
            admin.create_acls(given)
        at = {side: cluster.cluster.bootstrap_servers() for side, cluster in sides.items()}
        bulk(bench, sides, at, RECORDS[1] // (20 if quick else 1))
        trips = TRIPS_PER_ROUND // (10 if quick else 1)
        alone = {
            side: partial(lambda place: 1_000 * statistics.median(round_trips(place, "few", "1", trips)), place)
            for side, place in at.items()
        }
        bench.alternate("round trip, p50", alone, unit="ms")
        small(bench, sides, at, SMALL_S / (5 if quick else 1))


def bulk(bench: Benchmark, sides: Mapping[str, EmbeddedCluster], at: Mapping[str, str], count: int) -> None:
    values = random_values(count, SIZE)
    clients = {side: ConfluentKafka(place, "few", values, "1") for side, place in at.items()}
    runs = {side: (client.rate, list(sides[side].processes())) for side, client in clients.items()}
    compare(bench, "produce, 1 KB", runs, count, written_bytes(count, SIZE))
    for client in clients.values():
        client.close()
    readers = {side: ConfluentKafkaReader(place, "few", count // 2) for side, place in at.items()}
    runs = {side: (reader.rate, list(sides[side].processes())) for side, reader in readers.items()}
    compare(bench, "consume, 1 KB", runs, count // 2, 0)
    for reader in readers.values():
        reader.close()


def small(bench: Benchmark, sides: Mapping[str, EmbeddedCluster], at: Mapping[str, str], seconds: float) -> None:
    costs: dict[str, list[float]] = {side: [] for side in sides}

    def measured(side: str) -> float:
        with SmallRequests(Wanted(at[side], "many", "produce", SMALL_CONNECTIONS, in_flight=1)) as load:
            time.sleep(SETTLE_S)
            pids = list(sides[side].processes())
            used, before = cpu_seconds(*pids), load.look()
            time.sleep(seconds)
            after, used_after = load.look(), cpu_seconds(*pids)
        count = after.answered - before.answered
        costs[side].append(1_000 * (used_after - used) / count)
        return count / (after.at - before.at) / 1_000

    case = f"small produces, {SMALL_CONNECTIONS} connections"
    bench.alternate(case, {side: partial(measured, side) for side in sides}, unit="k requests/s")
    for side, values in costs.items():
        bench.record(f"{case}, servers' CPU", side, values[1:], unit="CPU ms each")


# ------------------------------------------------------------------ all


def judge(bench: Benchmark) -> None:
    for case, found in bench.cases.items():
        if "CPU" in case:
            continue
        if RAYLOG in found:
            ratio = found[RAYLOG].median / found[KAFKA].median
            bench.target(f"{case}: times Kafka's", ratio, at_least=TIMES_KAFKAS_MIN)
        elif case.startswith("round trip"):
            ratio = found[GUARDED].median / found[OPEN].median
            bench.target(f"{case}: times that without an authorizer", ratio, at_most=COST_MAX)
        else:
            ratio = found[GUARDED].median / found[OPEN].median
            bench.target(f"{case}: times that without an authorizer", ratio, at_least=RATE_MIN)


def part_of(case: str) -> str:
    if "by TLS and" in case:
        return "connections"
    return "tls" if "by TLS" in case else "acls"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, help="one part; the others' figures stay")
    options = arguments(parser)
    bench = Benchmark(
        "security",
        f"what TLS, SCRAM and ACLs cost, beside Apache Kafka {VERSION}",
        settings=SETTINGS | {"acls": ACLS, "connecting_processes": CONNECTING},
        rounds=ROUNDS,
        quick=options.quick,
    )
    parts = (options.only,) if options.only else PARTS
    if options.only:
        bench.cases = {case: found for case, found in bench.earlier().items() if part_of(case) not in parts}
    for part in parts:
        {"tls": tls, "connections": connections, "acls": acls}[part](bench, quick=options.quick)
        bench.write()
    judge(bench)
    if options.only:
        bench.note("Figures of parts that were not run anew are an earlier run's.")
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
