"""What is written for a stream, and when; Spark is stood in for by the files that it writes into a checkpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raylog.errors import RaylogError
from raylog.ranges.entries import StreamEntry, first
from raylog.ranges.ledger import StreamLedger
from raylog.ranges.snapshot import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.spark import stream_planner
from raylog.spark.checkpoint import CheckpointProgress, place
from raylog.spark.stream_planner import Logs, StreamPlanner, TriggerPace
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Query:
    """Writes what a query writes; each batch takes all the ledger's entries that none has taken. ``others``: sources before this one."""

    def __init__(self, checkpoint: Path, ledger: Path, *others: str) -> None:
        self.checkpoint, self.ledger, self.others = checkpoint, ledger, others
        self.batch = -1

    def begin(self) -> None:
        newest = max(int(path.stem) for path in self.ledger.glob("0*"))
        self.batch += 1
        ends = [*self.others, place("t", StreamEntry(newest, {}, {T0: 5}))]
        self._write(f"offsets/{self.batch}", json.dumps({"batchWatermarkMs": 0}), *ends)

    def commit(self) -> None:
        self._write(f"commits/{self.batch}", "{}")

    def _write(self, name: str, *lines: str) -> None:
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(("v1", *lines)))


class World:
    """A topic of two partitions, a checkpoint, a clock, and the planner between them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.now_s = 1_000.0
        self.ends = {T0: 0, T1: 0}
        self.committed: list[dict[TopicPartition, int]] = []
        self.refused: RaylogError | None = None
        self.checkpoint = folder / "a checkpoint"
        self.folder = self.checkpoint / "raylog" / "t"
        self.query = Query(self.checkpoint, self.folder)
        self.options = options
        self.open()

    def open(self) -> None:
        """The planner of a driver that starts."""
        self.ledger = StreamLedger(str(self.folder), {"topics": ["t"]})
        if self.ledger.last is None:
            self.ledger.append(first({"t": "id"}, dict(self.ends)), [])
        self.planner = StreamPlanner(
            self.ledger,
            CheckpointProgress(self.checkpoint, self.ledger.name),
            look=lambda: ({"t": "id"}, {key: LogEnds(0, end, {}) for key, end in self.ends.items()}),
            parts=lambda entry: list(entry.ranges),
            commit=self.commit,
            clock=lambda: self.now_s,
            **self.options,
        )

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        if self.refused is not None:
            raise self.refused
        self.committed.append(dict(ends))

    def round(self, seconds: float = 0.1, *, grown: int = 0, partition: int = 0) -> list[int]:
        """Time passes, a partition grows; the entries whose files are there afterwards."""
        self.now_s += seconds
        self.ends[TopicPartition("t", partition)] += grown
        self.planner.round()
        return [number for number in self.ledger.numbers() if number]

    def entry(self, number: int) -> StreamEntry:
        return self.ledger.entry(number)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def test_what_came_is_written_at_once_when_nothing_waits(world: World) -> None:
    assert world.round() == []
    assert world.round(grown=5) == [1]
    assert world.entry(1).ranges == (OffsetRange("t", 0, 0, 5),)


def test_while_an_entry_waits_what_comes_is_gathered(world: World) -> None:
    world.round(grown=1)
    assert world.round(0.5, grown=1) == [1]
    assert world.round(0.6, grown=1) == [1, 2]
    assert world.entry(2).ranges == (OffsetRange("t", 0, 1, 3),)


def test_the_longer_none_is_taken_the_fewer_are_written(world: World) -> None:
    for _ in range(2 * 3600):
        numbers = world.round(1, grown=1)
    assert len(numbers) < 100


def test_a_batch_takes_all_and_the_next_one_has_its_entry_at_once(world: World) -> None:
    world.round(grown=1)
    world.round(2, grown=1)
    world.query.begin()
    assert world.round(grown=1) == [1, 2, 3]


def test_files_are_forgotten_when_their_batch_is_committed_but_for_the_newest(world: World) -> None:
    world.round(grown=1)
    world.query.begin()
    world.round(grown=1)
    assert world.ledger.numbers() == [0, 1, 2]
    world.query.commit()
    assert world.round() == [1, 2], "what is below the newest committed one is gone"
    world.query.begin()
    world.query.commit()
    assert world.round() == [2]


def test_what_a_batch_reads_that_has_begun_stays(world: World) -> None:
    world.round(grown=1)
    world.query.begin()
    world.round(grown=1)
    world.round(2, grown=1)
    world.query.commit()
    world.query.begin()
    assert world.round(grown=1) == [1, 2, 3, 4], "2 and 3 are read, and may be read again"


def test_a_group_is_told_what_committed_batches_have_read(world: World) -> None:
    world.round(grown=3)
    world.query.begin()
    world.round(grown=4, partition=1)
    assert world.committed == []
    world.query.commit()
    world.round()
    assert world.committed == [{T0: 3, T1: 0}]
    world.query.begin()
    world.query.commit()
    world.round()
    assert world.committed[-1] == {T0: 3, T1: 4}


def test_a_group_that_can_not_be_committed_to_holds_nothing_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.refused = RaylogError("the group has members")
    world.round(grown=3)
    world.query.begin()
    world.query.commit()
    assert world.round(grown=4) == [1, 2]
    assert "its group does not show the progress: the group has members" in caplog.text
    world.refused = None
    world.round(1.1)
    assert world.committed == [{T0: 3, T1: 0}]


def test_a_stream_is_found_among_several_sources(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.query = Query(world.checkpoint, world.folder, "-", place("u", StreamEntry(7, {}, {})), '{"logOffset":3}')
    world.round(grown=1)
    world.query.begin()
    world.query.commit()
    assert world.round(grown=1) == [1, 2] and world.committed == [{T0: 1, T1: 0}]
    world.ledger.close()


def test_no_trigger_finds_more_than_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path, offsets_max=10)
    world.round(grown=25)
    world.round(5, grown=1, partition=1)
    assert [sum(map(len, world.entry(number).ranges)) for number in world.ledger.numbers()[1:]] == [10]
    world.query.begin()
    world.round(grown=1)
    world.round(5)
    assert sum(map(len, world.entry(2).ranges)) == 10 and world.ledger.numbers() == [0, 1, 2]
    world.ledger.close()


def test_a_restarted_driver_goes_on_and_knows_what_is_not_committed(tmp_path: Path) -> None:
    world = World(tmp_path, offsets_max=10)
    world.round(grown=4)
    world.query.begin()
    world.round(grown=8)
    world.ledger.close()
    world.open()
    assert world.round(5, grown=9) == [1, 2, 3]
    assert [world.entry(number).ranges for number in (2, 3)] == [
        (OffsetRange("t", 0, 4, 12),),
        (OffsetRange("t", 0, 12, 14),),
    ]
    world.query.commit()
    world.round()
    assert world.committed == [{T0: 4, T1: 0}]
    world.ledger.close()


def test_all_that_is_there_now_is_written_in_entries_of_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path, offsets_max=10)
    world.ends[T0] = 25
    world.planner.plan_all()
    assert [sum(map(len, world.entry(number).ranges)) for number in world.ledger.numbers()[1:]] == [10, 10, 5]
    world.ledger.close()


def test_pace() -> None:
    pace = TriggerPace(poll_s=0.1)
    assert pace.is_due(10, 9.5, None) and not pace.is_due(10, 9.95, None)
    assert pace.is_due(10, 9, 9) and not pace.is_due(10, 9.1, 9)
    assert pace.is_due(110, 100, 10) and not pace.is_due(110, 100.1, 10)


def test_a_planner_that_ends_gives_away_the_ledger_and_its_connections(tmp_path: Path) -> None:
    ended: list[str] = []
    world = World(tmp_path, on_end=lambda: ended.append("closed"))
    world.planner.start()
    world.planner.stop()
    assert ended == ["closed"]
    StreamLedger(str(world.folder), {"topics": ["t"]}).close()


def test_any_other_error_ends_the_planning_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, is_over=lambda: 1 // 0 == 0)
    world.planner.check()
    world.planner.start()
    world.planner._thread.join(180)
    with pytest.raises(RaylogError, match=r"is no longer planned, because of ZeroDivisionError") as raised:
        world.planner.check()
    assert isinstance(raised.value.__cause__, ZeroDivisionError) and "is no longer planned" in caplog.text
    StreamLedger(str(world.folder), {"topics": ["t"]}).close()


def test_a_cluster_that_does_not_answer_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([RaylogError("no leader"), OSError("no space")])
    asked_again = threading.Event()

    def look() -> Logs:
        for error in answers:
            raise error
        asked_again.set()
        return {"t": "id"}, {T0: LogEnds(0, 0, {})}

    monkeypatch.setattr(stream_planner, "FAILED_PAUSE_S", 0)
    world = World(tmp_path)
    monkeypatch.setattr(world.planner, "_look", look)
    world.planner.start()
    assert asked_again.wait(180)
    world.planner.stop()
    world.planner.check()
    assert "will be retried: no leader" in caplog.text and "will be retried: no space" in caplog.text


def test_a_planner_that_only_clears_up_plans_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.planner.start(plans=False)
    world.ends[T0] = 25
    world.planner.plan_all()
    assert world.ledger.numbers() == [0]
    world.planner.stop()


def test_a_planner_that_another_one_has_succeeded_writes_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.planner.start()
    world.planner.stop()
    world.ends[T0] = 25
    world.planner.plan_all()
    assert world.ledger.numbers() == [0]
