"""Writes in transactions: each row once for readers of committed records, whatever is run again, skipped or taken over."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import raylog.spark
from raylog.errors import ConfigError, kafka_error
from raylog.spark import stream_writing, writing
from raylog.spark.batch_commits import BatchCommits
from raylog.spark.stream_writing import StreamWriteSummary
from raylog.spark.write_tasks import WriteTasks
from raylog.testing.kafka import Kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

FencedError = kafka_error(ErrorCode.producer_fenced)
NOW = {"availableNow": True}
_numbers = itertools.count()


@pytest.fixture
def topics(kafka: Kafka) -> tuple[str, str]:
    """One to read and one to write."""
    names = [f"once-{next(_numbers)}-{name}" for name in ("a", "b")]
    for name in names:
        kafka.create_topic(name, 2)
    return names[0], names[1]


@pytest.fixture
def topic(topics: tuple[str, str]) -> str:
    return topics[1]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "a checkpoint"


@dataclass(frozen=True, slots=True)
class FailingTasks(WriteTasks):
    """Write tasks that fail at their very end: all rows are sent, and the task's row is with Spark. ``fuse``: a
    file; with the text "once" a single attempt fails that sent rows, with "always" all of them as long as it is
    there.
    """

    fuse: str = ""

    def __call__(self, batches: Any) -> Iterator[Any]:
        sent = 0
        for result in WriteTasks.__call__(self, batches):
            sent += sum(result.column("records").to_pylist())
            yield result
        fuse = Path(self.fuse)
        with suppress(FileNotFoundError):
            if fuse.read_text() == "once":
                if not sent:
                    return
                fuse.rename(f"{fuse}.burnt")
            raise RuntimeError("this attempt fails, after its rows were sent")


@pytest.fixture
def fuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What has tasks fail: see there."""
    path = tmp_path / "fuse"
    for module in (writing, stream_writing):
        monkeypatch.setattr(module, "WriteTasks", partial(FailingTasks, fuse=str(path)))
    return path


def committed(spark: Any, kafka: Kafka, topic: str) -> list[str]:
    """The values that a reader of committed records gets now."""
    rows = raylog.spark.read(spark, topic, cluster=kafka, isolation_level="read_committed")
    return sorted(row.value for row in rows.selectExpr("cast(value as string) value").collect())


def texts(end: int) -> list[str]:
    return sorted(str(number) for number in range(end))


# ---------------------------------------------------------------------- batches


def test_a_task_that_is_run_again_leaves_every_row_once(spark: Any, kafka: Kafka, topic: str, fuse: Path) -> None:
    rows = spark.range(0, 30, 1, 3).selectExpr("cast(id as string) value")
    fuse.write_text("once")
    assert raylog.spark.write(rows, topic, cluster=kafka) == raylog.spark.WriteSummary(30, 3, 1)
    assert committed(spark, kafka, topic) == texts(30)
    assert len(kafka.records(topic)) == 40, "a failed attempt's are there, aborted"


def test_a_write_that_fails_shows_nothing_and_holds_no_reader_up(
    spark: Any, kafka: Kafka, topic: str, fuse: Path
) -> None:
    rows = spark.range(0, 20, 1, 2).selectExpr("cast(id as string) value")
    fuse.write_text("always")
    with pytest.raises(Exception, match="this attempt fails"):
        raylog.spark.write(rows, topic, cluster=kafka)
    assert kafka.records(topic) and committed(spark, kafka, topic) == []
    fuse.unlink()
    raylog.spark.write(rows, topic, cluster=kafka)
    assert committed(spark, kafka, topic) == texts(20)


def test_what_was_written_can_be_read_when_the_write_returns(spark: Any, kafka: Kafka, topic: str) -> None:
    for number in range(3):
        rows = spark.range(number, number + 1, 1, 1).selectExpr("cast(id as string) value")
        raylog.spark.write(rows, topic, cluster=kafka)
        assert committed(spark, kafka, topic) == texts(number + 1)


def test_tasks_without_rows_do_not_join_and_a_write_without_rows_is_one(spark: Any, kafka: Kafka, topic: str) -> None:
    rows = spark.range(0, 40, 1, 4).where("id < 10").selectExpr("cast(id as string) value")
    assert raylog.spark.write(rows, topic, cluster=kafka) == raylog.spark.WriteSummary(10, 4, 0)
    assert raylog.spark.write(rows.where("false"), topic, cluster=kafka).records == 0
    assert committed(spark, kafka, topic) == texts(10)


def test_options_that_do_not_go_with_transactions_are_refused(
    spark: Any, kafka: Kafka, topic: str, checkpoint: Path
) -> None:
    rows = spark.sql("select 'v' value")
    stream = spark.readStream.format("rate").load().selectExpr("'v' as value")
    for options, message in (
        ({"transactional_id": "mine"}, "chooses the transactional.id .* itself"),
        ({"transactional.id": "mine", "exactly_once": False}, "chooses the transactional.id .* itself"),
        ({"acks": 1}, r"acks=all, not acks=1; or give exactly_once=False"),
        ({"enable_idempotence": False}, r"enable.idempotence=true.*; or give exactly_once=False"),
        ({"exactly_once": "perhaps"}, "exactly_once='perhaps': give true or false"),
        ({"exactly_onc": False}, "unknown option 'exactly_onc': did you mean 'exactly_once'"),
    ):
        with pytest.raises(ConfigError, match=message):
            raylog.spark.write(rows, topic, cluster=kafka, **options)
        with pytest.raises(ConfigError, match=message):
            raylog.spark.write_stream(stream, topic, cluster=kafka, checkpoint=str(checkpoint), **options)
    assert raylog.spark.write(rows, topic, cluster=kafka, exactly_once=False, acks=1).records == 1


def driven(driver: str, kafka: Kafka, topic: str, folder: Path, *arguments: str) -> dict[str, int]:
    """What a driver's process prints when it has written to the topic."""
    address = folder / "address"
    address.write_bytes(pickle.dumps(kafka.address))
    done = subprocess.run(
        [sys.executable, driver, str(address), topic, str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_executor_that_is_killed_leaves_every_row_once(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    import executors_driver  # here: Spark's workers import this module, and find no support of tests

    found = driven(executors_driver.__file__, kafka, topic, tmp_path)
    rows = executors_driver.ROWS
    assert (found["records"], found["tasks"], found["read"], found["different"]) == (rows, 4, rows, rows), found
    assert (tmp_path / "struck").exists() and found["reruns"] >= 1
    assert len(kafka.records(topic)) >= rows + rows // 4, "those of the dead are there, aborted"


@pytest.mark.slow
@pytest.mark.parametrize("winner", [0, 1])
def test_a_task_that_is_run_speculatively_leaves_every_row_once(
    kafka: Kafka, topic: str, tmp_path: Path, winner: int
) -> None:
    """Both attempts have sent all rows, and either may be the one that counts."""
    import speculating_driver

    found = driven(speculating_driver.__file__, kafka, topic, tmp_path, str(winner))
    rows = speculating_driver.ROWS
    assert (found["records"], found["tasks"], found["read"], found["different"]) == (rows, 4, rows, rows), found
    assert {each.name for each in tmp_path.glob("sent-*")} == {"sent-0", "sent-1"} and found["reruns"] == winner
    assert len(kafka.records(topic)) == rows + rows // 4, "those of the other attempt are there, aborted"


# ---------------------------------------------------------------------- streams


def stream_of(spark: Any, kafka: Kafka, topic: str, checkpoint: Path, **options: Any) -> Any:
    """What a topic holds now, committed."""
    return raylog.spark.read_stream(
        spark, topic, checkpoint=str(checkpoint), cluster=kafka, starting_offsets="earliest", available_now=True,
        isolation_level="read_committed", **options,
    )  # fmt: skip


def finished(frame: Any, topic: str, kafka: Kafka, checkpoint: Path, **options: Any) -> StreamWriteSummary:
    """Write what there is, to the end."""
    query = raylog.spark.write_stream(
        frame, topic, cluster=kafka, checkpoint=str(checkpoint), **({"trigger": NOW} | options)
    )
    try:
        assert query.awaitTermination(180), "the query goes on"
    finally:
        query.stop()
    return raylog.spark.write_stream_summary(query)


def forget_commit(checkpoint: Path, number: int) -> None:
    """As if the driver had died before Spark noted the batch as done."""
    for path in (checkpoint / "commits").glob(f"*{number}*"):
        path.unlink()


def test_a_batch_that_failed_is_written_once(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path, fuse: Path
) -> None:
    a, b = topics
    kafka.write(a, *(b"%d" % number for number in range(20)))

    def copied() -> StreamWriteSummary:
        frame = stream_of(spark, kafka, a, checkpoint, max_offsets_per_trigger=10).select("value")
        return finished(frame, b, kafka, checkpoint)

    fuse.write_text("always")
    with pytest.raises(Exception, match="this attempt fails"):
        copied()
    assert committed(spark, kafka, b) == [] and len(kafka.records(b)) == 20, "sent twice, and aborted"
    fuse.unlink()
    assert copied() == StreamWriteSummary(records=20, batches=2)
    assert committed(spark, kafka, b) == texts(20)
    assert not (checkpoint / "raylog" / ".write.fence").exists()


@pytest.fixture
def only_batches_with_rows(spark: Any) -> Iterator[None]:
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    spark.conf.set(name, "false")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("only_batches_with_rows")
def test_a_batch_that_was_committed_is_not_written_again_and_still_moves_the_watermark(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path
) -> None:
    a, b = topics

    def deduplicated() -> StreamWriteSummary:
        frame = stream_of(spark, kafka, a, checkpoint).selectExpr(
            "cast(value as string) value", "timestamp_seconds(cast(cast(value as string) as bigint)) at"
        )
        rows = frame.withWatermark("at", "1 second").dropDuplicates(["value", "at"]).select("value")
        return finished(rows, b, kafka, checkpoint)

    kafka.write(a, b"1", b"2", b"100", b"100")
    assert deduplicated() == StreamWriteSummary(records=3, batches=1)
    forget_commit(checkpoint, 0)
    kafka.write(a, b"100", b"200")
    assert deduplicated() == StreamWriteSummary(records=1, batches=1, skipped_batches=1), "100 is known"
    kafka.write(a, b"50")
    assert deduplicated() == StreamWriteSummary(records=0, batches=1), (
        "late by the watermark of the batch that was skipped"
    )
    assert committed(spark, kafka, b) == ["1", "100", "2", "200"]


def test_a_batch_that_is_planned_anew_is_not_taken_for_the_one_that_was_committed(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path
) -> None:
    a, b = topics
    kafka.write(a, b"0")
    frame = stream_of(spark, kafka, a, checkpoint).select("value")
    finished(frame, b, kafka, checkpoint)
    forget_commit(checkpoint, 0)
    plan = checkpoint / "offsets" / "0"
    plan.write_text(plan.read_text().replace('"batchTimestampMs":', '"batchTimestampMs":1'))
    (checkpoint / "offsets" / ".0.crc").unlink()
    with pytest.raises(Exception, match="has planned batch 0 anew after batch 0 was committed"):
        finished(stream_of(spark, kafka, a, checkpoint).select("value"), b, kafka, checkpoint)
    assert committed(spark, kafka, b) == ["0"]


def test_streams_in_a_chain_pass_every_row_on_once(
    spark: Any, kafka: Kafka, topics: tuple[str, str], tmp_path: Path, fuse: Path
) -> None:
    a, b = topics
    c = f"{b}-c"
    kafka.create_topic(c, 2)
    for end in (10, 20):
        kafka.write(a, *(b"%d" % number for number in range(end - 10, end)))
        for source, target in ((a, b), (b, c)):
            frame = stream_of(spark, kafka, source, tmp_path / source).select("value")
            fuse.write_text("once")
            assert finished(frame, target, kafka, tmp_path / source) == StreamWriteSummary(10, 1, reruns=1)
        assert committed(spark, kafka, c) == texts(end)
    assert len(kafka.records(c)) > 20, "failed attempts' are there, aborted"


def test_a_stream_that_was_written_at_least_once_goes_on_exactly_once(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path, fuse: Path
) -> None:
    a, b = topics
    fence = checkpoint / "raylog" / ".write.fence"
    kafka.write(a, *(b"%d" % number for number in range(10)))

    def copied(**options: Any) -> StreamWriteSummary:
        frame = stream_of(spark, kafka, a, checkpoint).select("value")
        return finished(frame, b, kafka, checkpoint, **options)

    fuse.write_text("always")
    with pytest.raises(Exception, match="this attempt fails"):
        copied(exactly_once=False)
    fuse.unlink()
    assert fence.exists() and len(committed(spark, kafka, b)) == 20, "at least once"
    assert copied() == StreamWriteSummary(records=10, batches=1, repeated_batches=1)
    assert not fence.exists()
    kafka.write(a, b"10")
    assert copied() == StreamWriteSummary(records=1, batches=1)
    assert committed(spark, kafka, b) == sorted(3 * texts(10) + ["10"])


# ---------------------------------------------------------------------- two runs of a query


@pytest.fixture
def planned(checkpoint: Path) -> Path:
    """A checkpoint as Spark leaves it, with two batches planned."""
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": f"a-query-{next(_numbers)}"}))
    for number in range(2):
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{number}")
    return checkpoint


def test_the_next_run_fences_the_one_before(spark: Any, kafka: Kafka, topic: str, planned: Path) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) value")
    tasks = WriteTasks(kafka.address, topic, {})
    first, second = BatchCommits(planned, tasks), BatchCommits(planned, tasks)
    assert not first.has(0)
    first.write(rows.where("value < 5"), 0)
    assert second.has(0) and not second.has(1)
    with pytest.raises(Exception, match=r"another owner has taken the id over|PRODUCER_FENCED"):
        first.write(rows.where("value >= 5"), 1)
    second.write(rows.where("value >= 5"), 1)
    assert second.has(1)
    second.close()
    assert not second.is_open
    assert committed(spark, kafka, topic) == texts(10)


def test_a_batch_that_is_called_again_after_a_failure_is_written_once(
    spark: Any, kafka: Kafka, topic: str, planned: Path, fuse: Path
) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) value")
    commits = BatchCommits(planned, FailingTasks(kafka.address, topic, {}, fuse=str(fuse)))
    fuse.write_text("always")
    assert not commits.has(0)
    with pytest.raises(Exception, match="this attempt fails"):
        commits.write(rows, 0)
    assert not commits.is_open
    fuse.unlink()
    for _ in range(2):
        if not commits.has(0):
            commits.write(rows, 0)
    commits.close()
    assert committed(spark, kafka, topic) == texts(10)


# ---------------------------------------------------------------------- ranges


def test_ranges_that_end_in_markers_and_aborted_records_end(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path, fuse: Path
) -> None:
    a, b = topics
    rows = spark.range(0, 40, 1, 2).selectExpr("cast(id as string) value", "0 partition")
    raylog.spark.write(rows, a, cluster=kafka)
    fuse.write_text("always")
    with pytest.raises(Exception, match="this attempt fails"):
        raylog.spark.write(rows, a, cluster=kafka)
    fuse.unlink()
    for options in ({}, {"max_records_per_partition": 7}):
        frame = raylog.spark.read(spark, a, cluster=kafka, isolation_level="read_committed", **options)
        assert sorted(row.value.decode() for row in frame.collect()) == texts(40)
        assert frame.count() == 40
    table = raylog.spark.table(spark, a, cluster=kafka, isolation_level="read_committed")
    assert table.count() == 0, "no keys"
    frame = stream_of(spark, kafka, a, checkpoint, max_offsets_per_trigger=11).select("value")
    assert finished(frame, b, kafka, checkpoint).records == 40
    assert committed(spark, kafka, b) == texts(40)
