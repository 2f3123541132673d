"""``raylog reassign`` against real servers: replicas move under load, and nobody notices."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from operating import NO_TIMEOUT_MS, Load

from raylog.client.sync import Producer
from raylog.errors import ConfigError, kafka_error
from raylog.types import TopicPartition

pytestmark = pytest.mark.core


@pytest.fixture
def plan(tmp_path):
    """Writes a plan: ``plan({("t", 0): [1, 2]})``; the path."""

    def write(replicas):
        path = Path(tmp_path / "plan.json")
        partitions = [{"topic": t, "partition": p, "replicas": brokers} for (t, p), brokers in replicas.items()]
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return str(path)

    return write


def verified(raylog, path):
    return raylog("reassign", "verify", "--reassignment-json-file", path)[0] == 0


def test_a_whole_partition_moves_under_load_and_its_old_folders_go(operator, raylog, plan):
    topic = operator.new_topic((0, 1), min_insync_replicas=2)
    path = plan({(topic, 0): [2, 3]})
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 200)
        code, text = raylog("reassign", "execute", "--reassignment-json-file", path)
        assert code == 0 and f"Successfully started partition reassignments for {topic}-0" in text
        assert json.dumps([0, 1]) in text, "the current assignment, for the way back"
        operator.until(lambda: verified(raylog, path))
        count = len(load.acked)
        operator.until(lambda: len(load.acked) > count + 200)
    assert load.errors == []
    assert load.read_back() == load.acked
    part = operator.partition(topic)
    assert part.replicas == (2, 3) and part.leader in (2, 3) and set(part.isr) == {2, 3}
    operator.until(lambda: operator.folders(topic) == [f"2/{topic}-0", f"3/{topic}-0"])
    assert max(load.pauses_ms) < NO_TIMEOUT_MS, sorted(load.pauses_ms)[-5:]


def test_the_status_words_are_kafkas(operator, raylog, plan):
    topic = operator.new_topic((0, 1))
    code, text = raylog("reassign", "verify", "--reassignment-json-file", plan({(topic, 0): [0, 1]}))
    assert code == 0 and text.splitlines() == [
        "Status of partition reassignment:",
        f"Reassignment of partition {topic}-0 is completed.",
        "Clearing broker-level throttles on brokers 0,1,2,3",
        f"Clearing topic-level throttles on topic {topic}",
    ]
    code, text = raylog("reassign", "verify", "--reassignment-json-file", plan({(topic, 0): [0, 2]}))
    assert code == 1 and "failed" in text


def test_the_replication_factor_is_raised_and_lowered(operator, raylog, plan):
    topic = operator.new_topic((1,))
    wider = plan({(topic, 0): [1, 2, 3]})
    assert raylog("reassign", "execute", "--reassignment-json-file", wider)[0] == 0
    operator.until(lambda: verified(raylog, wider))
    assert set(operator.partition(topic).isr) == {1, 2, 3}
    narrower = plan({(topic, 0): [3, 2]})
    assert raylog("reassign", "execute", "--reassignment-json-file", narrower)[0] == 0
    operator.until(lambda: verified(raylog, narrower))
    assert operator.partition(topic).leader == 3
    operator.until(lambda: operator.folders(topic) == [f"2/{topic}-0", f"3/{topic}-0"])


def test_what_cannot_finish_is_in_progress_until_it_is_cancelled(operator, raylog, plan):
    topic = operator.new_topic((0, 1), replicas_per_actor="1")
    held = operator.running.launcher.build["replica"]
    operator.running.launcher.build["replica"] = no_server
    try:
        path = plan({(topic, 0): [0, 2]})
        assert raylog("reassign", "execute", "--reassignment-json-file", path)[0] == 0
        code, text = raylog("reassign", "verify", "--reassignment-json-file", path)
        assert code == 1 and f"Reassignment of partition {topic}-0 is still in progress." in text
        code, text = raylog("reassign", "list")
        assert text.endswith(f"{topic}-0: replicas: 0,2,1. adding replicas: 2. removing replicas: 1.\n")
        with pytest.raises(ConfigError, match="existing partition assignment in progress"):
            raylog("reassign", "execute", "--reassignment-json-file", path)
        assert raylog("reassign", "list", "--json")[1][0]["adding_replicas"] == [2]
        code, text = raylog("reassign", "cancel", "--reassignment-json-file", path)
        assert code == 0 and text.startswith(f"Successfully cancelled partition reassignments for: {topic}-0\n")
    finally:
        operator.running.launcher.build["replica"] = held
    assert set(operator.partition(topic).replicas) == {0, 1}
    assert raylog("reassign", "list")[1] == "No partition reassignments found.\n"
    code, text = raylog("reassign", "cancel", "--reassignment-json-file", path)
    assert code == 0 and text.startswith("None of the specified partition reassignments are active.\n")


def no_server(spec):
    raise RuntimeError("this machine has no room")


def test_a_generated_plan_can_be_executed(operator, raylog, tmp_path):
    topic = operator.new_topic((0, 1), (0, 1), (0, 1), (0, 1))
    chosen = tmp_path / "topics.json"
    chosen.write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    arguments = ("reassign", "generate", "--topics-to-move-json-file", str(chosen), "--broker-list", "0,1,2,3")
    code, said = raylog(*arguments, "--json")
    assert code == 0 and said["current"]["partitions"][0]["replicas"] == [0, 1]
    proposed = tmp_path / "proposed.json"
    proposed.write_text(json.dumps(said["proposed"]))
    assert sorted(each["replicas"][0] for each in said["proposed"]["partitions"]) == [0, 1, 2, 3]
    assert raylog("reassign", "execute", "--reassignment-json-file", str(proposed))[0] == 0
    operator.until(lambda: verified(raylog, str(proposed)))
    text = raylog(*arguments)[1]
    assert text.startswith("Current partition replica assignment\n") and "Proposed partition reassignment" in text


def test_refusals_name_the_partition_and_the_reason(operator, raylog, plan):
    topic = operator.new_topic((0, 1))
    code, said = raylog("reassign", "execute", "--reassignment-json-file", plan({(topic, 0): [0, 77]}), "--json")
    assert code == 1 and "broker 77 is unknown" in said["failed"][0]["error"] and said["started"] == []
    results = operator.admin.reassign({TopicPartition(topic, 0): None})
    assert isinstance(results[TopicPartition(topic, 0)], kafka_error(ErrorCode.no_reassignment_in_progress))
    kept = operator.admin.reassign({TopicPartition(topic, 0): [0, 1, 2]}, allow_replication_factor_change=False)
    assert isinstance(kept[TopicPartition(topic, 0)], kafka_error(ErrorCode.invalid_replication_factor))


THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


def throttles_of(operator, topic, broker):
    found = operator.admin.describe_configs(broker=broker) | operator.admin.describe_configs(topic)
    return tuple(None if found[name].is_default else found[name].value for name in THROTTLES)


def test_a_throttled_move_takes_no_less_than_its_rate_allows_and_leaves_no_throttle_behind(operator, raylog, plan):
    topic = operator.new_topic((0, 1))
    size = 1_500_000
    with Producer(operator.running.address, acks="all") as producer:
        for _ in range(size // 10_000):
            producer.send(topic, os.urandom(10_000))
        producer.flush()
    path = plan({(topic, 0): [2, 3]})
    execute = ("reassign", "execute", "--reassignment-json-file", path)
    code, text = raylog(*execute, "--throttle", "1")
    assert code == 0 and "The inter-broker throttle limit was set to 1 B/s" in text
    assert throttles_of(operator, topic, 2) == ("1", "1", "0:0,0:1", "0:2,0:3")
    assert throttles_of(operator, topic, 1)[:2] == ("1", "1")
    assert not verified(raylog, path), "it cannot be done yet"
    assert throttles_of(operator, topic, 2)[0] == "1", "verify leaves the throttle while something moves"
    began = time.monotonic()
    assert raylog(*execute, "--additional", "--throttle", "1000000")[0] == 0
    operator.until(lambda: operator.partition(topic).replicas == (2, 3))
    # The leader sends two copies at 1 MB/s in all; what one second brings may be saved up, and a batch be overdrawn, before and now.
    took_s = time.monotonic() - began
    assert took_s > (2 * size - 1_000_000 - 200_000) / 1e6, f"{took_s:.2f} s: copying was not held back"
    code, text = raylog("reassign", "verify", "--reassignment-json-file", path, "--preserve-throttles")
    assert code == 0 and "Clearing" not in text
    assert throttles_of(operator, topic, 2)[0] == "1000000"
    code, text = raylog("reassign", "verify", "--reassignment-json-file", path)
    assert code == 0 and f"Clearing topic-level throttles on topic {topic}" in text
    assert [throttles_of(operator, topic, broker) for broker in range(4)] == [(None,) * 4] * 4


def test_the_throttle_of_a_move_in_progress_can_be_changed(operator, raylog, plan):
    topic = operator.new_topic((0, 1))
    with Producer(operator.running.address, acks="all") as producer:
        for _ in range(200):
            producer.send(topic, os.urandom(10_000))
        producer.flush()
    path = plan({(topic, 0): [2, 3]})
    arguments = ("reassign", "execute", "--reassignment-json-file", path)
    assert raylog(*arguments, "--throttle", "1")[0] == 0
    with pytest.raises(ConfigError, match="--additional"):
        raylog(*arguments, "--throttle", "100000000")
    assert raylog(*arguments, "--additional", "--throttle", "100000000")[0] == 0
    operator.until(lambda: verified(raylog, path))


def test_a_throttle_below_nothing_is_refused(operator, raylog, plan):
    with pytest.raises(ConfigError, match="--throttle -5"):
        raylog("reassign", "execute", "--reassignment-json-file", plan({("t", 0): [0]}), "--throttle", "-5")
