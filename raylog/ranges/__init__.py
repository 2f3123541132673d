"""Topics as bounded work: a cut through a topic's partitions, split into ranges of offsets, each read as Arrow by one task.

What ``raylog.spark`` and ``raylog.data`` have in common. ``places`` says what users may write for a beginning and an end, ``cut``
turns that into ranges of offsets by one look at the logs, ``splitting`` makes tasks of them and ``reading`` is the task. Imports neither
Ray nor Spark.
"""
