"""What a checker makes of a log whose files the simulation has damaged.

Bit rot hides records from every reader, the checkers among them, until the replica was mended. The
disk remembers what was there (``DamagedBytes``), so a checker can tell what is hidden from what is
missing.
"""

from __future__ import annotations

from raylog.log.log import Log
from raylog.records.batch import BatchView, batches
from raylog.simulator.simulated_files import DamagedBytes, SimulatedFiles


def was_corrupted(log: Log) -> bool:
    """Whether the simulation has ever damaged one of its files."""
    disk = log.files.disk if isinstance(log.files, SimulatedFiles) else None
    return disk is not None and any(path.startswith(f"{log.directory}/") for path in disk.corrupted)


def hidden(log: Log) -> list[tuple[int, int]]:
    """The offsets that cannot be read because of damage: from the first damaged batch of a segment
    up to the next segment.
    """
    there: dict[str, int] = {}
    for each in _damage(log):
        there[each.path] = min(each.offset, there.get(each.path, each.offset))
    segments = log.segments.all
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    return [
        (there[f"{segment.path}.log"], end)
        for segment, end in zip(segments, ends, strict=True)
        if f"{segment.path}.log" in there
    ]


def as_written(log: Log, views: list[BatchView], start: int, end: int) -> list[BatchView]:
    """``views``, which were read from ``start`` to ``end``, with the batches in their places that
    damage hides there.

    The log still counts as holding those: it was elected for them, and another replica that has
    them keeps them.
    """
    damage = _damage(log)
    if not damage:
        return views
    paths = {f"{segment.path}.log" for segment in log.segments}
    found = {view.base_offset: view for view in views}
    for each in damage:
        if each.path in paths:
            found |= {view.base_offset: view for view in batches(each.before) if start <= view.base_offset < end}
    return [found[offset] for offset in sorted(found)]


def _damage(log: Log) -> list[DamagedBytes]:
    """What is damaged still, on the disk that holds the log."""
    if not isinstance(log.files, SimulatedFiles):
        return []
    disk = log.files.disk
    return [each for each in disk.damaged if not each.is_mended(disk)]
