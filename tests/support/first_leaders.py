"""Controllers that wait for a new partition's first replica to lead it, however late a busy machine has that ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raylog.metadata.configuration.controller_config import ControllerConfig
from raylog.server import controller_server


@contextmanager
def preferred_leaders_are_awaited() -> Iterator[None]:
    """Of the controllers that are made meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller_server, "ControllerConfig", lambda: ControllerConfig(first_leader_wait_ms=60_000))
        yield
