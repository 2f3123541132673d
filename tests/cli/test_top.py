"""``raylog top``: its figures from two looks, its page, its keys, and both ways of looking at a running cluster."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raw_requests import eventually
from rich.console import Console
from typer.testing import CliRunner

import raylog.testing
from raylog.cli import top
from raylog.cli.main import app
from raylog.cli.top_figures import PageOrder, figures
from raylog.cli.top_looks import FollowerPlace, Look, ProcessLook, TopicTraffic, followers_of, take_look
from raylog.cli.top_page import page
from raylog.client.sync import AdminClient
from raylog.cluster import Cluster
from raylog.errors import ClusterError, ConfigError
from raylog.metrics import table
from raylog.testing import in_process
from raylog.testing.kafka import Kafka
from raylog.types import CONTROLLER_SLOT, Endpoint, TopicPartition, node_id


def part(number: int, leader: int, replicas: list[int], isr: list[int] | None = None) -> dict[str, Any]:
    return {"partition": number, "leader": leader, "replicas": replicas, "isr": replicas if isr is None else isr}


STATUS: dict[str, Any] = {
    "cluster_id": "a-cluster",
    "controller": {"broker": 0},
    "brokers": [{"id": broker, "rack": None, "live": True, "disks": ["/a"]} for broker in (0, 1)],
    "topics": [
        {"name": "big", "partitions": [part(0, 0, [0, 1]), part(1, 1, [1, 0], [1])]},
        {"name": "small", "partitions": [part(0, 1, [1])]},
    ],
    "under_replicated": ["big-1"],
    "leaderless": [],
}
QUORUM: dict[str, Any] = {
    "leader_id": 1,
    "leader_epoch": 7,
    "high_watermark": 90,
    "max_follower_lag": 4,
    "observers": [],
    "voters": [
        {"broker": broker, "reachable": broker != 0, "recovering": False, "log_end_offset": 90 - lag, "lag": lag}
        for broker, lag in ((2, 1), (0, 4), (1, 0))
    ],
}
BIG, SMALL = TopicPartition("big", 0), TopicPartition("small", 0)
NODE = 1 << 16


def a_look(at_s: float, **changes: Any) -> Look:
    look = Look(at_s=at_s, time_ms=0, status=STATUS, traffic={}, followers=(), group_lags={}, processes=())
    return replace(look, **changes)


# ------------------------------------------------------------------ figures


def test_rates_are_the_growth_of_all_sources_by_the_time_between_the_looks() -> None:
    before = {1: {"big": TopicTraffic(100, 10, 0, 0)}, 2: {"big": TopicTraffic(50, 5, 7, 0)}}
    now = {
        1: {"big": TopicTraffic(300, 30, 0, 8)},
        2: {"big": TopicTraffic(50, 5, 47, 0), "small": TopicTraffic(20, 2)},
    }
    document = figures(a_look(1, traffic=before), a_look(3, traffic=now), PageOrder())
    big, small = document["topics"]
    assert (big["topic"], big["bytes_in_per_s"], big["records_in_per_s"]) == ("big", 100, 10)
    assert (big["bytes_out_per_s"], big["replication_bytes_in_per_s"], big["under_replicated"]) == (20, 4, 1)
    assert (small["bytes_in_per_s"], small["bytes_out_per_s"]) == (10, None)
    assert document["total"] == {
        "bytes_in_per_s": 110,
        "records_in_per_s": 11,
        "bytes_out_per_s": 20,
        "replication_bytes_in_per_s": 4,
    }


def test_a_new_source_and_a_count_that_fell_add_nothing() -> None:
    before = {1: {"big": TopicTraffic(100, 10)}}
    now = {1: {"big": TopicTraffic(40, 12)}, 2: {"big": TopicTraffic(1e9, 1e9)}}
    (big, _) = figures(a_look(0, traffic=before), a_look(1, traffic=now), PageOrder())["topics"]
    assert (big["bytes_in_per_s"], big["records_in_per_s"]) == (0, 2)


def test_groups_and_followers_have_those_that_lag_most_first() -> None:
    behind = FollowerPlace(BIG, 1, 0, 7, in_sync=False)
    look = a_look(
        1,
        followers=(replace(behind, key=SMALL, lag=0), behind),
        group_lags={"even": {BIG: 0}, "late": {BIG: 3, SMALL: 5}, "new": {}},
    )
    document = figures(a_look(0), look, PageOrder())
    assert [(each["group"], each["lag"], each["partitions"]) for each in document["groups"]] == [
        *(("late", 8, 2), ("even", 0, 1), ("new", 0, 0))
    ]
    assert document["groups"][0]["worst"] == {"topic": "small", "partition": 0, "lag": 5}
    assert [(each["topic"], each["lag"], each["in_sync"]) for each in document["followers"]] == [
        *(("big", 7, False), ("small", 0, False))
    ]


def test_an_actors_cpu_is_of_one_incarnation_and_the_order_puts_the_unknown_last() -> None:
    process = ProcessLook(NODE, 1, "broker", 10, 0, 0, cpu_s=1.0, memory_bytes=5, loop_delay_s=0.5)
    began_anew = replace(process, node_id=NODE + 1, incarnation=2, cpu_s=100.0, memory_bytes=9, loop_delay_s=0.1)
    silent = replace(process, node_id=NODE + 2, cpu_s=None, memory_bytes=None, loop_delay_s=None)
    before = a_look(0, processes=(process, replace(began_anew, incarnation=1, cpu_s=0.0), silent))
    now = a_look(2, processes=(silent, began_anew, replace(process, cpu_s=2.5)))

    def nodes(order: str) -> list[int]:
        return [each["node_id"] - NODE for each in figures(before, now, PageOrder().by(order))["actors"]]

    assert [each["cpu"] for each in figures(before, now, PageOrder())["actors"]] == [0.75, None, None]
    assert (nodes("cpu"), nodes("memory"), nodes("delay")) == ([0, 1, 2], [1, 0, 2], [0, 1, 2])


def test_controllers_have_their_lag_and_what_their_processes_use() -> None:
    process = ProcessLook(node_id(1, CONTROLLER_SLOT), 7, "controller", 7, None, None, 1.0, 5, 0.5)
    before = a_look(0, quorum=QUORUM, processes=(process,))
    document = figures(before, a_look(2, quorum=QUORUM, processes=(replace(process, cpu_s=2.0),)), PageOrder())
    assert document["quorum"] == {"leader": 1, "epoch": 7, "high_watermark": 90, "max_lag": 4}
    rows = document["controllers"]
    assert [(each["broker"], each["role"], each["lag"], each["reachable"], each["cpu"]) for each in rows] == [
        (0, "standby", 4, False, None),
        (1, "active", 0, True, 0.5),
        (2, "standby", 1, True, None),
    ]
    assert (rows[1]["pid"], rows[1]["memory_bytes"], rows[1]["event_loop_delay_s"]) == (7, 5, 0.5)
    text = "\n".join(drawn(document))
    for words in ("Controllers, epoch 7, 90 entries committed", "cannot be reached: those of broker 0", "away"):
        assert words in text
    nobody = figures(a_look(0), a_look(1), PageOrder())
    assert (nobody["quorum"], nobody["controllers"]) == (None, None)


def test_topics_are_sorted_as_asked() -> None:
    before = {1: {"big": TopicTraffic(0, 0, 0), "small": TopicTraffic(0, 0, 0)}}
    now = {1: {"big": TopicTraffic(9, 1, 1), "small": TopicTraffic(1, 2, 3)}}

    def first(order: str) -> str:
        chosen = PageOrder().by(order)
        return str(figures(a_look(0, traffic=before), a_look(1, traffic=now), chosen)["topics"][0]["topic"])

    assert [first(order) for order in ("in", "records", "out", "name")] == ["big", "small", "small", "big"]
    assert PageOrder().by("memory").by("out") == PageOrder("out", "memory")


def test_what_is_not_known_comes_behind_what_is_nothing() -> None:
    same = {1: {"big": TopicTraffic(0, 0), "small": TopicTraffic(0, 0, 0)}}
    document = figures(a_look(0, traffic=same), a_look(1, traffic=same), PageOrder().by("out"))
    assert [each["topic"] for each in document["topics"]] == ["small", "big"]


def test_brokers_say_what_they_lead_and_where_they_are_out_of_sync() -> None:
    first, second = figures(a_look(0), a_look(1), PageOrder())["brokers"]
    assert (first["leads"], first["replicas"], first["out_of_sync"]) == (1, 2, 1)
    assert (second["leads"], second["replicas"], second["out_of_sync"]) == (2, 3, 0)


def test_a_follower_lags_by_what_its_log_lacks_of_the_leaders() -> None:
    nodes = {"leader_node": 1, "replica_nodes": [1, NODE + 1, NODE + 2]}
    status = {"topics": [{"name": "big", "partitions": [part(0, 0, [0, 1], [0]) | nodes]}]}
    ends = {1: {BIG: 10}, NODE + 1: {BIG: 4}}  # the third does not answer
    assert followers_of(status, ends) == (FollowerPlace(BIG, 1, 0, 6, in_sync=False),)
    assert followers_of(status, {1: {BIG: 10}, NODE + 1: {BIG: 12}})[0].lag == 0  # it was asked later


# ------------------------------------------------------------------ the page


def drawn(document: dict[str, Any], height: int | None = None) -> list[str]:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(page(document, PageOrder(), height=height))
    return console.export_text().splitlines()


def test_the_page_fits_the_terminal_and_says_what_it_leaves_out() -> None:
    topics = [{"name": f"[b]topic-{number:02}", "partitions": [part(0, 0, [0])]} for number in range(60)]
    document = figures(a_look(0), a_look(1, status=STATUS | {"topics": topics}), PageOrder())
    lines = drawn(document, height=24)
    assert len(lines) <= 24
    assert any("Topics, " in line and " of 60" in line for line in lines)
    assert any("[b]topic-00" in line for line in lines)  # a name is no markup
    assert len(drawn(document)) > 60


def test_the_page_says_in_words_what_is_wrong() -> None:
    gone = STATUS | {"leaderless": ["big-0"], "brokers": [{**STATUS["brokers"][0], "live": False}]}
    text = "\n".join(drawn(figures(a_look(0), a_look(1, status=gone, silent=(7,)), PageOrder())))
    for words in ("without a leader: big-0", "under-replicated: big-1", "do not answer: 7", "brokers away: 0"):
        assert words in text


# ------------------------------------------------------------------ keys


def played(*pressed: str, looks: list[Any]) -> list[tuple[str, PageOrder, str]]:
    """What was drawn; a look that is an error is raised."""
    keys, drawn, left = iter(pressed), [], iter(looks)

    def look() -> Look:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    top.run(
        look,
        lambda document, order, note: drawn.append((document["cluster_id"], order, note)),
        lambda within_s: next(keys),
        PageOrder(),
        1.0,
    )
    return drawn


def test_a_key_sorts_at_once_and_q_ends() -> None:
    drawn = played("m", "", "o", "x", "q", looks=[a_look(0), a_look(1)])
    assert [order for _, order, _ in drawn] == [
        PageOrder("in", "memory"),
        PageOrder("out", "memory"),
        PageOrder("out", "memory"),
    ]


def test_a_cluster_that_does_not_answer_keeps_its_last_figures_and_is_asked_again() -> None:
    looks = [a_look(0), a_look(1), ClusterError("no controller"), a_look(3)]
    assert [note for _, _, note in played("", "", "", "q", looks=looks)] == ["", "no controller; asking again", ""]


def test_what_asking_again_does_not_mend_ends_it() -> None:
    with pytest.raises(ConfigError):
        played("", looks=[a_look(0), ConfigError("no")])


def test_a_terminal_gives_its_keys_unechoed_and_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import termios

    ours, theirs = pty.openpty()
    try:
        with open(theirs, closefd=False) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            before = termios.tcgetattr(theirs)
            with top.keys() as next_key:
                assert next_key(0.0) == ""
                os.write(ours, b"M")
                assert next_key(60.0) == "m"
            assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


# ------------------------------------------------------------------ a running cluster


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics={"orders": 2}, brokers=2) as running:
        running.write("orders", b"before", partition=1)
        yield running


@pytest.mark.core
def test_inside_the_cluster_the_figures_are_those_of_what_was_sent(kafka: Kafka) -> None:
    cluster = Cluster(kafka.address)
    with cluster.admin() as admin:
        before = take_look(cluster, admin)
        kafka.write("orders", b"a", b"b", b"c", partition=1)
        with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("orders", 1)])
            eventually(lambda: consumer.poll(0.1), "a record")
            consumer.commit({TopicPartition("orders", 1): 1})
        now = eventually(
            lambda: next((look for look in [take_look(cluster, admin)] if "readers" in look.group_lags), None),
            "the group's offset",
        )
        document = figures(replace(before, at_s=0), replace(now, at_s=1), PageOrder())
    (orders,) = (each for each in document["topics"] if each["topic"] == "orders")
    assert (orders["records_in_per_s"], orders["partitions"]) == (3, 2)
    assert orders["bytes_in_per_s"] > 0 and orders["bytes_out_per_s"] > 0
    (group,) = document["groups"]
    assert (group["group"], group["lag"]) == ("readers", 3)
    assert {each["kind"] for each in document["actors"]} >= {"broker", "replicas", "controller"}
    assert all(each["cpu"] is not None and each["memory_bytes"] > 0 for each in document["actors"])
    assert document["silent"] == []
    assert {(each["topic"], each["leader"] != each["broker"]) for each in document["followers"]} >= {("orders", True)}
    assert any(line.startswith("Busiest actors") for line in drawn(document))


@pytest.mark.core
def test_through_the_listeners_rates_in_are_the_growth_of_logs_and_nothing_is_made_up(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYLOG_FOLDER", raising=False)
    with raylog.connect(bootstrap_servers=kafka.bootstrap) as cluster, cluster.admin() as admin:
        before = take_look(cluster, admin)
        kafka.write("orders", b"d", b"e", partition=0)
        now = take_look(cluster, admin)
    document = figures(replace(before, at_s=0), replace(now, at_s=1), PageOrder())
    (orders,) = (each for each in document["topics"] if each["topic"] == "orders")
    assert orders["records_in_per_s"] == 2 and orders["bytes_in_per_s"] > 0
    assert (orders["bytes_out_per_s"], document["actors"]) == (None, None)
    (controller,) = document["controllers"]
    assert (controller["role"], controller["lag"], controller["cpu"]) == ("active", 0, None)
    asked = ("top", "--once", "--interval", "0.1", "--bootstrap-server", kafka.bootstrap)
    printed = CliRunner().invoke(app, [*asked, "--json", "--sort", "name"])
    assert printed.exit_code == 0, printed.exception
    assert json.loads(printed.stdout)["cluster_id"] == document["cluster_id"]
    text = CliRunner().invoke(app, [*asked])
    assert text.exit_code == 0 and "orders" in text.stdout and "q quit" not in text.stdout


@pytest.mark.core
def test_through_the_listeners_every_look_goes_by_one_client(kafka: Kafka) -> None:
    def accepted(inside: AdminClient) -> float:
        actors = [each for each in Cluster(kafka.address).status()["actors"] if each["kind"] == "broker"]
        told = inside.collect_metrics({each["node_id"]: Endpoint.of(each["endpoint"]) for each in actors})
        return sum(samples.of(table.CONNECTIONS_CREATED).get(("PLAINTEXT",), 0) for samples in told.values())

    with (
        Cluster(kafka.address).admin() as inside,
        raylog.connect(bootstrap_servers=kafka.bootstrap) as cluster,
        cluster.admin() as admin,
    ):
        take_look(cluster, admin)
        before = accepted(inside)
        assert before > 0
        for _ in range(3):
            take_look(cluster, admin)
        assert accepted(inside) == before


@pytest.mark.core
def test_three_controllers_show_and_one_that_dies() -> None:
    with in_process.cluster(brokers=3, controllers=3) as running:
        handle = Cluster(running.address)
        with handle.admin() as admin:

            def shown() -> dict[str, Any]:
                before = take_look(handle, admin)
                return figures(replace(before, at_s=0), replace(take_look(handle, admin), at_s=1), PageOrder())

            def whole() -> dict[str, Any] | None:
                document = shown()
                rows = document["controllers"]
                is_so = all(each["reachable"] and each["lag"] == 0 and each["cpu"] is not None for each in rows)
                return document if is_so and len(rows) == 3 and not document["silent"] else None

            document = eventually(whole, "three controllers without a lag")
            assert [each["broker"] for each in document["controllers"]] == [0, 1, 2]
            active = [each["broker"] for each in document["controllers"] if each["role"] == "active"]
            assert active == [running.active] == [document["quorum"]["leader"]]
            actors = [each["broker"] for each in document["actors"] if each["kind"] == "controller"]
            assert sorted(actors) == [0, 1, 2], "they are among the busiest"
            dead = next(broker for broker in running.controllers if broker != running.active)
            running.crash_controller(dead)

            def lost() -> dict[str, Any] | None:
                document = shown()
                gone = [each["broker"] for each in document["controllers"] if not each["reachable"]]
                return document if gone == [dead] else None

            document = eventually(lost, "the dead one to be missed")
            assert f"cannot be reached: those of broker {dead}" in "\n".join(drawn(document))
            assert document["silent"] == [], "it does not live"
