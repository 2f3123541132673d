"""What this process uses of its machine, for the heartbeat: CPU since the last look, resident
memory, cores it may run on.

The event loop's share is that of the thread that asks, so ask on the loop. It is the CPU time by
the time in which the thread was not kept waiting for a core. So a loop that always has work is busy
on a machine that others use up, too: the scheduler gives each process its part of the cores, and two
processes get more than one does. Where the kernel does not tell how long a thread waited, it counts
as idle meanwhile. Servers that share a loop, as those of a test broker do, do not say how busy it
is: one more of them would not help.
"""

from __future__ import annotations

import os
import time
from weakref import WeakSet

from raylog.control.session import Heartbeat, ReplicaLoad

_IN_THIS_PROCESS: WeakSet[ProcessUsage] = WeakSet()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()
        self._loop: tuple[float, float] | None = None  # ran and waited; this thread may not be the loop's
        _IN_THIS_PROCESS.add(self)

    def heartbeat(self, loads: tuple[ReplicaLoad, ...] = ()) -> Heartbeat:
        """The heartbeat to send now. CPU is a share of one core: the threads of a busy process may
        come to more than 1,000.
        """
        wall_s, cpu_s, loop = time.monotonic(), time.process_time(), (time.thread_time(), _waited_s())
        passed_s = wall_s - self._wall_s
        cpu = busy = -1
        if passed_s > 0:
            cpu = round((cpu_s - self._cpu_s) / passed_s * 1_000)
            if self._loop is not None and len(_IN_THIS_PROCESS) == 1:
                ran_s, waited_s = loop[0] - self._loop[0], loop[1] - self._loop[1]
                busy = round(ran_s / max(passed_s - waited_s, ran_s) * 1_000) if ran_s else 0
        self._wall_s, self._cpu_s, self._loop = wall_s, cpu_s, loop
        return Heartbeat(cpu, resident_bytes(), _cores(), busy, loads)


def _waited_s() -> float:
    """How long this thread could have run so far and had no core, by Linux's ``schedstat``; 0 where
    there is none.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return -1
