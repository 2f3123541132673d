"""The folders of one process's replicas: when a log is opened, when that is tried again, and when a
folder is deleted.

*Opening.* A folder that another process has locked is tried again soon, for as long as it takes
(DESIGN §3). An opening that failed otherwise takes the replica offline, and is tried again with a
growing pause: what was in its way (no file descriptors left, a disk that was full or did not
answer) may pass, and a process that holds many replicas does not end because one of them could not
be opened. Once a log is open, an IO error is final in this process.

*Deleting.* A replica that has a log open closes it and deletes the folder in one (``CloseLog``).
One that has none, or is not known here at all, may have a folder all the same (``RemoveFolder``).
Either way the controller hears of it when the folder is gone, and a deletion that fails, or meets a
lock, is tried again. An Assignment of the same replica ends that.

*Letting go.* A replica that another process of the disk holds from now on is closed cleanly, and
its folder stays. The controller hears of it when the folder is unlocked. An opening that is under
way is waited for; an Assignment that comes meanwhile keeps the replica.

Invariants (``check``): a removal or a release that waits for an opening has a replica that is being
opened; otherwise the replica of a removal is not in the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.control.session import Removal, ReplicaReleased, ReplicaRemoved
from raylog.replication.context import HostContext
from raylog.replication.events import CloseLog, FolderRemoved, LogOpened, OpenLog, RemoveFolder, Tell
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.replica import Replica


class _PendingRemoval:
    """A removal whose folder is not known to be gone."""

    __slots__ = ("failures", "removal")

    def __init__(self, removal: Removal) -> None:
        self.removal = removal
        self.failures = 0


class Folders:
    __slots__ = ("_closing", "_context", "_releasing", "_removals", "_replicas")

    def __init__(self, context: HostContext, replicas: dict[TopicIdPartition, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._removals: dict[TopicIdPartition, _PendingRemoval] = {}
        self._releasing: set[TopicIdPartition] = set()  # as soon as the opening that is under way ends
        self._closing: dict[TopicIdPartition, int] = {}  # logs that are being closed to let go of them; how many

    # -------------------------------------------------------------- opening

    def assigned(self, id: TopicIdPartition) -> None:
        """It is this process's again, or still: what was ordered to be deleted stays, if it is
        there yet.
        """
        self._removals.pop(id, None)
        self._releasing.discard(id)
        self._context.released.pop(id, None)

    def open(self, replica: Replica) -> None:
        replica.is_opening = True
        self._context.effects.append(OpenLog(replica.assignment))

    def opened(self, replica: Replica, event: LogOpened, now_ms: int) -> bool:
        """Whether the replica can go on with the log. Otherwise it was removed meanwhile, or has to
        wait.
        """
        replica.is_opening = False
        pending = self._removals.get(event.id)
        if pending is not None:
            del self._replicas[event.id]
            replica.remove()
            if event.log is not None:
                self._context.effects.append(CloseLog(event.id, event.log, delete=True))
            else:
                self._context.effects.append(RemoveFolder(pending.removal))
            return False
        if event.id in self._releasing:
            self._releasing.remove(event.id)
            del self._replicas[event.id]
            replica.let_go()
            if event.log is not None:
                self._closing[event.id] = self._closing.get(event.id, 0) + 1
                self._context.effects.append(CloseLog(event.id, event.log, delete=False, clean=True, reports=True))
            elif not self._closing.get(event.id):
                self._tell_released(event.id)
            return False
        if event.log is not None:
            return True
        config = self._context.config
        if event.locked:
            delay_ms = config.locked_log_retry_ms
        else:
            replica.fail(event.reason or "its log could not be opened")
            delay_ms = _backoff_ms(config.failed_log_retry_ms, replica.failed_openings, config.failed_log_retry_max_ms)
            replica.failed_openings += 1
        self._context.wheel.add(now_ms + delay_ms, lambda now_ms, wall_ms: self._open_again(replica))
        return False

    def _open_again(self, replica: Replica) -> None:
        if self._replicas.get(replica.id) is replica:
            self.open(replica)

    # -------------------------------------------------------------- letting go

    def release(self, id: TopicIdPartition) -> None:
        """Idempotent: the controller repeats it in each session until it has heard of the end."""
        if id in self._removals:
            return  # somebody has decided that the folder goes
        replica = self._replicas.get(id)
        if replica is not None and replica.is_opening:
            self._releasing.add(id)
            return
        if replica is not None:
            del self._replicas[id]
            self._closing[id] = self._closing.get(id, 0) + (replica.log is not None)
            replica.let_go()
        if not self._closing.get(id):
            self._tell_released(id)

    def closed(self, id: TopicIdPartition) -> None:
        """The end of a CloseLog that reports."""
        self._closing[id] -= 1
        if not self._closing[id]:
            self._tell_released(id)

    def _tell_released(self, id: TopicIdPartition) -> None:
        self._closing.pop(id, None)
        self._context.effects.append(Tell(ReplicaReleased(*id)))

    # -------------------------------------------------------------- deleting

    def remove(self, removal: Removal) -> None:
        """Idempotent: the controller repeats it in each session until it has heard of the end."""
        id = TopicIdPartition(removal.topic_id, removal.partition)
        if id in self._removals:
            return
        pending = self._removals[id] = _PendingRemoval(removal)
        self._releasing.discard(id)
        replica = self._replicas.get(id)
        if replica is not None and replica.is_opening:
            return  # its thread is at work: LogOpened ends it
        had_log = replica is not None and replica.log is not None
        if replica is not None:
            del self._replicas[id]
            replica.remove()
        if not had_log:
            self._context.effects.append(RemoveFolder(pending.removal))

    def removed(self, event: FolderRemoved, now_ms: int) -> None:
        """The end of a CloseLog that deletes, or of a RemoveFolder."""
        pending = self._removals.get(event.id)
        if pending is None:
            return
        if event.error is None:
            del self._removals[event.id]
            self._context.effects.append(Tell(ReplicaRemoved(*event.id)))
            self._context.counts.maybe_forget(each.assignment.topic for each in self._replicas.values())
            return
        config = self._context.config
        if event.locked:
            delay_ms = config.locked_log_retry_ms
        else:
            delay_ms = _backoff_ms(config.failed_log_retry_ms, pending.failures, config.failed_log_retry_max_ms)
            pending.failures += 1
        self._context.wheel.add(now_ms + delay_ms, lambda now_ms, wall_ms: self._remove_again(event.id, pending))

    def _remove_again(self, id: TopicIdPartition, pending: _PendingRemoval) -> None:
        if self._removals.get(id) is pending:
            self._context.effects.append(RemoveFolder(pending.removal))

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for id in self._releasing:
            opening = self._replicas.get(id)
            assert opening is not None and opening.is_opening, (
                f"{id} is to be released when it is open, and nobody opens it"
            )
        for id in self._removals:
            replica = self._replicas.get(id)
            assert replica is None or replica.is_opening, f"{id} is to be removed, and is {replica.role.value}"


def _backoff_ms(first_ms: int, failures: int, most_ms: int) -> int:
    return min(first_ms << min(failures, 20), most_ms)
