"""A config of hosts, set at the start and changed by IncrementalAlterConfigs, shapes what a running host answers.

``tests/ray/test_host_configs.py`` shows the same of processes of their own.
"""

from __future__ import annotations

import pytest
from one_fetch import fetched_bytes
from outside import listener
from raw_requests import eventually

import raylog.testing
from raylog.client.sync import AdminClient

pytestmark = pytest.mark.core

VALUE = bytes(3_000)


def test_a_config_of_hosts_holds_from_the_start_and_changes_while_the_host_runs() -> None:
    with raylog.testing.broker(topics=["t"], configs={"fetch.max.bytes": 4_000}) as kafka:
        for _ in range(2):
            kafka.write("t", VALUE)
        at = listener(kafka._running, 0)
        assert len(VALUE) < fetched_bytes(at, "t") < 2 * len(VALUE)
        with AdminClient(kafka._running.address) as admin:
            admin.alter_configs(broker="all", set={"fetch.max.bytes": "1000000"})
            eventually(lambda: fetched_bytes(at, "t") > 2 * len(VALUE), "a fetch returns both batches")
            admin.alter_configs(broker=0, set={"fetch.max.bytes": "4000"})
            eventually(lambda: fetched_bytes(at, "t") < 2 * len(VALUE), "the broker's own value holds")
            admin.alter_configs(broker=0, delete=["fetch.max.bytes"])
            eventually(lambda: fetched_bytes(at, "t") > 2 * len(VALUE), "the value for all brokers holds again")
