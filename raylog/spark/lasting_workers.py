"""Makes the work that Spark's Python workers do before and after each task cheap.

It would cost a tenth of a second of CPU for each task.

Spark keeps its Python workers for one task after the other. Before each it calls
``importlib.invalidate_caches``, for which Python reads the directories of all zip files that it has
imported from, in Python: pyspark, py4j and Spark's own jar of some thousand classes (70 ms). After
each it collects garbage in a heap that holds all of pyspark, Arrow and raylog (50 ms). Tasks that
read or write a hundred megabytes spend less on their records. So the importers of Spark's own
archives, which do not change under a running worker, are taken out of the cache of importers: an
import that needs one creates it again. And the objects of the first task's imports are frozen:
collections skip them, and their last reference still frees them.

Every Arrow batch that Spark sends to a worker is a new Python object of a megabyte or more, and
every record batch made of it another. The C library would get such memory from the kernel each
time, page by page, and return it at once, which took a fifth of the worker's CPU time in a write of
1 KB values. ``reuse_memory`` makes the process keep some.

Called by raylog's own tasks; nothing happens outside of a Python worker.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from typing import Final
from zipimport import zipimporter

from raylog.actors.malloc_settings import keep_freed_memory

_SPARKS_OWN = re.compile(r"pyspark\.zip|py4j-.*\.zip|spark-core_.*\.jar")
KEPT_BYTES: Final = 32 << 20  # what a producer has in flight, and as much as the C library takes
_frozen_in: int | None = None  # the process id; a forked process starts over


def reuse_memory() -> None:
    """Make the worker's process keep the memory that it frees. For the start of a task with large
    batches.
    """
    if "pyspark.worker" in sys.modules:
        keep_freed_memory(KEPT_BYTES)


def make_lasting() -> None:
    """Speed up Spark's work between this task and the next. For the end of a task."""
    if "pyspark.worker" not in sys.modules:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter) and _SPARKS_OWN.fullmatch(os.path.basename(importer.archive)):
            del sys.path_importer_cache[path]
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        gc.collect()
        gc.freeze()
