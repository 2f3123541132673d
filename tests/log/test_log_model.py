"""The log against a list: appends, reads, cuts, deletes, restarts, crashes and losses of power, in any order that hypothesis finds.

The model is a list of records with their epochs, and the offset below which a flush has returned. After a crash everything is there;
after a loss of power at least what was flushed, and what is there is what was written.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.config import NEVER, LogConfig
from raylog.log.log import Log
from raylog.records.batch import batches
from raylog.records.codec import decode, encode
from raylog.simulator.simulated_files import SimulatedDisk
from raylog.types import Condition


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.files = self.disk.files()
        self.files.make_directory("/d")
        self.files.sync_directory("/")
        self.boots = 0
        self.records: dict[int, tuple[bytes, int, int]] = {}  # offset → value, timestamp, epoch
        self.batch_starts: list[int] = []
        self.start = self.end = self.flushed = 0
        self.epoch = 0
        self.sequence = 0
        self.sent: list[tuple[bytes, int]] = []  # the idempotent producer's batches and their offsets
        self.clock = 0
        self.producer = 1
        self.uncertain = False  # an unflushed cut: a loss of power may bring back what was there before

    @initialize(
        segment=st.integers(800, 2000),
        interval=st.integers(50, 500),
        index=st.sampled_from([24, 96, 960]),
        every_append=st.booleans(),
    )
    def configure(self, segment: int, interval: int, index: int, every_append: bool) -> None:
        self.config = LogConfig(
            flush_messages=1 if every_append else NEVER,
            segment_bytes=segment,
            index_interval_bytes=interval,
            segment_index_bytes=index,
            retention_bytes=1500,
            retention_ms=-1,
        )
        self.open(Condition.MISSING)

    def open(self, *expected: Condition) -> None:
        self.log = Log.open(
            "/d/t-0", files=self.files, config=self.config, topic="t", partition=0, topic_id=uuid.UUID(int=1), now_ms=self.clock,
            boot_id=f"boot-{self.boots}",
        )  # fmt: skip
        assert self.log.condition in expected, (self.log.condition, self.log.recovery)
        self.log.trust()

    # ------------------------------------------------------------------ writing

    @rule(
        sizes=st.lists(st.integers(0, 120), min_size=1, max_size=5),
        jump=st.integers(-5, 20),
        newer=st.booleans(),
        followed=st.booleans(),
    )
    def append(self, sizes: list[int], jump: int, newer: bool, followed: bool) -> None:
        self.epoch += newer
        self.clock = max(0, self.clock + jump)
        values = [bytes([self.end % 251]) * size for size in sizes]
        batch = encode([(self.clock, None, value, ()) for value in values])
        appended = self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=self.clock, is_followed=followed)
        assert appended.base_offset == self.end
        self._note(values)

    @rule(size=st.integers(0, 60))
    def append_in_sequence(self, size: int) -> None:
        value = b"s" * size
        batch = encode(
            [(self.clock, None, value, ())], producer_id=self.producer, producer_epoch=0, base_sequence=self.sequence
        )
        result = self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=self.clock)
        assert (result.base_offset, result.duplicate) == (self.end, False)
        self.sent.append((batch, self.end))
        self.sequence += 1
        self._note([value])

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(1, 8))
    def repeat(self, back: int) -> None:
        batch, offset = self.sent[-min(back, len(self.sent))]
        if min(back, len(self.sent)) <= 5:
            result = self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=self.clock)
            assert (result.base_offset, result.duplicate) == (offset, True)
        else:
            with pytest.raises(kafka_error(ErrorCode.out_of_order_sequence_number)):
                self.log.append_as_leader(batch, leader_epoch=self.epoch, wall_ms=self.clock)

    def _note(self, values: list[bytes]) -> None:
        self.batch_starts.append(self.end)
        for value in values:
            self.records[self.end] = (value, self.clock, self.epoch)
            self.end += 1
        if self.config.flush_messages == 1:
            self.flush()

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock)

    @rule()
    def flush(self) -> None:
        self.flushed = self.log.flush()
        self.uncertain = False

    @rule(share=st.floats(0, 1))
    def advance_high_watermark(self, share: float) -> None:
        self.log.high_watermark = max(self.log.high_watermark, int(share * self.end))

    # ------------------------------------------------------------------ cutting

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        target = self.start + int(share * (self.end - self.start))
        expected = max((start for start in self.batch_starts if start <= target), default=target)
        if self.log.truncate_to(target):
            assert target < self.end and self.log.log_end_offset == expected, (
                target,
                self.log.log_end_offset,
                expected,
            )
            self._cut(expected)
            self.uncertain = self.config.flush_messages != 1
            self.start = min(self.start, expected)
        else:
            assert target == self.end

    def _cut(self, end: int) -> None:
        self.end = end
        self.flushed = min(self.flushed, end)
        self.records = {offset: record for offset, record in self.records.items() if offset < end}
        self.batch_starts = [start for start in self.batch_starts if start < end]
        while self.sent and self.sent[-1][1] >= end:
            self.sent.pop()
            self.sequence -= 1
        if not self.sent:
            self.sequence = 0

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        target = int(share * self.log.high_watermark)
        if target > self.start:
            self.log.advance_log_start(target)
            self.start = target

    @rule()
    def retention(self) -> None:
        before = self.log.size_bytes
        self.log.delete_old_segments(self.clock)
        self.log.delete_renamed_files(self.clock + 10**9)
        assert before <= 1500 or self.log.size_bytes <= before
        assert self.start <= self.log.log_start_offset <= max(self.start, self.log.high_watermark)
        self.start = self.log.log_start_offset

    @rule(offset=st.integers(0, 500))
    def start_elsewhere(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self._cut(0)
        self.start = self.end = self.flushed = offset
        self.uncertain = self.config.flush_messages != 1

    # ------------------------------------------------------------------ restarting

    @rule()
    def stop_and_start(self) -> None:
        mark = self.log.high_watermark
        self.log.close()
        self.boots += 1
        self.open(Condition.CLEAN)
        self.flushed = self.end
        assert self.log.high_watermark == mark

    @rule()
    def crash(self) -> None:
        self.log.checkpoint()
        self.files.crash()
        self.files = self.disk.files()
        self.open(Condition.WHOLE)

    @rule(seed=st.integers(0, 1 << 30), torn=st.integers(1, 200))
    def crash_inside_an_append(self, seed: int, torn: int) -> None:
        path = f"{self.log.segments.active.path}.log"
        batch = encode([(self.clock, None, b"t" * 150, ())])
        stamped = self.end.to_bytes(8, "big") + batch[8:]
        file = self.files.open(path)
        file.write_at(self.log.segments.active.size, stamped[: min(torn, len(stamped) - 1)])
        file.close()
        self.crash()

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self.log.checkpoint()
        self.disk.lose_power(random.Random(seed))
        self.files = self.disk.files()
        self.boots += 1
        self.open(Condition.WHOLE if self.config.flush_messages == 1 else Condition.SUSPECT)
        if self.uncertain:
            self._take_over()
        else:
            assert self.flushed <= self.log.log_end_offset <= self.end, (
                self.flushed,
                self.log.log_end_offset,
                self.end,
            )
            self._cut(self.log.log_end_offset)
        # A checkpoint or a renaming that was not flushed is undone: deleted records may be back.
        assert self.uncertain or self.log.log_start_offset <= max(self.start, self.end)
        self.start = self.log.log_start_offset
        self.flush()

    def _take_over(self) -> None:
        """What is there is what was once written, without a hole; from here on it is the truth."""
        self.records, self.batch_starts, self.sent = {}, [], []
        self.sequence, self.producer = 0, self.producer + 1
        offset = self.log.log_start_offset
        self.end = self.log.log_end_offset
        while offset < self.end:
            for view in batches(self.log.read(offset, 300).records):
                assert view.base_offset <= offset and view.has_valid_crc(), (view, offset)
                self.batch_starts.append(view.base_offset)
                for record in decode(view):
                    self.records[record.offset] = (record.value or b"", record.timestamp, record.leader_epoch)
                offset = view.next_offset
        self.epoch = max(self.epoch, self.log.leader_epochs.latest_epoch)

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        log.check()
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        expected = {offset: record for offset, record in self.records.items() if offset >= self.start}
        found: dict[int, tuple[bytes, int, int]] = {}
        offset = self.start
        while offset < self.end:
            part = log.read(offset, 300)
            for view in batches(part.records):
                assert view.has_valid_crc()
                for record in decode(view):
                    if record.offset >= self.start:
                        found[record.offset] = (record.value or b"", record.timestamp, record.leader_epoch)
            assert part.next_offset > offset
            offset = part.next_offset
        assert found == expected
        self._epochs_hold(expected)
        self._timestamps_hold(expected)

    def _epochs_hold(self, expected: dict[int, tuple[bytes, int, int]]) -> None:
        for epoch in {epoch for _, _, epoch in expected.values()}:
            later = [offset for offset, record in expected.items() if record[2] > epoch]
            assert self.log.leader_epochs.end_offset_for(epoch, self.end) == (epoch, min(later, default=self.end))

    def _timestamps_hold(self, expected: dict[int, tuple[bytes, int, int]]) -> None:
        for timestamp in {0, self.clock, self.clock // 2, self.clock + 1}:
            first: Any = next(((t, o, e) for o, (_, t, e) in sorted(expected.items()) if t >= timestamp), None)
            assert self.log.offset_for_timestamp(timestamp) == first


def test_log_behaves_like_a_list_through_crashes_and_losses_of_power() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LogAgainstList,
        settings=settings(
            max_examples=40, stateful_step_count=25, derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


@pytest.mark.sim
def test_log_behaves_like_a_list_in_many_more_histories() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LogAgainstList,
        settings=settings(max_examples=300, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )
