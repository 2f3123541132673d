"""AlterReplicaLogDirs at a listener: replicas go to another disk of their broker while they are written to and read."""

from __future__ import annotations

import json
import os
import threading

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, produce, request
from raw_requests import batch, eventually
from typer.testing import CliRunner

import raylog
from raylog.cli import reassign
from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.cluster import Cluster
from raylog.errors import ConfigError
from raylog.kafka import table
from raylog.kafka.chain import Refuse
from raylog.listener.log_directories import refuse
from raylog.testing.in_process import cluster
from raylog.types import TopicPartition

RECORDS = 200
WRITERS = 6


@pytest.fixture(scope="module")
def running():
    with cluster(brokers=2, disks=2) as found:
        yield found


@pytest.fixture(scope="module")
def admin(running):
    with AdminClient(running.address) as found:
        yield found


def move(running, broker, path, topic, *partitions, version=2):
    """The errors of the partitions, as that broker's listener answers."""
    body = request(
        table.ALTER_REPLICA_LOG_DIRS.key,
        version,
        dirs=lambda module: (
            module.AlterReplicaLogDir(
                path=path, topics=(module.AlterReplicaLogDirTopic(name=topic, partitions=partitions),)
            ),
        ),
    )
    client = Client(running, broker)
    try:
        reply = client.ask(body)
    finally:
        client.close()
    assert [result.topic_name for result in reply.results] == [topic]
    return [part.error_code for part in reply.results[0].partitions]


def disks(running, broker):
    """The paths of its disks."""
    return sorted(str(each.path) for each in running._disks if each.broker_id == broker)


def places(admin, broker, topic):
    """Where the broker has partition 0 of the topic, and whether on its way there."""
    found = admin.describe_log_dirs()[broker]
    key = TopicPartition(topic, 0)
    return {path: key in log_dir.future for path, log_dir in found.items() if key in log_dir.replicas}


def write(running, topic, start):
    with Producer(running.address, acks="all") as producer:
        for number in range(start, start + RECORDS):
            producer.send(topic, str(number).encode(), partition=0)
        assert producer.flush(60) == 0


def values(running, topic, count):
    found = []
    with Consumer(running.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])

        def read():
            found.extend(consumer.poll_batch(timeout=0.5)["value"].to_pylist())
            return len(found) >= count

        eventually(read, f"{count} records of {topic}")
    return [int(value) for value in found]


@pytest.mark.parametrize("replicas", [(0,), (0, 1), (1, 0)], ids=("alone", "leads", "follows"))
@pytest.mark.parametrize("version", list(table.ALTER_REPLICA_LOG_DIRS.versions))
def test_a_replica_comes_to_another_disk_with_all_its_records(running, admin, replicas, version):
    topic = f"moved-{len(replicas)}-{replicas[0]}-{version}"
    admin.create_topics([NewTopic(topic, replica_assignment={0: replicas})])
    write(running, topic, 0)
    eventually(lambda: len(places(admin, 0, topic)) == 1, "the replica's folder")
    (old,) = places(admin, 0, topic)
    new = next(path for path in disks(running, 0) if path != old)
    assert move(running, 0, new, topic, 0, version=version) == [ErrorCode.none]
    write(running, topic, RECORDS)
    eventually(lambda: places(admin, 0, topic) == {new: False}, f"{topic} on {new} alone")
    write(running, topic, 2 * RECORDS)
    assert values(running, topic, 3 * RECORDS) == list(range(3 * RECORDS))
    eventually(lambda: f"{topic}-0" not in os.listdir(old), "the old folder deleted")
    assert f"{topic}-0" in os.listdir(new)


class Writer(threading.Thread):
    """Writes one record after another with acks=1 and notes which one it was told to be where."""

    def __init__(self, running, topic, name):
        super().__init__()
        self.running, self.topic, self.called = running, topic, name
        self.acknowledged = {}  # offset → value
        self.others = set()  # the error codes of what was not
        self.is_ending = threading.Event()

    def run(self):
        client, number = Client(self.running, 0), 0
        try:
            while not self.is_ending.is_set():
                value = number * WRITERS + self.called
                reply = client.ask(produce(self.topic, {0: batch(str(value).encode())}, acks=1))
                (part,) = reply.responses[0].partition_responses
                if part.error_code is ErrorCode.none:
                    self.acknowledged[part.base_offset] = value
                else:
                    self.others.add(part.error_code)
                number += 1
        finally:
            client.close()


@pytest.mark.parametrize("replicas", [(0,), (0, 1)], ids=("alone", "leads"))
def test_a_leaders_move_loses_nothing_that_it_acknowledged_alone(running, admin, replicas):
    """Without anybody's death, and though the topic is written without pause."""
    topic = f"unpaused-{len(replicas)}"
    admin.create_topics([NewTopic(topic, replica_assignment={0: replicas})])
    eventually(lambda: len(places(admin, 0, topic)) == 1, "the replica's folder")
    writers = [Writer(running, topic, name) for name in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(6):
            (old,) = places(admin, 0, topic)
            new = next(path for path in disks(running, 0) if path != old)
            assert move(running, 0, new, topic, 0) == [ErrorCode.none]
            eventually(lambda new=new: places(admin, 0, topic) == {new: False}, f"{topic} on {new} alone")
    finally:
        for writer in writers:
            writer.is_ending.set()
            writer.join()
    others = set().union(*(writer.others for writer in writers))
    assert all(code.retriable for code in others), others
    told = [pair for writer in writers for pair in writer.acknowledged.items()]
    found = values(running, topic, len({offset for offset, _ in told}))
    assert not [(offset, value) for offset, value in told if found[offset : offset + 1] != [value]]


def test_a_plan_of_raylog_reassign_names_disks(running, admin, tmp_path, monkeypatch):
    monkeypatch.setattr(reassign, "find_cluster", lambda *_: Cluster(running.address))
    admin.create_topics([NewTopic("planned", replica_assignment={0: (0, 1)})])
    write(running, "planned", 0)
    eventually(lambda: len(places(admin, 0, "planned")) == 1, "the replica's folder")
    (old,) = places(admin, 0, "planned")
    new = next(path for path in disks(running, 0) if path != old)
    plan = tmp_path / "plan.json"

    def raylog(command, path):
        each = {"topic": "planned", "partition": 0, "replicas": [0, 1], "log_dirs": [path, "any"]}
        plan.write_text(json.dumps({"version": 1, "partitions": [each]}))
        result = CliRunner().invoke(reassign.app, [command, "--reassignment-json-file", str(plan), "--json"])
        return result.exit_code, json.loads(result.stdout)

    code, document = raylog("execute", new)
    replica = {"topic": "planned", "partition": 0, "broker": 0, "log_dir": new}
    assert code == 0 and document["disk_moves_started"] == [replica] and document["disk_moves_failed"] == []
    eventually(lambda: raylog("verify", new)[0] == 0, "the replica on the disk of the plan")
    assert raylog("verify", new)[1]["replicas"] == [replica | {"status": "completed"}]
    assert places(admin, 0, "planned") == {new: False}
    code, document = raylog("execute", "/nowhere")
    assert code == 1 and "no disk '/nowhere'" in document["disk_moves_failed"][0]["error"]


RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture
def planned(running, admin, tmp_path, monkeypatch):
    """``planned(topic)``: that topic has several batches on brokers 0 and 1; a plan that moves broker 0's replica,
    run by ``raylog reassign``, and the disks where it is and shall be.
    """
    monkeypatch.setattr(reassign, "find_cluster", lambda *_: Cluster(running.address))

    def new(topic):
        admin.create_topics([NewTopic(topic, replica_assignment={0: (0, 1)})])
        for start in range(0, 3 * RECORDS, RECORDS):
            write(running, topic, start)
        eventually(lambda: len(places(admin, 0, topic)) == 1, "the replica's folder")
        (old,) = places(admin, 0, topic)
        path = next(path for path in disks(running, 0) if path != old)
        each = {"topic": topic, "partition": 0, "replicas": [0, 1], "log_dirs": [path, "any"]}
        plan = tmp_path / f"{topic}.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [each]}))

        def run(command, *arguments):
            every = [command, "--reassignment-json-file", str(plan), *arguments]
            result = CliRunner().invoke(reassign.app, every, catch_exceptions=False)
            return result.exit_code, result.stdout

        return run, old, path

    return new


def rates(admin):
    """The throttles of moves between the disks of brokers 0 and 1, None where there is none."""
    found = [admin.describe_configs(broker=broker)[RATE] for broker in (0, 1)]
    return [None if each.is_default else each.value for each in found]


def test_the_throttle_of_a_plan_holds_its_moves_back_and_goes_when_they_are_complete(running, admin, planned):
    run, old, new = planned("held")
    code, text = run("execute", "--replica-alter-log-dirs-throttle", "1")
    assert code == 0 and "The replica-alter-dir throttle limit was set to 1 B/s" in text
    assert "Warning: You must run --verify periodically" in text
    assert rates(admin) == ["1", None], "no replica of broker 1 moves"
    code, text = run("verify")
    assert code == 1 and "Reassignment of replica held-0-0 is still in progress." in text
    assert "Clearing" not in text and rates(admin) == ["1", None]
    assert places(admin, 0, "held") == {old: False, new: True}
    assert run("execute", "--additional", "--replica-alter-log-dirs-throttle", "100000000")[0] == 0
    eventually(lambda: run("verify", "--preserve-throttles")[0] == 0, "the replica on its other disk")
    assert rates(admin) == ["100000000", None]
    code, text = run("verify")
    assert code == 0 and "Clearing broker-level throttles on brokers 0,1" in text
    assert rates(admin) == [None, None] and places(admin, 0, "held") == {new: False}


def test_a_plan_that_is_cancelled_leaves_replicas_on_their_disks_without_a_throttle(running, admin, planned):
    run, old, _ = planned("cancelled")
    assert run("execute", "--replica-alter-log-dirs-throttle", "1")[0] == 0
    code, text = run("cancel", "--json")
    replica = {"topic": "cancelled", "partition": 0, "broker": 0, "log_dir": old}
    assert code == 0 and json.loads(text)["disk_moves_cancelled"] == [replica]
    assert json.loads(text)["disk_moves_failed"] == [] and rates(admin) == [None, None]
    eventually(lambda: places(admin, 0, "cancelled") == {old: False}, "the copy gone")
    code, text = run("cancel")
    assert code == 0 and "None of the specified partition moves are active." in text


def test_a_throttle_of_disks_below_nothing_is_refused(planned):
    run, _, _ = planned("negative")
    with pytest.raises(ConfigError, match="--replica-alter-log-dirs-throttle -5"):
        run("execute", "--replica-alter-log-dirs-throttle", "-5")


def test_a_move_is_shown_before_any_process_has_opened_the_copy(running, admin):
    def no_server(spec):
        raise RuntimeError("this machine has no room")

    admin.create_topics([NewTopic("begun", replica_assignment={0: (0,)}, configs={"replicas.per.actor": "1"})])
    write(running, "begun", 0)
    eventually(lambda: len(places(admin, 0, "begun")) == 1, "the replica's folder")
    (old,) = places(admin, 0, "begun")
    new = next(path for path in disks(running, 0) if path != old)
    size = admin.replica_sizes()[TopicPartition("begun", 0)][0]
    built = running.launcher.build["replica"]
    running.launcher.build["replica"] = no_server
    try:
        assert move(running, 0, new, "begun", 0) == [ErrorCode.none]
        assert places(admin, 0, "begun") == {old: False, new: True}
        assert admin.replica_sizes()[TopicPartition("begun", 0)] == {0: size}, "the copy's size is not the replica's"
        with raylog.connect(bootstrap_servers=running.bootstrap_servers()) as cluster, cluster.admin() as outsider:
            eventually(lambda: places(outsider, 0, "begun") == {old: False, new: True}, "the move at the listener")
    finally:
        running.launcher.build["replica"] = built
    assert move(running, 0, old, "begun", 0) == [ErrorCode.none]
    assert places(admin, 0, "begun") == {old: False}


def test_an_admin_client_outside_moves_replicas_too(running, admin):
    admin.create_topics([NewTopic("outside", replica_assignment={0: (1, 0)})])
    eventually(lambda: len(places(admin, 0, "outside")) == 1, "the replica's folder")
    (old,) = places(admin, 0, "outside")
    new = next(path for path in disks(running, 0) if path != old)
    with raylog.connect(bootstrap_servers=running.bootstrap_servers()) as cluster, cluster.admin() as outsider:
        assert outsider.move_to_disks({("outside", 0, 0): new}) == {("outside", 0, 0): None}
        (error,) = outsider.move_to_disks({("outside", 0, 0): "/nowhere"}).values()
        assert error is not None and error.code is ErrorCode.log_dir_not_found
    eventually(lambda: places(admin, 0, "outside") == {new: False}, "the replica on the other disk")


def test_what_cannot_be_is_refused_as_by_kafka(running, admin):
    admin.create_topics([NewTopic("refused", replica_assignment={0: (1,)})])
    here = disks(running, 0)[0]
    assert move(running, 0, "/nowhere", "refused", 0) == [ErrorCode.log_dir_not_found]
    assert move(running, 0, here, "refused", 0, 1) == [
        ErrorCode.replica_not_available,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_a_refusal_of_the_whole_request_names_every_replica():
    answers = []

    class Asked:
        version = 2
        body = request(
            table.ALTER_REPLICA_LOG_DIRS.key,
            2,
            dirs=lambda module: tuple(
                module.AlterReplicaLogDir(
                    path=path, topics=(module.AlterReplicaLogDirTopic(name=name, partitions=parts),)
                )
                for path, name, parts in (("/a", "t", (0, 2)), ("/b", "u", (1,)), ("/b", "t", (1,)))
            ),
        )
        reply = staticmethod(answers.append)

    refuse(Asked, Refuse(ErrorCode.throttling_quota_exceeded))
    (answer,) = answers
    named = {
        (each.topic_name, part.partition_index, part.error_code) for each in answer.results for part in each.partitions
    }
    refused = ErrorCode.throttling_quota_exceeded
    assert named == {("t", 0, refused), ("t", 2, refused), ("u", 1, refused), ("t", 1, refused)}
