"""``replica.lag.time.max.ms``, changed while a leader leads."""

from __future__ import annotations

from raylog.replication.context import HostConfig
from raylog.replication.events import ConfigsGiven
from raylog.simulator.replica_hosts import P0, Hosts

HOUR_MS = 3_600_000


def give(hosts: Hosts, broker: int, lag_ms: int) -> None:
    configs = (("replica.lag.time.max.ms", str(lag_ms)),)
    hosts.handle(broker, ConfigsGiven(hosts.controller_epoch, configs))


def test_a_follower_that_lags_already_is_asked_out_by_a_shorter_time() -> None:
    hosts = Hosts((1, 2), HostConfig(replica_lag_time_max_ms=HOUR_MS))
    hosts.assign(1, (1, 2), to=(1,))
    follower = (2, hosts.processes[2].incarnation)
    hosts.fetch(1, 0, replica=follower, epoch=hosts.assignments[P0].leader_epoch, last_epoch=-1)
    hosts.produce(1, b"m0", acks=1)
    hosts.advance(60_000)
    assert hosts.asked(1) == []
    give(hosts, 1, 10_000)
    hosts.advance(1_000)
    (request,) = hosts.asked(1)
    assert [broker for broker, _ in request.isr] == [1]


def test_a_shorter_time_asks_nobody_out_who_follows() -> None:
    hosts = Hosts((1, 2), HostConfig(replica_lag_time_max_ms=HOUR_MS))
    hosts.assign(1, (1, 2))
    hosts.advance(60_000)
    for broker in (1, 2):
        give(hosts, broker, 1_000)
    for _ in range(5):
        hosts.produce(1, b"m", acks=1)
        hosts.advance(5_000)
    assert hosts.asked(1) == []
