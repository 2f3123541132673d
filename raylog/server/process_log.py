"""How a server process logs: one line for each fact, on stderr, which Ray keeps in a file of its
node.

A line is text, or one JSON object with ``RAYLOG_LOG_FORMAT=json`` in the environment that Ray's
processes are started with; ``RAYLOG_LOG_LEVEL`` is the least level that is written. Text is::

    2026-11-28 03:59:43,123 WARNING raylog.replica [65538]: message

with the process's node id in brackets, and behind it the trace id of the request that the line belongs
to, if it has one (``raylog.kafka.traces``). What belongs to the same fact and has line breaks, such as a
traceback, follows in lines that begin with a space. Other characters that steer a terminal are written
as escapes, since clients choose some of what is logged, and a message ends after ``MESSAGE_CHARS_MAX``
characters. The first line of a process is its ``STARTS`` line, which says to which cluster the file
belongs (``log_files`` reads it). A process of no broker, such as the provisioner, has ``NO_NODE`` in the
brackets, and writes the line when it knows the cluster.

Levels: ERROR, something that was promised is not done, and somebody has to act; WARNING, it may come
to that, or a client did something wrong; INFO, something has changed; DEBUG, everything else.

A line that repeats is limited: of what one place in the code says, ``LINES_MAX`` lines pass in
``WINDOW_S`` seconds. What is held back is counted, and the count follows when the time is over.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from raylog.errors import ConfigError
from raylog.kafka.traces import trace_id_of

FORMAT_VARIABLE: Final = "RAYLOG_LOG_FORMAT"
LEVEL_VARIABLE: Final = "RAYLOG_LOG_LEVEL"
FORMATS: Final = ("text", "json")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
STARTS: Final = "process starts: "
LINES_MAX: Final = 20
WINDOW_S: Final = 10.0
PLACES_MAX: Final = 1_000  # places in the code that are remembered
MESSAGE_CHARS_MAX: Final = 8_192
NO_NODE: Final = -1

_STEERING = (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))  # bidi ones among them
_ESCAPES: Final = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _STEERING if chr(code) not in "\n\t"
}

logger = logging.getLogger("raylog.process")


class TextLines(logging.Formatter):
    def __init__(self, node_id: int) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s [" + str(node_id) + "%(in_trace)s]: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        trace_id = getattr(record, "trace_id", None)
        record.in_trace = "" if trace_id is None else f" {trace_id}"
        return super().format(record).translate(_ESCAPES).replace("\n", "\n ")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _bounded(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """Keys: ``time_ms`` since 1970, ``level``, ``logger``, ``node_id``, ``message``; where there is
    one, ``trace_id`` and ``exception``; and those of the record's ``facts``, which the message says in text.
    """

    def __init__(self, node_id: int) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            **getattr(record, "facts", {}),
            "time_ms": int(record.created * 1_000),
            "level": record.levelname,
            "logger": record.name,
            "node_id": self._node_id,
            "message": _bounded(record.getMessage()).translate(_ESCAPES),
        }
        if (trace_id := getattr(record, "trace_id", None)) is not None:
            document["trace_id"] = trace_id
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info).translate(_ESCAPES)
        return json.dumps(document, ensure_ascii=False)


def _bounded(message: str) -> str:
    left = len(message) - MESSAGE_CHARS_MAX
    return message if left <= 0 else f"{message[:MESSAGE_CHARS_MAX]}… ({left} characters more)"


@dataclass(slots=True)
class _Repeating:
    """What one place in the code has said in this window."""

    began_s: float
    lines: int
    held_back: int = 0
    last: logging.LogRecord | None = None


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream what the limit lets pass. ``after`` calls back after so many seconds, in
    any thread.

    Invariant: a place with lines held back has a callback under way.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        after: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        super().__init__(stream)
        self._clock = clock
        self._after = after or _in_a_thread
        self._places: dict[tuple[str, int, str], _Repeating] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held."""
        record.trace_id = trace_id_of(record)  # a line that is held back is written in another one's time
        key = (record.name, record.levelno, str(record.msg))
        now_s = self._clock()
        place = self._places.get(key)
        if place is None or now_s - place.began_s >= WINDOW_S:
            if place is not None:
                self._tell(place)
            elif len(self._places) >= PLACES_MAX:
                self._forget(now_s)
            place = self._places[key] = _Repeating(now_s, 0)
        if place.lines < LINES_MAX:
            place.lines += 1
            super().emit(record)
            return
        place.held_back += 1
        place.last = record
        if place.held_back == 1:
            self._after(WINDOW_S - (now_s - place.began_s), lambda: self._tell_in_time(place))

    def _tell_in_time(self, place: _Repeating) -> None:
        with self.lock or threading.RLock():
            self._tell(place)

    def _tell(self, place: _Repeating) -> None:
        """The last line that was held back, and how many there were."""
        record, count = place.last, place.held_back
        place.held_back, place.last = 0, None
        if record is not None:
            text = record.getMessage() + (f" (and {count - 1} more like it)" if count > 1 else "")
            told = logging.makeLogRecord(
                record.__dict__ | {"msg": text, "args": (), "exc_info": None, "exc_text": None}
            )
            super().emit(told)

    def _forget(self, now_s: float) -> None:
        for key, place in list(self._places.items()):
            if now_s - place.began_s >= WINDOW_S or len(self._places) >= PLACES_MAX:
                self._tell(place)
                del self._places[key]

    def close(self) -> None:
        """What is held back is written first."""
        for place in self._places.values():
            self._tell(place)
        super().close()


def begin(node_id: int, cluster_id: str) -> None:
    """This process logs as a server from now on. What the environment says and there is not is an
    error in the log.
    """
    wrong = _write_lines(node_id)
    _belong(node_id, cluster_id)
    _report(wrong)


def begin_without_cluster() -> None:
    """The same for a process of no broker that does not know its cluster yet; ``belong_to`` follows."""
    _report(_write_lines(NO_NODE))


def belong_to(cluster_id: str) -> None:
    """The lines of this process, which is of no broker, are that cluster's, the earlier ones too."""
    _belong(NO_NODE, cluster_id)


def _belong(node_id: int, cluster_id: str) -> None:
    least = max(logging.INFO, logging.root.level)  # it is there whatever the level
    logger.log(least, f"{STARTS}cluster %s, node %d, process %d", cluster_id, node_id, os.getpid())


def _report(wrong: ConfigError | None) -> None:
    if wrong is not None:
        logger.error("%s; the log is in text, from INFO up", wrong)


def _write_lines(node_id: int) -> ConfigError | None:
    """What is wrong in the environment."""
    wrong = None
    try:
        format, level = log_settings(os.environ)
    except ConfigError as error:
        format, level, wrong = FORMATS[0], "INFO", error
    handler = LimitedHandler(sys.stderr)
    handler.setFormatter(JsonLines(node_id) if format == "json" else TextLines(node_id))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return wrong


def log_settings(environment: Mapping[str, str]) -> tuple[str, str]:
    """Format and level. Raises ConfigError for others than there are."""
    format = environment.get(FORMAT_VARIABLE, "text").lower()
    level = environment.get(LEVEL_VARIABLE, "INFO").upper()
    if format not in FORMATS:
        raise ConfigError(f"{FORMAT_VARIABLE}={format!r}: give {' or '.join(FORMATS)}")
    if level not in LEVELS:
        raise ConfigError(f"{LEVEL_VARIABLE}={level!r}: give one of {', '.join(LEVELS)}")
    return format, level


def _in_a_thread(seconds: float, callback: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, callback)
    timer.daemon = True
    timer.start()
