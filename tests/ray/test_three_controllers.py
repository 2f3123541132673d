"""Three controllers as real processes: the active one is killed, and stopped and woken, while records flow."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kill
from ray_load import Load
from scraping import Scraped, metrics_of_processes, scraped

import raylog
from raylog import NewTopic
from raylog.cli.top_figures import PageOrder, figures
from raylog.cli.top_looks import take_look
from raylog.errors import RaylogError
from raylog.metrics import table
from raylog.types import CONTROLLER_SLOT, Endpoint, node_id
from raylog.wire.connection import Connection
from raylog.wire.private_watching import SetLoggerLevels

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def three(short_folder: Path) -> Iterator[raylog.Cluster]:
    """Three brokers with a controller each, on a Ray of the module's own."""
    cluster = raylog.init(short_folder / "data", controllers=3, ray_address="local", timeout_s=PATIENCE_S)
    cluster.admin().create_topics([NewTopic("events", 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(cluster, "events"), "all replicas of events in sync")
    cluster.admin().elect_leaders()  # or the controller does so by itself, every few minutes
    yield cluster
    cluster.shutdown()


def pid_of_controller(cluster: raylog.Cluster) -> int:
    return int(cluster.status()["controller"]["pid"])


def another(cluster: raylog.Cluster, former: int) -> dict[str, Any] | None:
    """The cluster's status once another process is the active controller."""
    try:
        status = cluster.status(timeout_s=5)
    except RaylogError:
        return None
    return status if status["controller"]["pid"] != former else None


def leader_epoch(status: dict[str, Any]) -> int:
    (topic,) = [each for each in status["topics"] if each["name"] == "events"]
    return int(topic["partitions"][0]["leader_epoch"])


def all_follow(cluster: raylog.Cluster) -> bool:
    quorum = cluster.quorum()
    voters = quorum["voters"]
    return len(voters) == 3 and all(voter["reachable"] and voter["lag"] == 0 for voter in voters)


def shown(cluster: raylog.Cluster) -> dict[str, Any]:
    """What ``raylog top`` has."""
    with cluster.admin() as admin:
        before = take_look(cluster, admin)
        return figures(replace(before, at_s=0), replace(take_look(cluster, admin), at_s=1), PageOrder())


def incarnations(status: dict[str, Any]) -> dict[int, int]:
    """Of the live processes, by node; others may be on their way."""
    return {each["node_id"]: each["incarnation"] for each in status["actors"] if each["state"] == "live"}


def test_each_controller_is_a_detached_actor_on_its_own_disk(three: raylog.Cluster) -> None:
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    assert sum(name.startswith("raylog:controller:") for name in names) == 3
    eventually(lambda: all_follow(three), "both standbys follow")
    assert sorted(voter["broker"] for voter in three.quorum()["voters"]) == [0, 1, 2]
    assert len(raylog.connect().address.bootstrap) == 3


def test_a_killed_active_controller_is_replaced_under_load_and_comes_back(three: raylog.Cluster) -> None:
    before = three.status()
    former = pid_of_controller(three)
    with Load(three) as load:
        kill(former)
        after = eventually(lambda: another(three, former), "another active controller")
        three.admin().create_topics([NewTopic("after-the-kill", 1, 3)])
        load.more()
        eventually(lambda: all_follow(three), "the killed one follows")
        load.more()
    assert after["controller"]["epoch"] > before["controller"]["epoch"]
    assert leader_epoch(three.status()) == leader_epoch(before), "no replica has died"
    load.check()


def test_a_stopped_active_controller_is_replaced_and_can_do_nothing_when_it_wakes(three: raylog.Cluster) -> None:
    before = three.status()
    former = pid_of_controller(three)
    with Load(three) as load:
        os.kill(former, signal.SIGSTOP)
        try:
            after = eventually(lambda: another(three, former), "another active controller")
            three.admin().create_topics([NewTopic("after-the-stop", 1, 3)])
            load.more()
        finally:
            os.kill(former, signal.SIGCONT)
        eventually(lambda: all_follow(three), "the woken one follows")
        load.more()
    now = three.status()
    assert now["controller"]["pid"] == after["controller"]["pid"], "the woken one has disturbed nobody"
    assert after["controller"]["epoch"] > before["controller"]["epoch"]
    assert leader_epoch(now) == leader_epoch(before), "no replica was declared dead"
    assert incarnations(before).items() <= incarnations(now).items(), "nobody was started anew"
    load.check()


def test_metrics_and_top_have_all_controllers_and_miss_one_that_stands_still(three: raylog.Cluster) -> None:
    at = metrics_of_processes(three, 3)

    def whole() -> dict[int, Scraped] | None:
        found = {broker: scraped(each) for broker, each in at.items()}
        lags = [lag for each in found.values() for lag in each.get(table.VOTER_LAG.name, {}).values()]
        lags += [each.get(table.RAFT_LAG.name, {}).get((), -1) for each in found.values()]
        silent = [each[table.SILENT_PROCESSES.name][()] for each in found.values()]
        return found if (lags, silent) == ([0] * 6, [0] * 3) else None

    eventually(lambda: all_follow(three), "both standbys follow")
    found = eventually(whole, "no controller to lag")
    assert sorted(each[table.ACTIVE_CONTROLLERS.name][()] for each in found.values()) == [0, 0, 1]
    states = sorted(state for each in found.values() for (state,) in each[table.RAFT_STATE.name])
    assert states == ["follower", "follower", "leader"]
    rows = shown(three)["controllers"]
    assert sorted(each["role"] for each in rows) == ["active", "standby", "standby"]
    assert all(each["lag"] == 0 and each["reachable"] and each["memory_bytes"] > 1 << 20 for each in rows)
    still = next(each for each in rows if each["role"] == "standby")
    active = next(each["broker"] for each in rows if each["role"] == "active")
    os.kill(still["pid"], signal.SIGSTOP)
    try:
        three.admin().create_topics([NewTopic("without-one", 1, 3)])

        def is_missed() -> bool:
            found = {broker: scraped(each) for broker, each in at.items()}
            lag = found[active][table.VOTER_LAG.name].get((str(still["broker"]),), 0)
            return lag > 0 and found[still["broker"]][table.SILENT_PROCESSES.name][()] == 1

        eventually(is_missed, "the one that stands still to lag and to be missed")
        assert next(each["lag"] for each in shown(three)["controllers"] if each["broker"] == still["broker"]) > 0
    finally:
        os.kill(still["pid"], signal.SIGCONT)
    eventually(whole, "it to have everything again")
    kill(still["pid"])

    def is_back() -> bool:
        row = next(each for each in shown(three)["controllers"] if each["broker"] == still["broker"])
        return row["pid"] not in (None, still["pid"]) and row["lag"] == 0 and whole() is not None

    eventually(is_back, "another process in the place of the one that was killed")


def test_levels_of_loggers_reach_a_standby_and_the_process_that_comes_after_it(three: raylog.Cluster) -> None:
    name = "raylog.wire"  # each process has it

    async def level(endpoint: Endpoint, broker: int) -> str | None:
        """In the controller there; None if it is another broker's, or not there."""
        address = three.address
        try:
            connection = await Connection.open(endpoint, secret=address.secret, cluster_id=address.cluster_id)
        except RaylogError:
            return None
        try:
            if connection.peer.node_id != node_id(broker, CONTROLLER_SLOT):
                return None
            return str((await connection.request(SetLoggerLevels(broker), timeout_ms=30_000)).levels[name])
        finally:
            connection.close()

    def levels(broker: int) -> list[str]:
        found = [asyncio.run(level(each, broker)) for each in raylog.connect().address.bootstrap]
        return [each for each in found if each is not None]

    eventually(lambda: all_follow(three), "both standbys follow")
    with three.admin() as admin:
        still = next(each for each in shown(three)["controllers"] if each["role"] == "standby")
        assert levels(still["broker"]) == ["INFO"]
        admin.alter_loggers(still["broker"], set={name: "DEBUG"})
        assert levels(still["broker"]) == ["DEBUG"], "before the call returns"
        kill(still["pid"])
        eventually(lambda: levels(still["broker"]) == ["DEBUG"] and all_follow(three), "its successor to be told")
        admin.alter_loggers(still["broker"], delete=[name])
        assert levels(still["broker"]) == ["INFO"]


def test_a_full_stop_and_start_finds_all_three_again(three: raylog.Cluster) -> None:
    assert three.folder is not None
    folder, topics = three.folder, three.admin().list_topics()
    three.shutdown()
    again = raylog.init(folder, ray_address="local", timeout_s=PATIENCE_S)
    try:
        eventually(lambda: all_follow(again), "three controllers again")
        assert again.admin().list_topics() == topics
    finally:
        again.shutdown()
