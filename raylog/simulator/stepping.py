"""Threads that run one call at a time, in an order that a seed decides: every interleaving of their
disk accesses can be met again.

``Stepper`` runs each task in a thread of its own and lets one of them run at a time. A task runs
until its next disk access (``disk.fault = stepper.before_call``) or until a lock that another task
holds; then the seed decides who goes on. Production code runs as it is, with its locks replaced by
the stepper's, because one of the operating system's would stop the only thread that runs::

    stepper = Stepper(random.Random(seed))
    disk.fault = stepper.before_call
    stepper.take_over(log)
    stepper.start("flush", log.flush)
    stepper.start("append", lambda: append(log))
    stepper.run()                                  raises what a task raised, first come first

Owns no disk and knows nothing of logs but where they keep their locks. The seed and ``history``
(who ran, up to which call) tell a failure's story.
"""

from __future__ import annotations

import _thread
import random
import threading
from collections.abc import Callable
from types import TracebackType

from raylog.log.log import Log

_HANG_S = 60.0
"""A task that does nothing for so long waits for something that the stepper knows nothing of."""


class _Ended(BaseException):
    """Unwinds the tasks that are left when one has failed."""


class _Task:
    def __init__(self, name: str, work: Callable[[], object], rank: float) -> None:
        self.name = name
        self.rank = rank
        self.work = work
        self.turn = _taken()
        self.is_over = False
        self.waits_for: SteppedLock | None = None
        self.error: BaseException | None = None


def _taken() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class Stepper:
    """See the module."""

    def __init__(self, rng: random.Random) -> None:
        self.history: list[str] = []
        self._rng = rng
        self._unrest = rng.choice((0.05, 0.2, 1.0))  # how often a task loses its rank
        self._tasks: list[_Task] = []
        self._current: _Task | None = None
        self._back = _taken()
        self._is_ending = False

    def start(self, name: str, work: Callable[[], object]) -> None:
        """``work`` takes part from now on; also from within a task."""
        task = _Task(name, work, self._rng.random())
        self._tasks.append(task)
        threading.Thread(target=self._live, args=(task,), name=name, daemon=True).start()

    def run(self, *, steps: int | None = None) -> None:
        """Until every task is over, or for so many steps: then the tasks end where they are,
        without another call.

        Raises the first error of a task; the others end where they are.
        """
        while waiting := [task for task in self._tasks if not task.is_over]:
            if steps is not None:
                if steps <= 0:
                    self._end()
                    return
                steps -= 1
            ready = [task for task in waiting if task.waits_for is None or not task.waits_for.is_held]
            assert ready, f"all wait for each other: {[task.name for task in waiting]} after {self.history}"
            task = self._next(ready)
            self._give_turn(task)
            if task.error is not None:
                self._end()
                raise task.error

    def _next(self, ready: list[_Task]) -> _Task:
        """Mostly the task of the highest rank, until it is given another one: so some task rests
        while others do much.
        """
        task = max(ready, key=lambda each: each.rank)
        if self._rng.random() < self._unrest:
            task.rank = self._rng.random()
        return task

    def before_call(self, operation: str, path: str) -> None:
        """The hook of a ``SimulatedDisk``. Calls of nobody's task pass."""
        task = self._current
        if self._is_ending:
            raise _Ended
        if task is not None:
            self.history.append(f"{task.name}: {operation} {path.rpartition('/')[2]}")
            self._yield(task)

    def take_over(self, log: Log) -> None:
        """Replace the locks of an open log by the stepper's."""
        log.flushes._one = self.lock()  # type: ignore[assignment]
        log.flushes._guard = self.lock()  # type: ignore[assignment]
        log.flushes._leaving = self.lock()  # type: ignore[assignment]
        log.checkpoint_file._one = self.lock()  # type: ignore[assignment]
        log.segments._removing = self.lock()  # type: ignore[assignment]
        log.leader_epochs._guard = self.lock()  # type: ignore[assignment]
        if log.compaction.current is not None:
            log.compaction.current._guard = self.lock()  # type: ignore[assignment]

    def lock(self) -> SteppedLock:
        return SteppedLock(self)

    def acquire(self, lock: SteppedLock) -> None:
        """For ``SteppedLock``."""
        task = self._current
        while lock.is_held:
            assert task is not None, "a lock is held, and no task runs that could wait for it"
            task.waits_for = lock
            self._yield(task)
            task.waits_for = None
        lock.is_held = True

    def _live(self, task: _Task) -> None:
        task.turn.acquire()
        try:
            if not self._is_ending:
                task.work()
        except _Ended:
            pass
        except BaseException as error:
            task.error = error
        task.is_over = True
        self._back.release()

    def _yield(self, task: _Task) -> None:
        self._back.release()
        task.turn.acquire()
        if self._is_ending:
            raise _Ended

    def _give_turn(self, task: _Task) -> None:
        self._current = task
        task.turn.release()
        assert self._back.acquire(timeout=_HANG_S), f"{task.name} hangs after {self.history[-5:]}"
        self._current = None

    def _end(self) -> None:
        self._is_ending = True
        for task in self._tasks:
            while not task.is_over:
                self._give_turn(task)


class SteppedLock:
    """What ``threading.Lock`` is to ``with``, among the tasks of one stepper."""

    def __init__(self, stepper: Stepper) -> None:
        self.is_held = False
        self._stepper = stepper

    def __enter__(self) -> bool:
        self._stepper.acquire(self)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_held = False
