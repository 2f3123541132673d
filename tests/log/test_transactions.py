"""What a reader of committed records gets of a log with transactions, whatever became of the log in between."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from raylog.log.transactions import ENTRY
from raylog.records.aborted import AbortedTransactions
from raylog.records.batch import batches
from raylog.records.codec import encode, light_records
from raylog.records.control import Marker, control_batch, read_control_batch

RETENTION_MS = 1_000


@dataclass
class Written:
    """A batch as the test wrote it. ``first``: where the transaction began that a marker ends."""

    base_offset: int
    producer_id: int
    value: bytes | None
    marker: Marker | None = None
    first: int | None = None


@dataclass
class Writer:
    """Appends transactions to a machine's log as a follower gets them, and remembers what they were."""

    machine: Any
    written: list[Written] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)

    def open_at(self, end: int) -> dict[int, int]:
        """Producer id → where its open transaction began, by what is below ``end``."""
        found: dict[int, int] = {}
        for each in self.written:
            if each.base_offset < end and each.producer_id >= 0:
                if each.marker is None:
                    found.setdefault(each.producer_id, each.base_offset)
                else:
                    found.pop(each.producer_id, None)
        return found

    def data(self, producer_id: int, key: bytes, value: bytes) -> int:
        row = (self.machine.wall_ms, key, value, ())
        if producer_id < 0:
            batch = encode([row])
        else:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + 1
            batch = encode(
                [row], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
            )
        at: int = self.machine.copy(batch)
        self.written.append(Written(at, producer_id, value))
        return at

    def end(self, producer_id: int, marker: Marker) -> int:
        first = self.open_at(self.machine.log.log_end_offset).get(producer_id)
        batch = control_batch(
            marker, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=self.machine.wall_ms
        )
        at: int = self.machine.copy(batch)
        self.written.append(Written(at, producer_id, None, marker, first))
        return at

    def forget_from(self, end: int) -> None:
        self.written = [each for each in self.written if each.base_offset < end]

    # ------------------------------------------------------------------ what should be read

    def stable_end(self, high_watermark: int) -> int:
        """By the definition: the first offset of a transaction without a marker below the high watermark."""
        return min([high_watermark, *self.open_at(high_watermark).values()])

    def committed(self, start: int, end: int) -> list[tuple[int, bytes]]:
        found = []
        for number, each in enumerate(self.written):
            if each.value is None or not start <= each.base_offset < end:
                continue
            ending = next(
                (other.marker for other in self.written[number:] if other.producer_id == each.producer_id and other.marker is not None),
                None,
            )  # fmt: skip
            if each.producer_id < 0 or ending is Marker.COMMIT:
                found.append((each.base_offset, each.value))
        return found


def read_committed(log: Any, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """As a Kafka client does: fetch after fetch, each with its list of aborted transactions."""
    end, found = log.stable_end_offset, []
    while offset < end:
        piece = log.read(offset, max_bytes, end_offset=end)
        aborted = AbortedTransactions(log.transactions.aborted(offset, piece.next_offset))
        for view in batches(piece.records):
            is_hidden = aborted.hides(view)
            if view.next_offset > offset and not is_hidden and not view.is_control:
                found += [(each.offset, bytes(each.value)) for each in light_records(view) if each.offset >= offset]
        offset = max(piece.next_offset, offset + 1)
    return found


def markers(log: Any) -> set[int]:
    """Where abort markers are in the log."""
    found, offset = set(), log.log_start_offset
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            if view.is_control and view.record_count and read_control_batch(view).marker is Marker.ABORT:
                found.add(view.base_offset)
            offset = view.next_offset
    return found


def index_bytes(machine: Any) -> int:
    return sum(machine.files.size(machine.path(name)) for name in machine.names() if name.endswith(".txnindex"))


@pytest.mark.parametrize("seed", range(25))
def test_exactly_the_committed_records_are_read_after_whatever_happens(make_machine: Any, seed: int) -> None:
    chance = random.Random(seed)
    machine = make_machine()
    machine.open(segment_bytes=600, index_interval_bytes=100)
    writer = Writer(machine)
    for step in range(120):
        log = machine.log
        match chance.choices(
            ("data", "plain", "end", "rise", "cut", "crash", "reopen", "power"), (8, 3, 4, 4, 1, 1, 1, 1)
        )[0]:
            case "data":
                writer.data(chance.randrange(3), b"k", b"%d" % step)
            case "plain":
                writer.data(-1, b"k", b"%d" % step)
            case "end":
                writer.end(chance.randrange(3), chance.choice(list(Marker)))
            case "rise":
                log.high_watermark = chance.randint(log.high_watermark, log.log_end_offset)
            case "cut":
                log.truncate_to(chance.randint(log.high_watermark, log.log_end_offset))
            case "crash":
                log.checkpoint()
                machine.recover()
            case "reopen":
                machine.reopen()
            case "power":
                log.flush()
                log.checkpoint(flush=True)
                machine.disk.lose_power(chance)
                machine.files = machine.disk.files()
                machine.boot_id = f"boot-{step}"
                machine.open()
        log = machine.log
        writer.forget_from(log.log_end_offset)
        log.check()
        assert log.stable_end_offset == writer.stable_end(log.high_watermark), step
        start = chance.randint(0, log.stable_end_offset)
        expected = writer.committed(start, log.stable_end_offset)
        assert read_committed(log, start, chance.choice((1, 300, 1 << 20))) == expected, step
        aborted = sum(each.first is not None and each.marker is Marker.ABORT for each in writer.written)
        assert index_bytes(machine) == aborted * ENTRY.size, step


def test_a_marker_that_is_not_committed_yet_keeps_its_records_back(machine: Any) -> None:
    """A new leader may lack it, and the transaction may end otherwise there."""
    machine.open()
    writer = Writer(machine)
    writer.data(1, b"k", b"v")
    marker = writer.end(1, Marker.COMMIT)
    for high_watermark, stable_end in ((marker, 0), (marker + 1, marker + 1)):
        machine.log.high_watermark = high_watermark
        machine.log.checkpoint()
        assert machine.log.stable_end_offset == stable_end
        machine.recover()
        assert machine.log.stable_end_offset == stable_end


def test_the_list_is_in_the_order_in_which_transactions_begin(machine: Any) -> None:
    """The index is in the order in which they end, and some clients look at the first entry alone."""
    machine.open()
    writer = Writer(machine)
    for producer in (1, 2, 3):
        writer.data(producer, b"k", b"v")
    for producer in (2, 3, 1):
        writer.end(producer, Marker.ABORT)
    log = machine.log
    assert [entry.producer_id for entry in log.transactions.between(0, 6)] == [2, 3, 1]
    assert log.transactions.aborted(0, 6) == ((1, 0), (2, 1), (3, 2))


def test_a_damaged_index_is_made_anew(machine: Any) -> None:
    machine.open()
    writer = Writer(machine)
    writer.data(1, b"k", b"gone")
    writer.end(1, Marker.ABORT)
    machine.log.high_watermark = machine.log.log_end_offset
    name = f"{0:020d}.txnindex"
    good = machine.files.read_file(machine.path(name))
    assert good == ENTRY.pack(0, 1, 0, 1, 2)
    for bad in (good[:-1], b"\x00\x01" + good[2:], good + good):
        machine.log.close()
        machine.files.write_file(machine.path(name), bad)
        machine.open()
        assert machine.files.read_file(machine.path(name)) == good
        assert read_committed(machine.log, 0) == []


def test_the_entries_of_segments_that_retention_deletes_go(machine: Any) -> None:
    machine.open(segment_bytes=400, retention_ms=1)
    writer = Writer(machine)
    for number in range(30):
        writer.data(1, b"k", b"%d" % number)
        writer.end(1, Marker.ABORT)
    log = machine.log
    log.high_watermark = log.log_end_offset
    machine.wall_ms += 10
    assert log.delete_old_segments(machine.wall_ms)
    assert log.transactions.aborted(0, log.log_end_offset) == ()
    log.delete_renamed_files(machine.wall_ms + (1 << 40))
    assert index_bytes(machine) == 0


@pytest.mark.parametrize("how", ["stays open", "is closed", "crashes"])
def test_a_transaction_whose_first_records_retention_deletes_stays_open(machine: Any, how: str) -> None:
    """And what is behind it stays undecided, from the log's start on."""
    machine.open(segment_bytes=400, retention_ms=1)
    writer = Writer(machine)
    for number in range(10):
        writer.data(1, b"k", b"%d" % number)
        writer.data(-1, b"k", b"plain %d" % number)
    log = machine.log
    log.high_watermark = log.log_end_offset
    machine.wall_ms += 10
    assert log.delete_old_segments(machine.wall_ms) and log.log_start_offset > 0
    log.checkpoint()
    if how == "is closed":
        machine.reopen()
    elif how == "crashes":
        machine.recover()
    log = machine.log
    log.check()
    assert log.stable_end_offset == log.log_start_offset
    writer.data(-1, b"k", b"behind")
    writer.end(1, Marker.ABORT)
    log.high_watermark = log.log_end_offset
    assert log.stable_end_offset == log.log_end_offset
    assert read_committed(log, log.log_start_offset)[-1][1] == b"behind"


@pytest.mark.parametrize("how", ["stays open", "is closed", "crashes"])
def test_a_cleaned_log_hides_what_was_aborted_and_nothing_else(machine: Any, how: str) -> None:
    """Also when an abort marker is gone: its entry must not hide the same producer's later transactions."""
    machine.open(
        compacts=True,
        deletes=False,
        segment_bytes=500,
        index_interval_bytes=100,
        delete_retention_ms=RETENTION_MS,
        min_cleanable_dirty_ratio=0.0,
    )
    writer = Writer(machine)
    for number in range(8):
        writer.data(1, b"key-%d" % number, b"aborted")
        writer.end(1, Marker.ABORT)
        writer.data(1, b"key-%d" % number, b"committed %d" % number)
        writer.end(1, Marker.COMMIT)
    entries: set[int] = set()
    for round_ in range(6):
        for _ in range(10):
            writer.data(-1, b"other", b"%d" % round_)
        log = machine.log
        log.high_watermark = log.log_end_offset
        part = log.compaction.cleanable(machine.wall_ms)
        cleaning = log.compaction.begin(part, machine.wall_ms)
        while cleaning.step() is not None:
            log.check()
        log.compaction.end(cleaning)
        machine.wall_ms += RETENTION_MS
        if how == "is closed":
            machine.reopen()
        elif how == "crashes":
            machine.recover()
        log = machine.log
        for start in range(0, 33, 5):
            found = dict(read_committed(log, start))
            kept = {
                offset: value for offset, value in writer.committed(start, 1 << 40) if value.startswith(b"committed")
            }
            assert found.items() >= kept.items() and b"aborted" not in found.values()
        entries = {each.last_offset for each in log.transactions.between(0, log.log_end_offset)}
        assert entries <= markers(log), "an entry without its marker"
    assert len(entries) < 8, f"no entry has gone: {entries}"
