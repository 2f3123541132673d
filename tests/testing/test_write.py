"""``kafka.write()`` where a producer would have to try again."""

from __future__ import annotations

import pytest

import raylog.testing

pytestmark = pytest.mark.core


def test_it_waits_for_a_crashed_replica_as_a_producer_does() -> None:
    with raylog.testing.broker(topics={"t": 1}, brokers=2, configs={"min.insync.replicas": 2}) as kafka:
        for number in range(5):
            kafka.crash_leader("t")
            kafka.write("t", b"%d" % number)
        assert [record.value for record in kafka.records("t", count=5)] == [b"%d" % each for each in range(5)]
