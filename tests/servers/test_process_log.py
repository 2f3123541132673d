"""What a server process writes to its log: its formats, its limit on what repeats, and how its file is read again."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.errors import ConfigError
from raylog.kafka.context import RequestContext
from raylog.kafka.traces import within
from raylog.server.log_files import LogLine, WantedLines, lines_of, parsed
from raylog.server.process_log import (
    LINES_MAX,
    MESSAGE_CHARS_MAX,
    NO_NODE,
    WINDOW_S,
    JsonLines,
    LimitedHandler,
    TextLines,
    log_settings,
)

NODE = 65_538
SAID = """
import logging, os, sys
from raylog.server import log_files, process_log
process_log.begin({node}, {cluster!r})
print("what Ray says", file=sys.stderr)
logging.getLogger("raylog.replica").warning("a\\nforged line")
try:
    raise ValueError("why")
except ValueError:
    logging.getLogger("raylog.broker").exception("it failed")
logging.getLogger("raylog.broker").info("done")
print(log_files.own_log_folder())
"""


OF_NO_BROKER = """
import logging
from raylog.server import process_log
process_log.begin_without_cluster()
logging.getLogger("raylog.provisioner").warning("2 of 3 disks have joined")
process_log.belong_to({cluster!r})
logging.getLogger("raylog.provisioner").info("every disk serves")
"""


class Limited:
    """A handler whose clock stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.stream = io.StringIO()
        self.handler = LimitedHandler(
            self.stream, clock=lambda: self.now_s, after=lambda seconds, call: self.timers.append((seconds, call))
        )

    def say(self, message: str, *arguments: object, level: int = logging.INFO) -> None:
        self.handler.handle(logging.LogRecord("raylog.test", level, "", 0, message, arguments, None))

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def test_what_repeats_is_counted_and_told_when_its_time_is_over() -> None:
    limited = Limited()
    for number in range(LINES_MAX + 5):
        limited.say("client %d is wrong", number)
    limited.say("something else")
    assert limited.lines == [*(f"client {number} is wrong" for number in range(LINES_MAX)), "something else"]
    ((after_s, tell),) = limited.timers
    assert after_s == WINDOW_S
    tell()
    assert limited.lines[-1] == f"client {LINES_MAX + 4} is wrong (and 4 more like it)"
    limited.now_s = WINDOW_S
    limited.say("client %d is wrong", 99)
    assert limited.lines[-1] == "client 99 is wrong"


def test_the_levels_and_places_of_lines_are_limited_each_for_itself() -> None:
    limited = Limited()
    for _ in range(LINES_MAX + 1):
        limited.say("late")
    limited.say("late", level=logging.ERROR)
    assert len(limited.lines) == LINES_MAX + 1


def test_a_process_that_ends_still_says_what_it_held_back() -> None:
    limited = Limited()
    for _ in range(LINES_MAX + 3):
        limited.say("late")
    limited.handler.close()
    assert limited.lines[-1] == "late (and 2 more like it)"


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("raylog.replica", logging.WARNING, "", 0, message, None, None)


@pytest.mark.parametrize("formatter", [TextLines(NODE), JsonLines(NODE)])
def test_a_line_of_either_format_is_read_as_it_was_written(formatter: logging.Formatter) -> None:
    said = record("two\nlines of ümlauts")
    written = (formatter.format(said) + "\n").encode()
    (line,) = parsed(io.BytesIO(written))
    assert line == LogLine(int(said.created * 1_000), NODE, "WARNING", "raylog.replica", "two\nlines of ümlauts")


@pytest.mark.parametrize("formatter", [TextLines(NODE), JsonLines(NODE)])
def test_what_would_steer_a_terminal_is_escaped_and_a_message_has_an_end(formatter: logging.Formatter) -> None:
    written = (formatter.format(record("\x1b[2Jgone\r\u2028\x85\u202e\tü")) + "\n").encode()
    assert len(written.decode().splitlines()) == 1 and b"\x1b" not in written
    (line,) = parsed(io.BytesIO(written))
    assert line.message == "\\x1b[2Jgone\\x0d\\u2028\\x85\\u202e\tü"
    (line,) = parsed(io.BytesIO((formatter.format(record("x" * 100_000)) + "\n").encode()))
    assert line.message == "x" * MESSAGE_CHARS_MAX + f"… ({100_000 - MESSAGE_CHARS_MAX} characters more)"


def test_a_traceback_is_escaped_too() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        said = logging.LogRecord("raylog.replica", logging.ERROR, "", 0, "it failed", None, sys.exc_info())
    for formatter in (TextLines(NODE), JsonLines(NODE)):
        written = formatter.format(said)
        assert "\x1b" not in written and "\\x1b[2J" in str(next(parsed([written.encode()])).message)


def test_json_is_one_object_a_line() -> None:
    text = JsonLines(NODE).format(record("two\nlines"))
    assert "\n" not in text
    document = json.loads(text)
    assert document.pop("time_ms") > 0
    assert document == {
        "level": "WARNING",
        "logger": "raylog.replica",
        "node_id": NODE,
        "message": "two\nlines",
    }


def test_a_format_or_level_that_there_is_not_is_refused_by_name() -> None:
    assert log_settings({}) == ("text", "INFO")
    assert log_settings({"RAYLOG_LOG_FORMAT": "JSON", "RAYLOG_LOG_LEVEL": "debug"}) == ("json", "DEBUG")
    for name in ("RAYLOG_LOG_FORMAT", "RAYLOG_LOG_LEVEL"):
        with pytest.raises(ConfigError, match=name):
            log_settings({name: "xml"})


def a_process(folder: Path, file: str, cluster: str = "a-cluster", *, program: str = SAID, **environment: str) -> str:
    """Logs to that file as a server's process does; its stdout."""
    with open(folder / file, "ab") as stderr:
        ran = subprocess.run(
            [sys.executable, "-c", program.format(node=NODE, cluster=cluster)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | environment,
            check=True,
            timeout=300,
        )
    return ran.stdout.decode().strip()


@pytest.mark.core
@pytest.mark.parametrize("format", ["text", "json"])
def test_the_files_of_processes_are_read_in_the_order_of_time_without_what_others_wrote(
    tmp_path: Path, format: str
) -> None:
    assert a_process(tmp_path, "worker-1.err", RAYLOG_LOG_FORMAT=format) == str(tmp_path)
    a_process(tmp_path, "worker-2.err", cluster="another")
    (tmp_path / "worker-3.err").write_text("2026-11-28 03:59:43,123 ERROR raylog.replica [65538]: of no cluster\n")
    found = lines_of(tmp_path, "a-cluster", WantedLines())
    assert [(line.level, line.logger, line.message.split("\n")[0]) for line in found[1:]] == [
        ("WARNING", "raylog.replica", "a"),
        ("ERROR", "raylog.broker", "it failed"),
        ("INFO", "raylog.broker", "done"),
    ]
    assert found[0].message.startswith("process starts: cluster a-cluster, node 65538, process ")
    assert found[1].message == "a\nforged line"
    assert found[2].message.startswith("it failed\nTraceback") and found[2].message.endswith("ValueError: why")
    assert [each.time_ms for each in found] == sorted(each.time_ms for each in found)


@pytest.mark.core
def test_lines_are_chosen_by_level_broker_time_and_number(tmp_path: Path) -> None:
    def line(second: int, level: str, node: int, message: str) -> str:
        return f"2026-11-28 03:59:{second:02},000 {level} raylog.x [{node}]: {message}\n"

    (tmp_path / "worker-1.err").write_text(
        line(1, "INFO", NODE, "process starts: cluster a-cluster, node 65538, process 7")
        + line(4, "DEBUG", NODE, "four")
        + line(2, "WARNING", NODE, "two")
    )
    (tmp_path / "worker-2.err").write_text(
        line(1, "INFO", 7, "process starts: cluster a-cluster, node 7, process 8") + line(3, "ERROR", 7, "three")
    )

    def messages(**wanted: object) -> list[str]:
        return [each.message for each in lines_of(tmp_path, "a-cluster", WantedLines(**wanted))]  # type: ignore[arg-type]

    assert messages(level="WARNING") == ["two", "three"]
    assert messages(level="DEBUG", count=2) == ["three", "four"]
    assert messages(broker=0, level="ERROR") == ["three"] and messages(broker=1, level="ERROR") == []
    two = next(each.time_ms for each in lines_of(tmp_path, "a-cluster", WantedLines()) if each.message == "two")
    assert messages(since_ms=two) == ["two", "three"]


@pytest.mark.parametrize("formatter", [TextLines(NODE), JsonLines(NODE)])
def test_a_line_has_the_trace_id_of_the_request_it_belongs_to_also_if_it_is_held_back(
    formatter: logging.Formatter,
) -> None:
    limited = Limited()
    limited.handler.setFormatter(formatter)
    with within(RequestContext("User:ann", "PLAINTEXT", "10.0.0.1", None, "4bf92f")):
        for number in range(LINES_MAX + 1):
            limited.say("client %d is wrong", number)
    limited.say("something else")
    with within(RequestContext("User:ann", "PLAINTEXT", "10.0.0.1", None, "another")):
        limited.timers[0][1]()
    found = list(parsed([each.encode() for each in limited.lines]))
    assert [(each.trace_id, each.message) for each in found] == [
        *(("4bf92f", f"client {number} is wrong") for number in range(LINES_MAX)),
        ("", "something else"),
        ("4bf92f", f"client {LINES_MAX} is wrong"),
    ]
    assert found[0].node_id == NODE and found[0].logger == "raylog.test"


@pytest.mark.core
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_process_of_no_broker_says_later_to_which_cluster_its_lines_belong(tmp_path: Path, format: str) -> None:
    a_process(tmp_path, "worker-1.err", program=OF_NO_BROKER, RAYLOG_LOG_FORMAT=format)
    found = lines_of(tmp_path, "a-cluster", WantedLines())
    assert [(line.node_id, line.level, line.message.partition(":")[0]) for line in found] == [
        (NO_NODE, "WARNING", "2 of 3 disks have joined"),
        (NO_NODE, "INFO", "process starts"),
        (NO_NODE, "INFO", "every disk serves"),
    ]
    assert lines_of(tmp_path, "another", WantedLines()) == []
    assert lines_of(tmp_path, "a-cluster", WantedLines(broker=0)) == []
