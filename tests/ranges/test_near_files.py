"""A range read out of a replica's files is what fetching it gives, and whatever does not fit is fetched."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raylog.testing
from raylog.client.background import background
from raylog.client.columns import RECORD_SCHEMA
from raylog.client.sync import AdminClient, Producer
from raylog.errors import CorruptMessageError
from raylog.ranges import links, near_files, reading
from raylog.ranges.near_files import NearRecords, _OpenPiece
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.splitting import OffsetRange
from raylog.records.batch import BatchView, stamp
from raylog.records.codec import encode
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark

COLUMNS = tuple(RECORD_SCHEMA.names)
_names = (f"near{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kafka, Path]]:
    folder = tmp_path_factory.mktemp("near")
    with raylog.testing.broker(folder=folder) as found:
        yield found, folder


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which something was fetched."""
    seen: list[int] = []
    fetched = reading.RangeReader._fetched

    def spied(self: Any, columns: Any, start: int) -> Any:
        seen.append(start)
        return fetched(self, columns, start)

    monkeypatch.setattr(reading.RangeReader, "_fetched", spied)
    return seen


def topic(kafka: Kafka, records: int = 60, **configs: Any) -> str:
    """A topic of many small batches, in segments of a few."""
    name = next(_names)
    kafka.create_topic(name, configs={"segment.bytes": 2000, **configs})
    for start in range(0, records, 5):
        kafka.write(name, *[b"value %d " % n * 5 for n in range(start, start + 5)])
    return name


def read(kafka: Kafka, name: str, start: int, end: int, **options: Any) -> pa.Table:
    batches = list(read_range(kafka.address, OffsetRange(name, 0, start, end), ReadOptions(COLUMNS, **options)))
    return pa.Table.from_batches(batches, RECORD_SCHEMA)


def segments(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"**/{name}-0/*.log"))


# ---------------------------------------------------------------------- the same records


def test_files_give_what_fetching_gives(on_disk: tuple[Kafka, Path], fetches: list[int]) -> None:
    kafka, folder = on_disk
    name = topic(kafka)
    with Producer(kafka.address, compression_type="lz4") as producer:
        for number in range(20):
            producer.send(name, b"lz" * number, key=b"%d" % number, headers=[("h", b"1")], partition=0)
        producer.flush()
    assert len(segments(folder, name)) == 3
    chance = random.Random(3)
    for start, end in [(0, 80), *(sorted(chance.sample(range(81), 2)) for _ in range(12))]:
        told = read(kafka, name, start, end, arrow_bytes=chance.choice([100, 1 << 20]))
        assert not fetches, fetches
        assert told.column("offset").to_pylist() == list(range(start, end))
        assert told.to_pylist() == read(kafka, name, start, end, from_files=False).to_pylist()
        assert fetches.pop() == start


def test_what_files_say_is_empty_is_passed_and_the_rest_fetched(
    kafka: Kafka, fetches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(kafka, records=10)
    asked: list[int] = []

    async def located(link: Any, key: TopicPartition, offset: int, offset_end: int) -> NearRecords | None:
        asked.append(offset)
        assert len(asked) < 3, asked
        return NearRecords([], offset, 4) if offset == 0 else None

    monkeypatch.setattr(near_files, "located", located)
    assert read(kafka, name, 0, 10).column("offset").to_pylist() == list(range(4, 10))
    assert asked == [0, 4]


def test_a_committed_read_is_fetched(on_disk: tuple[Kafka, Path], fetches: list[int]) -> None:
    kafka, _ = on_disk
    assert len(read(kafka, topic(kafka, 10), 0, 10, read_committed=True)) == 10
    assert fetches == [0]


def test_topics_in_memory_are_fetched(kafka: Kafka, fetches: list[int]) -> None:
    kafka.create_topic("unseen")
    kafka.write("unseen", b"1", b"2")
    assert len(read(kafka, "unseen", 0, 2)) == 2
    assert fetches == [0]


def test_files_that_are_open_are_read_on_when_retention_has_removed_them(
    on_disk: tuple[Kafka, Path], monkeypatch: pytest.MonkeyPatch, fetches: list[int]
) -> None:
    kafka, folder = on_disk
    name = topic(kafka)
    opened = near_files._opened

    def remove(told: Any, offset: int) -> Any:
        found = opened(told, offset)
        for path in segments(folder, name)[:-1]:
            path.rename(path.with_suffix(".log.deleted"))
            os.unlink(path.with_suffix(".log.deleted"))
        return found

    monkeypatch.setattr(near_files, "_opened", remove)
    assert read(kafka, name, 0, 60).column("offset").to_pylist() == list(range(60))
    assert not fetches


# ---------------------------------------------------------------------- what does not fit


def _another_kernel(path: Path, patch: pytest.MonkeyPatch, scratch: Path) -> None:
    (scratch / "boot_id").write_text("another\n")
    patch.setattr(near_files, "_BOOT_ID", scratch / "boot_id")


def _no_file_of_that_name(path: Path, patch: pytest.MonkeyPatch, scratch: Path) -> None:
    opened = near_files._opened

    def away(told: Any, offset: int) -> Any:
        path.rename(scratch / "away")
        try:
            return opened(told, offset)
        finally:
            (scratch / "away").rename(path)

    patch.setattr(near_files, "_opened", away)


def _not_to_be_opened(path: Path, patch: pytest.MonkeyPatch, scratch: Path) -> None:
    open_as_owner = os.open

    def refuse(name: Any, *more: Any, **named: Any) -> int:
        if str(name).endswith(".log") and not more[0] & os.O_RDWR:
            raise PermissionError(13, "not yours", name)
        return open_as_owner(name, *more, **named)

    patch.setattr(near_files.os, "open", refuse)


def _another_file_of_that_name(path: Path, patch: pytest.MonkeyPatch, scratch: Path) -> None:
    opened = near_files._opened

    def swapped(told: Any, offset: int) -> Any:
        path.rename(scratch / "old")
        shutil.copy(scratch / "old", path)
        try:
            return opened(told, offset)
        finally:
            (scratch / "old").rename(path)

    patch.setattr(near_files, "_opened", swapped)


@pytest.mark.parametrize(
    "trouble", [_another_kernel, _no_file_of_that_name, _not_to_be_opened, _another_file_of_that_name]
)
def test_what_is_not_the_replicas_file_is_not_read(
    on_disk: tuple[Kafka, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fetches: list[int],
    trouble: Callable[..., None],
) -> None:
    kafka, folder = on_disk
    name = topic(kafka)
    trouble(segments(folder, name)[1], monkeypatch, tmp_path)
    assert read(kafka, name, 3, 57).column("offset").to_pylist() == list(range(3, 57))
    assert fetches == [3]


def test_a_corrupt_batch_in_a_file_is_named_as_when_it_is_fetched(
    on_disk: tuple[Kafka, Path], fetches: list[int]
) -> None:
    kafka, folder = on_disk
    name = topic(kafka)
    whole = segments(folder, name)[1].read_bytes()
    base = BatchView(whole).base_offset
    broken = bytearray(whole)
    broken[200] ^= 0x10
    with segments(folder, name)[1].open("r+b") as file:
        file.write(broken)
    with pytest.raises(CorruptMessageError, match=rf"the batch at offset {base} of {name}-0 is broken"):
        read(kafka, name, 0, 60)
    assert fetches == [base]


def batch(base_offset: int, *values: bytes) -> bytes:
    made = bytearray(encode([(1, None, value, ()) for value in values]))
    stamp(made, base_offset, 0)
    return bytes(made)


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x08
    return bytes(changed)


FIRST, SECOND = batch(5, b"a", b"b"), batch(7, b"c")


@pytest.mark.parametrize(
    ("content", "fits_up_to"),
    [
        (FIRST + SECOND, 20),
        (FIRST + batch(11, b"behind a gap"), 20),
        (FIRST + flipped(SECOND, 61), 7),
        (FIRST + flipped(SECOND, 16), 7),
        (FIRST + flipped(SECOND, 10), 7),
        (FIRST + SECOND[:-1], 7),
        (FIRST + batch(5, b"again"), 7),
        (FIRST[:30], 5),
        (b"", 5),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [20, 80, 1 << 20])
def test_the_chunks_end_before_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, fits_up_to: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(near_files, "CHUNK_BYTES", chunk_bytes)
    (tmp_path / "segment").write_bytes(content)
    size = max(len(content), len(FIRST) + len(SECOND))
    with NearRecords([_OpenPiece(os.open(tmp_path / "segment", os.O_RDONLY), 0, size)], 5, 20) as near:
        ends = [(view.base_offset, view.next_offset) for chunk in near.chunks() for view in chunk.views]
        assert near.position == fits_up_to
    assert all(end <= fits_up_to for _, end in ends)
    assert ends == sorted(ends) and (fits_up_to == 5) == (ends == [])


def test_what_a_fetch_would_be_refused_is_not_located(on_disk: tuple[Kafka, Path]) -> None:
    kafka, _ = on_disk
    name = topic(kafka, 10)

    async def located(partition: int, offset: int) -> NearRecords | None:
        link = await links.acquire(kafka.address)
        try:
            return await near_files.located(link, TopicPartition(name, partition), offset, 100)
        finally:
            await links.release(kafka.address)

    with AdminClient(kafka.address) as admin:
        admin.delete_records({TopicPartition(name, 0): 3})
    assert all(background().run(located(*place)) is None for place in [(0, 50), (7, 0), (0, 2)])
    found = background().run(located(0, 5))
    assert found is not None and found.offset_end == 10
    found.close()
