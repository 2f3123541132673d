"""``raylog actors``: who holds what, one more, a move, one less; and that whoever writes loses nothing by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from operating import Load, Operator

from raylog.client.sync import call
from raylog.errors import RaylogError
from raylog.types import broker_of, node_id
from raylog.wire.private import ClusterStatus

Raylog = Callable[..., tuple[int, Any]]


def actors(raylog: Raylog, broker: int) -> dict[int, dict[str, Any]]:
    code, found = raylog("actors", "list", "--json")
    assert code == 0
    return {each["actor"]: each for each in found if each["broker"] == broker}


def added(operator: Operator, raylog: Raylog, broker: int) -> int:
    """One more actor, when it is live."""
    code, answer = raylog("actors", "add", "--broker", str(broker), "--json")
    assert code == 0
    operator.until(lambda: actors(raylog, broker)[answer["actor"]]["state"] == "live")
    return int(answer["actor"])


def part_of(operator: Operator, topic: str) -> dict[str, Any]:
    status = call(operator.running.address, ClusterStatus()).status
    return next(dict(each["partitions"][0]) for each in status["topics"] if each["name"] == topic)


def holder(operator: Operator, topic: str, broker: int) -> int:
    return next(int(node) for node in part_of(operator, topic)["replica_nodes"] if broker_of(node) == broker)


def is_whole(operator: Operator, topic: str) -> bool:
    """All replicas in sync, and the first one leads."""
    part = part_of(operator, topic)
    return sorted(part["isr"]) == sorted(part["replicas"]) and part["leader"] == part["replicas"][0]


def move(raylog: Raylog, topic: str, broker: int, actor: int) -> None:
    code, answer = raylog("actors", "move", f"{topic}-0", "--broker", str(broker), "--to", str(actor), "--json")
    assert code == 0 and answer["actor"] == actor


@pytest.mark.parametrize("brokers", [(0, 1, 2), (0,)], ids=["three replicas", "one replica"])
def test_moves_under_load_lose_double_and_reorder_nothing(
    operator: Operator, raylog: Raylog, brokers: tuple[int, ...]
) -> None:
    topic = operator.new_topic(brokers)
    home, other = holder(operator, topic, 0), added(operator, raylog, 0)
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 50)
        for target in (other, home) * 3:
            move(raylog, topic, 0, target)
            assert holder(operator, topic, 0) == target
            operator.until(lambda: is_whole(operator, topic))
            goal = len(load.acked) + 20
            operator.until(lambda goal=goal: len(load.acked) > goal)  # type: ignore[misc]
    assert not load.errors
    assert load.read_back() == load.acked
    assert operator.folders(topic) == [f"{broker}/{topic}-0" for broker in brokers], "no folder was made or deleted"
    print(f"longest pause {max(load.pauses_ms):.0f} ms")


def test_a_follower_moves_too(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((0, 1, 2))
    target = added(operator, raylog, 2)
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 20)
        move(raylog, topic, 2, target)
        operator.until(lambda: is_whole(operator, topic) and holder(operator, topic, 2) == target)
    assert not load.errors and load.read_back() == load.acked


def test_a_retired_actor_gives_everything_away_and_is_gone(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((3,), (3,))
    home, other = holder(operator, topic, 3), added(operator, raylog, 3)
    count = actors(raylog, 3)[home]["replicas"]
    code, answer = raylog("actors", "retire", str(home), "--json")
    assert code == 0 and len(answer["moved"]) == count and not answer["remaining"]
    operator.until(lambda: home not in actors(raylog, 3))
    assert actors(raylog, 3)[other]["replicas"] == count and holder(operator, topic, 3) == other
    operator.until(lambda: is_whole(operator, topic))


def test_a_topic_is_deleted_right_after_a_move(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((1, 2))
    move(raylog, topic, 1, added(operator, raylog, 1))
    operator.admin.delete_topics([topic])
    operator.until(lambda: not operator.folders(topic))


def test_the_list_is_a_table(operator: Operator, raylog: Raylog) -> None:
    operator.new_topic((0,))
    code, printed = raylog("actors", "list")
    assert code == 0
    for word in ("replicas", "CPU", "memory", "leaders", "live", str(node_id(0, 2))):
        assert word in printed, printed
    operator.until(lambda: any(each["memory_bytes"] for each in actors(raylog, 0).values()))


def test_what_cannot_be_is_refused_by_name(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((0, 1))
    for arguments, words in (
        (("move", f"{topic}-0", "--broker", "2", "--to", str(node_id(2, 2))), "broker 2 has no replica"),
        (("move", f"{topic}-9", "--broker", "0", "--to", str(node_id(0, 2))), "there is no partition"),
        (("move", f"{topic}-0", "--broker", "0", "--to", str(holder(operator, topic, 1))), "is of broker 1"),
        (("move", f"{topic}-0", "--broker", "0", "--to", str(node_id(0, 99))), "is not running"),
        (("add", "--broker", "77"), "broker 77 is not registered"),
        (("add", "--broker", "0", "--disk", "/nowhere"), "has no disk"),
        (("retire", str(node_id(0, 0))), "there is no server actor"),
    ):
        with pytest.raises(RaylogError, match=words):
            raylog("actors", *arguments)
    assert raylog("actors", "move", "orders", "--broker", "0", "--to", "5")[0] == 2
    assert raylog("actors", "add", "--broker", "0", "--kind", "nonsense")[0] == 2
