"""What a host says of its replicas' traffic: what came and went since the last report, nothing of those that are idle."""

from __future__ import annotations

import uuid

from raylog.replication.replica_traffic import REPORTED_MAX, ReplicaTraffic
from raylog.simulator.replica_hosts import P0, Hosts
from raylog.types import TopicIdPartition

TOPIC = uuid.UUID(int=7)


def test_a_thousand_idle_replicas_are_not_in_the_report():
    traffic = ReplicaTraffic()
    busy = TopicIdPartition(TOPIC, 3)
    traffic.wrote(busy, 1_000)
    traffic.wrote(busy, 500)
    traffic.read(busy, 200)
    (load,) = traffic.take()
    assert (load.id, load.requests, load.bytes_in, load.bytes_out) == (busy, 3, 1_500, 200)
    assert traffic.take() == (), "counting begins anew"


def test_the_busiest_are_reported_if_there_are_many():
    traffic = ReplicaTraffic()
    for partition in range(REPORTED_MAX + 10):
        traffic.wrote(TopicIdPartition(TOPIC, partition), 1_000_000 * (partition + 1))
    loads = traffic.take()
    assert [load.partition for load in loads] == list(range(REPORTED_MAX + 9, 9, -1))


def test_small_requests_weigh_more_than_their_bytes():
    traffic = ReplicaTraffic()
    for _ in range(100):
        traffic.wrote(TopicIdPartition(TOPIC, 1), 100)
    traffic.wrote(TopicIdPartition(TOPIC, 0), 100_000)
    assert [load.partition for load in traffic.take()] == [1, 0]


def test_leader_and_follower_count_what_they_move():
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), replicas=(1, 2))
    assert hosts.produced(hosts.produce(1, b"x" * 1_000)) is not None
    assert hosts.fetched(hosts.fetch(1, 0)) is not None
    (led,), (followed,) = (hosts.processes[broker].host.take_loads() for broker in (1, 2))
    assert led.id == followed.id == P0
    assert led.requests == 3 and led.bytes_in > 1_000 and led.bytes_out == 2 * led.bytes_in, "a follower and a consumer"
    assert (followed.requests, followed.bytes_in, followed.bytes_out) == (1, led.bytes_in, 0)
    assert not hosts.processes[1].host.take_loads()
