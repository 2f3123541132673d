"""raylog's own clients from outside a cluster: by the listeners of its brokers, with no folder, Ray or secret."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Iterable, Iterator

import pytest

import raylog
import raylog.testing
from raylog import TopicPartition
from raylog.client import bootstrap
from raylog.client.bootstrap import endpoints_of
from raylog.client.config import AdminConfig
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import PartitionLeader
from raylog.errors import ClusterError, ConfigError, DisconnectedError
from raylog.testing.kafka import Kafka
from raylog.types import Endpoint, broker_of

PARTITIONS = 3
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(
        topics={"orders": PARTITIONS, "moved": 1, "crashed": 1, "searched": 1}, brokers=3
    ) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(kafka: Kafka) -> raylog.Cluster:
    return raylog.connect(bootstrap_servers=kafka.bootstrap)


def test_what_is_sent_is_read_by_a_group_and_by_position(cluster: raylog.Cluster) -> None:
    values = [b"%d" % number for number in range(2_000)]
    with cluster.producer() as producer:
        producer.send_batch("orders", values, keys=values).result(TIMEOUT_S)
    with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        read: list[raylog.Record] = []
        while len(read) < len(values):
            taken = consumer.consume(len(values), timeout=TIMEOUT_S)
            assert taken, f"{len(read)} records, and then nothing"
            read += taken
        consumer.commit()
    assert sorted(record.value or b"" for record in read) == sorted(values)
    with cluster.admin() as admin:
        committed = admin.list_group_offsets("readers")
    assert sum(each.offset for each in committed.values()) == len(values)
    with cluster.consumer() as consumer:
        consumer.assign([TopicPartition("orders", number) for number in range(PARTITIONS)])
        consumer.seek_to_beginning()
        rows = 0
        while rows < len(values):
            table = consumer.poll_batch(timeout=TIMEOUT_S)
            assert table.num_rows
            rows += table.num_rows
    assert rows == len(values)


def test_topics_are_administered_and_brokers_have_their_names(cluster: raylog.Cluster) -> None:
    with cluster.admin() as admin:
        admin.create_topics([raylog.NewTopic("made", partitions=2, replication_factor=3)])
        made = admin.describe_topics(["made"])["made"]
        assert {part.leader for part in made.partitions} <= {0, 1, 2}
        assert all(sorted(part.replicas) == [0, 1, 2] for part in made.partitions)
        assert [each.broker for each in admin.describe_cluster().brokers] == [0, 1, 2]
        assert sorted(admin.describe_log_dirs()) == [0, 1, 2]
        admin.delete_topics(["made"])
        assert "made" not in admin.list_topics()


def test_any_one_broker_leads_to_all(kafka: Kafka) -> None:
    cluster = raylog.connect(bootstrap_servers=["127.0.0.1:1", kafka.bootstrap.split(",")[2]])
    assert sorted(cluster.bootstrap_servers().split(",")) == sorted(kafka.bootstrap.split(","))
    assert cluster.address.cluster_id == kafka.address.cluster_id
    assert repr(cluster).startswith(f"<raylog cluster {kafka.address.cluster_id} through the brokers at 127.0.0.1:1, ")
    with cluster.admin() as admin:
        admin.describe_topics(["orders"])
    copied: raylog.Cluster = pickle.loads(pickle.dumps(cluster))
    assert {*endpoints_of(kafka.bootstrap)} < {*copied.address.bootstrap}, (
        "not every broker that was named is remembered"
    )
    assert copied.address.is_outside and copied.address.cluster_id == kafka.address.cluster_id


@pytest.mark.parametrize("topic", ["moved", "crashed"])
def test_a_leader_that_changes_costs_and_doubles_nothing(kafka: Kafka, cluster: raylog.Cluster, topic: str) -> None:
    values = [b"%d" % number for number in range(3_000)]
    with cluster.producer(linger_ms=0) as producer:
        halfway = threading.Event()

        def send() -> None:
            for number, value in enumerate(values):
                producer.send(topic, value)
                if number == len(values) // 2:
                    halfway.set()
            producer.flush()

        sender = threading.Thread(target=send)
        sender.start()
        assert halfway.wait(TIMEOUT_S)
        before = kafka.leader(topic)
        after = kafka.move_leader(topic) if topic == "moved" else kafka.crash_leader(topic)
        sender.join(2 * TIMEOUT_S)
        assert not sender.is_alive() and before != after
    assert [record.value for record in kafka.records(topic, count=len(values))] == values
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [record.value for record in consumer.consume(len(values), timeout=TIMEOUT_S)] == values


def test_a_search_ends_with_the_newer_leader_not_with_the_broker_that_still_answers(
    kafka: Kafka, cluster: raylog.Cluster
) -> None:
    key = TopicPartition("searched", 0)

    async def search() -> tuple[PartitionLeader | None, PartitionLeader | None]:
        link = ClusterLink(cluster.address, AdminConfig.parse())
        try:
            failed = (await link.metadata.partition(key)).leader
            assert failed.endpoint is not None
            peer = (await link.connections.get(failed.endpoint)).peer
            await asyncio.to_thread(kafka.move_leader, "searched")
            ended: asyncio.Future[PartitionLeader | None] = asyncio.get_running_loop().create_future()
            link.metadata.search_leader(key, failed, peer=peer, on_end=lambda leader, error: ended.set_result(leader))
            return failed, await asyncio.wait_for(ended, TIMEOUT_S)
        finally:
            await link.close()

    failed, found = asyncio.run(search())
    assert failed is not None and found is not None and found.epoch > failed.epoch
    assert broker_of(found.node) == kafka.leader("searched") != broker_of(failed.node)


def test_what_kafka_has_no_request_for_is_refused_and_says_where_it_works(cluster: raylog.Cluster) -> None:
    inside = (
        r"not possible through the listeners of brokers, which take only Kafka's requests: where all processes of the "
        r"cluster can be reached, give its secret too, as cluster\.secret in the file of --command-config or secret= of "
        r"raylog\.connect\(\) \(it is in the file cluster\.secret of each disk\); or connect on a node of the cluster"
    )
    with pytest.raises(ConfigError, match=inside):
        cluster.status()
    with cluster.admin() as admin:
        with pytest.raises(ConfigError, match=inside):
            admin.drain_broker(1)
        with pytest.raises(ConfigError, match=inside):
            admin.verify_replicas(["orders"], repair=True)
        with pytest.raises(ConfigError, match=f"the request ClusterStatusRequest is {inside}"):
            admin.list_actors()
    with pytest.raises(ConfigError, match=inside):
        cluster.shutdown()
    assert cluster.bootstrap_servers(), "a refused shutdown ended the handle"


def test_who_has_the_secret_goes_to_the_processes_directly(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kafka.address.secret is not None
    secret = kafka.address.secret.decode()
    with caplog.at_level(logging.INFO, "raylog.connect"):
        inside = raylog.connect(bootstrap_servers=kafka.bootstrap, secret=secret)
    assert not inside.address.is_outside and "directly" in caplog.text
    assert inside.address.bootstrap == kafka.address.bootstrap and secret not in repr(inside.address)
    assert len(inside.status()["brokers"]) == 3
    with inside.producer() as producer:
        assert producer.send("orders", b"inside").result(TIMEOUT_S).offset >= 0
    with pytest.raises(ConfigError, match=r"the secret is not that of cluster .*: copy the file cluster\.secret"):
        raylog.connect(bootstrap_servers=kafka.bootstrap, secret="guessed")
    with pytest.raises(ConfigError, match="a secret goes with bootstrap_servers"):
        raylog.connect(folder="x", secret=secret)

    async def unreachable(link: ClusterLink, endpoints: Iterable[Endpoint]) -> None:
        raise DisconnectedError("cannot connect to 10.0.0.1:7: No route to host")

    monkeypatch.setattr(bootstrap, "_connect", unreachable)
    caplog.clear()
    with caplog.at_level(logging.INFO, "raylog.connect"):
        assert raylog.connect(bootstrap_servers=kafka.bootstrap, secret=secret).address.is_outside
    assert "Going through the listeners of the brokers: cannot connect to 10.0.0.1:7" in caplog.text


def test_a_list_of_brokers_is_read_as_kafka_reads_it() -> None:
    assert endpoints_of("a:9092, [::1]:9093,") == (Endpoint("a", 9092), Endpoint("::1", 9093))
    for wrong in ("a", "a:", ":9092", "a:0", "a:70000", "a:9092,b"):
        with pytest.raises(ConfigError, match="is no host:port"):
            endpoints_of(wrong)
    with pytest.raises(ConfigError, match="names no broker"):
        endpoints_of(" ,")
    with pytest.raises(ConfigError, match="give one of the three"):
        raylog.connect(folder="x", bootstrap_servers="a:9092")


def test_an_address_is_a_brokers_if_a_broker_answers_there(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kafka.bootstrap.split(",")[0]
    with caplog.at_level(logging.INFO, "raylog.connect"):
        cluster = raylog.connect(first, client_id="report", options={"request.timeout.ms": 5_000})
    assert cluster.address.is_outside and cluster.address.cluster_id == kafka.address.cluster_id
    assert cluster.options == {"client_id": "report", "request_timeout_ms": 5_000}
    assert caplog.messages == [
        f"Connecting to the brokers at {first} (up to 30 s)…",
        "Going through the listeners of the brokers: no secret of the cluster is given",
    ]
    assert raylog.connect(f"127.0.0.1:1,{first}").address.is_outside
    assert raylog.connect(f"PLAINTEXT://{first}").address.is_outside
    assert kafka.address.secret is not None
    assert not raylog.connect(first, secret=kafka.address.secret.decode()).address.is_outside
    monkeypatch.setattr("raylog.cluster.is_installed", lambda package: False)
    with pytest.raises(ClusterError, match=r"no broker of cluster 'raylog' answers at 127\.0\.0\.1:1"):
        raylog.connect("127.0.0.1:1", timeout_s=1)


def test_an_option_is_given_once_and_one_that_all_clients_have(kafka: Kafka) -> None:
    with pytest.raises(ConfigError, match="client_id is given in options and as a keyword"):
        raylog.connect(kafka.bootstrap, client_id="a", options={"client.id": "b"})
    with pytest.raises(ConfigError, match=r"unknown client option 'linger\.ms'"):
        raylog.connect(kafka.bootstrap, linger_ms=5)
    for given in ({"folder": "x"}, {"ray_address": "a:1"}, {"bootstrap_servers": "a:1"}):
        with pytest.raises(ConfigError, match="give one of the three"):
            raylog.connect("a:9092", **given)


def test_where_no_broker_answers_the_error_names_all_that_were_asked() -> None:
    with pytest.raises(ClusterError, match=r"no broker of cluster 'raylog' answers at 127\.0\.0\.1:1, 127\.0\.0\.1:2"):
        raylog.connect(bootstrap_servers="127.0.0.1:1,127.0.0.1:2", timeout_s=1)
