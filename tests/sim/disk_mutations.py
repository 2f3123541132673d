"""Faults to be patched into the logs and their disks, by name, as in ``mutations``.

What goes wrong between the threads of one log is not here: a flush is one event of the simulator.
``tests/log/test_interleavings.py`` interleaves threads at each disk access. It finds a flush that counts although a cut
has overtaken it, a flush that takes the name of a file for synced before the file is made, and one that marks a segment
flushed after a cut has made it active again. That the page cache is trusted after a failed flush shows only where the
cache is dropped or the power goes before the process ends, in the right order: ``tests/log/test_failed_flush.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from raylog.log.flushes import Flushes
from raylog.log.log import Log

Mutation = Callable[[pytest.MonkeyPatch], None]


def cut_without_syncing_the_directory(patch: pytest.MonkeyPatch) -> None:
    """The segments behind the cut can be back after a loss of power."""
    truncate = Log.truncate_to

    def truncated(self: Log, offset: int) -> bool:
        files = self.files
        self.files = _Unsynced(files)  # type: ignore[assignment]
        try:
            return truncate(self, offset)
        finally:
            self.files = files

    patch.setattr(Log, "truncate_to", truncated)


def take_a_flush_that_failed_for_done(patch: pytest.MonkeyPatch) -> None:
    """The pages that an fsync refused to write are taken for durable."""

    @contextmanager
    def noting_nothing(self: Flushes) -> Iterator[None]:
        with suppress(OSError):
            yield

    patch.setattr(Flushes, "_noting_failure", noting_nothing)


class _Unsynced:
    def __init__(self, files: Any) -> None:
        self._files = files

    def sync_directory(self, path: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


DISK_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation for mutation in (cut_without_syncing_the_directory, take_a_flush_that_failed_for_done)
}
