"""What this process uses of its machine, for the heartbeat: CPU since the last look, resident memory, cores it may run on.

The event loop's share is the CPU time of the thread that asks, so ask on the loop. A loop that wants a core and does not get one counts
as idle meanwhile: another process would not get one either. Servers that share a loop, as those of a test broker do, do not say how
busy it is: one more of them would not help.

How much of these cores nobody uses is the kernel's count (``/proc/stat``), looked at by busy loops only: nobody asks the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from weakref import WeakSet

from raylog.metadata.session import Heartbeat, ReplicaLoad

_IN_THIS_PROCESS: WeakSet[ProcessUsage] = WeakSet()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_IDLE, _WAITS_FOR_DISK = 4, 5  # columns of a core's line in /proc/stat
MEASURES_IDLE_PER_MILLE = 500  # a loop that is so busy


class ProcessUsage:
    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()
        self._loop_s: float | None = None  # this thread may not be the loop's
        self._idle_s: float | None = None  # at the last look, if the loop was busy then
        _IN_THIS_PROCESS.add(self)

    def heartbeat(self, loads: tuple[ReplicaLoad, ...] = ()) -> Heartbeat:
        """The heartbeat to send now. CPU is a share of one core: the threads of a busy process may come to more than 1,000."""
        wall_s, cpu_s, loop_s = time.monotonic(), time.process_time(), time.thread_time()
        passed_s = wall_s - self._wall_s
        cores = os.sched_getaffinity(0)
        cpu = busy = idle = -1
        idle_s = None
        if passed_s > 0:
            cpu = round((cpu_s - self._cpu_s) / passed_s * 1_000)
            if self._loop_s is not None and len(_IN_THIS_PROCESS) == 1:
                busy = min(1_000, round((loop_s - self._loop_s) / passed_s * 1_000))
            if busy >= MEASURES_IDLE_PER_MILLE:
                idle_s = idle_seconds(cores)
                if idle_s is not None and self._idle_s is not None:
                    idle = max(0, round((idle_s - self._idle_s) / passed_s * 1_000))
        self._wall_s, self._cpu_s, self._loop_s, self._idle_s = wall_s, cpu_s, loop_s, idle_s
        return Heartbeat(cpu, _resident_bytes(), len(cores), busy, loads, idle)


def idle_seconds(cores: Collection[int], path: str = "/proc/stat") -> float | None:
    """For how long these cores together have had nothing to do since the machine started; None where the kernel does not say."""
    names = {f"cpu{core}".encode() for core in cores}
    try:
        with open(path, "rb") as file:
            lines = [fields for fields in map(bytes.split, file) if fields and fields[0] in names]
        ticks = sum(int(fields[_IDLE]) + int(fields[_WAITS_FOR_DISK]) for fields in lines)
    except (OSError, ValueError, IndexError):
        return None
    return ticks / _TICKS_PER_SECOND if len(lines) == len(names) else None


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return -1
