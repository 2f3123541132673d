"""A program inside the cluster has its quota once, however many processes of a broker it writes to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from raw_requests import eventually

from raylog import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.server.broker_server import BrokerServer
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

KIB = 1_024
QUOTA = 64 * KIB
VALUE = b"v" * (16 * KIB)
RECORDS = 28


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=1, disks=2) as found:
        yield found


def test_a_producer_of_two_hosts_has_its_quota_once(running: InProcessCluster) -> None:
    """One second's worth may be sent at once; where each host counted alone half of the time would do."""
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker="all", set={"quota.window.num": "2"})
        admin.create_topics([NewTopic("spread", 2, 1)])
        admin.alter_quotas({"client-id": "spread"}, {"producer_byte_rate": QUOTA})
    hosts = [each for each in running.launcher.servers.values() if isinstance(each, ReplicaServer)]
    eventually(lambda: all(each._quotas._told.windows == 2 for each in hosts), "the hosts know the quota")
    held = [[replica.assignment.topic for replica in each._host.replicas.values()] for each in hosts]
    assert sum("spread" in topics for topics in held) == 2, "each partition has a host of its own"
    with Producer(running.address, client_id="spread") as producer:
        began = time.monotonic()
        for number in range(RECORDS):
            producer.send("spread", VALUE, partition=number % 2).result(60)
        took_s = time.monotonic() - began
    sent = (RECORDS - 4) * len(VALUE)  # up to two of each host may be on their way while it asks
    assert took_s >= (sent - QUOTA) / QUOTA


def test_hosts_go_on_without_their_lender_and_find_the_next_one(running: InProcessCluster) -> None:
    servers = running.launcher.servers
    hosts = [each for each in servers.values() if isinstance(each, ReplicaServer)]
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("orphaned", 2, 1)])
        admin.alter_quotas({"client-id": "orphan"}, {"producer_byte_rate": 64 * QUOTA})
    eventually(lambda: all("orphan" in (each._quotas._text or "") for each in hosts), "the hosts know the quota")
    node, broker = next((node, each) for node, each in servers.items() if isinstance(each, BrokerServer))
    with Producer(running.address, client_id="orphan") as producer:
        producer.send("orphaned", VALUE, partition=0).result(60)
        running.run(broker.crash())
        for number in range(8):
            producer.send("orphaned", VALUE, partition=number % 2).result(60)
    eventually(lambda: servers[node] is not broker, "another process of the broker")
    eventually(lambda: all(map(is_asked, hosts)), "it asks what hosts want of quotas")


def is_asked(host: ReplicaServer) -> bool:
    request = host._quotas._borrower._request
    return request is not None and request.is_open
