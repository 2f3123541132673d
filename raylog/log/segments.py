"""The segments of one log, ordered by base offset: how the list grows, shrinks and ages.

Owns which segment is active, and which files wait under ``.deleted`` for their removal. Which
segments keep their files open is a matter of all logs of the process (``OpenFiles``). The list is
replaced, never changed in place, so that a flush in another thread can walk the one it saw. Knows
nothing of offsets beyond base offsets, nor of producers, epochs or checkpoints.

Invariants: never empty; base offsets ascend strictly; all segments but the last are sealed.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from raylog.log.config import LogConfig
from raylog.log.files import Files
from raylog.log.open_files import OpenFiles
from raylog.log.segment import SUFFIXES, Segment


class Segments:
    """``active`` is the last one."""

    __slots__ = (
        "_directory",
        "_files",
        "_open_files",
        "_removing",
        "_renamed",
        "_roll_jitter",
        "active",
        "all",
        "base_offsets",
        "names_changed",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        segments: list[Segment],
        *,
        roll_jitter: Callable[[int], int] | None,
        open_files: OpenFiles,
    ) -> None:
        self._files = files
        self._directory = directory
        self._roll_jitter = roll_jitter
        self._open_files = open_files
        self._renamed: deque[tuple[int, str]] = deque()  # since when, path
        self._removing = threading.Lock()
        self.names_changed = False  # files were created since the directory was last synced
        for segment in segments:
            assert segment.is_resting, (
                segment.path
            )  # this may be another thread than the one that closes files for others
            segment.account_with(open_files)
        self._set(segments)

    def _set(self, segments: list[Segment]) -> None:
        self.all = segments
        self.active = segments[-1]
        self.base_offsets = [segment.base_offset for segment in segments]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def reaching(self, offset: int) -> list[Segment]:
        """The segments from the one that would hold ``offset`` on."""
        return self.all[max(0, bisect_right(self.base_offsets, offset) - 1) :]

    def not_below(self, offset: int) -> list[Segment]:
        """The segments that hold offsets at or above ``offset − 1``. Thread safe: it looks at one
        list only.
        """
        segments = self.all
        return segments[max(0, bisect_left(segments, offset, key=lambda each: each.base_offset) - 1) :]

    def warm(self, segment: Segment) -> None:
        """About to read or write: its files stay open longer than those of others that were used
        before.
        """
        if not segment.is_resting:
            self._open_files.use(segment)

    def draw_jitter(self, config: LogConfig) -> int:
        """How much sooner a new segment shall roll."""
        bound = min(config.segment_jitter_ms, config.segment_ms)
        return self._roll_jitter(bound) if self._roll_jitter is not None and bound > 0 else 0

    # ------------------------------------------------------------------ growing

    def roll(self, base_offset: int, *, config: LogConfig, wall_ms: int) -> None:
        """Seal the active segment and start another. Whatever raises leaves the active one as it
        was.
        """
        old = self.active
        old.write_indexes()
        new = self._create(base_offset, config, wall_ms)
        try:
            old.seal()
        except OSError:
            self._unlink([new])
            raise
        self._set([*self.all, new])

    def start_over(self, base_offset: int, *, config: LogConfig, wall_ms: int) -> None:
        """Remove every segment and start at ``base_offset``. Synced in two steps: no loss of power
        may mix the old with the new.
        """
        self._unlink(self.all)
        self._files.sync_directory(self._directory)
        self._set([self._create(base_offset, config, wall_ms)])
        self._files.sync_directory(self._directory)

    def _create(self, base_offset: int, config: LogConfig, wall_ms: int) -> Segment:
        """The caller puts it into the list; a flush that finds it there finds ``names_changed``,
        too.
        """
        try:
            segment = Segment.create(
                self._files,
                self._directory,
                base_offset,
                config=config,
                wall_ms=wall_ms,
                roll_jitter_ms=self.draw_jitter(config),
            )
        except OSError:
            for suffix in SUFFIXES:
                self._files.remove(f"{self._directory}/{base_offset:020d}{suffix}")
            raise
        segment.account_with(self._open_files)
        # Only now: a flush in another thread that saw it earlier would sync the directory before
        # the files are in it.
        self.names_changed = True
        return segment

    # ------------------------------------------------------------------ shrinking

    def keep_below(self, offset: int, *, config: LogConfig) -> None:
        """Remove the segments that start above ``offset``, the last first; the one that is left at
        the end becomes active.
        """
        keep = bisect_right(self.base_offsets, offset)
        assert keep > 0, (offset, self.base_offsets)
        self._unlink(self.all[keep:])
        last = self.all[keep - 1]
        if last.sealed:
            last.activate(config, roll_jitter_ms=self.draw_jitter(config))
        self._set(self.all[:keep])

    def rename_oldest(self, count: int, wall_ms: int) -> list[int]:
        """Take the oldest segments out of the list and rename their files to ``.deleted``; returns
        their base offsets.
        """
        gone = self.all[:count]
        self._set(self.all[count:])
        for segment in gone:
            segment.account_with(None)
            segment.rest()
            for path in segment.file_names():
                self._files.replace(path, path + ".deleted")
                self._renamed.append((wall_ms, path + ".deleted"))
        return [segment.base_offset for segment in gone]

    def exchange(self, old: Sequence[Segment], new: Segment) -> list[str]:
        """Put a cleaner's segment in the place of those that it was made of; returns their files,
        renamed to ``.deleted``.
        """
        at = self.all.index(old[0])
        assert self.all[at : at + len(old)] == list(old) and new.sealed, (old[0].base_offset, self.base_offsets)
        new.account_with(self._open_files)
        self._set([*self.all[:at], new, *self.all[at + len(old) :]])
        paths = []
        for segment in old:
            segment.account_with(None)
            segment.rest()
            for path in segment.file_names():
                self._files.replace(path, path + ".deleted")
                paths.append(path + ".deleted")
        return paths

    def remove_renamed(self, wall_ms: int, delay_ms: int) -> int:
        """Remove the files that were renamed at least ``delay_ms`` ago; returns how many. May run
        in another thread.
        """
        count = 0
        with self._removing:
            while self._renamed and wall_ms - self._renamed[0][0] >= delay_ms:
                self._files.remove(self._renamed[0][1])
                self._renamed.popleft()
                count += 1
        return count

    def _unlink(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            segment.account_with(None)
            segment.rest()
            for path in segment.file_names():
                self._files.remove(path)

    def leave(self) -> None:
        """Another thread may use and close the files from here on. Thread safe."""
        for segment in self.all:
            segment.account_with(None)

    def close(self) -> None:
        """Close every file, and let ``remove_renamed`` in another thread remove no more: the next
        opening does.
        """
        with self._removing:
            self._renamed.clear()
        for segment in self.all:
            segment.rest()

    def check(self) -> None:
        """Assert the invariants of the module's docstring."""
        assert self.base_offsets == sorted(set(self.base_offsets)), self.base_offsets
        assert self.base_offsets == [segment.base_offset for segment in self.all]
        assert [segment.sealed for segment in self.all] == [True] * (len(self.all) - 1) + [False], self.base_offsets
