"""What the garbage collector of a server's process does not look through again and again.

A full collection looks at every object that can be part of a cycle: with some hundred replicas that
takes 10 to 100 ms, for which the event loop stands still, and nearly all of them stay. So what
survives a full collection that took long is *frozen* (``gc.freeze``): left out of collections from
there on. The next ones are short.

A frozen object is still freed when its last reference goes, as ever. A cycle of frozen objects,
such as the log of a replica that has moved away, is not. So before more objects have been frozen
than lasted through the last *thorough* collection (at the start: ``LASTING_COUNT``, about what is
imported), all are thawed. The next full collection is a thorough one: it frees such cycles, and
what survives it is frozen and counted anew. What leaks meanwhile is never more than that. A
thorough collection takes as long as the process is large, and writes to the memory that a forked
process shares with its fork server.

Collections are seven times rarer than Python's are. What requests allocate is freed by its last
reference, so there is little to collect, but each request that waits, for half a second perhaps,
outlives the young generations. With 2,000 clients that made two full collections a second, 3 to 12
ms each: the p99 of acknowledgements was 4.4 ms, and is 1.4.
"""

from __future__ import annotations

import gc
import time
from typing import Final

SLOW_S: Final = 0.005
LASTING_COUNT: Final = 100_000
YOUNG_COUNT: Final = 5_000  # so many more objects than were freed begin a collection of the youngest; Python's own: 700
_FULL: Final = 2  # the oldest generation


class Survivors:
    """One for each process that runs raylog's servers only. Collections may happen in any thread,
    one at a time.
    """

    def __init__(self, *, slow_s: float = SLOW_S, lasting_count: int = LASTING_COUNT) -> None:
        """Survivors of a full collection that took at least ``slow_s`` of CPU time are frozen."""
        self._slow_s = slow_s
        self._started_s = 0.0
        self._lasting_count = lasting_count
        self._frozen_count = 0  # since the last thorough collection, whether they are still there or not
        self._is_thorough = False  # the next full collection

    def watch(self) -> None:
        """Freeze what is there, which is what has been imported, and the survivors of slow
        collections, rarer ones from here on.
        """
        gc.freeze()
        gc.set_threshold(YOUNG_COUNT, *gc.get_threshold()[1:])
        gc.callbacks.append(self._look)

    def _look(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._started_s = time.thread_time()
        elif time.thread_time() - self._started_s >= self._slow_s:
            self._freeze()

    def _freeze(self) -> None:
        count = len(gc.get_objects(_FULL))  # gc.get_freeze_count would go through all that is frozen
        if self._is_thorough:
            self._is_thorough, self._lasting_count, self._frozen_count = False, count, 0
        elif self._frozen_count + count > self._lasting_count:
            self._is_thorough = True
            gc.unfreeze()
            return
        else:
            self._frozen_count += count
        gc.freeze()
