"""The index files: bytes, lookups, limits."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.leader_epochs import LeaderEpochs
from raylog.log.offset_index import OffsetIndex
from raylog.log.producers import ProducerStates
from raylog.log.segment import Segment
from raylog.log.time_index import TimeIndex
from raylog.records.batch import STAMP_SIZE, BatchView, stamped_header
from raylog.records.codec import encode_values

GOLDEN = Path(__file__).parent / "golden"
FILES = DiskFiles()


def _segment(directory: Path, base_offset: int, **config: int) -> Segment:
    return Segment.create(FILES, str(directory), base_offset, config=LogConfig(**config), wall_ms=0)


def _append(
    segment: Segment, base_offset: int, count: int = 1, *, timestamp: int = 0, value: bytes = b"x" * 100
) -> int:
    batch = encode_values([value] * count, timestamp_ms=timestamp)
    segment.append([batch], [(base_offset, base_offset + count - 1, len(batch), timestamp)], interval_bytes=4096)
    return len(batch)


def test_tv_0_active_indexes_are_preallocated_down_to_whole_entries_and_trimmed_when_sealed(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 18913)
    value = bytes(3963 - len(encode_values([b""], timestamp_ms=1)) - 2)
    assert _append(segment, 18913, timestamp=1, value=value) == 3963
    stem = tmp_path / "00000000000000018913"
    sizes = {suffix: stem.with_suffix(suffix).stat().st_size for suffix in (".log", ".index", ".timeindex")}
    assert sizes == {".log": 3963, ".index": 10485760, ".timeindex": 10485756}
    assert segment.offset_index.file.max_count == 1310720 and segment.time_index.file.max_count == 873813
    assert segment.offset_index.file.count == 0, "3,963 bytes are less than one index interval"
    segment.seal()
    assert stem.with_suffix(".index").stat().st_size == 0
    assert stem.with_suffix(".timeindex").stat().st_size == 12, "the entry written at the roll"
    segment.rest()


def test_tv_0_the_epoch_checkpoint_and_an_empty_producer_snapshot_have_kafkas_bytes(tmp_path: Path) -> None:
    epochs = LeaderEpochs(FILES, str(tmp_path))
    epochs.assign(0, 18913)
    written = (tmp_path / "leader-epoch-checkpoint").read_bytes()
    assert written == (GOLDEN / "tv-0.leader-epoch-checkpoint").read_bytes() and len(written) == 12
    snapshot = ProducerStates().encode_snapshot()
    assert snapshot == (GOLDEN / "tv-0.snapshot").read_bytes() == bytes.fromhex("000148674bc700000000")


def test_tv_1_the_offset_index_decodes_and_finds_the_greatest_entry_at_or_below(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes((GOLDEN / "tv-1.index").read_bytes())
    index = OffsetIndex(FILES, str(path), base_offset=0)
    index.file.load_sealed()
    entries = [index.file.get(number) for number in range(index.file.count)]
    assert entries == [(6, 156), (14, 459), (22, 762), (26, 944), (31, 1141)]
    found = {offset: index.lookup(offset)[1] for offset in (0, 5, 6, 23, 25, 26, 30, 31, 10**9)}
    assert found == {0: 0, 5: 0, 6: 156, 23: 762, 25: 762, 26: 944, 30: 944, 31: 1141, 10**9: 1141}
    index.file.close()


def test_tv_1_appending_the_entries_writes_those_bytes(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    index = OffsetIndex(FILES, str(path), base_offset=0)
    index.file.start(1000)
    for offset, position in [(6, 156), (14, 459), (22, 762), (26, 944), (31, 1141)]:
        index.append(offset, position)
    assert path.stat().st_size == 1000 and index.lookup(23) == (22, 762)
    index.file.trim()
    index.file.seal()
    assert path.read_bytes() == (GOLDEN / "tv-1.index").read_bytes()
    index.file.close()


def test_tv_2_the_same_bytes_under_another_base_offset_mean_other_offsets(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000018913.index"
    path.write_bytes((GOLDEN / "tv-1.index").read_bytes())
    index = OffsetIndex(FILES, str(path), base_offset=18913)
    index.file.load_sealed()
    assert [index.lookup(offset)[0] for offset in (18919, 18927, 18935, 18939, 18944)] == [
        18919,
        18927,
        18935,
        18939,
        18944,
    ]
    assert index.lookup(18918) == (18913, 0)
    index.file.close()


def test_tv_3_a_segment_takes_relative_offsets_up_to_2147483647(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 0)
    config = LogConfig()
    assert not segment.should_roll(config, incoming_bytes=100, last_offset=2147483647, max_timestamp=0, wall_ms=0)
    assert segment.should_roll(config, incoming_bytes=100, last_offset=2147483648, max_timestamp=0, wall_ms=0)
    segment.rest()


def test_tv_3_in_24_bytes_the_time_index_is_full_first(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 0, segment_index_bytes=24)
    assert segment.offset_index.file.max_count == 3 and segment.time_index.file.max_count == 2
    _append(segment, 0, 50, timestamp=1)
    assert not segment.time_index.is_full()
    _append(segment, 50, 50, timestamp=2)  # the first entry; the last slot is kept for the one written at the roll
    assert (segment.offset_index.file.count, segment.time_index.file.count) == (1, 1)
    assert segment.time_index.is_full() and not segment.offset_index.is_full()
    assert segment.should_roll(LogConfig(), incoming_bytes=100, last_offset=200, max_timestamp=3, wall_ms=0)
    _append(segment, 100, 50, timestamp=3)
    segment.seal()
    assert segment.time_index.last() == (3, 149)
    segment.rest()


def test_time_index_keeps_only_growing_timestamps_and_finds_the_floor(tmp_path: Path) -> None:
    index = TimeIndex(FILES, str(tmp_path / "00000000000000000100.timeindex"), base_offset=100)
    index.file.start(120)
    for timestamp, offset in [(10, 105), (10, 110), (9, 111), (20, 120), (30, 130)]:
        index.maybe_append(timestamp, offset)
    assert index.file.count == 3 and index.last() == (30, 130)
    assert [index.lookup(t) for t in (9, 10, 19, 20, 99)] == [(-1, 100), (10, 105), (10, 105), (20, 120), (30, 130)]
    index.truncate_to(120)
    assert index.last() == (10, 105)
    index.file.close()


def test_index_entries_name_the_last_offset_and_start_of_a_batch(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 1000)
    sizes = [_append(segment, 1000 + 10 * number, 10, timestamp=number) for number in range(20)]
    entries = [segment.offset_index.file.get(number) for number in range(segment.offset_index.file.count)]
    assert len(entries) > 2
    starts = [sum(sizes[:number]) for number in range(20)]
    for relative, position in entries:
        assert relative == 10 * starts.index(position) + 9
    gaps = [b[1] - a[1] for a, b in pairwise(entries)]
    assert all(4096 < gap <= 4096 + sizes[0] for gap in gaps)
    segment.seal()
    assert segment.time_index.last() == (19, 1199)
    segment.rest()


@pytest.mark.parametrize("damage", ["truncated", "zeros", "beyond"])
def test_an_index_that_cannot_be_right_is_noticed(tmp_path: Path, damage: str) -> None:
    segment = _segment(tmp_path, 0)
    for number in range(30):
        _append(segment, 10 * number, 10, timestamp=number)
    segment.seal()
    segment.rest()
    path = Path(segment.path + ".index")
    data = path.read_bytes()
    path.write_bytes(
        {"truncated": data[:-3], "zeros": data + bytes(16), "beyond": data + b"\x7f\xff\xff\xff" * 2}[damage]
    )
    loaded = Segment.load(FILES, str(tmp_path), 0)
    assert ".index" in (loaded.load_indexes() or "")
    path.write_bytes(data)
    assert loaded.load_indexes() is None
    loaded.rest()


def test_full_index_makes_the_next_append_roll_and_never_fails_one(tmp_path: Path) -> None:
    segment = _segment(tmp_path, 0, segment_index_bytes=32)
    batch = encode_values([b"x" * 5000], timestamp_ms=1)
    stamped = [stamped_header(BatchView(batch), number, 0) + batch[16:] for number in range(10)]
    segment.append(stamped, [(number, number, len(batch), number) for number in range(10)], interval_bytes=4096)
    assert segment.offset_index.is_full() and segment.size == 10 * len(batch)
    assert segment.locate(9) == (9 * len(batch), 9, len(batch))
    segment.seal()
    segment.rest()


def test_preallocated_log_files_are_trimmed(tmp_path: Path) -> None:
    config = replace(LogConfig(), preallocate=True, segment_bytes=1 << 16)
    segment = Segment.create(FILES, str(tmp_path), 0, config=config, wall_ms=0)
    size = _append(segment, 0)
    assert Path(segment.path + ".log").stat().st_size == 1 << 16
    segment.seal()
    assert Path(segment.path + ".log").stat().st_size == size
    segment.rest()


def _largest(segment: Segment) -> tuple[int, int]:
    """The largest timestamp and the last offset of the first batch that has it, by a look at every batch."""
    largest, offset = -1, segment.base_offset
    for _, batch in segment.scan():
        if batch.max_timestamp > largest:
            largest, offset = batch.max_timestamp, batch.last_offset
    return largest, offset


@pytest.mark.parametrize("seed", range(60))
def test_the_largest_timestamp_after_a_cut_is_that_of_the_batches_that_are_left(tmp_path: Path, seed: int) -> None:
    """Also where the time index is full, and where timestamps come in no order."""
    chance = random.Random(seed)
    config = LogConfig(segment_index_bytes=chance.choice((36, 60, 200, 4096)))
    segment = Segment.create(FILES, str(tmp_path), 0, config=config, wall_ms=0)
    end, latest = 0, chance.choice((1, 10, 1000))
    for _ in range(80):
        step = chance.choice(("append", "append", "append", "cut", "seal"))
        if step == "append":
            buffers, batches = [], []
            for _ in range(chance.randint(1, 8)):  # one request, which no roll comes between
                latest += chance.randint(0, 3)
                timestamp, count = chance.choice((latest, latest - 5, 1, -1)), chance.randint(1, 3)
                batch = encode_values([bytes(50)] * count, timestamp_ms=timestamp)
                buffers.append(stamped_header(BatchView(batch), end, 0) + batch[STAMP_SIZE:])
                batches.append((end, end + count - 1, len(batch), timestamp))
                end += count
            segment.append(buffers, batches, interval_bytes=300)
        elif step == "cut":
            cut = segment.truncate_to(chance.randint(max(0, end - chance.choice((5, 50))), end))
            end = end if cut is None else cut
        else:
            segment.seal()
            segment.activate(config, roll_jitter_ms=0)
        found = segment.largest_timestamp, segment.offset_of_largest_timestamp
        assert found == _largest(segment), (seed, step, end)
    segment.rest()


def test_a_cut_looks_at_no_more_batches_than_follow_the_last_index_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one batch has a timestamp of the future, the time index grows no more; then it would be all batches behind that one."""
    segment = _segment(tmp_path, 0)
    _append(segment, 0, timestamp=99)
    size = max([_append_stamped(segment, offset) for offset in range(1, 1000)])
    starts, scan = [], Segment.scan

    def noted(self: Segment, position: int = 0, *args: Any, **kwargs: Any) -> Any:
        starts.append(position)
        return scan(self, position, *args, **kwargs)

    monkeypatch.setattr(Segment, "scan", noted)
    segment.truncate_to(900)
    assert segment.largest_timestamp == 99 and segment.offset_of_largest_timestamp == 0
    assert starts and segment.size - min(starts) <= 4096 + 2 * size
    segment.rest()


def _append_stamped(segment: Segment, base_offset: int) -> int:
    batch = encode_values([bytes(100)], timestamp_ms=1)
    stamped = stamped_header(BatchView(batch), base_offset, 0) + batch[STAMP_SIZE:]
    segment.append([stamped], [(base_offset, base_offset, len(batch), 1)], interval_bytes=4096)
    return len(batch)
