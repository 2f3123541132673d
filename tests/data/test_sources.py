"""A source of Ray Data without Ray: what its tasks are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raylog.data
import raylog.testing
from raylog.data import reading
from raylog.data import snapshots as snapshots_of_reads
from raylog.data.reading import TopicSource
from raylog.errors import ConfigError
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions
from raylog.ranges.snapshot import TopicsSnapshot, take

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # Ray Data warns of its own


def test_tasks_read_with_the_options_of_their_source() -> None:
    def blocks(**options: Any) -> list[int]:
        [task] = TopicSource(kafka.address, snapshot, ReadOptions(("value",), **options)).get_read_tasks(1)
        return [block.num_rows for block in task()]

    with raylog.testing.broker(topics={"t": 1}) as kafka:
        for _ in range(3):
            kafka.write("t", b"a", b"b")
        snapshot = take(kafka.address, "t", bound("starting"), bound("ending"))
        assert blocks() == [6]
        assert blocks(arrow_bytes=1) == [2, 2, 2], "one for each batch"


@pytest.fixture(autouse=True)
def no_other_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier Ray of this machine noted about itself is not looked at."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reads of ranges were told, each a range and its options; ``read_topic`` gives its source, for want of Ray."""
    told: list[Any] = []
    real = reading.read_range

    def noted(address: Any, part: Any, options: ReadOptions, **more: Any) -> Any:
        told.append((part, options))
        return real(address, part, options, **more)

    monkeypatch.setattr(reading, "read_range", noted)
    monkeypatch.setattr(reading.ray.data, "read_datasource", lambda source, **options: source)
    return told


def test_the_options_of_a_read_are_those_of_its_tasks(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots: list[dict[str, Any]] = []

    def noted(*given: Any, **options: Any) -> TopicsSnapshot:
        snapshots.append(options)
        return take(*given, **options)

    monkeypatch.setattr(snapshots_of_reads, "take", noted)
    with raylog.testing.broker(topics={"t": 1}) as kafka:
        kafka.write("t", *(b"%d" % n for n in range(12)))
        assert len(raylog.data.read_topic("t", cluster=kafka, max_records_per_task=5).get_read_tasks(1)) == 3
        assert len(raylog.data.read_topic("t", cluster=kafka, min_tasks=4).get_read_tasks(1)) == 4
        for wanted in (True, False):
            source = raylog.data.read_topic(
                "t", cluster=kafka, columns=["key"], read_committed=wanted, fail_on_data_loss=not wanted
            )
            (task,) = source.get_read_tasks(1)
            assert [block.num_rows for block in task()] == [12]
            _, options = asked.pop()
            for each in (
                snapshots[-1],
                {"read_committed": options.read_committed, "fail_on_data_loss": options.fail_on_data_loss},
            ):
                assert (each["read_committed"], each["fail_on_data_loss"]) == (wanted, not wanted)
            assert options.columns == ("key",)


def test_columns_that_ray_data_does_not_use_are_not_read(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with raylog.testing.broker(topics={"t": 1}) as kafka:
        kafka.write("t", b"a", b"b")
        for used, read in ((["offset"], ("offset",)), ([], ("partition",))):
            source = raylog.data.read_topic("t", cluster=kafka)
            monkeypatch.setattr(source, "get_projection_map", lambda used=used: {name: name for name in used})
            (task,) = source.get_read_tasks(1)
            (block,) = task()
            assert (asked[-1][1].columns, tuple(block.schema.names), block.num_rows) == (read, read, 2)


def test_rows_that_do_not_fit_are_refused_before_a_write_and_in_it() -> None:
    wrong = pa.table({"value": [1, 2]})
    with raylog.testing.broker(topics={"t": 1}) as kafka:
        sink = raylog.data.TopicSink(kafka.address, "t", {})
        with pytest.raises(ConfigError, match="column value is int64"):
            sink.on_write_start(wrong.schema)
        sink.on_write_start(None)  # Ray does not always know
        with pytest.raises(ConfigError, match="column value is int64"):
            sink.write([wrong], None)
        assert kafka.records("t") == []
