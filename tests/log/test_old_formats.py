"""Folders with messages of formats 0 and 1 are opened, converted once, recovered, indexed and read; a crash at any moment loses nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from old_messages import entry, wrapper

from raylog.errors import DiskError
from raylog.log import old_formats
from raylog.records.batch import BatchView, batches
from raylog.records.codec import encode_values, light_records
from raylog.types import Condition

T = 1529210278988
TV_5_V0 = bytes.fromhex("0000000000000000 00000013 87a77ab2 00 00 ffffffff 00000005 68656c6c6f")
TV_5_V1 = bytes.fromhex("0000000000000000 0000001c 4d46bea7 01 00 000001640c09144c 00000001 6b 00000005 68656c6c6f")
SMALL = {"segment_index_bytes": 4096, "index_interval_bytes": 100}


def name(base_offset: int, suffix: str = "log") -> str:
    return f"{base_offset:020d}.{suffix}"


def put(machine: Any, *segments: tuple[int, bytes]) -> None:
    """A folder as Kafka left it: no checkpoint of ours."""
    machine.files.make_directory(machine.directory)
    for base_offset, content in segments:
        machine.files.write_file(machine.path(name(base_offset)), content)
    machine.files.sync_directory(machine.directory)


def everything(log: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20)
        assert part.next_offset > offset, (offset, log.log_end_offset)
        for view in batches(part.records):
            assert view.magic == 2 and view.has_valid_crc()
            found += [(each.offset, each.timestamp, each.key, each.value) for each in light_records(view)]
        offset = part.next_offset
    log.check()
    return found


def mixed(count: int = 60) -> tuple[bytes, list[tuple[int, int, bytes | None, bytes | None]]]:
    """Format 0, then 1, then batches; alone and in wrappers of all codecs."""
    content, expected, offset = b"", [], 0
    for number in range(count):
        magic, codec = (0 if number < count // 3 else 1), (None, "gzip", "snappy", "lz4")[number % 4]
        size = 1 if codec is None else 3
        items = [(offset + n, T + 10 * (offset + n), b"k%d" % n, b"value %d " % number * 5) for n in range(size)]
        content += entry(magic, items[0]) if codec is None else wrapper(magic, items, codec)
        expected += [(at, ts if magic else -1, key, value) for at, ts, key, value in items]
        offset += size
    batch = bytearray(encode_values([b"new", b"newer"], timestamp_ms=T + 10_000))
    batch[:8] = offset.to_bytes(8, "big")
    expected += [(offset, T + 10_000, None, b"new"), (offset + 1, T + 10_000, None, b"newer")]
    return content + bytes(batch), expected


@pytest.mark.parametrize(("message", "key", "timestamp"), [(TV_5_V0, None, -1), (TV_5_V1, b"k", T)])
def test_tv_5_a_folder_with_the_vectors_message_is_opened_and_read(
    machine: Any, message: bytes, key: bytes | None, timestamp: int
) -> None:
    put(machine, (0, message))
    log = machine.open()
    assert everything(log) == [(0, timestamp, key, b"hello")]
    assert log.recovery.converted == [name(0)] and log.recovery.cut_bytes == 0
    assert not log.leader_epochs.entries
    assert machine.append(b"next", leader_epoch=3) == 1
    assert [each[0] for each in everything(machine.reopen())] == [0, 1]


def test_all_formats_and_codecs_in_one_segment_are_read_in_order(machine: Any) -> None:
    content, expected = mixed()
    put(machine, (0, content))
    log = machine.open(**SMALL)
    assert everything(log) == expected
    for offset, timestamp, _, _ in expected:
        first = BatchView(log.read(offset, 1).records)
        assert first.base_offset <= offset <= first.last_offset
        if timestamp >= 0:
            assert log.offset_for_timestamp(timestamp)[:2] == next(
                (ts, at) for at, ts, _, _ in expected if ts >= timestamp
            )
    assert log.segments.active.offset_index.file.count > 3 and log.segments.active.time_index.file.count > 3
    again = machine.reopen()
    assert again.condition is Condition.CLEAN and everything(again) == expected and not again.recovery.converted


def test_a_converted_batch_takes_the_place_of_each_entry(machine: Any) -> None:
    """So that batches of replicas begin at the same offsets, wherever their segments do."""
    content, expected = mixed(8)
    put(machine, (0, content))
    views = list(batches(machine.open().read(0, 1 << 20).records))
    assert [view.base_offset for view in views] == [0, 1, 4, 7, 10, 11, 14, 17, 20]
    assert all(view.partition_leader_epoch == -1 for view in views)
    assert expected[-1][0] == 21


def test_only_segments_with_old_messages_are_written_anew(machine: Any) -> None:
    old = b"".join(entry(1, (offset, T, None, b"old")) for offset in range(3))
    batch = bytearray(encode_values([b"new"], timestamp_ms=T))
    batch[:8] = (3).to_bytes(8, "big")
    put(machine, (0, old), (3, bytes(batch)))
    log = machine.open()
    assert log.recovery.converted == [name(0)] and len(everything(log)) == 4
    assert machine.files.read_file(machine.path(name(3)))[: len(batch)] == bytes(batch)


def test_a_torn_tail_is_cut_and_damage_in_the_middle_too(machine: Any) -> None:
    messages = [entry(1, (offset, T + offset, b"k", b"value")) for offset in range(4)]
    put(machine, (0, b"".join(messages)[:-3]))
    log = machine.open()
    assert [each[0] for each in everything(log)] == [0, 1, 2]
    assert log.recovery.cut_bytes == len(messages[3]) - 3
    damaged = type(machine)()
    put(damaged, (0, messages[0] + messages[1][:-1] + b"\xff" + messages[2]), (3, messages[3]))
    log = damaged.open()
    assert [each[0] for each in everything(log)] == [0] and not log.recovery.cut_is_one_incomplete_batch
    assert log.condition is Condition.SUSPECT and name(3) in log.recovery.removed


def test_zeros_at_the_end_are_no_damage(machine: Any) -> None:
    put(machine, (0, entry(0, (0, -1, None, b"x")) + bytes(5_000)))
    log = machine.open()
    assert len(everything(log)) == 1 and log.recovery.cut_bytes == 0


def test_a_wrapper_that_cannot_be_read_is_refused_and_kept(machine: Any) -> None:
    content = entry(1, (0, T, None, b"first")) + entry(1, (1, T, None, b"no gzip"), attributes=1)
    put(machine, (0, content))
    with pytest.raises(DiskError, match=r"format 1 at byte \d+ whose CRC is right and that cannot be read: gzip"):
        machine.open()
    assert machine.files.read_file(machine.path(name(0))) == content


def test_a_segment_that_grows_too_large_is_split(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_formats, "PIECE_BYTES_MAX", 1_000)
    content, expected = mixed()
    put(machine, (0, content))
    log = machine.open()
    assert len(log.segments) > 5 and max(segment.size for segment in log.segments) <= 1_000
    assert everything(log) == expected
    assert everything(machine.recover()) == expected


def test_the_index_of_the_old_positions_does_not_outlive_a_conversion(machine: Any) -> None:
    content, expected = mixed(12)
    put(machine, (0, content))
    machine.files.write_file(machine.path(name(0, "index")), b"\x00\x00\x00\x01\x00\x00\x00\x20")
    log = machine.open()
    assert log.condition is Condition.SUSPECT, "Kafka has left no checkpoint in the folder"
    assert everything(log) == expected
    log.check()


class Crash(BaseException):
    pass


def crashes_at(machine: Any, step: int) -> bool:
    """Open; the process dies before the step-th change of the disk. False if there were fewer."""
    count = 0

    def fault(operation: str, path: str) -> None:
        nonlocal count
        if operation in ("write", "truncate", "replace", "remove", "flush", "sync_directory", "open"):
            count += 1
            if count == step:
                raise Crash

    machine.disk.fault = fault
    try:
        machine.open()
    except Crash:
        return True
    finally:
        machine.disk.fault = None
    return False


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("piece_bytes_max", [1_500, 1 << 30])
def test_a_crash_at_any_moment_leaves_a_folder_that_opens_with_every_record(
    machine: Any, loses_power: bool, piece_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_formats, "PIECE_BYTES_MAX", piece_bytes_max)
    content, expected = mixed(16)
    more = [entry(1, (offset, T, None, b"later")) for offset in range(expected[-1][0] + 1, expected[-1][0] + 4)]
    step, is_over = 0, False
    while not is_over:
        step += 1
        machine = type(machine)()
        put(machine, (0, content), (expected[-1][0] + 1, b"".join(more)))
        machine.disk.flush_everything()
        is_over = not crashes_at(machine, step)
        machine.crash()
        if loses_power:
            machine.disk.lose_power(random.Random(step))
            machine.files = machine.disk.files()
        found = everything(machine.open())
        assert found[: len(expected)] == expected, f"crash at change {step}"
        assert len(found) == len(expected) + 3, f"crash at change {step}"
    assert step > 30
