"""Apache Kafka's own command line tools, that is Java's AdminClient, through the Brokers' listeners: one case per tool."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_peer import apache_kafka
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.log import Log
from raylog.testing.in_process import InProcessCluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.conformance

NewTopicOf = Callable[..., str]
Tool = Callable[..., str]
CONFIGS, QUORUM = "kafka.admin.ConfigCommand", "org.apache.kafka.tools.MetadataQuorumCommand"
TOPICS, OFFSETS = "org.apache.kafka.tools.TopicCommand", "org.apache.kafka.tools.GetOffsetShell"
LEADERS, DELETING = "org.apache.kafka.tools.LeaderElectionCommand", "org.apache.kafka.tools.DeleteRecordsCommand"
REASSIGNING = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LOG_DIRS, TRANSACTIONS = "org.apache.kafka.tools.LogDirsCommand", "org.apache.kafka.tools.TransactionsCommand"
CLUSTER, FEATURES = "org.apache.kafka.tools.ClusterTool", "org.apache.kafka.tools.FeatureCommand"


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """Runs a tool against the cluster; what it printed."""
    kafka = apache_kafka()

    def run(name: str, *arguments: str) -> str:
        printed: str = kafka.tool(name, "--bootstrap-server", bootstrap, *arguments)
        return printed

    return run


@pytest.fixture
def placed(running: InProcessCluster) -> Callable[..., str]:
    """A topic whose partitions have these brokers; its name."""

    def make(name: str, *assignment: tuple[int, ...]) -> str:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic(name, replica_assignment=dict(enumerate(assignment)))])
            eventually(
                lambda: (
                    [part.leader for part in admin.describe_topics(name)[name].partitions]
                    == [brokers[0] for brokers in assignment]
                ),
                "all lead",
            )
        return name

    return make


def write(running: InProcessCluster, topic: str, count: int) -> None:
    with Producer(running.address) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def test_kafka_topics_creates_describes_grows_and_deletes(tool: Tool) -> None:
    made = tool(TOPICS, "--create", "--topic", "tools", "--partitions", "2", "--config", "retention.ms=7000")
    assert "Created topic tools." in made
    tool(TOPICS, "--alter", "--topic", "tools", "--partitions", "3")
    said = tool(TOPICS, "--describe", "--topic", "tools")
    assert "PartitionCount: 3\tReplicationFactor: 3\tConfigs: min.insync.replicas=2,retention.ms=7000" in said
    assert "tools" in tool(TOPICS, "--list").splitlines()
    tool(TOPICS, "--delete", "--topic", "tools")
    assert "tools" not in tool(TOPICS, "--list").splitlines()


def test_kafka_configs_changes_and_shows_a_topic(tool: Tool, new_topic: NewTopicOf) -> None:
    topic = ("--entity-type", "topics", "--entity-name", new_topic())
    added = tool(CONFIGS, *topic, "--alter", "--add-config", "retention.ms=5000,max.message.bytes=2000")
    assert "Completed updating config for topic" in added
    shown = tool(CONFIGS, *topic, "--describe")
    assert "  retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000, " in shown
    assert "DEFAULT_CONFIG:log.retention.ms=604800000}" in shown and shown.count("sensitive=false") == 2
    tool(CONFIGS, *topic, "--alter", "--delete-config", "retention.ms,max.message.bytes")
    assert "sensitive" not in tool(CONFIGS, *topic, "--describe")
    assert tool(CONFIGS, *topic, "--describe", "--all").count("sensitive=false") == 32


def test_kafka_configs_changes_and_shows_brokers(tool: Tool) -> None:
    everybody, one = (
        ("--entity-type", "brokers", "--entity-default"),
        ("--entity-type", "brokers", "--entity-name", "1"),
    )
    tool(CONFIGS, *everybody, "--alter", "--add-config", "log.retention.ms=7000")
    tool(CONFIGS, *one, "--alter", "--add-config", "log.retention.ms=8000")
    assert "  log.retention.ms=7000 sensitive=false" in tool(CONFIGS, *everybody, "--describe")
    shown = tool(CONFIGS, *one, "--describe")
    assert (
        "  log.retention.ms=8000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=8000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7000, DEFAULT_CONFIG:log.retention.ms=604800000}"
    ) in shown
    tool(CONFIGS, *one, "--alter", "--delete-config", "log.retention.ms")
    tool(CONFIGS, *everybody, "--alter", "--delete-config", "log.retention.ms")
    assert "sensitive" not in tool(CONFIGS, *one, "--describe")


def test_kafka_configs_is_told_what_is_refused(tool: Tool) -> None:
    kafka = apache_kafka()
    with pytest.raises(kafka.PeerError, match=r"num\.io\.threads is refused: raylog has no pools of threads"):
        tool(CONFIGS, "--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config", "num.io.threads=4")


@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
def test_kafka_configs_shows_and_sets_levels_of_a_brokers_loggers(bootstrap: str, version: str) -> None:
    kafka, name = apache_kafka(), "raylog.replica"
    of_one = ("--entity-type", "broker-loggers", "--entity-name", "1")

    def configs(*arguments: str) -> str:
        return str(kafka.tool(CONFIGS, "--bootstrap-server", bootstrap, *of_one, *arguments, version=version))

    before = logging.getLogger(name).getEffectiveLevel()
    assert "Completed updating config for broker-logger 1." in configs("--alter", "--add-config", f"{name}=ERROR")
    assert logging.getLogger(name).getEffectiveLevel() == logging.ERROR
    shown = configs("--describe")
    assert f"  {name}=ERROR sensitive=false synonyms={{}}" in shown and "  root=" in shown
    with pytest.raises(kafka.PeerError, match=r"Invalid broker logger\(s\): no.such.logger"):
        configs("--alter", "--add-config", "no.such.logger=ERROR")
    with pytest.raises(kafka.PeerError, match="Valid log levels are"):
        configs("--alter", "--add-config", f"{name}=LOUD")
    configs("--alter", "--delete-config", name)
    assert logging.getLogger(name).getEffectiveLevel() == before


def test_kafka_configs_of_a_group_shows_none_and_says_why_one_cannot_be_set(bootstrap: str) -> None:
    kafka = apache_kafka()
    of_group = ("--entity-type", "groups", "--entity-name", "readers")

    def configs(*arguments: str) -> str:
        return str(kafka.tool(CONFIGS, "--bootstrap-server", bootstrap, *of_group, *arguments, version="4.3.0"))

    assert "sensitive" not in configs("--describe")
    with pytest.raises(kafka.PeerError, match="groups have the classic protocol"):
        configs("--alter", "--add-config", "consumer.session.timeout.ms=50000")


def test_kafka_metadata_quorum_shows_the_controllers(tool: Tool, running: InProcessCluster) -> None:
    status = tool(QUORUM, "describe", "--status")
    assert running.address.cluster_id in status and "LeaderId:               0" in status
    replication = tool(QUORUM, "describe", "--replication").splitlines()
    assert replication[0].split()[0] == "NodeId" and replication[1].split()[0] == "0"
    assert replication[1].split()[-1] == "Leader"


def test_kafka_cluster_names_the_cluster(tool: Tool, running: InProcessCluster, bootstrap: str) -> None:
    kafka = apache_kafka()
    said = kafka.tool(CLUSTER, "cluster-id", "--bootstrap-server", bootstrap)
    assert running.address.cluster_id in said


def test_kafka_get_offsets_and_delete_records(
    tool: Tool, running: InProcessCluster, new_topic: NewTopicOf, tmp_path: Path
) -> None:
    topic = new_topic()
    write(running, topic, 10)
    assert f"{topic}:0:10" in tool(OFFSETS, "--topic", topic)
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
    assert f"partition: {topic}-0\tlow_watermark: 4" in tool(DELETING, "--offset-json-file", str(file))
    assert f"{topic}:0:4" in tool(OFFSETS, "--topic", topic, "--time", "earliest")
    assert f"{topic}:0:4" in tool(OFFSETS, "--topic", topic, "--time", "earliest-local")


def test_kafka_reassign_partitions_moves_and_says_so(
    tool: Tool, running: InProcessCluster, placed: Callable[..., str], tmp_path: Path
) -> None:
    topic = placed("moved", (0, 1))
    write(running, topic, 5)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [2, 1]}]}))
    started = tool(REASSIGNING, "--reassignment-json-file", str(plan), "--execute")
    assert f"Successfully started partition reassignment for {topic}-0" in started
    eventually(
        lambda: (
            f"Reassignment of partition {topic}-0 is completed."
            in tool(REASSIGNING, "--reassignment-json-file", str(plan), "--verify")
        ),
        "completed",
    )
    assert "No partition reassignments found." in tool(REASSIGNING, "--list")


def test_kafka_leader_election_gives_a_partition_back(
    tool: Tool, running: InProcessCluster, placed: Callable[..., str]
) -> None:
    topic = placed("elected", (1, 2))
    with AdminClient(running.address) as admin:
        admin.drain_broker(1)
        eventually(lambda: admin.describe_topics(topic)[topic].partitions[0].leader == 2, "drained")
        admin.undrain_broker(1)
    named = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in tool(LEADERS, *named)
    assert f"Valid replica already elected for partitions {topic}-0" in tool(LEADERS, *named)


def test_kafka_log_dirs_shows_every_brokers_disks(
    tool: Tool, running: InProcessCluster, placed: Callable[..., str]
) -> None:
    topic = placed("on-disks", (0, 1))
    write(running, topic, 5)
    said = tool(LOG_DIRS, "--describe", "--topic-list", topic)
    (found,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    sizes = {
        broker["broker"]: [part["size"] for each in broker["logDirs"] for part in each["partitions"]]
        for broker in found["brokers"]
    }
    assert set(sizes) == {0, 1, 2} and sizes[0] == sizes[1] and sizes[0][0] > 0 and sizes[2] == []
    assert all(each["error"] is None for broker in found["brokers"] for each in broker["logDirs"])


def test_kafka_features_prints_what_raylog_has_and_nothing_that_it_lacks(bootstrap: str) -> None:
    kafka = apache_kafka()
    for version in (kafka.VERSION, kafka.LATEST):
        told = kafka.tool(FEATURES, "--bootstrap-server", bootstrap, "describe", version=version).splitlines()
        assert [each.split() for each in told] == [
            [
                *("Feature:", "metadata.version", "SupportedMinVersion:", "3.3-IV3", "SupportedMaxVersion:", "3.3-IV3"),
                *("FinalizedVersionLevel:", "3.3-IV3", "Epoch:", "0"),
            ],
            [
                *("Feature:", "transaction.version", "SupportedMinVersion:", "0", "SupportedMaxVersion:", "2"),
                *("FinalizedVersionLevel:", "2", "Epoch:", "0"),
            ],
        ]


def test_kafka_transactions_describes_producers(tool: Tool, running: InProcessCluster, new_topic: NewTopicOf) -> None:
    topic = new_topic()
    write(running, topic, 5)
    said = tool(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0").splitlines()
    assert said[0].split() == [
        "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp", "CurrentTransactionStartOffset",
    ]  # fmt: skip
    with AdminClient(running.address) as admin:
        (producer,) = admin.describe_producers([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    assert said[1].split()[:4] == [str(producer.producer_id), "0", "-1", "4"]


def test_dump_log_segments_reads_what_became_of_messages_of_old_formats(tmp_path: Path) -> None:
    golden = Path(__file__).resolve().parents[1] / "records" / "golden" / "message-sets.txt"
    folder = tmp_path / "t-0"
    folder.mkdir()
    sets = [line.split()[3] for line in golden.read_text().splitlines()[1:] if "CreateTime" in line]
    for number, content in enumerate(sets):  # all are of the offsets 100 to 107: each is a log of its own
        segment = folder / f"{100:020d}.log"
        segment.write_bytes(bytes.fromhex(content))
        log = Log.open(
            str(folder),
            files=DiskFiles(),
            config=LogConfig(),
            topic="t",
            partition=0,
            topic_id=uuid.UUID(int=1),
            now_ms=0,
            boot_id="boot",
        )
        assert log.recovery.converted and log.log_end_offset == 108
        log.close()
        said = apache_kafka().dump_log(segment)
        assert said.count("isvalid: true") == said.count("magic: 2") > 0 and said.count("| offset: ") == 4, said
        kept = tmp_path / f"kept-{number}"
        folder.rename(kept)
        folder.mkdir()
