"""How often retention looks through a log, changed while the log is open."""

from __future__ import annotations

from raylog.replication.context import HostConfig
from raylog.replication.events import ConfigsGiven
from raylog.simulator.replica_hosts import Hosts

INTERVAL = "log.retention.check.interval.ms"


def hosts_that_check_every(interval_ms: int) -> Hosts:
    hosts = Hosts((1,), HostConfig(log_retention_check_interval_ms=interval_ms))
    hosts.assign(1, (1,))
    return hosts


def give(hosts: Hosts, interval_ms: int) -> None:
    hosts.handle(1, ConfigsGiven(1, ((INTERVAL, str(interval_ms)),)))


def checks(hosts: Hosts, span_ms: int) -> int:
    """How often retention was applied within that time."""
    hosts.housekept.clear()
    hosts.advance(span_ms)
    return sum(order.retention for order in hosts.housekept)


def test_a_shorter_interval_holds_for_a_log_that_is_open() -> None:
    hosts = hosts_that_check_every(600_000)
    give(hosts, 1_000)
    assert checks(hosts, 900) == 0
    assert checks(hosts, 5_000) == 5


def test_a_longer_interval_holds_after_the_check_that_was_planned() -> None:
    hosts = hosts_that_check_every(1_000)
    give(hosts, 600_000)
    assert checks(hosts, 60_000) == 1
    assert checks(hosts, 600_000) == 1


def test_a_change_of_another_config_moves_no_check() -> None:
    hosts = hosts_that_check_every(1_000)
    for _ in range(4):
        hosts.advance(600)
        hosts.handle(1, ConfigsGiven(1, (("fetch.max.bytes", "5000"),)))
    assert checks(hosts, 1_000) == 1


def test_a_log_that_was_closed_is_not_checked_by_a_new_interval() -> None:
    hosts = hosts_that_check_every(600_000)
    hosts.replica(1).fail("x")
    give(hosts, 1_000)
    assert checks(hosts, 5_000) == 0
