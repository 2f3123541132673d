"""What the server processes of one machine have logged, read from the files that Ray keeps of their
stderr: those of living processes and of dead ones, as far as Ray still has them.

All are in the folder of Ray's session, beside the files of other programs. A file belongs to the
cluster that its first ``process_log.STARTS`` line names. A file without such a line is somebody else's.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from raylog.errors import ConfigError
from raylog.server.process_log import LEVELS, STARTS
from raylog.types import broker_of
from raylog.wire.private_watching import LogsRead, ReadLogs
from raylog.wire.request import Request

TAIL_BYTES: Final = 16 << 20
COUNT_MAX: Final = 10_000
SESSION_LOGS: Final = Path("/tmp/ray/session_latest/logs")
FILES: Final = "worker-*.err*"  # with those that Ray has rotated
LINE_BYTES_MAX: Final = 1 << 16
HEAD_BYTES: Final = 1 << 16  # in which a file's first STARTS line is looked for

_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (DEBUG|INFO|WARNING|ERROR|CRITICAL) ([\w.]+) \[(-?\d+)(?: (\S+))?\]: (.*)",
    re.DOTALL,
)
_STARTS = re.compile(re.escape(STARTS) + r"cluster (\S+), node -?\d+, process \d+")


@dataclass(frozen=True, slots=True)
class LogLine:
    """``time_ms`` since 1970. ``node_id`` −1: a process of no broker. ``message`` has the lines of a traceback behind it, if there is one.
    ``trace_id`` is that of the request that the line belongs to, empty if it belongs to none.
    """

    time_ms: int
    node_id: int
    level: str
    logger: str
    message: str
    trace_id: str = ""


def own_log_folder() -> Path | None:
    """Where Ray keeps this process's stderr; None where it keeps none, or the system does not say."""
    try:
        file = Path(os.readlink("/proc/self/fd/2"))
    except OSError:
        return None
    return file.parent if file.name.startswith("worker-") else None


@dataclass(frozen=True, slots=True)
class WantedLines:
    """The newest ``count`` lines since ``since_ms``, of that level or above. ``broker`` −1: of any.
    ``trace_id``: of that request only; empty: of any and of none.
    """

    since_ms: int = 0
    level: str = "INFO"
    broker: int = -1
    count: int = 1_000
    trace_id: str = ""

    def takes(self, line: LogLine) -> bool:
        return (
            line.time_ms >= self.since_ms
            and _rank(line.level) >= _rank(self.level)
            and self.broker in (-1, broker_of(line.node_id))
            and self.trace_id in ("", line.trace_id)
        )


def lines_of(folder: Path, cluster_id: str, wanted: WantedLines) -> list[LogLine]:
    """What the cluster's processes have logged, in the order of time. Of a file only the last
    ``TAIL_BYTES`` are read.
    """
    kept: list[tuple[int, int, int, LogLine]] = []  # a process's lines of one millisecond stay in their order
    number = 0
    for path in sorted(folder.glob(FILES)):
        try:
            if path.stat().st_mtime * 1_000 < wanted.since_ms:
                continue
            with open(path, "rb") as file:
                if not _is_of(cluster_id, file.read(HEAD_BYTES)):
                    continue
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                for line in filter(wanted.takes, parsed(file)):
                    number += 1
                    heapq.heappush(kept, (line.time_ms, line.node_id, number, line))
                    if len(kept) > wanted.count:
                        heapq.heappop(kept)
        except OSError:
            continue  # Ray has removed it meanwhile
    return [line for *_, line in sorted(kept, key=lambda each: each[:3])]


def in_order(lines: Iterable[LogLine]) -> list[LogLine]:
    """By time; a process's lines of one millisecond stay as they are."""
    return sorted(lines, key=lambda line: (line.time_ms, line.node_id))


async def read_logs(request: Request) -> None:
    """Answers ReadLogs. The files are read in a thread."""
    asked: ReadLogs = request.body
    if asked.level not in LEVELS or asked.count < 1:
        request.refuse(ConfigError(f"level {asked.level!r} or count {asked.count} of log lines is none"))
        return
    folder, cluster_id = own_log_folder(), request.connection.server.cluster_id
    if folder is None:
        request.reply(LogsRead())
        return
    wanted = WantedLines(asked.since_ms, asked.level, asked.broker, min(asked.count, COUNT_MAX), asked.trace_id)
    lines = await asyncio.to_thread(lines_of, folder, cluster_id, wanted)
    request.reply(LogsRead(tuple(map(astuple, lines)), str(folder)))


def _is_of(cluster_id: str, head: bytes) -> bool:
    found = _STARTS.search(head.decode(errors="replace"))
    return found is not None and found[1] == cluster_id


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def parsed(lines: Iterator[bytes] | list[bytes]) -> Iterator[LogLine]:
    """The log lines among what a process has written to stderr; the rest, such as what Ray says, is
    left out.
    """
    open_: LogLine | None = None
    for raw in lines:
        text = raw[:LINE_BYTES_MAX].decode(errors="replace").rstrip("\n")
        if open_ is not None and text.startswith(" "):
            if len(open_.message) < LINE_BYTES_MAX:
                open_ = _with_message(open_, f"{open_.message}\n{text[1:]}")
            continue
        if open_ is not None:
            yield open_
        open_ = _of_json(text) if text.startswith("{") else _of_text(text)
    if open_ is not None:
        yield open_


def _with_message(line: LogLine, message: str) -> LogLine:
    return replace(line, message=message)


def _of_text(text: str) -> LogLine | None:
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    at, milliseconds, level, logger, node, trace_id, message = found.groups()
    time_ms = int(datetime.strptime(at, "%Y-%m-%d %H:%M:%S").timestamp()) * 1_000 + int(milliseconds)
    return LogLine(time_ms, int(node), level, logger, message, trace_id or "")


def _of_json(text: str) -> LogLine | None:
    try:
        document = json.loads(text)
        message = str(document["message"])
        if "exception" in document:
            message += f"\n{document['exception']}"
        return LogLine(
            int(document["time_ms"]),
            int(document["node_id"]),
            str(document["level"]),
            str(document["logger"]),
            message,
            str(document.get("trace_id", "")),
        )
    except (ValueError, KeyError, TypeError):
        return None
