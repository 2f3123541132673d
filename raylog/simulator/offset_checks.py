"""What the offsets and epochs of a simulated replica may be, after what they were: checks of
``checkers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.log.log import Log

if TYPE_CHECKING:
    from raylog.simulator.checkers import History, ReplicaMemory


def replica(
    history: History,
    memory: ReplicaMemory,
    log: Log,
    who: str,
    *,
    is_leader: bool,
    leader_epoch: int,
    partition_epoch: int,
) -> None:
    """Raises what ``history.fail`` makes where a replica is not what it may be. ``memory`` is how
    it was seen before.
    """
    high_watermark, end, start = log.high_watermark, log.log_end_offset, log.log_start_offset
    if not start <= high_watermark <= end:
        raise history.fail(f"{who}: start {start}, high watermark {high_watermark}, end {end}")
    if leader_epoch < memory.leader_epoch or partition_epoch < memory.partition_epoch:
        raise history.fail(f"{who}: its epochs went back from {memory.leader_epoch}/{memory.partition_epoch}")
    if leader_epoch > history.newest_epoch:
        raise history.fail(f"{who}: no such epoch was committed, the newest is {history.newest_epoch}")
    if is_leader and memory.is_leader and partition_epoch == memory.partition_epoch:
        isr_size, min_isr = history.in_sync[partition_epoch]
        if isr_size < min_isr and high_watermark > memory.high_watermark:
            raise history.fail(
                f"{who}: the high watermark rose {memory.high_watermark} -> {high_watermark} with {isr_size} in sync "
                f"of {min_isr} needed"
            )
    loses_to_unclean = history.generation > 0 and not is_leader  # its leader's log is the truth
    starts_over = log.is_suspect and not is_leader  # cut below what was compacted: it is copied anew
    is_same_epoch = leader_epoch == memory.leader_epoch
    if is_same_epoch and high_watermark < memory.high_watermark and not (loses_to_unclean or starts_over):
        raise history.fail(f"{who}: the high watermark went back {memory.high_watermark} -> {high_watermark}")
    if start > max(history.deletable_end, history.start) and not history.retention and is_leader:
        raise history.fail(f"{who}: the log starts at {start}, but nobody deleted above {history.deletable_end}")
    if is_leader and leader_epoch == history.newest_epoch and start < history.deleted_end:
        raise history.fail(f"{who}: the log starts at {start}, but all below {history.deleted_end} was deleted")
