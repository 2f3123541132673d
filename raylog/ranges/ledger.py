"""The ledger of a stream: a directory with one immutable file for each entry.

Spark's batches are made from these files (``stream_source``)::

    .stream.json                format version and what the stream reads, written once; others are refused
    .lock                       locked by the process that may write entries
    00000000000000000000.jsonl  entry 0, with which the stream begins and which reads nothing
    00000000000000000007.jsonl  entry 7

The first line of an entry's file is its head; each further line is one range, with the hosts of its
replicas::

    {"entry": 7, "topic_ids": {"flights": "f3…"}, "ends": {"flights": {"0": 117}}, "losses": []}
    {"topic": "flights", "partition": 0, "start": 100, "end": 117, "hosts": ["10.0.0.7"], "losses": []}

A file is written under another name, flushed to the disk and then renamed, so it is never partial.
Files of entries that Spark has committed may be removed, except the newest: the stream continues
from it.

Only the driver reads and writes the directory; the next driver has to see it, too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from raylog.errors import ConfigError
from raylog.ranges.entries import StreamEntry
from raylog.ranges.splitting import OffsetRange
from raylog.types import TopicPartition

_SUFFIX = ".jsonl"
_NAME = re.compile(rf"(\d{{20}}){re.escape(_SUFFIX)}")
STREAM_FILE = ".stream.json"
"""The file that marks a directory as a ledger."""

_LOCK_FILE = ".lock"
_VERSION = 2
"""Version 1, whose files have no version, was read by Spark's file source. Its positions mean
nothing here.
"""


def lines_of(entry: StreamEntry, parts: list[OffsetRange]) -> str:
    """Return the text of an entry's file. ``parts``: its ranges, split as tasks will read them.

    Each line repeats the losses, so that the task which reads it fails or continues as the query's
    option says. If there is no range to read, an empty one carries them.
    """
    ends: dict[str, dict[str, int]] = {}
    for key, end in sorted(entry.ends.items()):
        ends.setdefault(key.topic, {})[str(key.partition)] = end
    head = {"entry": entry.number, "topic_ids": dict(entry.topic_ids), "ends": ends, "losses": list(entry.losses)}
    if not parts and entry.losses:
        key, end = next(iter(sorted(entry.ends.items())))
        parts = [OffsetRange(*key, end, end)]
    lines = [head] + [
        {
            "topic": part.topic,
            "partition": part.partition,
            "start": part.start,
            "end": part.end,
            "hosts": list(part.hosts),
            "losses": list(entry.losses),
        }
        for part in parts
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def entry_of(text: str) -> StreamEntry:
    """Parse an entry's file; ValueError or KeyError for anything else. Ranges are split as they
    were written.
    """
    head, *lines = (json.loads(line) for line in text.splitlines())
    ends = {
        TopicPartition(topic, int(partition)): end
        for topic, each in head["ends"].items()
        for partition, end in each.items()
    }
    ranges = tuple(range_of(line) for line in lines)
    return StreamEntry(
        head["entry"], head["topic_ids"], ends, tuple(each for each in ranges if len(each)), tuple(head["losses"])
    )


def range_of(line: Mapping[str, Any]) -> OffsetRange:
    """Return the range of a parsed line."""
    return OffsetRange(line["topic"], line["partition"], line["start"], line["end"], tuple(line["hosts"]))


def number_of(name: str) -> int | None:
    """Return the number of the entry whose file has that name; None for other files."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


class StreamLedger:
    """The files of one stream. Only this process may write them, until ``close``.

    ``stream``: what is read, in plain JSON values. ConfigError for the directory of another stream,
    one that another process writes, or a path outside a file system. OSError from the file system.
    """

    def __init__(self, directory: str, stream: Mapping[str, Any]) -> None:
        self.directory = local_path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / _LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            self._take_lock()
            self._claim(dict(stream))
            numbers = self.numbers()
            self.last = self._read(numbers[-1]) if numbers else None
            """The newest entry; None in a new ledger."""
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.directory} is being written by another process: a stream runs once; "
                "end the other one, or give this one a checkpoint of its own"
            ) from None

    def _claim(self, stream: dict[str, Any]) -> None:
        path = self.directory / STREAM_FILE
        if not path.exists():
            self._write(path, json.dumps({"version": _VERSION, **stream}))
            return
        found = json.loads(path.read_text())
        if (version := found.pop("version", 1)) != _VERSION:
            raise ConfigError(
                f"{self.directory} belongs to the checkpoint of another raylog: the ledger in it has version {version}, this raylog reads "
                f"version {_VERSION}. Continue with that raylog, or give the stream a new checkpoint to start again"
            )
        if found != stream:
            what = ", ".join(
                f"{name}={found.get(name)!r}" for name in {**found, **stream} if found.get(name) != stream.get(name)
            )
            raise ConfigError(
                f"{self.directory} belongs to a stream with {what}: give this one a checkpoint of its own"
            )

    @property
    def name(self) -> str:
        """The name that distinguishes the streams of a query."""
        return self.directory.name

    def append(self, entry: StreamEntry, parts: list[OffsetRange]) -> None:
        """Write the next entry. When this returns, it is on the disk and a batch may read it."""
        expected = 0 if self.last is None else self.last.number + 1
        assert entry.number == expected, f"entry {entry.number} after {expected - 1}"
        self._write(self._path(entry.number), lines_of(entry, parts))
        self.last = entry

    def entry(self, number: int) -> StreamEntry:
        """Return an entry whose file exists, with its ranges as they were written."""
        return self._read(number)

    def parts(self, number: int) -> list[tuple[OffsetRange, str]]:
        """Return each range of an entry, with its line for the task. FileNotFoundError if the file
        was removed.
        """
        lines = self._path(number).read_text().splitlines()[1:]
        return [(range_of(json.loads(line)), line) for line in lines]

    def forget_below(self, number: int) -> None:
        """Remove the files of entries below ``number``, but never the newest."""
        for each in self.numbers()[:-1]:
            if each < number:
                self._path(each).unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """Return the numbers of the entries whose files exist, ascending."""
        names = (path.name for path in self.directory.iterdir())
        return sorted(number for name in names if (number := number_of(name)) is not None)

    def close(self) -> None:
        """Release the ledger to another process, or another stream of this one."""
        os.close(self._lock)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:020d}{_SUFFIX}"

    def _read(self, number: int) -> StreamEntry:
        path = self._path(number)
        try:
            return entry_of(path.read_text())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not an entry of a stream's ledger: {error!r}") from None

    def _write(self, path: Path, text: str) -> None:
        unfinished = path.with_name(f".{path.name}.unfinished")
        with open(unfinished, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def made_folder(name: str, directory: Any) -> Path:
    """Return the folder that an option names, and create it if needed. ConfigError if it can't be
    created or written to.
    """
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory) or "\0" in str(directory):
        raise ConfigError(f"{name}={directory!r}: give the path of a directory")
    path = local_path(str(directory))
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"{name}={str(directory)!r} is not a writable directory ({why}): give another one") from None
    return path


def local_path(directory: str) -> Path:
    """Return the path of a ``file:`` URI or a plain path; ConfigError for other schemes."""
    parsed = urlparse(str(directory))
    if parsed.scheme not in ("", "file"):
        raise ConfigError(
            f"{directory}: the ledger of a stream needs a path of a file system that all nodes share "
            f"(file:, or mounted), not {parsed.scheme}:"
        )
    if parsed.netloc not in ("", "localhost") or (parsed.scheme and not parsed.path):
        raise ConfigError(f"{directory!r} names no path: write it as /path or file:///path")
    return Path(unquote(parsed.path) if parsed.scheme else directory).absolute()
