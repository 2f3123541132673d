"""``raylog actors``: who holds what, one more, a move, one less; and that whoever writes loses nothing by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from operating import Load, Operator

from raylog.client.sync import Consumer, call
from raylog.errors import RaylogError, kafka_error
from raylog.ranges import near_files
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition, broker_of, node_id
from raylog.wire.private import ClusterStatusRequest

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
    status = call(operator.running.address, ClusterStatusRequest()).status
    return next(dict(each["partitions"][0]) for each in status["topics"] if each["name"] == topic)


def holder(operator: Operator, topic: str, broker: int) -> int:
    return next(int(node) for node in part_of(operator, topic)["replica_nodes"] if broker_of(node) == broker)


def is_whole(operator: Operator, topic: str) -> bool:
    """All replicas in sync, and the first one leads."""
    part = part_of(operator, topic)
    return sorted(part["isr"]) == sorted(part["replicas"]) and part["leader"] == part["replicas"][0]


def move(operator: Operator, raylog: Raylog, topic: str, broker: int, actor: int) -> None:
    """Again where that actor has yet to let go of the replica, after an earlier move."""

    def is_done() -> bool:
        try:
            code, answer = raylog("actors", "move", f"{topic}-0", "--broker", str(broker), "--to", str(actor), "--json")
        except kafka_error(ErrorCode.replica_not_available) as refused:
            assert "has yet to let go of it" in str(refused)
            return False
        return bool(code == 0 and answer["actor"] == actor)

    operator.until(is_done)


@pytest.mark.parametrize("brokers", [(0, 1, 2), (0,)], ids=["three replicas", "one replica"])
def test_moves_under_load_lose_double_and_reorder_nothing(
    operator: Operator, raylog: Raylog, brokers: tuple[int, ...]
) -> None:
    topic = operator.new_topic(brokers)
    home, other = holder(operator, topic, 0), added(operator, raylog, 0)
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 50)
        for target in (other, home) * 3:
            move(operator, raylog, topic, 0, target)
            assert holder(operator, topic, 0) == target
            operator.until(lambda: is_whole(operator, topic))
            goal = len(load.acked) + 20
            operator.until(lambda goal=goal: len(load.acked) > goal)  # type: ignore[misc]
    assert not load.errors
    assert load.read_back() == load.acked
    assert operator.folders(topic) == [f"{broker}/{topic}-0" for broker in brokers], "no folder was made or deleted"
    print(f"longest pause {max(load.pauses_ms):.0f} ms")


class FileReader(threading.Thread):
    """Reads a partition's records out of the segment files, as jobs do, and goes on with what has come meanwhile."""

    def __init__(self, operator: Operator, topic: str) -> None:
        super().__init__(name="file reader")
        self._address = operator.running.address
        self._topic = topic
        self._over = threading.Event()
        self.values: list[int] = []
        self.offsets: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._read_on()
            self._read_on()
        except BaseException as error:
            self.error = error

    def _read_on(self) -> None:
        start = len(self.offsets)
        with Consumer(self._address) as consumer:
            end = consumer.end_offsets([(self._topic, 0)])[TopicPartition(self._topic, 0)]
        wanted = OffsetRange(self._topic, 0, start, end)
        for table in read_range(self._address, wanted, ReadOptions(("offset", "value"))) if start < end else ():
            self.offsets += table.column("offset").to_pylist()
            self.values += map(int, table.column("value").to_pylist())

    def __enter__(self) -> FileReader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(120)


@pytest.fixture
def from_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of which records were read."""
    seen: list[str] = []
    opened = near_files._opened

    def spied(told: Any, offset: int) -> Any:
        found = opened(told, offset)
        if found is not None:
            seen.extend(piece[0] for piece in told.pieces)
        return found

    monkeypatch.setattr(near_files, "_opened", spied)
    return seen


@pytest.mark.parametrize("brokers", [(0, 1, 2), (0,)], ids=["three replicas", "one replica"])
def test_who_reads_the_files_reads_on_over_moves(
    operator: Operator, raylog: Raylog, from_files: list[str], brokers: tuple[int, ...]
) -> None:
    topic = operator.new_topic(brokers, segment_bytes="4096")
    home, other = holder(operator, topic, 0), added(operator, raylog, 0)
    with Load(operator, topic) as load, FileReader(operator, topic) as reader:
        for target in (other, home) * 4:
            count, files = len(reader.values), len(from_files)
            operator.until(lambda count=count: len(reader.values) > count + 20 or not reader.is_alive())  # type: ignore[misc]
            operator.until(lambda files=files: len(from_files) > files or not reader.is_alive())  # type: ignore[misc]
            move(operator, raylog, topic, 0, target)
            if target == other:  # otherwise the next move comes while this one goes on
                operator.until(lambda: is_whole(operator, topic))
        count = len(reader.values)
        operator.until(lambda: len(reader.values) > count + 20 or not reader.is_alive())
    if reader.error is not None:
        raise reader.error
    assert not load.errors
    assert reader.offsets == list(range(len(reader.offsets)))
    assert reader.values == load.acked[: len(reader.values)] and len(reader.values) > 9 * 20
    assert {Path(path).parent.name for path in from_files} == {f"{topic}-0"}


def test_a_follower_moves_too(operator: Operator, raylog: Raylog) -> None:
    topic = operator.new_topic((0, 1, 2))
    target = added(operator, raylog, 2)
    with Load(operator, topic) as load:
        operator.until(lambda: len(load.acked) > 20)
        move(operator, raylog, topic, 2, target)
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
    move(operator, raylog, topic, 1, added(operator, raylog, 1))
    operator.admin.delete_topics([topic])
    operator.until(lambda: not operator.folders(topic))


def test_the_list_is_a_table(operator: Operator, raylog: Raylog) -> None:
    operator.new_topic((0,))
    code, printed = raylog("actors", "list")
    assert code == 0
    for word in ("replicas", "busy", "CPU", "memory", "leaders", "live", str(node_id(0, 2))):
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
