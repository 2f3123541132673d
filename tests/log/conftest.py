"""A log on a disk in memory, opened, closed and crashed by tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.records.batch import STAMP_SIZE, BatchView, stamped_header
from raylog.records.codec import encode_values
from raylog.simulator.simulated_files import SimulatedDisk, SimulatedFiles

TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@dataclass
class Machine:
    """One replica's folder on one simulated disk."""

    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    directory: str = "/disk/t-0"
    boot_id: str = "boot-1"
    # Index files small: the simulated disk holds their preallocated zeros in memory.
    config: LogConfig = field(default_factory=lambda: LogConfig(segment_index_bytes=4096))
    files: SimulatedFiles = field(init=False)
    log: Log = field(init=False)
    wall_ms: int = 1_000_000
    trusts: bool = True  # as a leader does at once

    def __post_init__(self) -> None:
        self.files = self.disk.files()
        self.disk.clock_ms = lambda: self.wall_ms
        self.files.make_directory("/disk")
        self.files.sync_directory("/")

    def open(self, *, topic_id: uuid.UUID = TOPIC_ID, **config: Any) -> Log:
        self.config = replace(self.config, **config)
        self.log = Log.open(
            self.directory,
            files=self.files,
            config=self.config,
            topic="t",
            partition=0,
            topic_id=topic_id,
            now_ms=self.wall_ms,
            boot_id=self.boot_id,
        )
        if self.trusts:
            self.log.trust()
        return self.log

    def crash(self) -> None:
        """The process dies; the page cache stays."""
        self.files.crash()
        self.files = self.disk.files()

    def reopen(self, **config: Any) -> Log:
        """Stop cleanly and start again."""
        self.log.close()
        return self.open(**config)

    def recover(self, **config: Any) -> Log:
        """Crash and start again."""
        self.crash()
        return self.open(**config)

    def append(
        self, *values: bytes, leader_epoch: int | None = None, timestamp_ms: int | None = None, **codec: Any
    ) -> int:
        """One batch; returns its base offset."""
        batch = encode_values(values, timestamp_ms=self.wall_ms if timestamp_ms is None else timestamp_ms, **codec)
        if leader_epoch is None:
            leader_epoch = max(0, self.log.leader_epochs.latest_epoch)
        return self.log.append_as_leader(batch, leader_epoch=leader_epoch, wall_ms=self.wall_ms).base_offset

    def copy(self, batch: bytes, *, leader_epoch: int = 0) -> int:
        """Append a batch as if a leader had sent it; returns its base offset. So transactional batches come
        in without a coordinator."""
        base_offset = self.log.log_end_offset
        stamped = stamped_header(BatchView(batch), base_offset, leader_epoch) + batch[STAMP_SIZE:]
        self.log.append_as_follower(stamped, wall_ms=self.wall_ms)
        return base_offset

    def names(self) -> list[str]:
        return self.files.list_directory(self.directory)

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def damage(self, name: str, change: Callable[[bytes], bytes]) -> None:
        self.files.write_file(self.path(name), change(self.files.read_file(self.path(name))))


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def make_machine() -> type[Machine]:
    """For tests that need several, or one for each example."""
    return Machine
