"""A server whose disk is slow: a read of old records waits in a thread, and nothing else waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faulty_files import FaultyFiles
from kio.schema.errors import ErrorCode
from raw_requests import batch, eventually, fetch, produce

from raylog.log.files import File, NotInMemory
from raylog.records.batch import batches
from raylog.types import broker_of

pytestmark = pytest.mark.core


class SlowFiles(FaultyFiles):
    """While ``cold``, nothing is in memory until it was loaded, and loads take until ``may_load`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.cold = False
        self.loading = threading.Event()
        self.may_load = threading.Event()

    def open(self, path: str, *, create: bool = False) -> File:
        return _SlowFile(self, path, super().open(path, create=create))

    def load(self, path: str, position: int, size: int) -> None:
        self.loading.set()
        assert self.may_load.wait(60)
        super().load(path, position, size)
        self.cold = False


class _SlowFile:
    def __init__(self, files: SlowFiles, path: str, file: File) -> None:
        self._files, self._path, self._file = files, path, file

    def read_at(self, position: int, size: int, *, in_memory: bool = False) -> bytes | bytearray:
        if in_memory and self._files.cold:
            raise NotInMemory(self._path, position, size)
        return self._file.read_at(position, size, in_memory=in_memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_produce_is_answered_while_a_cold_fetch_waits_and_then_the_fetch_is_whole(faulty: Any) -> None:
    for broker in range(3):
        faulty.files[broker] = SlowFiles()
    faulty.make_topic(replication_factor=1, segment_bytes="2000", replicas_per_actor="1")
    node = faulty.leader()
    sent = [batch(b"%d" % number * 900) for number in range(4)]
    for records in sent:
        assert produce(faulty.running, node, "t", records).error_code is ErrorCode.none
    disk = faulty.files[broker_of(node)]
    disk.cold = True
    with ThreadPoolExecutor(1) as threads:
        cold = threads.submit(_whole, faulty.running, node)
        try:
            assert disk.loading.wait(60)
            answer = produce(faulty.running, node, "t", batch(b"meanwhile"))
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 4)
            assert disk.cold and not cold.done()
        finally:
            disk.may_load.set()
        assert cold.result(60)[1] == 1 and cold.result(60)[0] >= 1


def _whole(running: Any, node: int) -> tuple[int, int]:
    """(batches, the first one's next offset) of a fetch from the log's start that finds any."""
    found = eventually(lambda: list(batches(fetch(running, node, "t").records or b"")), "records")
    return len(found), found[0].next_offset
