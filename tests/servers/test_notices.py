"""What the controller's machine notes, as its process logs it."""

from __future__ import annotations

import logging

import pytest

from raylog.metadata.events import Notice, NoticeLevel, warning
from raylog.server.controller_effects import carry_out
from raylog.server.controller_server import ControllerServer


def test_a_notice_is_logged_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    shell = object.__new__(ControllerServer)  # a notice needs nothing of the server
    notices = (Notice("it leads"), warning("nobody leads"), Notice("records may be lost", NoticeLevel.ERROR))
    with caplog.at_level(logging.DEBUG, "raylog.controller"):
        carry_out(shell, notices)
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("INFO", "it leads"),
        ("WARNING", "nobody leads"),
        ("ERROR", "records may be lost"),
    ]
