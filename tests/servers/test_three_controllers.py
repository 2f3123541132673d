"""Three controllers on three disks: one is active, any one may go, and what was acknowledged stays."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_requests import eventually, part, status

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer, call
from raylog.control.session import SHUT_DOWN
from raylog.errors import RaylogError
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.connection import Connection
from raylog.wire.private import ClusterStatusRequest, Shutdown

pytestmark = pytest.mark.core

Numbered = Callable[[int, int], list[bytes]]


def create(running: InProcessCluster, topic: str, **options: Any) -> None:
    with AdminClient(running.address, **options) as admin:
        admin.create_topics([NewTopic(topic, 1, 3)])


def log_ends(running: InProcessCluster) -> dict[int, int]:
    return {broker: each._controller.quorum.commit_index for broker, each in running.controllers.items()}


def all_follow(running: InProcessCluster) -> bool:
    ends = log_ends(running)
    images = [each._controller.image for each in running.controllers.values()]
    return len(set(ends.values())) == 1 and all(image == images[0] for image in images)


def others(running: InProcessCluster) -> list[int]:
    return sorted(set(running.controllers) - {running.active})


def test_one_of_three_is_active_and_the_others_hold_the_same(three: Any) -> None:
    running = three.running
    three.make_topic()
    assert [each.is_active for each in running.controllers.values()].count(True) == 1
    running.await_true(lambda: all_follow(running))
    for disk in running._disks:
        text = (disk.path / "meta.properties").read_text()
        for endpoint in running.address.bootstrap:
            assert str(endpoint) in text
    assert status(running)["controller"]["broker"] == running.active


def test_a_standby_that_is_asked_for_all_topics_does_not_say_that_there_are_none(three: Any) -> None:
    running = three.running
    three.make_topic()
    standbys_first = sorted(running.address.bootstrap, key=lambda each: each == running.controller._endpoint)
    address = dataclasses.replace(running.address, bootstrap=tuple(standbys_first))
    with AdminClient(address) as admin:
        assert admin.list_topics() == ["t"]


def test_a_standby_refuses_and_names_the_active_one(three: Any) -> None:
    running = three.running
    standby = running.controllers[others(running)[0]]
    running.await_true(lambda: all_follow(running))

    async def ask() -> None:
        address = running.address
        connection = await Connection.open(
            standby._endpoint, secret=address.secret, cluster_id=address.cluster_id, timeout_ms=60_000
        )
        try:
            await connection.request(ClusterStatusRequest(), timeout_ms=60_000)
        finally:
            connection.close()

    with pytest.raises(
        RaylogError, match=f"not the active one; the active one listens at {running.controller._endpoint}"
    ):
        running.run(ask())


def test_a_controller_whose_clock_was_set_back_while_it_was_down_is_taken_in_again(
    three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = three.running
    three.make_topic()
    restarted, third = others(running)
    running.crash_controller(restarted)
    hour_ns = 3_600 * 10**9
    monkeypatch.setattr("raylog.testing.in_process.new_incarnation", lambda: time.time_ns() - hour_ns)
    running.start_controller(restarted)
    running.await_true(lambda: all_follow(running))
    running.crash_controller(third)  # now nothing is decided without the one that has restarted
    create(running, "u")
    running.start_controller(third)
    running.await_true(lambda: all_follow(running))


def test_the_active_controller_dies_under_load_and_a_standby_takes_over(three: Any) -> None:
    running = three.running
    three.make_topic()
    stream = three.stream()
    stream.more()
    before = status(running)
    for name in ("u", "v"):
        killed = running.active
        running.crash_controller(killed)
        running.await_true(lambda: running.active >= 0)
        create(running, name)
        stream.more()
        running.start_controller(killed)
        running.await_true(lambda: all_follow(running))
    acked = stream.stop()
    after = status(running)
    assert after["controller"]["epoch"] >= before["controller"]["epoch"] + 2
    incarnations = [{each["node_id"]: each["incarnation"] for each in found["actors"]} for found in (before, after)]
    assert incarnations[0].items() <= incarnations[1].items()
    assert part(running, "t")["leader_epoch"] == 0, "nobody but a controller has died"
    assert [offset for offset, _ in acked] == list(range(len(acked)))
    assert three.values(len(acked)) == [value for _, value in acked]


def test_a_standby_that_is_away_is_not_missed_and_follows_when_it_is_back(three: Any, numbered: Numbered) -> None:
    running = three.running
    away = others(running)[0]
    running.crash_controller(away)
    three.make_topic()
    assert three.produce(numbered(0, 10)) == list(range(10))
    node = three.leader()
    running.crash(node)
    assert three.produce(numbered(10, 20)) == list(range(10, 20))
    running.start_controller(away)
    running.await_true(lambda: all_follow(running))
    assert three.values(20) == numbered(0, 20)


def test_a_controller_whose_disk_lost_metadata_gets_them_from_the_others_and_counts_again(
    three: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = three.running
    three.make_topic()
    running.await_true(lambda: all_follow(running))
    rotten, third = others(running)
    running.crash_controller(rotten)
    folder = running._homes[rotten].path / "__cluster_metadata-0"
    log, vote = folder / "metadata.log", folder / "quorum-state"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    vote.write_bytes(b"")
    running.start_controller(rotten)
    assert f"{log} ends with entry" in caplog.text and f"{vote} is corrupt" in caplog.text
    running.await_true(lambda: all_follow(running) and running.active >= 0)
    quorum = running.controllers[rotten]._controller.quorum
    running.await_true(lambda: not quorum.is_recovering)
    running.crash_controller(third if running.active != third else running.active)
    create(running, "u")  # not without the one whose disk was damaged
    assert "takes part in elections again" in caplog.text


def test_without_a_majority_no_change_is_acknowledged_while_reading_and_writing_go_on(
    three: Any, numbered: Numbered
) -> None:
    running = three.running
    three.make_topic()
    with Producer(running.address, acks="all") as producer, three.reader() as read:
        producer.send("t", b"0", partition=0).result(60)
        assert read(1) == [b"0"]
        away = [running.active, others(running)[0]]
        for broker in away:
            running.crash_controller(broker)
        with pytest.raises(RaylogError):
            create(running, "lost", default_api_timeout_ms=1_500)
        for value in numbered(1, 30):
            producer.send("t", value, partition=0).result(60)
        assert read(29) == numbered(1, 30)
        assert running.active == -1
        running.start_controller(away[0])
        running.await_true(lambda: running.active >= 0)
        create(running, "found")
        producer.send("t", b"30", partition=0).result(60)
    assert "lost" not in {each["name"] for each in status(running)["topics"]}
    running.start_controller(away[1])
    running.await_true(lambda: all_follow(running))


def test_a_leader_that_dies_with_the_active_controller_is_replaced(three: Any, numbered: Numbered) -> None:
    running = three.running
    three.make_topic()
    assert three.produce(numbered(0, 10)) == list(range(10))
    node = three.leader()
    running.crash_controller(running.active)
    running.crash(node)
    assert three.produce(numbered(10, 20)) == list(range(10, 20))
    three.await_whole()
    assert three.values(20) == numbered(0, 20)


def test_controllers_that_all_died_come_back_with_all_that_was_acknowledged(three: Any, numbered: Numbered) -> None:
    running = three.running
    three.make_topic()
    three.produce(numbered(0, 10))
    epochs = {part(running, "t")["leader_epoch"]}
    for broker in (0, 1, 2):
        running.crash_controller(broker)
    for broker in (2, 1, 0):
        running.start_controller(broker)
    eventually(lambda: running.active >= 0, "an active controller")
    eventually(lambda: all(each["state"] == "live" for each in status(running)["actors"]), "all sessions back")
    epochs.add(part(running, "t")["leader_epoch"])
    assert len(epochs) == 1
    assert three.values(10) == numbered(0, 10)


def test_a_frozen_active_controller_is_replaced_and_can_do_nothing_when_it_wakes(
    three: Any, numbered: Numbered
) -> None:
    running = three.running
    three.make_topic()
    former, before = running.active, status(running)
    woken = running.controllers[former]
    with AdminClient(running.address) as admin, Producer(running.address, acks="all") as producer:
        admin.list_topics()
        producer.send("t", b"0", partition=0).result(60)
        with running.frozen_controller(former):
            del running.controllers[former]
            running.await_true(lambda: running.active >= 0)
            successor = running.active
            admin.create_topics([NewTopic("u", 1, 3)])
            everybody = frozenset(each["node_id"] for each in before["actors"])
            running.await_true(lambda: running.controller.live_nodes() >= everybody)
        running.controllers[former] = woken
        running.await_true(lambda: not woken.is_active and all_follow(running))
        for value in numbered(1, 10):
            producer.send("t", value, partition=0).result(60)
    after = status(running)
    assert running.active == successor and after["controller"]["epoch"] > before["controller"]["epoch"]
    assert part(running, "t")["leader_epoch"] == 0, "nobody was declared dead"
    incarnations = [{each["node_id"]: each["incarnation"] for each in found["actors"]} for found in (before, after)]
    assert incarnations[0].items() <= incarnations[1].items()
    assert three.values(10) == numbered(0, 10)


def test_the_disk_that_replaces_a_lost_voters_is_admitted(tmp_path: Path) -> None:
    with cluster(brokers=3, controllers=3, folder=tmp_path) as running:
        create(running, "t")
        running.await_true(lambda: all_follow(running))
    shutil.rmtree(tmp_path / "broker-2")
    with cluster(brokers=3, controllers=3, folder=tmp_path) as running:
        disks = tuple(sorted(disk.directory_id for disk in running._disks))
        running.await_true(lambda: {each._controller.quorum.voters for each in running.controllers.values()} == {disks})
        with AdminClient(running.address) as admin:
            assert admin.list_topics() == ["t"]


def test_one_controller_becomes_three_when_the_cluster_starts_with_them(tmp_path: Path) -> None:
    with cluster(brokers=3, controllers=1, folder=tmp_path) as running:
        create(running, "t")
        running.await_true(lambda: len(running.controller.live_nodes()) == 9)  # Brokers and two hosts a disk
    with cluster(brokers=3, controllers=3, folder=tmp_path) as running:
        disks = tuple(sorted(disk.directory_id for disk in running._disks))
        running.await_true(lambda: {each._controller.quorum.voters for each in running.controllers.values()} == {disks})
        former = running.active
        running.crash_controller(former)
        running.await_true(lambda: running.active >= 0)
        create(running, "u")
        with AdminClient(running.address) as admin:
            assert sorted(admin.list_topics()) == ["t", "u"]
        running.await_true(lambda: len(running.controller.live_nodes()) == 9)
    with cluster(brokers=3, folder=tmp_path) as running:
        assert sorted(running.controllers) == [0, 1, 2]


def test_a_cluster_of_three_controllers_ends_whole_and_is_not_started_anew(three: Any) -> None:
    running = three.running
    three.make_topic()
    call(running.address, Shutdown(), timeout_s=60)
    for broker in sorted(running.controllers):
        assert running._loops[broker].run(running.controllers[broker].ended()) == SHUT_DOWN
    servers = list(running.launcher.servers.values())
    running.launcher.servers.clear()  # ended already
    assert all(running.run(server.ended()) == SHUT_DOWN for server in servers)
