"""A config of hosts given to ``raylog.init`` reaches the process of a host, and a change reaches it while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from one_fetch import fetched_bytes
from ray_clusters import PATIENCE_S, eventually

import raylog
from raylog import NewTopic
from raylog.types import Endpoint

pytestmark = pytest.mark.ray

VALUE = bytes(3_000)


@pytest.fixture
def cluster(short_folder: Path) -> Iterator[raylog.Cluster]:
    made = raylog.init(
        short_folder / "data",
        brokers=1,
        ray_address="local",
        configs={"fetch.max.bytes": 4_000},
        timeout_s=PATIENCE_S,
    )
    yield made
    made.shutdown()


def test_a_config_of_hosts_reaches_their_process_at_the_start_and_while_it_runs(cluster: raylog.Cluster) -> None:
    admin = cluster.admin()
    admin.create_topics([NewTopic("t", 1, 1)])
    with cluster.producer(acks="all", linger_ms=0) as producer:
        for _ in range(2):  # two batches
            producer.send("t", VALUE, partition=0).result(60)
    host, _, port = cluster.bootstrap_servers().rpartition(":")
    listener = Endpoint(host, int(port))
    before = {each.actor: each.pid for each in admin.list_actors()}
    assert len(VALUE) < fetched_bytes(listener, "t") < 2 * len(VALUE)
    admin.alter_configs(broker="all", set={"fetch.max.bytes": "1000000"})
    eventually(lambda: fetched_bytes(listener, "t") > 2 * len(VALUE), "a fetch returns both batches")
    assert {each.actor: each.pid for each in admin.list_actors()} == before, "no process was started again"
