"""How far a query is, read from the files that Spark 3.5 writes into its checkpoint.

Spark's file source lists, for each of its log offsets, the files that it took (``sources/<i>/<log offset>``, some compacted into one);
a batch names the log offset that each source ends at (``offsets/<batch>``) and is done when ``commits/<batch>`` is there. So the ledger's
entries that are *taken* are in a batch that has begun, and will be in no other one; those that are *committed* are in a batch that is
done and is never run again. Both only grow.

Formats: Spark's ``CompactibleFileStreamLog``, ``OffsetSeqLog``, ``CommitLog``, each a line ``v1`` and then JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from raylog.ranges.ledger import number_of

_NONE = 0
"""Entry 0 is in no batch."""


class CheckpointProgress:
    """Of the source that tails one ledger. ``taken`` and ``committed`` are numbers of entries; everything up to them is."""

    def __init__(self, checkpoint: Path, ledger: Path) -> None:
        self._checkpoint = checkpoint
        self._ledger = ledger
        self._source: Path | None = None
        self._ends: dict[int, int] = {}  # by log offset, the last entry that is taken there
        self._batch = -1
        self.taken = _NONE
        self.committed = _NONE

    def has_begun(self) -> bool:
        return has_begun(self._checkpoint)

    def refresh(self) -> None:
        """Look at what Spark has written since."""
        source = self._find_source()
        if source is None:
            return
        for log_offset, path in sorted(_numbered(source).items()):
            if log_offset not in self._ends:
                self._ends[log_offset] = max(_entries(path), default=_NONE)
        self.taken = max(self._ends.values(), default=_NONE)
        self._look_at_commits(int(source.name))

    def _look_at_commits(self, source: int) -> None:
        batch = max(_numbered(self._checkpoint / "commits"), default=-1)
        if batch <= self._batch:
            return
        try:
            ended = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[2 + source]
        except (FileNotFoundError, IndexError):
            return  # purged, or being written
        self._batch = batch
        log_offset = -1 if ended == "-" else json.loads(ended)["logOffset"]
        self.committed = max((end for at, end in self._ends.items() if at <= log_offset), default=self.committed)

    def _find_source(self) -> Path | None:
        if self._source is None:
            for _, folder in sorted(_numbered(self._checkpoint / "sources").items()):
                logs = sorted(_numbered(folder).items())
                if any(_paths(path, self._ledger) for _, path in logs[:1]):
                    self._source = folder
                    break
        return self._source


def has_begun(checkpoint: Path) -> bool:
    """Whether a query with this checkpoint has planned a batch."""
    return bool(_numbered(checkpoint / "offsets"))


def _numbered(folder: Path) -> dict[int, Path]:
    """The files or folders whose names are numbers; a compacted log's ends in ``.compact``."""
    try:
        found = list(folder.iterdir())
    except FileNotFoundError:
        return {}
    return {int(name): path for path in found if (name := path.name.removesuffix(".compact")).isdecimal()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()[1:]
    except FileNotFoundError:
        return []


def _entries(path: Path) -> list[int]:
    names = (Path(unquote(urlparse(json.loads(line)["path"]).path)).name for line in _lines(path))
    return [number for name in names if (number := number_of(name)) is not None]


def _paths(path: Path, ledger: Path) -> bool:
    return any(Path(unquote(urlparse(json.loads(line)["path"]).path)).parent == ledger for line in _lines(path))
