"""Where executors go, by arithmetic: a bundle for each broker on its own node, or what is missing."""

from __future__ import annotations

from typing import Any

import pytest

import raylog.spark
from raylog.errors import ClusterError, ConfigError
from raylog.spark.placing import NODE_SHARE, Room, broker_hosts, bundles, memory_bytes

pytestmark = pytest.mark.spark

GB = 1 << 30


def test_each_broker_has_a_bundle_on_its_own_node() -> None:
    rooms = {"10.0.0.1": Room(8, 16 * GB), "10.0.0.2": Room(8, 16 * GB), "10.0.0.9": Room(8, 16 * GB)}
    wanted, cpus = bundles({1: "10.0.0.2", 0: "10.0.0.1"}, rooms, cores=2, memory=GB)
    assert cpus == 2
    assert wanted == [
        {"CPU": 2, "memory": GB, "node:10.0.0.1": NODE_SHARE},
        {"CPU": 2, "memory": GB, "node:10.0.0.2": NODE_SHARE},
    ]


def test_executors_share_the_cpus_of_a_node_that_has_too_few() -> None:
    wanted, cpus = bundles(dict.fromkeys(range(3), "a"), {"a": Room(2, 16 * GB)}, cores=1, memory=GB)
    assert cpus == pytest.approx(0.6)
    assert sum(bundle["CPU"] for bundle in wanted) <= 2


@pytest.mark.parametrize(
    ("hosts", "room", "message"),
    [
        ({}, Room(2, 16 * GB), "no broker is alive"),
        ({0: "b"}, Room(2, 16 * GB), "the brokers at b are not on nodes of this Ray"),
        ({0: "a", 1: "a"}, Room(2, 1.5 * GB), "2 executors of 1024 MB do not fit on a, where Ray has 1536 MB"),
        ({0: "a"}, Room(0, 16 * GB), "0 CPUs"),
    ],
)
def test_what_is_missing_is_said(hosts: dict[int, str], room: Room, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        bundles(hosts, {"a": room}, cores=1, memory=GB)


def test_memory_is_written_as_spark_writes_it() -> None:
    assert [memory_bytes("executor_memory", text) for text in ("1g", "512M", "2048mb", GB)] == [GB, GB // 2, 2 * GB, GB]
    for text, message in (("much", "write it as 1g"), ("256m", "less than 512m"), ("", "write it as")):
        with pytest.raises(ConfigError, match=message):
            memory_bytes("executor_memory", text)


def test_the_hosts_of_brokers_are_those_of_their_live_servers() -> None:
    def actor(node_id: int, endpoint: str | None, state: str = "live") -> dict[str, object]:
        return {"node_id": node_id, "endpoint": endpoint, "state": state}

    actors = [
        actor(0, "a:1"),
        actor(2, "a:2"),
        actor(1 << 16, "b:1"),
        actor(2 << 16, "c:1", "dead"),
        actor(3 << 16, None),
    ]
    assert broker_hosts(actors) == {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "127.0.0.1:9092"}, "is not a cluster: give what raylog"),
        ({"executor_memory": "1x"}, "write it as 1g"),
    ],
)
def test_a_session_that_can_not_be_is_refused_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.spark.init("none", **options)
