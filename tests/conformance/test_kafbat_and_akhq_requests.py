"""What Kafbat UI and AKHQ ask of a cluster, by the Java clients that they are built on, with the same calls and options.

Neither program is run: they are not in the registries that the tests fetch from. ``KafbatRequests.java`` and ``AkhqRequests.java`` ask
what their pages ask, and print each answer; the cases here hold the answers against what Apache Kafka's brokers give to the same program.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authorized import set_configs
from kafka_peer import apache_kafka

from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent
BROKERS = [0, 1, 2]
Answers = dict[str, Any]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """With an authorizer that lets everybody do everything, and with two disks per broker."""
    with cluster(brokers=3, disks=2) as found:
        set_configs(found, super_users="User:ANONYMOUS", group_initial_rebalance_delay_ms="0")
        yield found


def answers(running: InProcessCluster, program: str, version: str) -> Answers:
    """By question. ``version``: of the clients."""
    kafka = apache_kafka()
    options = ("-XX:TieredStopAtLevel=1",)  # it is over before better code would pay
    command = kafka.java_command(str(HERE / program), running.bootstrap_servers(), version=version, jvm_options=options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
    return {name: json.loads(answer) for name, answer in lines}


@pytest.fixture(scope="module", params=["3.9.1", "4.3.0"])
def kafbat(running: InProcessCluster, request: pytest.FixtureRequest) -> Answers:
    return answers(running, "KafbatRequests.java", request.param)


@pytest.fixture(scope="module")
def akhq(running: InProcessCluster) -> Answers:
    return answers(running, "AkhqRequests.java", "3.9.1")


def parts(*offsets: Any, topic: str = "kafbat") -> dict[str, Any]:
    return {f"{topic}-{number}": offset for number, offset in enumerate(offsets) if offset is not None}


def errors(found: Answers, *names: str) -> list[str]:
    return [found[name]["error"] for name in names]


# ------------------------------------------------------------------ Kafbat UI


def test_kafbat_finds_every_feature_that_it_looks_for(kafbat: Answers) -> None:
    """It takes the version from ``metadata.version``: 7 is 3.3, and 2.6 has all it knows. To edit ACLs takes ALTER of the cluster."""
    told = kafbat["features"]
    assert told["metadata.version"] == 7 and told["delete.topic.enable"] == "true" and told["acls"] == 0
    about = kafbat["cluster"]
    assert about["nodes"] == BROKERS and about["controller"] in BROKERS and len(about["id"]) == 22
    assert about["may"] == [
        "ALTER",
        "ALTER_CONFIGS",
        "CLUSTER_ACTION",
        "CREATE",
        "DESCRIBE",
        "DESCRIBE_CONFIGS",
        "IDEMPOTENT_WRITE",
    ]
    assert kafbat["quorum"]["leader"] == 0 and kafbat["quorum"]["voters"] == [0] and kafbat["quorum"]["end"] > 0


def test_kafbat_shows_and_changes_a_brokers_configs(kafbat: Answers) -> None:
    found = kafbat["broker configs"]
    assert len(found) > 100
    value, source, kind, read_only, sensitive, *_ = found["log.retention.ms"]
    assert (value, source, kind, read_only, sensitive) == ("604800000", "DEFAULT_CONFIG", "LONG", False, False)
    assert found["broker.id"][:4] == [str(kafbat["cluster"]["controller"]), "STATIC_BROKER_CONFIG", "INT", True]
    assert kafbat["set log.retention.ms of a broker to 8640000"] == ["8640000", "DYNAMIC_BROKER_CONFIG"]
    refused = [kafbat["set node.id of a broker to 77"], kafbat["set log.retention.ms of a broker to soon"]]
    assert [each["error"] for each in refused] == ["InvalidRequestException"] * 2  # others it takes for its own fault
    assert "fixed when a broker starts" in refused[0]["message"] and "is no long" in refused[1]["message"]
    assert {"root", "raylog.controller", "raylog.replica"} <= set(kafbat["broker loggers"])


def test_kafbat_makes_a_topic_and_grows_it(kafbat: Answers) -> None:
    made, grown = kafbat["create topic"], kafbat["increase partitions"]
    part = {"leads": True, "replicas": BROKERS, "isr": BROKERS}
    assert made["partitions"] == [part] * 2 and grown["partitions"] == [part] * 3
    assert made["id"] == grown["id"] and not made["internal"]
    assert "kafbat" in kafbat["list topics"]
    assert errors(kafbat, "create topic again", "describe an unknown topic", "decrease partitions") == [
        "TopicExistsException",
        "UnknownTopicOrPartitionException",
        "InvalidPartitionsException",
    ]


def test_kafbat_shows_and_changes_a_topics_configs(kafbat: Answers) -> None:
    found = kafbat["topic configs"]
    assert len(found) >= 31 and all(documented for *_, documented, _ in found.values())
    assert found["retention.ms"] == [
        "86400000",
        "DYNAMIC_TOPIC_CONFIG",
        "LONG",
        False,
        False,
        True,
        ["DYNAMIC_TOPIC_CONFIG:retention.ms=86400000", "DEFAULT_CONFIG:log.retention.ms=604800000"],
    ]
    assert found["max.message.bytes"][-1] == ["DEFAULT_CONFIG:message.max.bytes=1048588"]
    assert kafbat["update topic"] == {"max.message.bytes": "2000000", "retention.ms": "7200000"}
    assert errors(kafbat, "configs of an unknown topic") == ["UnknownTopicOrPartitionException"]


def test_kafbat_sends_and_browses_messages(kafbat: Answers) -> None:
    def message(partition: int, offset: int) -> str:
        number = 3 * offset + partition
        return f"{partition}-{offset} {1000 * number} k{number} v{number} [number={number}]"

    last = "0-10 30000 null null []"
    assert kafbat["send a message"] == [0, 10, 30000] and kafbat["partitions for browsing"] == [0, 1, 2]
    assert kafbat["earliest messages"] == [message(part, offset) for part in range(3) for offset in range(4)]
    newest = [last, *(message(0, offset) for offset in (7, 8, 9))]
    newest += [message(part, offset) for part in (1, 2) for offset in (6, 7, 8, 9)]
    assert kafbat["latest messages"] == sorted(newest)
    assert kafbat["messages from an offset"] == [message(1, offset) for offset in (6, 7, 8)]
    late = [last, message(0, 9), message(1, 8), message(1, 9), message(2, 8), message(2, 9)]
    assert kafbat["messages from a timestamp"] == sorted(late) and kafbat["messages from a timestamp to come"] == []
    assert kafbat["tailing"] == [0, "2-10 31000 null tail []"]
    assert kafbat["an offset past the end"] == "{kafbat-0=500}"
    producer = [[0, 10, 30000, False]], [[0, 9, 28000, False]], [[0, 9, 29000, False]]
    assert kafbat["producers of a topic"] == parts(*producer)  # epoch, sequence, time, whether in a transaction


def test_kafbat_shows_groups_with_their_states_types_and_offsets(kafbat: Answers) -> None:
    assert kafbat["list groups"]["kafbat-readers"] == ["Stable", "Classic", False]
    active, empty = kafbat["describe an active group"], kafbat["describe an empty group"]
    assert active == {
        "state": "Stable",
        "assignor": "range",
        "simple": False,
        "members": [["member", "/127.0.0.1", 3]],
        "coordinator": True,
    }
    assert (empty["state"], empty["members"]) == ("Empty", [])
    assert kafbat["committed offsets"] == parts(4, 10)
    assert kafbat["committed offsets of partitions"] == parts(4, None, "none")
    assert kafbat["committed offsets of two groups"] == {"kafbat-readers": 2, "no-such-group": 0}
    unknown = kafbat["describe an unknown group"]  # Kafka 4's clients are told, older ones see it dead
    assert unknown.get("state") == "Dead" or unknown["error"] == "GroupIdNotFoundException"


def test_kafbat_resets_and_deletes_groups_that_nobody_is_in(kafbat: Answers) -> None:
    assert errors(
        kafbat,
        "reset an active group",
        "delete offsets of an active group",
        "delete an active group",
        "delete an unknown group",
    ) == [
        "UnknownMemberIdException",
        "GroupSubscribedToTopicException",
        "GroupNotEmptyException",
        "GroupIdNotFoundException",
    ]
    assert kafbat["reset to EarliestSpec"] == parts(0, 0, 0) and kafbat["reset to LatestSpec"] == parts(11, 10, 11)
    assert kafbat["reset to TimestampSpec"] == parts(9, 8, 8) and kafbat["reset to MaxTimestampSpec"] == parts(
        10, 9, 10
    )
    assert kafbat["delete offsets of a topic"] == {} and kafbat["delete a group"] == {}


def test_kafbat_shows_disks_and_moves_a_replica_to_another(kafbat: Answers) -> None:
    shown = kafbat["log dirs"]
    assert [dirs for dirs, *_ in shown] == [2, 2, 2] and all(spaces for *_, spaces in shown)
    assert len({size for _, size, _ in shown}) == 1 and shown[0][1] > 0
    assert kafbat["move to another log dir"] == 0
    assert errors(kafbat, "move to an unknown log dir", "move an unknown topic") == [
        "LogDirNotFoundException",
        "UnknownTopicOrPartitionException",
    ]


def test_kafbat_makes_finds_and_deletes_acls(kafbat: Answers) -> None:
    made = ["acl- (principal=User:kafbat, host=*, operation=READ, permissionType=ALLOW)"]
    assert kafbat["list acls, ANY"] == made and kafbat["list acls, MATCH"] == made and kafbat["delete acls"] == 1


def test_kafbat_sets_shows_and_removes_quotas(kafbat: Answers) -> None:
    of_user = {"{client-id=ui, user=kafbat}": {"producer_byte_rate": 1e6, "request_percentage": 50.0}}
    assert kafbat["set quotas"] == of_user | {"{user=null}": {"consumer_byte_rate": 2e6}}
    assert kafbat["quotas of a user"] == of_user and kafbat["remove quotas"] == {}
    assert errors(kafbat, "an unknown quota") == ["InvalidRequestException"]


def test_kafbat_changes_replicas_and_deletes_messages_and_topics(kafbat: Answers) -> None:
    assert [each["replicas"] for each in kafbat["replication factor"]["partitions"]] == [BROKERS] * 3
    assert all(each["leads"] for each in kafbat["replication factor"]["partitions"])
    assert kafbat["delete messages"] == parts(11, 10, 11)
    assert kafbat["recreate topic"] == [False, parts(0, 0, 0)] and kafbat["delete topic"] is False
    assert errors(
        kafbat, "a replica on an unknown broker", "delete messages past the end", "delete an unknown topic"
    ) == [
        "InvalidReplicaAssignmentException",
        "OffsetOutOfRangeException",
        "UnknownTopicOrPartitionException",
    ]


# ------------------------------------------------------------------ AKHQ


def test_akhq_makes_topics_and_writes_all_configs_anew(akhq: Answers) -> None:
    assert akhq["create topic"] == [2, 3, None] and akhq["list topics"]["akhq"] == [False, False]
    own = {"retention.ms": "86400000", "cleanup.policy": "delete"}
    minimum = {name: value for name, value in akhq["update a new topic"].items() if name == "min.insync.replicas"}
    assert akhq["update a new topic"] == own | minimum
    assert akhq["update a topic again"] == own | minimum | {"retention.ms": "3600000"}
    assert errors(akhq, "update a topic wrongly") == ["InvalidConfigurationException"]
    assert (
        akhq["update a broker"]["log.cleaner.backoff.ms"] == "14000" and akhq["configs of all brokers"] == ["true"] * 3
    )
    assert "log.cleaner.backoff.ms" not in akhq["update a broker back"]


def test_akhq_writes_and_finds_records(akhq: Answers) -> None:
    assert akhq["produce"] == [5, -1]  # the last one has no value
    assert akhq["offsets"] == [parts(0, 0, topic="akhq"), parts(5, 6, topic="akhq")]
    headers = "of=akhq,none=null"
    last = [f"0-3 k6 v6 {headers}", f"0-4 k8 v8 {headers}", f"1-4 k9 v9 {headers}", "1-5 k1 null "]
    assert akhq["last records"] == last and akhq["a single record"] == [f"1-3 k7 v7 {headers}"]
    assert akhq["offsets for a time"] == parts(3, "none", topic="akhq")


def test_akhq_commits_for_groups_that_nobody_is_in(akhq: Answers) -> None:
    assert akhq["commit for a group that is not there"] == parts(2, topic="akhq")
    assert akhq["describe a group of commits"] == ["Empty", True, 0, 0]
    assert akhq["describe an active group"] == ["Stable", False, 1, 2]
    assert errors(akhq, "commit for an active group", "delete offsets of an active group") == [
        "CommitFailedException",
        "GroupSubscribedToTopicException",
    ]
    assert akhq["commit for an empty group"] == parts(3, topic="akhq")
    assert akhq["delete offsets, of partitions without any too"] == 0 and "akhq-readers" not in akhq["delete the group"]


def test_akhq_finds_acls_by_user_and_by_topic(akhq: Answers) -> None:
    assert akhq["acls of a user"] == ["LITERAL User:one", "PREFIXED User:one"] and akhq["acls of a user, groups"] == []
    both = [f"{pattern} User:{user}" for pattern in ("LITERAL", "PREFIXED") for user in ("one", "two")]
    assert akhq["acls of a topic"] == both and akhq["all acls"] == []


def test_akhq_empties_and_deletes_topics(akhq: Answers) -> None:
    assert akhq["empty a topic by time"] == parts(3, 3, topic="akhq")
    assert akhq["empty a topic"] == parts(5, 6, topic="akhq")
    assert akhq["offsets of an emptied topic"] == [parts(5, 6, topic="akhq")] * 2
    assert akhq["log dirs"] == [f"akhq-{number} 0 false" for number in (0, 1) for _ in BROKERS]
    assert akhq["delete topic"] is False
