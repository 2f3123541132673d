"""Reads a query's progress from the files that Spark 3.5 writes into its checkpoint.

When a batch begins, ``offsets/<batch>`` names the end of each of its sources; when it is done,
``commits/<batch>`` exists. A ledger entry is *taken* when it belongs to a batch that has begun, and
will belong to no other. It is *committed* when its batch is done and will not run again. Both only
grow.

A place in a raylog stream is the number of a ledger entry, with its end offsets for human readers::

    {"stream": "flights", "entry": 7, "ends": {"flights": {"0": 117}}}

Formats of Spark's: ``OffsetSeqLog``, ``CommitLog``, each a line ``v1``, one of JSON, and in the
first a line for each source (a place, or ``-``); ``StreamMetadata``, which holds the query's id.
"""

from __future__ import annotations

import json
from pathlib import Path

from raylog.ranges.entries import StreamEntry

_NONE = 0
"""Entry 0 is in no batch."""


class CheckpointProgress:
    """The progress of one stream of the query: the highest entries that are ``taken`` and
    ``committed``.
    """

    def __init__(self, checkpoint: Path, stream: str) -> None:
        self._checkpoint = checkpoint
        self._stream = stream
        self._begun = -1
        self._done = -1
        self.taken = _NONE
        self.committed = _NONE

    def has_begun(self) -> bool:
        return has_begun(self._checkpoint)

    def refresh(self) -> None:
        """Read what Spark has written since the last call."""
        begun, done = (max(_numbers(self._checkpoint / name), default=-1) for name in ("offsets", "commits"))
        if begun > self._begun and (taken := self._entry_at(begun)) is not None:
            self._begun, self.taken = begun, taken
        if done > self._done and (committed := self._entry_at(done)) is not None:
            self._done, self.committed = done, committed

    def _entry_at(self, batch: int) -> int | None:
        """Return the entry that a batch is read up to; None if it is missing, or not written yet."""
        try:
            lines = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:
            return None
        return next((number for line in lines if (number := entry_number(line, self._stream)) is not None), None)


def has_begun(checkpoint: Path) -> bool:
    """Return whether a query with this checkpoint has planned a batch."""
    return bool(_numbers(checkpoint / "offsets"))


def query_of(checkpoint: Path) -> str | None:
    """Return the id of the checkpoint's query; None if no query has used it yet."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def place(stream: str, entry: StreamEntry) -> str:
    """Return the place after an entry, as in Spark's checkpoint; always the same text."""
    ends: dict[str, dict[str, int]] = {}
    for key, end in sorted(entry.ends.items()):
        ends.setdefault(key.topic, {})[str(key.partition)] = end
    return json.dumps({"stream": stream, "entry": entry.number, "ends": ends})


def entry_number(text: str, stream: str) -> int | None:
    """Return the entry number of a place in that stream; None for anything else."""
    try:
        found = json.loads(text)
        return int(found["entry"]) if found["stream"] == stream else None
    except (ValueError, KeyError, TypeError):
        return None


def _numbers(folder: Path) -> list[int]:
    """Return the file names that are numbers."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []
