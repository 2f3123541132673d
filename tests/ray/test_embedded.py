"""The embedded cluster on real Ray processes: start, use, death of each kind of server, full stop and start."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
import ray
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kill, partition_of, pid_of

import raylog
from raylog import NewTopic, TopicPartition
from raylog.actors.ray_launcher import RayLauncher
from raylog.configs.metrics_configs import METRICS_RAY_INTERVAL
from raylog.disks.disk import Disk, format_disk, with_controllers
from raylog.disks.embedded import prepare_disks
from raylog.disks.quorum_disks import quorum_disks
from raylog.embedded_controllers import launch
from raylog.errors import ClusterError, ConfigError
from raylog.launcher import LauncherProcess
from raylog.metrics import table
from raylog.metrics.metric import Metric
from raylog.server.spec import ServerSpec, new_incarnation
from raylog.starting import Start
from raylog.types import Endpoint, node_id

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def events(embedded: raylog.Cluster) -> str:
    """A topic of two partitions with three replicas each, all in sync."""
    embedded.admin().create_topics([NewTopic("events", 2, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(embedded, "events"), "all replicas of events in sync")
    return "events"


def values_of(cluster: raylog.Cluster, topic: str, partition: int, count: int) -> list[bytes | None]:
    with cluster.consumer() as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        eventually(
            lambda: (
                found.extend(record.value for record in consumer.consume(count, timeout=1.0)) or len(found) >= count
            ),
            f"{count} records of {topic}-{partition}",
        )
        return found


def test_a_process_that_comes_up_slowly_on_a_busy_machine_is_not_killed_after_a_minute(
    embedded: raylog.Cluster,
) -> None:
    (raylet,) = [each for each in psutil.Process().children(recursive=True) if each.name() == "raylet"]
    assert float(raylet.environ()["RAY_worker_register_timeout_seconds"]) >= 180


def test_records_come_back_in_order(embedded: raylog.Cluster, events: str) -> None:
    sent = [b"%d" % number for number in range(5_000)]
    with embedded.producer(acks="all") as producer:
        producer.send_batch(events, sent, partition=1).result(60)
    assert values_of(embedded, events, 1, len(sent))[-len(sent) :] == sent


def test_kafka_clients_are_served_by_each_brokers_listener(embedded: raylog.Cluster, events: str) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
    from confluent_kafka import TopicPartition as KafkaPartition

    servers = embedded.bootstrap_servers()
    assert len(servers.split(",")) == 3
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(1_000):
        producer.produce(events, b"kafka %d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([KafkaPartition(events, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []

    def all_there() -> bool:
        found.extend(message.value() or b"" for message in consumer.consume(1_000, 0.5) if message.error() is None)
        return sum(value.startswith(b"kafka ") for value in found) >= 1_000

    eventually(all_there, "what was produced")
    consumer.close()
    assert [value for value in found if value.startswith(b"kafka ")] == [b"kafka %d" % n for n in range(1_000)]


def rays_metrics(name: str) -> dict[str, float]:
    """What Ray's own Prometheus would find at all nodes of a metric, by its labels as they are written."""
    found: dict[str, float] = {}
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with suppress(OSError), urlopen(url, timeout=PATIENCE_S) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name}{{"):
                    labels, _, value = line.removeprefix(name).rpartition(" ")
                    found[labels] = found.get(labels, 0) + float(value)
    return found


def test_rays_own_prometheus_finds_the_brokers_metrics(embedded: raylog.Cluster) -> None:
    embedded.admin().create_topics([NewTopic("watched", 1, 3)])
    eventually(lambda: isr_is_whole(embedded, "watched"), "all replicas of watched in sync")
    embedded.admin().alter_configs(broker="all", set={METRICS_RAY_INTERVAL: "500"})

    def shown(metric: Metric, *given: str, part: str = "") -> list[float]:
        series = rays_metrics(f"ray_{metric.name}{part}")
        return [value for labels, value in series.items() if all(each in labels for each in given)]

    try:
        for sent in (10, 37):
            with embedded.producer(acks="all") as producer:
                producer.send_batch("watched", [b"v"] * (sent if sent == 10 else 27), partition=0).result(60)
            eventually(
                lambda sent=sent: sum(shown(table.MESSAGES_IN, 'topic="watched"')) == sent,
                f"Ray to show {sent} records",
            )
        eventually(lambda: len(shown(table.LEADERS, 'broker="')) == 3, "a gauge of each broker")
        assert sum(shown(table.LOG_END_OFFSET, 'topic="watched"', 'partition="0"')) == 3 * 37
        produced = shown(table.TOTAL_TIME, 'request="Produce"', 'le="+Inf"', part="_bucket")
        assert produced and sum(produced) == sum(shown(table.TOTAL_TIME, 'request="Produce"', part="_count")) >= 2
    finally:
        embedded.admin().alter_configs(broker="all", delete=[METRICS_RAY_INTERVAL])


def test_init_again_returns_the_same_cluster(embedded: raylog.Cluster) -> None:
    assert embedded.folder is not None
    assert raylog.init(embedded.folder) is embedded


def test_init_sets_the_brokers_configs_of_a_new_cluster_and_of_one_that_runs(embedded: raylog.Cluster) -> None:
    assert embedded.folder is not None
    found = embedded.admin().describe_configs(broker="all", keys=["log.roll.ms", "num.partitions"])
    assert (found["log.roll.ms"].value, found["log.roll.ms"].source.name) == ("86400000", "STATIC_BROKER")
    with pytest.raises(ConfigError, match=r"num\.partitions=0"):
        raylog.init(embedded.folder, configs={"num.partitions": 0})
    started_with = {"log.roll.ms": 86_400_000}
    assert raylog.init(embedded.folder, configs={**started_with, "num.partitions": 2}) is embedded
    assert raylog.init(embedded.folder) is embedded, "who says nothing changes nothing"
    try:
        embedded.admin().create_topics([NewTopic("unsaid")])
        topic = embedded.admin().describe_topics(["unsaid"])["unsaid"]
        assert [len(each.replicas) for each in topic.partitions] == [3, 3]
    finally:
        assert raylog.init(embedded.folder, configs=started_with) is embedded
    found = embedded.admin().describe_configs(broker="all", keys=["log.roll.ms", "num.partitions"])
    assert {name: entry.source.name for name, entry in found.items()} == {
        "log.roll.ms": "STATIC_BROKER",
        "num.partitions": "DEFAULT",
    }


def test_connect_finds_the_cluster_through_ray_and_through_its_folder(embedded: raylog.Cluster) -> None:
    assert raylog.connect().status()["cluster_id"] == embedded.address.cluster_id
    assert raylog.connect(folder=embedded.folder).status()["cluster_id"] == embedded.address.cluster_id


def test_connecting_to_a_cluster_whose_controller_has_stopped_is_an_error_that_names_it(
    embedded: raylog.Cluster,
) -> None:
    controller = embedded.status()["controller"]["pid"]
    os.kill(controller, signal.SIGSTOP)
    try:
        with pytest.raises(
            ClusterError, match=r"the cluster on the Ray at .* does not answer \(raylog:controller:.* within 4 s"
        ):
            raylog.connect(timeout_s=4)  # a busy machine asks Ray first
        with pytest.raises(ClusterError, match=r"the cluster under .* does not answer .* within") as refused:
            raylog.connect(folder=embedded.folder, timeout_s=1)
        assert str(embedded.address.bootstrap[0]) in str(refused.value)
    finally:
        os.kill(controller, signal.SIGCONT)
    eventually(embedded.status, "it goes on")


def test_server_processes_are_no_nicer_than_ray_itself(embedded: raylog.Cluster, events: str) -> None:
    def niceness_by_pid() -> dict[int, int]:
        """Of every server actor, while all are live. On a slow machine one may end after it was listed: ask again."""
        actors = embedded.status()["actors"]
        if any(each["state"] != "live" for each in actors):
            return {}
        try:
            return {each["pid"]: os.getpriority(os.PRIO_PROCESS, each["pid"]) for each in actors}
        except ProcessLookupError:
            return {}

    found = eventually(niceness_by_pid, "every server actor is live")
    assert found == dict.fromkeys(found, os.nice(0))


def test_handles_work_inside_tasks_and_actors(embedded: raylog.Cluster, events: str) -> None:
    @ray.remote(num_cpus=0)
    def produce(producer: Any) -> int:
        offset: int = producer.send("events", b"from a task", partition=0).result(60).offset
        return offset

    @ray.remote(num_cpus=0)
    class Reader:
        def __init__(self, cluster: raylog.Cluster) -> None:
            self.consumer = cluster.consumer()

        def read(self, offset: int) -> bytes | None:
            self.consumer.assign([TopicPartition("events", 0)])
            self.consumer.seek(TopicPartition("events", 0), offset)
            while True:
                found = self.consumer.consume(1, timeout=1.0)
                if found:
                    value: bytes | None = found[0].value
                    return value

    offset = ray.get(produce.remote(embedded.producer()))
    reader = Reader.remote(embedded)
    assert ray.get(reader.read.remote(offset), timeout=PATIENCE_S) == b"from a task"


def test_a_killed_leader_is_replaced_at_once_and_comes_back(embedded: raylog.Cluster, events: str) -> None:
    before = partition_of(embedded, events)
    with embedded.producer(acks="all") as producer:
        first = producer.send(events, b"before", partition=0).result(60).offset
        kill(pid_of(embedded, before["leader_node"]))
        second = producer.send(events, b"after", partition=0).result(60).offset
    assert second > first
    after = partition_of(embedded, events)
    assert after["leader_epoch"] > before["leader_epoch"] and after["leader"] != before["leader"]
    eventually(lambda: isr_is_whole(embedded, events), "the killed replica back in sync")
    assert before["leader"] in partition_of(embedded, events)["isr"]


def test_a_killed_broker_process_comes_back(embedded: raylog.Cluster) -> None:
    before = next(actor for actor in embedded.status()["actors"] if actor["kind"] == "broker")
    kill(before["pid"])

    def back() -> bool:
        now = next(actor for actor in embedded.status()["actors"] if actor["node_id"] == before["node_id"])
        return bool(now["state"] == "live" and now["pid"] != before["pid"])

    eventually(back, "the broker's process started anew")


def test_a_process_that_dies_before_the_controller_knows_it_is_a_failed_start(embedded: raylog.Cluster) -> None:
    assert embedded.folder is not None
    disk = format_disk(
        embedded.folder / "alone",
        cluster_id=embedded.address.cluster_id,
        broker_id=9,
        rack=None,
        controllers=[Endpoint("127.0.0.1", 1)],  # nobody listens there
        secret="a secret of this test",
    )
    spec = ServerSpec(node_id(9, 2), disk.directory_id, str(disk.path), "127.0.0.1", new_incarnation())

    def waiting() -> int | None:
        """Its process, once it listens and waits for a controller to know it."""
        found = psutil.Process().children(recursive=True)
        return next((each.pid for each in found if _title(each.pid) == "ray::PartitionReplicaActor.joined"), None)

    assert all(actor["state"] == "live" for actor in embedded.status()["actors"]), "nobody else waits"
    with ThreadPoolExecutor(1) as threads:
        launched = threads.submit(RayLauncher("127.0.0.1").launch, "replica", spec)
        kill(eventually(waiting, "the actor has started"))
        with pytest.raises(ray.exceptions.RayActorError):
            launched.result(PATIENCE_S)


def _title(pid: int) -> str:
    """Ray shows there what a process's main thread does: ``ray::Class.method``."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        return ""


def _member_pids(cluster: raylog.Cluster) -> dict[int, int]:
    """Processes of all servers but the controllers, by node id."""
    return {actor["node_id"]: actor["pid"] for actor in cluster.status()["actors"] if actor["state"] == "live"}


def test_a_method_that_never_returns_keeps_every_servers_main_thread(embedded: raylog.Cluster, events: str) -> None:
    """Else Ray would wake it a hundred times a second."""
    pids = _member_pids(embedded)
    assert len(pids) >= 6, "three brokers and three hosts"
    for pid in pids.values():
        eventually(lambda pid=pid: _title(pid).endswith("Actor.serve"), f"process {pid} serves")


def test_sigterm_ends_a_server_whose_main_thread_is_kept(embedded: raylog.Cluster, events: str) -> None:
    host = partition_of(embedded, events)["leader_node"]
    process = psutil.Process(pid_of(embedded, host))
    eventually(lambda: _title(process.pid).endswith("Actor.serve"), "it serves")
    process.terminate()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the process has ended")
    eventually(lambda: _member_pids(embedded).get(host, process.pid) != process.pid, "another process has its place")
    eventually(lambda: isr_is_whole(embedded, events), "and its replicas are in sync")


def test_sigterm_ends_a_controller_whose_servers_live(embedded: raylog.Cluster, events: str) -> None:
    """Ray lets a process that is told to end wait for the calls that it has under way."""
    process = psutil.Process(embedded.status()["controller"]["pid"])
    process.terminate()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the process has ended")
    after = eventually(lambda: _status_or_none(embedded), "the controller started anew")
    assert after["controller"]["pid"] != process.pid
    eventually(lambda: isr_is_whole(embedded, events), "everybody has a session with the new controller")


def test_a_killed_controller_comes_back_and_raises_no_leader_epoch(embedded: raylog.Cluster, events: str) -> None:
    eventually(lambda: isr_is_whole(embedded, events), "all replicas of events in sync")
    embedded.admin().elect_leaders()  # or the controller does so by itself, every few minutes
    before = embedded.status()
    epochs = {part["partition"]: part["leader_epoch"] for part in _parts(before, events)}
    kill(before["controller"]["pid"])
    with embedded.producer(acks="all") as producer:  # an open leader serves on without a controller
        after = eventually(lambda: _status_or_none(embedded), "the controller started anew")
        producer.send(events, b"with the new controller", partition=0).result(60)
    assert after["controller"]["epoch"] > before["controller"]["epoch"]
    eventually(lambda: isr_is_whole(embedded, events), "everybody has a session with the new controller")
    assert {part["partition"]: part["leader_epoch"] for part in _parts(embedded.status(), events)} == epochs


def _parts(status: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    return [part for each in status["topics"] if each["name"] == topic for part in each["partitions"]]


def _status_or_none(cluster: raylog.Cluster) -> dict[str, Any] | None:
    try:
        return cluster.status(timeout_s=2)
    except raylog.errors.RaylogError:
        return None


def test_a_controller_that_has_not_started_in_time_is_named_with_what_ray_has_done(
    embedded: raylog.Cluster, short_folder: Path
) -> None:
    disks = quorum_disks(prepare_disks(short_folder / "late", 1, None), 1)
    where = str(ray.get_runtime_context().gcs_address)

    def launched(disks: list[Disk], still_s: float) -> list[Endpoint]:
        with LauncherProcess(is_loopback=where.startswith("127.")) as launcher:
            return launch(launcher, where, disks, disks, "127.0.0.1", Start(still_s))

    with pytest.raises(
        ClusterError,
        match=r"nothing has moved for 0\.01 s: a controller has not started \(that on .*/late/broker-0: \w+",
    ):
        launched(disks, 0.01)
    [endpoint] = launched(disks, PATIENCE_S)
    with_controllers(disks[0], [endpoint])
    raylog.connect(folder=short_folder / "late").shutdown()


def test_a_full_stop_and_start_keeps_everything(embedded: raylog.Cluster, events: str) -> None:
    with embedded.producer(acks="all") as producer:
        last = producer.send(events, b"the last word", partition=1).result(60).offset
    assert embedded.folder is not None
    folder = embedded.folder
    embedded.shutdown()
    assert not ray.is_initialized()
    again = raylog.init(folder, ray_address="local", timeout_s=120)
    try:
        eventually(lambda: isr_is_whole(again, events), "all replicas of events in sync again")
        with again.consumer() as consumer:
            consumer.assign([TopicPartition(events, 1)])
            consumer.seek(TopicPartition(events, 1), last)
            found = eventually(lambda: consumer.consume(1, timeout=1.0), "the last record")
        assert (found[0].offset, found[0].value) == (last, b"the last word")
    finally:
        again.shutdown()
