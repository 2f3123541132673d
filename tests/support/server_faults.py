"""Orders to the server processes whose hooks are in ``server_hooks``: which disks fail, which brokers are cut off from each
other, and who halts at a step of a move."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ServerFaults:
    """The file that the hooks look at. Every order holds until its ``with`` ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count()
        self._orders: dict[str, Any] = {"write_errors": {}, "read_errors": {}, "cuts": [], "halt": None}
        self._publish()

    def _publish(self) -> None:
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self._orders))
        os.replace(temporary, self.path)

    @contextmanager
    def failing_writes(self, disk: Path, error: int) -> Iterator[None]:
        """Writes and flushes below that folder fail with this error number after half of their bytes."""
        with self._order("write_errors", str(disk), error):
            yield

    @contextmanager
    def failing_reads(self, disk: Path, error: int) -> Iterator[None]:
        """Reads below that folder fail with this error number."""
        with self._order("read_errors", str(disk), error):
            yield

    @contextmanager
    def _order(self, kind: str, disk: str, error: int) -> Iterator[None]:
        self._orders[kind][disk] = error
        self._publish()
        try:
            yield
        finally:
            self._orders[kind].pop(disk, None)
            self._publish()

    @contextmanager
    def cut(self, one: int, other: int) -> Iterator[None]:
        """Nothing that one broker's processes send to the other's arrives, in both directions, until the end; then it does."""
        pair = sorted((one, other))
        self._orders["cuts"].append(pair)
        self._publish()
        try:
            yield
        finally:
            self._orders["cuts"].remove(pair)
            self._publish()

    @contextmanager
    def halting(self, step: str, **replica: Any) -> Iterator[Callable[[], int | None]]:
        """Who comes to that step of this replica's move halts there until the end (``server_hooks/move_halts``). Gives its pid, or None."""
        halted = self.path.with_name(f"{self.path.name}.halted-{next(self._numbers)}")
        self._orders["halt"] = {"step": step, "halted": str(halted), **replica}
        self._publish()

        def who() -> int | None:
            try:
                return int(halted.read_text() or 0) or None
            except FileNotFoundError:
                return None

        try:
            yield who
        finally:
            self._orders["halt"] = None
            self._publish()
