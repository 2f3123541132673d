"""Topics as bounded work: a snapshot of a topic's offsets, split into ranges for tasks.

This is what ``raylog.spark`` and ``raylog.data`` share; it imports neither Ray nor Spark.
``topics`` and ``places`` define how users name topics, a beginning and an end. ``snapshot`` turns
them into ranges of offsets by looking at the logs once, and ``splitting`` turns ranges into tasks.
``reading`` is the task: it yields Arrow batches, from ``near_files`` where possible. ``sending`` is
the other direction.

Streams consist of the same ranges. ``watch`` looks at the logs repeatedly, ``entries`` decides what
comes next, and ``ledger`` records it for Spark. ``sharding`` shares a stream among training workers,
each of which reads its part with ``shard_reading``.
"""
