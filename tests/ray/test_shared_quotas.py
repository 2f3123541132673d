"""The processes of one broker share a quota: what they take together is one quota, and who is busy alone has all of it.

What a client was acknowledged within some time was counted within it, but for one request in flight at its begin. So whatever the
machine does meanwhile, no more than the quota for that time, what may be sent at once, and a request of each client can be there.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import confluent_kafka
import pytest
from ray_clusters import PATIENCE_S, eventually, kill, partition_of, pid_of

import raylog
from raylog import NewTopic
from raylog.security.quota_leases import LEASE_MS

pytestmark = pytest.mark.ray

TOPIC, CLIENT_ID = "shared", "app"
QUOTA = 128 * 1_024
VALUE = b"v" * (8 * 1_024)
BURST_S = 1.0  # by two windows of one second
ESTABLISHED = "01"  # in /proc/net/tcp
OF_CLIENT_ID, OF_USER = {"client-id": "kafka"}, {"user": "ANONYMOUS"}
SECONDS = 6.0
"""For so long a client's bytes are looked at."""

Busy = Callable[[raylog.Cluster], AbstractContextManager["Sender"]]


@pytest.fixture(scope="module")
def cluster(short_folder: Path) -> Iterator[raylog.Cluster]:
    """One broker with two hosts that lead a partition each. Both have heard of the quota before they lead."""
    made = raylog.init(
        short_folder / "data",
        brokers=1,
        ray_address="local",
        configs={"quota.window.num": 2},
        timeout_s=PATIENCE_S,
    )
    with made.admin() as admin:
        admin.alter_quotas({"client-id": CLIENT_ID}, {"producer_byte_rate": QUOTA})
        added, _ = admin.add_actor(0)
        eventually(lambda: any(each["node_id"] == added and each["state"] == "live" for each in hosts(made)), "a host")
        admin.create_topics([NewTopic(TOPIC, 2, 1)])
    eventually(lambda: len(leaders(made)) == 2, "each host leads a partition")
    yield made
    made.shutdown()


def hosts(cluster: raylog.Cluster) -> list[dict[str, object]]:
    """The processes of the broker that may count quotas beside the Broker itself."""
    return [each for each in cluster.status()["actors"] if each["kind"] != "broker"]


def leaders(cluster: raylog.Cluster) -> set[int]:
    return {partition_of(cluster, TOPIC, partition)["leader_node"] for partition in range(2)}


class Sender:
    """Sends a value after the other, as fast as it may, and knows what was acknowledged and when."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._acknowledged: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._send()
            self._acknowledged.append(time.monotonic())

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def bytes_within(self, begin: float, end: float) -> int:
        return len(VALUE) * sum(begin <= each <= end for each in list(self._acknowledged))


@contextmanager
def native(cluster: raylog.Cluster, partition: int, client_id: str = CLIENT_ID) -> Iterator[Sender]:
    """A program inside the cluster, which talks to the partition's host itself."""
    with (
        cluster.producer(client_id=client_id, acks="1", linger_ms=0) as producer,
        Sender(lambda: producer.send(TOPIC, VALUE, partition=partition).result(PATIENCE_S)) as sender,
    ):
        yield sender


@contextmanager
def of_listener(
    cluster: raylog.Cluster, client_id: str = CLIENT_ID, *, partitions: int = 2, pause_s: float = 0.0
) -> Iterator[Sender]:
    """A Kafka client, which writes to so many partitions in turn, with a pause behind each value."""
    servers = cluster.bootstrap_servers()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "client.id": client_id, "acks": 1, "linger.ms": 0, "log_level": 0}
    )
    turn = itertools.cycle(range(partitions))

    def send() -> None:
        producer.produce(TOPIC, VALUE, partition=next(turn))
        assert producer.flush(PATIENCE_S) == 0
        time.sleep(pause_s)

    with Sender(send) as sender:
        yield sender


def at_hosts(cluster: raylog.Cluster) -> int:
    """How many of the listener's connections a host has open. Of those that have moved there, the Broker has a descriptor, too."""
    port = int(cluster.bootstrap_servers().rpartition(":")[2])
    open_ = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if int(local.rpartition(":")[2], 16) == port and state == ESTABLISHED:
            open_.add(f"socket:[{inode}]")
    pids = [each["pid"] for each in hosts(cluster)]
    return len(open_ & {link for pid in pids for link in links_of(pid)})


def links_of(pid: object) -> Iterator[str]:
    """What the descriptors of a process stand for."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it is closed meanwhile
            yield os.readlink(each)


@contextmanager
def quota(cluster: raylog.Cluster, entity: dict[str, str], rate: float) -> Iterator[None]:
    with cluster.admin() as admin:
        admin.alter_quotas(entity, {"producer_byte_rate": rate})
        try:
            yield
        finally:
            admin.alter_quotas(entity, {"producer_byte_rate": None})


def most(seconds: float, clients: int) -> float:
    """The bytes that one quota allows."""
    return QUOTA * (seconds + BURST_S) + 2 * clients * len(VALUE)


def lately(senders: list[Sender]) -> float:
    """How many quotas these have used within the last ``SECONDS``."""
    now = time.monotonic()
    return sum(each.bytes_within(now - SECONDS, now) for each in senders) / (QUOTA * SECONDS)


def each_has_a_part(senders: list[Sender]) -> bool:
    return all(lately([each]) >= 0.2 for each in senders)


def taken(senders: list[Sender], quotas: float) -> tuple[int, float]:
    """The bytes that they are acknowledged from now on, once it is so many quotas of a second, and how long that took."""
    began = time.monotonic()

    def bytes_since() -> int:
        return sum(each.bytes_within(began, time.monotonic()) for each in senders)

    eventually(lambda: bytes_since() >= quotas * QUOTA, f"{quotas} quotas of a second")
    ended = time.monotonic()
    return sum(each.bytes_within(began, ended) for each in senders), ended - began


def test_two_hosts_and_the_listener_have_one_quota_together(cluster: raylog.Cluster) -> None:
    with native(cluster, 0) as one, native(cluster, 1) as other, of_listener(cluster) as outside:
        all_of_them = [one, other, outside]
        found, seconds = taken(all_of_them, 10)
        eventually(lambda: each_has_a_part(all_of_them), "each has a part; an even one is a third")
    assert found <= 1.25 * most(seconds, 3), f"{found:,} bytes in {seconds:.1f} s are more than one quota"


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(lambda made: native(made, 0), id="a host"),
        pytest.param(lambda made: native(made, 1), id="the other host"),
        pytest.param(lambda made: of_listener(made), id="the listener"),
    ],
)
def test_who_is_busy_alone_has_the_whole_quota(cluster: raylog.Cluster, busy: Busy) -> None:
    with busy(cluster) as alone:
        eventually(lambda: lately([alone]) >= 0.85, "more than half of it, or a third, as each would have apart")


def test_a_connection_that_is_at_a_host_when_the_quota_comes_shares_it(cluster: raylog.Cluster) -> None:
    """All that the Kafka client writes goes to one host, so its connection has moved there."""
    late = "late"
    with native(cluster, 1, late) as program, of_listener(cluster, late, partitions=1) as moved:
        both = [program, moved]
        eventually(lambda: all(lately([each]) >= 2 for each in both), "they have no quota")
        with cluster.admin() as admin:
            admin.alter_quotas({"client-id": late}, {"producer_byte_rate": QUOTA})
        eventually(lambda: 0.7 <= lately(both) <= 1.25 and each_has_a_part(both), "they have one together")


@pytest.mark.parametrize("entity", [OF_CLIENT_ID, OF_USER], ids=["client id", "user"])
def test_a_kafka_client_within_its_quota_is_served_by_the_host(cluster: raylog.Cluster, entity: dict[str, str]) -> None:
    eventually(lambda: at_hosts(cluster) == 0, "nobody else is there")
    with quota(cluster, entity, 1 << 30), of_listener(cluster, "kafka", partitions=1) as within:
        eventually(lambda: at_hosts(cluster) == 1, "the connection to move")
        eventually(lambda: lately([within]) >= 5 and at_hosts(cluster) == 1, "it goes on there")


@pytest.mark.parametrize("entity", [OF_CLIENT_ID, OF_USER], ids=["client id", "user"])
def test_a_kafka_client_above_its_quota_is_held_to_it_by_its_broker(
    cluster: raylog.Cluster, entity: dict[str, str]
) -> None:
    with quota(cluster, entity, QUOTA), of_listener(cluster, "kafka", partitions=1) as above:
        began = time.monotonic()
        eventually(
            lambda: time.monotonic() > began + SECONDS and 0.85 <= lately([above]) <= 1.15 and at_hosts(cluster) == 0,
            "it has its quota, at the Broker",
        )
        found, seconds = taken([above], 6)
        assert found <= 1.15 * QUOTA * seconds + len(VALUE), f"{found:,} bytes in {seconds:.1f} s"
        assert at_hosts(cluster) == 0, "it stays there"


@pytest.mark.parametrize("entity", [OF_CLIENT_ID, OF_USER], ids=["client id", "user"])
def test_connections_at_a_host_and_at_the_broker_have_one_quota_together(
    cluster: raylog.Cluster, entity: dict[str, str]
) -> None:
    """The one at the host takes a quarter; the other writes to both hosts, as fast as it may. It may be that the first one has to
    wait as well, on a busy machine, and comes back: then they share at the Broker.
    """
    eventually(lambda: at_hosts(cluster) == 0, "nobody else is there")
    pause_s = 4 * len(VALUE) / QUOTA
    with quota(cluster, entity, QUOTA), of_listener(cluster, "kafka", partitions=1, pause_s=pause_s) as slow:
        eventually(lambda: at_hosts(cluster) == 1, "the connection to move")
        with of_listener(cluster, "kafka") as fast:
            began = time.monotonic()
            eventually(
                lambda: (
                    time.monotonic() > began + SECONDS + BURST_S
                    and 0.85 <= lately([slow, fast]) <= 1.15
                    and (lately([slow]) >= 0.2 or at_hosts(cluster) == 0)
                ),
                "they have one together",
            )
            found, seconds = taken([slow, fast], 6)
            assert found <= 1.15 * QUOTA * seconds + 2 * len(VALUE), f"{found:,} bytes in {seconds:.1f} s"


@contextmanager
def without_lender(cluster: raylog.Cluster) -> Iterator[None]:
    """The Broker is dead, and no other is started meanwhile, because the controller stands still."""
    status = cluster.status()
    (broker,) = [each for each in status["actors"] if each["kind"] == "broker"]
    os.kill(status["controller"]["pid"], signal.SIGSTOP)
    try:
        kill(broker["pid"])
        yield
    finally:
        os.kill(status["controller"]["pid"], signal.SIGCONT)
    eventually(lambda: pid_of(cluster, broker["node_id"]) != broker["pid"], "another process of the Broker")


def test_hosts_hold_to_what_they_were_lent_while_the_broker_is_dead_and_share_again_afterwards(
    cluster: raylog.Cluster,
) -> None:
    lease_s, processes = LEASE_MS / 1_000, len(hosts(cluster))
    with native(cluster, 0) as one, native(cluster, 1) as other:
        both = [one, other]
        eventually(lambda: lately(both) >= 0.8, "they use the quota")
        with without_lender(cluster):
            found, seconds = taken(both, 6)
        safe = 2 / processes * QUOTA * max(0.0, seconds - lease_s)
        assert found <= 1.1 * (most(lease_s, 2) + safe), f"{found:,} bytes in {seconds:.1f} s, {processes} processes"
        with of_listener(cluster) as outside:
            all_of_them = [one, other, outside]
            found, seconds = taken(all_of_them, 10)
            eventually(lambda: each_has_a_part(all_of_them), "each has a part")
        assert found <= 1.25 * (most(seconds, 3) + QUOTA * lease_s), f"{found:,} bytes in {seconds:.1f} s"
    with native(cluster, 0) as alone:
        eventually(lambda: lately([alone]) >= 0.85, "the new process lends it the whole quota")
