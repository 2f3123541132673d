"""A program hears of losses from those that have its token, and from nobody else; who can't tell it goes on."""

from __future__ import annotations

import dataclasses
import logging
import socket

import pytest

from raylog.data import loss_reports
from raylog.data.loss_reports import LossListener, listener

pytestmark = pytest.mark.spark


def test_what_is_told_is_a_warning_before_the_teller_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "raylog.data"):
        listener().tell("offsets 3 to 5 of t-0 are gone")
        listener().tell("offsets 7 to 8 of t-1 are gone")
    assert caplog.messages == ["offsets 3 to 5 of t-0 are gone", "offsets 7 to 8 of t-1 are gone"]


def test_a_process_that_was_forked_listens_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own = listener()
    assert listener() == own
    monkeypatch.setattr(loss_reports, "_listening", loss_reports._listening)
    monkeypatch.setattr(loss_reports.os, "getpid", lambda: -1)
    child = listener()
    assert (child.port, child.token) != (own.port, own.token)


def test_who_has_no_token_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    stranger = dataclasses.replace(listener(), token="0" * 32)
    with caplog.at_level(logging.WARNING, "raylog.data"):
        stranger.tell("all is lost")
    assert (
        len(caplog.messages) == 1
        and "did not take the report of a loss: it did not acknowledge the report" in caplog.text
    )


@pytest.mark.parametrize(
    "said", [b"\n", b"[]\n", b"{}\n", b'{"token": 5, "loss": 5}\n', b"x" * 100_000, b"\xff\n", b"{"]
)
def test_what_is_no_report_is_dropped_and_the_next_one_heard(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    own = listener()
    with socket.create_connection((own.host, own.port), 60) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        try:
            assert connection.recv(10) == b""
        except ConnectionResetError:
            pass  # it was closed with bytes of ours unread
    with caplog.at_level(logging.WARNING, "raylog.data"):
        own.tell("and yet it is heard")
    assert caplog.messages == ["and yet it is heard"]


def test_a_program_that_is_gone_does_not_hold_up_who_tells_it(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with caplog.at_level(logging.WARNING, "raylog.data"):
        LossListener("127.0.0.1", port, "token").tell("nobody hears this")
    assert "which planned this read, did not take the report of a loss" in caplog.text
