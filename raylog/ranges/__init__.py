"""Topics as bounded work: a cut through a topic's partitions, split into ranges of offsets, each read as Arrow by one task.

What ``raylog.spark`` and ``raylog.data`` have in common; imports neither Ray nor Spark. ``topics`` and ``places`` say what users may
write for topics, a beginning and an end; ``cut`` makes ranges of offsets of that by one look at the logs, ``splitting`` tasks of them, and
``reading`` is the task, which takes records from ``near_files`` where it can. ``sending`` is the other direction.

Streams are made of the same ranges: ``watch`` looks at the logs again and again, ``entries`` says what comes next and ``ledger`` keeps that
for Spark; ``dealing`` shares it out to workers that train, each of which reads its part by ``lane_reading``.
"""
