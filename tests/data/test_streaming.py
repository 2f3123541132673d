"""Batches for training: every record once, from whatever place a checkpoint says, for whatever number of workers."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import raylog
import raylog.testing
from raylog.client.sync import AdminClient
from raylog.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.spark

PARTITIONS = 3
_numbers = count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(brokers=1) as found:
        yield found


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"t{next(_numbers)}"
    kafka.create_topic(name, PARTITIONS)
    return name


def fill(kafka: Kafka, topic: str, records: int, start: int = 0) -> list[bytes]:
    """So many records over all partitions, in batches of seven; their values."""
    values = [b"%d" % n for n in range(start, start + records)]
    for at in range(0, records, 7):
        kafka.write(topic, *values[at : at + 7], partition=at // 7 % PARTITIONS)
    return values


def stream(kafka: Kafka, topic: Any, **options: Any) -> raylog.data.TopicStream:
    options = {"batch_size": 5, "columns": ["value"], **options}
    return raylog.data.stream_topic(topic, cluster=kafka.address, **options)


def values(batch: raylog.data.TopicBatch) -> list[bytes]:
    return batch.table.column("value").to_pylist()  # type: ignore[no-any-return]


def run(
    whole: raylog.data.TopicStream, world_size: int, steps: int, start: Any = None, folder: Path | None = None
) -> list[bytes]:
    """What workers read that take their steps one after the other, saving the last one."""
    read = []
    for rank in range(world_size):
        with whole.batches(start, rank=rank, world_size=world_size) as batches:
            batch = None
            for _, batch in zip(range(steps), batches):
                read += values(batch)
            if folder is not None and batch is not None:
                batch.save(folder)
    return read


def test_a_stream_has_every_record_of_its_cut_once_in_whole_batches(kafka: Kafka, topic: str) -> None:
    written = fill(kafka, topic, 100)
    whole = pickle.loads(pickle.dumps(stream(kafka, topic, columns=None)))
    fill(kafka, topic, 10, start=100)
    batches = list(whole)
    assert [len(batch) for batch in batches] == [5] * 20
    assert sorted(value for batch in batches for value in values(batch)) == sorted(written)
    for batch in batches:
        rows = [(row["topic"], row["partition"], row["offset"]) for row in batch.table.to_pylist()]
        assert rows == [(each.topic, each.partition, n) for each in batch.ranges for n in range(each.start, each.end)]
    assert batches[-1].state.is_done and not batches[-2].state.is_done
    assert list(whole.batches(batches[-1].state)) == []
    assert batches[0].to_numpy()["offset"].dtype == "int64"


def test_three_workers_stop_and_two_go_on_without_a_loss_or_a_repetition(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    written = fill(kafka, topic, 203)
    first = run(stream(kafka, topic), 3, 4, folder=tmp_path)
    fill(kafka, topic, 50, start=1000)  # the epoch that was begun ends where it was to end
    second = run(stream(kafka, topic), 2, 1000, tmp_path)
    assert len(first) == 60
    assert sorted(first + second) == sorted(written)


def test_one_workers_file_is_enough_where_all_were_in_step(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    written = fill(kafka, topic, 90)
    first = run(stream(kafka, topic), 3, 2, folder=tmp_path)
    for rank in (0, 2):
        (tmp_path / f"raylog-stream-{rank}.json").unlink()
    assert sorted(first + run(stream(kafka, topic), 4, 1000, tmp_path)) == sorted(written)


def test_workers_that_saved_at_different_steps_go_on_with_what_each_has_done(
    kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    written = fill(kafka, topic, 200)
    whole, read = stream(kafka, topic), []
    for rank, steps in enumerate((1, 4, 2)):
        with whole.batches(rank=rank, world_size=3) as batches:
            for _, batch in zip(range(steps), batches):
                read += values(batch)
            batch.save(tmp_path)
    assert len(read) == 35
    assert sorted(read + run(stream(kafka, topic), 2, 1000, tmp_path)) == sorted(written)


def test_a_batch_that_failed_can_be_asked_for_again(kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from raylog.data import streaming

    written = fill(kafka, topic, 60)
    batches = stream(kafka, topic).batches()
    read = values(next(batches))
    real = streaming.ShardReader.table

    def broken(self: Any, wanted: Any) -> Any:
        real(self, wanted)
        monkeypatch.undo()
        raise OSError("the network is gone")

    monkeypatch.setattr(streaming.ShardReader, "table", broken)
    with pytest.raises(OSError, match="network"):
        next(batches)
    assert sorted(read + [value for batch in batches for value in values(batch)]) == sorted(written)


# ---------------------------------------------------------------------- endless streams


class Broadcast:
    """Ray Train's, for threads."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=180)
        self._said: list[str | None] = [None]

    def worker(self, rank: int) -> Callable[[str | None], str | None]:
        def tell(text: str | None) -> str | None:
            assert (text is None) == (rank != 0)
            if rank == 0:
                self._said[0] = text
            self._barrier.wait()
            said = self._said[0]
            self._barrier.wait()
            return said

        return tell


def test_workers_of_an_endless_stream_agree_on_what_has_come(kafka: Kafka, topic: str) -> None:
    written = fill(kafka, topic, 43)
    whole = stream(kafka, topic, endless=True, idle_timeout_s=1.0, short_after_s=0.2)
    broadcast = Broadcast(2)
    more = iter([lambda: fill(kafka, topic, 30, start=500), lambda: fill(kafka, topic, 3, start=900)])

    def work(rank: int) -> list[list[bytes]]:
        batches = whole.batches(rank=rank, world_size=2, broadcast=broadcast.worker(rank))
        read = []
        for number, batch in enumerate(batches):
            read.append(values(batch))
            if rank == 0 and number in (1, 3):
                written.extend(next(more)())
        assert not batches.state.is_done
        return read

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    assert len(first) == len(second)
    assert sorted(value for batch in first + second for value in batch) == sorted(written)
    assert len(written) == 76


def test_all_workers_of_an_endless_stream_begin_where_worker_0_does(kafka: Kafka, topic: str) -> None:
    fill(kafka, topic, 40)
    whole = stream(kafka, topic, endless=True, idle_timeout_s=0.5, short_after_s=0.0)
    with whole.batches() as batches:
        behind, state = next(batches).state, [batch.state for batch in batches][-1]
    written = fill(kafka, topic, 21, start=300)
    broadcast = Broadcast(2)

    def work(rank: int) -> list[bytes]:
        start = (state, behind)[rank]  # as where a worker sees an older checkpoint
        batches = whole.batches(start, rank=rank, world_size=2, broadcast=broadcast.worker(rank))
        return [value for batch in batches for value in values(batch)]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    assert sorted(first + second) == sorted(written)


def test_an_endless_stream_goes_on_where_it_stopped_and_takes_new_partitions(kafka: Kafka, topic: str) -> None:
    written = fill(kafka, topic, 20)
    options = {"endless": True, "idle_timeout_s": 0.5, "short_after_s": 0.0}
    batches = list(stream(kafka, topic, **options))
    written += fill(kafka, topic, 9, start=300)
    with AdminClient(kafka.address) as admin:
        admin.create_partitions(topic, PARTITIONS + 1)
    kafka.write(topic, b"new", partition=PARTITIONS)
    later = list(stream(kafka, topic, **options).batches(batches[-1].state))
    assert sorted(value for batch in batches + later for value in values(batch)) == sorted([*written, b"new"])


# ---------------------------------------------------------------------- what is lost or wrong


def delete_below(kafka: Kafka, topic: str, offset: int) -> None:
    with AdminClient(kafka.address) as admin:
        admin.delete_records({raylog.TopicPartition(topic, 0): offset})


def test_records_deleted_after_the_cut_are_an_error_or_told_with_their_batch(kafka: Kafka, topic: str) -> None:
    kafka.write(topic, *(b"%d" % n for n in range(30)))
    strict, lenient = stream(kafka, topic), stream(kafka, topic, fail_on_data_loss=False)
    delete_below(kafka, topic, 12)
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 0 to \d+ of .* were deleted before they were read"):
        list(strict)
    batches = list(lenient)
    assert [value for batch in batches for value in values(batch)] == [b"%d" % n for n in range(12, 30)]
    assert [len(batch.losses) for batch in batches] == [1, 0, 0, 0, 0, 0] and "0 to 11" in batches[0].losses[0]
    with pytest.raises(OffsetOutOfRangeError, match=r"0 to 11 of .* are deleted"):
        stream(kafka, topic, starting_offsets={topic: {0: 0, 1: 0, 2: 0}})


def test_an_endless_stream_says_what_was_deleted_before_it_came_there(kafka: Kafka, topic: str) -> None:
    options = {"endless": True, "idle_timeout_s": 0.2, "short_after_s": 0.0}
    kafka.write(topic, *(b"%d" % n for n in range(10)))
    state = list(stream(kafka, topic, **options))[-1].state
    kafka.write(topic, *(b"%d" % n for n in range(10, 20)))
    delete_below(kafka, topic, 13)
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 10 to 12 .*: read the rest with fail_on_data_loss=False"):
        list(stream(kafka, topic, **options).batches(state))
    batches = list(stream(kafka, topic, fail_on_data_loss=False, **options).batches(state))
    assert [value for batch in batches for value in values(batch)] == [b"%d" % n for n in range(13, 20)]
    assert ["offsets 10 to 12" in loss for batch in batches for loss in batch.losses] == [True]


def test_bad_input_is_refused_in_words(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    fill(kafka, topic, 30)
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing' does not exist"):
        stream(kafka, "nothing")
    for words, options in (
        ("batch_size=0", {"batch_size": 0}),
        ("no column 'valeu'", {"columns": ["valeu"]}),
        ("has no end", {"endless": True, "ending_offsets": "latest"}),
        ("idle_timeout_s=1.0 works with endless=True only", {"idle_timeout_s": 1.0}),
        ("short_after_s=1.0 works with endless=True only", {"short_after_s": 1.0}),
    ):
        with pytest.raises(ConfigError, match=words):
            stream(kafka, topic, **options)
    whole = stream(kafka, topic)
    for words, start, worker in (
        ("rank and world_size belong together", None, {"rank": 1}),
        ("rank=2 of world_size=2", None, {"rank": 2, "world_size": 2}),
        ("no state of a stream", tmp_path, {}),
        ("give a checkpoint", 5, {}),
    ):
        with pytest.raises(ConfigError, match=words):
            whole.batches(start, **worker)
    with pytest.raises(ConfigError, match="have to agree"):
        stream(kafka, topic, endless=True).batches(rank=0, world_size=2)


def test_a_checkpoint_of_something_else_is_refused(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    fill(kafka, topic, 40)
    run(stream(kafka, topic), 3, 1, folder=tmp_path)
    state = raylog.data.load_state(tmp_path)
    (tmp_path / "raylog-stream-1.json").unlink()
    with pytest.raises(ConfigError, match="the state of worker 1 is missing"):
        stream(kafka, topic).batches(tmp_path)
    other = f"{topic}-other"
    kafka.create_topic(other, 1)
    kafka.write(other, b"x")
    with pytest.raises(ConfigError, match="which the stream does not read"):
        stream(kafka, other).batches(state)
    with pytest.raises(ConfigError, match=f"leaves out topic '{other}'"):
        stream(kafka, [topic, other]).batches(state)
    with pytest.raises(ConfigError, match=f"is of cluster elsewhere, but the stream is of {state.cluster_id}"):
        stream(kafka, topic).batches(dataclasses.replace(state, cluster_id="elsewhere"))
    with pytest.raises(ConfigError, match="is of a stream that ends, but this is an endless stream"):
        stream(kafka, topic, endless=True).batches(state)
    with AdminClient(kafka.address) as admin:
        admin.delete_topics([topic])
    kafka.create_topic(topic, PARTITIONS)
    with pytest.raises(ConfigError, match="recreated since this checkpoint"):
        stream(kafka, topic).batches(state)
