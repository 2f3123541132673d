"""``raylog leader-election`` against real servers."""

from __future__ import annotations

import json

import pytest
from kio.schema.errors import ErrorCode

from raylog.cli.leader_election import partitions_of
from raylog.errors import ConfigError, kafka_error
from raylog.types import TopicPartition

pytestmark = pytest.mark.core


def crash_leader(operator, topic):
    """The partition's leader dies, another leads, and the first is in sync again."""
    first = operator.partition(topic)
    operator.running.crash(first.leader_node)
    operator.until(lambda: operator.partition(topic).leader not in (-1, first.leader))
    operator.until(lambda: set(operator.partition(topic).isr) == set(first.replicas))


def test_leadership_returns_to_the_preferred_replica_by_hand(operator, raylog):
    topic = operator.new_topic((1, 2, 3))
    crash_leader(operator, topic)
    code, text = raylog("leader-election", "--election-type", "PREFERRED", "--topic", topic, "--partition", "0")
    assert (code, text) == (0, f"Successfully completed leader election (PREFERRED) for partitions {topic}-0\n")
    operator.until(lambda: operator.partition(topic).leader == 1)
    code, text = raylog("leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert (code, text) == (0, f"Valid replica already elected for partitions {topic}-0\n")


def test_all_partitions_are_elected_at_once_and_json_says_which(operator, raylog):
    topic = operator.new_topic((1, 2, 3))
    crash_leader(operator, topic)
    code, said = raylog("leader-election", "--election-type", "preferred", "--all-topic-partitions", "--json")
    assert code == 0 and {"topic": topic, "partition": 0} in said["elected"] and not said["failed"]


def test_what_cannot_be_elected_fails_with_its_reason(operator, raylog, tmp_path):
    path = tmp_path / "partitions.json"
    path.write_text(json.dumps({"partitions": [{"topic": "nowhere", "partition": 3}]}))
    code, text = raylog("leader-election", "--election-type", "unclean", "--path-to-json-file", str(path))
    assert code == 1
    assert text == (
        "Error completing leader election (UNCLEAN) for partition: nowhere-3: there is no partition nowhere-3\n"
    )
    results = operator.admin.elect_leaders([TopicPartition("nowhere", 3)], kind="unclean")
    error = results[TopicPartition("nowhere", 3)]
    assert isinstance(error, kafka_error(ErrorCode.unknown_topic_or_partition))


def test_an_election_has_to_name_its_partitions_in_one_way(raylog):
    assert raylog("leader-election", "--election-type", "preferred")[0] == 2
    assert raylog("leader-election", "--election-type", "preferred", "--topic", "t")[0] == 2
    both = ("--all-topic-partitions", "--topic", "t", "--partition", "0")
    assert raylog("leader-election", "--election-type", "preferred", *both)[0] == 2


def test_a_file_that_names_no_partitions_is_refused():
    for text in ("", "[]", '{"partitions": [{"topic": "t"}]}', '{"partitions": 3}'):
        with pytest.raises(ConfigError):
            partitions_of(text)
