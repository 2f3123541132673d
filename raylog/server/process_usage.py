"""What this process uses of its machine, for the heartbeat: CPU since the last look, resident
memory, cores it may run on.

The event loop's share is the CPU time of the thread that asks, so ask on the loop. A loop that
wants a core and does not get one counts as idle meanwhile: another process would not get one
either. Servers that share a loop, as those of a test broker do, do not say how busy it is: one more
of them would not help.
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
        self._loop_s: float | None = None  # this thread may not be the loop's
        _IN_THIS_PROCESS.add(self)

    def heartbeat(self, loads: tuple[ReplicaLoad, ...] = ()) -> Heartbeat:
        """The heartbeat to send now. CPU is a share of one core: the threads of a busy process may
        come to more than 1,000.
        """
        wall_s, cpu_s, loop_s = time.monotonic(), time.process_time(), time.thread_time()
        passed_s = wall_s - self._wall_s
        cpu = busy = -1
        if passed_s > 0:
            cpu = round((cpu_s - self._cpu_s) / passed_s * 1_000)
            if self._loop_s is not None and len(_IN_THIS_PROCESS) == 1:
                busy = min(1_000, round((loop_s - self._loop_s) / passed_s * 1_000))
        self._wall_s, self._cpu_s, self._loop_s = wall_s, cpu_s, loop_s
        return Heartbeat(cpu, _resident_bytes(), _cores(), busy, loads)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return -1
