"""How far a query is, read from the files that Spark 3.5 writes into its checkpoint.

A batch that begins names the place that each of its sources is read up to (``offsets/<batch>``), and is done when ``commits/<batch>`` is
there. So the ledger's entries that are *taken* are in a batch that has begun, and will be in no other one; those that are *committed* are
in a batch that is done and is never run again. Both only grow.

A place in a stream of raylog's is the number of a ledger's entry, with the offsets at which it ends for people to read::

    {"stream": "flights", "entry": 7, "ends": {"flights": {"0": 117}}}

Formats of Spark's: ``OffsetSeqLog``, ``CommitLog``, each a line ``v1``, one of JSON, and in the first a line for each source (a place, or
``-``); ``StreamMetadata``, which holds the query's id.
"""

from __future__ import annotations

import json
from pathlib import Path

from raylog.ranges.entries import Entry

_NONE = 0
"""Entry 0 is in no batch."""


class CheckpointProgress:
    """Of one stream of the query. ``taken`` and ``committed`` are numbers of entries; everything up to them is."""

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
        """Look at what Spark has written since."""
        begun, done = (max(_numbers(self._checkpoint / name), default=-1) for name in ("offsets", "commits"))
        if begun > self._begun and (taken := self._entry_at(begun)) is not None:
            self._begun, self.taken = begun, taken
        if done > self._done and (committed := self._entry_at(done)) is not None:
            self._done, self.committed = done, committed

    def _entry_at(self, batch: int) -> int | None:
        """The entry that a batch is read up to; None where that is not there, or not yet."""
        try:
            lines = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:
            return None
        return next((number for line in lines if (number := entry_number(line, self._stream)) is not None), None)


def has_begun(checkpoint: Path) -> bool:
    """Whether a query with this checkpoint has planned a batch."""
    return bool(_numbers(checkpoint / "offsets"))


def query_of(checkpoint: Path) -> str | None:
    """The id of the query whose checkpoint this is; None where no query has it yet."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def place(stream: str, entry: Entry) -> str:
    """The place after an entry, as it is in Spark's checkpoint; always the same text."""
    ends: dict[str, dict[str, int]] = {}
    for key, end in sorted(entry.ends.items()):
        ends.setdefault(key.topic, {})[str(key.partition)] = end
    return json.dumps({"stream": stream, "entry": entry.number, "ends": ends})


def entry_number(text: str, stream: str) -> int | None:
    """Of a place in that stream; None for whatever else is in a checkpoint."""
    try:
        found = json.loads(text)
        return int(found["entry"]) if found["stream"] == stream else None
    except (ValueError, KeyError, TypeError):
        return None


def _numbers(folder: Path) -> list[int]:
    """The names of files that are numbers."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []
