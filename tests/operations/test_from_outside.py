"""What operates a cluster, with ``--bootstrap-server``: with the cluster's secret everything, without it what Kafka's requests can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from operating import Load, Operator
from typer.testing import CliRunner, Result

import raylog
from raylog.cli.main import app
from raylog.client.sync import Producer
from raylog.errors import ClusterError, ConfigError, RaylogError
from raylog.records.batch import batches, write_crc
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.core

Outside = Callable[..., Any]


def _command(running: InProcessCluster, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap-server", running.bootstrap_servers()])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def no_topics(operator: Operator) -> Iterator[None]:
    """Afterwards: what a broker cannot be removed for lacks no other broker."""
    yield
    operator.admin.delete_topics(operator.admin.list_topics())


@pytest.fixture
def outside(running: InProcessCluster) -> Outside:
    """Runs a command through the brokers' listeners; what it printed as JSON."""
    return lambda *arguments, **how: json.loads(_command(running, *arguments, "--json", **how).stdout)


@pytest.fixture
def trusted(running: InProcessCluster, tmp_path: Path) -> Outside:
    """The same with the secret, which a file of the cluster's has, in the properties file."""
    secret = (running.folder / "broker-0" / "cluster.secret").read_text().strip()
    file = tmp_path / "secret.properties"
    file.write_text(f"cluster.secret={secret}\n")
    added = ("--json", "--command-config", str(file))
    return lambda *arguments, **how: json.loads(_command(running, *arguments, *added, **how).stdout)


def write(operator: Operator, topic: str, count: int = 200) -> None:
    with Producer(operator.running.address, acks="all") as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(count)]).result(30)


def alter_a_value(operator: Operator, topic: str, *, broker: int) -> None:
    """In a broker's copy of the first batch, under a CRC that fits."""
    log = operator.running.folder / f"broker-{broker}" / f"{topic}-0" / f"{0:020d}.log"
    altered = bytearray(next(iter(batches(log.read_bytes()))).data)
    altered[-2] ^= 0x01
    write_crc(altered)
    with log.open("r+b") as file:
        file.write(altered)


@pytest.mark.parametrize(
    "command",
    [
        ("actors", "list"),
        ("actors", "add", "--broker", "1"),
        ("actors", "move", "t-0", "--broker", "1", "--to", "3"),
        ("actors", "retire", "3"),
        ("brokers", "drain", "1"),
        ("brokers", "undrain", "1"),
        ("verify", "--repair"),
    ],
    ids=" ".join,
)
def test_what_kafka_has_no_request_for_asks_for_the_secret(
    running: InProcessCluster, operator: Operator, command: tuple[str, ...]
) -> None:
    operator.new_topic((0, 1))
    with pytest.raises(ConfigError) as refused:
        _command(running, *command)
    said = str(refused.value)
    assert "give its secret too, as cluster.secret in the file of --command-config" in said
    assert "it is in the file cluster.secret of each disk" in said and "\n" not in said


def test_with_the_secret_actors_are_listed_added_filled_and_retired(operator: Operator, trusted: Outside) -> None:
    topic = operator.new_topic((1, 2))

    def of_broker() -> dict[int, dict[str, Any]]:
        return {each["actor"]: each for each in trusted("actors", "list") if each["broker"] == 1}

    before = of_broker()
    added = trusted("actors", "add", "--broker", "1")["actor"]
    operator.until(lambda: added not in before and of_broker().get(added, {}).get("state") == "live")
    moved = trusted("actors", "move", f"{topic}-0", "--broker", "1", "--to", str(added))
    assert moved == {"topic": topic, "partition": 0, "broker": 1, "actor": added}
    assert of_broker()[added]["replicas"] == 1
    assert [each["topic"] for each in trusted("actors", "retire", str(added))["moved"]] == [topic]


def test_with_the_secret_a_broker_is_drained_and_leads_again(operator: Operator, trusted: Outside) -> None:
    topic = operator.new_topic((1, 2))
    assert {"topic": topic, "partition": 0} in trusted("brokers", "drain", "1")["moved"]
    assert operator.partition(topic).leader == 2
    assert [each["broker"] for each in trusted("brokers", "list") if each["draining"]] == [1]
    assert trusted("brokers", "undrain", "1") == {"broker": 1, "draining": False}
    assert not [each for each in trusted("brokers", "list") if each["draining"]]
    assert sorted(each["broker"] for each in trusted("brokers", "rebalance")["brokers"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["outside", "trusted"])
def test_replicas_are_compared_and_a_follower_that_differs_is_named(
    operator: Operator, request: pytest.FixtureRequest, way: str
) -> None:
    verify: Outside = request.getfixturevalue(way)
    topic, compacted = operator.new_topic((0, 1, 2)), operator.new_topic((2, 1), **{"cleanup.policy": "compact"})
    write(operator, topic)
    found = verify("verify", topic, compacted)
    assert found["identical"] and found["first_difference"] is None
    assert sorted(found["partitions"][-1 if topic > compacted else 0]["compared_brokers"]) == [0, 1, 2]
    assert sum(each["records"] for each in found["partitions"]) == 200
    alter_a_value(operator, topic, broker=1)
    found = verify("verify", topic, code=1)
    assert found["first_difference"]["brokers"] == [1], "the leader answered in its place"


def test_with_the_secret_a_copy_that_differs_is_repaired(operator: Operator, trusted: Outside) -> None:
    topic = operator.new_topic((0, 1, 2))
    write(operator, topic)
    alter_a_value(operator, topic, broker=2)
    found = trusted("verify", topic, "--repair")
    assert found["identical"] and [each["broker"] for each in found["repairs"]] == [2]


def test_without_the_secret_replicas_are_spread_and_a_broker_is_emptied_and_forgotten(
    operator: Operator, running: InProcessCluster, outside: Outside
) -> None:
    topics = [operator.new_topic((1, 2), (2, 1), min_insync_replicas=1) for _ in range(3)]
    for topic in topics:
        write(operator, topic)
    planned = json.loads(_command(running, "brokers", "rebalance", "--dry-run").stdout)["partitions"]
    result = _command(running, "brokers", "rebalance", "--json")
    assert "Which brokers are being drained is not known here: all count, 0,1,2,3" in result.stderr
    moved = json.loads(result.stdout)
    assert planned and moved["moved"] == planned
    assert sorted(each["broker"] for each in moved["brokers"]) == [0, 1, 2, 3]
    loaded = operator.new_topic((3, 1), (1, 3), min_insync_replicas=1)
    with Load(operator, loaded) as load:
        operator.until(lambda: len(load.acked) > 50)
        removed = outside("brokers", "remove", "3", "--timeout", "60")
    assert removed["unregistered"] and {loaded} <= {each["topic"] for each in removed["moved"]}
    assert load.errors == [] and sorted(load.read_back()) == load.acked
    assert [each["broker"] for each in outside("brokers", "list")] == [0, 1, 2]
    assert operator.folders(loaded) and not [each for each in operator.folders(loaded) if each.startswith("3/")]
    with pytest.raises(ClusterError, match="controller lives on broker 0"):
        outside("brokers", "remove", "0")


def test_with_the_secret_a_broker_is_emptied_and_forgotten_and_a_controller_moved(
    operator: Operator, running: InProcessCluster, trusted: Outside
) -> None:
    topic = operator.new_topic((2, 1))
    removed = trusted("brokers", "remove", "2", "--timeout", "60")
    assert removed["unregistered"] and all(2 not in part.replicas for part in operator.partitions(topic))
    moved = trusted("quorum", "move", "--brokers", "1")
    assert moved["before"] == [0] and moved["controllers"] == [1]
    operator.until(lambda: sorted(running.controllers) == [1])


def test_a_cluster_is_stopped_by_who_has_its_secret(tmp_path: Path) -> None:
    with cluster(brokers=1) as own:
        with pytest.raises(ConfigError, match=r"shutting a cluster down.*cluster\.secret"):
            _command(own, "down")
        file = tmp_path / "secret.properties"
        file.write_text(f"cluster.secret={(own.folder / 'broker-0' / 'cluster.secret').read_text().strip()}\n")
        told = json.loads(_command(own, "down", "--json", "--command-config", str(file)).stdout)
        assert told == {"cluster_id": own.address.cluster_id, "ray_ended": False}
        with pytest.raises(RaylogError):
            raylog.connect(bootstrap_servers=own.bootstrap_servers(), timeout_s=1)
