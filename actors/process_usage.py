"""What this process uses of its machine, for the heartbeat: CPU since the last look, resident memory, cores it may run on."""

from __future__ import annotations

import os
import time

from raylog.metadata.session import Heartbeat

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessUsage:
    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def heartbeat(self) -> Heartbeat:
        """The heartbeat to send now. CPU is a share of one core: the threads of a busy process may come to more than 1,000."""
        wall_s, cpu_s = time.monotonic(), time.process_time()
        passed_s = wall_s - self._wall_s
        cpu_per_mille = round((cpu_s - self._cpu_s) / passed_s * 1_000) if passed_s > 0 else -1
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return Heartbeat(cpu_per_mille, _resident_bytes(), len(os.sched_getaffinity(0)))


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return -1
