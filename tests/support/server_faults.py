"""Orders to the server processes whose hooks are in ``server_hooks``: which disks fail, and which brokers are cut off from each other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ServerFaults:
    """The file that the hooks look at. Every order holds until its ``with`` ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._orders: dict[str, Any] = {"write_errors": {}, "read_errors": {}, "cuts": []}
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
