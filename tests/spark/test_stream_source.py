"""What Spark is told by the source of a stream: how far there is something, and which tasks a batch has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ConfigError, RaylogError
from raylog.ranges.entries import StreamEntry, first
from raylog.ranges.ledger import StreamLedger
from raylog.ranges.splitting import OffsetRange
from raylog.spark import stream_source
from raylog.spark.checkpoint import entry_number, place
from raylog.spark.stream_source import LedgerSource, bundled
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

T0 = TopicPartition("t", 0)


class Offset:
    """Spark's ``SerializedOffset``, and the ``Option`` of one."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def json(self) -> str:
        assert self.text is not None
        return self.text

    def isDefined(self) -> bool:
        return self.text is not None

    def get(self) -> Offset:
        return self


NONE = Offset(None)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[StreamLedger]:
    """Entries 1 to 3 of two offsets each."""
    made = StreamLedger(str(tmp_path / "t"), {})
    made.append(first({"t": "id"}, {T0: 0}), [])
    for number in range(1, 4):
        made.append(entry := entry_of_two(number), list(entry.ranges))
    yield made
    made.close()


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was made into batches, without a JVM: the tasks' texts and hosts."""
    made: list[Any] = []
    monkeypatch.setattr(stream_source, "as_offset", lambda spark, text: Offset(text))
    monkeypatch.setattr(stream_source, "tasks_frame", lambda spark, *batch: batch)
    monkeypatch.setattr(stream_source, "streaming_batch", made.append)
    monkeypatch.setattr(stream_source, "running_query", lambda spark: spark.query)
    return made


class Planner:
    """As far as a source knows it."""

    def __init__(self, ledger: StreamLedger) -> None:
        self.ledger = ledger
        self.error: RaylogError | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def plan_all(self) -> None:
        self.ledger.append(entry_of_two(self.ledger.numbers()[-1] + 1), [])


def source(ledger: StreamLedger, *, query: str | None = None, planner: Any = None, **options: Any) -> LedgerSource:
    spark = SimpleNamespace(query=query)
    options = {"records": lambda frame: frame, "tasks": 2, **options}
    return LedgerSource(spark, ledger, ledger.directory.parent, planner or Planner(ledger), **options)


def entry_of_two(number: int) -> StreamEntry:
    part = OffsetRange("t", 0, 2 * number - 2, 2 * number, (f"host-{number % 2}",))
    return StreamEntry(number, {"t": "id"}, {T0: part.end}, (part,))


def at(number: int) -> Offset:
    return Offset(place("t", StreamEntry(number, {}, {T0: 2 * number})))


def commit(checkpoint: Path, batch: int, number: int) -> None:
    """What Spark writes when a batch up to that entry is done."""
    for folder, text in (("offsets", f"v1\n{{}}\n{at(number).json()}"), ("commits", "v1\n{}")):
        (checkpoint / folder).mkdir(exist_ok=True)
        (checkpoint / folder / str(batch)).write_text(text)


def test_a_batch_is_what_lies_between_two_places(ledger: StreamLedger, handed: list[Any]) -> None:
    asked = source(ledger)
    end = asked.latestOffset(None, None)
    assert end.json() == '{"stream": "t", "entry": 3, "ends": {"t": {"0": 6}}}'
    assert asked.latestOffset(end, None) is end
    asked.getBatch(at(1), end)
    ((tasks, hosts),) = handed
    assert [[line[1:60] for line in task.splitlines()] for task in tasks] == [
        ['"topic": "t", "partition": 0, "start": 2, "end": 4, "hosts"'],
        ['"topic": "t", "partition": 0, "start": 4, "end": 6, "hosts"'],
    ]
    assert list(hosts) == [("host-0",), ("host-1",)]
    asked.getBatch(NONE, at(1))
    assert len(handed[1][0]) == 1


def entries_of_batches(asked: LedgerSource, count: int) -> list[int | None]:
    """The entries that so many batches, one after the other, are read up to."""
    end: Any = None
    seen = []
    for _ in range(count):
        end = asked.latestOffset(end, None)
        seen.append(entry_number(end.json(), "t"))
    return seen


def test_no_batch_has_more_than_the_limit_whatever_waits(ledger: StreamLedger, handed: list[Any]) -> None:
    assert entries_of_batches(source(ledger, offsets_max=4), 3) == [2, 3, 3]
    assert entries_of_batches(source(ledger, offsets_max=3), 3) == [1, 2, 3]
    assert entries_of_batches(source(ledger, offsets_max=1), 3) == [1, 2, 3], "an entry is a batch at least"


def test_a_trigger_for_what_is_there_takes_what_the_topics_hold_then_and_no_more(
    ledger: StreamLedger, handed: list[Any]
) -> None:
    asked = source(ledger)
    asked.prepareForTriggerAvailableNow()
    ledger.append(StreamEntry(5, {}, {T0: 12}), [])
    assert entries_of_batches(asked, 2) == [4, 4], "entry 4 is written by then"
    asked.stop()
    assert entries_of_batches(asked, 1) == [5], "another query of the same frame"


def test_entries_that_are_gone_are_passed_by_only_where_they_are_committed(
    ledger: StreamLedger, handed: list[Any]
) -> None:
    ledger.forget_below(3)
    commit(ledger.directory.parent, 0, 1)
    with pytest.raises(ConfigError, match=r"entry 2 of .* is gone, and the query has not read it"):
        source(ledger).getBatch(NONE, at(3))
    commit(ledger.directory.parent, 1, 2)
    source(ledger).getBatch(NONE, at(3))
    assert len(handed[0][0]) == 1


def test_a_query_with_another_checkpoint_is_refused(ledger: StreamLedger, handed: list[Any]) -> None:
    (ledger.directory.parent / "metadata").write_text('{"id": "one"}')
    assert source(ledger, query="one").latestOffset(None, None) is not None
    other = source(ledger, query="another")
    with pytest.raises(ConfigError, match="the checkpoint that read_stream was given for t: give it that one"):
        other.latestOffset(None, None)
    with pytest.raises(ConfigError, match="call read_stream again with its checkpoint"):
        other.getBatch(NONE, at(1))


def test_an_error_of_the_planner_ends_the_query(ledger: StreamLedger, handed: list[Any]) -> None:
    planner = Planner(ledger)
    asked = source(ledger, planner=planner)
    assert asked.latestOffset(None, None) is not None
    planner.error = RaylogError("the planner is broken")
    with pytest.raises(RaylogError, match="the planner is broken"):
        asked.latestOffset(at(3), None)


@pytest.mark.parametrize("text", ['{"logOffset":3}', '{"stream": "u", "entry": 3, "ends": {}}', "-", "5"])
def test_a_place_of_something_else_is_refused(ledger: StreamLedger, handed: list[Any], text: str) -> None:
    with pytest.raises(ConfigError, match="in the place of stream t: it belongs to another query"):
        source(ledger).latestOffset(Offset(text), None)


ranges = st.builds(
    lambda partition, length, host: OffsetRange("t", partition, 0, length, host),
    st.integers(0, 9),
    st.integers(0, 1000),
    st.sampled_from([(), ("a",), ("b",), ("a", "b"), ("b", "a")]),
)


@given(st.lists(ranges), st.integers(1, 8), st.none() | st.integers(1000, 3000))
def test_each_range_is_in_one_task_with_others_on_the_same_hosts(
    parts: list[OffsetRange], tasks: int, task_offsets_max: int | None
) -> None:
    groups = bundled(parts, tasks, task_offsets_max)
    assert sorted(index for group in groups for index in group) == list(range(len(parts)))
    assert all(groups)
    assert all(len({frozenset(parts[index].hosts) for index in group}) == 1 for group in groups)
    if task_offsets_max is None:
        kinds = len({frozenset(part.hosts) for part in parts})
        assert len(groups) <= min(len(parts), tasks + kinds)
    else:
        assert all(sum(len(parts[index]) for index in group) <= task_offsets_max for group in groups)


def test_tasks_have_about_equally_many_offsets() -> None:
    parts = [OffsetRange("t", number, 0, length) for number, length in enumerate([900, 10, 20, 400, 500, 30])]
    loads = [sum(len(parts[index]) for index in group) for group in bundled(parts, 2)]
    assert sorted(loads) == [930, 930]
    limited = [sum(len(parts[index]) for index in group) for group in bundled(parts, 2, 900)]
    assert max(limited) == 900 and len(limited) == 3
